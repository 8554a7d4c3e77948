"""A process group of the script: a thin shell around torch's own backend, which can be swapped.

The shell keeps all seats of the group, including those of ranks that are away. Each collective
becomes a Call on the current backend. When ranks die or join, the world gives the shell another
backend (world.py). The script, DDP's Reducer and torch's tables keep the same shell.

Not here: torch's names of collectives (process_groups/collectives.py), the kinds of calls
(kinds.py), the states of a call (calls.py).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions

from ftrun.core.ids import NO_ATTEMPT, Attempt
from ftrun.core.worker.settling import Position
from ftrun.inject.zero_edit.frames import near_site
from ftrun.inject.zero_edit.world.calls import Call, CallWork, State
from ftrun.inject.zero_edit.world.kinds import KINDS, There
from ftrun.inject.zero_edit.world.plain import PlainCall, reduced
from ftrun.process_groups.built import BuiltGroup, JoinedWork
from ftrun.process_groups.collectives import Collectives
from ftrun.training import compiling

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.world.world import World

BACKEND = "ftrun"


@dataclass(slots=True)
class Gift:
    """The result of a call that this rank has not begun, kept until it begins the call.

    Attributes:
        bodies: the tensors' bytes.
        tag: as ``Call.tag``.
        is_two: the call has a second phase, and the rank that had the result has passed it.
        is_half: the call has a second phase, and that rank has not passed it.
        is_logged: it comes from the log of this rank's predecessor.
        is_by_rank: the result is valid for that rank only.
    """

    bodies: list[bytes]
    tag: object
    is_two: bool = False
    is_half: bool = False
    is_logged: bool = False
    is_by_rank: bool = False


class Shell(Collectives, dist.ProcessGroup):  # type: ignore[misc]  # fewer overloads
    """One group, as torch and the script see it.

    Args:
        world: the World of this process.
        key: the name of the group, equal at all ranks.
        seats: the ranks of its members in the script's world, in order.
        own: the index of this rank in ``seats``.
        timeout: for its collectives.
        devices: the devices for which torch would make a backend.
        label: the name of the backend that the script has requested.
        store: the group's store, made by torch.
    """

    def __init__(
        self,
        world: World,
        key: str,
        seats: Sequence[int],
        own: int,
        timeout: timedelta,
        devices: Sequence[torch.device],
        label: str,
        store: Any,
    ) -> None:
        super().__init__(own, len(seats))  # type: ignore[call-arg]  # torch's stub lacks this one
        self.world, self.key, self.seats, self.own = world, key, tuple(seats), own
        self.timeout, self.label = timeout, label
        self.built: BuiltGroup | None = None
        self.is_stopped = False  # its backend was aborted: calls wait for the next one
        self.round: Attempt = NO_ATTEMPT  # the attempt since which calls are numbered
        self.base: int | None = None  # the number of call 0 before ``round``; None: it had none
        self.there: There | None = None
        self.noted: dict[int, Call] = {}  # all calls except the plain ones
        self.under_way: PlainCall | None = None  # begun after all others
        self.latest: PlainCall | None = None  # the last plain call that is through
        self.next = 0
        self.gifts: dict[int, Gift] = {}
        self.replays: list[tuple[int, list[bytes] | None]] = []
        self.devices, self._store = list(devices), store
        self._name = self._description = key

    def __repr__(self) -> str:
        plain = dist.ProcessGroup
        return f"<{plain.__module__}.{plain.__qualname__} object at {id(self):#x}>"

    # ------------------------------------------------------------ the calls of this group

    @property
    def calls(self) -> dict[int, Call]:
        """All calls that are kept, by number; plain calls become Calls. Under the world's lock."""
        for plain in (self.latest, self.under_way):
            if plain is not None:
                self.noted[plain.number] = plain.becomes()
        self.latest = self.under_way = None
        return self.noted

    @calls.setter
    def calls(self, calls: dict[int, Call]) -> None:
        self.noted, self.latest, self.under_way = calls, None, None

    def position(self) -> Position:
        """How far this rank is in the group. Under the world's lock."""
        kept: set[int] = set()
        known: set[int] = set()
        second: set[int] = set()
        bare: set[int] = set()
        for number, call in self.calls.items():
            if call.state is State.THROUGH:
                (kept if call.result is not None else known if call.is_two else bare).add(number)
            elif call.has_result:
                second.add(number)
        since = min(self.calls, default=self.next)
        parts = (frozenset(kept), frozenset(known), frozenset(second), frozenset(bare))
        found = Position(self.next, since, *parts)
        if not self.gifts:
            return found
        halves = {number for number, gift in self.gifts.items() if gift.is_half}
        twos = {number for number, gift in self.gifts.items() if gift.is_two} - halves
        kept = self.gifts.keys() - twos - halves
        bare = {number for number in kept if self.gifts[number].is_by_rank}
        return found.holding(kept - bare, twos, halves, bare)

    def awaiting(self) -> list[Call]:
        """The calls that wait for a rank that is away. Under the world's lock."""
        return [call for call in self.noted.values() if call.awaits]

    def forget(self) -> None:
        """Drop all results, so a death in one of these calls cannot be settled. Under the world's
        lock."""
        for call in self.calls.values():
            call.result = None
        for number in [x for x, call in self.calls.items() if call.state is State.THROUGH]:
            del self.calls[number]

    def count_anew(self, begun: Attempt, base: int | None) -> None:
        """Renumber: call ``base`` is call 0 from now on, at all members; None: this rank joins.

        ``begun``: the attempt since which this numbering holds. Earlier calls are kept, because a
        peer may not have completed them. Under the world's lock.
        """
        self.round, self.base = begun, base
        if base is None:
            waits = self.awaiting()
            self.next = len(waits)
            self.calls = dict(enumerate(waits))
            for number, call in self.calls.items():
                call.number = number
            self.gifts.clear()
            return
        self.next -= base
        self.calls = {number - base: call for number, call in self.calls.items()}
        self.gifts = {number - base: gift for number, gift in self.gifts.items()}
        for number, call in self.calls.items():
            call.number = number

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:  # type: ignore[override]
        if type(opts) is dist.AllreduceOptions and not opts.asyncOp and len(tensors) == 1:
            found = reduced(self.world, self, tensors[0], opts) if self.world.has_plain else None
            if found is not None:
                return _work_of(found) if isinstance(found, Call) else found
        return Collectives.allreduce(self, tensors, opts)

    def _collective(self, name: str, *arguments: Any) -> Any:
        """Begin a call, and return its Work. It is synchronous if its options have ``asyncOp``
        False."""
        world, is_sync = self.world, not getattr(arguments[-1], "asyncOp", True)
        if self.replays:
            world.pass_over(self)
        if world.on_live is not None and not (world.is_apart or self.replays or world.is_ours):
            on_live, world.on_live = world.on_live, None
            on_live()
        with world.lock:
            call = world.call(self, KINDS[name], arguments, self.next, is_sync)
            if name == "broadcast":
                call.site = near_site()
            world.begin(self, call)
        if world.ready:
            world.complete_futures()
        work = _work_of(call)
        if not is_sync:
            call.handle = weakref.ref(work)
        return work

    # ------------------------------------------------------------ torch's names: facts

    def getBackendName(self) -> str:
        """Not "gloo", because C++ code would then expect torch's ProcessGroupGloo."""
        return BACKEND

    def name(self) -> str:
        """The name of the backend that the script has requested."""
        return self.label

    _get_backend_name = name

    @property
    def group_name(self) -> Any:
        """The name that torch has given this group."""
        return self._name

    @property
    def group_desc(self) -> Any:
        """The description that torch has given this group."""
        return self._description

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    @property  # type: ignore[misc]  # torch's own can be set
    def bound_device_id(self) -> Any:
        """None: groups connect when they are made."""
        return None

    @property
    def _device_types(self) -> list[torch.device]:
        return list(self.devices)

    def _get_backend(self, _device: torch.device) -> Any:
        native = None if self.there is None else self.there.native
        return self if native is None else native

    def get_group_store(self) -> Any:
        return self._store

    def _has_hooks(self) -> bool:
        return False

    def _wait_for_pending_works(self) -> None:
        pass

    _set_sequence_number_for_group = _wait_for_pending_works

    def _get_sequence_number_for_group(self) -> int:
        return self.next

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of later collectives."""
        self.timeout = timeout
        if self.built is not None:
            self.built.set_timeout(timeout)

    def shutdown(self) -> None:
        self.world.destroyed(self)

    abort = shutdown

    # ------------------------------------------------------------ torch's names: collectives

    def _allgather_base(self, output: Any, input: Any, opts: Any = None) -> Any:
        return self._collective("_allgather_base", output, input, opts or AllgatherOptions())

    all_gather_single = _allgather_base

    def allgather_into_tensor_coalesced(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None
    ) -> Any:
        return self._each(self._allgather_base, output_tensors, input_tensors, opts)

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        parts = [[rank[index] for rank in outputs] for index in range(len(inputs))]
        return self._each(self.allgather, [[x] for x in parts], [[x] for x in inputs], opts)

    def _reduce_scatter_base(self, output: Any, input: Any, opts: Any = None) -> Any:
        options = opts or dist.ReduceScatterOptions()
        return self._collective("_reduce_scatter_base", output, input, options)

    reduce_scatter_single = _reduce_scatter_base  # type: ignore[assignment]  # its parameters' names

    def reduce_scatter_tensor_coalesced(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None
    ) -> Any:
        return self._each(self._reduce_scatter_base, output_tensors, input_tensors, opts)

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> Any:
        there = self.there
        if there is None or not there.is_full or self.world.is_apart:
            self.barrier().wait()
        else:
            there.native.monitored_barrier(timeout or self.timeout, wait_all_ranks)

    def _each(self, begin: Callable[..., Any], outputs: Any, inputs: Any, opts: Any) -> JoinedWork:
        works = [begin(*pair, opts) for pair in zip(outputs, inputs, strict=True)]
        return JoinedWork(works, list(outputs))


for _name in [name for name in vars(Collectives) if not name.startswith("__")]:
    # torch.compile would reject attributes that torch's own process groups lack.
    setattr(Shell, _name, compiling.never(getattr(Shell, _name)))


def _work_of(call: Call) -> CallWork:
    work = CallWork()
    work.call = call
    return work


def tag_of(known: Call | Gift) -> list[int]:
    """The attempt whose ranks contributed to a result, as a JSON list."""
    tag = known.tag if isinstance(known.tag, Attempt) else NO_ATTEMPT
    return [tag.quorum_id, tag.number]
