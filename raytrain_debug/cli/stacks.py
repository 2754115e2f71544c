"""`stacks`: where all ranks are, merged, without stopping any of them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from raytrain_debug.across import native
from raytrain_debug.across.movement import Movement
from raytrain_debug.across.stacks import Sample, read_sample, to_json
from raytrain_debug.across.threads import in_words, thread_ends
from raytrain_debug.cli import console, gathering
from raytrain_debug.cli.gathering import Live
from raytrain_debug.run import codec


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    gathering.configure(parser)
    parser.add_argument(
        "--threads", action="store_true", help="show the other threads too, not the training thread only"
    )
    parser.add_argument("--library", action="store_true", help="show frames of libraries too, not of your code only")
    gathering.interval_argument(
        parser, "--watch", 1.0, "look again every SECONDS (1) and show what moves, until Ctrl-C or the job's end"
    )
    parser.add_argument(
        "--native",
        action="store_true",
        help="show C and C++ frames too, with py-spy, which stops each rank for some milliseconds",
    )


def run(args: argparse.Namespace) -> int:
    """Show the stacks."""
    if args.watch is None:
        live = gathering.find_live(args)
        sample = _sample(live, args)
        if args.json:
            console.print_json(_json(sample, live, args))
        else:
            console.show(*_picture(sample, live, args))
        return 0
    movement = Movement()

    def picture() -> Sequence[Any]:
        live = gathering.find_live(args)
        sample = _sample(live, args)
        if args.json:
            return [codec.dumps(_json(sample, live, args))]
        now, first = time.monotonic(), not movement.since
        moved = movement.look(sample, now)
        if first:
            return _picture(sample, live, args)
        return _picture(sample, live, args, {rank: now - since for rank, since in movement.since.items()}, moved)

    return gathering.repeat(picture, args.watch)


def _sample(live: Live, args: argparse.Namespace) -> Sample:
    sample = read_sample(live.ask({"op": "stacks", "threads": args.threads}, args.timeout))
    if not args.native:
        return sample
    with_native, why_not = native.add(
        sample, {each.rank: each.pid for each in live.addresses if each.pid}, args.threads
    )
    if why_not is not None:
        console.note(f"no native frames: {why_not}")
    return with_native


def _picture(
    sample: Sample, live: Live, args: argparse.Namespace, still: Mapping[int, float] = {}, moved: Collection[int] = ()
) -> Sequence[Any]:
    from raytrain_debug.render import stacks as view

    options = view.View(live.cwd, args.threads, args.library or args.native, still, moved)
    return view.render(sample, options, live.ended, _notes(sample, live))


def _json(sample: Sample, live: Live, args: argparse.Namespace) -> dict[str, Any]:
    return {**to_json(sample, args.library or args.native, args.threads), "notes": _notes(sample, live)}


def _notes(sample: Sample, live: Live) -> list[str]:
    """What ended threads of the ranks in their present attempt; known of the ranks whose records are here."""
    asked = {*sample.ranks, *sample.silent, *(each.rank for each in live.ended)}
    ends = thread_ends(
        (rank.rank, record)
        for rank in live.run.ranks
        if rank.rank in asked and rank.process is not None
        for record in rank.thread_exceptions
        if record.attempt == rank.process.attempt
    )
    return in_words(ends, live.cwd)
