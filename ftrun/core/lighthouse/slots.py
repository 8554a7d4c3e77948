"""The table of slots: the job's replica ids, assigned to the agents.

A slot belongs to at most one agent at a time. It is reassigned when that agent is gone, or when its
replica has left in order and has ended. Not here: the replicas in the slots (replicas.py), when a
slot is reassigned (assignment.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from ftrun.core.messages import StartFailure


@dataclass(frozen=True, slots=True)
class Move:
    """A slot that moves from one agent to another, to rebalance the load."""

    replica_id: str
    from_agent: str
    to_agent: str


GIVEN_UP, EARLY, IDLE = "given up", "early", "idle"
HAS_ENDED = "its script has ended with exit code 0, while others train on"
_HOW = {
    GIVEN_UP: "was given up",
    EARLY: "left the training loop early",
    IDLE: "has never trained a step",
}


@dataclass(frozen=True, slots=True)
class Absence:
    """A replica without which the job continues, or has ended.

    ``step``: the job's step when the replica left. ``why``: for people. ``how``: GIVEN_UP; or, with
    exit code 0, EARLY: it has left the training loop while others train; IDLE: it has ended before
    its first step.
    """

    replica_id: str
    step: int
    why: str
    how: str = GIVEN_UP

    def words(self) -> str:
        """Its outcome, and why."""
        at = "" if self.how == IDLE else f" at step {self.step}"
        return f"replica {self.replica_id} {_HOW[self.how]}{at} ({self.why})"


@dataclass(slots=True)
class Slot:
    """One replica id.

    ``agent_id``: "" if it is free. ``is_finished``: its script has ended well, and nothing runs in
    it any more. ``moves_to``: the agent that gets it once its replica has left; ``has_left``: the
    replica has left, and its processes are ending. ``was_drained``: free since an agent or the
    replica left. ``is_withdrawn``: people have drained it, or the job continues without it; it is
    not assigned until people ask for it. ``absence``: why the job continues without it; None: it
    does not. ``given_up_at``: the agents that have given it up. ``dead``: the last incarnation that
    has certainly ended. ``last``: the incarnation that was started last; ``ended``: the last one
    whose workers had all ended when its agent reported its failure. ``restarts``: the count of its
    agent. ``restart_at``: when its agent starts it again, while it waits for that.
    ``start_failure``: how its script has failed, if it has not reached its first step since.
    ``restarts_left``: of its budget when it was started last; None: not known. ``has_trained``: it
    has committed a step.
    """

    replica_id: str
    agent_id: str = ""
    is_finished: bool = False
    moves_to: str = ""
    has_left: bool = False
    was_drained: bool = False
    is_withdrawn: bool = False
    absence: Absence | None = None
    given_up_at: set[str] = field(default_factory=set)
    dead: str = ""
    last: str = ""
    ended: str = ""
    restarts: int = 0
    start_failure: StartFailure | None = None
    restart_at: float | None = None
    restarts_left: int | None = None
    has_trained: bool = False

    @property
    def nothing_runs(self) -> bool:
        """Whether all workers of its last incarnation are known to have ended, after a failure."""
        return self.ended != "" and self.last in ("", self.ended)

    @property
    def runs_at(self) -> str:
        """The agent that runs it now, or should; "": none.

        A replica that is restarted leaves, and its slot stays with its agent.
        """
        has_gone = self.has_left and self.moves_to != self.agent_id
        return "" if self.is_finished or has_gone else self.agent_id

    def is_back(self) -> None:
        """It is started again: the incarnation that had left early has failed in the end."""
        if self.absence is not None and self.absence.how != GIVEN_UP:
            self.absence = None

    @property
    def is_open(self) -> bool:
        """Whether it is still to train."""
        return not (self.is_finished or self.is_withdrawn)


class SlotTable(dict[str, Slot]):
    """The slots "0".."N-1" of a job, in order.

    ``open_count``: the number of slots that must still train. ``free_count``: the number of these
    that have no agent. ``withdrawn``: the drained ones, in order. ``changed``: the state's set;
    slots that are assigned, freed or ended are added to it.
    """

    def __init__(self, count: int, changed: set[str]) -> None:
        super().__init__((str(index), Slot(str(index))) for index in range(count))
        self.withdrawn: tuple[str, ...] = ()
        self.open_count = count
        self.free_count = count
        self.changed = changed
        changed.update(self)

    def finish(self, replica_id: str) -> bool:
        """The slot's part is over.

        Returns False if it was so before, or the job has no such slot.
        """
        slot = self.get(replica_id)
        if slot is None or slot.is_finished:
            return False
        self._count(slot, -1)
        slot.is_finished = True
        self.changed.add(replica_id)
        slot.moves_to = ""
        return True

    def withdraw(self, replica_id: str) -> None:
        """Do not assign the slot from now on. Its agent keeps it until it is freed."""
        slot = self.get(replica_id)
        if slot is not None and slot.is_open:
            self._count(slot, -1)
            slot.is_withdrawn = True
            self.changed.add(replica_id)
            self.withdrawn += (replica_id,)

    def go_without(self, absence: Absence) -> None:
        """The job continues without this replica: its slot is withdrawn, or finishes by itself."""
        slot = self.get(absence.replica_id)
        if slot is not None:
            slot.absence = absence
        if absence.how == GIVEN_UP:
            self.withdraw(absence.replica_id)

    def done(self) -> int:
        """The number of slots that have ended well, after they had done what was asked for."""
        return sum(slot.is_finished and slot.absence is None for slot in self.values())

    def absent(self) -> tuple[Absence, ...]:
        """The replicas without which the job continues, in order."""
        return tuple(slot.absence for slot in self.values() if slot.absence is not None)

    def restore(self, replica_id: str) -> None:
        """The slot is to train again."""
        slot = self[replica_id]
        slot.is_withdrawn = slot.was_drained = False
        self.changed.add(replica_id)
        slot.absence = None
        slot.given_up_at.clear()
        self.withdrawn = tuple(name for name in self.withdrawn if name != replica_id)
        self._count(slot, +1)

    def _count(self, slot: Slot, by: int) -> None:
        """Count a slot in or out; call it while the slot is open."""
        if slot.is_open:
            self.open_count += by
            self.free_count += by * (not slot.agent_id)

    def finished(self) -> tuple[str, ...]:
        """The slots whose part is over."""
        return tuple(slot.replica_id for slot in self.values() if slot.is_finished)

    def give(self, replica_id: str, agent_id: str) -> None:
        """Assign the slot to this agent; "": to none."""
        slot = self[replica_id]
        if slot.is_open:
            self.free_count += (not agent_id) - (not slot.agent_id)
        slot.agent_id, slot.moves_to, slot.has_left = agent_id, "", False
        slot.was_drained = False
        self.changed.add(replica_id)

    def of(self, agent_id: str) -> tuple[str, ...]:
        """The slots that an agent must run, in order."""
        return tuple(slot.replica_id for slot in self.values() if slot.runs_at == agent_id)

    def by_agent(self) -> dict[str, list[str]]:
        """The slots to run, in order, by agent; without agents that have no slots."""
        slots: dict[str, list[str]] = {}
        for slot in self.values():
            if slot.runs_at:
                slots.setdefault(slot.runs_at, []).append(slot.replica_id)
        return slots

    def share_out(self, capacities: Mapping[str, int], spare: int = 0) -> None:
        """First assignment: equal parts, contiguous, in the agents' order, within their capacity.

        Slots for which an agent has no room go to later agents, and at last to any with room. The
        last ``spare`` agents get none, as far as the others have room.
        """
        free = self._free()
        room = dict(list(self._room(capacities).items())[: max(1, len(capacities) - spare)])
        for index, agent_id in enumerate(room):
            fair = -(-len(free) // (len(room) - index))  # rounded up
            part = max(0, min(fair, room[agent_id]))
            for slot in free[:part]:
                self.give(slot.replica_id, agent_id)
            free = free[part:]
        self.hand_out(capacities)

    def hand_out(self, capacities: Mapping[str, int], spare: int = 0) -> set[str]:
        """Assign free slots, one by one, to the agent with the most room; returns these agents.

        ``spare``: the number of agents that stand by for this. If it is not 0, agents without slots
        come first.
        """
        room = self._room(capacities)
        idle = {name for name, left in room.items() if spare and left == capacities[name]}
        changed: set[str] = set()
        for slot in self._free():
            agent_id = max(room, key=lambda a: (a in idle and room[a] > 0, room[a]), default="")
            if not agent_id or room[agent_id] <= 0:
                break
            self.give(slot.replica_id, agent_id)
            room[agent_id] -= 1
            changed.add(agent_id)
        return changed

    def uneven(self, capacities: Mapping[str, int], spare: int = 0) -> Move | None:
        """The move that rebalances the load: from the agent with most slots to the one with fewest.

        None unless the loads differ by two or more and the receiver has room. The highest slot
        moves. A standby agent gets none while the others have no more than they would have without
        the last ``spare`` agents.
        """
        room = self._room(capacities)
        loads = {agent_id: capacities[agent_id] - left for agent_id, left in room.items()}
        takers = [agent_id for agent_id, left in room.items() if left > 0]
        if not takers:
            return None
        most = max(loads, key=lambda a: loads[a])
        at_work = [a for a in takers if spare and 0 < loads[a] <= loads[most] - 2]
        least = min(at_work or takers, key=lambda a: loads[a])
        fair = -(-sum(loads.values()) // max(1, len(loads) - spare))  # rounded up
        stands_by = spare > 0 and not loads[least] and loads[most] <= fair
        if loads[most] - loads[least] < 2 or stands_by:
            return None
        return Move(self.of(most)[-1], most, least)

    def _free(self) -> list[Slot]:
        return [slot for slot in self.values() if not slot.agent_id and slot.is_open]

    def _room(self, capacities: Mapping[str, int]) -> dict[str, int]:
        slots = [slot for slot in self.values() if not slot.is_finished]
        used = Counter(slot.moves_to or slot.agent_id for slot in slots)
        return {a: capacity - used[a] for a, capacity in capacities.items()}
