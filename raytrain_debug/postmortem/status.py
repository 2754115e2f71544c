"""What every rank of a run is doing now: as the launcher says, or, when it does not answer, as the processes show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from raytrain_debug.across.progress import reports_behind
from raytrain_debug.errors import ControlError
from raytrain_debug.postmortem.liveness import Liveness, liveness
from raytrain_debug.postmortem.verdict import ENDED_WITH_JOB, EXCEPTION, FINISHED, LOST, RUNNING, Verdict, verdict
from raytrain_debug.run import channel
from raytrain_debug.run.reader import Rank, Run
from raytrain_debug.run.records import CallSite, ReportRecord, from_dict, to_dict

_PATIENCE = 2.0  # seconds: a launcher answers at once or is no longer one


@dataclass(frozen=True)
class RankStatus:
    """One rank; `state` is "starting", "waiting", "dormant", "attached", "paused", "finished", "failed",
    "stopped" (it was ended because the job was) or "lost".

    `port` is where it is debugged, None without a launcher that lives. `where` is the place at which it waits for a
    debugger, `client` who debugs it, as far as the launcher tells.
    `node` names the machine of a rank of another node: its reports are recorded there, and `reports` is None.
    """

    rank: int
    state: str
    pid: int | None
    port: int | None
    reports: int | None
    last_report: ReportRecord | None
    where: CallSite | None = None
    client: str | None = None
    node: str | None = None


@dataclass(frozen=True)
class RunStatus:
    """All ranks of a run; `answered` tells whether the launcher spoke for them."""

    run: Run
    verdict: Verdict
    answered: bool
    ranks: tuple[RankStatus, ...]


def gather(run: Run) -> RunStatus:
    """Ask the launcher of `run`, and look at the processes of those ranks that it does not speak for."""
    alive = liveness(run)
    judged = verdict(run, alive)
    live = _ask_launcher(run, alive)
    ports = run.record.launcher.ports if run.record is not None and run.record.launcher and alive.launcher else {}
    ranks = tuple(
        _status(rank, judged.outcomes[rank.rank], ports.get(str(rank.rank)), (live or {}).get(rank.rank))
        for rank in run.ranks
    )
    there = {number: state for number, state in (live or {}).items() if run.rank(number) is None}
    ranks += tuple(_status_elsewhere(number, state) for number, state in there.items())
    return RunStatus(run, judged, live is not None, tuple(sorted(ranks, key=lambda each: each.rank)))


def to_json(status: RunStatus) -> dict[str, Any]:
    """The status as `status --json` prints it; `behind` are the reports that a rank of a live run lags by."""
    most = max((rank.reports for rank in status.ranks if rank.reports is not None), default=0)
    is_live = status.verdict.state == RUNNING
    return {
        "run": status.run.paths.id,
        "state": status.verdict.state,
        "attempt": status.verdict.attempt,
        "ranks": [
            {**to_dict(rank), "behind": reports_behind(rank.reports, most) if is_live else 0} for rank in status.ranks
        ],
    }


def _ask_launcher(run: Run, alive: Liveness) -> dict[int, dict[str, Any]] | None:
    launcher = run.record.launcher if run.record is not None else None
    if launcher is None or not alive.launcher:
        return None
    try:
        answer = channel.ask(launcher.socket, {"op": "status"}, _PATIENCE)
        return {int(rank): dict(state) for rank, state in answer["ranks"].items()}
    except (ControlError, KeyError, ValueError, TypeError, AttributeError):
        return None


def _status(rank: Rank, outcome: str, port: int | None, live: dict[str, Any] | None) -> RankStatus:
    pid = rank.process.pid if rank.process is not None else None
    if live is None:
        return RankStatus(rank.rank, _state(rank, outcome), pid, port, rank.report_count, rank.last_report)
    where = live.get("where")
    return RankStatus(
        rank.rank,
        str(live.get("state")),
        live.get("pid"),
        live.get("port") or port,
        rank.report_count,
        rank.last_report,
        from_dict(CallSite, where) if isinstance(where, dict) else None,
        live.get("client"),
    )


def _status_elsewhere(number: int, live: dict[str, Any]) -> RankStatus:
    """A rank of another node, by the word of its launcher."""
    where = live.get("where")
    return RankStatus(
        number,
        str(live.get("state")),
        live.get("pid"),
        live.get("port"),
        None,
        None,
        from_dict(CallSite, where) if isinstance(where, dict) else None,
        live.get("client"),
        live.get("node"),
    )


def _state(rank: Rank, outcome: str) -> str:
    """The word for a rank that no launcher speaks for."""
    if outcome == RUNNING:
        return "dormant"
    if outcome == FINISHED:
        return "finished"
    if outcome == ENDED_WITH_JOB:
        return "stopped"
    end = rank.last_exit
    return "failed" if outcome == EXCEPTION or (end is not None and outcome != LOST) else LOST
