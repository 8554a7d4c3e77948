"""Scripts that permit joins at some steps only: ``start_quorum(allow_heal=False)`` (Q9).

Drawn from the seed, apart from the job. Not here: the call itself (script.py).
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from ftrun.core.ids import WorkerKey
from ftrun.core.quorum import Quorum
from tests.sim.violation import require

ODD_HOLDS = 0.05
SPARING_FROM, SPARING_TO = 31_000_000, 100_000_000
"""Seeds between these have sparing scripts too. (Older recorded seeds have none.)"""


@dataclass(frozen=True, slots=True)
class Freezes:
    """Of every ``period`` steps, members may join only at the ``free``-th, from ``begin`` on.

    With a period of 1 they may join at every step. With 0 each script decides at random: no
    sensible use, but it must lose nothing.

    A script that ``spares`` permits joins at a few steps, and at each step before which it knew of
    a newcomer to prepare for (inject/zero_edit/sparing.py).
    """

    period: int = 1
    free: int = 0
    begin: int = 0
    spares: bool = False

    @staticmethod
    def draw(seed: int, enough: int) -> Freezes:
        """Half of the scripts permit joins at every step."""
        sparing = random.Random(f"{seed}/spares")
        if SPARING_FROM <= seed < SPARING_TO and enough == 1 and sparing.random() < 0.4:
            return Freezes(sparing.choice((4, 16, 1000)), begin=1, spares=True)
        rng = random.Random(f"{seed}/holds")
        kind = rng.random()
        if kind < 0.5:
            return Freezes()
        if kind < 0.65:
            return Freezes(period=0)
        period = rng.choice((2, 2, 3, 4))
        return Freezes(period, rng.randrange(period), rng.choice((0, 0, 2, 5)))

    def at(self, step: int, rng: random.Random, *, prepares: bool) -> bool:
        """Whether no replica may join at this step.

        ``prepares``: the worker knew of a newcomer when its script drew the batch of this step.
        """
        if self.spares and prepares:
            return False
        if self.period == 0:
            return rng.random() < ODD_HOLDS
        return self.period > 1 and step >= self.begin and step % self.period != self.free


@dataclass(frozen=True, slots=True)
class Barred:
    """The newcomers for which a worker has taken back a confirmed switch, and the step.

    ``journals``: the number of journals that lighthouses had lost when the switch was prepared. A
    lighthouse that has lost its journal since knows of no switch.
    """

    step: int
    newcomers: frozenset[str]
    journals: int


def enters(key: WorkerKey, quorum: Quorum, barred: Barred | None, enough: int) -> None:
    """A member begins a quorum's first step at a boundary that permits no joins (Q9)."""
    text = f"{key} trains in {quorum.attempt} from step {quorum.step} on, and holds others off"
    if key.replica_id in quorum.newcomers:
        return  # this worker does not decide
    by_switch = quorum.state is None
    require(not (by_switch and quorum.newcomers), "Q9", text)
    if barred is None or barred.step != quorum.step:
        return
    others = [x for x in quorum.members if x.replica_id not in quorum.newcomers]
    joining = {x.incarnation for x in quorum.members if x.replica_id in quorum.newcomers}
    require(len(others) < enough or not joining & barred.newcomers, "Q9", text)


def spares(key: WorkerKey, quorum: Quorum, before: Quorum | None) -> None:
    """Like ``enters``, for a script that has no place for a newcomer at this step.

    A worker that heals there was in the quorum ``before``, and has missed only the end of its last
    step: its script stands where the others do.
    """
    if key.replica_id in quorum.newcomers or before is None:
        return
    here = {x.incarnation for x in quorum.members if x.replica_id in quorum.newcomers}
    known = {x.incarnation for x in before.members}
    text = f"{key} trains in {quorum.attempt} from step {quorum.step} on"
    require(here <= known, "Q9", f"{text}, and has no place for {sorted(here - known)}")
