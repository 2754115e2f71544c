"""One rank as the prompt sees it: its session, the frame that is looked at, and how places in it are written."""

from __future__ import annotations

import os
from collections.abc import Callable

from raytrain_debug.cli.prompt.source import Sources
from raytrain_debug.dap.model import Frame, Stop
from raytrain_debug.dap.session import Session
from raytrain_debug.errors import RaytrainDebugError
from raytrain_debug.run.fault import origin

LONGEST = 1_000_000
"""Characters of a value that are shown: more would not be read, and could be more than one message may hold."""


class CommandError(RaytrainDebugError):
    """A command cannot do what was asked; the prompt shows it as pdb does, after `***`."""


class View:
    """The state of one rank's prompt. A command reads and changes it and returns the text to show."""

    def __init__(
        self, session: Session, name: str, cwd: str | None = None, width: int = 80, relative: bool = False
    ) -> None:
        """`name` is for messages ("rank 1"); `cwd` is the rank's working directory, for files named without one.

        `relative` says that places below it are shown without it.
        """
        self.session = session
        self.name = name
        self.cwd = cwd or os.getcwd()
        self.width = width
        self.relative = relative
        self.sources = Sources(session)
        self.index = 0
        self.listed: tuple[str, int] | None = None  # the file and the last line that `l` has shown
        self._frames: list[Frame] = []
        self._framed: Stop | None = None  # the stop that the frames are of
        self._thread_id: int | None = None

    def arrived(self) -> None:
        """The rank moves or stands somewhere new: look at the innermost frame of the thread that stops."""
        self._frames, self._thread_id, self.index, self.listed = [], None, 0, None

    def look_at_thread(self, thread_id: int) -> None:
        """Look at another thread of the rank that stands still."""
        self.arrived()
        self._thread_id = thread_id

    @property
    def thread_id(self) -> int:
        if self._thread_id is not None:
            return self._thread_id
        stop = self.stopped()
        if stop is None:
            raise CommandError(f"{self.name} is running; Ctrl-C stops it")
        return stop.thread_id

    def stopped(self) -> Stop | None:
        """Where the rank stands, or None while it runs."""
        return self.session.stop

    @property
    def frames(self) -> list[Frame]:
        """The frames of the thread that is looked at, innermost first, without the interpreter's start-up."""
        thread_id, stop = self.thread_id, self.stopped()
        if not self._frames or self._framed is not stop:
            self._frames, self._framed = without_startup(self.session.stack(thread_id)), stop
            if not self._frames:
                raise CommandError("this thread has no Python frames")
            if stop is not None and stop.reason in ("pause", "ended"):
                # Stopped or ended wherever it was, mostly deep in a library: what one looks for is one's own code.
                own = (index for index, frame in enumerate(self._frames) if origin(frame.path) == "user")
                self.index = next(own, 0)
        return self._frames

    @property
    def frame(self) -> Frame:
        """The frame that is looked at; CommandError while the rank runs."""
        return self.frames[self.index]

    def value(self, expression: str, how: str = "repr") -> str:
        """The text of an expression in the frame: `how` is "repr", "pprint", or "display" (as repr, "" for None)."""
        if not expression.strip():
            raise CommandError("an expression is missing")
        return self.session.evaluate(_SHOW[how](expression, self.width), self.frame).value

    def where(self, frame: Frame | None = None, marker: str = "> ") -> str:
        """`> file(line)function()` and the source line below it, as pdb writes a place."""
        frame = frame or self.frame
        if not frame.path and not frame.line:
            return f"{marker}{frame.name}"  # a line that says what the frames below it are
        name = f"{frame.name}{'' if frame.name.endswith(')') else '()'}"
        place = f"{marker}{self.shown(frame.path) or '<unknown>'}({frame.line}){name}"
        lines = self.sources.lines(frame)
        if 0 < frame.line <= len(lines):
            place += f"\n-> {lines[frame.line - 1].strip()}"
        return place

    def shown(self, path: str) -> str:
        """A file's name as places have it."""
        below = os.path.join(self.cwd, "")
        return path[len(below) :] if self.relative and path.startswith(below) else path

    def stop_text(self) -> str:
        """What to show when the rank has come to stand: the exception if that is why, the thread if it is another."""
        stop = self.session.stop
        if stop is None:
            return ""
        parts = []
        if stop.reason == "exception":
            parts.append(f"{stop.text}: {stop.description}" if stop.description else stop.text)
        training = self.session.training_thread()
        if stop.thread_id != training.id:
            names = {thread.id: thread.name for thread in self.session.threads()}
            parts.append(f"[thread {stop.thread_id}: {names.get(stop.thread_id, '?')}]")
        parts.append(self.where())
        return "\n".join(parts)


def without_startup(frames: list[Frame]) -> list[Frame]:
    """Frames (innermost first) less those of `python -m`, which nobody debugs."""
    end = len(frames)
    while end and frames[end - 1].path.rpartition("/")[2] in ("<frozen runpy>", "runpy.py"):
        end -= 1
    return frames[:end] or frames


def _cut(text: str) -> str:
    """Python that gives the string expression `text`, cut in the rank so that a huge value does not travel."""
    return f"(lambda t: t if len(t) <= {LONGEST} else t[:{LONGEST}] + '... (%d characters)' % len(t))({text})"


_REPR = "__import__('builtins').repr"

# Each puts the expression on lines of its own, so that a comment at its end does no harm.
_SHOW: dict[str, Callable[[str, int], str]] = {
    "repr": lambda text, width: _cut(f"{_REPR}((\n{text}\n))"),
    "pprint": lambda text, width: _cut(f"__import__('pprint').pformat((\n{text}\n), width={width})"),
    "display": lambda text, width: f"(lambda v: None if v is None else {_cut(_REPR + '(v)')})((\n{text}\n))",
    "str": lambda text, width: f"__import__('builtins').str((\n{text}\n))",
}
