"""What a process group is to ftrun: a factory of groups that can be built, aborted and released.

Users construct a ``ProcessGroup`` once and hand it to the Manager, which calls ``build`` for every
quorum; the ``BuiltGroup`` that comes back is one quorum's connections. Several can exist at once:
the old one trains while the next one is built.

Not here: how a backend connects (gloo.py, nccl.py), when to build or swap (manager).
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp, Work

from ftrun.errors import Bug, PeerError
from ftrun.process_groups.sockets import local_address

Tensors = Sequence[torch.Tensor]
DEFAULT_TIMEOUT = timedelta(seconds=60)


class GroupAborted(PeerError):
    """The group was aborted: by an interruption, or because nobody needs it any more."""


class AbortSignal:
    """Gives a group up from any thread, at any moment: unbuilt, half built or at work.

    The Manager makes one, passes it to ``build`` and keeps it; ``trigger`` then ends a stuck build
    or wakes every waiter of the finished group, whichever there is.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._triggered = False
        self._callbacks: list[Callable[[], None]] = []

    @property
    def triggered(self) -> bool:
        """True from the first ``trigger`` on."""
        return self._triggered

    def trigger(self) -> None:
        """Abort. Idempotent; runs the callbacks in the calling thread, each at most once."""
        with self._lock:
            self._triggered = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have ``callback`` called on ``trigger``, at once if that has been.

        Returns:
            What takes the subscription back.
        """
        with self._lock:
            if not self._triggered:
                self._callbacks.append(callback)
                return lambda: self._unsubscribe(callback)
        callback()
        return lambda: None

    def check(self) -> None:
        """Raise GroupAborted if triggered."""
        if self._triggered:
            raise GroupAborted("the process group was aborted")

    def _unsubscribe(self, callback: Callable[[], None]) -> None:
        with self._lock:
            if callback in self._callbacks:
                self._callbacks.remove(callback)


class BuiltGroup:
    """One quorum's connections. Collectives are asynchronous; errors are in the Work, never raised
    for a group that is broken or aborted, so that a caller has one path for them.

    ``native`` is the torch backend that does the work.
    """

    def __init__(self, rank: int, world_size: int, native: Any, signal: AbortSignal) -> None:
        self.rank = rank
        self.world_size = world_size
        self._native = native
        self._signal = signal

    def size(self) -> int:
        """How many ranks are in it."""
        return self.world_size

    @property
    def aborted(self) -> bool:
        """True once it was aborted or shut down: every further collective fails."""
        return self._signal.triggered

    def abort(self) -> None:
        """Wake every waiter with an error. From any thread, idempotent, milliseconds."""
        self._signal.trigger()

    def threads_sleep(self) -> bool | None:
        """Whether all threads that write on the host for its collectives sleep; None: unclear."""
        return None

    def shutdown(self) -> None:
        """Abort, and release descriptors, threads and memory.

        May take tens of milliseconds (the backend's threads are joined): call it beside the
        training thread. Peers that still wait for data of a collective which has ended here may
        lose it, so shut an old group down only after the first collective of its successor.
        """
        self._signal.trigger()
        self._native = None

    def allreduce(self, tensors: Tensors, op: Any = ReduceOp.SUM) -> Work:
        """Reduce in place. ``op`` is a ReduceOp or AllreduceOptions."""
        if not isinstance(op, dist.AllreduceOptions):  # torch takes long to try its overloads
            options = dist.AllreduceOptions()
            options.reduceOp = op
            op = options
        return self._issue("allreduce", list(tensors), op)

    def allreduce_coalesced(self, tensors: Tensors, *options: Any) -> Work:
        """Reduce several tensors of one dtype in one collective, in place."""
        return self._issue("allreduce_coalesced", list(tensors), *options)

    def broadcast(self, tensors: Tensors, root: Any = 0) -> Work:
        """Send the root's tensor to all. ``root`` is a rank or BroadcastOptions."""
        if isinstance(root, int):
            options = dist.BroadcastOptions()
            options.rootRank = root
            root = options
        return self._issue("broadcast", list(tensors), root)

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, *options: Any) -> Work:
        """Gather each rank's input in every rank's outputs."""
        return self._issue("allgather", [list(o) for o in outputs], list(inputs), *options)

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], *options: Any) -> Work:
        """Reduce, each rank keeping its part."""
        return self._issue("reduce_scatter", list(outputs), [list(i) for i in inputs], *options)

    def alltoall_base(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: list[int],
        input_split_sizes: list[int],
        *options: Any,
    ) -> Work:
        """Exchange parts of one tensor; empty split sizes mean equal parts."""
        return self._issue(
            "alltoall_base", output, input, output_split_sizes, input_split_sizes, *options
        )

    def barrier(self, *options: Any) -> Work:
        """Complete when every rank has come."""
        return self._issue("barrier", *options)

    def send(self, tensors: Tensors, destination: int, tag: int = 0) -> Work:
        """Send one tensor to one rank."""
        return self._issue("send", list(tensors), destination, tag)

    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> Work:
        """Receive one tensor from one rank."""
        return self._issue("recv", list(tensors), source, tag)

    def _issue(self, name: str, *arguments: Any) -> Work:
        native = self._native
        if native is None or self._signal.triggered:
            return FinishedWork(error=GroupAborted(f"{name}: the process group was aborted"))
        work: Work = getattr(native, name)(*arguments)
        return work


class FinishedWork(Work):
    """A Work that has ended already: with tensors, or with an error."""

    def __init__(self, tensors: Tensors = (), error: Exception | None = None) -> None:
        super().__init__()
        self._error = error
        self._future: torch.futures.Future[Any] = torch.futures.Future()
        if error is None:
            self._future.set_result(list(tensors))
        else:
            self._future.set_exception(error)

    def wait(self, timeout: timedelta = DEFAULT_TIMEOUT) -> bool:
        """Return at once, or raise the error."""
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """Always."""
        return True

    def is_success(self) -> bool:
        """Whether it ended without an error."""
        return self._error is None

    def get_future(self) -> torch.futures.Future[Any]:
        """The completed future."""
        return self._future


class ProcessGroup(dist.ProcessGroup):
    """What users construct and hand to the Manager; also a torch process group while configured.

    Collectives called on it go to the group in use (``use``); before that they raise.

    ``caller_waits``: a Work that is complete has written its result, and one that fails has
    its error by then. False where completion is an order on a device's stream.
    """

    caller_waits = True

    def __init__(self, timeout: timedelta = DEFAULT_TIMEOUT) -> None:
        super().__init__(0, 1)  # type: ignore[call-arg]  # torch's stub lacks this overload.
        self.timeout = timeout
        self._built: BuiltGroup | None = None

    @abstractmethod
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
            prefix: names this try in the store, unlike every other; its keys are removed again.
            rank: place among the ranks.
            world_size: how many ranks; 1 needs neither store nor network.
            host: the numeric address of this process that its peers can reach.
            timeout_s: deadline of the whole build.
            signal: aborts the build and later the group; also the group's ``abort``.

        Raises:
            GroupAborted: the signal came, here or at a peer.
            PeerError: the store or a peer cannot be reached within the deadline.
        """
        raise NotImplementedError

    def configure(self, store_addr: str, rank: int, world_size: int, prefix: str = "pg") -> None:
        """Build and use a group without a Manager, on the interface that leads to the store.

        ``store_addr`` is ``host:port`` or ``host:port/prefix``.
        """
        address, _, path = store_addr.partition("/")
        built = self.build(
            address,
            path or prefix,
            rank,
            world_size,
            local_address(address),
            self.timeout.total_seconds(),
        )
        self.use(built)

    def use(self, built: BuiltGroup | None) -> BuiltGroup | None:
        """Make ``built`` the group that collectives go to; returns the one before."""
        before, self._built = self._built, built
        return before

    def current(self) -> BuiltGroup:
        """The group in use.

        Raises:
            Bug: there is none yet.
        """
        if self._built is None:
            raise Bug(f"{type(self).__name__} was used before a quorum was formed")
        return self._built

    def size(self) -> int:
        """The number of ranks of the group in use, 1 before there is one."""
        return self._built.world_size if self._built is not None else 1

    def rank(self) -> int:
        """The rank in the group in use, 0 before there is one."""
        return self._built.rank if self._built is not None else 0

    def getBackendName(self) -> str:
        """The name by which torch knows it."""
        return "ftrun"

    def abort(self) -> None:
        """Abort the group in use, if there is one."""
        if self._built is not None:
            self._built.abort()

    def shutdown(self) -> None:
        """Abort and release the group in use, if there is one."""
        built = self.use(None)
        if built is not None:
            built.shutdown()

    def set_timeout(self, timeout: timedelta) -> None:
        """The deadline of collectives of groups built from now on."""
        self.timeout = timeout

    def allreduce(self, tensors: Any, opts: Any = ReduceOp.SUM) -> Work:  # type: ignore[override]
        """See BuiltGroup.allreduce."""
        return self.current().allreduce(_listed(tensors), opts)

    def allreduce_coalesced(self, tensors: Any, *options: Any) -> Work:
        """See BuiltGroup.allreduce_coalesced."""
        return self.current().allreduce_coalesced(tensors, *options)

    def broadcast(self, tensors: Any, opts: Any = 0) -> Work:  # type: ignore[override]
        """See BuiltGroup.broadcast."""
        return self.current().broadcast(_listed(tensors), opts)

    def broadcast_one(self, tensor: torch.Tensor, root: int) -> Work:
        """Broadcast a single tensor."""
        return self.current().broadcast([tensor], root)

    def allgather(self, output_tensors: Any, input_tensors: Any, *options: Any) -> Work:
        """See BuiltGroup.allgather."""
        return self.current().allgather(output_tensors, input_tensors, *options)

    def reduce_scatter(self, output_tensors: Any, input_tensors: Any, *options: Any) -> Work:
        """See BuiltGroup.reduce_scatter."""
        return self.current().reduce_scatter(output_tensors, input_tensors, *options)

    def alltoall_base(self, *arguments: Any) -> Work:
        """See BuiltGroup.alltoall_base."""
        return self.current().alltoall_base(*arguments)

    def barrier(self, *options: Any) -> Work:
        """See BuiltGroup.barrier."""
        return self.current().barrier(*options)

    def send(self, tensors: Any, dst_rank: int, tag: int = 0) -> Work:
        """See BuiltGroup.send."""
        return self.current().send(tensors, dst_rank, tag)

    def recv(self, tensors: Any, src_rank: int, tag: int = 0) -> Work:
        """See BuiltGroup.recv."""
        return self.current().recv(tensors, src_rank, tag)


def _listed(tensors: Any) -> Tensors:
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors
