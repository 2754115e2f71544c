"""Runs the table of rules over a script and, where there is one, a run of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from raytrain_debug.check.finding import Finding, Subject
from raytrain_debug.check.program import Program
from raytrain_debug.check.rules import RULES
from raytrain_debug.run.layout import list_runs
from raytrain_debug.run.reader import Run, load_run, read_record
from raytrain_debug.run.records import RunRecord


@dataclass(frozen=True)
class Examination:
    """What was looked at and what was found, in the order of files and lines.

    `files` are the script and what it imports from beside it; `unread` says of each file that could not be parsed why.
    `older` is True when the script was changed after the run had started: lines from records may be off.
    """

    script: str
    run: str | None
    older: bool
    files: tuple[str, ...]
    unread: tuple[str, ...]
    findings: tuple[Finding, ...]


def examine(script: Path, run: Run | None = None, ignored: frozenset[str] = frozenset()) -> Examination:
    """Look at `script`, without running it, and at the records of `run`; rules named in `ignored` are left out.

    Raises UsageError when there is no such script, UnreadableScript when it is no Python.
    """
    program = Program(script)
    subject = Subject(program, run)
    files = tuple(module.shown for module in program.modules.values())
    order = {file: number for number, file in enumerate(files)}
    found = [
        finding
        for rule in RULES
        if rule.id not in ignored
        for finding in rule.findings(subject)
        if not (finding.is_of_v2 and program.is_for_v1(finding.file, finding.line))
    ]
    found.sort(key=lambda each: (order.get(each.file, len(order)), each.file, each.line, each.rule))
    record = run.record if run is not None else None
    return Examination(
        program.script.shown,
        run.paths.id if run is not None else None,
        record is not None and script.stat().st_mtime > record.started,
        files,
        tuple(program.unread),
        tuple(dict.fromkeys(found)),
    )


def latest_run(script: Path, root: Path) -> Run | None:
    """The newest run of `script` that is recorded under `root`."""
    wanted = script.resolve()
    for paths in reversed(list_runs(root)):
        record = read_record(paths.record, RunRecord)
        if record is not None and record.argv and Path(record.cwd, record.argv[0]).resolve() == wanted:
            return load_run(paths)
    return None


def to_json(examination: Examination) -> dict[str, Any]:
    """What `check --json` prints."""
    return asdict(examination)
