"""NCCL groups: torch's own can be aborted, but must be built while another group is in use.

CUDA is needed only when a group of two or more is built.

Not here: how the Manager uses a group (base.py).
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed import Work
from torch.futures import Future

from ftrun.base.errors import PeerError, UserError
from ftrun.process_groups import built
from ftrun.process_groups.base import Place, ProcessGroup
from ftrun.process_groups.codec import ROW_BYTES, ROW_VALUES, Codec, rows_of
from ftrun.process_groups.quantized import gather_sums
from ftrun.process_groups.store import StoreClient, split_address

Ended = Callable[["Exception | None"], None]
ID_TIMEOUT = timedelta(seconds=30)
"""Timeout of a request to the store. Rank 0 is there, so the communicator's id comes soon, or
never."""


class ProcessGroupNCCL(ProcessGroup):
    """Collectives on CUDA tensors. ``timeout`` bounds each collective."""

    caller_waits = False

    def __init__(self, timeout: timedelta = built.DEFAULT_TIMEOUT) -> None:
        super().__init__(timeout)
        # Blocking initialisation cannot be aborted. The watchdog would kill the process when a
        # collective fails, which the Manager can repair.
        os.environ.setdefault("TORCH_NCCL_USE_COMM_NONBLOCKING", "1")
        os.environ.setdefault("TORCH_NCCL_NONBLOCKING_TIMEOUT", str(int(timeout.total_seconds())))
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")

    def getBackendName(self) -> str:
        return "ftrun-nccl"

    def _connect(self, place: Place) -> built.BuiltGroup:
        native_class = _native_class()
        _await_first(place)
        timeout = place.remaining()
        store = _connect_store(place.store_addr, min(timeout, ID_TIMEOUT))
        options = native_class.Options()
        options._timeout = timeout
        device = torch.device("cuda", torch.cuda.current_device())
        named = PrefixStore(f"ftrun/{place.prefix}", store)
        native = native_class(named, place.rank, place.world_size, options)
        late = built.AbortSignal()  # torch's own deadline differs, and does not end an all-reduce
        late.subscribe(native.abort)
        unsubscribe = place.signal.subscribe(late.trigger)
        timer = threading.Timer(timeout.total_seconds(), late.trigger)
        timer.daemon = True
        timer.start()
        try:
            native.eager_connect_single_device(device)
            native.allreduce([torch.ones(1, device=device)]).wait(timeout)
            torch.cuda.current_stream(device).synchronize()
            late.check()
        finally:
            timer.cancel()
            unsubscribe()
        if not place.rank:
            named.delete_key("first")
        native._set_default_timeout(self.timeout)
        return NCCLGroup(place.rank, place.world_size, native, place.signal)


class NCCLGroup(built.BuiltGroup):
    """One quorum's NCCL communicator.

    The future of an all-reduce completes when the GPU has finished it. (NCCL's own future completes
    when the kernel is enqueued, but a step must be committed or repaired by its real outcome.) A
    thread of the group waits for the kernels, so the caller does not (``caller_waits``).
    """

    def __init__(self, rank: int, world_size: int, native: Any, signal: built.AbortSignal) -> None:
        super().__init__(rank, world_size, native, signal)
        signal.subscribe(native.abort)
        self.device = torch.device("cuda", torch.cuda.current_device())
        self._watcher = _Watcher(self.device, signal)

    def allreduce(self, tensors: built.Tensors, opts: Any = None) -> Work:
        return self._watcher.watch(super().allreduce(tensors, opts), tensors)

    def allreduce_quantized(self, tensor: torch.Tensor, factor: float, codec: Codec) -> Work:
        """Reduce in stream order, so that each collective meets its counterpart."""
        if self.aborted:
            return super().allreduce([tensor])  # which has the error
        rows = rows_of(tensor, self.world_size).view(self.world_size, -1, ROW_VALUES)
        sums, gathering = gather_sums(rows if factor == 1.0 else rows * factor, self, codec)
        result = built.QuantizedWork([sums.view(-1, ROW_BYTES)], tensor.numel())
        done: Any = self._watcher.watch(gathering, [sums]).get_future()
        done.add_done_callback(lambda ended: _pass_on(ended, result.future))
        return result

    def follow(self, work: Work, tensors: built.Tensors, ended: Ended) -> None:
        """Call ``ended`` in the group's thread when the GPU has finished ``work``, or with its
        error. By then nothing writes any more. The tensors are kept until then."""
        self._watcher.follow(work, tensors, ended)

    @property
    def is_idle(self) -> bool:
        """Whether all followed Works have ended."""
        return self._watcher.under_way == 0

    def shutdown(self) -> None:
        super().shutdown()
        self._watcher.close()


class _Watcher:
    """A thread that waits for kernels in the order of issue, and then calls back on the host."""

    def __init__(self, device: torch.device, signal: built.AbortSignal) -> None:
        self._device = device
        self._signal = signal
        self._begun = self._ended = 0
        self._queue: queue.SimpleQueue[tuple[Work, built.Tensors, Ended] | None] = (
            queue.SimpleQueue()
        )
        threading.Thread(target=self._run, name="ftrun-nccl", daemon=True).start()

    @property
    def under_way(self) -> int:
        """How many Works have not ended."""
        return self._begun - self._ended

    def watch(self, work: Work, tensors: built.Tensors) -> Work:
        """A Work that completes when the GPU has finished ``work``, or with its error."""
        future: Future[Any] = Future(devices=[self._device])

        def ended(error: Exception | None) -> None:
            if error is None:
                future.set_result(list(tensors))
            else:
                built.fail(future, error)

        self.follow(work, tensors, ended)
        return built.FutureWork(future)

    def follow(self, work: Work, tensors: built.Tensors, ended: Ended) -> None:
        """See ``NCCLGroup.follow``."""
        self._begun += 1
        self._queue.put((work, tensors, ended))

    def close(self) -> None:
        """End the thread once all Works that were issued have ended."""
        self._queue.put(None)

    def _run(self) -> None:
        torch.cuda.set_device(self._device)
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        while (item := self._queue.get()) is not None:
            work, _, ended = item
            failure: Exception | None = None
            try:
                with torch.cuda.stream(stream):
                    work.wait()
                stream.synchronize()
                self._signal.check()
            except (RuntimeError, PeerError) as error:
                failure = error
            self._ended += 1
            ended(failure)
            del item, work, _, ended  # so that nothing is kept until the next item comes


def _pass_on(ended: Future[Any], future: Future[Any]) -> None:
    try:
        ended.value()
    except (RuntimeError, PeerError) as error:
        built.fail(future, error)
    else:
        future.set_result([])


def _native_class() -> Any:
    if not torch.cuda.is_available() or not dist.is_nccl_available():
        raise UserError(
            "ProcessGroupNCCL needs CUDA and a torch that is built with NCCL; "
            "neither process group nor training has been started. Use ProcessGroupGloo on CPUs."
        )
    return dist.ProcessGroupNCCL


def _await_first(place: Place) -> None:
    """Wait until rank 0 is there, which then sends the others the communicator's id.

    torch waits for that id in its store, where an abort of the communicator would not wake it.
    """
    client, key = StoreClient(place.store_addr, place.deadline), f"ftrun/{place.prefix}/first"
    unsubscribe = place.signal.subscribe(client.interrupt)
    try:
        if place.rank:
            client.get(key)
        else:
            client.set(key, b"")
    finally:
        unsubscribe()
        client.close()


def _connect_store(store_addr: str, timeout: timedelta) -> TCPStore:
    """Connect with torch's own client, because NCCL uses more of a store than Gloo does."""
    host, port = split_address(store_addr)
    return TCPStore(
        host,
        port,
        is_master=False,
        wait_for_workers=False,
        timeout=timeout,
    )
