"""launch: run a training script under torchrun's own agent, or alone, with every rank ready to be debugged."""

from __future__ import annotations

import argparse
import atexit
import dataclasses
import functools
import importlib.machinery
import importlib.util
import itertools
import os
import platform
import secrets
import signal
import socket
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from raytrain_debug.across.hang import Ended, Hang
from raytrain_debug.cli import console, interrupts
from raytrain_debug.errors import RaytrainDebugError, UsageError
from raytrain_debug.launcher import ports, ray_job, single, torchrun
from raytrain_debug.launcher.gateway import Gateway
from raytrain_debug.launcher.hang_watch import HangWatch
from raytrain_debug.launcher.host import Host, end_job
from raytrain_debug.launcher.job import Job, RankState
from raytrain_debug.launcher.node_ports import NodePorts
from raytrain_debug.launcher.nodes import Group, Nodes
from raytrain_debug.launcher.ray_job import RayJob
from raytrain_debug.run import layout
from raytrain_debug.run.ranks import parse_ranks
from raytrain_debug.run.reader import load_run
from raytrain_debug.run.records import LauncherRecord, RunRecord
from raytrain_debug.shim.rank import process_create_time
from raytrain_debug.shim.settings import Settings

_PACKAGES = ("raytrain_debug", "torch", "ray", "debugpy")


def configure(parser: argparse.ArgumentParser, arguments: Sequence[str] = ()) -> None:
    """Our options, then torchrun's (read from the installed torchrun) or, with --no-torchrun, python's."""
    interrupts.remember()  # torch is imported below
    parser.usage = "python -m raytrain_debug launch [options] [any torchrun option] SCRIPT|-m MODULE [ARGS]"
    own = parser.add_argument_group("raytrain_debug")
    own.add_argument(
        "--base-port",
        default=str(ports.DEFAULT_BASE_PORT),
        metavar="PORT",
        help="rank R is debugged on PORT + R (default %(default)s); "
        f"auto picks free ones, from {ports.FIRST_FREE_PORT} on",
    )
    own.add_argument("--wait", metavar="RANKS", help="these ranks (0,2-3 or all) wait for a debugger before line 1")
    own.add_argument("--run-root", metavar="DIR", help="where runs are recorded (default .raytrain_debug)")
    own.add_argument(
        "--keep-checkpoints",
        type=int,
        default=2,
        metavar="K",
        help="keep the last K reported checkpoints of each rank (default %(default)s)",
    )
    own.add_argument(
        "--hang-after",
        type=float,
        metavar="SECONDS",
        help="when no rank has moved for that long, print all stacks and what ranks wait for (default: never)",
    )
    _add_hold_on_crash(own, arguments)
    own.add_argument(
        "--core-budget",
        type=int,
        default=64,
        metavar="MIB",
        help="keep the tensors of a dying rank's frames up to so much (default %(default)s)",
    )
    own.add_argument(
        "--faithful",
        action="store_true",
        help="local mode with a cluster's rules: report and ray.train.collective wait for all ranks, and more",
    )
    own.add_argument("--no-torchrun", action="store_true", help="single-process local mode: no torchrun, one rank")
    own.add_argument("--ray", action="store_true", help="real Ray Train workers (num_workers >= 1): each is a rank")
    own.add_argument(
        "--workers", type=int, metavar="N", help="with --ray: open the ports of N ranks before the script starts"
    )
    own.add_argument(
        "--stop-with-debugger",
        action="store_true",
        help="end the job when its last debugger is stopped (used by the VS Code task)",
    )
    own.add_argument("--vscode", action="store_true", help="also write the VS Code configurations for this job")
    own.add_argument(
        "--host", default="127.0.0.1", help="address to accept debuggers on; beyond loopback --token is needed"
    )
    own.add_argument("--token", help="what a debugger must show (default: RAYTRAIN_DEBUG_TOKEN)")
    if {"--no-torchrun", "--ray"} & set(_before_script(arguments)):
        # Torchrun's, and there is no torchrun here: said in words that tell which of the two to leave out.
        count = ("--nproc-per-node", "--nproc_per_node", "--nnodes")
        parser.add_argument(*count, dest="torchrun_count", help=argparse.SUPPRESS)
        parser.add_argument("-m", "--module", action="store_true", help="run a module, as python -m does")
        parser.add_argument("training_script", metavar="SCRIPT")
        parser.add_argument("training_script_args", nargs=argparse.REMAINDER, metavar="ARGS")
    else:
        torchrun.add_torchrun_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run the job and return its exit code; torchrun's own exceptions pass through, as torchrun lets them."""
    _check(args)
    local_size = _local_size(args)
    nodes = 1 if args.no_torchrun or args.ray else torchrun.node_count(args)
    token = args.token or os.environ.get("RAYTRAIN_DEBUG_TOKEN") or None
    if not ports.is_loopback(args.host) and not token:
        raise UsageError(f"--host {args.host} lets other machines in", "give them a secret to show: --token SECRET")
    if nodes > 1:
        ports.check(args.host, _base_port(args), local_size * nodes)
    all_ranks = local_size * nodes or None
    wait = () if args.wait is None else parse_ranks(args.wait, all_ranks)
    console.note("starting")
    first, bound = _bind(args, range(local_size)) if nodes == 1 and local_size else (_base_port(args), {})
    try:
        layout.remove_dead_sockets()  # and a directory that is not ours is refused before a run is recorded
        paths = _create_run(args)
        host, job = _host(args, paths, local_size, nodes)
    except BaseException:
        ports.close_all(bound)
        raise
    gateway = Gateway(job, functools.partial(end_job, job), _say, token, args.stop_with_debugger)
    gates = NodePorts(host, gateway, args.host, first, _say)

    def say_ready() -> None:
        _say(f"gateway ready on {gates} (run {paths.id})")

    others = Nodes(host, job, token, _say, say_ready) if nodes > 1 else None
    host.start()
    if others is not None:
        others.start()
    watch = HangWatch(host, job, args.hang_after, _tell_hang, _say) if args.hang_after is not None else None
    stopped: str | None = None
    code: int | None = None
    try:
        if watch is not None:
            watch.start()
        if bound:
            gates.open(bound)
            say_ready()
        if args.vscode:
            _write_vscode(args, local_size, nodes, first or ports.DEFAULT_BASE_PORT)
        settings = Settings(
            str(paths.directory),
            str(host.socket_path),
            os.getpid(),
            wait or (),
            args.keep_checkpoints,
            job.record.mode,
            args.core_budget << 20,
            args.hold_on_crash,
            faithful=args.faithful,
            # Launchers of several nodes have no more in common than the token.
            secret=secrets.token_hex(16) if nodes == 1 else token or "",
        )
        target = ["-m", args.training_script] if args.module else [args.training_script]
        interrupts.check()
        if args.ray:
            RayJob(host, job, gates, settings, wait, _say)
            code = ray_job.run([*target, *args.training_script_args], host, job)
            if not job.record.world_size:
                _say(ray_job.why_no_worker(code))
        elif args.no_torchrun:
            os.environ.update(settings.to_environment())
            code = single.run([*target, *args.training_script_args], host, job)
        else:

            def before_start(ranks: list[int], group: Group) -> None:
                interrupts.check()
                os.environ.update(dataclasses.replace(settings, attempt=group.attempt).to_environment())
                gates.follow(ranks)
                if others is not None:
                    if group.node == 0:
                        layout.point_latest(paths)
                    others.join(group)

            torchrun.run(args, host, job, before_start)
            code = 0
    except BaseException as error:
        stopped = job.stop_reason or getattr(getattr(error, "sigval", None), "name", None)
        code = 1
        if job.stop_reason is None:
            raise
        console.note(f"{job.stop_reason}: the job has ended")
        code = 128 + signal.SIGTERM
    finally:
        if watch is not None:
            watch.close(succeeded=code == 0)
        if others is not None:
            others.close()
        host.run(lambda: job.finish(code, stopped))
        host.stop()
        if code and stopped is None:
            atexit.register(_tell_remedy, paths)  # below all else that is printed, torchrun's report included
    return single.die_as(code)


def _before_script(arguments: Sequence[str]) -> list[str]:
    """The words in which our own options can be: the script may have options of the same name."""
    return list(
        itertools.takewhile(lambda word: not word.endswith(".py") and word not in ("-m", "--module"), arguments)
    )


def _add_hold_on_crash(group: argparse._ArgumentGroup, arguments: Sequence[str]) -> None:
    """Its MINUTES may be left out, also right before the script, which argparse would take for them."""
    kind: dict[str, Any] = {"nargs": "?", "type": float, "metavar": "MINUTES"}
    first = next((pair for pair in itertools.pairwise(arguments) if pair[0].startswith("--hold-on-crash")), None)
    if first is not None and first[0] == "--hold-on-crash" and not first[1].replace(".", "", 1).isdecimal():
        kind = {"action": "store_const"}
    group.add_argument(
        "--hold-on-crash",
        const=0.0,
        help="keep a rank that raises alive at its exception until a debugger has come, or for MINUTES (0: no limit)",
        **kind,
    )


def _check(args: argparse.Namespace) -> None:
    if args.keep_checkpoints < 0:
        raise UsageError(f"--keep-checkpoints {args.keep_checkpoints} is less than none", "write 0 or more")
    if args.core_budget < 0:
        raise UsageError(f"--core-budget {args.core_budget} is less than none", "write 0 or more MiB")
    if args.hold_on_crash is not None and not args.hold_on_crash >= 0:
        raise UsageError(f"--hold-on-crash {args.hold_on_crash:g} is no time", "write minutes, or nothing for no limit")
    if args.hang_after is not None and not args.hang_after > 0:
        raise UsageError(f"--hang-after {args.hang_after:g} is no time to wait", "write seconds, such as 60")
    if args.base_port != "auto" and not args.base_port.isdecimal():
        raise UsageError(f"--base-port {args.base_port} is no port", "write a number, or auto")
    if args.ray and args.no_torchrun:
        raise UsageError("--ray and --no-torchrun are two ways to run a script", "leave one of them out")
    if getattr(args, "torchrun_count", None) is not None:
        raise (
            UsageError("the script's num_workers says how many Ray workers there are", "leave --nproc-per-node out")
            if args.ray
            else UsageError("--no-torchrun is one process, which is rank 0", "for more ranks leave --no-torchrun out")
        )
    if args.ray and args.faithful:
        raise UsageError("--faithful is for local mode", "leave it out: real workers follow a cluster's rules anyway")
    if args.workers is not None and (not args.ray or args.workers < 1):
        raise UsageError("--workers N goes with --ray and is 1 or more", "torchrun's ranks: --nproc-per-node N")
    if not args.training_script:
        raise UsageError("no script to launch", "python -m raytrain_debug launch SCRIPT")
    if not args.module and not os.path.exists(args.training_script):
        raise UsageError(f"there is no script {args.training_script}", "name a Python file, or a module with -m MODULE")
    if args.module and not _is_package(args.training_script.partition(".")[0]):
        raise UsageError(f"there is no module {args.training_script}", "it is looked for from this directory on")


def _is_package(name: str) -> bool:
    """Whether a rank, whose first directory of modules is this one, finds a module or package of that name."""
    here = importlib.machinery.PathFinder.find_spec(name, [os.getcwd()])
    return here is not None or importlib.util.find_spec(name) is not None


def _local_size(args: argparse.Namespace) -> int:
    """How many ranks this node starts; 0 when only the script knows."""
    if args.ray:
        return args.workers or 0
    return 1 if args.no_torchrun else torchrun.local_world_size(args)


def _base_port(args: argparse.Namespace) -> int | None:
    return None if args.base_port == "auto" else int(args.base_port)


def _bind(args: argparse.Namespace, ranks: Sequence[int]) -> tuple[int, ports.Bound]:
    first = _base_port(args)
    return (
        ports.bind_free_ports(args.host, ranks) if first is None else (first, ports.bind_ports(args.host, first, ranks))
    )


def _create_run(args: argparse.Namespace) -> layout.RunPaths:
    """The directory of this run: where it was asked for, or, where the usual place cannot be written, one for now."""
    if args.run_root:
        root = Path(args.run_root).absolute()
        try:
            return layout.create_run(root)
        except OSError as error:
            raise RaytrainDebugError(f"cannot record a run in {root}: {error.strerror}", "see --run-root") from None
    try:
        return layout.create_run(layout.default_root())
    except OSError as error:
        root = layout.runtime_directory() / layout.ROOT_NAME
        console.note(
            f"cannot record the run in {layout.default_root()}: {error.strerror}\n"
            f"  it is recorded in {root} instead: give other commands --run-root {root}"
        )
        return layout.create_run(root)


def _host(args: argparse.Namespace, paths: layout.RunPaths, local_size: int, nodes: int) -> tuple[Host, Job]:
    socket_path = layout.socket_path(paths.id, "launcher")
    launcher = LauncherRecord(
        pid=os.getpid(),
        create_time=process_create_time(),
        host=socket.gethostname(),
        socket=str(socket_path),
        bind=args.host,
        address=_address(args),
    )
    record = RunRecord(
        id=paths.id,
        argv=tuple([args.training_script, *args.training_script_args]),
        cwd=os.getcwd(),
        mode="ray" if args.ray else "single" if args.no_torchrun else "torchrun",
        started=time.time(),
        world_size=local_size * nodes,
        nnodes=nodes,
        nproc_per_node=local_size,
        launcher=launcher,
        versions={"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
    )
    job = Job(paths, record, announce=_announce, complain=_say)
    job.write()
    return Host(job, socket_path), job


def _address(args: argparse.Namespace) -> str:
    """How other machines reach this one's gateway, as torchrun tells its ranks how to reach each other; "" if not."""
    if ports.is_loopback(args.host):
        return ""
    return str(getattr(args, "local_addr", None) or socket.getfqdn()) if ports.is_wildcard(args.host) else args.host


def _announce(rank: RankState) -> None:
    """Say on the launcher's stderr that a rank waits: seen even where the rank's own output is filtered."""
    where = rank.where
    place = "before its first line" if where is None else f"at {_short(where.file)}:{where.line} in {where.function}"
    node = f" on {rank.node}" if rank.node else ""
    what = "has crashed, and waits for a debugger" if rank.waiting == "crash" else "waits for a debugger"
    _say(
        f"rank {rank.rank}{node} {what} {place} (pid {rank.pid})\n"
        f"  terminal: python -m raytrain_debug attach --rank {rank.rank}\n"
        f'  VS Code:  start "Ray Train: attach to the running job" (port {rank.port})'
    )


def _tell_hang(hang: Hang, ended: Sequence[Ended]) -> None:
    from raytrain_debug.render.stacks import render_hang

    try:
        text = console.rendered(*render_hang(hang, os.getcwd(), ended), to=sys.stderr)
    except (OSError, ValueError):
        return
    _say(text.rstrip("\n"))


def _tell_remedy(paths: layout.RunPaths) -> None:
    """Say what to do about the job's failure, where that is known."""
    from raytrain_debug.postmortem.verdict import verdict

    try:
        first = verdict(load_run(paths)).first_failure
    except (RaytrainDebugError, OSError):
        return
    if first is not None and first.remedy is not None:
        _say(f"rank {first.rank}: {first.exception}\n  {first.remedy}")


def _say(text: str) -> None:
    """Say something from beside the job: nobody who listens any more is no reason to disturb it."""
    try:
        console.note(text)
    except (OSError, ValueError):
        pass


def _short(file: str) -> str:
    relative = os.path.relpath(file)
    return file if relative.startswith("..") else relative


def _write_vscode(args: argparse.Namespace, local_size: int, nodes: int, base_port: int) -> None:
    from raytrain_debug.cli.configure import write_for_launch

    write_for_launch(args, local_size, nodes, base_port)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "none"
