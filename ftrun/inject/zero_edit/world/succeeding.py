"""Puts a lost worker's successor at its predecessor's position in the groups across replicas.

A generation has, for each group, its worker's position and the results that peers may still need.
The results of later calls are in a log. The successor takes the logged results as gifts (shell.py):
it repeats these calls without communicating. At the first call that is in no log, it waits for the
quorum's next attempt, in which all ranks exchange their positions (quorums.py).

Not here: the memory (in_place.py), how calls are settled (core/worker/settling.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import torch

from ftrun.core.ids import Attempt
from ftrun.inject.zero_edit.world.calls import Call, State, as_bytes
from ftrun.inject.zero_edit.world.kinds import KINDS, nbytes
from ftrun.inject.zero_edit.world.replayed_call import id_of
from ftrun.inject.zero_edit.world.shell import Gift, Shell, tag_of
from ftrun.inject.zero_edit.world.world import World
from ftrun.snapshots.area import Entry
from ftrun.snapshots.memory import offsets_of

_WORDS = 7


def is_settled(world: World) -> bool:
    """Whether the script has waited for all calls that it can wait for. If not, a successor cannot
    begin here, because it could not wait for them."""
    with world.changed:
        calls = [call for shell in world.shells.values() for call in shell.calls.values()]
        return all(x.state is State.THROUGH and (x.waited or x.handle() is None) for x in calls)


def left_of(world: World) -> tuple[dict[str, Any], list[bytes]]:
    """This worker's position in each group, as JSON has it; and the results in order."""
    heads, bodies = dict[str, Any](), list[bytes]()
    with world.changed:
        for key, shell in sorted(world.shells.items()):
            calls = []
            for number, call in sorted(shell.calls.items()):
                found = None if call.result is None else as_bytes(call.result)
                count = None if found is None else len(found)
                calls.append([number, call.kind.name, call.is_two, tag_of(call), count])
                bodies += found or ()
            at = shell.round
            heads[key] = [[at.quorum_id, at.number], shell.base, shell.next, calls]
    return heads, bodies


def go_on(
    world: World, heads: dict[str, Any], bodies: Sequence[bytes], logged: Sequence[Entry]
) -> bool:
    """Take the predecessor's position in all groups. Under the world's lock.

    Args:
        heads, bodies: as ``left_of`` returns them.
        logged: the log's entries of later calls.

    Returns:
        False if this worker's groups differ from the predecessor's.
    """
    if heads.keys() != world.shells.keys():
        return False
    left = iter(bodies)
    for key, (since, base, following, calls) in heads.items():
        shell = world.shells[key]
        shell.round, shell.base, shell.next = Attempt(*since), base, following
        shell.calls = dict(_calls(shell, calls, left))
        shell.gifts = {}
    ids = {_id(shell): shell for shell in world.shells.values()}
    for entry in logged:
        named, number, gift = _decoded(entry)
        if named not in ids:
            return False
        gifts = ids[named].gifts
        if gift is not None:
            gifts[number] = gift
        elif number in gifts:  # the entry only notes the end of its second phase
            gifts[number].is_half = False
    return True


def has_more(world: World) -> bool:
    """Whether the log has calls that this successor has not repeated yet. From any thread."""
    return any(shell.gifts for shell in [*world.shells.values()])


def to_log(call: Call, *, is_half: bool) -> list[torch.Tensor]:
    """The log entry of a call: a head of integers, then the outputs, unless logged before."""
    has_data = is_half or not call.is_logged
    outputs = call.outputs if has_data else []
    sizes = [nbytes(x) for x in outputs]
    head = [_WORDS + len(sizes), _id(call.shell), call.number, call.is_two, is_half, has_data]
    head += [call.kind.is_by_rank, *map(int, sizes)]
    return [torch.tensor(head, dtype=torch.int64), *outputs]


def _decoded(entry: Entry) -> tuple[int, int, Gift | None]:
    """The group's id, the call's number, and the result; None: an earlier entry has the result."""
    size = int(entry.data[:8].view(torch.int64))
    _, named, number, is_two, is_half, has_data, is_by_rank, *sizes = (
        entry.data[: 8 * size].view(torch.int64).tolist()
    )
    if not has_data:
        return named, number, None
    offsets, _ = offsets_of([8 * size, *sizes])
    parts = [entry.data[at : at + n] for at, n in zip(offsets[1:], sizes, strict=True)]
    tag = Attempt(entry.kind, entry.mark)
    bodies = [part.numpy().tobytes() for part in parts]
    flags = {"is_logged": True, "is_by_rank": bool(is_by_rank)}
    return named, number, Gift(bodies, tag, bool(is_two), bool(is_half), **flags)


def _calls(
    shell: Shell, heads: Sequence[Sequence[Any]], left: Iterator[bytes]
) -> Iterator[tuple[int, Call]]:
    for number, name, is_two, tag, count in heads:
        call = Call(shell, KINDS[name], ([],), number, is_sync=True)
        call.state, call.waited, call.is_two, call.tag = State.THROUGH, True, is_two, Attempt(*tag)
        call.result = None if count is None else list(islice(left, count))
        yield number, call


def _id(shell: Shell) -> int:
    """The id of a group under its present numbering of calls."""
    return id_of(f"{shell.key} {shell.round}", shell.seats)
