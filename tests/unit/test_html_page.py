"""The page of a run: what is in it, how large it gets, and that it obeys no text of the user's."""

from __future__ import annotations

import dataclasses
import math
import random
import re
from array import array
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

from raytrain_debug.postmortem.compare import compare_ranks
from raytrain_debug.postmortem.findings import examine
from raytrain_debug.postmortem.series import Points, RankSeries, read_series
from raytrain_debug.render.html.page import Report, page
from raytrain_debug.run import codec, writer
from raytrain_debug.run.reader import Run, load_run
from raytrain_debug.run.records import (
    CallSite,
    CoreRecord,
    ExceptionRecord,
    HangRecord,
    StackGroup,
    ThreadRecord,
    to_sparse_dict,
)
from tests.dead_runs import RAISES, DeadRun, mapping, number, text
from tests.unit.made_runs import GONE, START, MadeRun, exception

EVIL = '"><script>window.hacked = 1</script><img src=x onerror="window.hacked=1">'


class Page(HTMLParser):
    """The elements of a page, and its text; complains of elements that are not closed in order."""

    VOID = frozenset({"meta", "br"})

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(source)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def sections(self) -> list[str]:
        return [str(each["id"]) for each in self.all("section")]


def report_of(run: DeadRun | MadeRun, **more: Any) -> Report:
    found = load_run(run.paths, last=1)
    return Report(examine(found), tuple(map(read_series, found.ranks)), START + 100, **more)


@pytest.fixture
def made(tmp_path: Path) -> Page:
    return Page(page(report_of(DeadRun(tmp_path))))


def test_checkpoints_that_were_not_opened_are_not_called_equal(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "runs")
    for rank in range(2):
        run.started(rank)
        torch.save({"w": torch.full((3,), float(rank))}, run.snapshot(rank) / "model.pt")
        run.reported(rank, checkpoint=run.kept(rank))
    found = examine(run.write(), tensors=False)
    made = Page(page(Report(found, tuple(map(read_series, (each.rank for each in found.ranks))), START + 100)))
    assert "ranks 0-1, from report 0 (same names and sizes; not opened)" in made.text


def test_each_tensor_has_its_norm_and_zeros(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "runs", world_size=1)
    run.started(0)
    torch.save({"w": torch.tensor([3.0, 4.0, 0.0])}, run.snapshot(0) / "model.pt")
    run.reported(0, checkpoint=run.kept(0))
    run.write()
    source = page(report_of(run))
    assert re.search(r"std</th><th[^>]*>norm</th><th[^>]*>zeros</th>", source)
    assert re.search(r">2.082</td><td[^>]*>5</td><td[^>]*>1</td>", source)


def test_the_page_opens_with_the_verdict_and_has_a_section_for_all_that_was_left(made: Page) -> None:
    assert made.text.index("Rank 1 failed first with ValueError") < made.text.index("Stacks")
    assert made.sections == ["ranks", "stacks", "cores", "metrics", "timeline-of-reports", "context", "checkpoints"]
    assert [each["href"] for each in made.all("a")[:2]] == ["#ranks", "#stacks"]


def test_frames_are_links_that_say_the_file_and_line_for_whoever_shows_the_page(made: Page, tmp_path: Path) -> None:
    places = [each for each in made.all("a") if "data-file" in each]
    raised = [each for each in places if each["data-line"] == str(RAISES)]
    assert raised
    assert {each["data-file"] for each in raised} == {str(tmp_path / "train.py")}
    assert raised[0]["href"] == f"vscode://file{tmp_path / 'train.py'}:{RAISES}"


def test_a_core_has_the_exception_its_cause_the_source_and_locals_that_open(made: Page) -> None:
    text = re.sub(r"\s+", " ", made.text)
    for words in (
        "rank 1: ValueError: loss is nan",
        "caused by KeyError: 'lr'",
        "names = ['a', 'b']",
        "98 more",
        "shape [1000, 1000] float32 min -1 max 1 mean 0 std 0.5 nan 2 inf 0 first_bad [3, 4]",
        "rank 0: ended by the launcher, in all_reduce",
        "2 tensors were not kept",
    ):
        assert words in text
    assert '<b>   12      raise ValueError(f"loss is {loss.item()}")</b>' in made.source
    assert "waits in all_reduce" in text


def test_checkpoints_are_tables_with_histograms_and_their_health(made: Page) -> None:
    assert "model.pt: 0.weight" in made.text
    assert len([each for each in made.all("svg") if each.get("class") == "histogram"]) == 3
    assert "no snapshot" in made.text


def test_metrics_that_went_nan_say_where_first(made: Page) -> None:
    assert "NaN or infinite first in report 1, on rank 1" in made.text


def test_nothing_in_the_page_can_run_or_be_fetched(made: Page) -> None:
    policy = [each["content"] for each in made.all("meta") if each.get("http-equiv") == "Content-Security-Policy"]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'"]
    names = {name for name, _ in made.elements}
    assert not names & {"script", "img", "iframe", "link", "object", "embed", "form"}
    for _, attributes in made.elements:
        assert not any(name.startswith("on") or name in ("src", "style") for name in attributes)
        assert str(attributes.get("href", "#")).startswith(("#", "vscode://file/"))


def test_text_of_the_users_stays_text_wherever_it_stands(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "root")
    for rank in (0, 1):
        run.started(rank)
        torch.save({EVIL: torch.ones(2), "note": EVIL}, run.snapshot(rank) / f"{EVIL.replace('/', '')}.pt")
        run.reported(rank, 0, {EVIL: 0.5, "note": EVIL, "both": {EVIL: 1}}, run.kept(rank), experiment_name=EVIL)
        run.ended(rank, exit_code=1)
    error = dataclasses.replace(exception(EVIL, EVIL), notes=(EVIL,), attributes={EVIL: text(EVIL)})
    frame = dataclasses.replace(
        DeadRun(tmp_path).frame("f", 3), file=f"/{EVIL}", function=EVIL, source=(EVIL,), note=EVIL
    )
    frame = dataclasses.replace(frame, locals={EVIL: text(EVIL), "d": mapping(**{EVIL: number(1)})})
    core = CoreRecord(START, 0, GONE, error, threads=(ThreadRecord(EVIL, True, (frame,), EVIL),) * 2, notes=(EVIL,))
    writer.replace_file(run.paths.rank(1).core, codec.dumps(to_sparse_dict(core)))
    run.thread_ended(1, dataclasses.replace(error, traceback=(EVIL,)), EVIL)
    run.write(exit_code=1)
    hang = HangRecord(START, 3.0, 0, EVIL, (EVIL,), (StackGroup((0,), EVIL, (CallSite(EVIL, 1, EVIL),)),))
    comparison = compare_ranks(load_run(run.paths))
    writer.write_record(run.paths.hang, hang)
    made = Page(page(report_of(run, comparison=comparison, not_compared=EVIL)))
    names = {name for name, _ in made.elements}
    assert not names & {"script", "img"}
    assert not any(name.startswith("on") for _, attributes in made.elements for name in attributes)
    assert made.text.count("<script>") > 20


def test_threads_that_ended_with_an_exception_have_a_section(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "root")
    for rank in (0, 1):
        run.started(rank)
        run.thread_ended(rank, exception("all the same"))
    run.write()
    made = Page(page(report_of(run)))
    assert ("a", {"href": "#threads-that-ended-with-an-exception"}) in made.elements
    assert "ranks 0-1, threads 'loader': ValueError: all the same at train.py:88 in train_func, 15 s after" in made.text
    assert made.text.count("Traceback (most recent call last)") == 1


def test_control_characters_and_broken_text_are_shown_as_escapes(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "root")
    run.started(0)
    run.died(0, ExceptionRecord("ValueError", "bell \a, half a pair \ud800", None))
    run.ended(0, exit_code=1)
    run.write(exit_code=1)
    source = page(report_of(run))
    assert "bell \\x07, half a pair \\ud800" in source
    source.encode("utf-8")


def test_a_run_that_left_nothing_makes_a_page_too(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "root", world_size=0)
    run.paths.record.write_text("{")
    made = Page(page(report_of(run)))
    assert "Nothing is recorded of how this run went" in made.text
    workerless = MadeRun(tmp_path / "ray", mode="ray").write(exit_code=1)
    made = Page(page(Report(examine(Run(workerless.paths, workerless.record, ())), (), START)))
    assert "before a Ray Train worker had started" in made.text
    assert "Ranks" not in made.text


def many_ranks(count: int, reports: int, metrics: int) -> tuple[RankSeries, ...]:
    random.seed(7)
    index, zeros = array("q", range(reports)), array("l", range(reports))
    noise = [random.random() for _ in range(reports)]
    made = []
    for rank in range(count):
        time = array("d", [START + i + rank / 100 + noise[(i * 7 + rank) % reports] for i in range(reports)])
        curves = {
            f"metric {number}": Points(
                zeros, array("d", [noise[(i * (number + 1) + rank) % reports] * math.exp(-i / reports) for i in index])
            )
            for number in range(metrics)
        }
        rss = Points(zeros, array("d", [2e9 + 1e5 * i + 1e7 * noise[(i + rank) % reports] for i in index]))
        made.append(RankSeries(rank, index, time, curves, rss))
    return tuple(made)


def test_the_page_of_64_ranks_with_10000_reports_stays_under_2_mb(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "root", world_size=64)
    dead = load_run(DeadRun(tmp_path).paths).ranks
    many = {f"v{i}": mapping(**{f"k{j}": number(j / 7) for j in range(30)}) for i in range(30)}
    for rank in range(64):
        run.started(rank)
        core = dead[int(rank == 5)].core
        assert core is not None
        thread = core.threads[0]
        *outer, inner = thread.frames
        frames = (*outer, dataclasses.replace(inner, locals={**inner.locals, **many}))
        core = dataclasses.replace(core, threads=(dataclasses.replace(thread, frames=frames),))
        writer.replace_file(run.paths.rank(rank).core, codec.dumps(to_sparse_dict(core)))
        torch.save({f"layer{i}.weight": torch.randn(50) + rank for i in range(12)}, run.snapshot(rank) / "model.pt")
        run.reported(rank, 0, checkpoint=run.kept(rank))
        run.ended(rank, exit_code=1 if rank == 5 else None, signal=None if rank == 5 else "SIGTERM", caused=rank != 5)
    run.write(exit_code=1)
    findings = examine(load_run(run.paths, last=1))
    comparison = compare_ranks(findings.run)
    source = page(Report(findings, many_ranks(64, 10_000, 2), START + 1, comparison))
    made = Page(source)
    assert len(source.encode()) < 2_000_000
    assert made.sections[-1] == "ranks-compared"
    assert "more tensors are left out for size" in made.text
    assert "rank 5, which failed first" in made.text
    curves = [each for each in made.all("path") if str(each.get("class", "")).startswith("curve")]
    assert len(curves) >= 3 * 64
