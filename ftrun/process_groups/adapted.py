"""Adapts other process group classes: a Manager builds one group while another is in use.

A Manager needs a factory (base.py). A wrapper around a factory, a wrapper that makes its group in
``_create_pg``, and a dummy can be used as a factory. A class whose ``reconfigure`` replaces its
only group cannot, because a step that runs on that group would be lost. A reconfigurable group of
torch itself is replaced by ftrun's group of the same backend.

If a script subclasses ftrun's groups, its ``allreduce``, ``errored`` and ``set_rank_info`` are
called as torchft's Manager calls them. Other overridden methods are refused, or listed in a warning
if ftrun can do without them.

Not here: the wrappers (wrappers.py), when to build (training/groups.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import Work

from ftrun.base.errors import UserError
from ftrun.process_groups.base import Place, ProcessGroup
from ftrun.process_groups.built import AbortSignal, BuiltGroup
from ftrun.process_groups.gloo import ProcessGroupGloo
from ftrun.process_groups.handles import store_client
from ftrun.process_groups.nccl import ProcessGroupNCCL
from ftrun.process_groups.quantized_messages import MessageGroup
from ftrun.process_groups.reconfigurable import ReconfigurableGroup
from ftrun.process_groups.wrappers import (
    ErrorSwallowingProcessGroupWrapper,
    ProcessGroupDummy,
    ProcessGroupWrapper,
)

log = logging.getLogger(__name__)

NATIVE: tuple[tuple[str, str, type[ProcessGroupGloo | ProcessGroupNCCL]], ...] = (
    ("gloo", "cpu", ProcessGroupGloo),
    ("nccl", "cuda", ProcessGroupNCCL),
)
"""Backends of torch's own reconfigurable groups, their devices, and ftrun's groups for them."""
NEVER_CALLED = ("abort", "shutdown", "set_timeout", "get_reconfigure_handle")
OURS = "ftrun."


def adapt(pg: dist.ProcessGroup) -> ProcessGroup:
    """Adapt ``pg`` to a factory of groups.

    Raises:
        ValueError: ``pg`` cannot be reconfigured at all.
        UserError: it cannot be reconfigured while its current group is in use.
    """
    if isinstance(pg, ProcessGroup):
        _check_overrides(pg, "configure", "reconfigure", "_create_pg")
        return _WrappedFactory(pg, pg) if _is_own(pg, "allreduce") else pg
    if not _can_be_reconfigured(pg):
        raise ValueError(
            f"a {type(pg).__name__} cannot be reconfigured: give the Manager a ProcessGroupGloo or "
            "a ProcessGroupNCCL of ftrun, or one of torch's own made with enable_reconfigure=True"
        )
    if not isinstance(pg, ReconfigurableGroup):
        return _in_place_of(pg)
    if isinstance(pg, ProcessGroupDummy):
        return _DummyFactory(pg)
    if isinstance(pg, ProcessGroupWrapper):
        _check_overrides(pg, "reconfigure")
        if pg._inner() is not None:
            return _WrappedFactory(pg, adapt(pg.parent))
        if type(pg)._create_pg is not ProcessGroupWrapper._create_pg:
            return _CreatingFactory(pg)
    raise _refusal(pg, "reconfigure")


def own_error(pg: dist.ProcessGroup) -> Callable[[], Exception | None] | None:
    """The ``errored`` method of the script's class, for each step's end; None: it has none.

    ftrun's own groups report errors in their Works.
    """
    if not isinstance(pg, ReconfigurableGroup):
        return None
    if _is_own(pg, "errored"):
        return pg.errored
    inner = pg._inner() if isinstance(pg, ProcessGroupWrapper) else None
    return None if inner is None else own_error(inner)


def _swallowed(pg: ReconfigurableGroup) -> Exception | None:
    """The error that this wrapper, or one that it wraps, has swallowed."""
    if not isinstance(pg, ProcessGroupWrapper):
        return None
    error = pg.error() if isinstance(pg, ErrorSwallowingProcessGroupWrapper) else None
    inner = pg._inner()
    return error if error is not None or inner is None else _swallowed(inner)


def name_ranks(
    pg: dist.ProcessGroup, replica_id: str, group_rank: int, group_world_size: int
) -> None:
    """Give a Manager's group the names of this process, as torchft's Manager does."""
    if isinstance(pg, ReconfigurableGroup):
        place = trailing_number(replica_id) * group_world_size + group_rank
        pg.set_rank_info(replica_id, group_rank, group_world_size, place)


def trailing_number(text: str) -> int:
    """The number at the end of ``text``; 0 if there is none."""
    digits = text[len(text.rstrip("0123456789")) :]
    return int(digits) if digits else 0


def _is_own(pg: object, name: str) -> bool:
    """Whether a class of the script, and not of ftrun, defines the method."""
    homes = (kind for kind in type(pg).__mro__ if name in vars(kind))
    home = next(homes, None)
    return home is not None and not home.__module__.startswith(OURS)


def _check_overrides(pg: ReconfigurableGroup, *refused: str) -> None:
    """Refuse a script's methods that ftrun cannot support. Warn of those that it never calls.

    Raises:
        UserError: the script overrides one of ``refused``.
    """
    for name in refused:
        if _is_own(pg, name):
            raise _refusal(pg, name)
    unused = [f"{name}()" for name in NEVER_CALLED if _is_own(pg, name)]
    if unused:
        log.warning(
            "Manager(pg=%s): its own %s: not called under ftrun, which connects, aborts and closes "
            "the group of each quorum itself",
            type(pg).__name__,
            ", ".join(unused),
        )


def _refusal(pg: object, name: str) -> UserError:
    how = "ProcessGroupGloo, ProcessGroupNCCL, or a ProcessGroupWrapper with _create_pg()"
    return UserError(
        f"Manager(pg={type(pg).__name__}): ftrun connects with the next replicas while the present "
        f"group is in use, so a class whose own {name}() makes or replaces its group cannot be "
        f"used. Give {how}"
    )


def _can_be_reconfigured(pg: dist.ProcessGroup) -> bool:
    try:
        return bool(getattr(pg, "supports_reconfigure", False))
    except RuntimeError:  # torch's own class without a backend
        return False


def _in_place_of(pg: Any) -> ProcessGroup:
    """ftrun's group with the backend and timeout of ``pg``, a group of torch (2.14 and newer).

    torch's ``reconfigure`` replaces the connections of the only group, and its Gloo group has no
    abort that wakes a waiter. So ``pg`` itself is never connected.
    """
    for backend, device, kind in NATIVE:
        if pg.name() == backend:
            log.info(
                "Manager(pg=…): in place of torch's own %s group, ftrun connects a %s for each "
                "quorum; the group that was given has no connections itself",
                backend,
                kind.__name__,
            )
            return kind(pg._get_backend(torch.device(device)).options._timeout)
    raise UserError(
        f"Manager(pg=…): a group of torch's own with backend {pg.name()!r} cannot be used: ftrun "
        "connects with the next replicas while the present group is in use, and has groups of its "
        "own for gloo and nccl. Nothing was connected; give ProcessGroupGloo or ProcessGroupNCCL"
    )


class _Passing(MessageGroup):
    """A built group whose all-reduces go through the script's own object."""

    def __init__(
        self, inner: BuiltGroup, signal: AbortSignal, through: ReconfigurableGroup
    ) -> None:
        super().__init__(inner.rank, inner.world_size, inner, signal)
        self._through = through

    def _collective(self, name: str, *arguments: Any) -> Work:
        if name == "allreduce":
            return self._through.allreduce(*arguments)
        return super()._collective(name, *arguments)

    def is_connected(self) -> bool | None:
        inner: BuiltGroup = self.native
        return inner.is_connected()

    def swallowed(self) -> Exception | None:
        return _swallowed(self._through)

    def threads_sleep(self) -> bool | None:
        inner: BuiltGroup = self.native
        return inner.threads_sleep()

    def shutdown(self) -> None:
        inner, self.native = self.native, None
        self._signal.trigger()
        if inner is not None:
            inner.shutdown()
        if self._messages is not None:
            self._messages.join()


class _WrappedFactory(ProcessGroup):
    """A wrapper around a factory: the factory builds the groups, the wrapper's methods are called.

    A factory whose ``allreduce`` a script overrides is both.
    """

    def __init__(self, wrapper: ReconfigurableGroup, factory: ProcessGroup) -> None:
        super().__init__(factory.timeout)
        self._wrapper = wrapper
        self._factory = factory
        self.caller_waits = False  # a wrapper's Work may support nothing but its future

    def getBackendName(self) -> str:
        return self._factory.getBackendName()

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
        signal = signal or AbortSignal()
        place = store_addr, prefix, rank, world_size, host, timeout_s
        return _Passing(self._factory.build(*place, signal), signal, self._wrapper)

    def use(self, built: BuiltGroup | None) -> BuiltGroup | None:
        self._factory.use(built.native if isinstance(built, _Passing) else None)
        if isinstance(self._wrapper, ProcessGroupWrapper):
            self._wrapper._renewed()
        return super().use(built)


class _CreatingFactory(ProcessGroup):
    """A wrapper that makes its group in ``_create_pg``."""

    def __init__(self, wrapper: ProcessGroupWrapper) -> None:
        super().__init__(wrapper._timeout)
        self._wrapper = wrapper
        self.caller_waits = False

    def getBackendName(self) -> str:
        return "ftrun-custom"

    def _connect(self, place: Place) -> BuiltGroup:
        timeout: timedelta = place.remaining()
        store = store_client(f"{place.store_addr}/ftrun/{place.prefix}", timeout)
        native = self._wrapper._create_pg(store, place.rank, place.world_size)
        built = BuiltGroup(place.rank, place.world_size, native, place.signal)
        if hasattr(native, "abort"):
            place.signal.subscribe(native.abort)
        return _Passing(built, place.signal, self._wrapper)

    def use(self, built: BuiltGroup | None) -> BuiltGroup | None:
        inner = built.native if isinstance(built, _Passing) else None
        self._wrapper._pg = inner.native if inner is not None else None
        return super().use(built)


class _DummyFactory(ProcessGroup):
    """A dummy for any number of ranks: nothing is sent, and tensors stay unchanged."""

    def __init__(self, dummy: ProcessGroupDummy) -> None:
        super().__init__()
        self._dummy = dummy

    def getBackendName(self) -> str:
        return self._dummy.getBackendName()

    def _connect(self, place: Place) -> BuiltGroup:
        return BuiltGroup(place.rank, place.world_size, self._dummy, place.signal)
