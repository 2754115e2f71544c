"""A job of two ranks that died as ranks do, on disk: rank 1 of a ValueError, rank 0 ended by the launcher meanwhile."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from raytrain_debug.run import codec, layout, writer
from raytrain_debug.run.reader import load_run
from raytrain_debug.run.records import (
    CallSite,
    CheckpointRecord,
    CoreRecord,
    Described,
    ExceptionRecord,
    FrameRecord,
    SourceRecord,
    TensorDescription,
    ThreadRecord,
    to_sparse_dict,
)
from tests.unit.made_runs import GONE, START, MadeRun

SOURCE = """\
import torch

LR = 0.1


def parse(text):
    return int(text)


def step(model, batch):
    loss = (batch["x"] * float("nan")).mean()
    raise ValueError(f"loss is {loss.item()}")


def train():
    model = torch.nn.Linear(2, 1)
    for index in range(10):
        step(model, {"x": torch.ones(3)})


train()
"""
RAISES = SOURCE[: SOURCE.index("raise ValueError")].count("\n") + 1
CALLS = SOURCE[: SOURCE.index("step(model, {")].count("\n") + 1
KEPT = torch.arange(12, dtype=torch.float32).reshape(3, 4)


def number(value: Any) -> Described:
    return Described(type(value).__name__, "number", repr(value), value)


def text(value: str) -> Described:
    return Described("str", "text", repr(value), value, len(value))


def mapping(**items: Described) -> Described:
    shown = ", ".join(f"{name!r}: {item.text}" for name, item in items.items())
    return Described(
        "dict", "mapping", f"{{{shown}}}", length=len(items), items={repr(name): item for name, item in items.items()}
    )


def tensor(shape: tuple[int, ...], kept: str | None = None, **facts: Any) -> Described:
    described = TensorDescription(shape, "float32", kept=kept, **facts)
    return Described("torch.Tensor", "tensor", f"float32 {list(shape)}", tensor=described)


def model() -> Described:
    weight = tensor((1, 2), kept="step.model.weight")
    return Described(
        "torch.nn.modules.linear.Linear",
        "module",
        "Linear(in_features=2, out_features=1)",
        items={"weight": weight, "in_features": number(2)},
        parameters=3,
    )


class DeadRun:
    """The run in `root`/.raytrain_debug, of the script `script`, which is written if `with_source`."""

    def __init__(self, root: Path, with_source: bool = True) -> None:
        self.script = root / "train.py"
        if with_source:
            self.script.write_text(SOURCE)
        self.made = MadeRun(root / layout.ROOT_NAME)
        for rank in (0, 1):
            self.made.started(rank)
        self._rank_0()
        self._rank_1()
        self.made.ended(1, exit_code=1)
        self.made.ended(0, exit_code=None, signal="SIGTERM", caused=True)
        self.made.write(exit_code=1)
        record = load_run(self.made.paths).record
        assert record is not None
        writer.write_record(self.made.paths.record, dataclasses.replace(record, cwd=str(root)))

    @property
    def paths(self) -> layout.RunPaths:
        return self.made.paths

    def frame(self, function: str, line: int, **locals: Described) -> FrameRecord:
        first = max(line - 4, 1)
        lines = tuple(SOURCE.splitlines()[first - 1 : line + 4])
        return FrameRecord(str(self.script), line, function, "__main__", "user", first, lines, dict(locals))

    def core(self, rank: int, core: CoreRecord) -> None:
        """Write a core as a rank does."""
        writer.replace_file(self.paths.rank(rank).core, codec.dumps(to_sparse_dict(core)) + "\n")

    def _rank_1(self) -> None:
        paths = self.paths.rank(1)
        self.made.reported(1, 0, {"loss": 0.5})
        snapshot = self.made.snapshot(1, 1)
        torch.save({"0.weight": torch.full((2, 2), 3.0), "0.bias": torch.zeros(2)}, snapshot / "model.pt")
        torch.save({"model": {"w": torch.ones(5)}, "epoch": 7}, snapshot / "nested.pt")
        (snapshot / "notes.txt").write_text("hello")
        self.made.reported(1, 1, {"loss": float("nan"), "step": 2}, checkpoint=self.made.kept(1, 1))
        layout.make_private(paths.core_tensors.parent)
        save_file({"step.x": KEPT, "step.model.weight": torch.tensor([[1.0, 2.0]])}, paths.core_tensors)
        layout.make_private(paths.core_sources)
        (paths.core_sources / "0.py").write_text(SOURCE)
        inner = self.frame(
            "step",
            RAISES,
            model=model(),
            batch=mapping(x=tensor((3, 4), kept="step.x", min=0.0, max=11.0, mean=5.5, nan=0, inf=0)),
            loss=dataclasses.replace(tensor((), nan=1), value=float("nan"), text="float32: nan"),
            history=Described("list", "sequence", "[1, 2, …]", length=100, items={"0": number(1), "1": number(2)}),
            big=tensor((1000, 1000), min=-1.0, max=1.0, mean=0.0, std=0.5, nan=2, inf=0, first_bad=(3, 4)),
            names=Described("list", "sequence", "['a', 'b']", length=2, items={"0": text("a"), "1": text("b")}),
            checkpoint=Described(
                "ray.train.Checkpoint", "object", "Checkpoint(/tmp/x)", items={"path": text("/tmp/x")}
            ),
            optimizer=Described("torch.optim.sgd.SGD", "other", "SGD(lr=0.1)"),
        )
        outer = self.frame("train", CALLS, index=number(2), metrics=mapping(loss=number(0.25)))
        module = self.frame("<module>", SOURCE.count("\n"), LR=number(0.1))
        library = FrameRecord("/nowhere/torch/nn/modules/module.py", 10, "_call_impl", origin="framework")
        cause = ExceptionRecord(
            "KeyError", "'lr'", None, frames=(self.frame("parse", 7, text=text("0.1x")),), notes=("from the config",)
        )
        trace = ("Traceback (most recent call last):", f'  File "train.py", line {RAISES}, in step', "ValueError")
        error = ExceptionRecord(
            "ValueError",
            "loss is nan",
            CallSite(str(self.script), RAISES, "step"),
            trace,
            notes=("in batch 2",),
            cause=cause,
            attributes={"code": number(7)},
        )
        self.core(
            1,
            CoreRecord(
                START + 20,
                0,
                GONE,
                error,
                threads=(ThreadRecord("MainThread", True, (module, outer, library, inner)),),
                tensors="core/tensors.safetensors",
                sources=(SourceRecord(str(self.script), "core/sources/0.py"),),
                notes=("2 tensors were not kept",),
            ),
        )

    def _rank_0(self) -> None:
        self.made.reported(0, 0, {"loss": 0.5}, checkpoint=CheckpointRecord("/tmp/gone", None, kept="off"))
        module = self.frame("<module>", SOURCE.count("\n"), LR=number(0.1))
        outer = self.frame("train", CALLS, index=number(2))
        library = FrameRecord("/nowhere/torch/distributed/c10d.py", 99, "all_reduce", origin="framework")
        loader = ThreadRecord("loader", frames=(self.frame("parse", 7, text=text("1")),), waiting_in="lock")
        main = ThreadRecord("MainThread", True, (module, outer, library), "all_reduce")
        idle = ThreadRecord("tqdm_monitor", frames=(library,))
        self.core(0, CoreRecord(START + 21, 0, GONE, None, reason="ended", threads=(main, loader, idle)))
