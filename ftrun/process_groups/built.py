"""One quorum's connections: how they are aborted, used and released.

Not here: how a backend connects (base.py, gloo.py, nccl.py), when to abort (training/groups.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import Work

from ftrun.base.errors import PeerError
from ftrun.process_groups.collectives import Collectives

if TYPE_CHECKING:
    from ftrun.process_groups.codec import Codec

Tensors = Sequence[torch.Tensor]
DEFAULT_TIMEOUT = timedelta(seconds=60)


class GroupAborted(PeerError):
    """The group was aborted: by an interrupt, or because it is no longer needed."""


class AbortSignal:
    """Aborts a group from any thread, at any moment: before, during or after its build.

    The Manager makes a signal, passes it to ``build`` and keeps it. ``trigger`` ends the build, or
    wakes every waiter of the built group.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._triggered = False
        self._callbacks: list[Callable[[], None]] = []

    @property
    def triggered(self) -> bool:
        """Whether ``trigger`` was called."""
        return self._triggered

    def trigger(self) -> None:
        """Abort. Idempotent; runs the callbacks in the calling thread, each at most once."""
        with self._lock:
            self._triggered = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` on ``trigger``, or at once if the signal is triggered already.

        Returns:
            A function that cancels the subscription.
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


class BuiltGroup(Collectives):
    """One quorum's connections.

    Collectives are asynchronous. The error of an aborted group is in the Work and never raised, so
    that a caller has one path for errors.

    Attributes:
        native: the torch backend that does the work; None after ``shutdown``.
        piece_bytes: larger tensors are reduced faster in pieces of this size, one collective each;
            None: pieces are no faster.
    """

    piece_bytes: int | None = None

    def __init__(self, rank: int, world_size: int, native: Any, signal: AbortSignal) -> None:
        self.rank = rank
        self.world_size = world_size
        self.native = native
        self._signal = signal

    def size(self) -> int:
        return self.world_size

    @property
    def aborted(self) -> bool:
        """Whether the group was aborted or shut down: every further collective fails."""
        return self._signal.triggered

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the deadline of later collectives, if the backend can change it."""
        native = self.native
        if native is not None and hasattr(native, "_set_default_timeout"):
            native._set_default_timeout(timeout)

    def abort(self) -> None:
        self._signal.trigger()

    def threads_sleep(self) -> bool | None:
        """Whether all threads that write to host memory for this group sleep; None: unknown."""
        return None

    def is_connected(self) -> bool | None:
        """Whether the connections to all peers are up; None: unknown.

        If they are up when an operation has failed, the operation is at fault, not a peer.
        """
        return None

    def swallowed(self) -> Exception | None:
        """The error that a script's wrapper has swallowed since it got this group."""
        return None

    def shutdown(self) -> None:
        """Abort, and release descriptors, threads and memory.

        May take tens of milliseconds, because the backend joins its threads: do not call it in the
        training thread. Peers may lose data of a collective that has ended here only, so shut an
        old group down after the first collective of the next group.
        """
        self._signal.trigger()
        self.native = None

    def allreduce_quantized(self, tensor: torch.Tensor, factor: float, codec: Codec) -> Work:
        """Sum ``tensor`` times ``factor`` in 8 bits: a QuantizedWork, or a Work with an error.

        Raises:
            ValueError: this group does not support it.
        """
        raise ValueError(
            f"{type(self).__name__} offers no quantised reductions: pass should_quantize=False"
        )

    def allgather_into_tensor_coalesced(
        self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None
    ) -> Work:
        works = []
        for output, tensor in zip(output_tensors, input_tensors, strict=True):
            parts = list(output.view(self.world_size, *tensor.shape).unbind(0))
            works.append(self.allgather([parts], [tensor], opts))
        return JoinedWork(works, list(output_tensors))

    def reduce_scatter_tensor_coalesced(
        self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None
    ) -> Work:
        options = dist.ReduceScatterOptions() if opts is None else opts
        works = [
            self._collective("_reduce_scatter_base", output, parts, options)
            for output, parts in zip(output_tensors, input_tensors, strict=True)
        ]
        return JoinedWork(works, list(output_tensors))

    def _collective(self, name: str, *arguments: Any) -> Work:
        native = self.native
        if native is None or self._signal.triggered:
            return FinishedWork(error=GroupAborted(f"{name}: the process group was aborted"))
        work: Work = getattr(native, name)(*arguments)
        return work


class _Unread(Exception):
    """Replaces the value of a failed future."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __reduce_ex__(self, _: Any) -> Any:
        raise self._error


def fail(future: torch.futures.Future[Any], error: Exception) -> None:
    """End a Work's future with an error.

    torch's DistributedDataParallel does not ask a future of Python's whether it has failed. It
    looks for tensors in its value, by pickling, and crashes if there are none.
    """

    def unwrap(_: object) -> None:
        raise error

    future._set_unwrap_func(unwrap)
    future.set_result(_Unread(error))


class FutureWork(Work):
    """A Work that ends with ``future``."""

    def __init__(self, future: torch.futures.Future[Any]) -> None:
        super().__init__()
        self.future = future

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the end, or raise the error. The deadline is the group's, not ``timeout``."""
        self.future.wait()
        return True

    def is_completed(self) -> bool:
        return self.future.done()

    def get_future(self) -> torch.futures.Future[Any]:
        return self.future


class FinishedWork(FutureWork):
    """A Work that has ended already, with ``result`` (usually a list of tensors) or an error."""

    def __init__(self, result: object = None, error: Exception | None = None) -> None:
        super().__init__(torch.futures.Future())
        self._error = error
        if error is None:
            self.future.set_result(result)
        else:
            fail(self.future, error)

    def is_success(self) -> bool:
        return self._error is None


class QuantizedWork(FutureWork):
    """A quantized all-reduce (codec.py).

    ``sums``: once it has ended, the encoded sums of each piece of ``values`` values.
    """

    def __init__(self, sums: list[torch.Tensor], values: int) -> None:
        super().__init__(torch.futures.Future())
        self.sums = sums
        self.values = values

    def write(self, codec: Codec, tensor: torch.Tensor) -> None:
        """Decode the sums into ``tensor``, which has the shape of the reduced tensor."""
        if len(self.sums) == 1:
            codec.write(self.sums[0].to(tensor.device), tensor)
            return
        pieces = torch.split(tensor.view(-1), self.values)
        for sums, piece in zip(self.sums, pieces, strict=True):
            codec.write(sums.to(tensor.device), piece)


class JoinedWork(Work):
    """Several Works as one; the result is ``tensors``."""

    def __init__(self, works: Sequence[Work], tensors: Any) -> None:
        super().__init__()
        self._works = works
        self._tensors = tensors

    def wait(self, timeout: timedelta | None = None) -> bool:
        ends = [work.wait() if timeout is None else work.wait(timeout) for work in self._works]
        return all(ends)

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def get_future(self) -> torch.futures.Future[Any]:
        """A future that has the tensors once all have ended, or the first error."""
        futures = [work.get_future() for work in self._works]
        return torch.futures.collect_all(futures).then(self._value)

    def _value(self, done: torch.futures.Future[Any]) -> Any:
        for future in done.value():
            future.value()
        return self._tensors
