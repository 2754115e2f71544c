"""The page of a run in a real browser: light and dark, printed, without a network, obeying no text of the user's."""

from __future__ import annotations

import dataclasses
import math
import os
import random
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from raytrain_debug.run import codec, writer
from raytrain_debug.run.reader import load_run
from raytrain_debug.run.records import CallSite, ProcessUsage, ReportRecord, to_dict, to_sparse_dict
from tests.dead_runs import CALLS, DeadRun
from tests.unit.made_runs import START, MadeRun
from tests.vscode import workbench
from tests.vscode.conftest import give_up

EVIL = "<script>window.hacked = 1</script>"
REPORTS = 240


def make_run(root: Path, odd_metric: str | None) -> Path:
    """A job of four ranks that learned for a while: rank 1 came to NaN and died of it, rank 2 was always late."""
    dead = load_run(DeadRun(root).paths)
    run = MadeRun(root / ".raytrain_debug", world_size=4)
    random.seed(4)
    torch.manual_seed(4)
    late = [0.0] * 4
    for rank in range(4):
        run.started(rank)
        lines = []
        for index in range(REPORTS):
            late[rank] = 0.45 + 0.3 * random.random() if rank == 2 else 0.05 * random.random()
            loss = 2.3 * math.exp(-index / 70) + 0.15 + 0.06 * random.random() + 0.01 * rank
            if rank == 1 and index > 228:
                loss = math.nan
            metrics = {"loss": loss, "accuracy": 1 - math.exp(-index / 60) * 0.9, "grad_norm": 10 ** (2 - index / 80)}
            metrics["grad_norm"] *= 1 + 0.4 * random.random() + (30 * rank == 30 and index > 215) * 20
            report = ReportRecord(
                index,
                START + 6 + index + late[rank],
                0,
                {"world_size": 4, "world_rank": rank, "local_rank": rank, "experiment_name": "digits"},
                {**metrics, odd_metric: index % 7} if odd_metric else metrics,
                None,
                CallSite(str(root / "train.py"), CALLS, "train"),
                ProcessUsage(int(8e8 + 6e5 * index + 4e7 * rank), 1.0),
                1.0,
            )
            lines.append(report)
        for index, snapshot in ((REPORTS - 1, run.snapshot(rank, REPORTS - 1)),):
            weights = {"0.weight": torch.randn(64, 64) * 0.1, "0.bias": torch.zeros(64), "2.weight": torch.rand(10, 64)}
            if rank == 1:
                weights["2.weight"][3, 7] = math.nan
            torch.save(weights, snapshot / "model.pt")
            lines[index] = dataclasses.replace(lines[index], checkpoint=run.kept(rank, index))
        run.paths.rank(rank).reports.write_text("".join(codec.dumps(to_dict(line)) + "\n" for line in lines))
        core = dead.ranks[int(rank == 1)].core
        assert core is not None
        core = dataclasses.replace(core, time=START + 250)
        writer.replace_file(run.paths.rank(rank).core, codec.dumps(to_sparse_dict(core)))
    run.ended(1, exit_code=1)
    for rank in (0, 2, 3):
        run.ended(rank, exit_code=None, signal="SIGTERM", caused=True)
    run.exits = [dataclasses.replace(end, time=START + 250 + end.order / 5) for end in run.exits]
    record = run.write(exit_code=1).record
    writer.write_record(run.paths.record, dataclasses.replace(record, cwd=str(root), ended=START + 252))
    return root


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("page"), odd_metric=EVIL)


@pytest.fixture(scope="module")
def page(run_directory: Path) -> Path:
    path = run_directory / "report.html"
    done = postmortem(run_directory, "--html", str(path))
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"raytrain_debug: wrote {path}\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    return path


def postmortem(cwd: Path, *arguments: str) -> Any:
    command = [sys.executable, "-m", "raytrain_debug", "postmortem", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def chrome() -> Iterator[Any]:
    if workbench.chromium() is None:
        give_up("a page is looked at in chromium")
    with workbench.browser() as running:
        yield running


def opened(chrome: Any, page: Path, **how: Any) -> tuple[Any, list[str]]:
    """A tab with the page, and what it asked of a network or complained of."""
    context = chrome.new_context(viewport={"width": 1240, "height": 1500}, **how)
    tab = context.new_page()
    said: list[str] = []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", lambda request: said.append(request.url) if request.url != page.as_uri() else None)
    tab.goto(page.as_uri())
    return tab, said


def test_the_page_is_whole_in_a_browser_and_asks_for_nothing(chrome: Any, page: Path) -> None:
    tab, said = opened(chrome, page, color_scheme="light")
    assert said == []
    assert tab.title().startswith("Post-mortem of run ")
    assert "Rank 1 failed first" in tab.locator(".verdict").inner_text()
    charts = tab.locator("#metrics figure")
    assert charts.count() == 4
    for chart in charts.all():
        box = chart.locator("path.curve").first.bounding_box()
        assert box is not None
        assert box["width"] > 200
    assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


@pytest.mark.skipif("RAYTRAIN_DEBUG_IMAGES" not in os.environ, reason="only for the docs")
def test_image(chrome: Any, tmp_path: Path) -> None:
    page = make_run(tmp_path, odd_metric=None) / "report.html"
    postmortem(tmp_path, "--html", str(page))
    tab, _ = opened(chrome, page, color_scheme="light", device_scale_factor=0.75)
    tab.set_viewport_size({"width": 1000, "height": 1930})
    tab.evaluate("document.querySelectorAll('.core').forEach(each => each.open = false)")
    tab.screenshot(path=Path(os.environ["RAYTRAIN_DEBUG_IMAGES"]) / "report.png")


def test_a_metric_called_script_stays_text(chrome: Any, page: Path) -> None:
    tab, _ = opened(chrome, page)
    assert tab.evaluate("window.hacked") is None
    assert EVIL in tab.locator("#metrics").inner_text()


def test_locals_open_at_a_click_without_scripts(chrome: Any, page: Path) -> None:
    tab, _ = opened(chrome, page, java_script_enabled=False)
    core = tab.locator("details.core").first
    value = core.get_by_text("shape [3, 4]").first
    assert not value.is_visible()
    for name in ("batch", "'x'"):
        core.locator("summary").filter(has=tab.get_by_text(name, exact=True)).first.click()
    assert value.is_visible()


def test_dark_and_light_are_as_the_reader_has_it_and_both_can_be_read(chrome: Any, page: Path) -> None:
    contrasts = {}
    for scheme in ("light", "dark"):
        tab, _ = opened(chrome, page, color_scheme=scheme)
        for selector in ("body", ".soft", "a", ".bad-text"):
            contrasts[scheme, selector] = tab.evaluate(CONTRAST, selector)
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert min(contrasts.values()) >= 4.5, contrasts


# The contrast ratio of WCAG 2 between an element's text and the page.
CONTRAST = """selector => {
  const parts = color => color.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const light = color => {
    const [r, g, b] = parts(color).map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const text = light(getComputedStyle(document.querySelector(selector)).color);
  const paper = light(getComputedStyle(document.body).backgroundColor);
  return (Math.max(text, paper) + 0.05) / (Math.min(text, paper) + 0.05);
}"""


def test_printed_all_is_open(chrome: Any, page: Path) -> None:
    tab, _ = opened(chrome, page)
    hidden = tab.locator("details.core").nth(1).locator("pre").first
    assert not hidden.is_visible()
    tab.emulate_media(media="print")
    assert hidden.is_visible()
    assert len(tab.pdf()) > 50_000


def test_it_fits_a_narrow_window(chrome: Any, page: Path) -> None:
    tab, _ = opened(chrome, page)
    tab.set_viewport_size({"width": 420, "height": 800})
    assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_it_goes_to_stdout_and_says_when_it_cannot_be_written(run_directory: Path) -> None:
    done = postmortem(run_directory, "--html", "-", "--no-tensors", "--rank", "1")
    assert done.stdout.startswith("<!DOCTYPE html>")
    assert "Not compared" in done.stdout
    refused = postmortem(run_directory, "--html", "/nowhere/x.html", "--no-tensors")
    assert refused.returncode == 1
    assert "cannot write /nowhere/x.html" in refused.stderr
    assert "Traceback" not in refused.stderr
