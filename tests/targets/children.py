"""A rank that makes children in every usual way; each says what it has of the rank that made it."""

import builtins
import json
import os
import subprocess
import sys

import torch
import torch.multiprocessing as multiprocessing
from torch.utils.data import DataLoader, Dataset

import raytrain_debug


def findings():
    """What a child must not have: the rank's identity, its settings, its sockets."""
    shim = sys.modules.get("raytrain_debug.shim.rank")
    sockets = []
    for name in os.listdir("/proc/self/fd"):
        try:
            sockets.append(os.readlink(f"/proc/self/fd/{name}").startswith("socket:"))
        except OSError:
            continue
    return {
        "is a rank": bool(shim and shim.current()),
        "has __rank__": hasattr(builtins, "__rank__"),
        "has settings": "RAYTRAIN_DEBUG_SHIM" in os.environ,
        "sockets": sum(sockets),
    }


def check(who, found):
    # multiprocessing gives a worker sockets of its own for tensors; it must only not have more than that.
    wrong = {key: value for key, value in found.items() if value and key != "sockets"}
    print(f"rank {rank} {who}: {'wrong ' + json.dumps(wrong) if wrong else 'fine'}", flush=True)


class Data(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        raytrain_debug.breakpoint()  # nobody can attach to a child: this must not wait
        subprocess.run(["true"], preexec_fn=os.setsid, check=True)  # forks with the hooks of forks
        return torch.tensor([float(findings()["is a rank"]), float(findings()["has settings"])])


def spawned(index, queue):
    raytrain_debug.breakpoint()
    queue.put(findings())


def told_by(child, read, write):
    """The findings that a child writes into a pipe."""
    os.close(write)
    with open(read, "rb") as pipe:
        found = json.loads(pipe.read())
    os.waitpid(child, 0)
    return found


def forked():
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        breakpoint()
        raytrain_debug.breakpoint()
        os.write(write, json.dumps(findings()).encode())
        os._exit(0)
    return told_by(pid, read, write)


def forked_twice():
    """What a daemon does: the child closes all files, opens its own, and forks again."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(write, 3)
        os.closerange(4, 256)
        for _ in range(4, 32):
            os.set_inheritable(os.open("daemon.log", os.O_WRONLY | os.O_CREAT, 0o600), True)
        if os.fork() == 0:
            mine = os.stat("daemon.log")
            kept = all(os.path.samestat(os.fstat(number), mine) for number in range(4, 32))
            found = {"is a rank": findings()["is a rank"], "has lost files": not kept}
            os.write(3, json.dumps(found).encode())
        os._exit(0)
    return told_by(pid, read, write)


def main():
    found = forked()
    check("fork", found)
    check("fork of a fork", forked_twice())
    print(f"rank {rank} fork has {found['sockets']} sockets", flush=True)
    for method in ("fork", "spawn"):
        for persistent in (False, True):
            loader = DataLoader(
                Data(), num_workers=1, multiprocessing_context=method, persistent_workers=persistent, batch_size=2
            )
            seen = torch.cat([batch for _ in range(2) for batch in loader])
            check(f"DataLoader {method}{' persistent' if persistent else ''}", {"is a rank": float(seen.sum())})
            del loader
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    multiprocessing.spawn(spawned, (queue,), nprocs=1)
    check("torch.multiprocessing", queue.get())
    code = "import os, builtins; print('RAYTRAIN_DEBUG_SHIM' in os.environ, len(os.listdir('/proc/self/fd')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, close_fds=False)
    print(f"rank {rank} subprocess: {done.stdout.strip()}", flush=True)
    print(f"rank {rank} done", flush=True)


rank = os.environ.get("RANK", "0")
if __name__ == "__main__":
    main()
