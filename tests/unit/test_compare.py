"""Comparisons of ranks, reports and runs, over checkpoints that torch and safetensors really wrote."""

import math
import os
import shutil
import subprocess
import sys
import textwrap

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

from raytrain_debug.errors import RunNotFound, UsageError
from raytrain_debug.postmortem.compare import Options, changes, compare_ranks, compare_reports, compare_runs
from raytrain_debug.postmortem.differences import Tolerance
from raytrain_debug.render import compare as render
from raytrain_debug.run.reader import Run
from tests.unit.made_runs import MadeRun


def weights(**changed):
    state = {"net.w": torch.arange(12.0).reshape(3, 4), "net.b": torch.ones(3), "steps": torch.tensor(5)}
    return {name: value for name, value in (state | changed).items() if value is not None}


@pytest.fixture
def made(tmp_path):
    """Makes a run; `report` saves the state with torch, beside other files, and reports it."""
    count = iter(range(100))

    class Run(MadeRun):
        def report(self, rank, index=0, state=None, metrics=None, files=(), **more):
            directory = self.snapshot(rank, index)
            torch.save({"model": state if state is not None else weights(), **more}, directory / "model.pt")
            for name, content in files:
                (directory / name).write_text(content)
            self.reported(rank, index, metrics or {"loss": 0.5}, self.kept(rank, index))

    def make(ranks=3):
        run = Run(tmp_path / f"root{next(count)}", world_size=ranks)
        for rank in range(ranks):
            run.started(rank)
        return run

    return make


def differing(comparison):
    return {
        tensor.name: [group.sides for group in tensor.groups]
        for tensor in comparison.found.tensors
        if not tensor.agrees
    }


def test_replicas_that_agree_do(made):
    run = made()
    for rank in range(3):
        run.report(rank, epoch=3, files=[("notes.txt", "hi")])
    found = compare_ranks(run.write())
    assert not found.differs
    assert [side.report for side in found.sides] == [0, 0, 0]
    assert len(found.found.tensors) == 3
    assert [(value.name, value.groups[0].value) for value in found.found.values] == [("epoch", 3)]
    assert [file.agrees for file in found.found.files] == [True]
    assert (found.notes, found.found.unreadable) == ((), ())


def test_ranks_are_grouped_by_equal_tensors_and_measured_against_the_most_common(made):
    run = made(5)
    odd = torch.arange(12.0).reshape(3, 4)
    odd[2, 1] += 0.5
    bad = odd.clone()
    bad[0, 0] = math.nan
    for rank, weight in enumerate([None, odd, None, bad, None]):
        run.report(rank, state=weights() if weight is None else weights(**{"net.w": weight}))
    found = compare_ranks(run.write())
    assert found.differs
    assert differing(found) == {"model.net.w": [(0, 2, 4), (1,), (3,)]}
    first, second, third = next(tensor for tensor in found.found.tensors if tensor.name == "model.net.w").groups
    assert (first.difference, first.statistics.nan) == (None, 0)
    assert (second.difference.max_abs, second.difference.at, second.difference.differing) == (0.5, (2, 1), 1)
    assert (third.difference.newly_bad, third.statistics.nan, third.statistics.first_bad) == (1, 1, (0, 0))


def test_metrics_and_other_values_that_differ_are_told_by_rank(made):
    run = made()
    for rank in range(3):
        more = {"lr": 0.1 if rank else 0.2, "seed": math.nan}
        run.report(rank, metrics={"loss": [0.5, 0.75, 0.5][rank], "step": 3, "bad": math.nan}, **more)
    found = compare_ranks(run.write())
    told = {value.name: [(group.sides, group.value) for group in value.groups] for value in found.metrics}
    assert told["loss"] == [((0, 2), 0.5), ((1,), 0.75)]
    assert [value.name for value in found.metrics if not value.agrees] == ["loss"]
    assert [value.name for value in found.found.values if not value.agrees] == ["lr"]
    only = compare_ranks(run.write(), options=Options(metrics=False, tensors=False))
    assert (only.metrics, only.found.tensors, only.differs) == ((), (), False)


def test_a_tensor_or_a_file_that_some_ranks_lack_is_a_difference(made):
    run = made(2)
    run.report(0, files=[("a.txt", "same"), ("only0.txt", "x")])
    run.report(1, state=weights(**{"net.b": None}), files=[("a.txt", "other")])
    found = compare_ranks(run.write())
    lacking = next(tensor for tensor in found.found.tensors if tensor.absent)
    assert (lacking.name, lacking.absent, lacking.agrees) == ("model.net.b", (1,), False)
    files = {file.path: (file.groups, file.absent) for file in found.found.files}
    assert files == {"a.txt": (((0,), (1,)), ()), "only0.txt": (((0,),), (1,))}


def test_zeros_of_either_sign_are_equal(made):
    run = made(2)
    for rank, zero in enumerate([0.0, -0.0]):
        run.report(rank, state={"w": torch.tensor([zero, 1.0, math.nan])})
    assert not compare_ranks(run.write()).differs


def test_a_tolerance_lets_small_differences_pass_in_tensors_and_metrics(made):
    run = made(2)
    for rank in range(2):
        run.report(rank, state={"w": torch.tensor([100.0 + rank * 0.01])}, metrics={"loss": 1.0 + rank * 1e-4})
    run = run.write()
    assert compare_ranks(run).differs
    assert not compare_ranks(run, options=Options(tolerance=Tolerance(relative=1e-3))).differs
    assert compare_ranks(run, options=Options(tolerance=Tolerance(absolute=1e-3))).differs


def test_without_an_index_the_newest_report_that_all_still_keep_is_compared(made):
    run = made(2)
    for index in range(4):
        for rank in range(2):
            run.report(rank, index)
    run.reported(0, 4, {"loss": 1.0})
    shutil.rmtree(run.paths.rank(1).checkpoints / "3")
    found = compare_ranks(run.write())
    assert {side.report for side in found.sides} == {2}
    assert not found.differs


def test_checkpoints_that_are_gone_are_named_with_those_that_are_kept(made):
    run = made(3)
    for rank in range(3):
        for index in range(3):
            run.report(rank, index)
    shutil.rmtree(run.paths.rank(1).checkpoints / "0")
    run.reported(2, 3, {"loss": 1.0})
    run = run.write()
    found = compare_ranks(run, report=0)
    gone = "rank 1: the checkpoint of report 0 is no longer kept; kept are those of reports: 1-2"
    assert found.notes == (gone,)
    assert len(found.found.tensors) == 3
    found = compare_ranks(run, report=3)
    assert found.notes == (
        "ranks 0-1: made no report 3",
        "rank 2: report 3 came without a checkpoint",
        "no two checkpoints are there to be compared",
    )
    assert not found.differs


def test_two_reports_tell_what_trained_and_what_did_not(made):
    run = made(1)
    run.report(0, 3)
    moved = torch.arange(12.0).reshape(3, 4)
    moved[1, 1] = math.inf
    moved[0, 1] = 1.5
    new = weights(**{"net.w": moved, "steps": torch.tensor([5, 5]), "head": torch.ones(2)})
    run.report(0, 9, new, {"loss": 0.25})
    run = run.write()
    found = compare_reports(run, 0, 9, 3)
    told = changes(found)
    assert [side.report for side in found.sides] == [3, 9]
    assert (told.unchanged, told.changed) == (("model.net.b",), ("model.net.w",))
    assert (told.reshaped, told.added, told.removed) == (("model.steps",), ("model.head",), ())
    assert told.newly_bad == ("model.net.w",)
    assert told.largest == (pytest.approx(0.5 / math.sqrt(506 - 25)), "model.net.w")
    assert [(value.name, [group.value for group in value.groups]) for value in found.metrics] == [("loss", [0.5, 0.25])]
    with pytest.raises(RunNotFound, match="no report 5 of rank 0"):
        compare_reports(run, 0, 3, 5)
    with pytest.raises(UsageError):
        compare_reports(run, 0, 3, 3)
    with pytest.raises(RunNotFound, match="rank 7"):
        compare_reports(run, 7, 3, 9)


def test_two_runs_are_compared_rank_by_rank_at_their_last_kept_checkpoints(made):
    first, second = made(2), made(3)
    for rank in range(2):
        first.report(rank, 4)
        second.report(rank, 7, state=weights(**{"net.b": torch.zeros(3)}) if rank else None)
    first.reported(0, 5)
    one, two = compare_runs(first.write(), second.write())
    assert [(side.rank, side.report) for side in one.sides] == [(0, 4), (0, 7)]
    assert (one.differs, two.differs, two.rank) == (False, True, 1)
    assert differing(two) == {"model.net.b": [(0,), (1,)]}
    assert changes(two).largest == (1.0, "model.net.b")
    (only,) = compare_runs(first.write(), second.write(), reports=(5, 7), ranks=(0,))
    assert only.notes[0] == f"run {first.paths.id}: report 5 came without a checkpoint"
    with pytest.raises(RunNotFound, match="no report 9 of ranks 0-1"):
        compare_runs(first.write(), second.write(), reports=(9, 7))


def test_a_run_that_reported_nothing_says_so(made):
    with pytest.raises(RunNotFound, match="ranks 0-2 reported nothing"):
        compare_ranks(made().write())
    run = made().write()
    with pytest.raises(UsageError, match="only rank 0"):
        compare_ranks(run, ranks=(0,))
    with pytest.raises(RunNotFound, match="has no ranks to compare"):
        compare_ranks(Run(run.paths, run.record, ()))


def test_files_that_safe_loading_refuses_are_compared_by_their_bytes_and_told(made):
    run = made(2)
    for rank in range(2):
        run.report(rank, state={"layer": torch.nn.Linear(2, 2)})
    run = run.write()
    found = compare_ranks(run)
    assert [(fault.side, fault.file) for fault in found.found.unreadable] == [(0, "model.pt"), (1, "model.pt")]
    assert all("--unsafe-load" in fault.remedy for fault in found.found.unreadable)
    (told,) = (str(part) for part in render.render([found]) if "--unsafe-load" in str(part))
    assert told.startswith("ranks 0-1: model.pt: ")
    assert (found.found.tensors, found.found.files[0].groups) == ((), ((0,), (1,)))
    found = compare_ranks(run, options=Options(unsafe=True))
    assert set(differing(found)) == {"model.layer.weight", "model.layer.bias"}


def test_a_damaged_file_never_agrees(made):
    run = made(2)
    for rank in range(2):
        run.report(rank)
    path = run.paths.rank(1).checkpoints / "0" / "model.pt"
    path.write_bytes(path.read_bytes()[:-50])
    found = compare_ranks(run.write())
    assert found.differs
    assert [fault.side for fault in found.found.unreadable] == [1]


def test_distributed_checkpoints_are_compared_by_their_tensors_not_by_their_parts(made):
    run = made(2)
    for rank in range(2):
        directory = run.snapshot(rank)
        dcp.save({"w": torch.ones(4), "b": torch.tensor([float(rank)])}, checkpoint_id=directory, no_dist=True)
        run.reported(rank, 0, checkpoint=run.kept(rank))
    found = compare_ranks(run.write())
    assert differing(found) == {"b": [(0,), (1,)]}
    assert found.found.files == ()


def test_parts_of_one_checkpoint_are_no_replicas_and_its_reports_are_compared_whole(made):
    run = made(2)
    for index in range(2):
        run.in_parts({"a": torch.ones(4), "b": torch.full((3,), float(index))}, index)
    written = run.write()
    found = compare_ranks(written)
    assert not found.differs
    (note,) = found.notes
    assert note.startswith("ranks 0-1 hold parts of one checkpoint, no replicas")
    assert (found.found.tensors, found.found.files) == ((), ())
    for rank in range(2):
        told = changes(compare_reports(written, rank, 0, 1))
        assert (told.changed, told.unchanged) == (("b",), ("a",))


def test_what_ranks_have_beside_parts_of_one_checkpoint_is_compared(made):
    run = made(2)
    for rank in range(2):
        torch.save({"seen": torch.tensor([float(rank)])}, run.snapshot(rank, 1) / "extra.pt")
    parts = run.in_parts({"a": torch.ones(4), "b": torch.ones(3)}, 0)
    for rank, part in enumerate(parts):
        shutil.move(part, run.paths.rank(rank).checkpoints / "1" / "state")
        run.reported(rank, 1, checkpoint=run.kept(rank, 1))
    assert differing(compare_ranks(run.write(), report=1)) == {"seen": [(0,), (1,)]}


def test_hard_links_and_shared_memory_are_read_once(made, monkeypatch):
    from raytrain_debug.postmortem import matching

    run = made(2)
    shared = torch.ones(4)
    directory = run.snapshot(0)
    torch.save({"a": shared, "b": shared}, directory / "model.pt")
    os.link(directory / "model.pt", run.snapshot(1) / "model.pt")
    for rank in range(2):
        run.reported(rank, 0, checkpoint=run.kept(rank))
    read = []
    digest = matching.digest
    monkeypatch.setattr(matching, "digest", lambda tensor, release: read.append(tensor) or digest(tensor, release))
    monkeypatch.setattr(matching, "counting_threads", one_thread)
    found = compare_ranks(run.write())
    assert (found.differs, len(found.found.tensors), len(read)) == (False, 2, 1)


def one_thread():
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(1)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is given back on Linux only")
def test_large_tensors_of_several_ranks_are_compared_in_little_memory(made):
    run = made(3)
    whole = torch.zeros(1 << 25)  # 128 MiB
    for rank in range(3):
        whole[12345] = float(rank > 1)
        save_file({"w": whole}, run.snapshot(rank) / "m.safetensors")
        run.reported(rank, 0, checkpoint=run.kept(rank))
    del whole
    run.write()
    program = """
        import sys, torch
        from pathlib import Path
        from raytrain_debug.postmortem.compare import compare_ranks
        from raytrain_debug.postmortem.differences import digest, difference
        from raytrain_debug.run.layout import RunPaths
        from raytrain_debug.run.reader import load_run
        import raytrain_debug.postmortem.safetensors_files, raytrain_debug.postmortem.torch_files

        def memory(field):
            return int(Path("/proc/self/status").read_text().split(field + ":")[1].split()[0]) // 1024

        warm = torch.ones(1 << 20)
        digest(warm), difference(warm, warm + 1)
        before = memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM counts from now on
        found = compare_ranks(load_run(RunPaths(Path(sys.argv[1]))))
        (tensor,) = found.found.tensors
        assert [group.sides for group in tensor.groups] == [(0, 1), (2,)]
        assert tensor.groups[1].difference.at == (12345,)
        print(memory("VmHWM") - before)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), run.paths.directory],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 96  # MiB
