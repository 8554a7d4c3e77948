"""A double of torch's NCCL backend, over Gloo: for tests on machines without a GPU.

It behaves like NCCL where NCCL differs from Gloo:

- ``wait()`` of a Work orders streams and returns before the collective is done, and its future has
  completed by then. Only synchronizing a stream from the host shows that the collective is done.
- A peer's death is no error: the collective continues until another thread aborts the communicator.
  Then it leaves undefined values in its tensors, a moment later.
- Connecting has no deadline: it ends by an abort. But the wait for the id that rank 0 puts into the
  store ends only by the store's deadline.
- After an abort a communicator cannot be used: each later call raises an error.
- A call whose options make it synchronous returns no Work.

``install`` replaces CUDA in ftrun's class for NCCL by the double and its streams. Tensors are the
CPU's. Not here: what NCCL's kernels do, and their speed.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future

from ftrun.base.errors import PeerError
from ftrun.inject.zero_edit.world.replayed import ReplayedWorld
from ftrun.process_groups import nccl
from ftrun.process_groups.built import AbortSignal, BuiltGroup
from ftrun.process_groups.collectives import Collectives, tensors_in
from ftrun.process_groups.gloo import ProcessGroupGloo
from ftrun.training import context, injected

NEVER_S = 3600.0
ENDS_AFTER_S = 0.05
"""How long an aborted kernel continues."""
RECHECK = timedelta(milliseconds=5)
HOST = "127.0.0.1"
Put = Callable[[Any, str, Any], None]


class HostStream:
    """The work that the kernels of one thread's calls wait for."""

    def __init__(self, _device: Any = None) -> None:
        self.works: list[NativeWork] = []

    def synchronize(self) -> None:
        """Wait on the host, without a deadline."""
        works, self.works = self.works, []
        for work in works:
            work.ended.wait()

    def wait_event(self, _event: Event) -> None:
        """Do nothing: work given to the CPU is done."""


class Event:
    """A place in a stream."""

    def __init__(self, *, blocking: bool = False) -> None:
        """``blocking``: as torch's."""

    def record(self, _stream: HostStream) -> None:
        """Do nothing: work given to the CPU is done."""

    def synchronize(self) -> None:
        """Do nothing: there is nothing to wait for."""


class Cuda:
    """The part of ``torch.cuda`` that ftrun's class uses."""

    Stream, Event = HostStream, Event

    def __init__(self) -> None:
        self._local = threading.local()

    def is_available(self) -> bool:
        """True, as on a machine with a GPU."""
        return True

    is_initialized = is_available

    def device_count(self) -> int:
        """The number of GPUs: one."""
        return 1

    def current_device(self) -> int:
        """The index of the one GPU."""
        return 0

    def set_device(self, _device: Any) -> None:
        """Do nothing: there is one GPU."""

    def device(self, _device: Any) -> contextlib.nullcontext[None]:
        """Do nothing: there is one GPU."""
        return contextlib.nullcontext()

    def current_stream(self, _device: Any = None) -> HostStream:
        """The stream of this thread."""
        if not hasattr(self._local, "stream"):
            self._local.stream = HostStream()
        found: HostStream = self._local.stream
        return found

    @contextlib.contextmanager
    def stream(self, one: HostStream) -> Iterator[None]:
        """Issue this thread's calls to ``one``."""
        before, self._local.stream = self.current_stream(), one
        try:
            yield
        finally:
            self._local.stream = before


CUDA = Cuda()


class Torch:
    """torch, with a CPU in place of the GPU."""

    cuda = CUDA

    def device(self, *_words: Any) -> torch.device:
        """The device of all tensors."""
        return torch.device("cpu")

    def empty(self, *sizes: int, pin_memory: bool = False, **more: Any) -> torch.Tensor:
        """``torch.empty`` without pinned memory, which needs a GPU."""
        return torch.empty(*sizes, **more)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class NativeWork(dist.Work):
    """A collective that was enqueued."""

    def __init__(self, outputs: list[torch.Tensor]) -> None:
        super().__init__()
        self.outputs = outputs
        self.ended = threading.Event()
        self._future: Future[Any] = Future()
        self._future.set_result(outputs)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Make the current stream wait; the host does not wait."""
        CUDA.current_stream().works.append(self)
        return True

    def is_completed(self) -> bool:
        """Whether the kernel has ended, with or without an error."""
        return self.ended.is_set()

    def get_future(self) -> Future[Any]:
        """A future that completed when the collective was enqueued."""
        return self._future


class NativeGroup(Collectives):
    """A double of ``dist.ProcessGroupNCCL``: one communicator with its own stream."""

    class Options:
        """torch's options; all are ignored."""

        _timeout: timedelta | None = None

    def __init__(self, store: Any, rank: int, size: int, options: Options) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._signal = AbortSignal()
        self._built: BuiltGroup | None = None
        self._queue: queue.SimpleQueue[tuple[NativeWork, str, Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="nccl-double", daemon=True)

    def _set_default_timeout(self, _timeout: timedelta) -> None:
        """Do nothing: no watchdog runs, so a collective has no deadline."""

    def eager_connect_single_device(self, _device: Any) -> None:
        """Connect with all ranks, without a deadline."""
        under: Any = self._store.underlying_store
        if self._rank == 0:
            self._store.set("name", uuid.uuid4().hex)
        name, address = self._store.get("name").decode(), f"{under.host}:{under.port}"
        factory = ProcessGroupGloo(timedelta(seconds=NEVER_S))
        try:
            self._built = factory.build(
                address, f"double/{name}", self._rank, self._size, HOST, NEVER_S, self._signal
            )
        except PeerError as error:
            raise RuntimeError("NCCL communicator was aborted") from error
        self._store.delete_key("name")
        self._thread.start()

    def abort(self) -> None:
        """Abort; returns when no kernel writes any more."""
        self._signal.trigger()
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _collective(self, name: str, *arguments: Any) -> NativeWork | None:  # type: ignore[override]
        if self._signal.triggered:
            raise dist.DistBackendError("NCCL communicator was aborted")
        work = NativeWork(tensors_in(arguments[0]))
        self._queue.put((work, name, arguments))
        return work if getattr(arguments[-1], "asyncOp", True) else None

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            self._carry_out(*item)
            item[0].ended.set()

    def _carry_out(self, work: NativeWork, name: str, arguments: Any) -> None:
        """Run a kernel: it reads its inputs at its turn, and writes when all ranks have come."""
        own = _copied(arguments)
        under_way: Any = getattr(self._built, name)(*own)
        while not (self._signal.triggered or _is_well(under_way)):
            pass  # a dead peer is no error
        if self._signal.triggered:
            threading.Event().wait(ENDS_AFTER_S)
            if name == "broadcast" and arguments[1].rootRank == self._rank:
                return  # the kernel only reads this tensor, which it sends
            for tensor in work.outputs:
                tensor.fill_(float("nan") if tensor.is_floating_point() else 77)
            if "allgather" in name:  # the input may be a part of the output
                inputs = tensors_in(arguments[1]), tensors_in(own[1])
                for tensor, given in zip(*inputs, strict=True):
                    tensor.copy_(given)
            return
        for tensor, result in zip(work.outputs, tensors_in(own[0]), strict=True):
            tensor.copy_(result)


def _is_well(work: Any) -> bool:
    try:
        work.wait(RECHECK)
    except (RuntimeError, PeerError):
        threading.Event().wait(RECHECK.total_seconds())
        return False
    return True


def _copied(argument: Any) -> Any:
    if isinstance(argument, torch.Tensor):
        return argument.clone()
    if isinstance(argument, (list, tuple)):
        return [_copied(item) for item in argument]
    return argument


def install_for_scripts(put: Put = setattr, *, has_host: bool = False) -> None:
    """Give a script's groups the double, as if all of its tensors were on a GPU.

    Call it before the script makes its world. ftrun's code for a GPU runs unchanged.
    ``has_host``: each group has Gloo too, for the script's integer tensors.
    """
    from ftrun.inject.zero_edit import one_group
    from ftrun.inject.zero_edit.world import on_device
    from ftrun.process_groups import settled
    from ftrun.snapshots import memory, pinned

    plain = one_group._Opening._open

    def opens(opening: Any, limit: timedelta) -> None:
        world: Any = opening._world
        is_hosts = type(world) is ReplayedWorld
        if is_hosts:
            world.__class__ = on_device.DeviceWorld
            world.begins_on_device()
        plain(opening, limit)

    keeper: Any = context.Process.keeper
    if keeper is not None:
        keeper.backend, keeper.world.__class__ = "cpu:gloo,cuda:nccl", on_device.DeviceWorld
        keeper.world.begins_on_device()
    install(put)
    put(one_group._Opening, "_open", opens)
    for module in (settled, on_device):
        put(module, "is_on_host", lambda tensor: has_host and not tensor.is_floating_point())
    put(on_device, "backends_of", lambda label: (True, has_host))
    put(memory, "is_on_host", lambda tensor: False)
    put(on_device, "_cuda", CUDA)
    put(pinned, "_cuda", CUDA)
    put(pinned, "torch", Torch())


def install(put: Put = setattr) -> None:
    """Give ftrun's class for NCCL the double, and Managers that class."""
    put(nccl, "torch", Torch())
    put(nccl, "Future", lambda devices: Future())
    put(nccl, "_native_class", lambda: NativeGroup)
    put(injected, "_process_group", lambda device: nccl.ProcessGroupNCCL())
