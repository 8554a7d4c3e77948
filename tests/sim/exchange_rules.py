"""E1 and E2 in every simulated job that exchanges.

The oracle is simple: all workers that commit to a state have exchanged the same values. The
exchanges of a worker while a quorum had left it out do not count: it is then no survivor, although
it may come back with the same state.
"""

from __future__ import annotations

from collections.abc import Mapping

from ftrun.core.ids import Attempt, StateId, WorkerKey
from ftrun.core.quorum import Quorum
from ftrun.core.worker.exchange import ExchangeName, Judgement
from tests.sim.violation import require

Result = tuple[bytes, ...]


class ExchangeRules:
    """The exchanged values, by the state that their holders have committed to."""

    def __init__(self) -> None:
        self._known: dict[tuple[StateId, ExchangeName], tuple[WorkerKey, Result]] = {}
        self._quorums: dict[Attempt, Quorum] = {}
        self.compared = 0

    def in_force(self, key: WorkerKey, before: Attempt | None, quorum: Quorum) -> bool:
        """A worker uses ``quorum``. False: a quorum since ``before``, its last one, has left the
        worker out."""
        self._quorums[quorum.attempt] = quorum
        if before is None:
            return True
        return not any(
            before < attempt < quorum.attempt
            and between.index(key.replica_id, key.incarnation) is None
            for attempt, between in self._quorums.items()
        )

    def judged(self, key: WorkerKey, name: ExchangeName, judgement: Judgement) -> None:
        """A worker has exchanged: all members were at the same place of the script (E2, Z1)."""
        require(not judgement.unlike, "E2", f"{key} at {name}: {judgement.unlike}")
        require(bool(judgement.alike), "E2", f"{key} at {name}: nobody has given anything")

    def committed(
        self, key: WorkerKey, after: StateId, results: Mapping[ExchangeName, Result]
    ) -> None:
        """A worker has committed to ``after``, and has exchanged ``results`` on the way (E1)."""
        for name, result in results.items():
            other, known = self._known.setdefault((after, name), (key, result))
            text = f"{key} has exchanged {result} at {name}, and {other} {known}"
            require(known == result, "E1", text)
            if other != key:
                self.compared += 1
