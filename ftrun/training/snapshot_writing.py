"""The background of a worker's snapshots: a thread, and the node's process that writes.

A slow or full disk, a dead writer or a slow mate costs no step. If the replica has several workers,
the lead's thread has the draft made, and waits for the parts of the others before it has them
merged; the others' threads wait for the draft. Each wait ends at the schedule's limit.

Not here: when and what (snapshots.py), how (snapshots/writer.py).
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftrun.base import clock
from ftrun.base.errors import FtrunError, PeerError
from ftrun.core.ids import StateId
from ftrun.snapshots.memory import SharedMemory
from ftrun.snapshots.serving import NAME
from ftrun.training.context import WorkerContext
from ftrun.training.healing import OWN, USER
from ftrun.training.snapshot_meeting import DRAFT, PART, Meeting

log = logging.getLogger(__name__)

WRITE_TIMEOUT_S = 24 * 3600.0
"""The schedule abandons a write long before this."""
END_TIMEOUT_S = 2.0
TELL_TIMEOUT_S = 30.0
TASKS_MAX = 16


@dataclass(frozen=True, slots=True)
class Copied:
    """A state in shared memory.

    ``held_s``: how long the training thread was stopped for the copy. ``agreed``: see ``Manifest``.
    """

    state: StateId
    position: str
    structure: Any
    specs: tuple[Any, ...]
    chunks: list[Any]
    offsets: list[int]
    nbytes: int
    held_s: float
    agreed: int | None = None


class SnapshotWriting:
    """The background thread of one worker, and its connection to the process that writes.

    Args:
        meeting: the workers of its replica; None: it is the only one.
    """

    def __init__(self, context: WorkerContext, meeting: Meeting | None) -> None:
        self._context = context
        self._meeting = meeting
        self._lock = threading.Lock()
        self._memory: SharedMemory | None = None
        self._tasks: queue.Queue[Callable[[], None] | None] = queue.Queue(TASKS_MAX)
        self._thread: threading.Thread | None = None
        self._writer: Any = None
        self._closing = threading.Event()

    # ------------------------------------------------------------ from the training thread

    def hand(self, task: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ftrun-snapshot", daemon=True)
            self._thread.start()
        self._tasks.put_nowait(task)

    @property
    def memory(self) -> SharedMemory:
        """The memory shared with the process that writes. Used by both threads."""
        with self._lock:
            if self._memory is None:
                self._memory = SharedMemory()
            return self._memory

    @property
    def is_closing(self) -> bool:
        """Whether the current write is given up, because this ends."""
        return self._closing.is_set()

    def abandon(self) -> None:
        """Abandon the current write. The thread that waits for it reports that."""
        if self._writer is not None:
            self._writer.kill()

    def close(self) -> None:
        """End the thread. A snapshot that is being written is given up."""
        self._closing.set()
        if self._meeting is not None:
            self._meeting.close()
        if self._thread is not None:
            self.abandon()
            self._tasks.put_nowait(None)
            self._thread.join(END_TIMEOUT_S)

    # ------------------------------------------------------------ in the background thread

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None and not self.is_closing:
            task()
        if self._writer is not None:
            self._writer.close()

    def warm(self) -> None:
        """Connect in advance, because the process loads torch for the first connection."""
        try:
            self._start_writer()
        except (OSError, FtrunError) as error:
            log.warning("snapshots: %s. It is tried again with the next one", error)

    def write(self, copied: Copied, limit_s: float, inject: str) -> dict[str, Any]:
        """Have this worker's part written. A lead also has all parts merged into a snapshot.

        Returns:
            On the lead: the snapshot's path, size and duration.

        Raises:
            OSError, FtrunError, ValueError: it was not written, in words.
        """
        order = self._order(copied, inject)
        try:
            if self._meeting is None:
                return self._ask("whole", order)
            step, deadline = copied.state.step, clock.now() + limit_s
            if self._context.group_rank == 0:
                return self._lead(self._meeting, step, order, deadline)
            self._follow(self._meeting, step, order, deadline)
            return {}
        except (OSError, FtrunError, ValueError):
            self._end_writer_if_dead()
            raise

    def agree(self, path: str, step: int) -> None:
        """Note in the snapshot that all replicas had the same parameters at ``step``."""
        try:
            self._ask("agree", {"path": path, "step": step})
        except (OSError, FtrunError) as error:
            log.warning("the snapshot %s is not marked as agreed on: %s", path, error)
            self._end_writer_if_dead()

    def _lead(
        self, meeting: Meeting, step: int, order: dict[str, Any], deadline: float
    ) -> dict[str, Any]:
        meeting.forget(deadline)
        try:
            draft = self._ask("draft", order)["path"]
        except (OSError, FtrunError, ValueError) as error:
            self._tell(meeting, step, DRAFT, error=str(error))
            raise
        try:
            meeting.tell(step, DRAFT, draft, deadline)
            self._ask("part", order)
            for rank in meeting.others:
                self._hear_part(meeting, step, rank, deadline)
            return self._ask("merge", order)
        except (OSError, FtrunError, ValueError):
            with contextlib.suppress(OSError, FtrunError):
                self._ask("drop", order)
            raise

    def _hear_part(self, meeting: Meeting, step: int, rank: int, deadline: float) -> None:
        try:
            meeting.hear(step, PART, deadline, rank)
        except PeerError as error:
            if clock.now() < deadline:
                raise
            raise PeerError(f"worker {rank} of this replica has not written its part") from error

    def _follow(self, meeting: Meeting, step: int, order: dict[str, Any], deadline: float) -> None:
        meeting.forget(deadline)
        draft = meeting.hear(step, DRAFT, deadline)
        try:
            self._ask("part", {**order, "draft": draft})
        except (OSError, FtrunError, ValueError) as error:
            self._tell(meeting, step, PART, error=str(error))
            raise
        self._tell(meeting, step, PART)

    def give_up(self, step: int, why: str) -> None:
        """Report that this worker could not copy its state, so that the others need not wait."""
        if self._meeting is not None:
            what = PART if self._context.group_rank else DRAFT
            self._tell(self._meeting, step, what, error=why)

    def _tell(self, meeting: Meeting, step: int, what: str, error: str = "") -> None:
        rank, deadline = self._context.group_rank, clock.now() + TELL_TIMEOUT_S
        try:
            meeting.tell(step, what, "", deadline, error, rank)
        except PeerError as why:  # then the others reach their deadline
            log.warning("snapshots: %s", why)

    def _ask(self, kind: str, order: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = self._start_writer().ask(kind, order, WRITE_TIMEOUT_S)
        return found

    def _start_writer(self) -> Any:
        from ftrun.snapshots.process import WriterProcess  # only the replica that writes needs it

        if self._writer is None:
            where = Path(self._context.socket_path).parent / NAME
            self._writer = WriterProcess(self.memory, where)
        return self._writer

    def _end_writer_if_dead(self) -> None:
        """Drop a dead connection: the next snapshot connects to the process's successor."""
        if self._writer is not None and not self._writer.lives:
            self._writer.close()
            self._writer = None

    def _order(self, copied: Copied, inject: str) -> dict[str, Any]:
        here = self._context
        return {
            "directory": str(Path(here.snapshot_dir)),
            "keep": here.snapshot_keep,
            "writer": here.key.incarnation[:16],
            "step": copied.state.step,
            "lineage": copied.state.lineage,
            "position": copied.position,
            "origin": {
                "script": here.script,
                "inject": inject,
                "workers_per_replica": here.workers_per_replica,
                "replicas": here.replicas,
                "job_id": here.job_id,
            },
            "structure": copied.structure,
            "specs": [spec.fields for spec in copied.specs],
            "offsets": copied.offsets,
            "nbytes": max(1, copied.nbytes),
            "user_key": USER,
            "own_key": OWN,
            "rank": here.group_rank,
            "workers": here.workers_per_replica,
            "chunks": copied.chunks,
            "agreed": copied.agreed,
        }
