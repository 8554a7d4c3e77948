"""One snapshot on a disk of a group on several nodes: each reads or writes its own ranks' parts.

Theory of operation. All nodes hold the states of one step (copying.py), and share a directory. The
lead makes a draft there, with what the others need not write. Then each node writes its parts, with
a hash of each file, and answers. The lead alone makes the draft a snapshot, by a manifest that it
writes last, and only if *all* have written. Until then whatever was whole there is the newest.

| event                          | writing                   | reading                         |
|--------------------------------|---------------------------|---------------------------------|
| each node has carried it out   | the lead merges the parts | all begin from there            |
| one finds a file damaged       |                           | the snapshot before is tried    |
| one cannot                     | the draft is dropped      | the group does not start        |
| one is lost                    | the draft is dropped      | the one that comes reads it too |

A node that is lost spoils what it has written, too: perhaps all go on from an earlier step then.
Nothing is dropped before all have answered that are left, as they would write on. An answer about
another draft than this one's does not count: its node was too late.

Not here: when one is due (core/worker/group_snapshots.py), the files (snapshots/groups.py).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field


@dataclass
class Parts:
    """Of one snapshot. ``name``: of the draft that is written, or of the snapshot that is read.

    ``asked``: the nodes that have got the order.
    """

    name: str
    step: int
    is_read: bool = False
    asked: set[str] = field(default_factory=set)
    _waits: set[str] = field(default_factory=set)
    _is_complete: bool = False
    _reasons: dict[str, str] = field(default_factory=dict)
    _damaged: dict[str, str] = field(default_factory=dict)

    def ask(self, nodes: Collection[str]) -> list[str]:
        """These are the group's nodes now, and none is missing: those that have no order so far."""
        new = [node for node in nodes if node not in self.asked]
        self.asked.update(new)
        self._waits.update(new)
        self._is_complete = True
        return new

    def answered(self, node: str, name: str, reason: str = "", *, is_damaged: bool = False) -> None:
        """A node has carried out its order; or could not, for this reason."""
        if name != self.name or node not in self._waits:
            return
        self._waits.discard(node)
        if reason:
            (self._damaged if is_damaged else self._reasons).setdefault(node, reason)

    def gone(self, node: str) -> None:
        """A node is lost."""
        if node not in self.asked:
            return
        self._waits.discard(node)
        self._is_complete = False
        if not self.is_read:
            self._reasons.setdefault(node, "it is lost")

    @property
    def is_over(self) -> bool:
        """No order is left that could be carried out, and no node is to come."""
        return not self._waits and (self._is_complete or bool(self._reasons))

    @property
    def why_not(self) -> tuple[str, str] | None:
        """The first node that could not, and its reason; None: all could."""
        return next(iter(self._reasons.items()), None)

    @property
    def damaged(self) -> tuple[str, str] | None:
        """The first node that has found a file damaged, and which; None: none has."""
        return next(iter(self._damaged.items()), None)
