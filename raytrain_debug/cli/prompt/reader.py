"""Where the prompt's lines come from: a terminal with history and completion, or plain standard input.

A reader's `read(prompt)` gives the next line, or None when `wake` was called meanwhile from another thread. It raises
EOFError at the end of the input and KeyboardInterrupt on Ctrl-C.
"""

from __future__ import annotations

import os
import select
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol


class Reader(Protocol):
    def read(self, prompt: str) -> str | None: ...

    def wake(self) -> None: ...


class StandardInput:
    """Lines of a pipe or a file, as pdb reads them; the prompt is printed."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._wake_out, self._wake_in = os.pipe()
        self._ended = False

    def read(self, prompt: str) -> str | None:
        sys.stdout.write(prompt)
        sys.stdout.flush()
        while b"\n" not in self._data and not self._ended:
            ready, _, _ = select.select([0, self._wake_out], [], [])
            if self._wake_out in ready:
                os.read(self._wake_out, 4096)
                return None
            data = os.read(0, 65536)
            self._data += data
            self._ended = not data
        if not self._data:
            raise EOFError
        line, _, rest = self._data.partition(b"\n")
        self._data = rest
        return line.decode(errors="replace")

    def wake(self) -> None:
        os.write(self._wake_in, b"x")


class TerminalInput:
    """A terminal: prompt_toolkit with a history kept per project and completion on Tab."""

    def __init__(self, complete: Callable[[str], tuple[int, list[str]]], history: Path | None) -> None:
        """`complete(text before the cursor)` is asked on Tab; `history` is the file to keep."""
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import Completer, Completion
        from prompt_toolkit.history import FileHistory, InMemoryHistory
        from prompt_toolkit.shortcuts import CompleteStyle

        class Words(Completer):  # type: ignore[misc]
            def get_completions(self, document: Any, event: Any) -> Iterable[Any]:
                length, words = complete(document.text_before_cursor)
                return [Completion(word, -length) for word in words]

        usable = history is not None and make_private_file(history)
        self._session: Any = PromptSession(
            history=FileHistory(os.fspath(history)) if usable and history is not None else InMemoryHistory(),
            completer=Words(),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
        )
        self._lock = threading.Lock()
        self._woken = False
        self._typed = ""

    def read(self, prompt: str) -> str | None:
        from prompt_toolkit.patch_stdout import patch_stdout

        typed, self._typed = self._typed, ""
        try:
            with patch_stdout(raw=True):  # what other threads print meanwhile goes above the line
                result: str | None = self._session.prompt(prompt, default=typed, pre_run=self._begin)
        finally:
            with self._lock:
                self._woken = False
        return result

    def wake(self) -> None:
        with self._lock:
            self._woken = True
            loop = self._session.app.loop
        if loop is not None:
            try:
                loop.call_soon_threadsafe(self._leave)
            except RuntimeError:
                pass  # the line was finished at this very moment: whoever reads it looks at the state anyway

    def _begin(self) -> None:
        with self._lock:
            woken = self._woken
        if woken:
            self._session.app.loop.call_soon(self._leave)

    def _leave(self) -> None:
        app = self._session.app
        if app.is_running and not app.is_done:
            self._typed = app.current_buffer.text  # half a line must not be lost to news of the rank
            app.exit(result=None)


def make_private_file(path: Path) -> bool:
    """Make `path` with mode 0600 if it is not there; False when it is not a file of ours alone to write."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return False
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            return False
        os.fchmod(descriptor, 0o600)
        return True
    finally:
        os.close(descriptor)


def lines_of(commands: Iterable[str]) -> Iterator[str]:
    """The commands of `-c` options, one a line; empty ones say nothing."""
    for command in commands:
        for line in command.splitlines():
            if line.strip():
                yield line
