"""torchft.process_group: groups that can be reconfigured, and groups around them.

ftrun's ProcessGroupGloo and ProcessGroupNCCL have torchft's names here, and so do the wrappers.
torchft's "baby" groups have a process of their own, because its other groups cannot be aborted
safely. Those of ftrun can, so here they are the same groups. A backend that this machine lacks can
be imported, and raises an error when it is constructed.
"""

from __future__ import annotations

import os
import uuid
import weakref
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import DistNetworkError, Work

from ftrun.base.errors import UserError
from ftrun.process_groups import base
from ftrun.process_groups.built import BuiltGroup
from ftrun.process_groups.gloo import ProcessGroupGloo
from ftrun.process_groups.handles import ReconfigureOptions, meet
from ftrun.process_groups.handles import store_client as create_store_client
from ftrun.process_groups.nccl import ProcessGroupNCCL
from ftrun.process_groups.reconfigurable import ReconfigurableGroup as ProcessGroup
from ftrun.process_groups.wrappers import (
    ErrorSwallowingProcessGroupWrapper,
    FakeProcessGroupWrapper,
    ProcessGroupDummy,
    ProcessGroupWrapper,
    SwallowingWork,
)
from ftrun.torchft.futures import context_timeout, stream_timeout
from ftrun.torchft.multiprocessing import _MonitoredPipe
from ftrun.torchft.utils import get_stream_context, record_event, synchronize
from ftrun.torchft.work import _DummyWork
from ftrun.training.managed_group import ManagedProcessGroup

__all__ = [
    "ErrorSwallowingProcessGroupWrapper",
    "FakeProcessGroupWrapper",
    "ManagedProcessGroup",
    "ProcessGroup",
    "ProcessGroupBaby",
    "ProcessGroupBabyGloo",
    "ProcessGroupBabyNCCL",
    "ProcessGroupBabyXCCL",
    "ProcessGroupDummy",
    "ProcessGroupGloo",
    "ProcessGroupNCCL",
    "ProcessGroupWrapper",
    "ProcessGroupXCCL",
    "ReconfigureOptions",
    "_DummyWork",
    "_MonitoredPipe",
    "context_timeout",
    "create_store_client",
    "get_stream_context",
    "reconfigure_with_store",
    "record_event",
    "stream_timeout",
    "synchronize",
    "trigger_nccl_fr_trace_through_pipe",
]

TORCH_NCCL_DEBUG_INFO_PIPE_FILE_ENV_VAR = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
TORCHFT_TRIGGER_FR_ON_ABORT = "TORCHFT_TRIGGER_FR_ON_ABORT"

DEFAULT_TIMEOUT = timedelta(seconds=60)

_ErrorSwallowingWork = SwallowingWork
_rendezvous = meet


def reconfigure_with_store(
    pg: dist.ProcessGroup,
    store_addr: str,
    rank: int,
    world_size: int,
    timeout: timedelta = DEFAULT_TIMEOUT,
) -> None:
    """Connect ``pg`` with the ranks that meet at a store, without a Manager.

    Args:
        pg: the group to reconfigure.
        store_addr: ``host:port/prefix``; the prefix must be unique to this call.
        rank: of this process.
        world_size: the number of ranks.
        timeout: for the handles of all ranks, and for the connections.

    Raises:
        RuntimeError: the ranks did not come in time.
    """
    group: Any = pg
    store = create_store_client(store_addr, timeout)
    store.set(f"handle/{rank}", group.get_reconfigure_handle())
    if rank == 0:
        store.set("uuid", str(uuid.uuid4().int >> 65))  # fits in 63 bits
    keys = ["uuid", *(f"handle/{peer}" for peer in range(world_size))]
    store.wait(keys, timeout)
    number, *handles = store.multi_get(keys)
    options = ReconfigureOptions()
    options.uuid = int(number)
    options.handles = [handle.decode() for handle in handles]
    options.timeout = timeout
    group.reconfigure(options).wait()


def trigger_nccl_fr_trace_through_pipe(rank: int) -> bool:
    """Request a trace from NCCL's flight recorder of ``rank``; False: it listens at no pipe."""
    prefix = os.environ.get(TORCH_NCCL_DEBUG_INFO_PIPE_FILE_ENV_VAR, "")
    if not prefix:
        return False
    with open(f"{prefix}{rank}.pipe", "w") as pipe:
        pipe.write("1\n")
    return True


def _refuse(name: str, needs: str) -> None:
    raise UserError(
        f"{name} needs {needs}, which this machine or ftrun lacks. Nothing was connected; use "
        "ProcessGroupNCCL on CUDA devices and ProcessGroupGloo elsewhere"
    )


class ProcessGroupXCCL(ProcessGroupWrapper):
    """Intel's collectives: can be imported, but not constructed.

    Raises:
        UserError: ftrun has no groups for Intel's devices.
    """

    def __init__(self, timeout: timedelta = DEFAULT_TIMEOUT) -> None:
        _refuse(type(self).__name__, "an Intel XPU and XCCL")
        super().__init__(timeout)


class ProcessGroupBaby(base.ProcessGroup):
    """A group that torchft has in a process of its own. ``timeout`` bounds each collective."""

    def __init__(self, timeout: float | timedelta = 60.0) -> None:
        super().__init__(timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout))
        self._begun: weakref.WeakSet[Work] = weakref.WeakSet()

    def reconfigure(self, opts: ReconfigureOptions) -> Work:
        """Connect anew.

        Raises:
            TimeoutError: the ranks are not connected by the deadline.
        """
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
            OSError: there is none.
        """
        if self._built is None:
            raise OSError(f"{type(self).__name__}: it was shut down, and its handle is closed")
        return self._built

    def num_active_work(self) -> int:
        """How many collectives have not ended."""
        return sum(not work.is_completed() for work in self._begun)

    def _collective(self, name: str, *arguments: Any) -> Work:
        work = super()._collective(name, *arguments)
        self._begun.add(work)
        return work


class ProcessGroupBabyGloo(ProcessGroupBaby, ProcessGroupGloo):  # type: ignore[misc]
    """Gloo, which can be aborted at any moment."""


class ProcessGroupBabyNCCL(ProcessGroupBaby, ProcessGroupNCCL):  # type: ignore[misc]
    """NCCL, which can be aborted at any moment.

    Raises:
        UserError: this machine has no CUDA device, or torch no NCCL.
    """

    def __init__(self, timeout: float | timedelta = 60.0) -> None:
        if not torch.cuda.is_available() or not dist.is_nccl_available():
            raise UserError(
                f"{type(self).__name__} needs a CUDA device and a torch that is built with NCCL, "
                "which this machine lacks. Nothing was connected; use ProcessGroupGloo on CPUs"
            )
        super().__init__(timeout)


class ProcessGroupBabyXCCL(ProcessGroupBaby):
    """Intel's collectives: can be imported, but not constructed.

    Raises:
        UserError: ftrun has no groups for Intel's devices.
    """

    def __init__(self, timeout: float | timedelta = 60.0) -> None:
        _refuse(type(self).__name__, "an Intel XPU and XCCL")
        super().__init__(timeout)
