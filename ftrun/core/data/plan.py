"""Which positions of an epoch each replica trains on, and which are not trained yet.

Theory of operation. All replicas that hold the same state of the job hold the same
``DataPosition``: it heals with the weights, and moves when a step is committed. The *pending*
positions are those that no committed step has trained: first the returned ones, then the fresh
ones. A step takes its *slices* from the front of them.

- **Exactly once** (``per_slot``). The slices follow from the position and the slot alone, not from
  the quorum: the contributors to the last step have the first slices, in order, and all other slots
  have the next ones. So replicas that begin one step under different quorums never take the same
  samples, and a batch may be drawn before the quorum of its step is known. When the step is
  committed, the slices of those that contributed are done; the slice of a replica that died in it,
  or that did not come, is *returned*, and the next step takes it first.
- **A global batch** (``global_batch``). A step takes the next G positions, divided among those that
  contribute when it begins. It must not be committed with other contributors, so it is computed
  again after a death (``repair="discard"``).

At an epoch's end fewer positions are pending than a step takes: then they are divided evenly among
the contributors to the last step. A replica may get none; its gradients then have no weight.
Gradients are weighted by samples (``weight``).

Not here: permutations, batches, loaders (training/elastic_sampler.py); when a step is committed
(core/worker/machine.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ftrun.core.data.spans import Spans, cut, divided, length, merged, shares, without

Slices = dict[int, Spans]
"""The positions of each slot in one step."""


@dataclass(frozen=True, slots=True)
class DataPosition:
    """How far the job has advanced in its data.

    ``epoch``: from 0 on. ``fresh_from``: positions from here on were never in a slice that was
    trained or returned. ``returned``: positions below it that no committed step has trained.
    ``counted``: the slots that contributed to the last step, in order.
    """

    epoch: int
    fresh_from: int
    returned: Spans
    counted: tuple[int, ...]

    def encode(self) -> dict[str, Any]:
        """As plain values, for heals and checkpoints."""
        return {
            "epoch": self.epoch,
            "fresh_from": self.fresh_from,
            "returned": [list(span) for span in self.returned],
            "counted": list(self.counted),
        }


@dataclass(frozen=True, slots=True)
class DataPlan:
    """The rules by which samples are assigned; the same on all replicas.

    ``size``: samples of an epoch. ``slots``: replicas of a complete job. ``per_slot``: samples of
    one replica in a step. ``global_batch``: samples of all replicas in a step, instead; None: the
    batch grows and shrinks with the replicas.
    """

    size: int
    slots: int
    per_slot: int
    global_batch: int | None = None

    def __post_init__(self) -> None:
        numbers = (self.size, self.slots, self.per_slot, self.global_batch or 1)
        if min(numbers) < 1:
            raise ValueError(f"not all above 0: {self}")

    def start(self) -> DataPosition:
        return DataPosition(0, 0, (), tuple(range(self.slots)))

    def pending(self, position: DataPosition) -> Spans:
        """The positions of the epoch that no committed step has trained, in order."""
        fresh = ((position.fresh_from, self.size),) if position.fresh_from < self.size else ()
        return position.returned + fresh

    def trained(self, position: DataPosition) -> int:
        """How many samples of the epoch committed steps have trained."""
        return self.size - length(self.pending(position))

    def slices(self, position: DataPosition, contributors: Sequence[int]) -> Slices:
        """The positions of each slot in the next step; slots that have none are left out.

        ``contributors``: the slots that count in it. Only a global batch follows them.
        """
        pending = self.pending(position)
        total = length(pending)
        if self.global_batch is not None:
            order = sorted(contributors)
            sizes = shares(min(total, self.global_batch), max(len(order), 1))
        else:
            counted = dict.fromkeys(position.counted)
            order = [*counted, *(x for x in range(self.slots) if x not in counted)]
            if total < self.per_slot * len(counted):
                sizes = shares(total, len(counted))
            else:
                sizes = [self.per_slot] * self.slots
        taken = dict(zip(order, divided(pending, sizes), strict=False))
        return {slot: spans for slot, spans in taken.items() if spans}

    def after(self, position: DataPosition, contributors: Sequence[int]) -> DataPosition:
        """The position after a step that is committed with these contributors."""
        slices = self.slices(position, contributors)
        done = [span for slot in contributors for span in slices.get(slot, ())]
        return self._made(position.epoch, without(self.pending(position), done), contributors)

    def weight(self, position: DataPosition, contributors: Sequence[int], slot: int) -> float:
        """The factor for the gradients of ``slot``, which are means over its samples.

        With these factors the average over the contributors is the average over all samples of the
        step.
        """
        slices = self.slices(position, contributors)
        total = sum(length(slices.get(other, ())) for other in contributors)
        if total == 0:  # the only samples left are a dead replica's
            return 0.0
        return length(slices.get(slot, ())) * len(contributors) / total

    def steps_per_epoch(self, replicas: int) -> int:
        """The steps of an epoch in which this number of replicas contributes, without a death."""
        return -(-self.size // (self.global_batch or self.per_slot * replicas))

    def decode(self, encoded: dict[str, Any]) -> DataPosition:
        """A position that ``encode`` has written, perhaps in a job of more or fewer replicas.

        Raises:
            ValueError: it is not a position, or not one of this plan.
        """
        epoch, fresh_from = int(encoded["epoch"]), int(encoded["fresh_from"])
        returned = merged((int(start), int(stop)) for start, stop in encoded["returned"])
        counted = tuple(int(x) for x in encoded["counted"] if int(x) < self.slots)
        inside = all(0 <= start < stop <= fresh_from for start, stop in returned)
        if not (epoch >= 0 and 0 <= fresh_from <= self.size and inside):
            raise ValueError(f"no position in {self.size} samples: {encoded}")
        rest = returned + (((fresh_from, self.size),) if fresh_from < self.size else ())
        return self._made(epoch, rest, counted or range(self.slots))

    def _made(self, epoch: int, pending: Spans, counted: Iterable[int]) -> DataPosition:
        """Normalize: what is pending up to the end is fresh; an epoch has something left."""
        order = tuple(sorted(counted))
        if not pending:
            return DataPosition(epoch + 1, 0, (), order)
        joined = merged(pending)
        fresh_from = self.size
        if joined[-1][1] == self.size:
            fresh_from, joined = joined[-1][0], joined[:-1]
        return DataPosition(epoch, fresh_from, joined, order)


def batches(slots: Spans, group_rank: int, workers: int, at_most: int) -> list[Spans]:
    """The batches of at most ``at_most`` positions in which one worker reads its part of a slice.

    There are as few as possible, but as many as its mates have, because they compute together; so a
    batch may be empty.
    """
    total = length(slots)
    parts = shares(total, workers)
    first = sum(parts[:group_rank])
    own = cut(slots, first, first + parts[group_rank])
    count = -(-parts[0] // at_most)
    return divided(own, shares(length(own), count)) if count else []
