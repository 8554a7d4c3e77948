"""The lead's part of its group's snapshots on a disk, which all nodes share.

Each node writes and reads its own ranks' parts (storing.py). Not here: which nodes must have
answered, and the result (core/replay/parts.py), which step all nodes hold (core/replay/copying.py),
when a snapshot is due (core/worker/group_snapshots.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from ftrun.agent.group_disk import GroupDisk, order_of
from ftrun.agent.team.storing import Storing
from ftrun.base import clock
from ftrun.base.errors import FtrunError, PeerError
from ftrun.config.settings import RunSettings
from ftrun.core.messages import FillRanks, RanksStored, ToHand, WriteRanks
from ftrun.core.replay.copying import Copying
from ftrun.core.replay.parts import Parts
from ftrun.core.worker.group_snapshots import InMemory
from ftrun.snapshots import manifest
from ftrun.snapshots.board import Word
from ftrun.snapshots.directory import Found
from ftrun.snapshots.group_memory import GroupMemory
from ftrun.snapshots.process import DRAFT, DROP, MERGE

LOOK_S = 0.02
DROP_LIMIT_S = 60.0


class Hands(Protocol):
    """The lead's methods that are used here (lead.py)."""

    @property
    def own_id(self) -> str:
        """The id of this node."""

    @property
    def is_complete(self) -> bool:
        """Whether no node of the group is missing."""

    def ranks_of_nodes(self) -> dict[str, range]:
        """The ranks of each node, in order."""

    def name_of(self, node_id: str) -> str:
        """The node's name, for people."""

    def order(self, message: ToHand) -> None:
        """Send to every hand."""

    def order_at(self, node_id: str, message: ToHand) -> None:
        """Send to one hand."""


class SpannedDisk(GroupDisk):
    """The snapshots of a group on several nodes.

    ``copying``: returns the rounds of the group's present life. ``readers``: the nodes that have
    read the snapshot that the group begins from; None: it begins from none.
    """

    storing: Storing

    def __init__(
        self,
        settings: RunSettings,
        runtime_dir: Path,
        tell: Callable[[str], None],
        hands: Hands,
        copying: Callable[[], Copying],
    ) -> None:
        super().__init__(settings, runtime_dir, tell)
        self._hands = hands
        self._copying = copying
        self._parts: Parts | None = None
        self.readers: set[str] | None = None

    # ------------------------------------------------------------ from the nodes

    def stored(self, node_id: str, report: RanksStored) -> None:
        """A node, perhaps this one, has carried out an order, or could not."""
        if self._parts is not None:
            damaged = report.is_damaged
            self._parts.answered(node_id, report.name, report.reason, is_damaged=damaged)

    def gone(self, node_id: str) -> None:
        """A node is lost."""
        if self._parts is not None:
            self._parts.gone(node_id)

    # ------------------------------------------------------------ as GroupDisk

    async def fill(self, memory: GroupMemory | None, replica_id: str, incarnation: str) -> int:
        """See GroupDisk. All nodes read."""
        self.readers = None
        return await super().fill(memory, replica_id, incarnation)

    def _left_in_memory(self, memory: GroupMemory) -> InMemory:
        """See GroupDisk."""
        return replace(self._in_memory(memory), step=self._copying().at_own_nodes())

    def _in_memory(self, memory: GroupMemory) -> InMemory:
        """See GroupDisk: the step that all nodes hold."""
        copying = self._copying()
        step = copying.pinned if self._hands.is_complete else None
        return InMemory(step, copying.is_sound, all(memory.board.all(Word.OVER)))

    async def _write(self, step: int, memory: GroupMemory, incarnation: str) -> dict[str, Any]:
        """See GroupDisk."""
        copying, limit_s = self._copying(), self.plan.schedule(clock.now()).limit_s
        copying.is_taken = True
        step = max(step, copying.pinned or step)  # there may have been a wait for another write
        # A node that is late for another draft must not write into this one.
        writer = f"{incarnation[:16]}-{secrets.token_hex(4)}"
        order = order_of(self._settings, memory, incarnation, self._notes)
        order |= {"step": step, "writer": writer}
        try:
            draft = Path((await self.link.ask(DRAFT, order, limit_s))["path"]).name
            parts = self._parts = Parts(draft, step)
            write = WriteRanks(incarnation, step, draft, limit_s)
            for node in parts.ask(list(self._hands.ranks_of_nodes())):
                self._order_at(node, write)
            await asyncio.sleep(0)  # after this, this node holds the step too
            copying.is_taken = False
            await asyncio.wait_for(self._all_have(parts), limit_s)
            self._raise(parts)
            return await self.link.ask(MERGE, order, limit_s)
        except (FtrunError, asyncio.TimeoutError) as error:
            with contextlib.suppress(PeerError):  # its process is gone: the next one removes it
                await self.link.ask(DROP, {}, DROP_LIMIT_S)
            if isinstance(error, FtrunError):
                raise
            raise PeerError("a node has not written its part in time") from error
        finally:
            copying.is_taken, self._parts = False, None

    async def _read(
        self, _memory: GroupMemory, replica_id: str, incarnation: str, found: Found
    ) -> str:
        """See GroupDisk."""
        name, step = found.path.name, found.manifest.step
        digest = await self._loop.run_in_executor(
            None, manifest.digest_of, found.path / manifest.NAME
        )
        parts = self._parts = Parts(name, step, is_read=True)
        order = FillRanks(replica_id, incarnation, step, name, digest)
        try:
            while not parts.is_over:
                if self._hands.is_complete:
                    for node in parts.ask(list(self._hands.ranks_of_nodes())):
                        self._order_at(node, order)
                await asyncio.sleep(LOOK_S)
        finally:
            self._parts = None
        if parts.damaged is not None:
            return "on {}: {}".format(*self._named(parts.damaged))
        self._raise(parts)
        self.readers = set(parts.asked)
        return ""

    async def _all_have(self, parts: Parts) -> None:
        while not parts.is_over:
            await asyncio.sleep(LOOK_S)

    def _raise(self, parts: Parts) -> None:
        if parts.why_not is not None:
            node, reason = self._named(parts.why_not)
            raise PeerError(f"{node}: {reason}" if node else reason)

    def _named(self, found: tuple[str, str]) -> tuple[str, str]:
        node, reason = found
        return self._hands.name_of(node) if node else "", reason

    def _order_at(self, node: str, order: WriteRanks | FillRanks) -> None:
        if node != self._hands.own_id:
            self._hands.order_at(node, order)
        elif isinstance(order, WriteRanks):
            self._begin(self.storing.write(order))
        else:
            self._begin(self.storing.fill(order))
