"""Snapshots of a group on a disk, which survive the loss of its memory: when to write and read
them.

One process of this node writes and reads them (snapshots/serving.py). It outlives the workers, and
no worker takes part. This module also prints the lines about them. Not here: when a snapshot is due
(core/worker/group_snapshots.py), how it is written (snapshots/groups.py), the memory itself
(group_memory.py), groups on several nodes (team/disk.py).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from ftrun.agent.writer import WriterLink
from ftrun.base import clock
from ftrun.base.errors import FtrunError, PeerError, UserError
from ftrun.base.words import amount
from ftrun.config.settings import RunSettings
from ftrun.core.forms import MEMORY, Form
from ftrun.core.worker.group_snapshots import GroupSnapshots, InMemory, why_unsound
from ftrun.core.worker.snapshots import Decision
from ftrun.snapshots import directory
from ftrun.snapshots.area import NONE
from ftrun.snapshots.board import Word
from ftrun.snapshots.directory import Found
from ftrun.snapshots.group_memory import GroupMemory
from ftrun.snapshots.manifest import Origin
from ftrun.snapshots.process import FILL, WHOLE

READ_LIMIT_S = 24 * 3600.0


class GroupDisk:
    """The snapshots of the groups of one node. ``tell``: prints a line on the terminal.

    All methods run in the event loop's thread.

    Attributes:
        on_whole: called with the step of each snapshot that is complete.
        plan: decides when a snapshot is due.
    """

    def __init__(
        self, settings: RunSettings, runtime_dir: Path, tell: Callable[[str], None]
    ) -> None:
        self.on_whole: Callable[[int], None] = lambda step: None
        self.plan = GroupSnapshots(settings.snapshot_every_s)
        self._settings = settings
        self._notes = str(runtime_dir / "set-up-{}")
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._has_begun = False
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self.link = WriterLink(runtime_dir)

    async def fill(self, memory: GroupMemory | None, replica_id: str, incarnation: str) -> int:
        """Read the newest snapshot into a group's memory; return its step, or NONE if there is
        none.

        ``memory``: None if too little memory is free for the group.

        Raises:
            OSError, PeerError: the snapshot cannot be read now.
            UserError: no snapshot can ever be read, or it is of another job.
            Damaged: its format is unknown.
        """
        find = partial(_newest, self._places(), _origin(self._settings))
        below: int | None = None
        begins_again, self._has_begun = self._has_begun, True
        async with self._lock:
            while True:
                found, passed_over = await self._loop.run_in_executor(None, find, below)
                for name, why in passed_over:
                    self._tell(f"the snapshot {name} is damaged and is skipped: {why}")
                if found is None and below is None and not passed_over:
                    return NONE
                if found is None:
                    raise UserError(
                        f"no complete snapshot is left in {' or '.join(self._places())}. Start "
                        "over with --resume none, or give another directory"
                    )
                if memory is None:
                    raise PeerError(f"there is too little memory to resume from {found.path}")
                why = await self._read(memory, replica_id, incarnation, found)
                if not why:
                    break
                self._tell(f"the snapshot {found.path.name} is damaged and is skipped: {why}")
                below = found.manifest.step
        step = found.manifest.step
        if begins_again:  # at the job's start the line was printed before (snapshots/starting.py)
            self._tell(f"All workers resume from step {step}, the newest snapshot in {found.path}.")
        self.plan.begins_from(step)
        self.on_whole(step)
        return step

    def look(self, memory: GroupMemory, incarnation: str) -> None:
        """Take a snapshot, if one is due."""
        seen = self._in_memory(memory)
        decision = self.plan.look(seen, clock.now())
        if decision is Decision.LOOK:
            self._begin(self._see_age())
        elif decision is Decision.PREPARE:
            self._begin(self._prepare())
        elif decision is Decision.TAKE and seen.step is not None:
            self._begin(self._take(seen.step, memory, incarnation))
        elif decision is Decision.SKIP:
            self._tell(
                f"snapshots are skipped from step {seen.step} on, because the one before is still "
                "being written. Give --snapshot-every a longer time, or --snapshot a faster disk. "
                "A later line reports when one is written again"
            )
        elif decision is Decision.ABANDON:
            self.link.close()

    async def last(self, memory: GroupMemory, incarnation: str, limit_s: float) -> None:
        """The job ends before its script: write the state in the workers' memory to the disk.

        Every worker has ended by now. Waits at most ``limit_s``.
        """
        seen = self._left_in_memory(memory)
        step = seen.step if self.plan.at_end(seen, clock.now()) else None
        if step is None:
            return
        task = self._begin(self._take(step, memory, incarnation))
        done, _ = await asyncio.wait([task], timeout=limit_s)
        newest = self.plan.newest
        if newest is not None and newest >= step:
            self._tell(
                f"The last snapshot is of step {newest}. The same command resumes from there."
            )
        elif not done:
            self._tell(
                f"the last snapshot, of step {step}, was not written within half of --grace: give "
                "it longer"
            )

    async def close(self) -> None:
        """Cancel the work that is in progress."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.link.close()

    @property
    def scalars(self) -> tuple[tuple[str, float], ...]:
        """The scalars for the status, the same as of workers that write (training/snapshots.py)."""
        counts, newest = self.plan.counts, self.plan.newest
        known = {
            "snapshots_written": counts.written,
            "snapshots_skipped": counts.skipped,
            "snapshots_failed": counts.failed,
        } | ({} if newest is None else {"snapshot_step": newest})
        return tuple((name, float(value)) for name, value in known.items())

    # ------------------------------------------------------------ on one node

    def _left_in_memory(self, memory: GroupMemory) -> InMemory:
        """As ``_in_memory``, when no process of the group runs any more."""
        return self._in_memory(memory)

    def _in_memory(self, memory: GroupMemory) -> InMemory:
        board = memory.board
        newest = min(board.all(Word.NEWEST))
        is_sound = why_unsound(board.all(Word.FALL)) is None
        return InMemory(None if newest == NONE else newest, is_sound, all(board.all(Word.OVER)))

    async def _write(self, _step: int, memory: GroupMemory, incarnation: str) -> dict[str, Any]:
        """Write this step or a newer one; return the answer of the writer process.

        Raises as ``WriterLink.ask``.
        """
        order = order_of(self._settings, memory, incarnation, self._notes)
        return await self.link.ask(WHOLE, order, self.plan.schedule(clock.now()).limit_s)

    async def _read(
        self, memory: GroupMemory, _replica_id: str, _incarnation: str, found: Found
    ) -> str:
        """Read one snapshot into memory; return why it is damaged, or "".

        Raises as ``WriterLink.ask``.
        """
        order = {"path": str(found.path), "place": memory.place, "notes": self._notes}
        return str((await self.link.ask(FILL, order, READ_LIMIT_S))["damaged"])

    # ------------------------------------------------------------ tasks

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _see_age(self) -> None:
        age_s: float | None = None
        with contextlib.suppress(OSError, FtrunError):  # an attempt to write will report it
            where = self._settings.snapshot_path
            assert where is not None
            age_s = await self._loop.run_in_executor(None, directory.age_s, where)
        self.plan.schedule(clock.now()).looked(age_s, clock.now())

    async def _prepare(self) -> None:
        with contextlib.suppress(PeerError):
            await self.link.connect()
        self.plan.schedule(clock.now()).prepared()

    async def _take(self, step: int, memory: GroupMemory, incarnation: str) -> None:
        s = self._settings
        try:
            async with self._lock:
                answer = await self._write(step, memory, incarnation)
        except (PeerError, UserError) as error:
            self.plan.schedule(clock.now()).failed()
            self._tell(
                f"a snapshot was not written: {error}. Training continues; the next one is due in "
                f"{s.snapshot_every_s:g} s or less"
            )
            return
        step = answer["step"]
        told = self.plan.written(step, clock.now())
        self.on_whole(step)
        for other in answer["given_up"]:
            self._tell(
                f"the snapshot of step {other} is incomplete, because the job was killed while it "
                f"was written. That of step {step} is complete"
            )
        if told.skipped:
            self._tell(
                f"snapshots are written again: that of step {step}; {told.skipped} were skipped so "
                "far"
            )
        if told.is_first:
            self._tell(
                f"wrote the snapshot of step {step} to {answer['path']}: "
                f"{amount(answer['nbytes'])} in {answer['duration_s']:.1f} s; no worker waited"
            )

    def _places(self) -> list[str]:
        s = self._settings
        return [str(x) for x in dict.fromkeys((s.snapshot_path, s.resume_path)) if x is not None]


def order_of(s: RunSettings, memory: GroupMemory, incarnation: str, notes: str) -> dict[str, Any]:
    """An order to write the states in a group's memory; ``notes``: as in groups.py."""
    return {
        "directory": str(s.snapshot_path),
        "keep": s.snapshot_keep,
        "writer": incarnation[:16],
        "origin": _origin(s),
        "workers": s.workers_per_replica,
        "place": memory.place,
        "notes": notes,
    }


def _origin(s: RunSettings) -> dict[str, Any]:
    return {
        "script": s.script.name,
        "inject": MEMORY,
        "workers_per_replica": s.workers_per_replica,
        "replicas": 1,
        "job_id": s.job_id,
    }


def _newest(
    places: list[str], origin: dict[str, Any], below: int | None
) -> tuple[Found | None, tuple[tuple[str, str], ...]]:
    """The newest snapshot below a step, and each newer damaged one: its name and the reason.

    Raises:
        OSError, Damaged, UserError: as ``GroupDisk.fill``.
    """
    passed_over: list[tuple[str, str]] = []
    for where in map(Path, places):
        looked = directory.look(where, below)
        passed_over += [(path.name, why) for path, why in looked.passed_over]
        found = looked.newest
        if found is None or found.manifest.origin.inject == Form.EXPLICIT.value:
            continue  # a script with a Manager loads its own snapshots
        theirs, own = found.manifest.origin, Origin(**origin)
        if not theirs.fits(own.script, own.inject, own.workers_per_replica):
            raise UserError(
                f"{found.path} is a snapshot of {theirs.script} with --inject {theirs.inject} and "
                f"{theirs.workers_per_replica} workers; this is {own.script} with {MEMORY} "
                f"snapshots and {own.workers_per_replica}"
            )
        return found, tuple(passed_over)
    return None, tuple(passed_over)
