"""Requests members' operations, like training/comparing.py.

Each member is asked until it answers or the answer is no longer needed. A paused process answers
when it continues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftrun.core.worker import events as e

if TYPE_CHECKING:
    from tests.sim.worker import Worker

FIRST_PAUSE_S = 0.005
LONGEST_PAUSE_S = 0.1


def ask(worker: Worker, instruction: e.Ask) -> None:
    """Ask the members; an OperationAnswered follows for each."""
    rank = worker.key.group_rank
    for member in instruction.question.members:
        other = worker.world.endpoints[member.endpoints[rank].heal]
        _Asking(worker, instruction, member.replica_id, other).send(FIRST_PAUSE_S)


class _Asking:
    """Ask one member."""

    def __init__(self, worker: Worker, order: e.Ask, replica_id: str, other: Worker) -> None:
        self._worker = worker
        self._order = order
        self._replica_id = replica_id
        self._other = other

    def send(self, pause_s: float) -> None:
        """Ask the member, and again after ``pause_s`` if it does not know yet."""
        worker, world = self._worker, self._worker.world
        if not worker.machine.counts(self._order.question.tag.attempt):
            return
        world.at(world.rng.uniform(0.0002, 0.003), self._other, self._answer, pause_s)

    def _answer(self, pause_s: float) -> None:
        worker, order, world = self._worker, self._order, self._worker.world
        own, its = worker.agent.host, self._other.agent.host
        is_heard = own is its or max(own.deaf_until, its.mute_until) <= world.now
        entry = self._other.machine.look_up(order.question) if is_heard else None
        if entry is None or not worker.machine.takes(entry):
            world.at(pause_s, worker, self.send, min(2 * pause_s, LONGEST_PAUSE_S))
            return
        told = e.OperationAnswered(order.question, self._replica_id, entry)
        world.at(world.rng.uniform(0.0002, 0.003), worker, worker.feed, told)
