"""The log of a worker's results across replicas: gradient reductions, and the script's calls.

A result is written to the agent's memory before the script can see it. On a GPU a reduction ends on
the host (process_groups/nccl.py), and the result of a call is copied from there. The logs begin at
the same steps as those of the calls within the replica. Each log also has the quorums in which its
reductions were made, because another quorum of the same members may have other contributors, and a
restarted lighthouse begins its numbers again.

The logs of the other replicas on this node can be read as well. A worker may die after it took part
in a reduction and before it logged the result; the result is then in another replica's log.

Not here: what is repeated from the log (in_place.py), the memory (snapshots/area.py), how a call is
written in it (world/succeeding.py).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from ftrun.core.ids import NO_ATTEMPT, Attempt
from ftrun.core.messages import NewQuorum
from ftrun.core.quorum import Quorum
from ftrun.core.replay.log_rules import may_take
from ftrun.protocol import codec
from ftrun.snapshots.area import NONE, Area, AreaFull, Entry
from ftrun.snapshots.group_memory import GroupMemory
from ftrun.training.reductions import Reduction

_ACROSS, _CALLS, _QUORUMS = 1, 2, 3
"""The names of the entries: reductions, the script's calls, quorums."""
_NAME_SHIFT = 8
"""A quorum's name has the number of its attempt from this bit on."""
_REDUCTIONS_MAX = 1 << 16
"""Reductions in one step."""
_SEEN_SHIFT = 32
"""A reduction's mark has the number of its attempt, and from this bit on the number of the highest
attempt known then; 0 if that attempt has another quorum_id."""
_NUMBER_MAX = (1 << _SEEN_SHIFT) - 1


class Results:
    """The log of one worker. Only this worker and its replacement write to it.

    Args:
        area: the memory of the log.
        rank: the worker's rank in its replica.
        others: the paths of the other replicas' memory.
        is_needed: returns whether a replacement could use this log.
        fills_up: called when the log has no room left.
    """

    def __init__(
        self,
        area: Area,
        rank: int,
        others: Sequence[str],
        is_needed: Callable[[], bool],
        fills_up: Callable[[], None],
    ) -> None:
        self._area, self._rank = area, rank
        self._others, self._memories = [*others], list[GroupMemory]()
        self._is_needed, self._fills_up = is_needed, fills_up
        self._lock = threading.Lock()
        self._is_full = False
        self._under = NO_ATTEMPT  # the attempt whose quorum was logged last
        self.calls = 0  # how many calls of the script were logged

    def starts(self) -> None:
        """Lay out an empty log, for the first process of this worker."""
        self._area.lay_out_logs()
        self._area.open_log(0, 0)

    def begins(self, log: int, oldest: int) -> None:
        """A step begins, in the log with the number ``log``. Drop the logs before ``oldest``."""
        area = self._area
        with self._lock:
            if log > area.newest_log:
                area.open_log(log, max((x.end for x in area.logs()), default=0))
                self._is_full, self._under = False, NO_ATTEMPT
            area.drop_logs(oldest - 1)

    def hands_out(
        self,
        step: int,
        known: Sequence[tuple[int, Reduction]],
        at: Attempt,
        quorum: Quorum | None,
        seen: Attempt,
    ) -> None:
        """Log results that the script is about to receive.

        Args:
            step: the number of the worker's step; ``known``: its reductions, with their index.
            at: the attempt under which the results stand.
            quorum: the one in force.
            seen: the highest attempt that is known.
        """
        with self._lock:
            for index, reduction in known:
                call = step * _REDUCTIONS_MAX + index
                if self._area.find(_ACROSS, call) is None:
                    self._has_quorum(at, quorum)
                    is_like = seen.quorum_id == at.quorum_id
                    mark = at.number | (seen.number << _SEEN_SHIFT if is_like else 0)
                    self._log(_ACROSS, call, at.quorum_id, [reduction.data.detach()], mark)

    def logs(self, tag: Attempt, tensors: Sequence[torch.Tensor]) -> None:
        """Log the result of a call of the script; ``tag``: the attempt under which it was made."""
        with self._lock:
            self._log(_CALLS, self.calls, tag.quorum_id, tensors, tag.number)
            self.calls += 1

    def _has_quorum(self, at: Attempt, quorum: Quorum | None) -> None:
        if at != self._under and quorum is not None:
            known = codec.encode(NewQuorum(replace(quorum, attempt=at)))
            data = torch.frombuffer(bytearray(known), dtype=torch.uint8)
            name = _QUORUMS + (at.number << _NAME_SHIFT)
            if self._log(name, at.quorum_id, 0, [data], len(known)):
                self._under = at

    def _log(
        self, name: int, call: int, kind: int, tensors: Sequence[torch.Tensor], mark: int
    ) -> bool:
        if self._is_full or not self._is_needed():
            return False
        try:
            on_host = [x.cpu() for x in tensors]
            self._area.log(self._area.newest_log, name, call, kind, on_host, mark)
        except AreaFull:
            self._is_full = True
            self._fills_up()
        return not self._is_full

    # ------------------------------------------------------------ a replacement

    def steps_since(self, begun: int) -> set[tuple[int, int]]:
        """The logged reductions of the steps after ``begun``, by step and index."""
        found = (divmod(call, _REDUCTIONS_MAX) for call in self._area.calls(_ACROSS))
        return {(step, index) for step, index in found if step > begun}

    def calls_since(self, first: int) -> list[Entry]:
        """The logged calls of the script, from number ``first``; logging continues after them."""
        numbers = sorted({x for x in self._area.calls(_CALLS) if x >= first})
        self.calls = max((x + 1 for x in numbers), default=first)
        return [x for x in (self._area.find(_CALLS, y) for y in numbers) if x is not None]

    def of(self, step: int, index: int, in_force: Quorum) -> tuple[Entry, Quorum | None] | None:
        """The logged result of a reduction; None: it was not logged.

        Returns:
            The entry, and the quorum in which the reduction was made; None: not known.
        """
        entry = self._area.find(_ACROSS, step * _REDUCTIONS_MAX + index)
        return None if entry is None else (entry, _quorum_of(self._area, entry, in_force))

    def of_others(
        self, number: int, index: int, in_force: Quorum, highest: Attempt
    ) -> tuple[Entry, Quorum] | None:
        """The result that the same rank of another replica has logged, if the lost worker may have
        had it too (``may_take``).

        Args:
            number: of the step, equal at all replicas.
            highest: the highest attempt that this worker's group has seen.
        """
        while self._others:
            with contextlib.suppress(OSError):  # that replica was restarted
                self._memories.append(GroupMemory.open(self._others.pop()))
        for memory in self._memories:
            begun, area = memory.board.begun(self._rank, number), memory.results(self._rank)
            call = begun * _REDUCTIONS_MAX + index
            entry = None if begun == NONE else area.find(_ACROSS, call)
            if entry is None:
                continue
            found = Entry(entry.kind, entry.data.clone(), entry.mark)
            quorum, again = _quorum_of(area, entry, in_force), area.find(_ACROSS, call)
            if quorum is None or again is None or not quorum.has_same_members(in_force):
                continue
            is_whole = again.data.data_ptr() == entry.data.data_ptr()  # was not overwritten
            if is_whole and may_take(Attempt(entry.kind, entry.mark >> _SEEN_SHIFT), highest):
                return found, quorum
        return None

    def is_back(self) -> None:
        """The replacement has caught up: close the others' memory, so that it can be freed."""
        for memory in self._memories:
            memory.close()
        self._others.clear()
        self._memories.clear()


def _quorum_of(area: Area, entry: Entry, in_force: Quorum) -> Quorum | None:
    """The quorum in which a reduction was made; None: not logged."""
    at = Attempt(entry.kind, entry.mark & _NUMBER_MAX)
    if in_force.attempt == at:
        return in_force
    found = area.find(_QUORUMS + (at.number << _NAME_SHIFT), at.quorum_id)
    if found is None:
        return None
    known: Quorum = codec.decode(found.data[: found.mark].numpy().tobytes()).quorum
    return known
