"""Whose slot is whose: the job's replica ids shared out among the agents.

A slot belongs to at most one agent at a time and is handed on only when that agent is gone. Not
here: what runs in the slots (roster.py), when an agent counts as gone (lighthouse.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
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
    """The slots "0".."N-1" of a job, in order."""

    def __init__(self, count: int) -> None:
        self._slots = {str(index): Slot(str(index)) for index in range(count)}

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, replica_id: str) -> bool:
        return replica_id in self._slots

    def __getitem__(self, replica_id: str) -> Slot:
        return self._slots[replica_id]

    def end(self, replica_id: str, how: str) -> bool:
        """The slot's part is over; False if it was before."""
        slot = self._slots[replica_id]
        is_news = not slot.end
        if is_news:
            slot.end = how
        return is_news

    def ended(self, how: str) -> tuple[str, ...]:
        """The slots that have ended so."""
        return tuple(slot.replica_id for slot in self._slots.values() if slot.end == how)

    @property
    def open_count(self) -> int:
        """How many slots are still to train."""
        return sum(not slot.end for slot in self._slots.values())

    @property
    def free_count(self) -> int:
        """How many slots are still to train and belong to nobody."""
        return sum(not slot.end and not slot.agent_id for slot in self._slots.values())

    def of(self, agent_id: str) -> tuple[str, ...]:
        """The open slots of an agent, in order."""
        slots = self._slots.values()
        return tuple(s.replica_id for s in slots if s.agent_id == agent_id and not s.end)

    def has_owners(self) -> bool:
        """Whether any slot belongs to anybody."""
        return any(slot.agent_id for slot in self._slots.values())

    def release(self, agent_id: str) -> None:
        """All slots of this agent are free again."""
        for slot in self._slots.values():
            if slot.agent_id == agent_id:
                slot.agent_id = ""

    def share_out(self, capacities: Mapping[str, int]) -> None:
        """First assignment: equal parts, contiguous, in the agents' order, within their capacity.

        What one agent has no room for goes to those after it, and at last to any that has room.
        """
        free = [s for s in self._slots.values() if not s.agent_id and not s.end]
        room = self._room(capacities)
        for index, agent_id in enumerate(room):
            fair = -(-len(free) // (len(room) - index))  # rounded up
            part = max(0, min(fair, room[agent_id]))
            for slot in free[:part]:
                slot.agent_id = agent_id
            free = free[part:]
        self.hand_out(capacities)

    def hand_out(self, capacities: Mapping[str, int]) -> set[str]:
        """Free slots go, one by one, to the agent with the most room; those that got one."""
        room = self._room(capacities)
        changed: set[str] = set()
        for slot in self._slots.values():
            if slot.agent_id or slot.end or not room:
                continue
            agent_id = max(room, key=lambda a: room[a])
            if room[agent_id] <= 0:
                break
            slot.agent_id = agent_id
            room[agent_id] -= 1
            changed.add(agent_id)
        return changed

    def _room(self, capacities: Mapping[str, int]) -> dict[str, int]:
        used = Counter(s.agent_id for s in self._slots.values() if not s.end)
        return {a: capacity - used[a] for a, capacity in capacities.items()}

    def finish(self, replica_ids: Iterable[str], how: str) -> None:
        """Take over ends that an earlier lighthouse, or an agent, knows of."""
        for replica_id in replica_ids:
            if replica_id in self._slots:
                self.end(replica_id, how)
