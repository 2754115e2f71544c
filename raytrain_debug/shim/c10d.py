"""What this rank waits for in torch.distributed, and how to make it give up; process groups are made without a limit.

Collectives under way are read from torch's flight recorder, which is on by default (`TORCH_FR_BUFFER_SIZE=0` switches
it off, and then nothing here does anything). It records none of gloo's point-to-point operations, nor the making of a
group: those calls are marked while they block.

Names that we touch, torch 2.13. In torch.distributed.distributed_c10d: _new_process_group_helper, _store_based_barrier
and _set_pg_timeout, which torch itself looks up there at each call. In torch._C._distributed_c10d:
ProcessGroup.monitored_barrier and split_group; ProcessGroup.send,
recv and recv_anysource, at whose first use Work.wait is wrapped too.
"""

from __future__ import annotations

import datetime
import functools
import inspect
import os
import socket
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from raytrain_debug.shim import flight_recorder

UNLIMITED = datetime.timedelta(days=3650)

Sockets = set[tuple[int, str]]


@dataclass(eq=False, frozen=True)
class Call:
    """Something that waits for other ranks: `limit` in seconds; `fail` makes it raise where it waits, or abort."""

    what: str
    limit: float
    fail: Callable[[], None]


class ProcessGroups:
    """The process groups of this process: the user's limits for them, and what waits in them.

    torch's functions run in the user's threads and only add to these tables; the rest is the control thread's.
    """

    def __init__(self, protect: Callable[[str], Any], on_first_limit: Callable[[], None]) -> None:
        """`protect(place)` guards our own faults; `on_first_limit` is called once there is something to watch."""
        self._protect = protect
        self._on_first_limit = on_first_limit
        self._limits: dict[str, float] = {}  # seconds, by the group's name
        self._sockets: dict[str, Sockets] = {}  # the connections of each group
        self._stores: dict[int, tuple[Any, datetime.timedelta]] = {}  # with the limit the user gave it
        self._calls: set[Call] = set()
        self._stores_limited = True
        self._watches_waits = False
        self._group_of: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()  # of point-to-point work

    def patch(self, module: Any) -> None:
        """Wrap what is named above; `module` is torch.distributed.distributed_c10d."""
        with self._protect("process-group timeouts"):
            if not _can_see():
                return
            for name, wrap in (
                ("_new_process_group_helper", self._making),
                ("_store_based_barrier", self._barring),
                ("_set_pg_timeout", self._changing),
            ):
                setattr(module, name, wrap(getattr(module, name)))
            self._groups_in_c(module.ProcessGroup)

    # The control thread's questions.

    @property
    def shortest_limit(self) -> float:
        """Seconds."""
        return min(self._limits.values())

    def under_way(self) -> dict[Any, Any]:
        """Everything that waits: a flight recorder's group id, or a Call, and a mark that changes when it has moved."""
        groups = {
            group: status["last_completed_collective"]
            for group, status in flight_recorder.dump().get("pg_status", {}).items()
            if status["last_enqueued_collective"] != status["last_completed_collective"]
        }
        return {**groups, **{call: 0 for call in self._calls}}

    def oldest_call(self, group_id: str) -> Call:
        """What the group of the flight recorder's `group_id` has waited for the longest."""
        name, backend, what = "", "gloo", "a collective"
        for entry in flight_recorder.dump(collectives=True).get("entries", []):
            if str(entry.get("pg_id")) == group_id and not entry.get("retired"):
                name = str(entry["process_group"][0])
                backend, _, what = str(entry["profiling_name"]).rpartition(":")
                break
        fail = os.abort if "nccl" in backend else lambda: _shut_down(self._sockets_of(name))
        return Call(what, self._limit_of(name), fail)

    def limit_stores(self, on: bool) -> None:
        """Let waits for keys of the groups' stores, as NCCL's first collective does, have the user's limit or none."""
        self._stores_limited = on
        for store, limit in list(self._stores.values()):
            store.set_timeout(limit if on else UNLIMITED)

    def _limit_of(self, group: str) -> float:
        return self._limits.get(group) or max(self._limits.values())

    def _sockets_of(self, group: str) -> Sockets:
        return self._sockets.get(group) or set().union(*self._sockets.values())

    # Wrappers, in the user's threads.

    def _making(self, function: Any) -> Any:
        parameters = _Parameters(function)

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            limit, store = None, None
            with self._protect("process-group timeouts"):
                store = _tcp_store(parameters.get(args, kwargs, "store"))
                limit = _limit(parameters.get(args, kwargs, "timeout")) if store is not None else None
            if limit is None:
                return function(*args, **kwargs)
            group = str(parameters.get(args, kwargs, "group_name"))
            args, kwargs = parameters.put(args, kwargs, "timeout", UNLIMITED)
            before = _open_sockets()
            self._stores.setdefault(id(store), (store, store.timeout))
            store.set_timeout(UNLIMITED)
            self._set_limit(group, limit)
            call = Call(
                "making a process group", limit, lambda: _shut_down((_open_sockets() - before) | _connections(store))
            )
            self._calls.add(call)
            try:
                return function(*args, **kwargs)
            finally:
                self._calls.discard(call)
                self._sockets[group] = _open_sockets() - before
                store.set_timeout(self._stores[id(store)][1] if self._stores_limited else UNLIMITED)

        return wrapper

    def _barring(self, function: Any) -> Any:
        parameters = _Parameters(function)

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            store = _tcp_store(parameters.get(args, kwargs, "store"))
            limit = _limit(parameters.get(args, kwargs, "timeout"))
            if store is None or limit is None:
                return function(*args, **kwargs)
            args, kwargs = parameters.put(args, kwargs, "timeout", UNLIMITED)
            return self._watched(
                Call("making a process group", limit, lambda: _shut_down(_connections(store))), function, args, kwargs
            )

        return wrapper

    def _changing(self, function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(timeout: datetime.timedelta, group: Any = None) -> Any:
            limit = _limit(timeout)
            if limit is None:
                return function(timeout, group)
            function(UNLIMITED, group)  # which checks the group, too
            self._set_limit(getattr(group, "group_name", "0"), limit)
            return None

        return wrapper

    def _groups_in_c(self, kind: Any) -> None:
        monitored_barrier, split_group = kind.monitored_barrier, kind.split_group
        barrier_parameters = _Parameters(names=("self", "timeout"))

        @functools.wraps(monitored_barrier)
        def wrapped_barrier(*args: Any, **kwargs: Any) -> Any:
            limit = _limit(barrier_parameters.get(args, kwargs, "timeout"))
            if limit is None:
                return monitored_barrier(*args, **kwargs)
            args, kwargs = barrier_parameters.put(args, kwargs, "timeout", UNLIMITED)
            call = Call("monitored_barrier", limit, lambda: _shut_down(self._sockets_of(args[0].group_name)))
            return self._watched(call, monitored_barrier, args, kwargs)

        @functools.wraps(split_group)
        def wrapped_split(group: Any, *args: Any, **kwargs: Any) -> Any:
            limit = _limit(kwargs.get("timeout"))
            if limit is not None and kwargs.get("group_name"):
                kwargs["timeout"] = UNLIMITED
                self._set_limit(str(kwargs["group_name"]), limit)
            return split_group(group, *args, **kwargs)

        kind.monitored_barrier, kind.split_group = wrapped_barrier, wrapped_split
        for name in ("send", "recv", "recv_anysource"):
            setattr(kind, name, self._point_to_point(getattr(kind, name)))

    def _point_to_point(self, function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(group: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._watches_waits:
                self._watches_waits = True
                self._watch_waits()
            work = function(group, *args, **kwargs)
            self._group_of[work] = group.group_name
            return work

        return wrapper

    def _watch_waits(self) -> None:
        kind: Any = sys.modules["torch._C._distributed_c10d"].Work
        original = kind.wait

        @functools.wraps(original)
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            group = self._group_of.get(work)
            if group not in self._limits or args or kwargs:
                return original(work, *args, **kwargs)
            call = Call("a point-to-point operation", self._limits[group], lambda: _shut_down(self._sockets_of(group)))
            return self._watched(call, original, (work,), {})

        kind.wait = wait

    def _watched(self, call: Call, function: Any, args: Any, kwargs: Any) -> Any:
        self._calls.add(call)
        try:
            return function(*args, **kwargs)
        finally:
            self._calls.discard(call)

    def _set_limit(self, group: str, limit: float) -> None:
        first = not self._limits
        self._limits[group] = limit
        if first:
            self._on_first_limit()


class _Parameters:
    """Reads and replaces an argument by its name, however it was passed."""

    def __init__(self, function: Any = None, names: tuple[str, ...] = ()) -> None:
        self._names = names or tuple(inspect.signature(function).parameters)

    def get(self, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> Any:
        at = self._names.index(name)
        return args[at] if at < len(args) else kwargs.get(name)

    def put(self, args: tuple[Any, ...], kwargs: dict[str, Any], name: str, value: Any) -> Any:
        at = self._names.index(name)
        if at < len(args):
            return (*args[:at], value, *args[at + 1 :]), kwargs
        return args, {**kwargs, name: value}


def _can_see() -> bool:
    size = os.environ.get("TORCH_FR_BUFFER_SIZE") or os.environ.get("TORCH_NCCL_TRACE_BUFFER_SIZE") or "1"
    # Connections that are made later than their group cannot be told from the user's own.
    lazy = os.environ.get("TORCH_GLOO_LAZY_INIT", "0").lower() in ("1", "y", "yes", "true", "on")
    return size != "0" and not lazy and bool(flight_recorder.dump())


def _limit(timeout: Any) -> float | None:
    """Seconds of a limit that the user set; None for none."""
    limited = isinstance(timeout, datetime.timedelta) and datetime.timedelta(0) < timeout < UNLIMITED
    return timeout.total_seconds() if limited else None


def _tcp_store(store: Any) -> Any:
    """The TCPStore behind a group's store; None for another kind, out of whose waits we know no way."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return store if type(store).__name__ == "TCPStore" else None


def _open_sockets() -> Sockets:
    """Descriptors of this process's sockets with their inode, which tells a reused number from the same socket."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith("socket:"):
            found.add((int(name), target))
    return found


def _connections(store: Any) -> Sockets:
    """Our connections to the server of a TCPStore."""
    return {each for each in _open_sockets() if _peer_port(each[0]) == store.port}


def _peer_port(descriptor: int) -> int | None:
    try:
        with socket.socket(fileno=os.dup(descriptor)) as each:
            return int(each.getpeername()[1]) if each.family in (socket.AF_INET, socket.AF_INET6) else None
    except OSError:
        return None


def _shut_down(sockets: Sockets) -> None:
    """Close connections both ways: whoever waits on them gets an error."""
    for descriptor, _ in sockets & _open_sockets():
        if _peer_port(descriptor) is None:
            continue
        try:
            with socket.socket(fileno=os.dup(descriptor)) as each:
                each.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue
