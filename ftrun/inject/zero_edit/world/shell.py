"""A process group of the script's: torch's own backends behind a thin shell, which can be swapped.

The shell has all seats of the group for good, also those of ranks that are away. Each collective
becomes a Call on the backend in use. When ranks die or come, the world gives the shell another
backend (world.py); the script, DDP's Reducer and torch's tables keep the shell.

Not here: torch's names of collectives (process_groups/collectives.py), what a kind of call is
(kinds.py), its life (calls.py).
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
    """The result of a call that this rank has not begun, with its ``tag``.

    ``is_two``: it has a second phase, which the rank that had the result has passed; ``is_half``:
    or has not. ``is_logged``: it is from the log of the rank in whose place this one is.
    ``is_by_rank``: it is right at that rank alone.
    """

    bodies: list[bytes]
    tag: object
    is_two: bool = False
    is_half: bool = False
    is_logged: bool = False
    is_by_rank: bool = False


class Shell(Collectives, dist.ProcessGroup):  # type: ignore[misc]  # fewer overloads
    """One group.

    Args:
        world: that of this process.
        key: names the group alike at all ranks.
        seats: the ranks of its members in the script's world, in order.
        own: the place of this rank among them.
        timeout: of its collectives.
        devices: those for which torch would make a backend.
        label: the backend's name that the script has given.
        store: of the group, as torch makes it.
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
        self.round: Attempt = NO_ATTEMPT  # since which the calls are counted
        self.base: int | None = None  # what call 0 was before; None: nothing was
        self.there: There | None = None
        self.noted: dict[int, Call] = {}  # those that are no plain ones
        self.under_way: PlainCall | None = None  # later than all others
        self.latest: PlainCall | None = None  # is through, and earlier than that
        self.next = 0
        self.gifts: dict[int, Gift] = {}
        self.replays: list[list[bytes] | None] = []
        self.devices, self._store = list(devices), store
        self._name = self._description = key

    def __repr__(self) -> str:
        plain = dist.ProcessGroup
        return f"<{plain.__module__}.{plain.__qualname__} object at {id(self):#x}>"

    # ------------------------------------------------------------ the calls of this group

    @property
    def calls(self) -> dict[int, Call]:
        """By number. Under the world's lock."""
        for plain in (self.latest, self.under_way):
            if plain is not None:
                self.noted[plain.number] = plain.becomes()
        self.latest = self.under_way = None
        return self.noted

    @calls.setter
    def calls(self, calls: dict[int, Call]) -> None:
        self.noted, self.latest, self.under_way = calls, None, None

    def position(self) -> Position:
        """How far this rank is. Under the world's lock."""
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
        """Keep no results: a death in one of these calls cannot be settled. Under the lock."""
        for call in self.calls.values():
            call.result = None
        for number in [x for x, call in self.calls.items() if call.state is State.THROUGH]:
            del self.calls[number]

    def count_anew(self, begun: Attempt, base: int | None) -> None:
        """Call ``base`` is call 0 from now on, at all members; None: this rank joins them there.

        The calls before are kept, because a peer may not have come to its end with them. Under the
        world's lock.
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
        """Begin a call; returns its Work. The script waits at once if its options say so."""
        world, is_sync = self.world, not getattr(arguments[-1], "asyncOp", True)
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
        """Not "gloo": C++ would ask this group for torch's own class of that name."""
        return BACKEND

    def name(self) -> str:
        """The backend's name that the script has given."""
        return self.label

    _get_backend_name = name

    @property
    def group_name(self) -> Any:
        """The name under which torch knows this group."""
        return self._name

    @property
    def group_desc(self) -> Any:
        """torch's words for it."""
        return self._description

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    @property  # type: ignore[misc]  # torch's can be set, by torch alone
    def bound_device_id(self) -> Any:
        """None: groups are connected when they are made."""
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
        """Set the deadline of later collectives."""
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
    # A compiler that looks into one refuses what a process group has beyond torch's own names.
    setattr(Shell, _name, compiling.never(getattr(Shell, _name)))


def _work_of(call: Call) -> CallWork:
    work = CallWork()
    work.call = call
    return work


def tag_of(known: Call | Gift) -> list[int]:
    """The attempt whose ranks are in a result, as JSON has it."""
    tag = known.tag if isinstance(known.tag, Attempt) else NO_ATTEMPT
    return [tag.quorum_id, tag.number]
