"""Calls of Ray Train that ranks make together: `faithful.py MODE`, under `launch --faithful`.

`all` does everything; with `fails` rank 1 fails in a first attempt before, with `again` there is a second fit().
`leaves` has rank 1 return after one report of two, once it has been debugged; `dies` has it go without a word.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import ray.train
from ray.train import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig, UserCallback
from ray.train.collective import barrier, broadcast_from_rank_zero
from ray.train.torch import TorchTrainer

MODE = sys.argv[1]
RANK = int(os.environ.get("RANK", "0"))
ATTEMPT = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
said = []
seen = {}


class Listener(UserCallback):
    def after_report(self, run_context, metrics, checkpoint):
        place = None if checkpoint is None else os.path.basename(checkpoint.path)
        said.append([run_context.run_config.name, metrics, place])

    def after_exception(self, run_context, worker_exceptions):
        told = {rank: [type(error).__name__, str(error).splitlines()[-1]] for rank, error in worker_exceptions.items()}
        with open("after_exception.jsonl", "a") as file:
            file.write(json.dumps([RANK, ATTEMPT, told]) + "\n")


def waited(call):
    """Whether `call` returns on rank 0 only once rank 1, which dawdles, has come to it."""
    if RANK == 1:
        time.sleep(0.3)
        Path(f"late-{ATTEMPT}").touch()
    call()
    there = Path(f"late-{ATTEMPT}").exists()
    barrier()
    if RANK == 1:
        os.unlink(f"late-{ATTEMPT}")
    barrier()
    return there


def report(number, **options):
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, f"of-rank-{RANK}.txt").write_text(str(number))
        ray.train.report(
            {"number": number, "score": -abs(number - 1), "rank": RANK},
            checkpoint=Checkpoint.from_directory(directory),
            **options,
        )


def contents(checkpoint):
    return {path.name: path.read_text() for path in sorted(Path(checkpoint.path).iterdir())}


def train():
    first = ray.train.get_checkpoint()
    seen["at first"] = None if first is None else [contents(first), len(ray.train.get_all_reported_checkpoints())]
    if ATTEMPT == 0 and "fails" in sys.argv:
        report(9)
        if RANK == 1:
            raise RuntimeError("planted in the first attempt")
        ray.train.report({"never": "together"})
    if ray.train.get_context().get_world_size() > 1:
        seen["barrier"] = waited(barrier)
        seen["report"] = waited(lambda: ray.train.report({"number": -1}))
        seen["broadcast waits"] = waited(lambda: broadcast_from_rank_zero(None))
    data = {"from": RANK, "function": lambda: RANK}
    got = broadcast_from_rank_zero(data)
    seen["broadcast"] = [got["from"], got is data, callable(got["function"])]
    for number in range(4):
        report(number, checkpoint_dir_name=f"the-{number}" if RANK == 0 else None)
    ray.train.report({"number": 4})
    seen["history"] = [
        [
            os.path.basename(each.checkpoint.path),
            each.metrics,
            contents(each.checkpoint),
            getattr(getattr(each, "status", None), "value", "COMMITTED"),  # not in Ray 2.51
        ]
        for each in ray.train.get_all_reported_checkpoints()
    ]
    seen["latest"] = contents(ray.train.get_checkpoint())
    seen["storage"] = ray.train.get_context().get_storage().experiment_fs_path
    try:
        import torch

        ray.train.report({"loss": torch.ones(1)})
    except ValueError as error:
        seen["tensor"] = str(error)
    seen["uploaded"] = []

    def upload(checkpoint, name):
        seen["uploaded"].append(name)
        kept = Path(ray.train.get_context().get_storage().experiment_fs_path, name)
        kept.mkdir(exist_ok=True)
        for path in Path(checkpoint.path).iterdir():
            (kept / path.name).write_text(path.read_text() + " by upload")
        return Checkpoint.from_directory(kept)

    report(1, checkpoint_upload_fn=upload, checkpoint_dir_name="uploaded")
    seen["after upload"] = contents(ray.train.get_checkpoint())


def leave():
    ray.train.report({"number": 0})
    if RANK == 1 and MODE == "dies":
        os._exit(0)
    if RANK == 1:
        import raytrain_debug

        raytrain_debug.breakpoint()
        return
    ray.train.report({"number": 1})  # where rank 0 waits


def run(function, name):
    return TorchTrainer(
        function,
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(
            name=name,
            callbacks=[Listener()],
            checkpoint_config=CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="score"),
        ),
    ).fit()


if MODE == "all":
    result = run(train, "first")
    end = {**seen, "result": contents(result.checkpoint), "metrics": result.metrics, "said": list(said)}
    said.clear()
    if "again" in sys.argv:
        run(lambda: report(7), "second")
    Path(f"seen-{RANK}.json").write_text(json.dumps({**end, "said by the second": said}))
else:
    run(leave, "leaving")
