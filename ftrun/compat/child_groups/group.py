"""Process groups in a separate process: torchft's "baby" groups.

A collective that hangs or crashes takes that process down, never the trainer. An abort kills the
process, and so does a collective that misses its deadline. Tensors in host memory are moved to
shared memory where they stay; others are copied to blocks (memory.py). Each group has a new
process, forked within milliseconds by a host that has torch imported (host.py).

For most jobs ProcessGroupGloo is as safe, because it can be aborted at any moment, and faster.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import select
import socket
import subprocess
import threading
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import DistNetworkError, Work

from ftrun.base import clock, own_process
from ftrun.base.errors import PeerError
from ftrun.compat.child_groups import messages
from ftrun.compat.child_groups.memory import Blocks, Memory, Staging
from ftrun.compat.child_groups.work import ChildWork
from ftrun.process_groups.base import Place, ProcessGroup
from ftrun.process_groups.built import BuiltGroup, FinishedWork, GroupAborted
from ftrun.process_groups.codec import Codec
from ftrun.process_groups.collectives import Collectives, tensors_in
from ftrun.process_groups.handles import ReconfigureOptions
from ftrun.process_groups.quantized_messages import MessageGroup

log = logging.getLogger(__name__)

START_TIMEOUT_S = 60.0
BUILDING = -1
GRACE_S = 1.0
"""How long after the child's own deadline the owner ends a collective, and the child."""


class ProcessGroupBaby(ProcessGroup):
    """A group whose backend runs in a separate process. ``timeout`` bounds each collective."""

    caller_waits = False
    connects_alone = True
    backend = ""
    memory: Memory | None = None
    """The kind of blocks for tensors; None: tensors are in host memory, and need no blocks."""

    def __init__(self, timeout: float | timedelta = 60.0) -> None:
        super().__init__(timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout))
        self._host = _Host()  # imports torch in the background
        self._starting = threading.Lock()

    def reconfigure(self, opts: ReconfigureOptions) -> Work:
        """Connect in a new process. The old process is killed.

        Raises:
            TimeoutError: the ranks are not connected by the deadline.
        """
        self._end()
        try:
            return super().reconfigure(opts)
        except DistNetworkError as error:
            seconds = self.timeout.total_seconds()
            if "timeout after" not in str(error):
                raise
            raise TimeoutError(f"{error} (timed out after {seconds} seconds)") from error

    def current(self) -> BuiltGroup:
        """The group in use.

        Raises:
            OSError: there is none, because its process is gone.
        """
        if self._built is None:
            raise OSError(f"{type(self).__name__}: its process is gone, and its handle is closed")
        return self._built

    def shutdown(self) -> None:
        """Kill the process of the group in use."""
        self._end()

    def _end(self) -> None:
        built = self.use(None)
        if built is not None:
            built.shutdown()

    def num_active_work(self) -> int:
        """How many collectives of the group in use have not ended."""
        current = self.current()
        return current.under_way if isinstance(current, ChildGroup) else 0

    def _connect(self, place: Place) -> BuiltGroup:
        with self._starting:
            if self._host.is_gone:
                self._host = _Host()
            host = self._host
        child = host.fork(place.deadline)
        built = ChildGroup(place, child, self.timeout, self.memory)
        try:
            built.build(self.backend, place, self._device())
        except BaseException:
            built.shutdown()
            raise
        return built

    def _device(self) -> int | None:
        """The number of the GPU that the child uses."""
        return None


class ProcessGroupBabyGloo(ProcessGroupBaby):
    """Gloo in a separate process."""

    backend = "gloo"

    def getBackendName(self) -> str:
        return "ftrun-baby-gloo"


class _Host:
    """The process that forks the children of one group object."""

    def __init__(self) -> None:
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._process = own_process.start(
                "ftrun.compat.child_groups.host",
                [str(other.fileno())],
                forks=True,
                pass_fds=[other.fileno()],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
            )
        self._socket = own
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._is_ready = False

    @property
    def is_gone(self) -> bool:
        return self._process.poll() is not None

    def fork(self, deadline: float) -> _ChildEnd:
        """A new child, ready to build.

        Raises:
            TimeoutError: the host is not ready by ``deadline``.
            OSError: the host is gone.
        """
        with self._lock:
            if not self._is_ready:
                self._socket.settimeout(max(0.001, deadline - clock.now()))
                if messages.receive(self._socket) is None:
                    raise OSError("the process that forks groups has ended at its start")
                self._is_ready = True
            own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            number = next(self._numbers)
            with other:
                messages.send(self._socket, {"fork": number}, [other.fileno()])
        return _ChildEnd(own, number, self)

    def kill(self, number: int) -> None:
        """Kill a child; its socket then ends."""
        with self._lock, contextlib.suppress(OSError):
            messages.send(self._socket, {"kill": number})

    def __del__(self) -> None:
        self._socket.close()  # the host ends when this is closed
        try:
            self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:  # still importing torch, or stopped
            self._process.kill()
            self._process.wait()


class _ChildEnd:
    """The owner's end of one child."""

    def __init__(self, sock: socket.socket, number: int, host: _Host) -> None:
        self.socket = sock
        self.pid = 0
        self._number = number
        self._host = host

    def kill(self) -> None:
        self._host.kill(self._number)


class ChildGroup(MessageGroup):
    """One group in a child. Its collectives end when the child ends, or earlier.

    A thread reads the child's reports. It ends a late collective, and the child.
    """

    def __init__(
        self, place: Place, child: _ChildEnd, timeout: timedelta, memory: Memory | None = None
    ) -> None:
        super().__init__(place.rank, place.world_size, child, place.signal)
        self._child = child
        self._timeout_s = timeout.total_seconds()
        self._numbers = itertools.count()
        self._works: dict[int, ChildWork] = {}
        self._changed = threading.Condition()
        self._why_gone = ""
        self._pidfd: int | None = None
        self._blocks = Blocks(memory) if memory is not None else None
        self._reader = threading.Thread(target=self._read, name="ftrun-child", daemon=True)
        self._reader.start()
        place.signal.subscribe(child.kill)

    @property
    def under_way(self) -> int:
        """How many collectives have not ended."""
        return len(self._works)

    @property
    def pid(self) -> int:
        return self._child.pid

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout_s = timeout.total_seconds()

    def build(self, backend: str, place: Place, device: int | None = None) -> None:
        """Let the child connect with its peers.

        Raises:
            PeerError: it could not connect.
            TimeoutError: it has not connected by the deadline.
        """
        limit_s = max(0.001, place.deadline - clock.now())
        where = {
            "backend": backend, "store": place.store_addr, "prefix": place.prefix,
            "rank": place.rank, "world_size": place.world_size, "host": place.host,
            "timeout_s": self._timeout_s, "build_s": limit_s, "device": device,
        }  # fmt: skip
        work = self._expect(BUILDING, limit_s, None)
        messages.send(self._child.socket, {"build": where})
        work.wait()

    def shutdown(self) -> None:
        self._signal.trigger()
        self._child.kill()
        self.native = None
        if threading.current_thread() is not self._reader:
            self._reader.join(START_TIMEOUT_S)
            self._child.socket.close()

    def allreduce_quantized(self, tensor: torch.Tensor, factor: float, codec: Codec) -> Work:
        if self._blocks is not None:  # messages are in host memory
            return BuiltGroup.allreduce_quantized(self, tensor, factor, codec)
        return super().allreduce_quantized(tensor, factor, codec)

    # The child takes these apart.
    allgather_into_tensor_coalesced = Collectives.allgather_into_tensor_coalesced
    reduce_scatter_tensor_coalesced = Collectives.reduce_scatter_tensor_coalesced

    def _collective(self, name: str, *arguments: Any) -> Work:
        if self.native is None or self._signal.triggered:
            return FinishedWork(error=GroupAborted(f"{name}: the process group was aborted"))
        number, fds = next(self._numbers), list[int]()
        staging = Staging(self._blocks) if self._blocks is not None else None
        try:
            written = messages.pack(list(arguments), fds, staging)
            if staging is not None:
                staging.settle()
        except RuntimeError as error:  # the child has ended meanwhile
            return FinishedWork(error=RuntimeError(f"{name}: {error}"))
        result = arguments[0] if arguments else None
        outputs = 0 if name == "send" else len(tensors_in(result))
        work = self._expect(number, self._timeout_s + GRACE_S, result, staging, outputs)
        try:
            messages.send(
                self._child.socket, {"run": number, "name": name, "arguments": written}, fds
            )
        except OSError as error:
            self._finish(number, f"the process of this group is gone: {error}")
        return work

    def _expect(
        self,
        number: int,
        limit_s: float,
        result: Any,
        staging: Staging | None = None,
        outputs: int = 0,
    ) -> ChildWork:
        work = ChildWork(clock.now() + limit_s, result, staging, outputs)
        with self._changed:
            if self._why_gone:
                work.finish(self._why_gone)
            else:
                self._works[number] = work
        return work

    def _finish(self, number: int, error: str) -> None:
        with self._changed:
            work = self._works.pop(number, None)
        if work is not None:
            work.finish(error)

    # ------------------------------------------------------------ in the reader

    def _read(self) -> None:
        why = "the process of this group has ended"
        try:
            while True:
                self._child.socket.settimeout(0.05 if self._works else GRACE_S)
                try:
                    got = messages.receive(self._child.socket)
                except TimeoutError:
                    if self._end_if_late():
                        why = f"a collective timed out after {self._timeout_s:g} s, and its process"
                        why += " was ended with it"
                        break
                    continue
                if got is None:
                    break
                self._note(got[0])
        except (OSError, PeerError) as error:
            why = f"the process of this group cannot be understood: {error}"
        self._child.kill()
        with self._changed:
            self._why_gone = why
            works, self._works = list(self._works.values()), {}
        for work in works:
            work.finish(why)
        if self._blocks is not None:
            self._free_blocks(self._blocks)

    def _free_blocks(self, blocks: Blocks) -> None:
        """Wait for the child's end, because until then its kernels may write to the blocks."""
        blocks.refuse()
        if self._pidfd is not None:
            ended = bool(select.select([self._pidfd], [], [], START_TIMEOUT_S)[0])
            os.close(self._pidfd)
            if not ended:
                log.error("process %d of a group does not end: its memory is kept", self._child.pid)
                return
        blocks.close()

    def _note(self, message: dict[str, Any]) -> None:
        if "pid" in message:
            self._child.pid = int(message["pid"])
            if self._blocks is not None:
                self._pidfd = os.pidfd_open(self._child.pid)
        elif "done" in message:
            self._finish(int(message["done"]), "")
        elif "failed" in message:
            self._finish(int(message["failed"]), str(message.get("error")) or "failed")

    def _end_if_late(self) -> bool:
        now = clock.now()
        with self._changed:
            return any(now >= work.deadline for work in self._works.values())
