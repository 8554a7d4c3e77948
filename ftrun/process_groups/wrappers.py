"""Groups around another group: torchft's names, for scripts and for tests of scripts.

``ProcessGroupWrapper`` forwards all calls to ``parent``: another group, or one that a subclass
makes in ``_create_pg``. The other classes swallow errors, inject them, or do nothing.

Not here: which of them a Manager can use (adapted.py).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store
from torch.distributed import Work

from ftrun.process_groups.built import DEFAULT_TIMEOUT, FinishedWork
from ftrun.process_groups.collectives import WITHOUT_OPTIONS
from ftrun.process_groups.handles import ReconfigureOptions, meet, store_client
from ftrun.process_groups.reconfigurable import ReconfigurableGroup
from ftrun.process_groups.solo import alone

log = logging.getLogger(__name__)

T = TypeVar("T")


class ProcessGroupWrapper(ReconfigurableGroup):
    """Forwards collectives to ``parent``.

    A subclass without a group to wrap makes one in ``_create_pg``, at each ``reconfigure``.

    Args:
        timeout: deadline for the store in which the ranks meet.
        pg: the group to wrap; None: ``_create_pg`` makes it.
    """

    def __init__(
        self, timeout: timedelta = DEFAULT_TIMEOUT, pg: dist.ProcessGroup | None = None
    ) -> None:
        super().__init__(0, 1)
        self._pg = pg
        self._timeout = timeout
        self._rank: int | None = None
        self._uuid: int | None = None
        self._global_ranks: list[int] | None = None

    # ------------------------------------------------------------ for subclasses

    def _create_pg(self, store: Store, rank: int, world_size: int) -> dist.ProcessGroup:
        """Connect with the other ranks. Blocks until all have connected."""
        raise NotImplementedError(f"{type(self).__name__} wraps no group and makes none")

    def _wrap_work(self, work: Work, opts: object) -> Work:
        """The Work that the caller gets. A subclass may replace it."""
        return work

    def _opts_hook(self, opts: T) -> T:
        """The options that the wrapped group gets. A subclass may change them."""
        return opts

    @contextmanager
    def _run_context(self) -> Iterator[None]:
        """A context around each call of the wrapped group."""
        yield

    def _renewed(self) -> None:
        """Called when the wrapped group was connected again."""

    # ------------------------------------------------------------ the group inside

    @property
    def parent(self) -> dist.ProcessGroup:
        """The group that does the work.

        Raises:
            AssertionError: there is none yet.
        """
        assert self._pg is not None, "process group not initialized"
        return self._pg

    def _inner(self) -> ReconfigurableGroup | None:
        return self._pg if isinstance(self._pg, ReconfigurableGroup) else None

    def _handle_id(self) -> str:
        inner = self._inner()
        return super()._handle_id() if inner is None else inner._handle_id()

    def get_reconfigure_handle(self) -> str:
        inner = self._inner()
        return super().get_reconfigure_handle() if inner is None else inner.get_reconfigure_handle()

    def set_rank_info(
        self,
        replica_id: str,
        group_rank: int,
        group_world_size: int,
        global_rank: int | None = None,
    ) -> None:
        super().set_rank_info(replica_id, group_rank, group_world_size, global_rank)
        inner = self._inner()
        if inner is not None:
            inner.set_rank_info(replica_id, group_rank, group_world_size, global_rank)

    def reconfigure(self, opts: ReconfigureOptions) -> Work:
        self._renewed()
        inner = self._inner()
        if inner is not None:
            return inner.reconfigure(opts)
        meeting = meet(opts, self._handle_id())
        self._rank, self._uuid = meeting.rank, meeting.uuid
        self._global_ranks = meeting.global_ranks
        self.abort(errored=False)
        store = store_client(meeting.store_addr, self._timeout)
        self._pg = self._create_pg(store, meeting.rank, meeting.world_size)
        return FinishedWork()

    def abort(self, errored: bool = True) -> None:
        pg, made_here = self._pg, self._inner() is None
        if pg is None:
            return
        if hasattr(pg, "abort"):
            pg.abort()
        if made_here:
            self._pg = None

    def shutdown(self) -> None:
        inner = self._inner()
        if inner is not None:
            inner.shutdown()
        else:
            self._pg = None

    def errored(self) -> Exception | None:
        inner = self._inner()
        return None if inner is None else inner.errored()

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout
        inner = self._inner()
        if inner is not None:
            inner.set_timeout(timeout)

    def getBackendName(self) -> str:
        inner = self._inner()
        return super().getBackendName() if inner is None else inner.getBackendName()

    def size(self) -> int:
        return self.parent.size()

    def rank(self) -> int:
        return self.parent.rank()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(pg={self._pg})"

    def _collective(self, name: str, *arguments: Any) -> Work:
        opts = None
        if name not in WITHOUT_OPTIONS:
            opts = arguments[-1]
            arguments = *arguments[:-1], self._opts_hook(opts)
        with self._run_context():
            work: Work = getattr(self.parent, name)(*arguments)
            return self._wrap_work(work, opts)


class ErrorSwallowingProcessGroupWrapper(ProcessGroupWrapper):
    """An all-reduce that fails yields its input; later ones do nothing until ``reconfigure``.

    For model code that cannot handle errors. ``error`` returns the error.
    """

    def __init__(self, pg: dist.ProcessGroup) -> None:
        super().__init__(pg=pg)
        self._error: Exception | None = None

    def _renewed(self) -> None:
        self._error = None

    def report_error(self, e: Exception) -> None:
        """Skip all-reduces from now on, because of ``e``."""
        log.error("an all-reduce failed, so later ones are skipped: %s", e)
        self._error = e

    def error(self) -> Exception | None:
        """The error because of which all-reduces are skipped."""
        return self._error

    def allreduce(self, tensors: Any, opts: Any = None) -> Work:  # type: ignore[override]
        if self._error is not None:
            return FinishedWork(tensors)
        try:
            return SwallowingWork(self, super().allreduce(tensors, opts), tensors)
        except Exception as error:  # noqa: BLE001  # whatever the wrapped group raises
            self.report_error(error)
            return FinishedWork(tensors)


class SwallowingWork(Work):
    """A Work that reports the error of ``work`` and yields ``default`` instead."""

    def __init__(self, pg: ErrorSwallowingProcessGroupWrapper, work: Work, default: object) -> None:
        super().__init__()
        self._pg = pg
        self._work = work
        self._default = default

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the end, with or without an error."""
        try:
            self._work.wait() if timeout is None else self._work.wait(timeout)
        except Exception as error:  # noqa: BLE001
            self._pg.report_error(error)
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        """A future that never fails."""
        return self._work.get_future().then(self._value)

    def _value(self, future: torch.futures.Future[Any]) -> Any:
        try:
            return future.value()
        except Exception as error:  # noqa: BLE001
            self._pg.report_error(error)
            return self._default


class FakeProcessGroupWrapper(ProcessGroupWrapper):
    """Lets an all-reduce fail on demand, for tests of scripts."""

    def __init__(self, pg: dist.ProcessGroup) -> None:
        super().__init__(pg=pg)
        self._future_error: Exception | None = None

    def _renewed(self) -> None:
        self._future_error = None

    def report_future_error(self, e: Exception) -> None:
        """Let the next all-reduce fail with ``e``."""
        self._future_error = e

    def allreduce(self, tensors: Any, opts: Any = None) -> Work:  # type: ignore[override]
        work = super().allreduce(tensors, opts)
        error, self._future_error = self._future_error, None
        return work if error is None else _FailsAfter(work, error)


class _FailsAfter(Work):
    """``work``, but ending with ``error``."""

    def __init__(self, work: Work, error: Exception) -> None:
        super().__init__()
        self._work = work
        self._error = error

    def wait(self, timeout: timedelta | None = None) -> bool:
        self._work.wait() if timeout is None else self._work.wait(timeout)
        raise self._error

    def is_completed(self) -> bool:
        return self._work.is_completed()

    def get_future(self) -> torch.futures.Future[Any]:
        return self._work.get_future().then(self._fail)

    def _fail(self, future: torch.futures.Future[Any]) -> Any:
        raise self._error


class ProcessGroupDummy(ReconfigurableGroup):
    """A group of one rank that leaves all tensors unchanged.

    For DistributedDataParallel's own collectives when a comm hook does the work, and for tests.

    Attributes:
        reconfigure_count: how often ``reconfigure`` was called.
    """

    def __init__(self, rank: int, world: int) -> None:
        assert rank == 0 and world == 1, "a dummy group has one rank"
        super().__init__(rank, world)
        self.reconfigure_count = 0

    def reconfigure(self, opts: ReconfigureOptions) -> Work:
        self.reconfigure_count += 1
        return FinishedWork()

    def _collective(self, name: str, *arguments: Any) -> Work:
        return FinishedWork(alone(name, arguments))

    def size(self) -> int:
        return 1

    def getBackendName(self) -> str:
        return "ftrun-dummy"
