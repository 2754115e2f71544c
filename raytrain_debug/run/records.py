"""What a run directory holds, as frozen dataclasses; `from_dict` ignores keys a newer version added.

The JSON files carry exactly these field names. docs/run-directory.md is the same for readers who do not use Python.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

SCHEMA = 1


@dataclass(frozen=True)
class CallSite:
    """A place in the user's code."""

    file: str
    line: int
    function: str


@dataclass(frozen=True)
class FileEntry:
    """One file of a checkpoint directory; `path` is relative to it, `size` in bytes."""

    path: str
    size: int


@dataclass(frozen=True)
class CheckpointRecord:
    """A reported checkpoint: where the script had it and where our snapshot of it is.

    `snapshot` is relative to the rank's directory, or None when no snapshot was kept (`kept` then says why).
    `kept` is "hard links", "copy", "off", "remote", or "failed: <reason>". `skipped` names what the snapshot does not
    have, each "<path>: <reason>".
    """

    source: str
    snapshot: str | None
    files: tuple[FileEntry, ...] = ()
    kept: str = "copy"
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProcessUsage:
    """Resources of the rank at the moment of a report: bytes and seconds; `gpu_memory` None without CUDA."""

    rss: int | None = None
    cpu_time: float | None = None
    gpu_memory: int | None = None


@dataclass(frozen=True)
class ReportRecord:
    """One `ray.train.report`: a line of reports.jsonl. `time` is Unix seconds, `interval` seconds since the last.

    `tensors` names the metrics that were torch tensors, or held one; in `metrics` those of one element are numbers.
    """

    index: int
    time: float
    attempt: int
    context: dict[str, Any]
    metrics: dict[str, Any]
    checkpoint: CheckpointRecord | None
    where: CallSite | None
    process: ProcessUsage = field(default_factory=ProcessUsage)
    interval: float | None = None
    tensors: tuple[str, ...] = ()
    schema: int = SCHEMA


@dataclass(frozen=True)
class ProcessRecord:
    """process.json of a rank: which process it is, in its newest attempt. Identity is pid + create_time."""

    rank: int
    local_rank: int
    world_size: int
    pid: int
    create_time: float
    host: str
    attempt: int
    control: str
    script: str
    schema: int = SCHEMA


@dataclass(frozen=True)
class TensorDescription:
    """A tensor or array in numbers, over its finite elements; what is not known is None, and `note` says why.

    `std` is the sample's (n - 1), as `torch.std`. Complex tensors have no min, max and mean.
    `first_bad` is the index of the first NaN or infinity that was seen; `looked_at` counts the elements that were
    looked at when not all were. `kept` names the tensor in the core's tensor file. `global_shape` is that of a tensor
    spread over ranks, of which `shape` is this rank's part.
    """

    shape: tuple[int, ...]
    dtype: str
    device: str = "cpu"
    min: float | int | None = None
    max: float | int | None = None
    mean: float | None = None
    std: float | None = None
    nan: int | None = None
    inf: int | None = None
    first_bad: tuple[int, ...] | None = None
    looked_at: int | None = None
    requires_grad: bool = False
    global_shape: tuple[int, ...] | None = None
    kept: str | None = None
    note: str = ""


@dataclass(frozen=True)
class Described:
    """A value of the user's, as a core keeps it.

    `kind` is "number" (None and bool too), "text", "bytes", "sequence", "set", "mapping", "object" (a dataclass,
    namedtuple or other object whose attributes are described), "module" (of torch), "tensor", "array", or "other"
    (nothing but `type` and `text`). `text` is one bounded line for people. `value` is the value itself where JSON holds
    it: every number, and text (whole when it is `length` long). `items` are the described parts that fit in: by index
    for a sequence or set, by the key's repr for a mapping, by name for an object and a module; `length` counts all
    there are. `parameters` counts the elements of a module's parameters.
    """

    type: str
    kind: str
    text: str
    value: Any = None
    length: int | None = None
    items: dict[str, Described] = field(default_factory=dict)
    tensor: TensorDescription | None = None
    parameters: int | None = None


@dataclass(frozen=True)
class FrameRecord:
    """A frame: where it stood, the source around that, and its locals.

    `origin` says whose code it is: "user", "package" (installed), "framework" (torch, the standard library, ...) or
    "plumbing" (Ray's own). `source` are the lines from number `first_line` on, as they were at death. `locals` are
    empty when the frame was left out for time or size, which `note` then says.
    """

    file: str
    line: int
    function: str
    module: str = ""
    origin: str = "user"
    first_line: int = 0
    source: tuple[str, ...] = ()
    locals: dict[str, Described] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class ThreadRecord:
    """A thread at the moment of the core; frames outermost first, none of them ours.

    The frames of the thread that an exception ended are the exception's, down to the line that raised it.
    `waiting_in` is what the thread waited for when its frames tell: "all_reduce", "DataLoader next", "lock".
    """

    name: str
    is_main: bool = False
    frames: tuple[FrameRecord, ...] = ()
    waiting_in: str | None = None


@dataclass(frozen=True)
class ExceptionRecord:
    """An exception; `where` is its last frame in the user's own code.

    `traceback` are the lines as printed, those of the chain included; only the outermost exception has them.
    `cause` is what it was raised from, `context` what was being handled when it was raised (None when the script said
    `from None`), `members` are those of an exception group, `notes` what `add_note` added, `attributes` what else it
    carries (errno, filename, the fields of a SyntaxError). `frames` are those of a chained exception or a member,
    outermost first; the outermost exception's are its thread's.
    """

    type: str
    message: str
    where: CallSite | None
    traceback: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    cause: ExceptionRecord | None = None
    context: ExceptionRecord | None = None
    members: tuple[ExceptionRecord, ...] = ()
    frames: tuple[FrameRecord, ...] = ()
    attributes: dict[str, Described] = field(default_factory=dict)


@dataclass(frozen=True)
class SourceRecord:
    """A source file of the user's, kept whole at death: `path` is relative to the rank's directory.

    `changed` is True when the file was modified after the process had started, so that the running code may be older
    than the text.
    """

    file: str
    path: str
    changed: bool = False


@dataclass(frozen=True)
class CoreRecord:
    """core.json of a rank: what was left at its death.

    `reason` is "exception", "ended" (by the launcher, in consequence of another rank's failure or of a stop), or
    "signal" (a fatal one such as SIGSEGV: Python's faulthandler names the frames, nothing knows their locals).
    `threads` has the thread that died first, else the main thread first; older cores have none. `tensors` is the
    safetensors file, relative to the rank's directory, with the tensors that were kept. `notes` say what was left out.
    `seconds` is what the dump took.
    """

    time: float
    attempt: int
    pid: int
    exception: ExceptionRecord | None
    reason: str = "exception"
    threads: tuple[ThreadRecord, ...] = ()
    tensors: str | None = None
    sources: tuple[SourceRecord, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    schema: int = SCHEMA

    @property
    def thread(self) -> ThreadRecord | None:
        """The thread that died, else the main thread."""
        return self.threads[0] if self.threads else None

    @property
    def waiting_in(self) -> str | None:
        """What the main thread waited in; see ThreadRecord."""
        return next((thread.waiting_in for thread in self.threads if thread.is_main), None)


@dataclass(frozen=True)
class ThreadExceptionRecord:
    """A line of exceptions.jsonl: an exception that ended a thread of the rank, but not the rank.

    `report` is the index of the report that the rank would have made next; older lines do not tell.
    """

    time: float
    attempt: int
    pid: int
    thread: str
    exception: ExceptionRecord
    report: int | None = None
    schema: int = SCHEMA


@dataclass(frozen=True)
class ExitRecord:
    """How one process of a rank ended.

    `exit_code` is None when a signal ended it; `signal` is its name ("SIGKILL"). `caused` is True when the launcher
    ended it in consequence of another rank's failure or of a stop, so it is no cause itself. `order` counts deaths
    in the order in which the kernel told of them, over all attempts.
    """

    rank: int
    attempt: int
    pid: int
    time: float
    order: int
    exit_code: int | None
    signal: str | None
    caused: bool = False


@dataclass(frozen=True)
class LauncherRecord:
    """The launcher process of a run; `socket` is its control socket, `ports` maps rank to gateway port.

    `host` is its machine's name, `bind` what its gateway listens on, `address` how other machines reach that ("" when
    they do not). `hosts` has the ranks of other nodes, each with the address at which its port in `ports` is. `relays`
    has the ranks of other Ray nodes, each with the socket on `host` that stands for its control socket there.
    """

    pid: int
    create_time: float
    host: str
    socket: str
    ports: dict[str, int] = field(default_factory=dict)
    bind: str = "127.0.0.1"
    address: str = ""
    hosts: dict[str, str] = field(default_factory=dict)
    relays: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RunRecord:
    """run.json. `mode` is "torchrun", "single", "script" (no launcher) or "ray"; `stopped` says what ended it early.

    A "script" tells its own end: `ended` is set when its process, or the test that recorded it, ended by itself, and
    `exit_code` is 1 after an exception, else None (unknown: it may have called sys.exit).
    A job on several nodes leaves a run on each; they have the same `job`, the id of node 0's run ("" on one node).
    """

    id: str
    argv: tuple[str, ...]
    cwd: str
    mode: str
    started: float
    world_size: int
    nnodes: int = 1
    nproc_per_node: int = 1
    attempt: int = 0
    launcher: LauncherRecord | None = None
    versions: dict[str, str] = field(default_factory=dict)
    exits: tuple[ExitRecord, ...] = ()
    ended: float | None = None
    exit_code: int | None = None
    stopped: str | None = None
    job: str = ""
    schema: int = SCHEMA

    @property
    def tells_its_end(self) -> bool:
        """Whether it is a script without a launcher, that has said that it ends."""
        return self.mode == "script" and self.ended is not None


@dataclass(frozen=True)
class StackGroup:
    """Ranks whose training threads stood at the same place; `frames` of the user's code, outermost first."""

    ranks: tuple[int, ...]
    waiting_in: str | None
    frames: tuple[CallSite, ...]


@dataclass(frozen=True)
class HangRecord:
    """hang.json: no rank had moved for `seconds` at `time` (Unix seconds).

    `verdict` says in one sentence what ranks did, `notes` what explains it. `silent` has the ranks that did not answer,
    with the reason.
    """

    time: float
    seconds: float
    attempt: int
    verdict: str
    notes: tuple[str, ...] = ()
    groups: tuple[StackGroup, ...] = ()
    silent: dict[str, str] = field(default_factory=dict)
    schema: int = SCHEMA


def to_dict(record: Any) -> dict[str, Any]:
    """The record as plain dicts and lists, ready for the JSON encoder."""
    result: dict[str, Any] = dataclasses.asdict(record)
    return result


def to_sparse_dict(record: Any) -> dict[str, Any]:
    """As `to_dict`, without the fields that have their default value; `from_dict` gives the same record back."""
    result: dict[str, Any] = {}
    for each in dataclasses.fields(record):
        value = getattr(record, each.name)
        default = each.default if each.default_factory is dataclasses.MISSING else each.default_factory()
        if each.name == "schema" or type(value) is not type(default) or value != default:
            result[each.name] = _sparse(value)
    return result


def _sparse(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_sparse_dict(value)
    if isinstance(value, (tuple, list)):
        return [_sparse(item) for item in value]
    if isinstance(value, dict):
        return {key: _sparse(item) for key, item in value.items()}
    return value


T = typing.TypeVar("T")


def from_dict(cls: type[T], data: dict[str, Any]) -> T:
    """A `cls` from what `to_dict` gave; unknown keys ignored; raises TypeError/KeyError/ValueError on a wrong shape."""
    if not isinstance(data, dict):
        raise TypeError(f"{cls.__name__} needs an object, not {type(data).__name__}")
    fields = _converters(cls)  # type: ignore[arg-type]
    return cls(**{name: convert(data[name]) for name, convert in fields.items() if name in data})


_Convert = Callable[[Any], Any]


@functools.cache
def _converters(cls: Any) -> dict[str, _Convert]:
    """For each field what makes it of plain values. A core has a hundred thousand: hints are looked at once."""
    return {name: _converter(hint) for name, hint in typing.get_type_hints(cls).items()}


def _converter(hint: Any) -> _Convert:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        there = _converter(next(arg for arg in typing.get_args(hint) if arg is not type(None)))
        return lambda value: None if value is None else there(value)
    if origin is tuple:
        return functools.partial(_tuple, _converter(typing.get_args(hint)[0]))
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return functools.partial(from_dict, hint)
    if hint is Any:
        return lambda value: value
    if origin is dict:
        return functools.partial(_mapping, _converter(typing.get_args(hint)[1]))
    return functools.partial(_plain, origin or hint)


def _tuple(convert: _Convert, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{value!r} is no list")
    return tuple([convert(item) for item in value])


def _mapping(convert: _Convert, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} is no dict")
    return {key: convert(item) for key, item in value.items()}


def _plain(expected: Any, value: Any) -> Any:
    if type(value) is not expected and not (expected is float and type(value) is int):
        raise TypeError(f"{value!r} is no {expected.__name__}")
    return value
