"""`print`: one expression's value on all ranks, equal values once and the odd ones first."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from raytrain_debug.across.values import Values, collect, to_json
from raytrain_debug.cli import console, gathering
from raytrain_debug.cli.gathering import Live
from raytrain_debug.errors import UsageError
from raytrain_debug.run import codec

_ANSWERS = 1.0  # seconds more than an expression's own time, for the rank to say that it took longer
_HISTORY = 512  # samples of a live plot


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("expression", metavar="EXPR", help="a Python expression, with the frame's names")
    parser.add_argument(
        "--frame",
        type=int,
        metavar="N",
        help="evaluate N frames of your code out from the innermost (default: the innermost that has all the names)",
    )
    gathering.interval_argument(
        parser, "--every", 1.0, "evaluate again every SECONDS (1) and plot numbers, until Ctrl-C or the job's end"
    )
    gathering.configure(parser)


def run(args: argparse.Namespace) -> int:
    """Show the values; 1 when no rank gave one."""
    try:
        compile(args.expression.strip(), "<expression>", "eval")
    except (SyntaxError, ValueError) as error:
        raise UsageError(
            f"{args.expression!r} is no expression: {getattr(error, 'msg', None) or error}",
            "quote it for the shell: python -m raytrain_debug print 'loss.item()'",
        ) from None
    if args.frame is not None and args.frame < 0:
        raise UsageError(f"--frame {args.frame} is further in than the innermost", "write 0 or more")
    if args.every is None:
        live = gathering.find_live(args)
        values = _values(live, args)
        if args.json:
            console.print_json(to_json(values))
        else:
            from raytrain_debug.render import values as view

            console.show(*view.render(values, live.cwd))
        return 0 if values.groups else 1
    return gathering.repeat(_plotter(args), args.every)


def _plotter(args: argparse.Namespace) -> Any:
    from raytrain_debug.render import values as view

    history: list[Values] = []

    def picture() -> Sequence[Any]:
        live = gathering.find_live(args)
        history.append(_values(live, args))
        del history[:-_HISTORY]
        if args.json:
            return [codec.dumps(to_json(history[-1]))]
        return view.plot(history, live.cwd)

    return picture


def _values(live: Live, args: argparse.Namespace) -> Values:
    request = {
        "op": "evaluate",
        "expression": args.expression,
        "frame": args.frame,
        "timeout": args.timeout,
    }
    answers = live.ask(request, args.timeout + _ANSWERS)
    return collect(args.expression, answers)
