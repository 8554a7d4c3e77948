"""A double of torch's NCCL backend, over Gloo: for tests on machines without a GPU.

It behaves as NCCL where that differs from Gloo:

- ``wait()`` of a Work orders streams and returns before the collective is done; its own future has
  completed by then. Only a stream that is waited for on the host tells when it is done.
- A peer's death is no error: the collective goes on until the communicator is aborted, from another
  thread. Then it leaves anything in its tensors, a moment later.
- To connect has no deadline of its own: it ends by an abort. But the wait for the id that rank 0
  gives in the store ends by the store's deadline alone.
- A communicator that was aborted is dead: whatever is issued later is an error at the call.

``install`` puts it, and streams of its own, in the place of CUDA in ftrun's class for NCCL. Tensors
are the CPU's. Not here: what NCCL's kernels do, and how fast.
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
from ftrun.inject.zero_edit.world.world import World
from ftrun.process_groups import nccl
from ftrun.process_groups.built import AbortSignal, BuiltGroup, FutureWork
from ftrun.process_groups.collectives import Collectives, tensors_in
from ftrun.process_groups.gloo import ProcessGroupGloo
from ftrun.training import injected

NEVER_S = 3600.0
ENDS_AFTER_S = 0.05
"""So long a kernel goes on that was aborted."""
RECHECK = timedelta(milliseconds=5)
HOST = "127.0.0.1"
Put = Callable[[Any, str, Any], None]


class HostStream:
    """What the kernels of one thread's calls wait for."""

    def __init__(self, _device: Any = None) -> None:
        self.works: list[NativeWork] = []

    def synchronize(self) -> None:
        """Wait on the host, without a deadline."""
        works, self.works = self.works, []
        for work in works:
            work.ended.wait()


class Cuda:
    """As much of ``torch.cuda`` as ftrun's class uses."""

    Stream = HostStream

    def __init__(self) -> None:
        self._local = threading.local()

    def is_available(self) -> bool:
        """As on a machine with a GPU."""
        return True

    def current_device(self) -> int:
        """The one GPU."""
        return 0

    def set_device(self, _device: Any) -> None:
        """It is the only one."""

    def current_stream(self, _device: Any = None) -> HostStream:
        """That of this thread."""
        if not hasattr(self._local, "stream"):
            self._local.stream = HostStream()
        found: HostStream = self._local.stream
        return found

    @contextlib.contextmanager
    def stream(self, one: HostStream) -> Iterator[None]:
        """Let this thread's calls go to ``one``."""
        before, self._local.stream = self.current_stream(), one
        try:
            yield
        finally:
            self._local.stream = before


CUDA = Cuda()


class Torch:
    """torch, with a GPU that is the CPU."""

    cuda = CUDA

    def device(self, *_words: Any) -> torch.device:
        """The device of all tensors."""
        return torch.device("cpu")

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
        """Let the current stream wait; the host does not."""
        CUDA.current_stream().works.append(self)
        return True

    def is_completed(self) -> bool:
        """Whether the kernel has ended, well or not."""
        return self.ended.is_set()

    def get_future(self) -> Future[Any]:
        """It completed when the collective was enqueued."""
        return self._future


class NativeGroup(Collectives):
    """In the place of ``dist.ProcessGroupNCCL``: one communicator, with a stream of its own."""

    class Options:
        """torch's, of which none counts here."""

        _timeout: timedelta | None = None

    def __init__(self, store: Any, rank: int, size: int, options: Options) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._signal = AbortSignal()
        self._built: BuiltGroup | None = None
        self._queue: queue.SimpleQueue[tuple[NativeWork, str, Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="nccl-double", daemon=True)

    def _set_default_timeout(self, _timeout: timedelta) -> None:
        """No watchdog runs: a collective has no deadline."""

    def eager_connect_single_device(self, _device: Any) -> None:
        """Connect with all ranks, however long that takes."""
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
        """Returns when no kernel writes any more."""
        self._signal.trigger()
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _collective(self, name: str, *arguments: Any) -> NativeWork:
        if self._signal.triggered:
            raise dist.DistBackendError("NCCL communicator was aborted")
        work = NativeWork(tensors_in(arguments[0]))
        self._queue.put((work, name, arguments))
        return work

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            self._carry_out(*item)
            item[0].ended.set()

    def _carry_out(self, work: NativeWork, name: str, arguments: Any) -> None:
        """A kernel reads its inputs when its turn comes, and writes when all ranks are there."""
        own = _copied(arguments)
        under_way: Any = getattr(self._built, name)(*own)
        while not (self._signal.triggered or _is_well(under_way)):
            pass  # a peer that is gone is no error
        if self._signal.triggered:
            threading.Event().wait(ENDS_AFTER_S)
            if name == "broadcast" and arguments[1].rootRank == self._rank:
                return  # a kernel only reads what it sends from there
            for tensor in work.outputs:
                tensor.fill_(float("nan") if tensor.is_floating_point() else 77)
            if "allgather" in name:  # its input may be a part of its output
                inputs = tensors_in(arguments[1]), tensors_in(own[1])
                for tensor, given in zip(*inputs, strict=True):
                    tensor.copy_(given)
            return
        for tensor, result in zip(work.outputs, tensors_in(own[0]), strict=True):
            tensor.copy_(result)


class Settled(Collectives):
    """The backend of a group, whose Works end on the host when the device is done, or with an error
    once the communicator was aborted."""

    def __init__(self, group: Any) -> None:
        self._plain, self._watcher = group.native, group._watcher

    def _collective(self, name: str, *arguments: Any) -> FutureWork:
        native, outputs = getattr(self._plain, name)(*arguments), tensors_in(arguments[0])
        future: Future[Any] = Future()

        def pass_on(done: Future[Any]) -> None:
            try:
                future.set_result(done.value())
            except PeerError as error:
                future.set_exception(RuntimeError(str(error)))  # as torch's own backends

        self._watcher.watch(native, outputs).get_future().add_done_callback(pass_on)
        return FutureWork(future)


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


def install_for_scripts(put: Put = setattr) -> None:
    """Let the groups of a script be the double's; each call is settled on the host."""

    def build_one(
        world: World,
        shell: Any,
        here: tuple[int, ...],
        store: str,
        prefix: str,
        timeout_s: float,
        abort: AbortSignal | None,
    ) -> BuiltGroup | None:
        if len(here) < 2:
            return None
        own, factory = AbortSignal(), nccl.ProcessGroupNCCL(shell.timeout)
        unsubscribe = abort.subscribe(own.trigger) if abort is not None else (lambda: None)
        try:
            rank, size = here.index(shell.own), len(here)
            group: Any = factory.build(store, prefix, rank, size, HOST, timeout_s, own)
        finally:
            unsubscribe()
        group.native = Settled(group)
        found: BuiltGroup = group
        return found

    install(put)
    put(World, "build_one", build_one)


def install(put: Put = setattr) -> None:
    """Let ftrun's class for NCCL have the double, and Managers have that class."""
    put(nccl, "torch", Torch())
    put(nccl, "Future", lambda devices: Future())
    put(nccl, "_native_class", lambda: NativeGroup)
    put(injected, "_process_group", lambda device: nccl.ProcessGroupNCCL())
