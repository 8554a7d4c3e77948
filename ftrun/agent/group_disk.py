"""Snapshots of a group on a disk, for the loss of its memory: their orders, and lines for people.

One process of this node writes and reads them (snapshots/serving.py), and outlives the workers,
none of which takes part. Not here: when one is due (core/worker/snapshots.py), how it is written
(snapshots/groups.py), the memory itself (group_memory.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from ftrun.base import clock
from ftrun.base.errors import FtrunError, PeerError
from ftrun.base.words import amount
from ftrun.config.settings import RunSettings
from ftrun.core.forms import MEMORY
from ftrun.core.replay.falls import Fall
from ftrun.core.replay.mending import SOUND
from ftrun.core.worker.snapshots import Decision, SkipNotices, SnapshotSchedule
from ftrun.snapshots import directory
from ftrun.snapshots.area import GroupMemory, Word
from ftrun.snapshots.process import LOOK_S, START_TIMEOUT_S
from ftrun.snapshots.serving import FILL, NAME, WRITE

READ_LIMIT_S = 24 * 3600.0


def _step_of(memory: GroupMemory) -> int:
    """The newest step that all workers have in memory; -1: none that could be gone on from."""
    falls = [Fall(x) for x in memory.board.all(Word.FALL) if x]
    return min(memory.board.all(Word.NEWEST)) if SOUND.issuperset(falls) else -1


class GroupDisk:
    """``tell``: shows people a line. ``on_whole``: called with the step of each that is whole. In
    the event loop's thread."""

    def __init__(
        self, settings: RunSettings, runtime_dir: Path, tell: Callable[[str], None]
    ) -> None:
        self.on_whole: Callable[[int], None] = lambda step: None
        self._settings = settings
        self._where = runtime_dir / NAME
        self._notes = str(runtime_dir / "set-up-{}")
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._schedule: SnapshotSchedule | None = None
        self._skips = SkipNotices()
        self._step = -1
        self._has_told = False
        self._lock = asyncio.Lock()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def fill(self, memory: GroupMemory | None) -> int:
        """Have the newest snapshot in a group's memory; its step, -1: there is none.

        ``memory``: None: there is too little.

        Raises:
            PeerError: it cannot be read, or is of another job; in words.
        """
        s = self._settings
        places = [x for x in dict.fromkeys((s.snapshot_path, s.resume_path)) if x is not None]
        if not any(map(directory.snapshots, places)):
            return -1
        if memory is None:
            raise PeerError(f"there is too little memory to go on from a snapshot in {places[0]}")
        order = {
            "directories": list(map(str, places)),
            "origin": self._origin(),
            "place": memory.place,
            "notes": self._notes,
        }
        answer = await self._ask(FILL, order, READ_LIMIT_S)
        for name, why in answer["damaged"]:
            self._tell(f"the snapshot {name} is damaged, and is passed over: {why}")
        step = int(answer["step"])
        if step >= 0:
            self._step = step
            self.on_whole(step)
        return step

    def look(self, memory: GroupMemory, incarnation: str) -> None:
        """Take a snapshot, if one is due."""
        step, now = _step_of(memory), clock.now()
        if step < 0:
            return
        if self._schedule is None:
            self._schedule = SnapshotSchedule(self._settings.snapshot_every_s, now)
        if step <= self._step and not self._schedule.is_writing:
            return
        decision = self._schedule.at_boundary(True, now, step)
        if decision is Decision.LOOK:
            self._begin(self._see_age(self._schedule))
        elif decision is Decision.PREPARE:
            self._begin(self._prepare(self._schedule))
        elif decision is Decision.TAKE:
            self._begin(self._take(self._schedule, memory.place, incarnation))
        elif decision is Decision.SKIP and self._skips.skipped(self._schedule.counts.skipped):
            self._tell(
                f"snapshots are skipped from step {step} on, because the one before is still being "
                "written. Give --snapshot-every a longer time, or --snapshot a faster disk. A line "
                "tells when one is written again"
            )
        elif decision is Decision.ABANDON:
            self._close_streams()

    async def last(self, memory: GroupMemory, incarnation: str, limit_s: float) -> None:
        """The job ends before its script: what its workers have in memory goes to the disk.

        Every worker has ended by now.
        """
        step = _step_of(memory)
        if step <= self._step or all(memory.board.all(Word.OVER)):
            return
        schedule = self._schedule or SnapshotSchedule(self._settings.snapshot_every_s, clock.now())
        self._has_told = True
        task = self._begin(self._take(schedule, memory.place, incarnation))
        done, _ = await asyncio.wait([task], timeout=limit_s)
        if self._step >= step:
            self._tell(
                f"The last snapshot is of step {self._step}. The same command goes on from there."
            )
        elif not done:
            self._tell(
                f"the last snapshot, of step {step}, was not written within half of --grace: give "
                "it longer"
            )

    async def close(self) -> None:
        """What is under way is given up."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._close_streams()

    # ------------------------------------------------------------ tasks

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _see_age(self, schedule: SnapshotSchedule) -> None:
        age_s: float | None = None
        with contextlib.suppress(OSError, FtrunError):  # the snapshot itself will tell
            where = self._settings.snapshot_path
            assert where is not None
            age_s = await self._loop.run_in_executor(None, directory.age_s, where)
        schedule.looked(age_s, clock.now())

    async def _prepare(self, schedule: SnapshotSchedule) -> None:
        """Connect before it is needed: the process loads torch then."""
        with contextlib.suppress(PeerError):
            async with self._lock:
                await self._connected()
        schedule.prepared()

    async def _take(self, schedule: SnapshotSchedule, place: str, incarnation: str) -> None:
        s = self._settings
        order = {
            "directory": str(s.snapshot_path),
            "keep": s.snapshot_keep,
            "writer": incarnation[:16],
            "step": 0,
            "origin": self._origin(),
            "workers": s.workers_per_replica,
            "place": place,
            "notes": self._notes,
        }
        try:
            answer = await self._ask(WRITE, order, schedule.limit_s)
        except PeerError as error:
            schedule.failed()
            self._tell(
                f"a snapshot was not written: {error}. Training goes on; the next one is due in "
                f"{s.snapshot_every_s:g} s or less"
            )
            return
        schedule.written()
        self._step = step = answer["step"]
        self.on_whole(step)
        for other in answer["given_up"]:
            self._tell(
                f"the snapshot of step {other} was not written to its end, because all was killed "
                f"meanwhile. That of step {step} is whole"
            )
        if self._skips.written() and self._has_told:
            self._tell(
                f"snapshots are written again: that of step {step}; {schedule.counts.skipped} were "
                "skipped so far"
            )
        if not self._has_told:
            self._has_told = True
            self._tell(
                f"wrote the snapshot of step {step} to {answer['path']}: "
                f"{amount(answer['nbytes'])} in {answer['duration_s']:.1f} s; no worker waited"
            )

    def _origin(self) -> dict[str, Any]:
        s = self._settings
        return {
            "script": s.script.name,
            "inject": MEMORY,
            "workers_per_replica": s.workers_per_replica,
            "replicas": 1,
            "job_id": s.job_id,
        }

    # ------------------------------------------------------------ the process

    async def _ask(self, kind: str, order: dict[str, Any], limit_s: float) -> dict[str, Any]:
        async with self._lock:
            try:
                reader, writer = await self._connected()
                writer.write(json.dumps([kind, order]).encode() + b"\n")
                answer = json.loads(await asyncio.wait_for(reader.readline(), limit_s))
            except (OSError, ValueError, asyncio.TimeoutError) as error:
                self._close_streams()
                how = "was given up" if isinstance(error, asyncio.TimeoutError) else "has ended"
                raise PeerError(f"the process that writes it {how}") from error
        if "error" in answer:
            raise PeerError(str(answer["error"]))
        found: dict[str, Any] = answer
        return found

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        deadline = clock.now() + START_TIMEOUT_S
        while self._streams is None:
            try:
                reader, writer = await asyncio.open_unix_connection(str(self._where))
                writer.write(b"\n")
                if await asyncio.wait_for(reader.readline(), START_TIMEOUT_S):
                    self._streams = reader, writer
            except (OSError, asyncio.TimeoutError) as error:
                if clock.now() > deadline:
                    raise PeerError(f"there is no process that writes: {error}") from error
                await asyncio.sleep(LOOK_S)
        return self._streams

    def _close_streams(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None
