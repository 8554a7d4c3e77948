"""``--data exactly-once``, ``--global-batch G``: ftrun chooses the samples of the training loader.

The training loader is the first shuffling loader that is iterated after the model was wrapped. Its
sampler (torch's DistributedSampler, or the loader's own for ``shuffle=True``) is replaced by an
ElasticSampler. All other loaders are unchanged. A step begins when its batch is drawn. With a
global batch, one batch has all samples of a replica in the step, so it is larger while replicas are
missing.

Not here: which replica gets which samples (core/data/plan.py), other loaders (loaders.py).
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from torch.utils.data import BatchSampler, RandomSampler
from torch.utils.data.distributed import DistributedSampler

from ftrun.base.errors import UserError
from ftrun.inject.zero_edit import told
from ftrun.inject.zero_edit.frames import call_site
from ftrun.inject.zero_edit.loaders import LoaderIterator, Order
from ftrun.training.elastic_loader import ElasticLoader
from ftrun.training.elastic_sampler import Drawing, ElasticSampler

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.script import Script

MODE = "exactly-once"
CARRIED = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "prefetch_factor",
)
"""The arguments that the replacement takes from the script's loader."""
REMEDY = "Leave that option out, or use ftrun.ElasticSampler with a Manager (docs/DATA.md)"


class ExactlyOnce:
    """Finds the training loader, and replaces its samples."""

    def __init__(self, script: Script) -> None:
        mode, self._together = script.here.data, script.here.global_batch
        self.is_on = mode == MODE or self._together is not None
        self.option = f"--data {MODE}" if mode == MODE else f"--global-batch {self._together}"
        self._script = script
        self._claimed: weakref.ref[Any] | None = None
        self.loader: ElasticLoader | None = None
        self.sampler: ElasticSampler | None = None

    def claim(self, loader: Any) -> LoaderIterator | None:
        """An iterator for ``loader`` if it is the training loader; else None.

        Raises:
            UserError: its batches cannot be replaced.
        """
        if not self.is_on or not self._script.models.wrapped or not _shuffles(loader):
            return None
        if self.loader is None:
            self._replace(loader)
        elif self._claimed is not None and self._claimed() is not loader:
            told.once(
                f"{call_site()}: this data loader shuffles too. ftrun does not choose its samples: "
                f"{self.option} holds for the first one only"
            )
            return None
        return ExactIterator(loader, self)

    @property
    def replays(self) -> int | None:
        """How many batches a replica still repeats whose peers have reached the script's end; None:
        it is no such replica."""
        ending = self._script.ending
        return ending.replays if ending.has_followed else None

    def words(self) -> str:
        """Describes the training loader, for messages; "" before there is one."""
        if self.loader is None:
            return ""
        many = f", {self._together} in each step of all replicas" if self._together else ""
        return f"the data loader that shuffles: each sample once{many}"

    def expect(self) -> None:
        """A step begins at a forward pass, so its batch did not come from the training loader.

        Raises:
            UserError: ftrun chooses the samples (``is_on``).
        """
        if self.is_on:
            raise UserError(
                f"{call_site()}: {self.option} cannot count the samples of this training step, "
                "because its batch does not come from the first data loader that shuffles. "
                f"{REMEDY}"
            )

    def _replace(self, loader: Any) -> None:
        if (workers := self._script.here.workers_per_replica) > 1:
            raise UserError(
                f"{self.option} with {workers} workers per replica: ftrun gives "
                "an unmodified script's samples to replicas of one worker only. Use "
                "ftrun.ElasticSampler in the script, or leave the option out"
            )
        if type(loader.batch_sampler) is not BatchSampler:
            kind = type(loader.batch_sampler).__name__
            raise UserError(
                f"{call_site()}: the batches of this loader come from {kind}: {self.option} "
                f"cannot replace it. {REMEDY}"
            )
        if loader.drop_last:
            told.once(
                f"{call_site()}: drop_last has no effect here, because {self.option} drops no "
                "sample"
            )
        seed = getattr(loader.sampler, "seed", 0)
        size = self._together or loader.batch_size  # a replica's samples of a step: one batch
        self.sampler = ElasticSampler(self._script.manager(), loader.dataset, size, seed=seed or 0)
        given = {name: getattr(loader, name) for name in CARRIED}
        self.loader = ElasticLoader(loader.dataset, self.sampler, **given)
        self._claimed = weakref.ref(loader)


def _shuffles(loader: Any) -> bool:
    sampler = loader.sampler
    if isinstance(sampler, DistributedSampler):
        return bool(sampler.shuffle)
    return isinstance(sampler, RandomSampler) and not sampler.replacement


class ExactIterator(LoaderIterator):
    """Yields the training batches of one epoch."""

    begins_steps = True

    def __init__(self, loader: Any, exact: ExactlyOnce) -> None:
        super().__init__(loader, lambda: iter(()))
        assert exact.sampler is not None and exact.loader is not None
        self._exact, self._sampler_of, self._loads = exact, exact.sampler, exact.loader
        self._drawing = Drawing(exact.sampler)
        self.is_training = True

    @property
    def is_done(self) -> bool:
        """Done as soon as it has ended, because each step has exactly one batch."""
        return self.cursor.has_ended

    @property
    def is_over(self) -> bool:
        return self._drawing.is_over

    def __len__(self) -> int:
        return len(self._sampler_of)

    def take(self) -> Any:
        replays = self._exact.replays
        batch = self._drawing.next() if replays is None else None
        if batch is not None:
            return self._loads.load(batch)
        if not replays:
            raise StopIteration
        dataset: Any = self._loads.dataset
        count = min(self.loader.batch_size, len(dataset))
        return self.loader.collate_fn([dataset[index] for index in range(count)])

    def _seek(self, epoch: int | None, batch: int, order: Order | None) -> None:  # noqa: ARG002
        """Set the epoch. ``batch`` is ignored: the healed sampler state determines the samples."""
        if epoch is not None:
            self._set_epoch(epoch)
        self.epoch = epoch
        self._drawing = Drawing(self._sampler_of)

    def refuse_several(self) -> None:
        """Refuse a second batch in one step.

        Raises:
            UserError: always.
        """
        raise UserError(
            f"{call_site()}: the script draws a batch before the step of the last one has ended "
            f"(accumulated gradients, or a loop that draws ahead): {self._exact.option} needs one "
            f"batch in each step. {REMEDY}"
        )
