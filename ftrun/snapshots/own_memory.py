"""A launcher's memory of what one worker alone has: for whoever follows it in its slot.

It outlives the worker, and costs nothing until it is written. Not here: what is left there
(inject/zero_edit/values/own.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable

from ftrun.snapshots.area import Area
from ftrun.snapshots.memory import SharedMemory

VARIABLE = "FTRUN_OWN_MEMORY"
"""A worker's environment: where that of its slot is."""
KEPT = 1
"""A state stays while the next one is written: so one takes half of the memory at most."""
SPAN = 3
"""So much more of addresses: of what is not held, slots may lie behind the end."""


class OwnMemory:
    """The launcher's, by replica and rank. ``nbytes``: gives how large each may become."""

    def __init__(self, nbytes: Callable[[], int]) -> None:
        self._nbytes = nbytes
        self._files: dict[tuple[str, int], tuple[SharedMemory, int]] = {}

    def place(self, replica_id: str, rank: int) -> str:
        """The variable's value for the next worker of this slot; "": there is no such memory."""
        key = replica_id, rank
        try:
            if key not in self._files:
                made, nbytes = SharedMemory(), self._nbytes()
                made.reserve(SPAN * nbytes)
                Area(made, nbytes, KEPT).clear()
                self._files[key] = made, nbytes
        except OSError:
            return ""
        memory, nbytes = self._files[key]
        return f"{memory.place}:{nbytes}"

    def close(self) -> None:
        """Let it go. It is free once every process that has mapped it has ended."""
        for memory, _ in self._files.values():
            memory.close()
        self._files.clear()


def area_here() -> Area | None:
    """The area of this worker; None: its launcher has none for it."""
    place, _, nbytes = os.environ.get(VARIABLE, "").partition(":")
    try:
        memory = SharedMemory.at(place)
        memory.reserve(SPAN * int(nbytes))
    except (OSError, ValueError):
        return None
    area = Area(memory, int(nbytes), KEPT)
    area.lay_out_states()
    return area
