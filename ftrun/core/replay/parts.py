"""One snapshot on disk of a group on several nodes: each reads or writes its own ranks' parts.

Theory of operation. All nodes hold the states of one step (copying.py), and share a directory. The
lead creates a draft there, with a list of what the other nodes need not write. Then each node
writes its parts with a hash of each file, and answers. The lead alone turns the draft into a
snapshot, by a manifest that it writes last, and only if *all* nodes have written their parts. Until
then the newest snapshot is the one before.

| event                          | writing                   | reading                           |
|--------------------------------|---------------------------|-----------------------------------|
| each node has carried it out   | the lead merges the parts | all resume from there             |
| one finds a file damaged       |                           | the snapshot before is tried      |
| one cannot                     | the draft is dropped      | the group does not start          |
| one is lost                    | the draft is dropped      | the node that replaces it reads   |

If a node is lost while it writes, the draft is dropped even if its parts are complete, because the
group may resume from an earlier step. A draft is dropped only when all remaining nodes have
answered, because until then they write to it. An answer about another draft is ignored: its node
was too late.

Not here: when a snapshot is due (core/worker/group_snapshots.py), the files (snapshots/groups.py).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field


@dataclass
class Parts:
    """The parts of one snapshot. ``name``: the draft that is written, or the snapshot that is read.

    ``asked``: the nodes that have received the order.
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
        """The group has these nodes now, and none is missing.

        Returns those that have no order yet.
        """
        new = [node for node in nodes if node not in self.asked]
        self.asked.update(new)
        self._waits.update(new)
        self._is_complete = True
        return new

    def answered(self, node: str, name: str, reason: str = "", *, is_damaged: bool = False) -> None:
        """A node has carried out its order, or could not for the ``reason``."""
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
        """Whether no order is outstanding, and no further node is expected."""
        return not self._waits and (self._is_complete or bool(self._reasons))

    @property
    def why_not(self) -> tuple[str, str] | None:
        """The first node that could not carry out its order, and its reason; None: all could."""
        return next(iter(self._reasons.items()), None)

    @property
    def damaged(self) -> tuple[str, str] | None:
        """The first node that has found a damaged file, and which file; None: no node has."""
        return next(iter(self._damaged.items()), None)
