"""What a thread waits for, told from its frames: the collective, the data, the report or the debugger by name."""

from __future__ import annotations

import dis
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType

from raytrain_debug.shim import ray_internals
from raytrain_debug.shim.flight_recorder import Pending
from raytrain_debug.shim.frames import Position, user_positions

BREAKPOINT = "breakpoint"
START = "start"
CRASH = "crash"

_BACKWARD = "backward"

# Modules whose public functions are named for what they wait in: all_reduce, barrier, init_process_group, recv.
_NAMED = frozenset(
    {
        "torch.distributed.distributed_c10d",
        "torch.distributed._functional_collectives",
        "torch.distributed.nn.functional",
        "torch.distributed.device_mesh",
    }
)
_NO_WAIT = ("_", "get_", "is_", "forward", "backward")

# Module -> function -> what to call it, for waits that only other ranks can end.
_PEERS: dict[str, dict[str, str]] = {
    "torch.distributed.utils": {
        "_verify_param_shape_across_processes": "DDP init",
        "_sync_module_states": "DDP init",
    },
    "torch.nn.parallel.distributed": {
        "_ddp_init_helper": "DDP init",
        "_pre_forward": "DDP forward",
        "_post_forward": "DDP forward",
        "_sync_buffers": "DDP forward",
        "_sync_final_model": "DDP join",
    },
    **ray_internals.WAITS,
}

# The same for waits that this machine ends.
_OTHERS: dict[str, dict[str, str]] = {
    "torch.utils.data.dataloader": {"__next__": "DataLoader next", "__iter__": "DataLoader start"},
    "torch.cuda": {"synchronize": "device synchronize"},
    "torch.cuda.streams": {"synchronize": "device synchronize"},
    "queue": {"get": "queue get", "put": "queue put"},
    "multiprocessing.queues": {"get": "queue get", "put": "queue put"},
    "multiprocessing.connection": {"recv": "connection recv", "wait": "connection wait", "accept": "accept"},
    "multiprocessing.process": {"join": "process join"},
    "threading": {"wait": "lock", "wait_for": "lock", "join": "thread join"},
    "concurrent.futures._base": {"result": "future", "wait": "future"},
    "subprocess": {"wait": "subprocess", "communicate": "subprocess"},
    "socket": {"accept": "accept", "create_connection": "connect"},
}

# Where a thread computes, or waits in C++ for a collective: only one that is under way tells which.
_COMPUTING = frozenset({("torch.autograd.graph", "_engine_run_backward"), ("torch.autograd", "backward")})

# Calls from a frame straight into C++ that end only when what is under way has ended.
_SYNCHRONISING = frozenset({"wait", "item", "tolist", "cpu", "numpy", "synchronize"})


@dataclass(frozen=True)
class Wait:
    """What a thread waits in; `peers` when only other ranks can end it; `index` is the frame that tells."""

    label: str
    peers: bool
    index: int


def find_wait(positions: Sequence[Position], pending: Sequence[Pending] = ()) -> Wait | None:
    """What the frames (outermost first) wait in, or None.

    Of the library frames inside the user's innermost one the outermost that is known counts: who calls
    all_gather_object waits in that, not in the all_gather that it is made of. `pending` are the process's collectives
    under way: they name a wait inside C++ that no frame tells.
    """
    own = user_positions(positions)
    start = positions.index(own[-1]) + 1 if own else 0
    for index in range(start, len(positions)):
        module, function = positions[index].module, positions[index].function
        if module in _NAMED and not function.startswith(_NO_WAIT):
            return Wait(function, True, index)
        if (label := _PEERS.get(module, {}).get(function)) is not None:
            return Wait(label, True, index)
        label = _OTHERS.get(module, {}).get(function)
        if pending and (label == "device synchronize" or (module, function) in _COMPUTING):
            return Wait(pending[0].name, True, index)
        if label is not None:
            return Wait(label, False, index)
    last = len(positions) - 1
    if pending and positions and called_method(positions[-1].code, positions[-1].lasti) in _SYNCHRONISING:
        return Wait(pending[0].name, True, last)
    return None


def called_method(code: CodeType, lasti: int) -> str | None:
    """The method without arguments that the instruction at `lasti` calls (`x.wait()`), or None for anything else."""
    before: dis.Instruction | None = None
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("PRECALL", "PUSH_NULL"):
            continue
        if instruction.offset >= lasti:
            calls = instruction.opname.startswith("CALL") and instruction.arg == 0
            named = before is not None and before.opname in ("LOAD_METHOD", "LOAD_ATTR")
            return str(before.argval) if calls and named and before is not None else None
        before = instruction
    return None
