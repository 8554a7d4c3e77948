"""The world of a replica group that trains on a GPU: logs results of calls on GPU tensors.

Theory of operation. The host waits for the end of each call (process_groups/settled.py). The result
is then copied to the log in a stream of its own, which waits for no other work, before the script
continues. So the host blocks in each call, as it does on a CPU; kernels that the script has
enqueued earlier keep running. A thread copies a generation in another stream, which waits for all
work enqueued up to the generation's place.

| who reads or writes tensors       | in which stream    | guarantee                              |
|-----------------------------------|--------------------|----------------------------------------|
| the script's thread begins a call | the script's       | NCCL waits for earlier work            |
| a call is through: log, inputs    | the log's          | copies are done before the call's end  |
|                                   |                    | is visible                             |
| the mending thread                | its default stream | the same                               |

The mending thread (reconnecting.py) issues calls that the script has begun meanwhile. So the
script's thread first synchronizes its own stream: all tensors that such a call reads or overwrites
are ready when the other thread sees the call.

The mark of a call's inputs (replayed_call.py) covers tensors in host memory only. GPU kernels that
add in any order produce other bits when a step is repeated; the log has the result.

Not here: the groups (process_groups/), the buffers for copies (snapshots/pinned.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from ftrun.checkpoint.leaves import Leaf
from ftrun.core.replay.falls import Fall
from ftrun.core.replay.log_rules import Keeps
from ftrun.inject.zero_edit.world.calls import UnderWay
from ftrun.inject.zero_edit.world.kinds import KINDS, Kind
from ftrun.inject.zero_edit.world.opening import names_of
from ftrun.inject.zero_edit.world.replayed import ReplayedWorld
from ftrun.inject.zero_edit.world.replayed_call import Line, ReplayedCall
from ftrun.inject.zero_edit.world.shell import Shell
from ftrun.process_groups.built import AbortSignal, BuiltGroup
from ftrun.process_groups.nccl import ProcessGroupNCCL
from ftrun.process_groups.settled import SettledGroup, is_on_host
from ftrun.snapshots.pinned import Pinned

_cuda: Any = torch.cuda
NATIVE = {name: replace(kind, is_ours=False, quicker=None) for name, kind in KINDS.items()}
"""NCCL's own collectives instead of ftrun's: they are faster, and each of them ends."""


class DeviceCall(ReplayedCall):
    """A call whose tensors may be on a GPU (``is_on_device``)."""

    is_on_device = False

    def __init__(self, shell: Shell, kind: Kind, *rest: Any) -> None:
        super().__init__(shell, kind, *rest)
        first = next(iter(self.outputs or kind.inputs(self)), None)
        if first is not None and not is_on_host(first):
            self.is_on_device, self.kind = True, NATIVE[kind.name]

    def new_future(self) -> torch.futures.Future[Any]:
        devices = {x.device for x in self.outputs if x.is_cuda}
        return torch.futures.Future(devices=[*devices])

    def write(self, result: Sequence[torch.Tensor]) -> None:
        super().write(result)
        if self.is_on_device:
            self.shell.world.waits_for_stream()


class DeviceWorld(ReplayedWorld):
    """See the module."""

    call: type[Any] = DeviceCall
    _device, _is_on_device = 0, False

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.begins_on_device()

    def begins_on_device(self) -> None:
        """Initialize without touching CUDA, because the script may use Gloo only."""
        self._streams: dict[str, Any] = {}
        self._pinned = Pinned()

    # ------------------------------------------------------------ groups

    def add(self, shell: Shell) -> None:
        if backends_of(shell.label)[0] and not self._is_on_device:
            self._is_on_device = True
            self._find_device()
        super().add(shell)

    def _find_device(self) -> None:
        """Find the script's device: the current one if the script has set it, else LOCAL_RANK's.

        If CUDA is not in use yet, the device is also set as the current one. torch's DeviceMesh
        would do the same, but not once the world has brought CUDA into use.
        """
        is_in_use = _cuda.is_initialized()
        stated, known = _cuda.current_device() if is_in_use else 0, max(1, _cuda.device_count())
        self._device = stated or int(os.environ.get("LOCAL_RANK", "0")) % known
        if not is_in_use:
            _cuda.set_device(self._device)

    def build_one(
        self,
        shell: Shell,
        here: tuple[int, ...],
        store: str,
        prefix: str,
        timeout_s: float,
        abort: AbortSignal,
    ) -> BuiltGroup | None:
        has_device, has_host = backends_of(shell.label)
        if not has_device or len(here) < 2:
            return super().build_one(shell, here, store, prefix, timeout_s, abort)
        given, host = (shell, here, store), None
        if has_host:
            host = super().build_one(*given, f"{prefix}/host", timeout_s, abort)
        own = AbortSignal()
        unsubscribe = abort.subscribe(own.trigger)
        place = here.index(shell.own), len(here), self._here.host, timeout_s
        try:
            with _cuda.device(self._device):
                factory = ProcessGroupNCCL(shell.timeout)
                device: Any = factory.build(store, prefix, *place, own)
        except Exception:
            if host is not None:
                host.shutdown()
            raise
        finally:
            unsubscribe()
        if host is not None:
            own.subscribe(host.abort)
        return SettledGroup(device, host, own)

    def end_calls(self, aborted: Sequence[BuiltGroup], under_way: UnderWay) -> None:
        super().end_calls(aborted, under_way)
        if not all(x.is_idle for x in aborted if isinstance(x, SettledGroup)):
            self.falls(Fall.STAYS)  # a kernel may still write, so no call can be issued again

    # ------------------------------------------------------------ calls (under ``changed``)

    def begin(self, shell: Shell, call: Any) -> None:
        if call.is_on_device and self.fell is None and not backends_of(shell.label)[0]:
            self.falls(Fall.DEVICE)
        super().begin(shell, call)

    def _keep(self, line: Line, call: Any, *, is_live: bool) -> None:
        super()._keep(line, call, is_live=is_live)
        if not is_live and _cuda.is_initialized():
            self.waits_for_stream()

    def is_through(self, call: Any) -> None:
        if not call.is_on_device:
            super().is_through(call)
            return
        with self._aside("log") as stream:
            super().is_through(call)
            stream.synchronize()

    def _log(self, line: Line, call: Any, what: Keeps, tensors: Sequence[torch.Tensor]) -> bool:
        if call.is_on_device and tensors:
            with self._aside("log"):
                tensors = self._pinned.copies(tensors)
        return super()._log(line, call, what, tensors)

    def logged_inputs(self, call: ReplayedCall) -> list[torch.Tensor] | None:
        found = super().logged_inputs(call)
        if found is None:
            return None
        return [x.to(y.device) for x, y in zip(found, call.inputs, strict=True)]

    def complete_futures(self) -> None:
        """Complete futures in the log's stream; waiting for a future waits for that stream."""
        with self._aside("log") if _cuda.is_initialized() else nullcontext():
            super().complete_futures()

    def waits_for_stream(self) -> None:
        """Wait until all work in this thread's current stream has ended."""
        _cuda.current_stream(self._device).synchronize()

    @contextmanager
    def _aside(self, name: str) -> Iterator[Any]:
        """Run the body in the stream with this name, which is created if necessary."""
        if name not in self._streams:
            self._streams[name] = _cuda.Stream(self._device)
        with _cuda.stream(self._streams[name]):
            yield self._streams[name]

    # ------------------------------------------------------------ generations

    def copying(self) -> Callable[[], AbstractContextManager[Any]]:
        """See ReplayedWorld."""
        if not _cuda.is_initialized():
            return super().copying()
        event = _cuda.Event()
        event.record(_cuda.current_stream(self._device))

        @contextmanager
        def aside() -> Iterator[None]:
            with self._aside("copy") as stream:
                stream.wait_event(event)
                yield

        return aside

    def on_device(self, leaves: Sequence[Leaf]) -> list[int]:
        """See ReplayedWorld."""
        found = {}
        for at, leaf in enumerate(leaves):
            if isinstance(leaf.data, torch.Tensor) and leaf.data.is_cuda:
                found[at] = leaf.data.device.index
        if found and not self._is_on_device:  # no group for GPU tensors has set the device
            self._device = next(iter(found.values()))
        if {*found.values()} - {self._device}:
            self.falls(Fall.SCRIPT, "a worker's state is on several GPUs")
        return [*found]


def backends_of(label: str) -> tuple[bool, bool]:
    """Whether the script's group is for GPU tensors (NCCL), and whether for host tensors (Gloo)."""
    names = names_of(label)
    return bool(names & {"nccl", "undefined"}), bool(names & {"gloo", "undefined"})
