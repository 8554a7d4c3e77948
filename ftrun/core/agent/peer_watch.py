"""Which hosts do not acknowledge any more, judged by all connections of a node. Pure.

The kernel of a machine with power and a network acknowledges packets, whatever its processes do. So
a host counts as silent if something is retransmitted to it, and no connection to it has received
anything for ``SILENT_S``: congestion or a lost packet does not silence all of them for that long.

Not here: how connections are read (agent/peers.py), the consequences (core/lighthouse/reach.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

SILENT_S = 0.3
HOSTS_MAX = 256
LOOK_S = 0.2
LOOK_AGAIN_S = 0.05
"""How often to check while something is retransmitted."""


@dataclass(frozen=True, slots=True)
class Connection:
    """An open connection to ``host``.

    ``is_repeating``: its data was retransmitted. ``silent_s``: the time since anything was
    received.
    """

    host: str
    is_repeating: bool
    silent_s: float


class PeerWatch:
    """Judges the hosts by their connections.

    ``silent``: the hosts that do not acknowledge now; ``look_s``: the time until the next check.
    """

    def __init__(self) -> None:
        self.silent: tuple[str, ...] = ()
        self.look_s = LOOK_S

    def looked(self, connections: Iterable[Connection]) -> bool:
        """Judge all connections of this node. Returns whether ``silent`` has changed."""
        heard: dict[str, float] = {}
        repeating = set()
        for connection in connections:
            host = connection.host
            heard[host] = min(connection.silent_s, heard.get(host, connection.silent_s))
            if connection.is_repeating:
                repeating.add(host)
        former = self.silent
        found = sorted(host for host in repeating if heard[host] >= SILENT_S)
        self.silent = tuple(found[:HOSTS_MAX])
        self.look_s = LOOK_AGAIN_S if repeating else LOOK_S
        return self.silent != former
