"""The one place that prints for commands: text and rich renderables, JSON, and errors with their remedy."""

from __future__ import annotations

import io
import os
import sys
from typing import Any, TextIO

from raytrain_debug.errors import RaytrainDebugError
from raytrain_debug.run import codec
from raytrain_debug.run.words import visible

_ENDLESS = 100_000  # columns


def show(*renderables: Any, to: TextIO | None = None) -> None:
    """Print rich renderables or plain strings to stdout, or to `to`; see `rendered`."""
    stream = to or sys.stdout
    _tolerate_any_text(stream)
    stream.write(rendered(*renderables, to=stream))


def rendered(*renderables: Any, to: TextIO | None = None) -> str:
    """What `show` prints; colour and width as the terminal behind `to` (stdout), NO_COLOR, or a pipe has.

    In a pipe or file lines are as long as they need, so that nothing is cut or folded under the feet of grep.
    """
    from rich.console import Console

    stream = to or sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _ENDLESS
    console = Console(file=stream, highlight=False, soft_wrap=False, emoji=False, width=width)
    with console.capture() as capture:
        for renderable in renderables:
            console.print(renderable, markup=False)
    return "\n".join(line.rstrip(" ") for line in capture.get().split("\n"))


def print_json(value: Any) -> None:
    """Print `value` as strict JSON to stdout."""
    _tolerate_any_text(sys.stdout)
    print(codec.dumps(value, indent=2))


def _tolerate_any_text(stream: TextIO) -> None:
    """Let it write what its encoding cannot (a file name that is no UTF-8) as an escape, which JSON reads too."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")


def print_error(error: RaytrainDebugError) -> None:
    """Say on stderr what is wrong and, on the next line, what to type."""
    # The VS Code task's problem matcher knows a failed launch by these words.
    print(f"raytrain_debug: error: {visible(str(error))}", file=sys.stderr)
    if error.remedy:
        for line in visible(error.remedy).splitlines():
            print(f"  {line}", file=sys.stderr)


def note(text: str) -> None:
    """Say something of ours on stderr, marked as ours."""
    print(f"raytrain_debug: {visible(text)}", file=sys.stderr, flush=True)
