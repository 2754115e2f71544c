"""The prompt at work: reads commands, carries them out on the ranks in focus, prints what they say, follows their fate.

It knows ranks only through their Views: how they were found, and what an attachment costs them, is decided elsewhere.
With one rank it is pdb's prompt; with several, what they say is merged.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial

from raytrain_debug.cli import console, interrupts
from raytrain_debug.cli.prompt import focus
from raytrain_debug.cli.prompt.breaks import Table, format_table
from raytrain_debug.cli.prompt.commands import Answer, parse
from raytrain_debug.cli.prompt.focus import Focus
from raytrain_debug.cli.prompt.merge import about, merged
from raytrain_debug.cli.prompt.missing import Look, Watch
from raytrain_debug.cli.prompt.motion import Go
from raytrain_debug.cli.prompt.notes import Notes
from raytrain_debug.cli.prompt.reader import Reader
from raytrain_debug.cli.prompt.view import CommandError, View
from raytrain_debug.dap.group import Group
from raytrain_debug.errors import RankEnded, RaytrainDebugError
from raytrain_debug.run.ranks import name_ranks
from raytrain_debug.run.words import visible

PATIENCE = 3.0
"""Seconds a rank that was asked to stop, or that is later than others, may go on before the user is told why."""
PATIENCE_OF_SCRIPTS = 10.0
"""The same for a rank that is later than others, where the next command is there already and wants it to stand."""


_TOGETHER = 0.3
"""Seconds within which ranks that end together have done so."""


class Outcome(Enum):
    """What became of a command."""

    DONE = "done"
    MOVES = "moves"
    LEFT = "left"


class Terminal:
    """The prompt on a group of ranks. Call `begin` once they are attached to, then `run` or `run_script`."""

    def __init__(self, group: Group, views: Mapping[int, View], look: Look, dead: bool = False) -> None:
        """`look` asks all ranks of the job what they do; `dead` says that they have ended and are only looked at."""
        self.notes = Notes(several=len(views) > 1)
        self._group = group
        self._views = views
        self._look = look
        self._dead = dead
        self._alone = len(views) == 1
        self._focus = group.ranks
        self._reader: Reader | None = None
        self._reading = False
        self._output: dict[int, str] | None = None  # what ranks print while a command is carried out
        self._expected: set[int] = set()  # ranks on their way to a stop that the user wants to see
        self._pausing: set[int] = set()  # ranks that were asked to stop and have not yet
        self._waits = True  # whether a script that ends now waits for them
        self._failed = False
        group.on_change = self._changed
        for rank, session in group.sessions.items():
            session.on_output = partial(self._told, rank)

    @property
    def view(self) -> View:
        """The view of a rank in focus, of one that stands if there is one."""
        views = [self._views[rank] for rank in self._focus]
        return next((view for view in views if view.stopped() is not None), views[0])

    def begin(self, pause: Iterable[int]) -> None:
        """Follow the ranks from here on, and ask some of them to stop; what follows waits for all."""
        for rank in self._group.ranks:
            self._group.follow(rank)
        self._focus = self._group.ranks
        self._expected = set(self._focus)
        self._pause(pause)

    def run(self, reader: Reader) -> int:
        """Commands from `reader` until the user leaves or all ranks have ended; the exit code."""
        self._reader = reader
        last = ""
        while True:
            try:
                self._follow_fates()
                if not self._group.ranks:
                    self.notes.flush()
                    return 0
                if self._expected:
                    self._wait()
                self._show(self._group.arrivals())
                line = None if self._expected else self._read(reader)
                if line is None:
                    continue
                last = line.strip() or last
                if last and self._perform(last) is Outcome.LEFT:
                    break
            except KeyboardInterrupt:
                # The line is dropped, and what runs is to stop.
                self._pause((self._group.moving & set(self._focus)) - self._pausing)
            except EOFError:
                print()
                break
        self._group.disconnect()
        self.notes.flush()
        if not self._dead:
            console.note(f"detached; {about(self._group.ranks, 'goes on')}")
        return 0

    def run_script(self, lines: Sequence[str]) -> int:
        """Carry out commands in order and detach; 1 when one of them failed or a rank has ended, 0 otherwise."""
        self._wait_and_follow()
        self._group.arrivals()  # where the ranks stand at the beginning is said by nobody but `w`
        for number, line in enumerate(lines):
            outcome = self._perform(line) if self._group.ranks else Outcome.LEFT
            if outcome is Outcome.LEFT:
                break
            if outcome is Outcome.MOVES and (self._waits or number < len(lines) - 1):
                self._wait_and_follow()
                self._show(self._group.arrivals())
            self._follow_fates()
        self._group.disconnect()
        self.notes.flush()
        return 1 if self._failed else 0

    # Commands

    def _read(self, reader: Reader) -> str | None:
        self._reading = True
        try:
            # Looked at after `_reading` is set: what changes later wakes the reader.
            return None if self._group.has_news else reader.read(f"({self._prompt()}) ")
        finally:
            self._reading = False

    def _prompt(self) -> str:
        """`rank 0`, `rank 0 running`, `ranks 0,2-3; rank 2 running`."""
        running = [rank for rank in self._focus if self._group.sessions[rank].stop is None]
        name = name_ranks(self._focus)
        if running and len(running) < len(self._focus):
            return f"{name}; {name_ranks(running)} running"
        return f"{name} running" if running else name

    def _perform(self, line: str) -> Outcome:
        command, argument = parse(line)
        self._count_alike()
        ranks = self._focus[:1] if command.once else self._focus
        self._output = None if len(ranks) == 1 else {}
        try:
            answers = self._group.each({rank: partial(command.run, self._views[rank], argument) for rank in ranks})
            return self._answer(answers)
        except KeyboardInterrupt:
            if self._reader is None:
                raise
            if self._dead:
                self._group.each({rank: self._group.sessions[rank].cancel for rank in ranks})
            busy = "" if self._dead else f"; {name_ranks(self._focus)} may still be busy with it"
            print(f"\n*** interrupted{busy}", flush=True)
            return Outcome.DONE
        finally:
            self._output = None

    def _answer(self, answers: Mapping[int, Answer | RaytrainDebugError]) -> Outcome:
        """Set in motion the ranks that are to go on, and print what all of them say."""
        if None in answers.values():
            return Outcome.LEFT
        goes = {rank: answer for rank, answer in answers.items() if isinstance(answer, Go)}
        if goes:
            answers = {**answers, **self._set_off(goes)}
        texts = dict(self._output or {})
        for rank, answer in answers.items():
            said = answer if isinstance(answer, str) else ""
            if isinstance(answer, Focus):
                said = self._refocus(answer)
            elif isinstance(answer, RaytrainDebugError):
                self._failed = True
                said = "" if isinstance(answer, RankEnded) else f"*** {answer}"
            # What the person's own print() has printed is theirs; all else may hold what a terminal would obey.
            texts[rank] = texts.get(rank, "") + visible(said)
        tables = {rank: answer for rank, answer in answers.items() if isinstance(answer, Table)}
        self._print(visible(format_table(tables)))
        self._print(next(iter(texts.values())) if len(self._focus) == 1 or len(answers) == 1 else merged(texts))
        return Outcome.MOVES if goes else Outcome.DONE

    def _refocus(self, wanted: Focus) -> str:
        stacks = self._group.each({rank: session.stack for rank, session in self._group.sessions.items()})
        frames = {rank: stack if isinstance(stack, list) else [] for rank, stack in stacks.items()}
        try:
            self._focus = focus.choose(wanted.argument, self._focus, frames)
        except CommandError as error:
            self._failed = True
            return f"*** {error}"
        return focus.overview(self._focus, {rank: focus.place(self._views[rank], frames[rank]) for rank in frames})

    def _count_alike(self) -> None:
        """Let the next breakpoint have the same number on every rank."""
        tables = [session.breakpoints for session in self._group.sessions.values()]
        last = max(table.last for table in tables)
        for table in tables:
            table.last = last

    # Motion

    def _set_off(self, goes: Mapping[int, Go]) -> dict[int, RaytrainDebugError]:
        """Let ranks go on; the errors of those that cannot."""

        def go_on(rank: int, go: Go) -> None:
            try:
                go.start()
            except KeyboardInterrupt:
                self._group.follow(rank, go.further)  # it was on its way already
                raise
            self._views[rank].arrived()
            self._group.follow(rank, go.further)

        self._waits = any(go.waits for go in goes.values())
        self._pausing -= set(goes)
        self._expected = set(goes)
        try:
            # pydevd tells nothing of a stop that was asked for before a thread had really gone on.
            with interrupts.held_back() as pressed:
                answers = self._group.each({rank: partial(go_on, rank, go) for rank, go in goes.items()})
            if pressed():
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            if self._reader is None:
                raise
            self._pause(goes)
            return {}
        failed = {rank: error for rank, error in answers.items() if isinstance(error, RaytrainDebugError)}
        self._expected -= set(failed)
        return failed

    def _pause(self, ranks: Iterable[int]) -> None:
        """Ask ranks to stop; what follows waits for them."""
        asked = self._group.each({rank: self._group.sessions[rank].pause for rank in ranks})
        stopping = {rank for rank, error in asked.items() if error is None}
        self._pausing |= stopping
        self._expected |= stopping

    def _wait_and_follow(self) -> None:
        while self._expected:
            self._wait()
            self._follow_fates()

    def _wait(self) -> None:
        """Wait for the ranks that are expected, as long as that makes sense or until one has ended.

        Ctrl-C asks them to stop, and again gives the prompt.
        """
        try:
            if self._wait_for(self._away()):
                self._expected = set()
        except KeyboardInterrupt:
            away = self._away()
            if self._reader is None:
                raise
            if away <= self._pausing | self._group.attaching:
                self._expected = set()
            else:
                self._pause(away)

    def _wait_for(self, away: set[int]) -> bool:
        """Wait for ranks to stand; False when one has ended first. Says why when some will not soon."""
        watch = Watch(self._look, self.view.cwd, PATIENCE if self._reader is not None else PATIENCE_OF_SCRIPTS)
        deadline = time.monotonic() + PATIENCE
        while away and not self._group.ends():
            before, asked = away, away <= self._pausing
            pause = watch.pause if not self._alone else deadline - time.monotonic() if asked else None
            self._group.wait(lambda: self._away() != before or bool(self._group.ends()), pause)  # noqa: B023
            away = self._away()
            now = time.monotonic()
            late = asked and now >= deadline
            if away != before:
                watch.came_back(now)
            elif self._group.ends():
                break
            elif self._alone and late:
                self._say_why_not_stopped()
                if self._reader is not None:
                    self._group.wait(lambda: not self._away() or bool(self._group.ends()))
                break
            elif not self._alone and (reason := watch.why_not_wait(away, self._focus, now, late)):
                console.note(f"not {'stopped, being in native code' if asked else 'back'}: {reason}")
                break
        return not self._group.ends()

    def _away(self) -> set[int]:
        return self._expected & self._group.moving

    def _say_why_not_stopped(self) -> None:
        try:
            frames = self.view.session.stack()
        except RaytrainDebugError:
            frames = []
        where = f" at {frames[0].path}:{frames[0].line} in {frames[0].name}" if frames else ""
        text = f"{self.view.name} runs native code{where}; it stops when it is back in Python"
        console.note(text + (" (Ctrl-C for a prompt meanwhile)" if self._reader is not None else ""))

    # News

    def _show(self, ranks: Collection[int]) -> None:
        """Show where ranks have come to stand."""
        self._pausing -= set(ranks)
        for rank in ranks:
            self._views[rank].arrived()
        said = self._group.each({rank: self._views[rank].stop_text for rank in ranks})
        texts = {rank: visible(text if isinstance(text, str) else f"*** {text}") for rank, text in said.items()}
        texts = {rank: text for rank, text in texts.items() if self._group.sessions[rank].ended is None}
        alone = len(texts) == 1 and tuple(texts) == self._focus
        self._print(texts[self._focus[0]] if alone else merged(texts))

    def _follow_fates(self) -> None:
        """Tell of ranks that have ended, follow those that start anew, and have no more to do with the others."""
        if not self._group.ends():
            return
        if not self._alone:
            time.sleep(_TOGETHER)
        ends = self._group.ends()
        again = {rank for rank in ends if self._reader is not None and self._group.sessions[rank].restarting}
        for rank, end in ends.items():
            self.notes.say(rank, str(end))
            if rank in again:
                self.notes.say(rank, f"rank {rank} starts anew; attaching to its next attempt")
        for rank in again:
            self._views[rank].arrived()
            self._group.restart(rank)
        gone = set(ends) - again
        self._failed = self._failed or bool(gone)
        self._pausing -= set(ends)
        self._expected = (self._expected - gone) | again
        self._group.drop(gone)
        self._focus = tuple(rank for rank in self._focus if rank not in gone) or self._group.ranks

    def _told(self, rank: int, category: str, text: str) -> None:
        """What the adapter says. Called in the client's reader thread."""
        if category not in ("stdout", "stderr"):
            self.notes.say(rank, text)
        elif self._output is not None:
            self._output[rank] = self._output.get(rank, "") + text
        else:
            sys.stdout.write(text)
            sys.stdout.flush()

    def _changed(self) -> None:
        """A rank has come to stand or has ended. Called in another thread."""
        if self._reading and self._reader is not None:
            self._reader.wake()

    def _print(self, text: str) -> None:
        if text:
            print(text.removesuffix("\n"), flush=True)
