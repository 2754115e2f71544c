"""Two Ray nodes of one CPU each on this machine, until stdin ends. `ray_cluster.py HIDDEN...`; prints their address.

The second node sees nothing of the directories HIDDEN, as on a machine of its own: needs root; without, it sees all.
"""

import ctypes
import json
import os
import sys
from pathlib import Path

from ray.cluster_utils import Cluster

_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x00020000, 0x4000, 1 << 18
_NODE = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80_000_000}


def hide(directories: list[str]) -> bool:
    """Give this process, and those it starts from now on, empty directories in their place."""
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() != 0 or libc.unshare(_CLONE_NEWNS) != 0:
        return False
    assert libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None) == 0
    return all(libc.mount(b"none", each.encode(), b"tmpfs", 0, b"mode=0700") == 0 for each in directories)


cluster = Cluster(initialize_head=True, head_node_args=_NODE)
hidden = hide(sys.argv[1:])
# Drivers are to connect to the first node, so the second has another address; Ray 2.51 takes that for the machine's.
cluster.add_node(**_NODE, node_ip_address="127.0.0.2")
for note in Path(cluster.head_node.get_session_dir_path()).glob("node_ip_address.json"):
    note.write_text(json.dumps({"node_ip_address": cluster.head_node.node_ip_address}))
print(cluster.address, "apart" if hidden else "together", flush=True)
sys.stdin.read()
cluster.shutdown()
