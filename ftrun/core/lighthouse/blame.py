"""Which replica or node causes failed attempts: one that reports errors, or one out of reach.

A worker that cannot reach a host names it. One such report accuses two nodes: the reporting one and
the named one. The next attempt therefore meets at the store of the node that was named least, so
that the attempts try the paths between several pairs of nodes. The node with most failed paths is
to blame; of equals, the one that others did not reach. A healthy node fails on one path, to the
broken node, and the broken node fails on its paths to all.

Not here: when a replica is replaced (forming.py), and when a node is set aside (set_aside.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ftrun.core.ids import replica_order
from ftrun.core.lighthouse.replicas import Replica


class Blame:
    """Counts failures until training makes progress, or the replica to blame is replaced.

    ``errors``: by replica. ``ways``: failed paths, from agent to agent.
    """

    def __init__(self) -> None:
        self.errors: Counter[str] = Counter()
        self.ways: Counter[tuple[str, str]] = Counter()

    def failed(self, replica_ids: Iterable[str]) -> None:
        """Count an error of each of these replicas: it has reported one, or is silent."""
        self.errors.update(replica_ids)

    def unreached(self, reporter: Replica, host: str, live: Iterable[Replica]) -> None:
        """Count the failed path from ``reporter`` to ``host``.

        If no other node has that host, count an error of the reporter.
        """
        named = sorted({r.agent_id for r in live if _is_at(r, host)} - {reporter.agent_id})
        if not named:
            self.failed([reporter.replica_id])
        for agent_id in named:
            self.ways[reporter.agent_id, agent_id] += 1

    def meets_at(self, candidates: Sequence[Replica]) -> Replica:
        """The replica at whose store the next attempt meets: the first one, if no path has
        failed.
        """
        return min(candidates, key=lambda replica: self._named(replica.agent_id))

    def worst(self, live: Iterable[Replica]) -> str:
        """The replica to replace; of equals the one with the highest id."""

        def rank(replica: Replica) -> tuple[int, int, object]:
            name, agent_id = replica.replica_id, replica.agent_id
            ways = sum(count for way, count in self.ways.items() if agent_id in way)
            return self.errors[name] + ways, self._named(agent_id), replica_order(name)

        return max(live, key=rank).replica_id

    def words(self, replica: Replica) -> str:
        """The reason why this replica is the worst."""
        named = self._named(replica.agent_id)
        if named <= self.errors[replica.replica_id]:
            return "it failed most often"
        return f"its node could not be reached {named} times (--interface states another address)"

    def _named(self, agent_id: str) -> int:
        return sum(count for (_, named), count in self.ways.items() if named == agent_id)


def _is_at(replica: Replica, host: str) -> bool:
    return any(report.endpoint.host == host for report in replica.reports.values())
