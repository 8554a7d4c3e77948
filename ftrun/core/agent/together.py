"""All replicas begin again together, in the form that they have, from a state that is held.

A worker asks for it where its script makes a call that can be followed only while all ranks are
there. Launchers hold states in memory, or there is a snapshot on a disk. Where neither is so
(``leaves_state``), the workers that train still have the newest state in themselves. So each leaves
its own in its launcher's memory, and then asks, too.

| event                                | it follows                                               |
|--------------------------------------|----------------------------------------------------------|
| the first worker asks                | all others that train are asked to leave their states    |
| all of them have asked, or are dead  | what is held is looked at                                |
| ``GATHER_S`` has passed              | the same; if nothing is held, they are waited for longer |
| what is held is known                | all begin again from the newest step of which each       |
|                                      | replica has its own, at one place of the script; else    |
|                                      | from the newest one, at its earliest place, since others |
|                                      | have not made what calls follow that                     |

A state that is torn, because its worker has died while it left it, is not held. That all begin
again is no failure of theirs, so only one whose script has failed counts a restart. If they come to
the same before a step is committed, the job is one world.

Not here: what is left (inject/zero_edit/at_fall.py), what is held (agent/group_memory.py), other
forms (from_workers.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ftrun.core import messages as m
from ftrun.core.agent import events as e
from ftrun.core.agent import words
from ftrun.core.agent.part import Part
from ftrun.core.agent.restarts import Restart
from ftrun.core.agent.slot_state import SlotPhase, SlotState
from ftrun.core.failure_kinds import TOGETHER
from ftrun.core.forms import Form
from ftrun.core.ids import WorkerKey

GATHER_S = 5.0
"""So long those that train are waited for, once one has asked."""
GATHERS_MAX = 12
"""So often, as long as nothing is held: a step may be long."""


@dataclass(eq=False, repr=False)
class Together(Part):
    """``_gives_up``: has an incarnation started again, for a reason; ``_is_one_world``: the job
    becomes that, because a slot has asked, for a reason, and since nothing else is possible.

    Attributes:
        look_at: when what is held is looked at; None: nobody has asked.
    """

    _gives_up: Callable[[str, str], None]
    _is_one_world: Callable[[SlotState, str, str], None]
    look_at: float | None = None
    _has_gone_on: bool = True  # since all replicas have begun again together
    _asked: set[WorkerKey] = field(default_factory=set)
    _first: tuple[SlotState, str] | None = None  # whose worker has asked, and why
    _looks: int = 0

    @property
    def is_under_way(self) -> bool:
        """Whether all are about to begin again: nobody is replaced meanwhile for being late."""
        return self._first is not None

    def asks(self, slot: SlotState, key: WorkerKey, reason: str) -> None:
        """A worker of a slot that runs asks; it has left its state, if it could."""
        if self._first is None:
            self._first, self._looks = (slot, reason), 0
            self.look_at = self._out.now + GATHER_S * self._settings.leaves_state
            others = {x.incarnation: x.replica_id for x in self._those_that_leave()}
            for incarnation, replica_id in others.items():
                message = m.AnotherForm(Form.TOGETHER.value, reason)
                self._out.add(e.SendToReplica(replica_id, incarnation, message))
        self._asked.add(key)

    def _those_that_leave(self) -> Iterator[WorkerKey]:
        """The workers that train, and have not asked."""
        if self._settings.leaves_state:
            for slot in self._slots:
                is_here = slot.phase is SlotPhase.RUNNING and slot.has_joined
                for rank in slot.living - slot.failure_reports.keys() if is_here else ():
                    key = WorkerKey(slot.replica_id, slot.incarnation, rank)
                    if key not in self._asked:
                        yield key

    def check(self) -> None:
        """Look at what is held, once it is time, or nobody is waited for."""
        if self.look_at is None:
            return
        if self.look_at <= self._out.now or not any(self._those_that_leave()):
            self.look_at = None
            self._out.add(e.LookAtMemory())

    def seen(self, held: Sequence[tuple[str, int, int]]) -> None:
        """What is held outside the workers; see MemorySeen."""
        if self._first is None:
            return
        slot, reason = self._first
        sound = [x for x in held if not x[0] or self._is_sound(*x[:2])]
        self._looks += 1
        if not sound and self._looks < GATHERS_MAX and any(self._those_that_leave()):
            self.look_at = self._out.now + GATHER_S
            return
        self._first = self.look_at = None
        self._asked.clear()
        self._begin(slot, reason, sound)

    def _is_sound(self, replica_id: str, step: int) -> bool:
        slot = self._slots.get(replica_id)
        if slot is None or slot.mending is None:
            return self._settings.leaves_state  # whoever trains leaves the job's state
        return step <= slot.mending.sound_until

    def _begin(self, slot: SlotState, reason: str, sound: Sequence[tuple[str, int, int]]) -> None:
        settings = self._settings
        can_leave = settings.leaves_state
        why = "" if sound else words.nothing_held(settings.has_memory_snapshots, can_leave)
        if sound and not self._has_gone_on:
            why = words.IN_VAIN
        if any(x.phase is SlotPhase.ENDED or x.done or x.left_early for x in self._slots):
            why = words.HAS_ENDED
        if why:
            self._is_one_world(slot, reason, why)
            return
        at = {x[1:]: [whose for whose, *there in sound if (*there,) == x[1:]] for x in sound}
        whole = [there for there, known in at.items() if len(known) == len(self._slots)]
        # Each goes on with all of its own, if it can.
        step, place = max(whole or at, key=lambda there: (there[0], -there[1]))
        known, is_all = at[step, place], bool(whole)
        self._out.add(words.begins_together(slot.replica_id, reason, known, step, is_all))
        self._has_gone_on = False
        if known[0]:
            self._out.add(e.ShareMemory(known[0], step))
        for one in self._slots:
            one.begins_from = step if known[0] else -1
            if one.phase is SlotPhase.RUNNING and one.alive:
                if not one.failure_reports:
                    one.verdict = Restart(0.0, one.budget.spent)
                self._gives_up(one.incarnation, f"{TOGETHER} all replicas")

    def goes_on(self) -> None:
        """A step is committed: nobody begins any more from what was left before."""
        if not self._has_gone_on and self._settings.leaves_state:
            self._out.add(e.DropMemory(""))
        self._has_gone_on = True
        for slot in self._slots:
            slot.begins_from = -1
