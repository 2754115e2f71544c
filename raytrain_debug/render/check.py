"""What `check` found, for a person; and its table of rules for docs/check.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from raytrain_debug.check.examine import Examination
from raytrain_debug.check.finding import Finding, Rule
from raytrain_debug.render import text
from raytrain_debug.run.words import counted


def render(examination: Examination) -> Iterator[RenderableType]:
    """Each finding with its reason and remedy, then a line on what was looked at."""
    for finding in examination.findings:
        yield from _render_finding(finding)
    for unread in examination.unread:
        yield text.plain(f"not looked at: {unread}", "yellow")
    count = len(examination.findings)
    others = len(examination.files) - 1
    beside = f" and {counted(others, 'module')} beside it" if others else ""
    if examination.run is None:
        run = "; no run of it is recorded here"
    else:
        changed = ", which is older than the script" if examination.older else ""
        run = f" and run {examination.run}{changed}"
    found = counted(count, "finding") if count else "nothing found"
    yield text.plain(f"{found} in {examination.script}{beside}{run}", "" if count else "green")


def _render_finding(finding: Finding) -> Iterator[RenderableType]:
    head = text.plain(f"{finding.file}:{finding.line}" if finding.line else finding.file, "bold")
    head.append(f"  {finding.rule}", style="red")
    since = "any Ray" if finding.since == "any" else f"from Ray {finding.since}"
    head.append(f"  {since}{', a guess' if finding.guess else ''}", style="dim")
    yield head
    yield Padding(text.plain(finding.reason), (0, 0, 0, 2), expand=False)
    yield Padding(Text("→ ", style="green") + text.plain(finding.remedy), (0, 0, 1, 2), expand=False)


def format_rules(rules: Sequence[Rule]) -> str:
    """The rules as docs/check.md has them: a table in Markdown."""
    rows = (f"| `{rule.id}` | {rule.finds} | {rule.since} | {'yes' if rule.guess else ''} |" for rule in rules)
    return "\n".join(("| rule | finds | from Ray | a guess |", "|---|---|---|---|", *rows))
