"""Whose slot is whose: the job's replica ids shared out among the agents.

A slot belongs to at most one agent at a time and is handed on only when that agent is gone. Not
here: what runs in the slots (roster.py), when an agent counts as gone (lighthouse.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass


@dataclass(slots=True)
class Slot:
    """One replica id.

    ``agent_id``: "" if it is free. ``end``: "finished" or "drained" once its part is over.
    ``dead``: the last incarnation that has certainly ended. ``restarts``: as its agent counts.
    """

    replica_id: str
    agent_id: str = ""
    end: str = ""
    dead: str = ""
    restarts: int = 0


class SlotTable:
    """The slots "0".."N-1" of a job, in order.

    ``open_count``: how many are still to train. ``free_count``: how many of these belong to nobody.
    """

    def __init__(self, count: int) -> None:
        self._slots = {str(index): Slot(str(index)) for index in range(count)}
        self.open_count = count
        self.free_count = count

    def __len__(self) -> int:
        return len(self._slots)

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._slots.values())

    def __contains__(self, replica_id: str) -> bool:
        return replica_id in self._slots

    def __getitem__(self, replica_id: str) -> Slot:
        return self._slots[replica_id]

    def end(self, replica_id: str, how: str) -> bool:
        """The slot's part is over; False if it was before."""
        slot = self._slots[replica_id]
        if slot.end:
            return False
        slot.end = how
        self.open_count -= 1
        self.free_count -= not slot.agent_id
        return True

    def finish(self, replica_ids: Iterable[str], how: str) -> None:
        """Take over ends that an earlier lighthouse, or an agent, knows of."""
        for replica_id in replica_ids:
            if replica_id in self._slots:
                self.end(replica_id, how)

    def ended(self, how: str) -> tuple[str, ...]:
        """The slots that have ended so."""
        return tuple(slot.replica_id for slot in self if slot.end == how)

    def give(self, replica_id: str, agent_id: str) -> None:
        """The slot is this agent's from now on; nobody's if that is ""."""
        slot = self._slots[replica_id]
        if not slot.end:
            self.free_count += (not agent_id) - (not slot.agent_id)
        slot.agent_id = agent_id

    def release(self, agent_id: str) -> None:
        """All slots of this agent are free again."""
        for slot in self:
            if slot.agent_id == agent_id:
                self.give(slot.replica_id, "")

    def of(self, agent_id: str) -> tuple[str, ...]:
        """The open slots of an agent, in order."""
        return tuple(s.replica_id for s in self if s.agent_id == agent_id and not s.end)

    def by_agent(self) -> dict[str, list[str]]:
        """The open slots of every agent that has any, in order."""
        slots: dict[str, list[str]] = {}
        for slot in self:
            if slot.agent_id and not slot.end:
                slots.setdefault(slot.agent_id, []).append(slot.replica_id)
        return slots

    def share_out(self, capacities: Mapping[str, int]) -> None:
        """First assignment: equal parts, contiguous, in the agents' order, within their capacity.

        What one agent has no room for goes to those after it, and at last to any that has room.
        """
        free = self._free()
        room = self._room(capacities)
        for index, agent_id in enumerate(room):
            fair = -(-len(free) // (len(room) - index))  # rounded up
            part = max(0, min(fair, room[agent_id]))
            for slot in free[:part]:
                self.give(slot.replica_id, agent_id)
            free = free[part:]
        self.hand_out(capacities)

    def hand_out(self, capacities: Mapping[str, int]) -> set[str]:
        """Free slots go, one by one, to the agent with the most room; those that got one."""
        room = self._room(capacities)
        changed: set[str] = set()
        for slot in self._free():
            agent_id = max(room, key=lambda a: room[a], default="")
            if not agent_id or room[agent_id] <= 0:
                break
            self.give(slot.replica_id, agent_id)
            room[agent_id] -= 1
            changed.add(agent_id)
        return changed

    def _free(self) -> list[Slot]:
        return [slot for slot in self if not slot.agent_id and not slot.end]

    def _room(self, capacities: Mapping[str, int]) -> dict[str, int]:
        used = Counter(slot.agent_id for slot in self if not slot.end)
        return {a: capacity - used[a] for a, capacity in capacities.items()}
