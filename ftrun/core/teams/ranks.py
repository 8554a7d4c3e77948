"""Which node of a group runs which worker, and the lead's knowledge of workers on other nodes.

Not here: which nodes the group has (gathering.py), the consequences of a worker's end
(core/agent/).
"""

from __future__ import annotations

from dataclasses import replace

from ftrun.core.ids import WorkerKey
from ftrun.core.messages import FailureEvidence, HandPlace, RankEnded, StartRanks
from ftrun.core.teams.nodes import Node

Team = tuple[Node, ...]


def first_rank(team: Team, number: int) -> int:
    """The group rank of the first worker of node ``number``."""
    return sum(node.workers for node in team[:number])


def ranks_of(team: Team, number: int) -> range:
    """The group ranks of the workers of node ``number``."""
    first = first_rank(team, number)
    return range(first, first + team[number].workers)


def places(team: Team, lead: Node, job_id: str) -> dict[str, HandPlace]:
    """By id of each node but the lead, the message with its place."""
    world = first_rank(team, len(team))
    return {
        node.node_id: HandPlace(
            job_id, number, len(team), first_rank(team, number), world, lead.host
        )
        for number, node in enumerate(team)
        if node is not lead
    }


class Ranks:
    """The workers on other nodes than the lead's, from their start to their end."""

    def __init__(self) -> None:
        self._nodes: dict[WorkerKey, str] = {}
        self._names: dict[tuple[str, int, int], str] = {}
        self._outputs: dict[WorkerKey, str] = {}

    def start(self, order: StartRanks, team: Team, lead: Node) -> list[str]:
        """An incarnation starts. Returns the nodes to start it on."""
        self._outputs.clear()
        elsewhere = [(number, node) for number, node in enumerate(team) if node is not lead]
        for number, node in elsewhere:
            for rank in ranks_of(team, number):
                key = WorkerKey(order.replica_id, order.incarnation, rank)
                self._nodes[key] = node.node_id
                self._names[order.replica_id, order.restarts, rank] = node.name
        return [node.node_id for _, node in elsewhere]

    def restart(self, key: WorkerKey, restarts: int, team: Team) -> str:
        """One worker is started again. Returns the id of the node that has its place now."""
        numbers = range(len(team))
        node = next(team[number] for number in numbers if key.group_rank in ranks_of(team, number))
        self._nodes[key] = node.node_id
        self._names[key.replica_id, restarts, key.group_rank] = node.name
        return node.node_id

    def clear(self) -> None:
        """Another agent leads: no worker of the last one runs."""
        self._nodes.clear()
        self._names.clear()

    def all(self) -> list[WorkerKey]:
        """The workers whose end is not known yet."""
        return list(self._nodes)

    def node_of(self, key: WorkerKey) -> str:
        """The id of the node that runs it; "": none does."""
        return self._nodes.get(key, "")

    def name_of(self, replica_id: str, restarts: int, group_rank: int) -> str:
        """The name of the node that has run this worker; "": the lead's node has."""
        return self._names.get((replica_id, restarts, group_rank), "")

    def of_node(self, node_id: str) -> list[WorkerKey]:
        """The workers of one node."""
        return [key for key, node in self._nodes.items() if node == node_id]

    def reported(self, node_id: str, ended: RankEnded) -> WorkerKey | None:
        """The worker of this node that has ended or is about to; None: it is not known any more."""
        wanted = (ended.incarnation, ended.group_rank)
        found = (k for k in self.of_node(node_id) if (k.incarnation, k.group_rank) == wanted)
        key = next(found, None)
        if key is not None and ended.output:
            self._outputs[key] = ended.output
        return key

    def end(self, key: WorkerKey) -> None:
        """A worker's end is known. Its last lines are kept until the group starts again."""
        del self._nodes[key]

    def with_output(self, evidence: FailureEvidence) -> FailureEvidence:
        """The evidence with the last lines of workers of other nodes, and the nodes' names."""
        name, workers = evidence.replica_id, []
        for worker in evidence.workers:
            node = self.name_of(name, evidence.restarts, worker.group_rank)
            key = WorkerKey(name, evidence.incarnation, worker.group_rank)
            where = f", on {node}" if node and node not in worker.cause else ""
            output = worker.output or self._outputs.get(key, "")
            workers.append(replace(worker, output=output, cause=worker.cause + where))
        return replace(evidence, workers=tuple(workers))
