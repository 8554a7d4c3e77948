"""Collectives of a script beside the reductions of its steps: named exchanges, counted.

Every replica that runs the same program counts the same collectives since a step was begun for the
first time; step and count name the next one, also after the step's end, whether it was committed or
not. A newcomer asks its donors for the count at which the step that it joins began, because it has
not run what came before.

A death costs nothing: the exchange goes on among the survivors. If a peer does not come to the
same place within the Manager's timeout, the caller gets its own value, and ``Manager.errored()``
the reason.

Not here: tensors (managed_group.py), the exchange (exchanges.py), its rules
(core/worker/exchange.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from ftrun.core.worker.exchange import MANAGED_FROM
from ftrun.core.worker.machine import StepMachine
from ftrun.errors import PeerError
from ftrun.training.exchanges import Exchanges

COUNTS, COUNTS_NOT = b"\x01", b"\x00"


@dataclass(frozen=True, slots=True)
class Given:
    """The value of one replica. ``counts``: it contributes to the step, so sums include it."""

    replica_id: str
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
        self._step: int | None = None  # the last one that was begun
        self._base: int | None = 0  # the count at which it began; None: unknown
        self._since = 0
        self._is_used = False

    def step_begun(self, has_healed: bool) -> None:
        """A step begins. ``has_healed``: with its peers' state, whose program this one lacks."""
        step, self._step = self._step, self._machine.position
        if has_healed:
            self._base = None
        elif step is not None and step != self._step:
            self._base = 0
        elif self._base is not None:
            self._base += self._since
        self._since = 0
        if self._is_used:
            self._exchanges.step_begun(self._step)
        self._show()

    def _show(self) -> None:
        if self._is_used and self._base is not None and self._machine.in_step:
            base = str(self._base)
            self._exchanges.show_place(lambda: base)

    def begin_to_count(self) -> None:
        """There is a managed group from now on: peers that heal may ask for the count."""
        if not self._is_used:
            self._is_used = True
            if self._step is not None:
                self._exchanges.step_begun(self._step)
            self._show()

    def exchange(self, site: str, what: str, body: bytes, counts: bool) -> list[Given]:
        """What all members of the quorum give at this place, in the order of the slots.

        Raises:
            PeerError, TimeoutError: a member did not give anything.
            UserError: ``body`` is too large, or this replica is out of step with its peers.
        """
        number, self._since = self._since, self._since + 1  # counted also if this fails
        if self._base is None:
            self._base = self._ask()
        index = MANAGED_FROM + self._base + number
        flagged = (COUNTS if counts else COUNTS_NOT) + body
        found = self._exchanges.exchange(
            site, what, flagged, self._timeout_s, index=index, step=self._step
        )
        return [
            Given(one.replica_id, one.body[:1] == COUNTS, one.body[1:])
            for one in found.contributions
        ]

    def _ask(self) -> int:
        place = self._exchanges.ask_place(self._timeout_s, self._step)
        if place is None or not place.isdecimal():
            raise PeerError("the replicas that this one heals from do not say where they stand")
        return int(place)
