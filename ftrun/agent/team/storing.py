"""A node's part of snapshots on a disk: it writes and reads the states of its own ranks.

The node's writing process does the work (snapshots/groups.py). Not here: which step or snapshot
(disk.py), what is in memory (keeping.py).
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from pathlib import Path

from ftrun.agent.fleet import Fleet
from ftrun.agent.group_disk import READ_LIMIT_S, order_of
from ftrun.agent.writer import WriterLink
from ftrun.base.errors import PeerError, UserError
from ftrun.config.settings import RunSettings
from ftrun.core.messages import FillRanks, RanksStored, WriteRanks
from ftrun.snapshots.process import FILL, PART

MARK = ".node-"


class Storing:
    """Runs in the event loop's thread. ``tell``: called with the result of each order."""

    def __init__(
        self,
        fleet: Fleet,
        settings: RunSettings,
        runtime_dir: Path,
        tell: Callable[[RanksStored], None],
    ) -> None:
        self._fleet = fleet
        self._settings = settings
        self._notes = str(runtime_dir / "set-up-{}")
        self._tell = tell
        self.link = WriterLink(runtime_dir)

    async def write(self, order: WriteRanks) -> None:
        """Write the states of a step, and hold them meanwhile."""
        reason = ""
        memory = self._fleet.memory.last_of(order.incarnation)
        held = None if memory is None else memory.hold(order.step)
        if memory is None or held is None:
            self._tell(RanksStored(order.name, f"step {order.step} is not in its memory any more"))
            return
        fields = order_of(self._settings, memory, order.incarnation, self._notes)
        fields |= {"step": order.step, "draft": order.name}
        try:
            await self.link.ask(PART, fields, order.limit_s)
        except (PeerError, UserError) as error:
            reason = str(error)
        finally:
            for one in held:
                one.release()
        self._tell(RanksStored(order.name, reason))

    async def fill(self, order: FillRanks) -> None:
        """Load the states of a snapshot into memory."""
        known, s, reason = self._fleet.memory, self._settings, ""
        known.make(order.replica_id, order.incarnation)
        memory, is_damaged = known.of(order.incarnation), False
        if memory is None:
            self._tell(RanksStored(order.name, "there is too little memory"))
            return
        places = [x / order.name for x in (s.snapshot_path, s.resume_path) if x is not None]
        path = next((x for x in places if x.exists()), places[0])
        fields = {
            "path": str(path),
            "digest": order.digest,
            "place": memory.place,
            "notes": self._notes,
        }
        try:
            reason = str((await self.link.ask(FILL, fields, READ_LIMIT_S))["damaged"])
            is_damaged = bool(reason)
        except (PeerError, UserError) as error:
            reason = str(error)
        if not reason and known.of(order.incarnation) is not memory:
            reason = "its start was given up meanwhile"
        elif not reason:
            known.begins_from(order.incarnation, order.step)
        self._tell(RanksStored(order.name, reason, is_damaged))

    def close(self) -> None:
        """Cancel what is under way."""
        self.link.close()


def make_mark(where: Path) -> str:
    """Create a file by which the lead checks that it shares this directory. Returns its name.

    If it cannot be created, the lead does not see it, and reports that.
    """
    name = f"{MARK}{secrets.token_hex(8)}"
    with contextlib.suppress(OSError):
        (where / name).touch()
    return name


def take_mark(where: Path, name: str) -> bool:
    """For the lead: whether the mark is here. The mark is removed."""
    if not name.startswith(MARK) or "/" in name:
        return False
    try:
        (where / name).unlink()
    except OSError:
        return False
    return True
