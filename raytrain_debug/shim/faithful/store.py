"""The key-value store through which the ranks of one `fit()` meet: torchrun's own, or this process's memory.

Ray Train passes metrics and broadcast data in pickles, so we have to as well. Each value is therefore signed with the
run's secret, and nothing is taken that is not.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import os
import threading
from collections.abc import Mapping
from typing import Any, Protocol

from raytrain_debug.errors import ForgedValue

_SIGNATURE = hashlib.sha256().digest_size
_PIECE = 4 << 20  # bytes: a TCPStore takes 8 MiB at once


class Store(Protocol):
    """What we need of torch.distributed.Store."""

    def set(self, key: str, value: Any) -> None: ...

    def get(self, key: str) -> bytes: ...

    def add(self, key: str, amount: int) -> int: ...

    def check(self, keys: list[str]) -> bool: ...

    def delete_key(self, key: str) -> bool: ...


class MemoryStore:
    """A store within this process."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()

    def set(self, key: str, value: Any) -> None:
        self._values[key] = value

    def get(self, key: str) -> bytes:
        return self._values[key]

    def add(self, key: str, amount: int) -> int:
        with self._lock:
            self._counts[key] = self._counts.get(key, 0) + amount
            return self._counts[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self._values for key in keys)

    def delete_key(self, key: str) -> bool:
        known = self._values.pop(key, None) is not None
        return self._counts.pop(key, None) is not None or known


def connect(prefix: str, environ: Mapping[str, str] = os.environ) -> Store:
    """The store that torchrun has its ranks meet in, below `prefix`. A connection of its own: waits block no other."""
    import datetime

    from torch.distributed import PrefixStore, TCPStore

    host, port = environ["MASTER_ADDR"], int(environ["MASTER_PORT"])
    store: Store = PrefixStore(
        prefix, TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=datetime.timedelta(minutes=5))
    )
    return store


class SignedStore:
    """Values of any size in a `store`. `name` is signed along with each, so that none counts in another place."""

    def __init__(self, store: Store, name: str, secret: str) -> None:
        self._store = store
        self._name = name
        self._secret = secret.encode()

    def count(self, key: str, more: int = 0) -> int:
        """The counter of that name, after adding `more`."""
        return self._store.add(key, more)

    def delete_count(self, key: str) -> None:
        self._store.delete_key(key)

    def put(self, key: str, value: bytes) -> None:
        signed = self._sign(key, value) + value
        pieces = [signed[at : at + _PIECE] for at in range(0, len(signed), _PIECE)]
        for number, piece in reversed([*enumerate(pieces)]):  # whoever sees the first finds them all
            self._store.set(f"{key}/{number}", (len(pieces).to_bytes(4, "big") if number == 0 else b"") + piece)

    def has(self, key: str) -> bool:
        return self._store.check([f"{key}/0"])

    def take(self, key: str) -> bytes:
        """The value of `key`, which is there. Raises ForgedValue."""
        first = bytes(self._store.get(f"{key}/0"))
        others = [bytes(self._store.get(f"{key}/{at}")) for at in range(1, int.from_bytes(first[:4], "big"))]
        signed = b"".join([first[4:], *others])
        signature, value = signed[:_SIGNATURE], signed[_SIGNATURE:]
        if not hmac.compare_digest(signature, self._sign(key, value)):
            raise ForgedValue(
                f"{key} in the store of torchrun's rendezvous does not come from a rank of this job: somebody else "
                "reaches that port, or its nodes were given different tokens (--token)"
            )
        return value

    def delete(self, key: str) -> None:
        pieces = itertools.count()
        while self._store.delete_key(f"{key}/{next(pieces)}"):
            pass

    def _sign(self, key: str, value: bytes) -> bytes:
        return hmac.digest(self._secret, f"{self._name}/{key} ".encode() + value, hashlib.sha256)
