"""Scripts with an operation that no attempt can carry out (C8).

Its tensor or its kind is refused: before it is issued, or by the group. The group may know that all
its connections are up, or not. The refusal is drawn from the seed, apart from the job. Not here:
how a group refuses (rings.py), the script that issues it (script.py).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftrun.core import messages as m
from ftrun.core.ids import Attempt, Tag, WorkerKey
from tests.sim.actor import SETTINGS
from tests.sim.violation import require

if TYPE_CHECKING:
    from tests.sim.worker import Worker

REFUSALS = "refusals"
"""In ``focus``: the script has such operations; if given alone, there is no other fault."""
REFUSING_FROM, REFUSING_TO = 300_000_000, 310_000_000
"""The scripts of seeds between these may have such operations, beside all other faults."""
OFTEN = SETTINGS.attempts_max + 4
"""Attempts of one step in a row: more than may fail by a member's fault."""


@dataclass(frozen=True, slots=True)
class Refusals:
    """The operation that is refused at ``step``, in its first ``tries`` attempts.

    ``replica_id``: at one slot only; "": at all. ``how``: "unissued", "known" or "unknown" to the
    group.
    """

    step: int = -1
    tries: int = 0
    operation: int = 0
    replica_id: str = ""
    how: str = "known"

    @staticmethod
    def draw(seed: int, replicas: int, operations: int) -> Refusals:
        """Draw one operation of one step."""
        rng = random.Random(f"{seed}/refusals")
        return Refusals(
            rng.randrange(5),
            rng.choice((1, 2, OFTEN)),
            rng.randrange(operations),
            rng.choice(("", "", str(rng.randrange(replicas)))),
            rng.choice(("unissued", "known", "unknown")),
        )

    def of(self, replica_id: str, step: int, tries: int, operation: int) -> str:
        """How this operation is refused; "": it is not. ``tries``: attempts of this step before
        this one."""
        is_at = replica_id in (self.replica_id, self.replica_id or replica_id)
        is_it = (step, operation) == (self.step, self.operation) and is_at
        return self.how if is_it and tries < self.tries else ""


def refuses(seed: int) -> bool:
    """Whether an operation of this seed's scripts is refused."""
    return REFUSING_FROM <= seed < REFUSING_TO


class RefusalRules:
    """C8: no worker commits or repairs a step with a refused operation, and no worker is lost.

    Replicas of one worker try a step equally often if its first operation is refused. (A replica
    that has the results of all operations it has issued until then regards the step as complete,
    and may try once more.) ``is_well``: there are only refusals in this world.
    """

    def __init__(self, *, is_well: bool) -> None:
        self._is_well = is_well
        self._by: dict[tuple[Attempt, int], Worker] = {}
        self._tries: dict[int, int] = {}

    def refused(self, worker: Worker, attempt: Attempt, step: int) -> None:
        """An operation of ``step`` under ``attempt`` is at fault, and its worker knows that."""
        self._by[attempt, step] = worker

    def commits(self, worker: Worker, tag: Tag, tries: int | None) -> None:
        """A worker commits its step; ``tries``: attempts of this step before this one; None: it
        healed."""
        world = worker.world
        is_like = self._is_well and world.job.workers == 1 and world.refusals.operation == 0
        is_like = is_like and world.lateness.is_like(repairs=world.job.repair)
        if is_like and tries is not None:
            known = self._tries.setdefault(tag.step, tries)
            text = f"{worker.key} commits {tag} after {tries} tries, and another after {known}"
            require(tries == known, "C8", text)
        by = self._by.get((tag.attempt, tag.step))
        text = f"{worker.key} commits {tag}, of which an operation was refused to itself"
        require(by is not worker, "C8", text)

    def repairs(self, worker: Worker) -> None:
        """A worker issues the operations of its step again, under the next attempt."""
        tag, before = worker.machine.tag, worker.launched_under
        by = self._by.get((before, tag.step)) if tag is not None and before is not None else None
        if by is None or tag is None or not by.alive:
            return
        quorum, key = worker.machine.in_force, by.key
        is_member = quorum is not None and quorum.index(key.replica_id, key.incarnation) is not None
        text = f"{worker.key} repairs {tag}, though an operation of {before} was refused to {key}"
        require(not is_member, "C8", text)

    def gives_up(self, order: m.RestartReplica) -> None:
        """The lighthouse has a replica replaced."""
        require(not self._is_well, "C8", f"{order.replica_id} is given up: {order.reason}")

    def raises(self, key: WorkerKey, reason: str) -> None:
        """A script ends with an error."""
        require(not self._is_well, "C8", f"{key} ends: {reason}")
