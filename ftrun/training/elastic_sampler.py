"""Each sample exactly once per epoch while replicas come and go, and a constant global batch.

The position in the data is state: it heals with the weights, and moves when a step is committed. A
batch is drawn inside its step, so drawing one begins a step, as ``zero_grad()`` does.

Not here: which replica gets which samples (core/data/plan.py), loaders that work ahead
(elastic_loader.py).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import Sampler

from ftrun.base.errors import UserError
from ftrun.core.data.plan import DataPlan, DataPosition, batches
from ftrun.core.data.spans import Spans, length

if TYPE_CHECKING:
    from ftrun.training.manager import Manager

ORDERS_MAX = 3
"""Permutations kept: of this epoch and, for loaders that work ahead, of the next ones."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The samples that one worker reads at once.

    Attributes:
        samples: how many of them count; 0: the worker has none left in this step, and these only
            keep its script running.
        fraction: the factor of its mean loss.
    """

    epoch: int
    spans: Spans
    samples: int
    fraction: float = field(compare=False)


class ElasticSampler(Sampler[list[int]]):
    """Assigns each sample of an epoch to exactly one replica of one committed step.

    A batch sampler: use ``DataLoader(dataset, batch_sampler=sampler)``, or ``ftrun.ElasticLoader``
    for loaders with worker processes. All replicas must make it with the same arguments, before
    their first step.

    If a step is not committed, its batches are drawn again. At an epoch's end batches are smaller,
    and a replica may get a batch that does not count (``samples`` is 0). The Manager weighs
    gradients and other averages by samples, so that a step's average is the average over all its
    samples.

    Args:
        manager: the Manager of this process.
        dataset: the training set, or its length.
        batch_size: samples that this worker reads at once.
        batches_per_step: batches of a step, whose gradients the script accumulates.
        global_batch: samples of all replicas in one step. It stays constant while replicas come and
            go, because each reads more or fewer batches of at most ``batch_size``. Default: the
            launcher's ``--global-batch``.
        shuffle: permute the samples in each epoch, as torch's DistributedSampler does.
        seed: of the permutations.

    Raises:
        UserError: a number below 1, or both ``batches_per_step`` and a global batch.
    """

    def __init__(
        self,
        manager: Manager,
        dataset: Any,
        batch_size: int,
        *,
        batches_per_step: int = 1,
        global_batch: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        here = manager.session.here
        self._manager, self._session = manager, manager.session
        self._slot, self._rank = int(here.replica_id), here.group_rank
        self._workers = here.workers_per_replica
        self._batch_size = batch_size
        self._shuffle, self._seed = shuffle, seed
        size = dataset if isinstance(dataset, int) else len(dataset)
        together = _global_batch(global_batch, here.global_batch)
        if together is not None and batches_per_step != 1:
            raise UserError("a global batch decides how many batches a step has: leave out one")
        try:
            per_slot = batch_size * batches_per_step * self._workers
            self._plan = DataPlan(size, here.replicas, per_slot, together)
        except ValueError as error:
            raise UserError(f"ElasticSampler: {error}") from error
        self._position = self._plan.start()
        self._step: int | None = None  # the step of ``_batches``
        self._batches: list[Batch] = []
        self._drawn = 0  # how many of them were drawn
        self._is_reduced = False  # gradients of this step were reduced
        self._epochs_max: int | None = None
        self._weighed: tuple[tuple[DataPosition, tuple[str, ...]], float] | None = None
        self._orders: OrderedDict[int, torch.Tensor] = OrderedDict()
        manager.session.watch_sampler(self, repairs=together is None)

    # ------------------------------------------------------------ for scripts

    def __iter__(self) -> Iterator[list[int]]:
        """The batches of this worker up to the end of the epoch, as lists of indices."""
        drawing = Drawing(self)
        while (batch := drawing.next()) is not None:
            yield self.indices(batch)

    def __len__(self) -> int:
        """The number of batches of an epoch in which no replica is lost: a forecast."""
        steps = self._plan.steps_per_epoch(self._plan.slots)
        if self._plan.global_batch is None:
            return steps * (self._plan.per_slot // (self._batch_size * self._workers))
        each = -(-self._plan.global_batch // (self._plan.slots * self._workers))
        return steps * -(-each // self._batch_size)

    def epochs(self, count: int) -> Iterator[int]:
        """The remaining epochs of ``count``: the outer loop of a script.

        A replica that has joined continues in the epoch of its peers.
        """
        self._epochs_max = count
        while self._position.epoch < count:
            yield self._position.epoch

    @property
    def epoch(self) -> int:
        """The current epoch, or the next one between two epochs."""
        return self._position.epoch

    @property
    def trained(self) -> int:
        """The samples of this epoch that committed steps have trained, on all replicas."""
        return self._plan.trained(self._position)

    @property
    def samples(self) -> int:
        """How many samples of the last drawn batch count; 0: the batch counts nothing."""
        last = self._last
        return last.samples if str(self._slot) in self._manager.contributors() else 0

    @property
    def fraction(self) -> float:
        """The share of the last drawn batch in this replica's samples of the step.

        If a step has several batches, or a replica several workers, multiply the mean loss of a
        batch by this factor. It includes the number of workers, because they average their
        gradients.
        """
        return self._last.fraction

    @property
    def begins_step(self) -> bool:
        """Whether the last drawn batch is the first of its step."""
        return self._drawn == 1

    @property
    def ends_step(self) -> bool:
        """Whether the last drawn batch is the last of its step: reduce gradients after it."""
        return self._drawn == len(self._batches)

    def state_dict(self) -> dict[str, Any]:
        """The position, and the data and rules that it belongs to, for checkpoints."""
        return {**self._position.encode(), **self._data(), **self._rules()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from a checkpoint. Batch size, global batch and replicas may have changed.

        Call it on all replicas, before the first step.

        Raises:
            UserError: the checkpoint is of other data.
        """
        self._load(state_dict, self._data())

    # ------------------------------------------------------------ for the Manager

    def heal(self, state: dict[str, Any]) -> None:
        """Take the peers' position.

        Raises:
            UserError: the peers have made a sampler with other arguments.
        """
        self._load(state, {**self._data(), **self._rules()})

    def weight(self) -> float:
        """The factor for this worker's part of an average, by its samples."""
        case = (self._position, self._manager.contributors())
        if self._weighed is None or self._weighed[0] != case:
            weight = self._plan.weight(self._position, _slots(case[1]), self._slot)
            self._weighed = (case, weight)
        return self._weighed[1]

    def before_reduction(self) -> None:
        """Check that the gradients are those of this step's samples.

        Raises:
            UserError: they are not.
        """
        if self._step != self._session.step_under_way():
            raise UserError(
                "a reduction in a step without a batch of the ElasticSampler: draw the batches of "
                "each step, after zero_grad() or just before it"
            )
        if self._drawn < len(self._batches):
            raise UserError(
                f"gradients are reduced after batch {self._drawn} of {len(self._batches)} of this "
                "step: keep the backward passes of all but the last (sampler.ends_step) under "
                "no_sync()"
            )
        self._is_reduced = True

    def committed(self, contributors: tuple[str, ...]) -> None:
        """Move on after a committed step with these contributors.

        A step without a reduction has trained nothing, on no replica.
        """
        if self._is_reduced:
            self._position = self._plan.after(self._position, _slots(contributors))
        self._is_reduced = False

    # ------------------------------------------------------------ for loaders

    def draw(self) -> Batch:
        """The next batch of the current step. Begins a step if there is none.

        Raises:
            UserError: the last step is not decided.
        """
        session = self._session
        step = session.step_under_way()
        if step is None or step != self._step:
            session.begin(for_draw=True)
            self._step = session.step_under_way()
            self._batches = self._batches_at(self._position)
            self._drawn = 0
            self._is_reduced = False
        elif self._drawn == len(self._batches):
            raise UserError(
                "a batch of the next step is asked for before this step is decided: call "
                "optimizer.step() first; a DataLoader with worker processes must be an "
                "ftrun.ElasticLoader"
            )
        self._drawn += 1
        return self._last

    def put_back(self) -> None:
        """Undo the last draw: the next draw returns the same batch."""
        self._drawn -= 1

    def is_over(self, epoch: int | None) -> bool:
        """Whether ``epoch`` has ended, or all have; None: any epoch."""
        last = self._epochs_max
        if last is not None and self._position.epoch >= last:
            return True
        return epoch is not None and epoch != self._position.epoch

    def forecast(self) -> Iterator[Batch]:
        """The last drawn batch and those that follow if the current replicas commit all steps.

        Endless: one epoch follows another.
        """
        yield from self._batches[self._drawn - 1 :]
        position, contributors = self._position, _slots(self._manager.contributors())
        while True:
            position = self._plan.after(position, contributors)
            yield from self._batches_at(position)

    def indices(self, batch: Batch) -> list[int]:
        """The samples of a batch, as indices of the dataset."""
        if not self._shuffle:
            return [x for start, stop in batch.spans for x in range(start, stop)]
        order = self._order(batch.epoch)
        found: list[int] = torch.cat([order[start:stop] for start, stop in batch.spans]).tolist()
        return found

    # ------------------------------------------------------------ inside

    @property
    def _last(self) -> Batch:
        if not self._drawn:
            raise UserError("no batch has been drawn from the ElasticSampler yet")
        return self._batches[self._drawn - 1]

    def _batches_at(self, position: DataPosition) -> list[Batch]:
        slices = self._plan.slices(position, _slots(self._manager.contributors()))
        own = slices.get(self._slot, ())
        filler = ((0, min(self._batch_size, self._plan.size)),)
        if not own:
            return [Batch(position.epoch, filler, 0, 1.0)]
        share = self._workers / length(own)
        return [
            Batch(position.epoch, spans or filler, length(spans), length(spans) * share)
            for spans in batches(own, self._rank, self._workers, self._batch_size)
        ]

    def _order(self, epoch: int) -> torch.Tensor:
        order = self._orders.get(epoch)
        if order is None:
            generator = torch.Generator().manual_seed(self._seed + epoch)
            order = self._orders[epoch] = torch.randperm(self._plan.size, generator=generator)
            if len(self._orders) > ORDERS_MAX:
                self._orders.popitem(last=False)
        return order

    def _data(self) -> dict[str, Any]:
        return {"samples": self._plan.size, "shuffle": self._shuffle, "seed": self._seed}

    def _rules(self) -> dict[str, Any]:
        return {"per_replica": self._plan.per_slot, "global_batch": self._plan.global_batch}

    def _load(self, state: dict[str, Any], own: dict[str, Any]) -> None:
        unlike = [
            f"{name} {state.get(name)} there, {value} here"
            for name, value in own.items()
            if state.get(name) != value
        ]
        if unlike:
            raise UserError(f"an ElasticSampler of other data or rules: {'; '.join(unlike)}")
        try:
            self._position = self._plan.decode(state)
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"ElasticSampler: {error}") from error


class Drawing:
    """One pass over the epoch in which its first batch is drawn."""

    def __init__(self, sampler: ElasticSampler) -> None:
        self._sampler = sampler
        self._epoch: int | None = None

    @property
    def is_over(self) -> bool:
        """Whether the epoch has ended, so that no step begins for it."""
        return self._sampler.is_over(self._epoch)

    def next(self) -> Batch | None:
        """The next batch; None: the epoch has ended.

        The draw itself may end the epoch, because this replica heals in it. Then a step has begun
        already, and the next epoch continues with that step.
        """
        sampler = self._sampler
        if sampler.is_over(self._epoch):
            return None
        batch = sampler.draw()
        if sampler.is_over(self._epoch):
            sampler.put_back()
            return None
        self._epoch = batch.epoch
        return batch


def _slots(replica_ids: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(int(replica_id) for replica_id in replica_ids)


def _global_batch(given: int | None, launchers: int | None) -> int | None:
    if given is not None and launchers is not None and given != launchers:
        raise UserError(
            f"ElasticSampler(global_batch={given}) under --global-batch {launchers}: give one"
        )
    return given if given is not None else launchers
