"""Which ports the gateway of this node has: of the ranks that torchrun gives it, anew at each attempt.

On one node the ranks are known before anything starts, and a taken port is an error then. On several they are known
when the rendezvous is over: the job is about to run by then, and a taken port only moves that rank to another one.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from raytrain_debug.errors import PortTaken
from raytrain_debug.launcher import ports
from raytrain_debug.launcher.gateway import Gateway
from raytrain_debug.launcher.host import Host

_HANDOVER = 1.0  # seconds in which a launcher beside us lets go of the ports of ranks that have moved from it to us


class NodePorts:
    """`base_port` None picks free ones. For the main thread."""

    def __init__(
        self, host: Host, gateway: Gateway, address: str, base_port: int | None, say: Callable[[str], None]
    ) -> None:
        self._host = host
        self._gateway = gateway
        self._address = address
        self._base_port = base_port
        self._say = say
        self._open: dict[int, int] = {}

    def open(self, bound: ports.Bound) -> None:
        """Accept debuggers on these sockets, and record their ports."""
        self._host.open_gateway(self._gateway, bound)
        self._host.run(self._gateway.job.write_ports)
        self._open |= {rank: sockets[0].getsockname()[1] for rank, sockets in bound.items()}

    def follow(self, ranks: list[int]) -> bool:
        """Have ports for exactly these ranks; True when there are new ones. Raises nothing for a port that is taken."""
        gone, new = set(self._open) - set(ranks), [rank for rank in ranks if rank not in self._open]
        if gone:
            self._host.run(lambda: self._gateway.leave(gone))
            for rank in gone:
                del self._open[rank]
        if new:
            self.open(self._bind(new))
        return bool(new)

    def __str__(self) -> str:
        """`127.0.0.1:5678-5681`, or all the numbers when they are not in a row."""
        numbers = sorted(self._open.values())
        if numbers[-1] - numbers[0] == len(numbers) - 1 and len(numbers) > 1:
            return f"{self._address}:{numbers[0]}-{numbers[-1]}"
        return f"{self._address}:{','.join(map(str, numbers))}"

    def _bind(self, ranks: list[int]) -> ports.Bound:
        if self._base_port is None:
            return ports.bind_free_ports(self._address, ranks)[1]
        deadline = time.monotonic() + _HANDOVER
        while True:
            try:
                return ports.bind_ports(self._address, self._base_port, ranks)
            except PortTaken as taken:
                if time.monotonic() < deadline:
                    time.sleep(0.1)
                    continue
                self._say(f"{taken}: the ranks of this node are debugged on other ports; `status` shows them")
                return ports.bind_free_ports(self._address, ranks)[1]
