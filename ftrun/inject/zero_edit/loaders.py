"""DataLoader iterators that know their cursor, and can be set to another one without loading.

Not here: which iterator gives training batches, and where it is to be set (loop.py).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

from ftrun.inject.zero_edit.counting import Jumps
from ftrun.inject.zero_edit.frames import Spot, script_frames, spot_of


class Draws:
    """What a loader's iterator reports: the loop listens (loop.py)."""

    before: Callable[[LoaderIterator], None] = staticmethod(lambda iterator: None)


class OpenIterators:
    """The iterators that are open, in the order in which the script began them."""

    def __init__(self) -> None:
        self._open: list[weakref.ref[LoaderIterator]] = []

    def add(self, iterator: LoaderIterator) -> None:
        """The script begins to iterate. Its number counts those open at the same place."""
        here = [other for other in self.all() if other.spot == iterator.spot]
        iterator.number = len(here)
        self._open.append(weakref.ref(iterator))

    def all(self) -> list[LoaderIterator]:
        """Those that are in use and have not ended."""
        found = [(ref, it) for ref in self._open if (it := ref()) is not None and not it.has_ended]
        self._open = [ref for ref, _ in found]
        return [it for _, it in found]


OPEN = OpenIterators()


class LoaderIterator:
    """Stands for a DataLoader's own iterator.

    Attributes:
        spot: where the script began to iterate.
        drawn: the batches taken so far.
        is_fresh: it has given a batch since the last training step.
        is_training: it gives the batches of training steps.
        lead: the batches drawn at its first training step, because some loops draw ahead.
        began_at: ``drawn`` when it was set last.
        begins_steps: a step begins at each draw, not at the forward pass after it.
        noted: the script at its last draw (loop.py).
    """

    begins_steps = False

    def __init__(self, loader: Any, inner: Iterator[Any], make: Callable[[], Iterator[Any]]):
        frames = script_frames()
        self.spot = spot_of(frames[0]) if frames else Spot("?", 0)
        self.loader = loader
        self.number = self.drawn = self.lead = self.began_at = 0
        self.noted: Any = None
        self.is_fresh = self.is_training = self.has_ended = False
        self._inner = inner
        self._make = make
        OPEN.add(self)

    @property
    def epoch(self) -> int | None:
        """The epoch of its sampler."""
        epoch = getattr(self._sampler, "epoch", None)
        return epoch if type(epoch) is int else None

    @property
    def _sampler(self) -> Any:
        batched = getattr(self.loader, "batch_sampler", None)
        return getattr(batched, "sampler", None) or getattr(self.loader, "sampler", None)

    def __iter__(self) -> LoaderIterator:
        return self

    def __len__(self) -> int:
        return len(self._inner)  # type: ignore[arg-type]  # torch's own iterators have a length

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __next__(self) -> Any:
        Draws.before(self)
        if self.has_ended:
            raise StopIteration
        try:
            batch = self._take()
        except StopIteration:
            self.has_ended = True
            raise
        finally:
            self.drawn += 1
        self.is_fresh = True
        return batch

    def _take(self) -> Any:
        return next(self._inner)

    def go_to(self, epoch: int | None, drawn: int) -> None:
        """Let the next batch be number ``drawn`` (from 0) of ``epoch``; nothing else is loaded.

        A sampler whose epoch differs draws its order anew.
        """
        if epoch is not None and epoch != self.epoch:
            self._set_epoch(epoch)
            self._inner, self.drawn = self._make(), 0
        elif drawn < self.drawn:
            self._inner, self.drawn = self._make(), 0
        ahead = drawn - self.drawn
        Jumps.total += ahead
        self._skip(ahead)
        self.drawn = self.began_at = drawn

    def _set_epoch(self, epoch: int) -> None:
        sampler = self._sampler
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        else:
            sampler.epoch = epoch

    def _skip(self, batches: int) -> None:
        """Pass over batches: their indices are drawn, and no sample is read.

        Worker processes of the loader have some batches under way already: these are read.
        """
        indices = getattr(self._inner, "_sampler_iter", None)
        left = batches
        if indices is not None:
            sent = getattr(self._inner, "_send_idx", 0) - getattr(self._inner, "_rcvd_idx", 0)
            while left > sent:
                if next(indices, None) is None:
                    break
                left -= 1
            left = min(left, sent)
            self._pass_over(batches - left)
        for _ in range(left):
            next(self._inner, None)

    def _pass_over(self, batches: int) -> None:
        """Keep the iterator's own count right, which it compares with its length."""
        if batches and hasattr(self._inner, "_num_yielded"):
            self._inner._num_yielded += batches


def install(claims: Callable[[Any], LoaderIterator | None]) -> None:
    """Hand out our iterators for those of every DataLoader.

    ``claims``: gives the iterator of a loader whose samples ftrun chooses (exactly_once.py).
    """
    from torch.utils.data import DataLoader

    from ftrun.training.elastic_loader import ElasticLoader

    plain = DataLoader.__iter__

    def __iter__(self: Any) -> Any:
        if isinstance(self, ElasticLoader):
            return plain(self)
        claimed = claims(self)
        if claimed is not None:
            return claimed
        return LoaderIterator(self, plain(self), lambda: plain(self))

    DataLoader.__iter__ = __iter__  # type: ignore[method-assign]
