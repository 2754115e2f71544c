"""configure: write the VS Code configurations for a script, so that F5 starts and debugs every rank of it."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import socket
import sys
from typing import Any

from raytrain_debug.cli import console
from raytrain_debug.editor import configurations
from raytrain_debug.editor.configurations import JobSpec
from raytrain_debug.editor.files import Written, write_configurations
from raytrain_debug.errors import UsageError

__all__ = ["configure", "run", "write_configurations", "write_for_launch"]

_FROM_THE_SPEC = frozenset({"nproc_per_node", "nnodes", "module"})


class _ScriptParser(argparse.ArgumentParser):
    """Keeps what follows `--` for the script; argparse alone would look for our own arguments in it."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        cut = words.index("--") if "--" in words else len(words)
        parsed, extras = super().parse_known_args(words[:cut], namespace)
        parsed.script_args = words[cut + 1 :]
        return parsed, extras


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of `configure`."""
    parser.__class__ = _ScriptParser
    parser.usage = "python -m raytrain_debug configure [options] SCRIPT|-m MODULE [-- ARGS]"
    parser.add_argument("script", nargs="?", metavar="SCRIPT", help="the training script; ARGS after -- are its own")
    parser.add_argument("-m", "--module", help="a module in place of a script, as for python -m")
    parser.add_argument(
        "--nproc-per-node",
        "--nproc_per_node",
        metavar="N",
        help="ranks on each node; left out, only the single-process job is configured",
    )
    parser.add_argument("--ray", action="store_true", help="the ranks are Ray Train workers that the script starts")
    parser.add_argument("--workers", metavar="N", help="with --ray: how many (num_workers of the script)")
    parser.add_argument("--faithful", action="store_true", help="local mode with a cluster's rules, as launch has it")
    parser.add_argument("--nnodes", type=int, default=1, metavar="N", help="nodes of the job (default %(default)s)")
    parser.add_argument("--node-hosts", metavar="A,B", help="where VS Code reaches each node, by node rank")
    parser.add_argument(
        "--base-port",
        type=int,
        default=configurations.DEFAULT_BASE_PORT,
        metavar="PORT",
        help="rank R is debugged on PORT + R (default %(default)s)",
    )
    parser.add_argument("--python", metavar="PATH", help="the Python that runs the job (default: this one)")
    parser.add_argument(
        "--launch-args", default="", metavar="ARGS", help='more options for launch, in one word: "--max-restarts 2 ..."'
    )
    parser.add_argument(
        "--workspace", default=".", metavar="DIR", help="the folder open in VS Code (default: this one)"
    )
    parser.add_argument("--dry-run", action="store_true", help="show the changes and write nothing")
    parser.add_argument("--json", action="store_true", help="say what was done as JSON")


def run(args: argparse.Namespace) -> int:
    """Write the files, say what was written and how to start."""
    spec = _spec(args)
    if not os.path.isdir(args.workspace):
        raise UsageError(f"--workspace {args.workspace} is no directory", "name the folder that you open in VS Code")
    written = write_configurations(spec, args.workspace, dry_run=args.dry_run)
    if args.json:
        console.print_json(_described(written, args.dry_run))
    elif args.dry_run:
        print("\n".join(change.diff() for change in written.changes if change.changed) or "nothing to change")
    else:
        for change in written.changes:
            if change.after is not None:
                print(f"{'wrote' if change.changed else 'unchanged:'} {os.path.relpath(change.path)}")
        print("\n".join(_how_to_start(written.spec)))
    return 0


def write_for_launch(args: argparse.Namespace, local_size: int, nodes: int, base_port: int) -> None:
    """`launch --vscode`: write the configurations of the job that `launch` (parsed `args`) starts in this directory."""
    if nodes > 1:
        raise UsageError(
            "--vscode cannot know where the other nodes are",
            "leave it out and run: python -m raytrain_debug configure SCRIPT --nnodes N --node-hosts A,B,...",
        )
    if args.ray and not local_size:
        raise UsageError("--vscode has to know how many workers there are", "add --workers N")
    host = socket.gethostname() if args.host in ("0.0.0.0", "::") else args.host
    spec = JobSpec(
        program=None if args.module else args.training_script,
        module=args.training_script if args.module else None,
        args=tuple(args.training_script_args),
        nproc_per_node=None if args.no_torchrun else local_size,
        ray=args.ray,
        node_hosts=(host,),
        base_port=base_port,
        torchrun_args=() if args.no_torchrun else tuple(_launch_options(args)),
        faithful=args.faithful,
    )
    for change in write_configurations(spec, os.curdir).changes:
        if change.changed:
            console.note(f"wrote {os.path.relpath(change.path)}")


def _launch_options(args: argparse.Namespace) -> list[str]:
    """The options of `launch` and torchrun that were given and that decide how the job runs."""
    from torch.distributed.run import get_args_parser

    options = [f"--keep-checkpoints={args.keep_checkpoints}"] if args.keep_checkpoints != 2 else []
    options += [f"--run-root={os.path.abspath(args.run_root)}"] if args.run_root else []
    for action in get_args_parser()._actions:
        value = getattr(args, action.dest, action.default)
        if action.option_strings and action.dest not in _FROM_THE_SPEC and value != action.default:
            options.append(action.option_strings[0] + ("" if action.nargs == 0 else f"={value}"))
    return options


def _spec(args: argparse.Namespace) -> JobSpec:
    if args.script and not os.path.isfile(args.script):
        raise UsageError(f"there is no script {args.script}", "name a Python file, or a module with -m MODULE")
    if args.nproc_per_node is not None and not args.nproc_per_node.isdecimal():
        raise UsageError(
            f"--nproc-per-node {args.nproc_per_node}: VS Code has to know the number", "write --nproc-per-node N"
        )
    if args.ray != (args.workers is not None):
        raise UsageError("--ray and --workers N go together", "write --ray --workers N, or --nproc-per-node N")
    if args.ray and args.nproc_per_node is not None:
        raise UsageError("--nproc-per-node is torchrun's", "leave it out: --ray --workers N")
    if args.ray and args.faithful:
        raise UsageError("--faithful is for local mode", "leave it out: real workers follow a cluster's rules anyway")
    if args.ray and not args.workers.isdecimal():
        raise UsageError(f"--workers {args.workers} is no number", "write the script's num_workers")
    ranks = args.workers if args.ray else args.nproc_per_node
    hosts = tuple(host.strip() for host in args.node_hosts.split(",")) if args.node_hosts else ()
    if not all(hosts):
        raise UsageError(f"--node-hosts {args.node_hosts} names an empty host", "write --node-hosts a,b")
    try:
        launch_args = tuple(shlex.split(args.launch_args))
    except ValueError as error:
        raise UsageError(f"--launch-args {args.launch_args}: {error}", "quote it as a shell would need it") from None
    return JobSpec(
        program=args.script,
        module=args.module,
        args=tuple(args.script_args),
        nproc_per_node=None if ranks is None else int(ranks),
        ray=args.ray,
        nnodes=args.nnodes,
        node_hosts=hosts or ((configurations.LOOPBACK,) if args.nnodes == 1 else ()),
        base_port=args.base_port,
        python=_python(args.python),
        torchrun_args=launch_args,
        faithful=args.faithful,
    )


def _python(path: str | None) -> str:
    if path is None:
        return sys.executable
    # ${...} is for VS Code to fill in; a bare name is looked up when the job starts.
    if "${" not in path and not shutil.which(path):
        raise UsageError(f"--python {path} is no program that can be run", "name the Python that has raytrain_debug")
    return path


def _described(written: Written, dry_run: bool) -> dict[str, Any]:
    spec = written.spec
    return {
        "files": [
            {
                "path": os.path.abspath(change.path),
                "changed": change.changed,
                "created": change.changed and change.before is None,
                **({"diff": change.diff()} if dry_run else {}),
            }
            for change in written.changes
        ],
        "dry_run": dry_run,
        "start": configurations.start_name(spec),
        "configurations": [entry["name"] for entry in configurations.configurations(spec)],
        "compounds": [entry["name"] for entry in configurations.compounds(spec)],
        "tasks": [task["label"] for task in configurations.tasks(spec)],
    }


def _how_to_start(spec: JobSpec) -> list[str]:
    start = configurations.start_name(spec)
    lines = [f'In VS Code choose "{start}" under Run and Debug (Ctrl+Shift+D) and press F5.']
    if spec.local:
        lines.append(f'A job that runs already is taken up by "{configurations.ATTACH_NAME}",')
        lines.append(f'one that has ended is opened by "{configurations.POSTMORTEM_NAME}".')
        return lines
    lines.insert(
        0, "Start the job on each node first, with the same RAYTRAIN_DEBUG_TOKEN that VS Code is started with:"
    )
    nodes = ["--nnodes", str(spec.nnodes), "--rdzv-backend", "c10d", "--rdzv-endpoint", "HOST:PORT"]
    ranks = [*configurations.mode_options(spec), *configurations.ranks_options(spec)]
    options = ["--base-port", str(spec.base_port), *(nodes if spec.nnodes > 1 else []), *spec.torchrun_args, *ranks]
    target = ["-m", spec.module] if spec.module else [spec.target]
    for host in dict.fromkeys(spec.node_hosts):
        words = ["python", "-m", "raytrain_debug", "launch", "--host", host, "--wait", "all"]
        lines.insert(-1, "  " + shlex.join([*words, *options, *target, *spec.args]))
    return lines
