"""Collectives of a script beside the reductions of its steps: named exchanges, counted.

Every replica that runs the same program counts the same collectives since a step was begun; step
and count name the next one, also after the step's end. After a step that was not committed the
caller gets its own value, because peers that have committed it never come to that place.

A death costs nothing: the exchange goes on among the survivors. If a peer does not come to the
same place within the Manager's timeout, the caller gets its own value, and ``Manager.errored()``
the reason.

Not here: tensors (managed_group.py), the exchange (exchanges.py), its names
(core/worker/exchange.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from ftrun.base.errors import PeerError
from ftrun.core.worker.exchange import Names
from ftrun.core.worker.machine import StepMachine
from ftrun.training.exchanges import Exchanges, tell_alone

COUNTS, COUNTS_NOT = b"\x01", b"\x00"


@dataclass(frozen=True, slots=True)
class Given:
    """The value of one replica. ``counts``: it contributes to the step, so sums include it."""

    counts: bool
    body: bytes


class BetweenSteps:
    """The exchanges of the managed groups of one worker, in the order of its program.

    Args:
        machine: the step machine, only read here.
        exchanges: of this worker.
        timeout_s: deadline of each exchange.
    """

    def __init__(self, machine: StepMachine, exchanges: Exchanges, timeout_s: float) -> None:
        self._machine = machine
        self._exchanges = exchanges
        self._timeout_s = timeout_s
        self._names = Names()

    def step_begun(self) -> None:
        """A step begins, perhaps once more."""
        self._names.step_begun(self._machine.position)
        self._exchanges.step_begun(self._machine.position)

    def exchange(self, site: str, what: str, body: bytes, counts: bool) -> list[Given] | None:
        """What all members of the quorum give at this place, in the order of the slots.

        None: the last step was not committed.

        Raises:
            PeerError: no step has begun, so that there is no quorum.
            TimeoutError: a member did not give anything.
            UserError: ``body`` is too large, or this replica is out of step with its peers.
        """
        machine = self._machine
        if not machine.begun:
            raise PeerError(f"{what} of {site}: no step has begun, so there are no members yet")
        if self._names.is_void(machine.state.step, in_step=machine.in_step):
            tell_alone(f"{what} of {site}")
            return None
        flagged = (COUNTS if counts else COUNTS_NOT) + body
        name = self._names.next()
        found = self._exchanges.exchange(name, site, what, flagged, self._timeout_s)
        return [Given(one.body[:1] == COUNTS, one.body[1:]) for one in found]
