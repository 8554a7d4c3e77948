"""A launcher's memory of each worker's own values, for the next worker in the same slot.

It outlives the worker, and costs nothing until it is written. Not here: which values it holds
(inject/zero_edit/values/own.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable

from ftrun.snapshots.area import Area
from ftrun.snapshots.memory import SharedMemory

VARIABLE = "FTRUN_OWN_MEMORY"
"""Environment variable of a worker: where the memory of its slot is."""
KEPT = 1
"""One whole state stays while the next one is written, so a state may use half of the memory."""
SPAN = 3
"""Address space, as a multiple of the memory: slots for held states may lie beyond the end."""


class OwnMemory:
    """The launcher's memory, by replica and rank. ``nbytes``: called for the maximum size of
    each."""

    def __init__(self, nbytes: Callable[[], int]) -> None:
        self._nbytes = nbytes
        self._files: dict[tuple[str, int], tuple[SharedMemory, int]] = {}

    def place(self, replica_id: str, rank: int) -> str:
        """The variable's value for the next worker of this slot; "": the system has no such
        memory."""
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
        """Unmap it. The memory is free once every process that has mapped it has ended."""
        for memory, _ in self._files.values():
            memory.close()
        self._files.clear()


def area_here() -> Area | None:
    """The area of this worker; None: its launcher keeps none for it."""
    place, _, nbytes = os.environ.get(VARIABLE, "").partition(":")
    try:
        memory = SharedMemory.at(place)
        memory.reserve(SPAN * int(nbytes))
    except (OSError, ValueError):
        return None
    area = Area(memory, int(nbytes), KEPT)
    area.lay_out_states()
    return area
