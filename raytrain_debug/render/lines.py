"""Many lines, fast: pieces of styled text a line, cut at the width of the terminal and never wrapped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.style import Style

from raytrain_debug.run.words import visible

Piece = tuple[str, str]
"""A text and its style, in rich's words ("bold red")."""

Line = Sequence[Piece]


class Lines:
    """Shows lines. What does not fit ends in an ellipsis."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self.lines = list(lines)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        styles: dict[str, Style] = {}
        end = "~" if options.ascii_only else "…"
        for line in self.lines:
            room = options.max_width
            for content, style in line:
                text = visible(content)
                length = cell_len(text)
                if length > room:
                    text = set_cell_size(text, room - 1) + end if room > 0 else ""
                if style not in styles:
                    styles[style] = console.get_style(style) if style else Style.null()
                yield Segment(text, styles[style])
                room -= length
                if room < 0:
                    break
            yield Segment.line()

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        widest = max((sum(cell_len(piece[0]) for piece in line) for line in self.lines), default=0)
        return Measurement(1, min(max(widest, 1), options.max_width))


def plain(lines: Iterable[Line]) -> list[str]:
    """The texts of lines, without style."""
    return ["".join(content for content, _ in line) for line in lines]
