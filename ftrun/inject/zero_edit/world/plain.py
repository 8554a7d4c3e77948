"""The fast path for the most common collective of a script: a small synchronous all-reduce.

It is used while all ranks are present. A ``PlainCall`` has very little of a ``Call``, and is
converted to one if a failure occurs before the script's next collective in the group is through.

A script that reduces its loss in each step runs this code once between long computations. There
each line of Python is cold, and takes several times as long as in a tight loop.

Not here: the handling of failures (calls.py).
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
    """One plain call. Its caller gets it in place of a Work, when the result is there.

    Attributes:
        given: its tensors and options.
        kept: the bytes of the tensor before the call overwrites it.
        record: see ``Call``.
        call: the Call that it was converted to; None: it was not.
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
        """Convert it to a Call. Under the world's lock."""
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
        """Returns at once, because the result is there."""
        return True

    is_completed = is_success = synchronize = wait

    def result(self) -> list[torch.Tensor]:
        found: list[torch.Tensor] = self.given[0]
        return found


def reduced(world: World, shell: Shell, tensor: torch.Tensor, opts: Any) -> PlainCall | Call | None:
    """Reduce one small tensor over all ranks, and wait for the result.

    Returns:
        The plain call, complete; or the Call that it was converted to, for which the caller must
        wait. None: the call does not qualify, and was not begun.
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
        record: Record = [world.count, shell.key, False, None]
        plain = PlainCall(shell, given, there, memory[:size], record)
        plain.native = native = there.built.native.allreduce(*given)  # type: ignore[union-attr]
        shell.under_way = plain
        shell.next += 1
        world.count += 1
        world.records.append(record)
        if not world.has_shared and tensor.numel() > 1:
            world.has_shared = is_of_parts(opts)
    try:
        native.wait(RECHECK)  # usually long enough
        has_ended = True
    except RuntimeError:
        has_ended = False
    with world.lock:
        if plain.call is None and has_ended:
            # All ranks have begun it, so each of them has waited for all calls before it.
            record[-1] = [memory[:size]]
            plain.native = shell.under_way = None
            shell.latest = plain
            if noted:
                noted.clear()
            return plain
        return plain.call or shell.calls[plain.number]
