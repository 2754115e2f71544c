"""Places in source files as links, and text made for terminals."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from urllib.parse import quote

from rich.console import Console, RenderableType

from raytrain_debug.postmortem.verdict import short_path
from raytrain_debug.render.html.markup import Markup, tag

_COLUMNS = 120
_PACKAGES = re.compile(r"^.*/(site|dist)-packages/")


def place(file: str, line: int, cwd: str | None) -> Markup:
    """`train.py:88`, a link that opens VS Code; a viewer of its own finds `data-file` and `data-line` there."""
    words = f"{_short(file, cwd)}:{line}"
    if not file.startswith("/"):
        return tag("span", words, class_="mono")
    return tag(
        "a",
        words,
        href=f"vscode://file{quote(file, errors='replace')}:{line}",
        data_file=file,
        data_line=line,
        class_="mono",
    )


def _short(file: str, cwd: str | None) -> str:
    """Below the run's working directory as seen from there, of an installed package as it is imported."""
    return _PACKAGES.sub("", short_path(file, cwd))


def pre(renderables: Iterable[RenderableType]) -> Markup:
    """What a terminal would show, as text."""
    stream = io.StringIO()
    console = Console(file=stream, width=_COLUMNS, no_color=True, highlight=False, emoji=False, legacy_windows=False)
    for each in renderables:
        console.print(each, markup=False)
    lines = (line.rstrip() for line in stream.getvalue().strip("\n").split("\n"))
    return tag("pre", "\n".join(lines))
