"""All slots of one agent, in order, as a Hello and the final report need them.

Not here: what is done on an event (supervisor.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from ftrun.core import messages as m
from ftrun.core.agent.restarts import RestartBudget, RestartRules
from ftrun.core.agent.slot_state import Outcome, SlotPhase, SlotState, SlotSummary
from ftrun.core.ids import WorkerKey, replica_order

STORY_MAX = 200
DEAD_MAX = 64


class NodeSlots:
    """Slots by replica_id; at most as many as the lighthouse has assigned.

    ``dead``: the latest incarnations whose end was seen; a lighthouse may have missed them. Slots
    that were given up here stay in the summary.
    """

    def __init__(self, rules: RestartRules) -> None:
        self._rules = rules
        self._slots: dict[str, SlotState] = {}
        self._given_up: dict[str, SlotSummary] = {}
        self._story: deque[tuple[float, str, str]] = deque(maxlen=STORY_MAX)
        self.dead: deque[m.Loss] = deque(maxlen=DEAD_MAX)

    def __iter__(self) -> Iterator[SlotState]:
        """In order of replica_id; slots may come and go during the iteration."""
        return iter(list(self._slots.values()))

    def __len__(self) -> int:
        return len(self._slots)

    def get(self, replica_id: str) -> SlotState | None:
        return self._slots.get(replica_id)

    def add(self, replica_id: str, wake_at: float) -> None:
        budget = RestartBudget(self._rules, spent=self._rules.spent)
        slot = SlotState(replica_id, budget, wake_at=wake_at, started=self._rules.spent)
        self._slots[replica_id] = slot
        in_order = sorted(self._slots.items(), key=lambda item: replica_order(item[0]))
        self._slots = dict(in_order)

    def remove(self, slot: SlotState) -> None:
        """Remove a slot that now belongs to another agent, or to none."""
        del self._slots[slot.replica_id]
        if slot.given_up is not None:
            self._given_up[slot.replica_id] = slot.summary()

    def forget_drained(self) -> None:
        """A lighthouse is back: remove drained slots, unless the lighthouse assigns them again.

        It knows from the Hello that the replica has ended; it may not know that this agent keeps
        the slot.
        """
        for slot in self:
            if slot.outcome is Outcome.DRAINED:
                self.remove(slot)

    def of_incarnation(self, incarnation: str) -> SlotState | None:
        """The slot whose live incarnation this is."""
        for slot in self._slots.values():
            if slot.incarnation == incarnation and slot.alive:
                return slot
        return None

    def last_of(self, incarnation: str) -> SlotState | None:
        """The slot whose last incarnation this is, dead or alive."""
        for slot in self._slots.values():
            if slot.incarnation == incarnation:
                return slot
        return None

    def running(self) -> tuple[m.RunningReplica, ...]:
        """Incarnations whose workers live."""
        return tuple(
            m.RunningReplica(slot.replica_id, slot.incarnation, slot.has_left)
            for slot in self
            if slot.alive and not slot.lost
        )

    def kept(self) -> tuple[m.KeptSlot, ...]:
        """Slots in which a replica runs, or is about to be started."""
        return tuple(
            m.KeptSlot(slot.replica_id, slot.restarts, slot.budget.left)
            for slot in self
            if slot.phase is not SlotPhase.ENDED and not (slot.forgotten or slot.has_left)
        )

    def finished(self) -> tuple[str, ...]:
        """Slots that have certainly ended well, so that the lighthouse need not judge their end."""
        ended = (slot for slot in self if slot.outcome is Outcome.FINISHED)
        return tuple(slot.replica_id for slot in ended if not slot.is_unjoined)

    def finished_oddly(self) -> tuple[m.ReplicaFinished, ...]:
        """The ends with exit code 0 that the lighthouse must judge."""
        ended = [slot.finished() for slot in self if slot.outcome is Outcome.FINISHED]
        return tuple(x for x in ended if x.idle or x.unjoined or x.early is not None)

    def leaving_early(self) -> tuple[m.WorkerMessage, ...]:
        """The replicas that still run and in which a worker has left early."""
        return tuple(
            m.WorkerMessage(
                WorkerKey(slot.replica_id, slot.incarnation, min(slot.alive)),
                m.Leaving(m.LeaveReason.EARLY, slot.left_early),
            )
            for slot in self
            if slot.alive and slot.left_early is not None
        )

    def summary(self) -> tuple[SlotSummary, ...]:
        """Each slot's part in the final report."""
        found = self._given_up | {slot.replica_id: slot.summary() for slot in self}
        return tuple(found[name] for name in sorted(found, key=replica_order))

    def all_ended(self) -> bool:
        """Whether nothing runs and nothing is to be started."""
        return all(slot.phase is SlotPhase.ENDED for slot in self._slots.values())

    def note(self, now: float, slot: SlotState, text: str) -> None:
        self._story.append((now, slot.replica_id, text))

    def story(self, replica_id: str) -> list[str]:
        """The history of one slot, oldest first."""
        return [f"{at:.3f} {text}" for at, slot, text in self._story if slot == replica_id]

    def check(self, is_ending: bool) -> None:
        """Assert what must hold between events.

        Raises:
            AssertionError: a rule is broken; the slot's story is in the text.
        """
        for slot in self._slots.values():
            phase = slot.phase
            runs = phase is SlotPhase.RUNNING or phase is SlotPhase.STOPPING
            assert bool(slot.alive) == runs, self._described(slot)
            # A reported death is a failure. Its group does not run on or end well, unless the
            # worker is replaced once its process is gone.
            for rank in slot.dying:
                known = slot.replaced.get(rank)
                is_replaced = known is not None and not known.is_gone
                is_ended = slot.ending is not None and rank in slot.ending
                is_told = slot.has_failed or slot.is_failing or is_replaced or is_ended
                assert is_told, self._described(slot)
            assert not slot.replaced or slot.mending is not None, self._described(slot)
            assert (phase is SlotPhase.WAITING) == (slot.wake_at is not None), self._described(slot)
            assert (phase is SlotPhase.ENDED) == (slot.outcome is not None), self._described(slot)
            assert 0 <= slot.budget.spent <= self._rules.max_restarts, self._described(slot)
            # A script that has raised ends by itself, and has a deadline.
            has_raised = bool(slot.failure_reports) and slot.kill_at is not None
            ends = phase is SlotPhase.STOPPING or phase is SlotPhase.ENDED or has_raised
            assert not is_ending or ends, self._described(slot)

    def _described(self, slot: SlotState) -> str:
        return "\n".join([str(slot.phase), *self.story(slot.replica_id)])
