"""A group on GPUs whose Works end on the host, as the Works of a group in host memory do.

Theory of operation. Code that follows calls (inject/zero_edit/world/) needs Works like Gloo's: a
Work ends when the result is there, or with an error after an abort, and then nothing writes any
more. NCCL's Works guarantee neither. So a thread of the group (nccl.py) waits for each call's event
and then ends its Work. No stream of the script ever waits for a kernel of NCCL: the host waits
instead. So everything that the script has enqueued finishes, even if a peer has died.

When a Work has ended, all earlier work in the issuing stream has ended too.

Not here: how the ranks connect (nccl.py, gloo.py).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions
from torch.distributed import Work

from ftrun.process_groups.built import AbortSignal, BuiltGroup, FutureWork, fail
from ftrun.process_groups.collectives import Collectives, tensors_in
from ftrun.process_groups.nccl import NCCLGroup


class SettledGroup(BuiltGroup):
    """The connections of a group for tensors on a GPU, and optionally for tensors in host memory.

    Args:
        device: the connections for GPU tensors.
        host: the connections for host tensors; None: there are none.
    """

    def __init__(self, device: NCCLGroup, host: BuiltGroup | None, signal: AbortSignal) -> None:
        super().__init__(device.rank, device.world_size, _Backend(device, host), signal)
        self._device, self._host = device, host

    def set_timeout(self, timeout: timedelta) -> None:
        for group in (self._device, self._host):
            if group is not None:
                group.set_timeout(timeout)

    @property
    def is_idle(self) -> bool:
        """Whether no kernel can write any more."""
        return self._device.is_idle

    def threads_sleep(self) -> bool | None:
        if not self.is_idle:
            return False
        return True if self._host is None else self._host.threads_sleep()

    def shutdown(self) -> None:
        super().shutdown()
        for group in (self._device, self._host):
            if group is not None:
                group.shutdown()


class SettledWork(FutureWork):
    """A Work that ends when the GPU has finished, or with an error.

    Its future has no value, so that no stream waits where it is read.
    """

    def __init__(self, outputs: list[torch.Tensor]) -> None:
        super().__init__(torch.futures.Future())
        self._outputs, self._is_over, self._error = outputs, threading.Event(), ""

    def ends(self, error: Exception | None) -> None:
        """End this Work, in the group's thread. Like torch's backends, it fails with a
        RuntimeError."""
        if error is not None:
            self._error = f"{type(error).__name__}: {error}"
        self._is_over.set()
        if error is None:
            self.future.set_result(None)
        else:
            fail(self.future, RuntimeError(self._error))

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the end.

        Raises:
            RuntimeError: it has failed, or not ended within ``timeout``.
        """
        limit_s = None if timeout is None else timeout.total_seconds()
        if not self._is_over.wait(limit_s):
            raise RuntimeError(f"the collective has not ended within {limit_s} s")
        if self._error:
            raise RuntimeError(self._error)
        return True

    def is_completed(self) -> bool:
        return self._is_over.is_set()

    def result(self) -> list[torch.Tensor]:
        return self._outputs


class _Backend(Collectives):
    """Replaces torch's backend. Routes each call by the device of its tensors."""

    def __init__(self, device: NCCLGroup, host: BuiltGroup | None) -> None:
        self._device, self._host = device, host

    def _allgather_base(self, output: Any, input: Any, opts: Any = None) -> Work:
        return self._collective("_allgather_base", output, input, opts or AllgatherOptions())

    def _reduce_scatter_base(self, output: Any, input: Any, opts: Any = None) -> Work:
        options = opts or dist.ReduceScatterOptions()
        return self._collective("_reduce_scatter_base", output, input, options)

    def monitored_barrier(self, *arguments: Any) -> None:
        """Supported for groups in host memory only, like torch's."""
        if self._host is None:
            raise RuntimeError("monitored_barrier is for groups in host memory")
        self._host.native.monitored_barrier(*arguments)

    def _collective(self, name: str, *arguments: Any) -> Work:
        tensors = tensors_in(arguments)
        on_host = self._host is not None and bool(tensors) and is_on_host(tensors[0])
        if on_host:
            assert self._host is not None, "asked above"
            found: Work = getattr(self._host.native, name)(*arguments)
            return found
        return self._on_device(name, tensors, arguments)

    def _on_device(self, name: str, tensors: list[torch.Tensor], arguments: Any) -> Work:
        device = self._device.device
        if name == "barrier":  # torch's own would look for a device, and block the host
            tensors = [torch.zeros(1, device=device)]
            name, arguments = "allreduce", (tensors, dist.AllreduceOptions())
        elif tensors and tensors[0].device != device:
            here = tensors[0].device
            what = "its backend is nccl" if here.type == "cpu" else "it is connected for that one"
            raise RuntimeError(
                f"{name} of a tensor on {here} in a process group of {device}: {what}. Give it a "
                "tensor there, or call torch.cuda.set_device() before init_process_group()"
            )
        native = self._device.native
        work = SettledWork(tensors_in(arguments[0]))
        if native is None or self._device.aborted:
            work.ends(RuntimeError(f"{name}: the process group was aborted"))
            return work
        try:
            with _asynchronous(arguments[-1]):
                issued = getattr(native, name)(*arguments)
        except dist.DistBackendError as error:  # as for a dead peer, not a wrong argument
            work.ends(error)
            return work
        self._device.follow(issued, tensors, work.ends)
        return work


def is_on_host(tensor: torch.Tensor) -> bool:
    """Whether a tensor is in host memory."""
    return tensor.device.type != "cuda"


@contextmanager
def _asynchronous(options: Any) -> Iterator[None]:
    """Make a call asynchronous.

    For a synchronous call torch returns no Work (2.8 and newer) and runs it in the caller's stream,
    which would then wait forever for a dead peer.
    """
    is_sync = getattr(options, "asyncOp", True) is False
    if is_sync:
        options.asyncOp = True
    try:
        yield
    finally:
        if is_sync:
            options.asyncOp = False
