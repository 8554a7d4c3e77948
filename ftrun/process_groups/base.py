"""The class that users construct and pass to the Manager, and the contract of a process group.

Not here: one quorum's connections (built.py), how a backend connects (gloo.py, nccl.py), when to
build, abort or release (training/groups.py).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch.distributed import DistNetworkError, Work

from ftrun.base import clock
from ftrun.base.errors import Bug, PeerError
from ftrun.process_groups.built import DEFAULT_TIMEOUT, AbortSignal, BuiltGroup, FinishedWork
from ftrun.process_groups.handles import ReconfigureOptions, meet
from ftrun.process_groups.reconfigurable import ReconfigurableGroup
from ftrun.process_groups.sockets import local_address
from ftrun.process_groups.solo import SoloGroup

LINGER_S = 0.2


@dataclass(frozen=True, slots=True)
class Place:
    """One rank's place in one build: the arguments of ``build``, and its deadline on ftrun's
    clock."""

    store_addr: str
    prefix: str
    rank: int
    world_size: int
    host: str
    deadline: float
    signal: AbortSignal

    def remaining(self) -> timedelta:
        """Time until the deadline, at least one millisecond: backends read 0 as no deadline."""
        return timedelta(seconds=max(self.deadline - clock.now(), 0.001))


class ProcessGroup(ReconfigurableGroup):
    """A factory of groups; also a torch process group, whose collectives go to the group in use.

    To write one for another backend, subclass it and ``BuiltGroup`` (built.py). The contract:

    - **Build.** ``_connect`` connects one rank with its peers, in a builder thread, while an older
      group trains. It ends by the deadline, and ``place.signal`` wakes it wherever it waits
      (``signal.subscribe``). ``build`` does the rest: a group of one, an abort, errors.
    - **Use.** The Manager issues the same collectives in the same order on all ranks, under a lock:
      a call returns at once with a Work. The error of a broken group is in the Work, or raised as a
      DistError. If all connections are up (``is_connected``), an error in the Work is caused by the
      operation: no replica commits the step (C8). Any other error that is raised counts like this.
    - **Abort.** The signal's ``trigger``, from any thread, takes milliseconds: waits end with an
      error, here and, if the backend can, at the peers. Collectives issued later fail.
    - **Who waits** (``caller_waits``). A Work's future completes in a thread of the group, once the
      result is in memory, or with the error. True: for batches (DDP's buckets) the main thread
      waits instead, by ``is_completed`` and ``wait(timeout)``. It checks for an abort periodically,
      because an abort may not wake every wait. False: the Manager uses futures only.
    - **Who waits for writers.** Before tensors of an aborted group are written again, the Manager
      waits until each Work has ended or all threads that write for the group sleep
      (``threads_sleep``, writers.py). With ``caller_waits = False`` it does not wait: nothing may
      write once a Work's future has its error.
    - **Pieces** (``BuiltGroup.piece_bytes``). A larger all-reduce by the script goes out as several
      collectives, in order, so that copying for a repair and sending overlap.
    - **Release.** ``shutdown`` runs in a separate thread: after an abort, or after the first
      collective of the next group, because peers may still need this group's last bytes.

    gloo.py is the example for host memory, nccl.py for a device.
    """

    caller_waits = True

    def __init__(self, timeout: timedelta = DEFAULT_TIMEOUT) -> None:
        super().__init__(0, 1)
        self.timeout = timeout
        self._built: BuiltGroup | None = None

    def build(
        self,
        store_addr: str,
        prefix: str,
        rank: int,
        world_size: int,
        host: str,
        timeout_s: float,
        signal: AbortSignal | None = None,
    ) -> BuiltGroup:
        """Connect with the other ranks. Blocking: call it in a builder thread.

        Args:
            store_addr: ``host:port`` of the TCPStore in which the ranks meet.
            prefix: a unique name of this build in the store; its keys are removed again.
            rank: this process's rank.
            world_size: how many ranks; 1 needs neither store nor network.
            host: the numeric address at which peers can reach this process.
            timeout_s: deadline of the whole build.
            signal: aborts the build and later the group; also the group's ``abort``.

        Raises:
            GroupAborted: the signal was triggered, here or at a peer.
            PeerError: the store or a peer cannot be reached within the deadline.
        """
        signal = signal or AbortSignal()
        signal.check()
        if world_size == 1:
            return SoloGroup(signal)
        deadline = clock.now() + timeout_s
        place = Place(store_addr, prefix, rank, world_size, host, deadline, signal)
        try:
            built = self._connect(place)
        except (RuntimeError, PeerError, OSError) as error:
            signal.check()
            failure = PeerError(f"rank {rank} of {world_size} could not connect: {error}")
            failure.unreached = error.unreached if isinstance(error, PeerError) else ""
            raise failure from error
        if signal.triggered:
            built.shutdown()
            signal.check()
        return built

    def _connect(self, place: Place) -> BuiltGroup:
        """Connect two or more ranks: the backend's part of ``build``, see the class.

        Raises:
            RuntimeError, PeerError: the ranks are not connected. ``build`` converts it to a
                GroupAborted or to a PeerError that names the rank.
        """
        raise NotImplementedError

    def configure(self, store_addr: str, rank: int, world_size: int, prefix: str = "pg") -> None:
        """Build and use a group without a Manager, on the interface that leads to the store.

        ``store_addr`` is ``host:port`` or ``host:port/prefix``.
        """
        address, _, path = store_addr.partition("/")
        self._connect_alone(address, path or prefix, rank, world_size, self.timeout)

    def reconfigure(self, opts: ReconfigureOptions) -> Work:
        """Build and use a group of the ranks with the handles in ``opts``, without a Manager.

        Raises:
            DistNetworkError: they are not connected by the deadline: the group's own, or the one in
                ``opts`` if it is sooner.
            ValueError: the handles cannot be used.
        """
        meeting = meet(opts, self._handle_id())
        address, _, prefix = meeting.store_addr.partition("/")
        timeout = min(self.timeout, opts.timeout or self.timeout)
        self.shutdown()
        deadline = clock.now() + timeout.total_seconds()
        try:
            self._connect_alone(address, prefix, meeting.rank, meeting.world_size, timeout)
        except PeerError as error:
            late = clock.now() >= deadline
            why = f"timeout after {timeout.total_seconds() * 1000:g}ms: " if late else ""
            raise DistNetworkError(f"{why}{error}") from error
        return FinishedWork()

    def _connect_alone(
        self, address: str, prefix: str, rank: int, world_size: int, timeout: timedelta
    ) -> None:
        host, timeout_s = local_address(address), timeout.total_seconds()
        self.use(self.build(address, prefix, rank, world_size, host, timeout_s))

    def use(self, built: BuiltGroup | None) -> BuiltGroup | None:
        """Send collectives to ``built``. Returns the group that was in use before."""
        before, self._built = self._built, built
        return before

    def current(self) -> BuiltGroup:
        """The group in use.

        Raises:
            Bug: no group is in use yet.
        """
        if self._built is None:
            raise Bug(
                f"{type(self).__name__}: process group not initialized: it was used before a "
                "quorum was formed, or after its end"
            )
        return self._built

    def size(self) -> int:
        """The number of ranks of the group in use; 1 if there is none."""
        return self._built.world_size if self._built is not None else 1

    def rank(self) -> int:
        """The rank in the group in use; 0 if there is none."""
        return self._built.rank if self._built is not None else 0

    def getBackendName(self) -> str:
        return "ftrun"

    def abort(self, errored: bool = True) -> None:
        if self._built is not None:
            self._built.abort()

    def shutdown(self) -> None:
        """Release the group in use, if there is one. Its connections are closed ``LINGER_S`` later.

        A collective that has ended here may not have ended at the peers, and would fail there. Use
        ``abort`` to wake waiters at once.
        """
        built = self.use(None)
        if built is not None:
            closing = threading.Timer(LINGER_S, built.shutdown)
            closing.daemon = True
            closing.start()

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the deadline of collectives, in the group in use and in groups built later."""
        self.timeout = timeout
        if self._built is not None:
            self._built.set_timeout(timeout)

    def _collective(self, name: str, *arguments: Any) -> Work:
        work: Work = getattr(self.current(), name)(*arguments)
        return work
