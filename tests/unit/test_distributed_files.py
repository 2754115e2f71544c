"""torch.distributed.checkpoint directories, written by torch in one process and in two, damaged, and dangerous."""

import os
import pickle
import subprocess
import sys
import textwrap

import pytest
import torch
import torch.distributed.checkpoint as dcp

from raytrain_debug.errors import CheckpointError, UnsafeCheckpoint
from raytrain_debug.postmortem.checkpoints import open_file, summarise
from raytrain_debug.postmortem.findings import examine, to_json
from raytrain_debug.postmortem.loaded import LoadedRun
from raytrain_debug.postmortem.snapshots import whole
from raytrain_debug.render.html.page import Report, page
from tests.unit.made_runs import START, MadeRun


def described(directory):
    return next(file for file in summarise(directory) if file.path == ".metadata")


@pytest.fixture
def saved(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.25)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "opt": optimizer.state_dict(), "epoch": 7, "half": torch.ones(4).bfloat16()}
    dcp.save(state, checkpoint_id=tmp_path / "saved", no_dist=True)
    return tmp_path / "saved", model


def test_tensors_and_values_are_told_by_name(saved):
    directory, model = saved
    found = described(directory)
    told = {tensor.name: tensor.statistics for tensor in found.tensors}
    assert (found.format, found.faults) == ("torch.distributed.checkpoint", ())
    assert told["model.weight"].shape == (2, 3)
    assert told["model.weight"].max == float(model.weight.max())
    assert (told["half"].dtype, told["half"].mean) == ("bfloat16", 1.0)
    assert "opt.state.0.exp_avg" in told
    assert found.scalars == {"epoch": 7}
    with open_file(directory / ".metadata") as contents:
        assert torch.equal(contents.load("model.weight"), model.weight)
        assert contents.leaves["opt.param_groups.0.lr"] == 0.25
        with pytest.raises(CheckpointError, match="no tensor model"):
            contents.load("model")
    part = next(file for file in summarise(directory) if file.path.endswith(".distcp"))
    assert (part.format, part.tensors, part.faults) == ("a part of what .metadata describes", (), ())


def test_a_tensor_sharded_over_processes_is_told_as_one(tmp_path):
    program = """
        import os, sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor

        rank = int(sys.argv[1])
        dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}/store", rank=rank, world_size=2)
        mesh = init_device_mesh("cpu", (2,))
        whole = torch.arange(15.0).reshape(5, 3)
        whole[4, 1] = float("nan")
        state = {"w": distribute_tensor(whole, mesh, [Shard(0)]), "step": 3}
        dcp.save(state, checkpoint_id=f"{sys.argv[2]}/saved")
        dist.destroy_process_group()
    """
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program), str(rank), tmp_path],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in started:
        _, err = process.communicate(timeout=100)
        assert process.returncode == 0, err
    directory = tmp_path / "saved"
    assert len(list(directory.glob("*.distcp"))) == 2
    found = described(directory)
    (tensor,) = found.tensors
    assert (tensor.statistics.shape, tensor.statistics.first_bad, tensor.statistics.nan) == ((5, 3), (4, 1), 1)
    assert (tensor.statistics.max, tensor.statistics.note) == (14.0, "")
    with open_file(directory / ".metadata") as contents:
        assert contents.load("w")[:4].flatten().tolist() == [float(at) for at in range(12)]

    second = sorted(directory.glob("*.distcp"))[1]
    second.write_bytes(second.read_bytes()[:-100])
    (fault,) = described(directory).faults
    assert fault.reason == f"{second.name}, which holds a part of it, is cut short"
    second.unlink()
    (fault,) = described(directory).faults
    assert fault.reason == f"{second.name}, which holds a part of it, is not here"


def test_a_description_with_other_objects_is_refused_and_nothing_runs(saved, tmp_path):
    directory, _ = saved
    trace = tmp_path / "was here"

    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(trace),)

    metadata = pickle.loads((directory / ".metadata").read_bytes())
    metadata.planner_data = Trap()
    (directory / ".metadata").write_bytes(pickle.dumps(metadata))
    found = described(directory)
    (fault,) = found.faults
    assert fault.globals == (f"{os.mkdir.__module__}.mkdir",)
    assert "--unsafe-load" in fault.remedy
    assert not trace.exists()
    with pytest.raises(UnsafeCheckpoint), open_file(directory / ".metadata"):
        pass
    with open_file(directory / ".metadata", unsafe=True) as contents:
        assert "model.weight" in contents.names
    assert trace.exists()


@pytest.mark.parametrize("name", ["eval", "getattr", "__import__", "exec"], ids=["eval", "getattr", "import", "exec"])
def test_no_builtin_of_use_to_an_attacker_is_allowed(tmp_path, name):
    payload = b"\x80\x04" + f"cbuiltins\n{name}\n".encode() + b"(X\x01\x00\x00\x001tR."
    (tmp_path / ".metadata").write_bytes(payload)
    (fault,) = described(tmp_path).faults
    assert fault.globals == (f"builtins.{name}",)


def test_parts_outside_of_the_checkpoint_are_not_read(saved):
    directory, _ = saved
    metadata = pickle.loads((directory / ".metadata").read_bytes())
    for stored in metadata.storage_data.values():
        stored.relative_path = f"../{directory.name}/{stored.relative_path}"
    (directory / ".metadata").write_bytes(pickle.dumps(metadata))
    found = described(directory)
    assert found.tensors == ()
    assert all("outside of the checkpoint" in fault.reason for fault in found.faults)


@pytest.mark.parametrize("left", [0, 1, 10, 1000, -1])
def test_a_cut_description_is_a_fault(saved, left):
    directory, _ = saved
    path = directory / ".metadata"
    path.write_bytes(path.read_bytes()[:left])
    found = described(directory)
    assert found.tensors == ()
    assert found.format == "empty" if left == 0 else "damaged" in found.faults[0].reason


@pytest.mark.skipif(sys.platform != "linux", reason="memory is told by Linux only")
def test_a_checkpoint_of_many_parts_needs_memory_for_one(tmp_path):
    program = """
        import sys, torch
        from pathlib import Path
        import torch.distributed.checkpoint as dcp
        from raytrain_debug.postmortem.checkpoints import summarise

        def memory(field):
            return int(Path("/proc/self/status").read_text().split(field + ":")[1].split()[0]) // 1024

        directory = Path(sys.argv[1])
        dcp.save({"w": torch.ones(1 << 20)}, checkpoint_id=directory / "warm", no_dist=True)
        summarise(directory / "warm")
        state = {f"w{at}": torch.full((1 << 22,), float(at)) for at in range(12)}  # 16 MiB each
        dcp.save(state, checkpoint_id=directory / "big", no_dist=True)
        del state
        before = memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM counts from now on
        found = next(each for each in summarise(directory / "big") if each.tensors)
        assert len(found.tensors) == 12
        print(memory("VmHWM") - before)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), tmp_path], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 120  # MiB, of 192; the allocator keeps some for later


STATE = {"a": torch.arange(6.0), "b": torch.full((2, 2), 3.0), "step": 7}


@pytest.fixture
def made(tmp_path):
    run = MadeRun(tmp_path / "root")
    for rank in range(2):
        run.started(rank)
    return run


def paragraph(run, **options):
    return to_json(examine(run, **options))["verdict"]["summary"]


def test_parts_that_two_ranks_report_are_one_usable_checkpoint(made):
    zero, one = made.in_parts(STATE)
    run = made.write()
    assert (
        "The checkpoint of ranks 0-1 from report 0, in parts, is usable: 2 tensors, all of them finite."
        in paragraph(run)
    )
    assert "The checkpoint from report 0, in parts, is usable: 2 tensors, all of them finite." in paragraph(
        run, ranks=[1]
    )
    for rank, other in ((0, one), (1, zero)):
        told = to_json(examine(run))["ranks"][rank]["checkpoint"]
        assert {each["name"]: each["max"] for each in told["tensors"]} == {"a": 5.0, "b": 3.0}
        assert (told["health"], told["unreadable"], told["other_parts"]) == ("usable", [], [str(other.parent)])
        opened = LoadedRun(run).ranks[rank].reports[-1].checkpoint.open()
        assert list(opened) == ["state/.metadata", "state/__0_0.distcp", "state/__0_1.distcp"]
        assert torch.equal(opened["state/.metadata"]["a"], STATE["a"])
        assert torch.equal(opened["state/.metadata"]["b"], STATE["b"])
        assert opened["state/.metadata"]["step"] == 7
    first, second = (each.checkpoint for each in examine(run).ranks)
    assert first.files == second.files, "they are shown once"


def test_a_bad_element_in_a_part_of_another_rank_is_found_and_an_older_checkpoint_named(made):
    for index in range(2):
        made.in_parts(STATE | {"b": torch.tensor([1.0, float("nan") if index else 2.0])}, index)
    told = paragraph(made.write())
    assert (
        "The checkpoint of ranks 0-1 from report 1, in parts, is not usable: 1 NaN in b; the one from report 0 is."
        in told
    )


def test_a_part_that_no_snapshot_has_is_a_damage(made):
    zero, one = made.in_parts(STATE)
    made.in_parts(STATE, 1)
    whole_part = (one / "__0_1.distcp").read_bytes()
    (one / "__0_1.distcp").write_bytes(whole_part[:-100])
    run = made.write()
    assert "__0_1.distcp, which holds a part of it, is cut short" in paragraph(run, ranks=[0], report=0)
    (one / "__0_1.distcp").unlink()
    assert "state/.metadata __0_1.distcp, which holds a part of it, is not here" in paragraph(run, ranks=[0], report=0)
    (one / "__0_1.distcp").write_bytes(whole_part)
    (zero / ".metadata").unlink()
    told = paragraph(run, ranks=[1], report=0)
    assert "is not usable: state/__0_1.distcp is a part of a checkpoint, and no .metadata that is kept" in told


def test_only_snapshots_of_the_same_report_and_attempt_complete_a_checkpoint(made, tmp_path):
    made.in_parts(STATE, 0, attempts=(0, 1))
    (_, one) = made.in_parts(STATE, 1)
    beside = made.paths.directory / "ranks" / "elsewhere" / "checkpoints" / "1"
    beside.parent.mkdir(parents=True)
    one.parent.rename(beside)
    made.write()
    for index in range(2):
        directory = made.paths.rank(0).checkpoints / str(index)
        assert whole(directory).others == ()
        (fault,) = next(file for file in summarise(directory) if file.path == "state/.metadata").faults
        assert fault.reason == "__0_1.distcp, which holds a part of it, is not here"


def test_a_checkpoint_of_another_rank_lends_no_part_to_one_that_lacks_it(made):
    for rank in range(2):
        directory = made.snapshot(rank)
        dcp.save({"w": torch.full((4,), float(rank))}, checkpoint_id=directory, no_dist=True)
        made.reported(rank, checkpoint=made.kept(rank))
    (made.paths.rank(0).checkpoints / "0" / "__0_0.distcp").unlink()
    zero, one = (each.checkpoint for each in examine(made.write()).ranks)
    assert (zero.health.state, zero.others) == ("damaged", ())
    assert (one.health.state, one.others) == ("usable", ())


def test_other_descriptions_of_one_report_leave_every_rank_its_own_checkpoint(made):
    _, one = made.in_parts(STATE)
    dcp.save({"mine": torch.ones(2)}, checkpoint_id=one, no_dist=True)
    first, second = (each.checkpoint for each in examine(made.write()).ranks)
    assert (first.health.state, first.others) == ("damaged", ())
    assert [tensor.name for file in second.files for tensor in file.tensors] == ["mine"]


def test_the_page_shows_a_checkpoint_in_parts_once(made):
    made.in_parts(STATE)
    text = page(Report(examine(made.write()), (), START))
    assert "ranks 0-1, from report 0 (parts of one checkpoint)" in text
    assert text.count("state/__0_1.distcp") == 1
