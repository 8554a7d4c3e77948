"""A call of one group without replicas: what it gives is kept as long as a death may ask for it.

Not here: the world of such calls (replayed.py), the life of a call (calls.py).
"""

from __future__ import annotations

import ctypes
import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import torch

from ftrun.base import clock
from ftrun.core.ids import NO_ATTEMPT
from ftrun.core.replay.log_rules import Keeps
from ftrun.core.replay.mirroring import Elsewhere
from ftrun.inject.zero_edit.world.calls import KEPT_BYTES_MAX, Call, State
from ftrun.inject.zero_edit.world.kinds import nbytes

MARKED_LEAST, MARKED_WORDS = 64, 16
"""Numbers of a tensor that is marked; the mark is of so many of its words."""
INPUTS_MAX = 16
"""Of one list."""
_Words = ctypes.c_int64 * (1 << 40)


@dataclass(eq=False, slots=True)
class Line:
    """The calls of one process group of several ranks, as this rank makes them.

    ``id``: names the group alike at all members. ``members``: ranks; ``here``: those of this node.
    ``done``: gives their words on the board; ``set_done``: writes this rank's; ``is_known``: it is
    known where they are. ``begun``: so many calls. ``kept``: those that others may still ask for,
    by number; none is before ``oldest``. ``elsewhere``: of the members on other nodes, if there are
    any; ``under_way``: the calls that the script has not waited for, as far as they are noted for
    that. ``keeps``: what is logged, by the kind of call that has no root.
    """

    id: int
    members: tuple[int, ...]
    here: tuple[int, ...]
    is_known: bool = False
    done: Callable[[], Sequence[int]] = tuple
    set_done: Callable[[int], object] = int
    begun: int = 0
    oldest: int = 0
    kept: dict[int, ReplayedCall] = field(default_factory=dict)
    elsewhere: Elsewhere | None = None
    under_way: deque[ReplayedCall] = field(default_factory=deque)
    keeps: dict[str, Keeps] = field(default_factory=dict)

    def begins(self, call: ReplayedCall) -> None:
        """The next call of a group that has members elsewhere."""
        assert self.elsewhere is not None, "it has"
        while self.under_way and self.under_way[0].waited:
            self.under_way.popleft()
        first = self.under_way[0] if self.under_way else call
        self.elsewhere.begins(call.number, first.number)
        if not call.is_sync:
            self.under_way.append(call)

    def step_begins(self) -> None:
        """Whoever has a future has waited for it."""
        if self.elsewhere is not None:
            self.elsewhere.step_begins(self.begun)
            self.under_way = deque(x for x in self.under_way if x.future is None)


def id_of(key: str, seats: Sequence[int]) -> int:
    """The name of a group, which is not 0."""
    digest = hashlib.blake2b(f"{key} {list(seats)}".encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big") or 1


class ReplayedCall(Call):
    """A call whose result is logged. Its inputs are kept until all members have logged theirs.

    Attributes:
        line: the calls of its group; None: it is not numbered. ``at``: its place in the program.
        what: is logged of it. ``inputs``: what it gives, if it is numbered. ``mark``: of that, if
            the log does not have it; 0: none.
        is_bare: nothing of it is kept.
        tag: one and the same, as all ranks' inputs are in each result, also in one from the log.
        given: what it gives, once it is through: copies, or a tensor and its version; None: that is
            in the log.
    """

    shell: Any
    tag: object = NO_ATTEMPT
    line: Line | None = None
    at = -1
    what: Keeps | None = None
    inputs: list[torch.Tensor]
    mark = 0
    is_bare = False
    given: list[Any] | None = None
    failed_at = 0.0

    @property
    def is_awaited(self) -> bool:
        """Whether the script has not waited for it, and still can."""
        return not (self.waited or self.future is not None) and self.handle() is not None

    @property
    def is_complete(self) -> bool:
        """Whether its result is there, perhaps before the script waits for it."""
        if self.state is State.ISSUED and self.native is not None:
            return bool(self.native.is_completed())
        return self.state is State.THROUGH

    def prepare(self) -> None:
        """Keep what it gives: it writes over that."""
        self.kept = list(map(self.shell.world.buffers.copy, self.outputs))

    def _is_through(self) -> None:
        self.state, world = State.THROUGH, self.shell.world
        world.is_through(self)
        if not self.kind.is_unsettled:
            self.native = None
        if self.site:
            world.note(self.shell, self)
        if self.future is not None:
            world.ready.append(self)
        if world.waiting:
            world.changed.notify_all()

    def _fails(self, error: Exception) -> None:
        self.failed_at = clock.now()
        super()._fails(error)

    def keep_inputs(self) -> None:
        """It is through, and others may not be: keep what it gives, as it is now.

        A large one is not copied, because as a rule it is a buffer that nobody writes any more; if
        somebody has, its version tells.
        """
        copy = self.shell.world.buffers.copy
        # A gather over nodes: FSDP2 gives the memory of what it gathers for other things.
        is_lent = self.what is Keeps.ALIKE and self.kind.is_fence
        self.given = [
            copy(x)
            if is_lent or nbytes(x) <= KEPT_BYTES_MAX or x.is_inference()
            else (x, x._version)
            for x in self.inputs
        ]

    def scratch(self) -> ReplayedCall | None:
        """The same call with a result that nobody needs; None: its inputs are gone."""
        kind, outputs, inputs = self.kind, self.outputs, self.inputs
        kept = self.kept if self.kept is not None else self.given
        if kept is None and self.what is Keeps.INPUT:
            kept = self.shell.world.logged_inputs(self)
        values = (
            [] if kept is None else [_as_given(x, y) for x, y in zip(kept, inputs, strict=True)]
        )
        if kept is None or any(x is None for x in values):
            return None
        is_own = bool(inputs) and bool(outputs) and inputs[0] is outputs[0]
        made = iter(values if is_own else [torch.empty_like(x) for x in outputs])
        args = [*self.args]
        args[0] = _mapped(args[0], lambda _: next(made))
        if not is_own and inputs:
            given = iter(values)
            at = 0 if not outputs else 1
            args[at] = _mapped(args[at], lambda _: next(given))
        return type(self)(self.shell, kind, tuple(args), self.number, self.is_sync)


def mark_of(inputs: Sequence[torch.Tensor]) -> int:
    """A mark of what a call gives, from some of its bytes; 0: it has nothing that must be the same
    when a step is repeated. A few numbers may be a time that was measured."""
    mark = 0
    for tensor in inputs:
        if tensor.is_floating_point() and tensor.numel() >= MARKED_LEAST:
            mark = _marked(mark, tensor)
    return mark


def mark_of_pass(given: Any, deep: int = 4) -> int:
    """A mark of what a model is given, from some bytes of each of its tensors."""
    if isinstance(given, torch.Tensor):
        return _marked(given.numel(), given)
    if isinstance(given, dict):
        given = [*given.values()]
    if not deep or not isinstance(given, (list, tuple)):
        return 0
    return hash((*map(mark_of_pass, given[:INPUTS_MAX], repeat(deep - 1)),)) if given else 0


def _marked(mark: int, tensor: torch.Tensor) -> int:
    if tensor.device.type != "cpu" or type(tensor) is not torch.Tensor:
        return mark
    if tensor.layout is not torch.strided or not tensor.is_contiguous():
        return mark
    words, count = _Words.from_address(tensor.data_ptr()), tensor.nbytes // 8
    return hash((mark, *words[: count : max(1, count // MARKED_WORDS)]))


def _as_given(kept: Any, like: torch.Tensor) -> torch.Tensor | None:
    """What a call has given; None: somebody has written over it."""
    if isinstance(kept, tuple):
        tensor, version = kept
        is_there = tensor.untyped_storage().nbytes() >= tensor.nbytes
        # A copy: the script goes on, and may write over it before the backend has read it.
        return tensor.clone() if is_there and tensor._version == version else None
    if isinstance(kept, bytes):
        from ftrun.training.exchanged_tensors import from_bytes

        return from_bytes(kept, like)
    return kept.clone() if isinstance(kept, torch.Tensor) else None


def _mapped(value: Any, change: Any) -> Any:
    """The same lists with other tensors."""
    if isinstance(value, torch.Tensor):
        return change(value)
    return [_mapped(x, change) for x in value]
