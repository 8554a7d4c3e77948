"""A collective as most of a script's own are: a small all-reduce, for which the script waits at
once, while all ranks are there. It has next to nothing of a ``Call``, and becomes one if anything
happens before the script's next collective in the group is through.

Between two products of a script's each line of Python is cold, and costs several times what it
costs in a loop: the calls of a script that reduces its loss in each step are mostly such lines.

Not here: whatever may happen to a call (calls.py).
"""

from __future__ import annotations

from datetime import timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch

from ftrun.inject.zero_edit.world.calls import (
    ISSUED,
    KEPT_BYTES_MAX,
    RECHECK,
    THROUGH,
    Call,
    Record,
    modes,
    profiles,
)
from ftrun.inject.zero_edit.world.kinds import KINDS, There, is_of_parts
from ftrun.training.exchanged_tensors import memory_at

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.world.shell import Shell
    from ftrun.inject.zero_edit.world.world import World

_Tensor = torch.Tensor
_KIND = KINDS["allreduce"]
_waited = attrgetter("waited")


class PlainCall:
    """One such call, and what its caller gets in place of a Work: its result is there.

    Attributes:
        given: its tensors and options. ``kept``: what it writes over. ``record``: see ``Call``.
        call: what it has become; None: nothing has happened.
    """

    __slots__ = ("call", "given", "kept", "native", "number", "record", "shell", "there")

    def __init__(
        self, shell: Shell, given: tuple[Any, Any], there: There, kept: bytes, record: Record
    ) -> None:
        self.shell, self.given, self.number, self.there = shell, given, shell.next, there
        self.kept, self.record = kept, record
        self.native: Any = None
        self.call: Call | None = None

    def becomes(self) -> Call:
        """The call as any other. Under the world's lock."""
        made = Call(self.shell, _KIND, self.given, self.number, is_sync=True)
        made.there, made.tag, made.record = self.there, self.there.since, self.record
        made.clears = True
        if (result := self.record[-1]) is not None:
            made.state, made.result, made.waited = THROUGH, result, True
        else:
            made.state, made.native, made.kept = ISSUED, self.native, [self.kept]
        self.call = made
        return made

    def wait(self, _timeout: timedelta | None = None) -> bool:
        """Its result is there."""
        return True

    is_completed = is_success = synchronize = wait

    def result(self) -> list[torch.Tensor]:
        found: list[torch.Tensor] = self.given[0]
        return found


def reduced(world: World, shell: Shell, tensor: torch.Tensor, opts: Any) -> PlainCall | Call | None:
    """Reduce one small tensor among all, and wait for it.

    Returns:
        The call, if nothing has happened; else what it has become, which is to be waited for. None:
        it is none of these, and has not begun.
    """
    with world.lock:
        there, noted = shell.there, shell.noted
        if (
            there is None
            or not there.is_full
            or shell.is_stopped
            or shell.under_way is not None
            or shell.gifts
            or shell.replays
            or world.is_walking
            or world.is_passing
            or world.is_following
            or world.is_ours
            or world.in_set_up
            or world.optimizer
            or world.keeper is not None
            or world.unit is not None
            or world.on_live is not None
            or type(tensor) is not _Tensor
            or (memory := memory_at(tensor, KEPT_BYTES_MAX)) is None
            or profiles()
            or modes()
            or (noted and not all(map(_waited, noted.values())))
        ):
            return None
        size, given = tensor.nbytes, ([tensor], opts)
        record: Record = [world.count, shell.key, None]
        plain = PlainCall(shell, given, there, memory[:size], record)
        plain.native = native = there.built.native.allreduce(*given)  # type: ignore[union-attr]
        shell.under_way = plain
        shell.next += 1
        world.count += 1
        world.records.append(record)
        if not world.has_shared and tensor.numel() > 1:
            world.has_shared = is_of_parts(opts)
    try:
        native.wait(RECHECK)  # mostly it is enough
        has_ended = True
    except RuntimeError:
        has_ended = False
    with world.lock:
        if plain.call is None and has_ended:
            # All have come to it, and have waited for what was before it, as this rank has.
            record[-1] = [memory[:size]]
            plain.native = shell.under_way = None
            shell.latest = plain
            if noted:
                noted.clear()
            return plain
        return plain.call or shell.calls[plain.number]
