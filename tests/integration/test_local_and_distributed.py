"""docs/local-and-distributed.md says what each call of Ray Train does in each mode: here each is run and compared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata

import pytest

from raytrain_debug.run.reader import load_run
from tests.conftest import REPOSITORY, TARGETS, Launch, free_base_port

PAGE = REPOSITORY / "docs" / "local-and-distributed.md"
EVERY_CALL = TARGETS / "every_call.py"
MODES = ("plain local mode", "distributed mode", "with `launch`", "with `launch --faithful`")
SAME = "the same"
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        tuple(map(int, metadata.version("ray").split(".")[:2])) < (2, 60), reason="the page is about Ray 2.60"
    ),
]


def rows():
    """The table: what each mode does, by call."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == ["call", *MODES]
    found = {}
    for call, plain, *others in cells[2:]:
        told = [plain, *(cell.replace(SAME, plain, 1) if cell.startswith(SAME) else cell for cell in others)]
        found[call] = dict(zip(MODES, told, strict=True))
    return found


class Seen:
    """What came of the calls in one mode, from the files that the script has left in `directory`."""

    def __init__(self, directory, mode, launched=None):
        self._directory, self._mode = directory, mode
        self.did = {**self._of_ranks(""), **self._of_ranks("fit-")}
        self.did["`UserCallback.after_report`"] = self._after_report()
        self.did["`UserCallback.after_exception`"] = self._after_exception()
        for rank in load_run(launched.paths).ranks if launched else ():
            for report in rank.reports:
                self._recorded(str(report.metrics.get("probe")), report.checkpoint is not None)

    def _of_ranks(self, what):
        """What ranks have noted, once where they agree."""
        files = [self._directory / f"{self._mode}-{what}{rank}.json" for rank in (0, 1)]
        ranks = [json.loads(file.read_text()) for file in files if file.exists()]
        calls = dict.fromkeys(call for each in ranks for call in each)
        return {call: " and ".join(dict.fromkeys(each[call] for each in ranks if call in each)) for call in calls}

    def _called(self, what):
        path = self._directory / f"{self._mode}-{what}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def _after_report(self):
        calls = self._called("after_report")
        if not calls:
            return "not called"
        assert all(ranks == [0, 1] for _, ranks in calls), calls
        (where,) = {rank for rank, _ in calls}
        return f"called {'in the controller' if where is None else f'on rank {where}'}, with the metrics of all ranks"

    def _after_exception(self):
        calls = self._called("after_exception")
        if not calls:
            return "not called"
        if all(rank is None for rank, _ in calls):
            return "called in the controller"
        assert calls == [["0", [0]]]
        return "called on the rank that fails first"

    def _recorded(self, call, with_checkpoint):
        if call in self.did:
            said = self.did[call].partition("; recorded")[0] + "; recorded"
            more = with_checkpoint or ", with a snapshot" in self.did[call]
            self.did[call] = said + (", with a snapshot" if more else "")


def run(command, cwd):
    environment = {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "RANK")}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]


def launched(directory, mode, *options):
    words = [*options, "--nproc-per-node", "2", EVERY_CALL, mode, directory]
    job = Launch(directory, [str(word) for word in words], {}, free_base_port(4))
    try:
        assert job.wait(150) == 0, job.output
        return Seen(directory, mode, job)
    finally:
        job.kill()


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """By mode, what each call did."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    found = {}
    for mode, command in (("plain", torchrun), ("distributed", [sys.executable])):
        directory = tmp_path_factory.mktemp(mode)
        run([*command, str(EVERY_CALL), mode, str(directory)], directory)
        found[mode] = Seen(directory, mode)
    for mode, options in (("launch", ()), ("faithful", ("--faithful",))):
        found[mode] = launched(tmp_path_factory.mktemp(mode), mode, *options)
    return dict(zip(MODES, (each.did for each in found.values()), strict=True))


@pytest.mark.parametrize("call", rows())
def test_a_call_does_in_each_mode_what_the_table_says(call, seen):
    assert {mode: seen[mode].get(call) for mode in MODES} == rows()[call]


def test_the_table_has_every_call_that_is_tried(seen):
    for mode in MODES:
        assert set(seen[mode]) == set(rows()), mode
