"""torchrun's own API in this process: its option parser, its agent, its output; only the command it starts is ours.

Names of torch that we touch: torch.distributed.run.get_args_parser, run and determine_local_world_size,
LocalElasticAgent._start_workers and _stop_workers, wrapped to learn which process is which rank, PContext.close, which
ends the ranks that are left, DynamicRendezvousHandler._state_holder.state.round, and
torch.distributed.launcher.api._get_entrypoint_name.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from typing import Any

from raytrain_debug.errors import UsageError
from raytrain_debug.launcher.host import Host
from raytrain_debug.launcher.job import Job
from raytrain_debug.launcher.nodes import Group


def add_torchrun_arguments(parser: argparse.ArgumentParser) -> None:
    """Every option of the installed torchrun, with its own defaults and help, and the script with its arguments."""
    from torch.distributed.run import get_args_parser

    theirs = get_args_parser()
    for action in theirs._actions:
        if not isinstance(action, argparse._HelpAction):
            parser._add_action(action)


def local_world_size(args: argparse.Namespace) -> int:
    """How many ranks this node starts: `--nproc-per-node` with `auto`, `gpu` and `cpu` resolved."""
    from torch.distributed.run import determine_local_world_size

    try:
        size: int = determine_local_world_size(args.nproc_per_node)
    except ValueError as error:
        raise UsageError(str(error), "write --nproc-per-node N, or gpu, cpu, auto") from None
    if size < 1:
        raise UsageError(f"--nproc-per-node {args.nproc_per_node} starts no rank", "it is 1 or more")
    return size


def node_count(args: argparse.Namespace) -> int:
    """The largest number of nodes that `--nnodes` allows."""
    from torch.distributed.run import parse_min_max_nnodes

    try:
        most: int = parse_min_max_nnodes(args.nnodes)[1]
    except (ValueError, RuntimeError) as error:
        raise UsageError(f"--nnodes {args.nnodes}: {error}", "write --nnodes N or --nnodes MIN:MAX") from None
    return most


BeforeStart = Callable[[list[int], Group], None]
"""Called before an attempt's processes exist, with this node's ranks and the nodes that take part."""


def run(args: argparse.Namespace, host: Host, job: Job, before_start: BeforeStart) -> None:
    """Run the job to its end; raises what torchrun raises (ChildFailedError, SignalException)."""
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing.errors import record

    if args.no_python:
        raise UsageError("--no-python starts a program that is not Python", "leave it out, or use torchrun itself")
    _follow_agent(host, job, before_start)
    _name_the_script(args.training_script)
    target = ["-m", args.training_script] if args.module else [args.training_script]
    args.training_script_args = [*target, *args.training_script_args]
    args.training_script, args.module, args.run_path = "raytrain_debug.shim", True, False
    record(torchrun.run)(args)


def _follow_agent(host: Host, job: Job, before_start: BeforeStart) -> None:
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.multiprocessing.api import PContext

    start, stop = LocalElasticAgent._start_workers, LocalElasticAgent._stop_workers
    restart = LocalElasticAgent._restart_workers

    @functools.wraps(start)
    def start_workers(agent: Any, worker_group: Any) -> Any:
        workers = {worker.local_rank: worker for worker in worker_group.workers}
        attempt = _attempt(agent, worker_group.spec)
        group = Group(worker_group.store, worker_group.group_rank, worker_group.group_world_size, attempt)
        before_start([worker.global_rank for worker in workers.values()], group)
        host.exit_status = functools.partial(_exit_status, agent)
        pids = start(agent, worker_group)
        by_rank = {workers[local_rank].global_rank: pid for local_rank, pid in pids.items()}
        size = next(iter(workers.values())).world_size
        host.run(lambda: job.attempt_started(attempt, size, by_rank, agent._remaining_restarts))
        host.watch(list(by_rank.values()))
        return pids

    @functools.wraps(stop)
    def stop_workers(agent: Any, *args: Any, **kwargs: Any) -> Any:
        host.run(lambda: setattr(job, "stopping", True))
        return stop(agent, *args, **kwargs)

    @functools.wraps(restart)
    def restart_workers(agent: Any, *args: Any, **kwargs: Any) -> Any:
        host.run(lambda: setattr(job, "restarting", True))
        return restart(agent, *args, **kwargs)

    close = PContext.close

    @functools.wraps(close)
    def close_workers(context: Any, *args: Any, **kwargs: Any) -> Any:
        # Also after a failure, before it is known whether there is a restart, and for a signal to the launcher.
        host.run(lambda: setattr(job, "ending", True))
        try:
            host.leave_cores()
        finally:
            result = close(context, *args, **kwargs)
        return result

    PContext.close = close_workers
    LocalElasticAgent._restart_workers = restart_workers
    LocalElasticAgent._start_workers = start_workers
    LocalElasticAgent._stop_workers = stop_workers


def _attempt(agent: Any, spec: Any) -> int:
    """How often the worker group has been started before: the rendezvous' round, which all nodes have in common.

    A static rendezvous has none, but then there are no restarts other than torchrun counts.
    """
    state = getattr(getattr(spec.rdzv_handler, "_state_holder", None), "state", None)
    return int(getattr(state, "round", spec.max_restarts - agent._remaining_restarts))


def _name_the_script(script: str) -> None:
    """Let torchrun's own messages ("train.py FAILED") name the user's script, not our shim."""
    from torch.distributed.launcher import api

    if hasattr(api, "_get_entrypoint_name"):
        api._get_entrypoint_name = lambda entrypoint, arguments: script


def _exit_status(agent: Any, pid: int) -> int | None:
    """The return code of a worker that torchrun has reaped before we could look."""
    handlers = getattr(agent._pcontext, "subprocess_handlers", {})
    for handler in handlers.values():
        if handler.proc.pid == pid:
            code: int | None = handler.proc.returncode
            return code
    return None
