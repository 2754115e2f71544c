"""One rank raises, and all of them fail. The bug is planted; docs/bugs.md finds it.

python -m raytrain_debug launch --nproc-per-node 3 examples/bugs/one_rank_raises.py
"""

import torch
import torch.distributed as dist

WORDS = ["a", "and", "on", "rank", "the", "train"]
TEXTS = {0: "the train on a rank", 1: "a rank and the train", 2: "the Rank on a train"}


def number(word):
    return WORDS.index(word)


def encode(text):
    return torch.tensor(list(map(number, text.split())))


def train(rank):
    embedding = torch.nn.Embedding(len(WORDS), 4)
    for step in range(100):
        text = TEXTS[(rank + step // 30) % 3]
        loss = embedding(encode(text)).square().mean()
        dist.all_reduce(loss)
        if rank == 0 and step % 10 == 0:
            print(f"step {step}: loss {loss.item() / dist.get_world_size():.3f}", flush=True)


torch.manual_seed(0)
dist.init_process_group("gloo")
train(dist.get_rank())
dist.destroy_process_group()
