"""Makes every call of Ray Train that has to do with ranks and says what each did: `every_call.py MODE DIRECTORY`.

With MODE `distributed` on two real workers, else in local mode, on whatever ranks there are. What came of a call is
written in the words of docs/local-and-distributed.md, by call: to DIRECTORY/MODE-<rank>.json what a rank has seen, to
DIRECTORY/MODE-fit-<rank>.json what fit() gave there.
"""

import json
import os
import socket
import sys
import tempfile
import time
import warnings
from pathlib import Path

import ray.train
import ray.train.torch
import torch
import torch.distributed
from ray.train import (
    Checkpoint,
    CheckpointConfig,
    CheckpointUploadMode,
    FailureConfig,
    RunConfig,
    ScalingConfig,
    UserCallback,
)
from ray.train.collective import barrier, broadcast_from_rank_zero
from ray.train.torch import TorchTrainer

MODE, DIRECTORY = sys.argv[1], Path(sys.argv[2]).absolute()
DISTRIBUTED = MODE == "distributed"
NAME = "the-run"
LIMIT = 5  # seconds
# Seconds that rank 1 gives rank 0 to come back from a call alone; many where it should, for slow machines.
PATIENCE = 1 if MODE in ("distributed", "faithful") else 20


class Listener(UserCallback):
    def after_report(self, run_context, metrics, checkpoint):
        self.note("after_report", [each["rank"] for each in metrics])

    def after_exception(self, run_context, worker_exceptions):
        self.note("after_exception", sorted(worker_exceptions))

    def note(self, what, seen):
        with open(DIRECTORY / f"{MODE}-{what}.jsonl", "a") as file:
            file.write(json.dumps([os.environ.get("RANK"), seen]) + "\n")


class Probe:
    """One rank's calls, and what they did."""

    def __init__(self):
        self.rank = ray.train.get_context().get_world_rank()
        self.did = {}
        self.turn = 0

    def note(self, call, did):
        self.did[call] = did() if callable(did) else did

    def attempt(self, call, function):
        """What a call returns, or the name of what it raises."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.note(call, str(function()))
        except (Exception, DeprecationWarning) as error:
            self.note(call, f"`{type(error).__name__}`")

    def deprecated(self, call, *functions):
        """What calls that all do the same do."""
        for function in functions:
            before = self.did.get(call)
            self.attempt(call, function)
            assert before in (None, self.did[call]), (before, self.did[call])

    def waits(self, call, function):
        """Whether rank 0 comes back only once rank 1, which holds back as long as it can, has made the call too."""
        self.turn += 1
        back, late = (DIRECTORY / f"{MODE}-{sign}-{self.turn}" for sign in ("back", "late"))
        torch.distributed.barrier()
        if self.rank == 1:
            end = time.monotonic() + PATIENCE
            while time.monotonic() < end and not back.exists():
                time.sleep(0.01)
            late.touch()
        function()
        waited = late.exists()
        back.touch()
        torch.distributed.barrier()
        if self.rank == 0:
            self.note(call, "waits for all ranks" if waited else "returns at once")

    def report(self, call, **options):
        """Report a checkpoint of this rank's own directory; that directory, and what get_checkpoint() gives then."""
        source = tempfile.mkdtemp(dir=DIRECTORY, prefix=f"{MODE}-checkpoint-")
        Path(source, f"{self.rank}.txt").write_text(call)
        ray.train.report({"probe": call, "rank": self.rank}, checkpoint=Checkpoint.from_directory(source), **options)
        torch.distributed.barrier()
        return source, ray.train.get_checkpoint()

    def finish(self):
        (DIRECTORY / f"{MODE}-{self.rank}.json").write_text(json.dumps(self.did))


def place(checkpoint, source=None):
    if checkpoint is None:
        return "`None`"
    if checkpoint.path == source:
        return "the reported directory"
    return "a copy in the run directory" if ".raytrain_debug" in checkpoint.path else "a copy in `storage_path`"


def of_context(probe):
    context = ray.train.get_context()
    for name in ("world_size", "world_rank", "local_rank", "local_world_size", "node_rank"):
        probe.attempt(f"`get_context().get_{name}()`", getattr(context, f"get_{name}"))
    probe.note(
        "`get_context().get_experiment_name()`", "`RunConfig(name)`" if context.get_experiment_name() == NAME else "?"
    )
    probe.attempt(
        "`get_context().get_storage()`",
        lambda: place(Checkpoint(context.get_storage().experiment_fs_path)).replace("a copy in", "paths in"),
    )
    names = ("metadata", "trial_name", "trial_id", "trial_resources", "trial_dir")
    getters = [getattr(context, f"get_{name}") for name in names]
    probe.deprecated("`get_context().get_metadata()`, `get_trial_*()`", *getters)


def of_reports(probe):
    probe.note("`get_checkpoint()` at first", place(ray.train.get_checkpoint()))
    call = "`report(metrics)`"
    probe.waits(call, lambda: ray.train.report({"probe": call, "rank": probe.rank}))
    call = "`report(metrics)` with a tensor in them"

    def tensor():
        ray.train.report({"probe": call, "rank": probe.rank, "loss": torch.ones(1)})
        return "accepted"

    probe.attempt(call, tensor)

    call = "`report(metrics, checkpoint)`, then `get_checkpoint()`"
    source, kept = probe.report(call)
    probe.note(call, place(kept, source))
    files = len(os.listdir(kept.path))
    probe.note("a checkpoint that both ranks report", "files of both" if files == 2 else "each rank has its own")
    call = "`report(metrics)`, then `get_checkpoint()`"
    ray.train.report({"probe": call, "rank": probe.rank})
    probe.note(call, "`None`" if ray.train.get_checkpoint() is None else "the last checkpoint")
    call = "`report(..., checkpoint_dir_name)`"
    _, kept = probe.report(call, checkpoint_dir_name="a-name")
    probe.note(call, "names the copy" if os.path.basename(kept.path) == "a-name" else "ignored")
    call = "`report(..., delete_local_checkpoint_after_upload=True)`"
    source, _ = probe.report(call, delete_local_checkpoint_after_upload=True)
    probe.note(call, "the directory stays" if os.path.exists(source) else "the directory is deleted")
    call = "`report(..., checkpoint_upload_mode=ASYNC)`"
    source, _ = probe.report(call, checkpoint_upload_mode=CheckpointUploadMode.ASYNC)
    if DISTRIBUTED:
        ray.train.get_all_reported_checkpoints()  # waits until it is there
    there = os.path.exists(source)
    kept = ray.train.get_checkpoint()
    probe.note(call, f"{place(kept, source)}; the directory {'stays' if there else 'is deleted'}")
    call = "`report(..., checkpoint_upload_fn)`"
    uploaded = []

    def upload(checkpoint, name):
        uploaded.append(name)
        kept = Path(ray.train.get_context().get_storage().experiment_fs_path, name)
        kept.mkdir(exist_ok=True)
        return Checkpoint.from_directory(kept)

    probe.report(call, checkpoint_upload_fn=upload)
    probe.note(call, "the function is called" if uploaded else "the function is not called")
    if not DISTRIBUTED:
        without_upload(probe)
    call = "a checkpoint that only rank 1 reports, then `get_checkpoint()` on rank 0"
    if probe.rank == 0:
        before = ray.train.get_checkpoint()
        ray.train.report({"probe": call, "rank": 0})
        kept = ray.train.get_checkpoint()
        same = kept is not None and before is not None and kept.path == before.path
        probe.note(call, "rank 0's own last" if same else place(kept))
    else:
        empty = Checkpoint.from_directory(tempfile.mkdtemp(dir=DIRECTORY))
        ray.train.report({"probe": call, "rank": 1}, checkpoint=empty)
    torch.distributed.barrier()
    call = "`report(..., validation=True)` without a `validation_config`"

    def validated():
        probe.report(call, validation=True)
        return "accepted"

    probe.attempt(call, validated)
    torch.distributed.barrier()
    last = "the last one"
    probe.report(last)
    kept = ray.train.get_all_reported_checkpoints()
    torch.distributed.barrier()
    probe.note(
        "`get_all_reported_checkpoints()`",
        f"{len(kept)} checkpoints with rank 0's metrics"
        if kept and all(each.metrics["rank"] == 0 for each in kept)
        else f"`{kept}`",
    )
    known = [path for path in Path(ray.train.get_checkpoint().path).parent.iterdir() if path.is_dir()]
    probe.note("`CheckpointConfig(num_to_keep=2)`", f"the newest {len(known)} are kept" if kept else "ignored")
    ray.train.report({"probe": "the end", "rank": probe.rank})


def without_upload(probe):
    """On a cluster a rank that has made this call cannot report any more: it is the last."""
    call = "`report(..., checkpoint_upload_mode=NO_UPLOAD)` of a directory elsewhere"

    def elsewhere():
        source = DIRECTORY / f"{MODE}-elsewhere"
        source.mkdir(exist_ok=True)
        ray.train.report(
            {"probe": call, "rank": probe.rank},
            checkpoint=Checkpoint.from_directory(source),
            checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD,
        )
        return place(ray.train.get_checkpoint(), str(source))

    probe.attempt(call, elsewhere)


def of_the_rest(probe):
    probe.waits("`collective.barrier()`", barrier)
    call = "`collective.broadcast_from_rank_zero(data)`"
    probe.waits(call, lambda: broadcast_from_rank_zero(None))
    waits = probe.did.get(call)
    data = {"rank": probe.rank}
    got = broadcast_from_rank_zero(data)
    value = "its argument" if got is data else f"a copy of rank {got['rank']}'s"
    if waits:
        probe.did[call] = f"{waits}; {value}"
    else:
        assert value == "its argument" or got == {"rank": 0}, value
    call = "`get_preemption_info()`"
    probe.waits(call, ray.train.get_preemption_info)
    if probe.rank == 0:
        probe.did[call] += f"; `{ray.train.get_preemption_info()}`"
    else:
        ray.train.get_preemption_info()
    probe.attempt("`get_dataset_shard()` of a name that is not there", lambda: ray.train.get_dataset_shard("none"))
    if DISTRIBUTED:
        rows = len(list(ray.train.get_dataset_shard("train").iter_rows()))
        probe.note("`datasets` given to the trainer", "each rank its share" if rows == 2 else f"{rows} rows")
    probe.attempt("`torch.get_device()`", ray.train.torch.get_device)
    probe.attempt("`torch.get_devices()`", ray.train.torch.get_devices)
    model = torch.nn.Linear(1, 1)
    probe.attempt("`torch.prepare_model()`", lambda: f"`{type(ray.train.torch.prepare_model(model)).__name__}`")
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4)))
    probe.attempt(
        "`torch.prepare_data_loader()`",
        lambda: f"its sampler a `{type(ray.train.torch.prepare_data_loader(loader).sampler).__name__}`",
    )
    probe.deprecated(
        "`torch.prepare_optimizer()`, `backward()`, `accelerate()`",
        lambda: ray.train.torch.prepare_optimizer(torch.optim.SGD(model.parameters())),
        lambda: ray.train.torch.backward(model(torch.ones(1)).sum()),
        ray.train.torch.accelerate,
    )


def train():
    probe = Probe()
    of_context(probe)
    of_reports(probe)
    of_the_rest(probe)
    probe.finish()
    return probe.rank


def differ():
    """Rank 1 reports once and rank 0 twice; in a second attempt both fail."""
    probe = Probe()
    restarted = ray.train.get_checkpoint() is not None
    written = DIRECTORY / f"{MODE}-{probe.rank}.json"
    probe.did = json.loads(written.read_text())
    if restarted:
        probe.did["`FailureConfig(max_failures=1)`"] = "starts anew, from the last checkpoint"
        without_upload(probe)
        probe.finish()
        torch.distributed.barrier()
        raise RuntimeError("the second failure")
    probe.did["`FailureConfig(max_failures=1)`"] = "ignored"
    torch.distributed.barrier()
    probe.report("before they differ")
    if probe.rank == 1:
        probe.finish()
        return
    call = "reports that differ in number"
    try:
        ray.train.report({"rank": 0})
        probe.note(call, "nothing happens")
    except Exception as error:
        name = type(error).__name__
        timed_out = "CollectiveTimeout" in name
        probe.note(call, "hangs, or fails after `RAY_TRAIN_COLLECTIVE_TIMEOUT_S`" if timed_out else f"`{name}` at once")
        probe.finish()
        raise
    probe.finish()
    raise RuntimeError("the first failure")


def anew(fit):
    """Another store for the next fit() under torchrun: in the same one gloo may find addresses of the last."""
    path = DIRECTORY / f"{MODE}-port-{fit}"
    if os.environ["RANK"] == "0":
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            half = path.with_suffix(".half")
            half.write_text(str(free.getsockname()[1]))
        half.rename(path)
    while not path.exists():
        time.sleep(0.01)
    os.environ.update(MASTER_PORT=path.read_text(), TORCHELASTIC_USE_AGENT_STORE="False")


def make(function, **more):
    return TorchTrainer(
        function,
        # Half a processor for a worker: one is left for Ray Data.
        scaling_config=ScalingConfig(
            num_workers=2 if DISTRIBUTED else 0, resources_per_worker={"CPU": 0.5} if DISTRIBUTED else None
        ),
        run_config=RunConfig(
            name=more.pop("name", NAME),
            storage_path=str(DIRECTORY / "storage"),
            callbacks=[Listener()],
            checkpoint_config=CheckpointConfig(num_to_keep=2),
            failure_config=FailureConfig(max_failures=1),
        ),
        **more,
    )


def whose(rank):
    return "each rank's own" if str(rank) == os.environ.get("RANK") else f"rank {rank}'s"


def of_result(result):
    checkpoint = result.checkpoint
    return {
        "`Result.metrics`": f"of the last {'report' if result.metrics['probe'] == 'the end' else 'checkpoint'}",
        "`Result.checkpoint`": "`None` after a report without one"
        if checkpoint is None
        else f"the last, {place(checkpoint)}",
        "`Result.path`": "`None`" if result.path is None else "in `storage_path`",
        "`Result.best_checkpoints`": "`None`" if result.best_checkpoints is None else f"{len(result.best_checkpoints)}",
        "`Result.metrics_dataframe`": "`None`" if result.metrics_dataframe is None else "a row for each",
        "`Result.return_value`": "rank 0's" if DISTRIBUTED and result.return_value == 0 else whose(result.return_value),
    }


def main():
    more = {}
    if DISTRIBUTED:
        import ray.data

        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        more = {"datasets": {"train": ray.data.range(4)}}
    seen = of_result(make(train, **more).fit())
    os.environ["RAY_TRAIN_COLLECTIVE_TIMEOUT_S"] = str(LIMIT)
    if not DISTRIBUTED:
        anew("differing")
    call = "an exception in the training function"
    try:
        make(differ, name="differing").fit()
    except Exception as error:
        kind = type(error).__name__
        seen[call] = "`WorkerGroupError` from `fit()`" if kind == "WorkerGroupError" else "leaves `fit()` as it is"
    if torch.distributed.is_initialized():  # local mode leaves it so after an exception
        torch.distributed.destroy_process_group()
    if not DISTRIBUTED:
        anew("datasets")
        try:
            make(train, datasets={"train": [1, 2]}).fit()
        except AssertionError:
            seen["`datasets` given to the trainer"] = "`AssertionError` from `fit()`"
        torch.distributed.destroy_process_group()
    (DIRECTORY / f"{MODE}-fit-{os.environ.get('RANK', '0')}.json").write_text(json.dumps(seen))


main()
