"""A call inside one replica group, whose data is kept while a replacement may need it.

Not here: the world of these calls (replayed.py), the states of a call (calls.py).
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
"""A tensor with fewer elements than ``MARKED_LEAST`` has no part in a mark; of a larger one,
``MARKED_WORDS`` words of 8 bytes are hashed."""
INPUTS_MAX = 16
"""How many items of one list are hashed."""
_Words = ctypes.c_int64 * (1 << 40)


@dataclass(eq=False, slots=True)
class Line:
    """This rank's calls on one process group of several ranks.

    Attributes:
        id: the name of the group, equal at all members.
        members: its ranks; ``here``: those on this node.
        done: reads from the board how many calls each rank in ``here`` has done; ``set_done``:
            writes this rank's count. ``is_known``: both are set.
        begun: the number of calls begun.
        kept: the calls that others may still need, by number; none is before ``oldest``.
        elsewhere: the progress of the members on other nodes; None: there are none.
        under_way: asynchronous calls that the script may not have waited for; kept only if there
            are members elsewhere.
        keeps: what is logged, by kind of call, for kinds without a root.
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
        """Note the next call of a group that has members on other nodes."""
        assert self.elsewhere is not None, "it has"
        while self.under_way and self.under_way[0].waited:
            self.under_way.popleft()
        first = self.under_way[0] if self.under_way else call
        self.elsewhere.begins(call.number, first.number)
        if not call.is_sync:
            self.under_way.append(call)

    def step_begins(self) -> None:
        """A step begins: calls with a future count as waited for."""
        if self.elsewhere is not None:
            self.elsewhere.step_begins(self.begun)
            self.under_way = deque(x for x in self.under_way if x.future is None)


def id_of(key: str, seats: Sequence[int]) -> int:
    """A number that names a group; never 0."""
    digest = hashlib.blake2b(f"{key} {list(seats)}".encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big") or 1


class ReplayedCall(Call):
    """A call that is logged. Its inputs are kept until all members have logged it.

    Attributes:
        line: the calls of its group; None: the call is not numbered.
        at: its number among all calls of this worker.
        what: what is logged of it.
        inputs: its input tensors; set if it is numbered.
        mark: a hash of the inputs, unless the log has them (``mark_of``); 0: none.
        is_bare: nothing of it is kept.
        tag: the same for all calls, because each result has the inputs of all ranks.
        given: its inputs once it is through: a copy each, or a tensor and its version; None: the
            log has them, or nothing is kept.
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
        """Whether the script has not waited for the call, and still holds its Work."""
        return not (self.waited or self.future is not None) and self.handle() is not None

    @property
    def is_complete(self) -> bool:
        """Whether the result is there, whether or not the script has waited for it."""
        if self.state is State.ISSUED and self.native is not None:
            return bool(self.native.is_completed())
        return self.state is State.THROUGH

    def prepare(self) -> None:
        """Copy the outputs before the call overwrites them, because they may also be inputs."""
        self.kept = list(map(self.shell.world.buffers.copy, self.outputs))

    def _keep_result(self) -> None:
        self.state = State.THROUGH
        self.shell.world.is_through(self)

    def _fails(self, error: Exception) -> None:
        self.failed_at = clock.now()
        super()._fails(error)

    def keep_inputs(self) -> None:
        """Keep the inputs of a call that is through here, because other ranks may not be through.

        A large input is not copied: usually it is a buffer that is not written any more. A changed
        version number shows if it was.
        """
        copy = self.shell.world.buffers.copy
        # A gather over nodes: FSDP2 reuses the memory of the gathered tensors.
        is_lent = self.what is Keeps.ALIKE and self.kind.is_fence
        self.given = [
            copy(x)
            if is_lent or nbytes(x) <= KEPT_BYTES_MAX or x.is_inference()
            else (x, x._version)
            for x in self.inputs
        ]

    def scratch(self) -> ReplayedCall | None:
        """The same call with outputs of its own, to issue again for ranks that lack the result.

        None: the inputs were overwritten, or not kept.
        """
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
    """A hash of some bytes of a call's inputs; 0: no input must be equal when a step is repeated.

    A small tensor is left out, because it may hold a measured time.
    """
    mark = 0
    for tensor in inputs:
        if tensor.is_floating_point() and tensor.numel() >= MARKED_LEAST:
            mark = _marked(mark, tensor)
    return mark


def mark_of_pass(given: Any, deep: int = 4) -> int:
    """A hash of a model's inputs, from some bytes of each tensor."""
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
    """The kept input of a call, as a new tensor; None: it was overwritten, or its memory freed."""
    if isinstance(kept, tuple):
        tensor, version = kept
        is_there = tensor.untyped_storage().nbytes() >= tensor.nbytes
        # A copy, because the script may overwrite it before the backend has read it.
        return tensor.clone() if is_there and tensor._version == version else None
    if isinstance(kept, bytes):
        from ftrun.training.exchanged_tensors import from_bytes

        return from_bytes(kept, like)
    return kept.clone() if isinstance(kept, torch.Tensor) else None


def _mapped(value: Any, change: Any) -> Any:
    """Replace each tensor in nested lists by ``change`` of it."""
    if isinstance(value, torch.Tensor):
        return change(value)
    return [_mapped(x, change) for x in value]
