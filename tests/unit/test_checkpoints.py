"""Checkpoint summaries of files that torch and safetensors really wrote, of damaged ones and of dangerous ones."""

import os
import pickle
import subprocess
import sys
import textwrap
import zipfile

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from raytrain_debug.errors import CheckpointError, UnsafeCheckpoint
from raytrain_debug.postmortem.checkpoints import open_file, summarise
from raytrain_debug.run.records import FileEntry


class Trap:
    """Unpickling it leaves a trace on disk."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def only(directory, **options):
    (file,) = summarise(directory, **options)
    return file


def test_nested_state_dicts_are_told_by_dotted_names(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.25)
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 7, "history": [0.5, 0.25]}
    torch.save(state, tmp_path / "model.pt")
    file = only(tmp_path)
    told = {tensor.name: tensor.statistics for tensor in file.tensors}
    weight = model[0].weight.detach()
    assert (file.format, file.faults) == ("torch", ())
    assert list(told)[:2] == ["model.0.weight", "model.0.bias"]
    assert (told["model.0.weight"].shape, told["model.0.weight"].dtype) == ((3, 4), "float32")
    assert told["model.0.weight"].max == float(weight.max())
    assert told["model.0.weight"].mean == pytest.approx(float(weight.double().mean()))
    assert told["model.1.num_batches_tracked"].max == 1
    assert told["optimizer.state.0.exp_avg"].shape == (3, 4)
    assert file.scalars == {"epoch": 7}
    assert file.values > 3


def test_a_bare_tensor_and_a_list(tmp_path):
    torch.save(torch.ones(3), tmp_path / "a.pt")
    torch.save([torch.ones(2), (torch.zeros(1),)], tmp_path / "b.pt")
    first, second = summarise(tmp_path)
    assert [tensor.name for tensor in first.tensors] == ["tensor"]
    assert [tensor.name for tensor in second.tensors] == ["0", "1.0"]


def test_equal_names_and_cycles_do_no_harm(tmp_path):
    state = {"a": {"b": torch.ones(1)}, "a.b": torch.zeros(1)}
    state["itself"] = state
    torch.save(state, tmp_path / "model.pt")
    assert {tensor.name: tensor.statistics.max for tensor in only(tmp_path).tensors} == {"a.b": 1.0, "a.b#2": 0.0}


def test_tied_weights_are_counted_once_and_named(tmp_path):
    model = torch.nn.ModuleDict({"inp": torch.nn.Linear(3, 3, bias=False), "out": torch.nn.Linear(3, 3, bias=False)})
    model["out"].weight = model["inp"].weight
    torch.save({**model.state_dict(), "slice": model["inp"].weight.detach()[1]}, tmp_path / "model.pt")
    first, second, part = only(tmp_path).tensors
    assert (first.same_as, second.same_as, part.same_as) == (None, "inp.weight", None)
    assert first.statistics == second.statistics


def test_a_file_from_before_torch_1_6(tmp_path):
    torch.save({"w": torch.tensor([1.0, 2.0])}, tmp_path / "old.bin", _use_new_zipfile_serialization=False)
    file = only(tmp_path)
    assert (file.format, file.tensors[0].statistics.mean) == ("torch, before 1.6", 1.5)


def test_a_file_of_the_other_byte_order(tmp_path):
    if sys.byteorder != "little":
        pytest.skip("written for little-endian machines")
    numbers = torch.arange(1000, dtype=torch.float32)
    torch.save({"w": numbers, "again": numbers}, tmp_path / "little.pt")
    with zipfile.ZipFile(tmp_path / "little.pt") as source, zipfile.ZipFile(tmp_path / "big.pt", "w") as target:
        for name in source.namelist():
            data = source.read(name)
            if name.endswith("/byteorder"):
                data = b"big"
            elif "/data/" in name:
                data = numbers.numpy().byteswap().tobytes()
            target.writestr(name, data)
    big, little = summarise(tmp_path)
    assert big.faults == ()
    assert big.tensors[0].statistics == little.tensors[0].statistics


def test_safetensors(tmp_path):
    bad = torch.zeros(2, 3)
    bad[1, 0] = float("inf")
    state = {"w": bad, "h": torch.ones(5, dtype=torch.bfloat16), "e": torch.empty(0, 4)}
    save_file(state, tmp_path / "model.safetensors", metadata={"step": "12"})
    file = only(tmp_path)
    told = {tensor.name: tensor.statistics for tensor in file.tensors}
    assert (file.format, file.scalars) == ("safetensors", {"step": "12"})
    assert (told["w"].inf, told["w"].first_bad) == (1, (1, 0))
    assert (told["h"].dtype, told["h"].mean, told["e"].shape) == ("bfloat16", 1.0, (0, 4))


def test_formats_are_known_by_content_not_by_name(tmp_path):
    torch.save({"w": torch.ones(1)}, tmp_path / "pytorch_model.bin")
    save_file({"w": torch.ones(1)}, tmp_path / "weights")
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "deep" / "er").mkdir(parents=True)
    torch.save({"w": torch.ones(1)}, tmp_path / "deep" / "er" / "last.ckpt")
    assert {file.path: file.format for file in summarise(tmp_path)} == {
        "deep/er/last.ckpt": "torch",
        "notes.txt": "text",
        "pytorch_model.bin": "torch",
        "weights": "safetensors",
    }


@pytest.mark.parametrize("legacy", [False, True])
def test_a_pickle_with_code_is_refused_in_words_and_not_run(tmp_path, legacy):
    trace = tmp_path / "was here"
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    torch.save({"w": torch.ones(2), "x": Trap(trace)}, directory / "m.pt", _use_new_zipfile_serialization=not legacy)
    file = only(directory)
    (fault,) = file.faults
    assert not trace.exists()
    assert file.tensors == ()
    assert "safe loading refuses it" in fault.reason
    assert fault.globals == (f"{os.mkdir.__module__}.mkdir",)
    assert "--unsafe-load" in fault.remedy
    assert "[1m" not in fault.reason
    with pytest.raises(UnsafeCheckpoint), open_file(directory / "m.pt"):
        pass
    assert not trace.exists()


def test_unsafe_loading_is_done_when_asked_for(tmp_path):
    torch.save(torch.nn.Linear(2, 3), tmp_path / "model.pt")
    (fault,) = only(tmp_path).faults
    assert fault.globals == ("torch.nn.modules.linear.Linear",)
    file = only(tmp_path, unsafe=True)
    assert [(tensor.name, tensor.statistics.shape) for tensor in file.tensors] == [("weight", (3, 2)), ("bias", (3,))]


def test_an_unsafe_file_whose_class_is_gone_says_so(tmp_path):
    class_gone = pickle.dumps({"x": Trap("unused")}, protocol=2)
    torch.save({"w": torch.ones(1)}, tmp_path / "source.pt")
    with zipfile.ZipFile(tmp_path / "source.pt") as source, zipfile.ZipFile(tmp_path / "model.pt", "w") as target:
        for name in source.namelist():
            data = class_gone.replace(b"mkdir", b"mkgone") if name.endswith("data.pkl") else source.read(name)
            target.writestr(name, data)
    (tmp_path / "source.pt").unlink()
    (fault,) = only(tmp_path, unsafe=True).faults
    assert "mkgone" in fault.reason


def test_torchscript_is_refused_in_words(tmp_path):
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "model.pt")
    (fault,) = only(tmp_path).faults
    assert "TorchScript" in fault.reason


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])
@pytest.mark.parametrize("left", [0, 1, 40, 1000, -1, -700])
def test_a_cut_file_is_a_fault_of_this_file_only(tmp_path, name, left):
    path = tmp_path / name
    state = {"w": torch.randn(100, 10)}
    torch.save(state, path) if name.endswith(".pt") else save_file(state, path)
    path.write_bytes(path.read_bytes()[:left])
    torch.save({"w": torch.ones(1)}, tmp_path / "whole.pth")
    cut, whole = summarise(tmp_path)
    assert len(cut.faults) == 1
    assert cut.tensors == ()
    assert "\n" not in cut.faults[0].reason
    assert whole.tensors[0].statistics.mean == 1.0


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damaged_bytes_never_crash_the_summary(tmp_path, data):
    good = tmp_path / "good"
    if not good.exists():
        good.mkdir()
        torch.save({"m": {"w": torch.randn(3, 4)}, "n": 1}, good / "a.pt")
        torch.save({"w": torch.randn(3, 4)}, good / "b.pt", _use_new_zipfile_serialization=False)
        save_file({"w": torch.randn(3, 4)}, good / "c.safetensors")
        (tmp_path / "bad").mkdir()
    for path in good.iterdir():
        content = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        (tmp_path / "bad" / path.name).write_bytes(content)
    assert len(summarise(tmp_path / "bad")) == 3


def test_what_was_reported_and_is_gone_or_changed_says_so(tmp_path):
    (tmp_path / "a.txt").write_text("ab")
    reported = [FileEntry("a.txt", 5), FileEntry("sub/b.pt", 9)]
    short, gone = summarise(tmp_path, reported)
    assert "5 bytes when it was reported and has 2 now" in short.faults[0].reason
    assert (gone.path, gone.size) == ("sub/b.pt", 9)
    assert "not in the snapshot" in gone.faults[0].reason


def test_without_tensors_no_file_is_opened(tmp_path):
    (tmp_path / "model.pt").write_bytes(b"no torch file")
    file = only(tmp_path, tensors=False)
    assert (file.size, file.format, file.faults) == (13, None, ())


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_a_fault(tmp_path):
    (tmp_path / "model.pt").touch(mode=0)
    assert "cannot be read" in only(tmp_path).faults[0].reason


def test_an_open_file_gives_one_tensor_at_a_time(tmp_path):
    save_file({"a": torch.ones(2), "b": torch.zeros(3)}, tmp_path / "m.safetensors")
    with open_file(tmp_path / "m.safetensors") as contents:
        assert set(contents.names) == {"a", "b"}
        assert torch.equal(contents.load("b"), torch.zeros(3))
        with pytest.raises(CheckpointError, match="tensor c"):
            contents.load("c")


@pytest.mark.skipif(sys.platform != "linux", reason="memory is given back on Linux only")
@pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])
def test_a_large_tensor_is_summarised_in_little_memory(tmp_path, name):
    program = f"""
        import sys, torch
        from pathlib import Path
        from safetensors.torch import save_file
        from raytrain_debug.postmortem.checkpoints import summarise

        def memory(field):
            return int(Path("/proc/self/status").read_text().split(field + ":")[1].split()[0]) // 1024

        directory = Path(sys.argv[1])
        (directory / "warm").mkdir()
        save = torch.save if "{name}".endswith(".pt") else save_file
        save({{"w": torch.ones(1 << 20)}}, directory / "warm" / "{name}")
        summarise(directory / "warm")
        big = torch.empty(1 << 26)  # 256 MiB
        for part in big.split(1 << 20):
            part.uniform_()
        big = big.view(1 << 13, 1 << 13)
        save({{"w": big}}, directory / "{name}")
        del big, part
        before = memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM counts from now on
        (file,) = (each for each in summarise(directory) if each.path == "{name}")
        assert 0.49 < file.tensors[0].statistics.mean < 0.51
        print(memory("VmHWM") - before)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), tmp_path], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 48  # MiB
