"""Scripts that make their peers wait: a replica evaluates in the middle of a step.

Their Managers have set timeouts, so peers do not wait until the evaluation ends (L2), and all
replicas try the step equally often (C8: refusals.py). The lateness is drawn from the seed, apart
from the job. Not here: the script that evaluates (script.py), a loop that stalls for good
(fault_kinds.py).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.sim.actor import OPERATION_TIMEOUT_S
from tests.sim.violation import require

if TYPE_CHECKING:
    from tests.sim.worker import Worker

LATENESS = "lateness"
"""In ``focus``: the script is late; if given alone, there is no fault at all."""
LATE_FROM, LATE_TO = 310_000_000, 320_000_000
"""The scripts of seeds between these may be late, beside all other faults."""
SHORT_S, RESULTS_S = 2.0, 5.0
"""The timeouts of an operation and of a step's results that these scripts set."""
LOOKS_EACH_S, MARGIN_S = 1.0, 1.0
WINDOW_S = 16.0


@dataclass(frozen=True, slots=True)
class Lateness:
    """One replica is late with an operation in its first attempts of a step. ``late_s``: the delay.

    ``operation_timeout_s``, ``results_timeout_s``: the timeouts that its script sets.
    """

    step: int = -1
    operation: int = 0
    replica_id: str = ""
    tries: int = 0
    late_s: float = 0.0
    operation_timeout_s: float = OPERATION_TIMEOUT_S
    results_timeout_s: float | None = None

    @staticmethod
    def draw(seed: int, replicas: int, operations: int) -> Lateness:
        """One operation of one step, at one slot."""
        rng = random.Random(f"{seed}/lateness")
        return Lateness(
            rng.randrange(1, 5),
            rng.choice((0, 0, rng.randrange(operations))),
            str(rng.randrange(replicas)),
            rng.choice((1, 1, 2)),
            rng.choice((1.0, 4.0, 8.0, 13.0)),
            SHORT_S,
            RESULTS_S,
        )

    def of(self, replica_id: str, step: int, tries: int, operation: int) -> float:
        """How late this operation is. ``tries``: attempts of this step before this one."""
        is_it = (step, operation, replica_id) == (self.step, self.operation, self.replica_id)
        return self.late_s if is_it and tries < self.tries else 0.0

    def is_like(self, *, repairs: bool) -> bool:
        """Whether all replicas try the step equally often.

        Without repairs each timeout costs the waiting replica its step. A replica that is late with
        a later operation has the results of those before it, and regards its step as complete.
        """
        return not self.tries or (repairs and self.operation == 0)

    def waited(self, worker: Worker, waited_s: float) -> None:
        """A script has waited for its gradients, in a world without other faults."""
        if self.results_timeout_s is not None:
            limit_s = self.results_timeout_s + self.operation_timeout_s + LOOKS_EACH_S + MARGIN_S
            text = f"{worker.key} has waited for its gradients for {waited_s:.1f} s"
            require(waited_s <= limit_s, "L2", text)


def is_late(seed: int) -> bool:
    """Whether a replica of this seed is late."""
    return LATE_FROM <= seed < LATE_TO
