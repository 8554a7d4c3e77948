"""Plans a seed's faults: which kinds, how often, when, and after which message.

Swarm testing: every seed draws its own subset of kinds, so that rare combinations come up and one
kind does not hide another. Half of the faults strike at a random time; half right after the
lighthouse has sent a certain message, where most bugs are. Not here: what a kind does
(fault_kinds.py).
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ftrun.core import messages as m
from tests.sim.fault_kinds import (
    FIRST_KINDS,
    FOCUS_KINDS,
    KINDS,
    LATE_KINDS,
    OPERATOR_KINDS,
    SERVING_KINDS,
    STANDSTILL_KINDS,
)

if TYPE_CHECKING:
    from tests.sim.world import World

SWITCH_MESSAGES: tuple[type, ...] = (m.Prepare, m.ProposeSwitch, m.Switch)
STRUCK_MESSAGES: tuple[type, ...] = (m.Interrupt, m.NewQuorum, *SWITCH_MESSAGES, m.Cancel)
FIRST_RATES = {"build_failure": 0.15, "reduction_error": 0.02, "script_error": 0.03}
RATES = {**FIRST_RATES, "build_failure_at_all": 0.2, "heal_error": 0.3}
"""The probability of each fault, at each place where it can happen."""
LATE_SHARE = 0.06
OPERATOR_SHARE = 0.12
STANDSTILL_SHARE = 0.06
SERVING_SHARE = 0.1
SERVING_ERROR = "serving_error"
"""An offer fails once."""
ALL_KINDS = {**KINDS, **LATE_KINDS, **OPERATOR_KINDS, **STANDSTILL_KINDS, **SERVING_KINDS}


@dataclass
class Trigger:
    """After the ``count``-th ``message`` of the lighthouse, and ``delay_s`` more: a fault of
    ``kind``."""

    message: type
    count: int
    delay_s: float
    kind: str


@dataclass
class Faults:
    """The faults of one seed. No fault strikes once the world is calm."""

    window_s: float = 6.0
    delay_max_s: float = 0.003
    timed: tuple[tuple[float, str], ...] = ()
    triggers: list[Trigger] = field(default_factory=list)
    rates: dict[str, float] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)

    @staticmethod
    def draw(rng: random.Random, focus: tuple[str, ...] = (), *, of_all: bool = True) -> Faults:
        """Draw one to a handful of faults, of a few kinds; of ``focus`` only, if it is given.

        Without ``of_all``: only of the oldest kinds, in their order, so that seeds that have found
        bugs still find them.
        """
        known, may_happen = (KINDS, RATES) if of_all else (FIRST_KINDS, FIRST_RATES)
        share = 0.2 if of_all else 0.3
        window_s = 8.0 if rng.random() < 0.1 else rng.uniform(1.0, 3.5)
        kinds = [kind for kind in known if rng.random() < share] or [rng.choice(list(known))]
        if focus:
            kinds, window_s = list(focus), rng.uniform(2.0, 8.0)
        timed, triggers = [], []
        counts = (1, 1, 1, 2, 2, 3, 4, 6) if of_all else range(1, 9)
        messages = STRUCK_MESSAGES + SWITCH_MESSAGES if of_all else STRUCK_MESSAGES
        if of_all and not focus and rng.random() < 0.5:  # so that a replica has to join by a switch
            timed.append((rng.uniform(0.6, 1.2), "kill_worker"))
        for _ in range(rng.choice((1, 1, 2, 2, 3, 4, 6))):
            kind = rng.choice(kinds)
            if rng.random() < 0.5:
                timed.append((rng.uniform(0.2, window_s), kind))
            else:
                message = rng.choice(messages)
                delay_s = rng.choice((0.0, rng.uniform(0.0, 0.005), rng.uniform(0.0, 0.08)))
                triggers.append(Trigger(message, rng.choice(counts), delay_s, kind))
        rates = {kind: rate for kind, rate in may_happen.items() if rng.random() < 0.2}
        delay_max_s = rng.choice((0.003, 0.003, 0.03, 0.2))
        return Faults(window_s, delay_max_s, tuple(timed), triggers, rates)

    def add_late_kinds(self, rng: random.Random) -> bool:
        """Draw one of the newest kinds for few seeds, separately; True: there is one.

        All other seeds then still find the bugs that they have found.
        """
        if rng.random() >= LATE_SHARE:
            return False
        when_s = rng.uniform(0.2, self.window_s)
        self.timed = (*self.timed, (when_s, rng.choice(list(LATE_KINDS))))
        return True

    def add_operators(self, rng: random.Random) -> None:
        """Draw one to three requests of people for some seeds, separately as well."""
        if rng.random() < OPERATOR_SHARE:
            for _ in range(rng.randint(1, 3)):
                when_s = rng.uniform(0.2, self.window_s)
                self.timed = (*self.timed, (when_s, rng.choice(list(OPERATOR_KINDS))))

    def add_standstill(self, rng: random.Random) -> bool:
        """Make a loop stall, for few seeds, separately as well; True: for this one."""
        if rng.random() >= STANDSTILL_SHARE:
            return False
        for _ in range(rng.randint(1, 2)):
            when_s = rng.uniform(1.5, max(2.0, self.window_s))
            self.timed = (*self.timed, (when_s, "stand_still"))
        return True

    def add_serving(self, rng: random.Random) -> bool:
        """Make donors unable to serve, for few seeds, separately as well; True: for this one."""
        if rng.random() >= SERVING_SHARE:
            return False
        if rng.random() < 0.5:
            self.rates[SERVING_ERROR] = rng.choice((0.3, 0.8))
        else:
            when_s = rng.uniform(0.2, self.window_s)
            self.timed = (*self.timed, (when_s, rng.choice(list(SERVING_KINDS))))
        self.timed = (*self.timed, (rng.uniform(0.3, self.window_s), "kill_worker"))
        return True

    def plan(self, world: World) -> None:
        """Put the timed faults into the queue."""
        for when_s, kind in self.timed:
            world.at(when_s, None, self._strike, world, kind)

    def strikes(self, world: World, kind: str) -> bool:
        """Whether a fault of ``kind`` strikes here, by chance."""
        if world.calm or kind not in self.rates:
            return False
        if world.rng.random() >= self.rates[kind]:
            return False
        self._struck(world, kind)
        return True

    def heard(self, world: World, message: m.ToWorker) -> None:
        """Plan the faults that strike after this message of the lighthouse."""
        for trigger in self.triggers:
            if trigger.message is type(message):
                trigger.count -= 1
                if trigger.count == 0:
                    world.at(trigger.delay_s, None, self._strike, world, trigger.kind)

    def _strike(self, world: World, kind: str) -> None:
        if not world.calm:
            world.note("world", "fault", kind)
            self.done.append(kind)
            self._struck(world, kind)
            (FOCUS_KINDS.get(kind) or ALL_KINDS[kind])(world)

    def _struck(self, world: World, kind: str) -> None:
        if world.coverage is not None:
            world.coverage.struck(kind, world.phase_name())


def all_faults() -> Iterable[str]:
    """The names of all kinds."""
    return (*ALL_KINDS, *RATES, SERVING_ERROR)
