"""Who failed first and why, and how every rank ended: a pure function of what a run left and which processes live."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from raytrain_debug.postmortem.causes import (
    AFTERMATH,
    SYSTEM_EXIT,
    core_of,
    crashed_in,
    first_cause,
    innermost,
    raised,
    tells_of_a_lost_peer,
    was_stopped,
)
from raytrain_debug.postmortem.liveness import NOTHING, Liveness
from raytrain_debug.run.ranks import name_ranks
from raytrain_debug.run.reader import Rank, Run
from raytrain_debug.run.records import CallSite, ExceptionRecord, ExitRecord
from raytrain_debug.run.remedies import remedy_of
from raytrain_debug.run.words import counted, first_line

FINISHED, EXCEPTION, ENDED_WITH_JOB = "finished", "exception", "ended with the job"
RUNNING, LOST, NOT_STARTED = "running", "lost", "not started"

_PLACES = 4  # of ranks that were ended, told one by one

_SIGNALS = {
    "SIGKILL": "often the kernel's out-of-memory killer, or the batch system",
    "SIGSEGV": "a crash in native code",
    "SIGBUS": "a crash in native code, or a mapped file that was cut short",
    "SIGABRT": "native code gave up; its last words are in the rank's output",
    "SIGFPE": "a crash in native code",
    "SIGILL": "native code built for another processor",
    "SIGTERM": "somebody, or the batch system, asked it to end",
    "SIGINT": "Ctrl-C, or somebody asked it to end",
    "SIGHUP": "its terminal was closed",
}


@dataclass(frozen=True)
class FirstFailure:
    """The failure that came before all others of its attempt; `kind` is "exception", "signal" or "exit".

    `exception` is "Type: message" ("SystemExit: ..." for an exit by sys.exit), `where` its last frame in the user's
    code, or that of the thread in which a crash in native code came about. `time` (Unix seconds) is when it was
    raised, or when the launcher saw the process end; `signal` may be set for an exception too, which a signal followed.
    `remedy` says what to do about it where that is known.
    """

    rank: int
    kind: str
    exception: str | None
    signal: str | None
    exit_code: int | None
    where: CallSite | None
    attempt: int
    time: float
    remedy: str | None = None


@dataclass(frozen=True)
class Verdict:
    """How a run ended.

    `state` is "running", "finished", "failed", "stopped" or "lost" (it ended with nobody left to tell how).
    `first_failure` is the last attempt's, `earlier` has those of the attempts before it, `outcomes` a word for each
    rank: "finished", "exception", "exit 3", "SIGKILL", "ended with the job", "running", "lost", "not started".
    `consequences` has the ranks whose exception says no more than that they lost their connection to another.
    `sentence` says all that in words.
    """

    state: str
    attempt: int
    first_failure: FirstFailure | None
    outcomes: dict[int, str]
    earlier: tuple[FirstFailure, ...]
    sentence: str
    consequences: frozenset[int] = frozenset()


def verdict(run: Run, alive: Liveness = NOTHING) -> Verdict:
    """Judge `run` by what the launcher saw and what the ranks left."""
    attempt = _last_attempt(run)
    outcomes = {rank.rank: _outcome(rank, run, alive) for rank in run.ranks}
    first = _first_failure(run, attempt)
    earlier = tuple(found for each in range(attempt) if (found := _first_failure(run, each)) is not None)
    state = _state(run, alive, first, outcomes)
    lost = _consequences(run, first, outcomes)
    sentence = " ".join(_sentences(run, alive, attempt, state, first, earlier, outcomes, lost))
    return Verdict(state, attempt, first, outcomes, earlier, sentence, lost)


def short_path(file: str, cwd: str | None) -> str:
    """`file` as seen from the run's working directory when it lies below it."""
    if cwd is not None and file.startswith(cwd.rstrip(os.sep) + os.sep):
        return file[len(cwd.rstrip(os.sep)) + 1 :]
    return file


def _last_attempt(run: Run) -> int:
    seen = [run.record.attempt] if run.record is not None else []
    seen += [exit.attempt for rank in run.ranks for exit in rank.exits]
    seen += [rank.process.attempt for rank in run.ranks if rank.process is not None]
    seen += [rank.core.attempt for rank in run.ranks if rank.core is not None]
    return max(seen, default=0)


def _newest_exit(rank: Rank) -> ExitRecord | None:
    """How the rank's newest process ended; None when that process is not known to have ended."""
    end = rank.last_exit
    return None if end is None or (rank.process is not None and rank.process.attempt > end.attempt) else end


def _outcome(rank: Rank, run: Run, alive: Liveness) -> str:
    end = _newest_exit(rank)
    stopped = run.record.stopped if run.record is not None else None
    if end is None:
        if rank.rank in alive.ranks:
            return RUNNING
        if was_stopped(rank, None, stopped):
            return ENDED_WITH_JOB
        if raised(rank, None, stopped) is not None:
            return EXCEPTION
        if run.record is not None and run.record.tells_its_end:
            return FINISHED
        if rank.process is None:
            return NOT_STARTED
        # A launcher that lives has not told of this death yet: it will in a moment.
        return LOST
    if end.exit_code == 0:
        return FINISHED
    if raised(rank, end, stopped) is not None:
        return EXCEPTION
    if end.caused or was_stopped(rank, end, stopped):
        return ENDED_WITH_JOB
    if end.signal is not None:
        return end.signal
    return f"exit {end.exit_code}" if end.exit_code is not None else LOST


def _first_failure(run: Run, attempt: int) -> FirstFailure | None:
    cause = first_cause(run, attempt)
    if cause is None:
        return None
    error, end = cause.exception, cause.end
    signal = end.signal if end is not None and not end.caused else None
    code = end.exit_code if end is not None else None
    if error is not None:
        told = _told(error)
        if error.type == SYSTEM_EXIT:
            return FirstFailure(cause.rank, "exit", told, signal, code, error.where, attempt, cause.moment)
        remedy = remedy_of(told)
        return FirstFailure(cause.rank, "exception", told, signal, code, error.where, attempt, cause.moment, remedy)
    kind = "signal" if signal is not None else "exit"
    rank = run.rank(cause.rank)
    where = innermost(crashed_in(core_of(rank, end))) if rank is not None and signal is not None else None
    return FirstFailure(cause.rank, kind, None, signal, code, where, attempt, cause.moment)


def _consequences(run: Run, first: FirstFailure | None, outcomes: dict[int, str]) -> frozenset[int]:
    """Ranks that raised what a rank gets when its peer fails, where the first failure is no such thing."""
    if first is None or (first.exception is not None and tells_of_a_lost_peer(first.exception)):
        return frozenset()
    return frozenset(
        rank.rank
        for rank in run.ranks
        if rank.rank != first.rank
        and outcomes[rank.rank] == EXCEPTION
        and (core := core_of(rank, _newest_exit(rank))) is not None
        and core.exception is not None
        and tells_of_a_lost_peer(_told(core.exception))
    )


def _told(error: ExceptionRecord) -> str:
    return f"{error.type}: {error.message}" if error.message else error.type


def _state(run: Run, alive: Liveness, first: FirstFailure | None, outcomes: dict[int, str]) -> str:
    record = run.record
    if alive.anything and (record is None or record.ended is None):
        return RUNNING
    if first is not None:
        return "failed"
    if record is not None and record.stopped is not None:
        return "stopped"
    if record is not None and record.exit_code:
        return "failed"
    if ENDED_WITH_JOB in outcomes.values():
        return "stopped"
    if outcomes and all(outcome == FINISHED for outcome in outcomes.values()):
        return FINISHED
    return FINISHED if record is not None and (record.exit_code == 0 or record.tells_its_end) else LOST


def _sentences(
    run: Run,
    alive: Liveness,
    attempt: int,
    state: str,
    first: FirstFailure | None,
    earlier: Sequence[FirstFailure],
    outcomes: dict[int, str],
    lost: frozenset[int],
) -> Iterable[str]:
    record = run.record
    ranks = sorted(outcomes)
    if state == RUNNING:
        which = f", in attempt {attempt}" if attempt else ""
        yield f"The run is running{which}."
        if not alive.launcher and record is not None and record.launcher is not None:
            yield f"Its launcher is gone, but {name_ranks(alive.ranks)} {_live(alive.ranks)} on."
    if first is not None:
        yield _failure_sentence(run, first)
        if first.remedy is not None:
            yield f"{first.remedy}."
        left = [
            rank.rank
            for rank in run.ranks
            if rank.rank != first.rank and outcomes[rank.rank] == FINISHED and _ended_before(rank, first)
        ]
        if left:
            others = "the others were" if len(left) + 1 < len(ranks) else f"rank {first.rank} was"
            they = name_ranks(left).capitalize()
            yield f"{they} had left with exit code 0 before that, while {others} still at work."
        yield from _others(run, outcomes, {first.rank, *left, *lost})
        if lost:
            to_it = f"{'their' if len(lost) > 1 else 'its'} connection to rank {first.rank}"
            yield f"{name_ranks(lost).capitalize()} lost {to_it} in consequence, and failed with that."
    elif state == "stopped":
        by = record.stopped if record is not None and record.stopped is not None else None
        yield f"The run was stopped{f' ({by})' if by else ''} before it ended by itself; no rank had failed."
        yield from _others(run, outcomes, set(), stopped=True)
    elif state == "failed" and record is not None and record.mode == "ray" and not ranks:
        yield f"The script ended with exit code {record.exit_code} before a Ray Train worker had started."
    elif state == "failed":
        yield f"The launcher ended with exit code {record.exit_code if record else 1}; no rank is known to have failed."
        yield from _others(run, outcomes, set())
    elif state == LOST:
        if not ranks:
            yield "Nothing is recorded of how this run went: it left no rank and no end."
        else:
            yield (
                "The run ended with nobody left to tell how: launcher and ranks are gone (a SIGKILL to the launcher, "
                "which takes its ranks along, or to all of them; a container that was removed; a machine that lost "
                "power), or there was no space left to write the end down."
            )
            yield from _others(run, outcomes, set())
    elif state == FINISHED and record is not None and record.mode == "script" and record.launcher is None:
        yield "It was recorded in a test, which is over."
    elif state == FINISHED:
        yield "The rank finished." if len(ranks) == 1 else f"All {len(ranks)} ranks finished." if ranks else "It ended."
    elif state == RUNNING:
        yield from _others(run, {rank: word for rank, word in outcomes.items() if word != RUNNING}, set())
    for failure in earlier:
        yield f"Attempt {failure.attempt} before: {_uncapitalised(_failure_sentence(run, failure))}"


def _failure_sentence(run: Run, failure: FirstFailure) -> str:
    cwd = run.record.cwd if run.record is not None else None
    alone = len(run.ranks) == 1
    subject = f"Rank {failure.rank}"
    where = failure.where
    place = f" at {short_path(where.file, cwd)}:{where.line} in {where.function}" if where is not None else ""
    said = ""
    if failure.kind == "exception" and failure.exception is not None:
        message = first_line(failure.exception)
        text = f"{subject} failed{'' if alone else ' first'}"
        if ". " in message.removesuffix("."):
            # Sentences of its own would run into the place, and the place into them.
            text, said = text + place, f", with {message.removesuffix('.')}"
        else:
            text += f" with {message}{place}"
    elif failure.kind == "signal":
        hint = _SIGNALS.get(failure.signal or "")
        text = (
            f"{subject} was killed{'' if alone else ' first'} by {failure.signal}{place}{f' ({hint})' if hint else ''}"
        )
    elif failure.exception is not None:
        message = failure.exception.partition(": ")[2]
        called = f"sys.exit({message if message == str(failure.exit_code) else _quoted(message)})"
        text = f"{subject} {'called' if alone else 'failed first: it called'} {called}{place}"
    elif failure.exit_code is None:
        text = f"{subject} ended{'' if alone else ' first'}, nobody knows how"
    else:
        text = f"{subject} exited{'' if alone else ' first'} with code {failure.exit_code}"
    rank = run.rank(failure.rank)
    if rank is not None and failure.attempt == _last_attempt(run):
        report, count = rank.last_report, rank.report_count
        if report is None or report.attempt < failure.attempt:
            text += ", before its first report"
        else:
            text += f", after {counted(count, 'report')}"
    return f"{text}{said}."


def _quoted(message: str) -> str:
    return f'"{first_line(message)}"'


def _ended_before(rank: Rank, first: FirstFailure) -> bool:
    end = rank.last_exit
    # A rank that ends breaks its connections before the kernel tells that it has.
    late = AFTERMATH if first.exception is not None and tells_of_a_lost_peer(first.exception) else 0.0
    return end is not None and end.attempt == first.attempt and end.time < first.time + late


def _others(run: Run, outcomes: dict[int, str], told: set[int], stopped: bool = False) -> Iterable[str]:
    """A sentence for each outcome that several ranks share, but for the ranks that were told of.

    Of those that were ended, one for each of the places where most of them stood.
    """
    groups: dict[tuple[str, _Doing], list[int]] = {}
    for rank, outcome in sorted(outcomes.items()):
        if rank not in told:
            groups.setdefault((outcome, _doing(run, rank) if outcome == ENDED_WITH_JOB else _Doing()), []).append(rank)
    by_ray = run.record is not None and run.record.mode == "ray"
    why = "by that" if stopped else f"by {'Ray' if by_ray else 'the launcher'} in consequence"
    somewhere = sorted((key for key in groups if key[1] != _Doing()), key=lambda key: -len(groups[key]))
    rest = somewhere[_PLACES:] if len(somewhere) > _PLACES + 1 else []
    for key, ranks in groups.items():
        if key not in rest:
            outcome, doing = key
            meanwhile = f", while {doing.words(len(ranks) > 1)}" if doing != _Doing() else ""
            yield f"{name_ranks(ranks).capitalize()} {_predicate(outcome, len(ranks) > 1, why)}{meanwhile}."
    if rest:
        ranks = sorted(rank for key in rest for rank in groups[key])
        meanwhile = f", while they were at {len(rest)} other places"
        yield f"{name_ranks(ranks).capitalize()} {_predicate(ENDED_WITH_JOB, True, why)}{meanwhile}."


@dataclass(frozen=True)
class _Doing:
    """What a rank's training thread did: the wait that its frames tell of, and the last place in the user's code."""

    waiting_in: str = ""
    place: str = ""
    function: str = ""

    def words(self, several: bool) -> str:
        """`it waited in recv at train.py:26`, `they were in main at train.py:27`."""
        they, were = ("they", "were") if several else ("it", "was")
        at = f" at {self.place}" if self.place else ""
        if self.waiting_in:
            return f"{they} waited in {self.waiting_in}{at}"
        return f"{they} {were} in {self.function}{at}"


def _doing(run: Run, number: int) -> _Doing:
    """What the rank did when it was ended, as far as its core tells."""
    rank = run.rank(number)
    core = core_of(rank, rank.last_exit) if rank is not None else None
    main = next((thread for thread in core.threads if thread.is_main), None) if core is not None else None
    if main is None:
        return _Doing()
    where = innermost(main)
    if where is None:
        return _Doing(main.waiting_in or "")
    cwd = run.record.cwd if run.record is not None else None
    return _Doing(main.waiting_in or "", f"{short_path(where.file, cwd)}:{where.line}", where.function)


def _predicate(outcome: str, several: bool, why: str) -> str:
    was, has = ("were", "have") if several else ("was", "has")
    return {
        FINISHED: "finished",
        EXCEPTION: "failed with an exception too",
        ENDED_WITH_JOB: f"{was} ended {why}",
        RUNNING: f"{'are' if several else 'is'} running",
        LOST: f"{was} lost: gone without a trace",
        NOT_STARTED: f"{has} not started",
    }.get(outcome, f"{was} killed by {outcome} too" if outcome.startswith("SIG") else f"ended with {outcome} too")


def _live(ranks: Iterable[int]) -> str:
    return "live" if len(list(ranks)) > 1 else "lives"


def _uncapitalised(text: str) -> str:
    return text[:1].lower() + text[1:]
