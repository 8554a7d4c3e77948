"""A DataLoader that loads ahead and still delivers each sample once.

Its worker processes load the batches that follow if membership stays the same. When a replica is
lost or joins, or a step is computed again, wrongly predicted batches are dropped, and the right
ones are requested. One torch iterator serves all epochs, so worker processes are not restarted.

Not here: which batches are right (elastic_sampler.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from ftrun.base.errors import UserError
from ftrun.training.elastic_sampler import Batch, Drawing, ElasticSampler

REFUSED = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last")


class ElasticLoader(DataLoader[Any]):
    """torch's DataLoader over an ElasticSampler's batches.

    Args:
        dataset: the training set, with indices.
        sampler: yields the batches. Only one loader may read from it.
        kwargs: torch's own arguments, except those that choose samples.

    Raises:
        UserError: an argument is not supported.
    """

    def __init__(self, dataset: Any, sampler: ElasticSampler, **kwargs: Any) -> None:
        for name in REFUSED:
            if kwargs.get(name):
                raise UserError(f"ElasticLoader takes no {name}: the ElasticSampler decides that")
        if kwargs.get("in_order") is False:
            raise UserError("ElasticLoader(in_order=False): batches must come in order")
        self._elastic = sampler
        self._ahead = _Ahead(sampler)
        self._inner: Iterator[Any] | None = None
        super().__init__(dataset, batch_sampler=self._ahead, **kwargs)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch names its own class
        """The batches of this worker up to the end of the epoch."""
        drawing = Drawing(self._elastic)
        while (batch := drawing.next()) is not None:
            yield self.load(batch)

    def load(self, batch: Batch) -> Any:
        """The samples of a drawn batch. Drops batches that were loaded by a wrong prediction."""
        self._ahead.want(batch)
        if self._inner is None:
            self._inner = super().__iter__()
        while True:
            asked = None
            try:
                loaded = next(self._inner)
            finally:  # after an unreadable sample a script may catch the error and continue
                asked = self._ahead.arrived()
            if asked == batch:
                return loaded


class _Ahead:
    """The batches that torch's iterator is asked for, in order, including those being loaded.

    ``_asked`` has as many batches as the loader works ahead.
    """

    def __init__(self, sampler: ElasticSampler) -> None:
        self._sampler = sampler
        self._asked: deque[Batch] = deque()
        self._next: Iterator[Batch] = iter(())

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            batch = next(self._next)
            self._asked.append(batch)
            yield self._sampler.indices(batch)

    def __len__(self) -> int:
        return len(self._sampler)

    def want(self, batch: Batch) -> None:
        """``batch`` comes next. If it is not being loaded, request it and the batches after it."""
        if batch not in self._asked:
            self._next = self._sampler.forecast()

    def arrived(self) -> Batch | None:
        """The batch that was loaded next; None: none was requested."""
        return self._asked.popleft() if self._asked else None
