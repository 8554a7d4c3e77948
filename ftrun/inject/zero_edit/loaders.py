"""DataLoader iterators that know their position, and can be set to another without loading data.

Not here: which iterator yields training batches, and to which position it is set (loop.py).
"""

from __future__ import annotations

import functools
import gc
import inspect
import itertools
import sys
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from types import FrameType, GeneratorType
from typing import Any, NoReturn, cast
from weakref import WeakKeyDictionary

import torch
from torch.utils.data import DistributedSampler, IterableDataset, Sampler, SequentialSampler

from ftrun.inject.zero_edit import told
from ftrun.inject.zero_edit.counting import RANGES, count_on
from ftrun.inject.zero_edit.cursor import Cursor
from ftrun.inject.zero_edit.frames import (
    NOWHERE,
    Spot,
    Values,
    drops_result,
    script_frames,
    spot_of,
    spots_of,
)
from ftrun.inject.zero_edit.patches import Patches
from ftrun.inject.zero_edit.place import Moved, batches_at
from ftrun.inject.zero_edit.randomness import NO_SEEDS, Seeds, States
from ftrun.inject.zero_edit.refusals import refuse
from ftrun.inject.zero_edit.values.kinds import plain_values

LOOPS_MAX = 1024
ENDED_MAX = 16
HELD_MAX = 16
ITERATORS_DEEP = SAMPLERS_DEEP = 4
SAMPLES_MAX = 1_000_000
"""The longest sampler whose indices are all drawn at once, which takes half a second."""
_COUNTS = (enumerate, *[x for x in (itertools.islice,) if hasattr(x, "__setstate__")])
"""Counting iterators that can be set. Python 3.14 gives no access to the count of an ``islice``."""

_ALIKE_ANYWHERE = (DistributedSampler, SequentialSampler)
"""Samplers whose order depends on no random state. Other classes may draw from torch's global one,
also those that derive from these, and have no generator to show for it (Lightning's)."""

Positions = Sequence[tuple["weakref.ref[LoaderIterator]", int]]
"""Iterators, and how many batches each had yielded."""


class OpenIterators:
    """The open iterators, in the order in which the script began them.

    Attributes:
        before_draw, ended: called before an iterator draws, and when it has no more batches
            (loop.py).
        on_batch: gets each batch; returns the batch that the script gets.
        on_begin: returns the memory that an iterator shares with its workers (batches.py).
        keeps_seeds: keep all random states that batches depend on.
        is_awaited: a newcomer's script is yet to make an iterator that its predecessor had.
        reads_all: the loaders' workers draw random numbers. So a batch is skipped by reading it,
            unless the states of the predecessor's workers are known (batches.py).
        own: returns the script's random generators, by name.
        dim: the loaders whose batches are drawn with gradients off, and trained on.
        has_dim: a batch was drawn with gradients off since the last pass.
        count: the number of iterators begun so far.
        last: the iterator that yielded the last batch.
        thread: the thread that trains.
    """

    def __init__(self) -> None:
        self.before_draw: Callable[[LoaderIterator], None] = lambda iterator: None
        self.ended: Callable[[LoaderIterator], None] = lambda iterator: None
        self.on_batch: Callable[[LoaderIterator, Any], Any] | None = None
        self.on_begin: Callable[[LoaderIterator], Any] = lambda iterator: None
        self.keeps_seeds = self.is_awaited = self.reads_all = self.has_dim = False
        self.count = 0
        self.own: Callable[[], Mapping[str, Any]] = dict
        self.dim: weakref.WeakSet[Any] = weakref.WeakSet()
        self._open: list[weakref.ref[LoaderIterator]] = []
        self._held: dict[tuple[tuple[Spot, ...], int], int | None] = {}
        self.ended_ones: deque[LoaderIterator] = deque(maxlen=ENDED_MAX)
        self.last: weakref.ref[LoaderIterator] | None = None
        self.thread = threading.get_ident()

    def evaluated(self) -> None:
        """A model is evaluated, so the last drawn batch was not for training. Other iterators may
        hold one that is: of a loop that draws ahead, and evaluates in between."""
        last = None if self.last is None else self.last()
        if last is not None and not last.is_training:
            last.is_fresh, last.is_dim, last.is_evaluated = False, False, True

    def add(self, iterator: LoaderIterator) -> None:
        """The script begins to iterate. Iterators open at the same line get different numbers."""
        self.count += 1
        known = [x for x in self.all() if x.spot == iterator.spot and not x.cursor.has_ended]
        free = set(range(len(known) + 1)) - {x.number for x in known}
        iterator.number = min(free)
        iterator.cursor.held = self._held.get(iterator.loop)
        self._open.append(iterator.here)

    def all(self) -> list[LoaderIterator]:
        """The iterators that have not ended, or whose last batches are still to be trained on."""
        if len(self._open) == 1:  # the usual case
            only = self._open[0]()
            if only is not None and not (only.cursor.has_ended and only.is_done):
                return [only]
        found = [(ref, it) for ref in self._open if (it := ref()) is not None and not it.is_done]
        self._open = [ref for ref, _ in found]
        return [it for _, it in found]

    def positions(self) -> Positions:
        """The iterators that have not ended, each with the number of its draws."""
        return [(x.here, x.cursor.drawn) for x in self.all() if not x.cursor.has_ended]

    def learn(self, iterator: LoaderIterator) -> None:
        """Remember that this iterator's loop trains, and how far it draws ahead."""
        key, iterator.learned = iterator.loop, iterator.cursor.held
        if key in self._held or len(self._held) < LOOPS_MAX:
            self._held[key] = iterator.cursor.held

    def has_learned(self, iterator: LoaderIterator) -> bool:
        """Whether this iterator's loop is known to train."""
        return iterator.loop in self._held

    def words(self) -> str:
        """A description of the loop that takes the batches, for messages."""
        loaders = [str(x.spot) for x in self.all() if x.is_fresh]
        if not loaders:
            return "a loop without a data loader"
        return f"the data loader at {', '.join(loaders)}"


OPEN = OpenIterators()
MADE: WeakKeyDictionary[Any, tuple[Spot, int]] = WeakKeyDictionary()
"""The line that made each loader, and how many loaders it had made before."""
Epochs = tuple[tuple[Spot, int, int], ...]
"""The epoch of each loader's sampler, after the loader's value in ``MADE``."""
MADE_IN: WeakKeyDictionary[Any, tuple[tuple[Spot, int], ...]] = WeakKeyDictionary()
"""The number that each ``range`` loop around had taken when the script made a loader."""
CHANGING: WeakKeyDictionary[Any, tuple[Values, set[str]]] = WeakKeyDictionary()
"""For each loader its facts at the first iteration, and the names of those that changed since."""


@dataclass(frozen=True, slots=True)
class Order:
    """What determines the order of an iterator's samples at the peers' place.

    ``moved``: the peers' facts (``LoaderIterator.moved``). ``before``: this replica's facts before
    the script's variables were set. ``seeds``: the predecessor's, from which the sampler draws its
    order.
    """

    moved: Moved = ()
    before: Values = field(default_factory=dict)
    seeds: Seeds = NO_SEEDS


class LoaderIterator:
    """Wraps a DataLoader's iterator, or the iterator of a sampler in a loop of the script.

    Attributes:
        spot: the line at which the script began to iterate.
        number: distinguishes the iterators that are open at this line, from 0.
        cursor: which batch comes next, and which one the step trains on.
        is_fresh: it has yielded a batch since the last training step; is_dim: it was drawn with
            gradients off.
        is_training: it yields the batches of training steps; is_evaluated: one of its batches was
            for an evaluation.
        begins_steps: a step begins at each draw, not at the forward pass after it.
        epoch: its sampler's, at its first draw: some samplers count epochs by themselves.
        began_with: its facts at its first draw.
        moved: the facts that have ever changed: name, value at the first draw, value at the last
            noted draw.
        entry: the script's frames at the first draw.
        drawn_again: the script's frames at the second draw.
        turns: of the loop over it (noting.py); ``is_moved``: it was set to its peers' place, who
            know those; ``is_within``: the step under way has drawn within a turn.
        made: the line that made its loader, and how many loaders that line had made before;
            made_in: see ``MADE_IN``.
        noted: the script at the first draw since the last step (noting.py).
        began, drawn_at: the first draws since a step are counted over all loaders: the count before
            its first draw, and at ``noted``.
        length: how many batches it has; None: not known.
        learned: the ``cursor.held`` that ``OpenIterators.learn`` has kept.
        begun: see ``Seeds``; ``generator`` has the name "". Empty: the sampler has a seed. It is
            passed in if the wrapped iterator was made before this object.
        make: makes the wrapped iterator, as the script's class does.
        workers: the memory that it shares with its workers (batches.py).
        here: a weak reference to it.
        is_elsewhere: a thread other than the main one has drawn from it.
    """

    begins_steps = False
    workers: Any = None

    def __init__(
        self, loader: Any, make: Callable[[], Iterator[Any]], begun: States | None = None
    ) -> None:
        frames = script_frames()
        self.spot = spot_of(frames[0]) if frames else NOWHERE
        self._made_by = spots_of(frames)
        self.loader = loader
        self.number = 0
        self.cursor = Cursor()
        self.moved: Moved = ()
        self._look()
        self.entry: tuple[Spot, ...] = ()
        self.drawn_again: tuple[Spot, ...] = ()
        self.turns: Any = None
        self.is_moved = self.is_within = False
        self.began = self.drawn_at = 0
        self.made = MADE.get(loader, (NOWHERE, 0))
        self.made_in = MADE_IN.get(loader, ())
        self.noted: Any = None
        self.length: int | None = None
        self.learned: int | None = -1
        self.is_fresh = self.is_dim = self.is_training = self.is_elsewhere = False
        self.is_evaluated = False
        self.begun: tuple[States, ...] = ()
        self._inner: Iterator[Any] = iter(())
        self._ahead: deque[tuple[int, States]] = deque(maxlen=HELD_MAX)
        self._given: dict[int, States] = {}
        self._seeds: bytes | None = None
        self.make = make
        self._begin()
        self.begun = (begun,) if begun and self.begun else self.begun
        self.here = weakref.ref(self)
        OPEN.add(self)

    @property
    def loop(self) -> tuple[tuple[Spot, ...], int]:
        """Identifies the loop that draws from it: the whole stack, because one line of a package
        may iterate over all loaders, those of evaluations too."""
        return self._made_by, self.number

    @property
    def name(self) -> str:
        """As ``LoaderPlace.name``."""
        return f"{self.spot} {self.number} {self.made[0]} {self.made[1]}"

    @property
    def is_sampler(self) -> bool:
        """Whether it iterates over a sampler. The script may read all indices at once."""
        return isinstance(self.loader, Sampler)

    @property
    def may_go_on(self) -> bool:
        """Whether the script may draw from it again. A package that evaluates makes an iterator
        for each evaluation, and may keep one that it has left before the end."""
        return self.is_training or bool(self.spot.line) or not self.is_evaluated

    @property
    def is_done(self) -> bool:
        """Whether it has no more batches for a training step."""
        has_none = self.cursor.is_over if self.is_training else not self.is_fresh
        return self.cursor.has_ended and has_none

    def is_other_than(self, places: Sequence[Any]) -> bool:
        """Whether the peers' step draws its first batch from a loader made at another line:
        ``for loader in (one, other):``."""
        at = places[0].made_at if places else NOWHERE
        return NOWHERE not in (at, self.made[0]) and at != self.made[0]

    def numbers(self, drawn: int | None = None) -> tuple[Any, ...]:
        """The fields of a LoaderPlace, at the step under way.

        ``drawn``: the number of batches yielded; given if the iterator is not a step's.
        """
        first = (self.cursor.first or 0) if drawn is None else drawn
        held, is_dim = self.cursor.held, self.loader in OPEN.dim
        made = *self.made, self.moved, is_dim, self.cursor.dropped, self.made_in
        return self.spot, self.number, self.epoch, first, held, *made

    def measure(self) -> None:
        """Set ``length``; None for an IterableDataset, whose length is not reliable."""
        try:
            self.length = None if self.must_read else len(self)
        except Exception:  # noqa: BLE001 - the script's sampler may have no length
            self.length = None

    @property
    def must_read(self) -> bool:
        """Whether reading a batch is the only way to skip it."""
        return isinstance(getattr(self.loader, "dataset", None), IterableDataset)

    def _parts(self) -> dict[str, Any]:
        """The objects that the order of its samples may depend on."""
        parts = {x: getattr(self.loader, x, None) for x in ("dataset", "batch_sampler")}
        return {**parts, "sampler": self._sampler}

    def facts(self) -> Values:
        """The plain values of dataset and samplers, except the epoch, as ``part.name``."""
        return {
            f"{part}.{name}": value
            for part, one in self._parts().items()
            if hasattr(one, "__dict__")
            for name, value in plain_values(vars(one)).items()
            if (part, name) != ("sampler", "epoch")
        }

    def note_facts(self) -> None:
        """Update ``moved``: the facts that have changed since the loader's first iteration. For
        example, a sampler may count its position, and begin its next epoch there."""
        now = self.facts()
        first, names = CHANGING.setdefault(self.loader, (self.began_with, set()))
        names.update(name for name, value in now.items() if first.get(name, value) != value)
        self.moved = tuple((x, self.began_with.get(x), now.get(x)) for x in sorted(names))

    def _put(self, facts: Values) -> None:
        parts = self._parts()
        for name, value in facts.items():
            part, _, attribute = name.partition(".")
            if hasattr(parts[part], "__dict__"):
                vars(parts[part])[attribute] = value

    def _look(self) -> None:
        epoch = getattr(self._sampler, "epoch", None)
        self.epoch: int | None = epoch if type(epoch) is int else None
        self.began_with = self.facts()

    @property
    def _sampler(self) -> Any:
        return _sampler_of(self.loader) or (self.loader if self.is_sampler else None)

    @property
    def generator(self) -> torch.Generator | None:
        """The torch generator that the script has passed to the sampler or the loader."""
        found = (getattr(x, "generator", None) for x in (self._sampler, self.loader))
        return next((x for x in found if type(x) is torch.Generator), None)

    def __iter__(self) -> LoaderIterator:
        return self

    def __len__(self) -> int:
        return len(self._inner)  # type: ignore[arg-type]  # torch's own iterators have a length

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __next__(self) -> Any:
        if threading.get_ident() != OPEN.thread:
            self.is_elsewhere = self.is_fresh = True
            return next(self._inner)
        OPEN.before_draw(self)
        cursor = self.cursor
        if cursor.has_ended:
            raise StopIteration
        if not cursor.drawn and not hasattr(self._inner, "_send_idx"):
            self._look()  # with worker processes, indices are drawn when the iterator is made
            if OPEN.keeps_seeds:
                self.begun, self._seeds = (*self.begun[:1], _random(self._own())), None
        try:
            may_be_held = cursor.held != 0 and self._may_be_held()
            batch = self._draw(may_be_held) if may_be_held or self._given else self.take()
            if OPEN.on_batch is not None:
                batch = OPEN.on_batch(self, batch)
        except StopIteration:
            cursor.has_ended = True
            OPEN.ended_ones.append(self)  # the script drops it before it trains on the last batches
            OPEN.ended(self)
            raise
        finally:
            cursor.drawn += 1
        is_dropped = cursor.is_unused and drops_result(sys._getframe(1))
        if is_dropped:
            cursor.drop()
        # A batch that is drawn with gradients off is for an evaluation, of any module.
        is_lit = self.is_training or torch.is_grad_enabled()
        self.is_fresh, self.is_dim = is_lit and not is_dropped, not is_lit
        OPEN.has_dim |= self.is_dim
        OPEN.last = self.here
        return batch

    def _draw(self, may_be_held: bool) -> Any:
        """Draw the next batch. A batch that the predecessor's loop held is drawn with the random
        states of that draw."""
        number, own = self.cursor.drawn, OPEN.own()
        given = self._given.pop(number, None)
        if may_be_held:
            now = States({}) if self._has_workers else States.now(own)  # workers have their own
            self._ahead.append((number, given or now))
        if given is None:
            return self.take()
        now = States.now(own)
        given.set(own)
        try:
            return self.take()
        finally:
            now.set(own)

    def _may_be_held(self) -> bool:
        """Whether a loop that draws ahead, as far as is known, may train on the next batch in a
        later step. One that is drawn with gradients off is for an evaluation."""
        return OPEN.keeps_seeds or self.is_training or torch.is_grad_enabled()

    def take(self) -> Any:
        """Draw the next batch, without any of this class's accounting."""
        return next(self._inner)

    @property
    def _has_workers(self) -> bool:
        return bool(getattr(self.loader, "num_workers", 0))

    def read_again(self) -> None:
        """Restart the epoch, and read all batches before the one that was yielded last."""
        self._begin_as(self.begun)
        for _ in range(self.cursor.drawn):
            self.take()

    def _begin(self) -> None:
        is_known = type(self._sampler) in _ALIKE_ANYWHERE  # another one may draw from torch's
        has_no_seed = not is_known and getattr(self._sampler, "generator", None) is None
        is_kept = OPEN.keeps_seeds or OPEN.is_awaited
        is_needed = has_no_seed or is_kept or self.generator is not None
        self.begun, self._seeds = (_random(self._own()),) if is_needed else (), None
        self._ahead.clear()
        self.workers = OPEN.on_begin(self)
        self._inner = self.make()

    def _begin_as(self, begun: tuple[States, ...]) -> None:
        """Begin with the random states with which the predecessor began."""
        for states in begun[:1]:
            states.set(self._own())
        self._begin()
        for states in begun[1:]:
            states.set(self._own())
        self.begun = begun or self.begun

    def _own(self) -> dict[str, torch.Generator]:
        return _own(self.generator)

    def seeds(self, first: int, drawn: int) -> bytes:
        """The encoded ``Seeds``: what its batches depend on.

        ``first``: the next batch to be trained on; ``drawn``: the next to be drawn.
        """
        held = {number: x for number, x in self._ahead if first <= number < drawn}
        are_as_begun = not (held or OPEN.keeps_seeds)
        if are_as_begun and self._seeds is not None:
            return self._seeds
        workers = None if self.workers is None else self.workers.before(first)
        seeds = Seeds(self.begun, held, workers).encode()
        self._seeds = seeds if are_as_begun else None
        return seeds

    def begin_again(self, last: Seeds) -> None:
        """Draw the seed and the order again, if no batch was drawn.

        ``last``: the seeds of the previous iteration, which the predecessor may not have ended.
        """
        if self.cursor.drawn == 0:
            if last.begun and self.generator is not None and self._is_short():
                self._end_as(last.begun[-1], self.generator)
            self._begin()

    def _is_short(self) -> bool:
        """Whether all indices of its sampler can be drawn at once; prints a notice if not."""
        try:
            is_short = len(self._sampler) <= SAMPLES_MAX
        except Exception:  # noqa: BLE001  # the script's sampler may have no length
            is_short = False
        if not is_short:
            told.once(
                f"the data loader at {self.spot} has more than {SAMPLES_MAX:,} samples, or no "
                "length. So ftrun did not repeat the random numbers that its sampler draws at the "
                "end of an epoch"
            )
        return is_short

    def _end_as(self, begun: States, generator: torch.Generator) -> None:
        """Advance the script's generator past the end of an iteration that began with ``begun``.

        torch's RandomSampler draws once more at its end. Applies only if the generator stands where
        the iteration's last batch left it.
        """
        now, here = States.now(self._own()), generator.get_state()
        for draws_seed in (False, True):  # the loader may draw its base seed from the generator
            begun.set(self._own())
            if draws_seed:
                torch.empty((), dtype=torch.int64).random_(generator=generator)
            before = generator.get_state()
            for _ in getattr(self.loader, "batch_sampler", None) or ():
                before = generator.get_state()
            after = generator.get_state()
            now.set(self._own())
            if torch.equal(before, here):
                generator.set_state(after)
                return

    def go_to(self, epoch: int | None, batch: int, order: Order | None = None) -> int:
        """Set it so that the next draw yields batch ``batch`` (from 0) of ``epoch``.

        No other batch is loaded, as far as ``_skip`` allows. A sampler whose epoch or ``order``
        differs draws its order again.

        Returns:
            The change of ``cursor.drawn``.
        """
        drawn = self.cursor.drawn
        self._seek(epoch, batch, order)
        self.cursor.set_to(batch)
        self._given = {} if order is None else dict(order.seeds.held)
        return batch - drawn

    def move_to(self, epoch: int | None, batch: int, order: Order | None = None) -> int:
        """Set it as if the step under way, whose batches are drawn, had begun with ``batch``.

        Returns:
            The change of ``cursor.drawn``.
        """
        drawn, target = self.cursor.drawn, batch + self.cursor.ahead
        self._seek(epoch, target, order)
        self.cursor.move(batch)
        return target - drawn

    def _seek(self, epoch: int | None, batch: int, order: Order | None) -> None:
        drawn, now = self.cursor.drawn, {} if order is None else self.facts()
        begun = {} if order is None else {name: value for name, value, _ in order.moved}
        seeds = NO_SEEDS if order is None or not self.begun else order.seeds
        is_other = order is not None and {**now, **begun} != self.began_with
        is_anew = bool(seeds.begun) and (drawn != batch or seeds.begun != self.begun)
        if is_anew or is_other or batch < drawn or (epoch is not None and epoch != self.epoch):
            self._put(begun)
            if epoch is not None:
                self._set_epoch(epoch)
            random = States.now()
            self._begin_as(seeds.begun)
            self.began_with = {**now, **begun}
            drawn = 0
            self._skip(batch, seeds.workers if self.workers is not None else None)
            random.set()
        else:
            self._skip(batch - drawn)
        self.epoch = epoch
        if order is not None and begun:
            self._put(self._left(begun, now, order))

    def _left(self, begun: Values, now: Values, order: Order) -> Values:
        """The facts to set at the place.

        A fact that setting the script's variables has changed keeps that value; any other takes the
        peers' value. A fact that has changed while batches were drawn is left as it is.
        """
        drawn = self.facts()
        return {
            name: theirs if now.get(name) == order.before.get(name) else now.get(name, theirs)
            for name, _, theirs in order.moved
            if drawn.get(name) == begun[name]
        }

    def _set_epoch(self, epoch: int) -> None:
        sampler = self._sampler
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        else:
            sampler.epoch = epoch

    def _skip(self, batches: int, given: Sequence[bytes] | None = None) -> None:
        """Skip batches: draw their indices, and read no sample.

        The exceptions: batches that the loader's workers have in progress are read. An
        IterableDataset has no indices, so all batches are read.

        Args:
            given: for each worker the random state with which it continues, at its first batch
                after the skipped ones. If given, ``batches`` counts from the epoch's start.
        """
        reads = self.must_read or (OPEN.reads_all and self._has_workers and given is None)
        indices = None if reads else getattr(self._inner, "_sampler_iter", None)
        left = batches
        if indices is not None:
            sent = getattr(self._inner, "_send_idx", 0) - getattr(self._inner, "_rcvd_idx", 0)
            over = 0 if given is None else max(0, left - sent) % len(given)
            passed = sum(1 for _ in itertools.islice(indices, max(0, left - sent - over)))
            left = min(left - passed, sent + over)
            if batches > left and hasattr(self._inner, "_num_yielded"):
                self._inner._num_yielded += batches - left  # torch compares it with the length
            if given is not None and passed:
                self.workers.go_on(batches, passed, given)
        for _ in range(left):
            next(self._inner, None)


def _own(generator: Any) -> dict[str, torch.Generator]:
    return {"": generator} if type(generator) is torch.Generator else {}


def _random(own: Mapping[str, torch.Generator]) -> States:
    """The states of the generators that the order of samples may depend on."""
    return States.now(own) if OPEN.keeps_seeds else States.of_torch(own)


def follow(moved: Sequence[tuple[LoaderIterator, int]], items: int | None = None) -> None:
    """Advance each ``enumerate`` and ``islice`` as much as its loader: the first one in ``moved``.

    ``moved``: iterators and the change of their position. ``items``: the change for those over the
    first iterator, if a generator draws from it. That generator may have begun in the middle of
    the loader, as where one iterator serves all epochs.
    """
    left = [x for x in gc.get_objects() if type(x) in _COUNTS]
    running = _running_generators()
    for number, (iterator, by) in enumerate(moved):
        for counted in [x for x in left if _is_of(_source(x), iterator, running, ITERATORS_DEEP)]:
            left.remove(counted)
            count_on(counted, items if items is not None and not number else by)


def _moves(source: Any) -> bool:
    """Whether an iterator takes its items from a loader's iterator, which is set."""
    running = _running_generators()
    return any(_is_of(source, iterator, running, ITERATORS_DEEP) for iterator in OPEN.all())


def _running_generators() -> set[int]:
    """The ids of the frames of all generators on the stack."""
    frame: FrameType | None = sys._getframe()
    found = set()
    while frame is not None:
        if frame.f_code.co_flags & inspect.CO_GENERATOR:
            found.add(id(frame))
        frame = frame.f_back
    return found


def _source(counted: Any) -> Any:
    """The iterator inside an ``enumerate`` or ``islice``; None: it has ended.

    Since Python 3.12 an ``islice`` also refers to its own type.
    """
    return next((x for x in gc.get_referents(counted) if x is not type(counted)), None)


def _is_of(source: Any, iterator: LoaderIterator, running: Set[int], deep: int) -> bool:
    """Whether ``source`` takes its items from a loader's iterator.

    It does if it is that iterator, a generator that is running, or an iterator (``zip``, a class of
    the script) that refers to one of these within ``deep`` levels.
    """
    kind = type(source)
    if source is iterator or kind is GeneratorType:
        return source is iterator or (source.gi_running and id(source.gi_frame) in running)
    leads_on = deep and (kind in (tuple, dict) or hasattr(kind, "__next__"))
    inner = gc.get_referents(source) if leads_on else ()
    return any(_is_of(x, iterator, running, deep - 1) for x in inner)


def refuse_thread(iterator: LoaderIterator) -> NoReturn:
    """Refuse a script that draws training batches in a thread of its own.

    Raises:
        Refused: always.
    """
    refuse(
        f"{iterator.spot}: a thread of the script's draws the batches of this loader, and ftrun "
        "follows a loop by the batches that the loop itself draws. Draw them in the loop; the "
        "loader's num_workers prepares them in time"
    )


def install(patches: Patches, claims: Callable[[Any], LoaderIterator | None]) -> None:
    """Patch ``__iter__`` of every DataLoader class, so that it returns a LoaderIterator.

    ``claims``: returns the iterator of a loader whose samples ftrun chooses (exactly_once.py), else
    None.
    """
    from torch.utils.data import DataLoader

    from ftrun.training.elastic_loader import ElasticLoader

    def __iter__(plain: Callable[[Any], Iterator[Any]], loader: Any) -> Any:
        if isinstance(loader, ElasticLoader):
            return plain(loader)
        if any(x is loader for x in again):
            return plain(loader)
        claimed = claims(loader)
        return LoaderIterator(loader, lambda: plain(loader)) if claimed is None else claimed

    again = list[Any]()  # loaders whose iterator is being made again

    def own(plain: Callable[[Any], Any], loader: Any) -> Any:
        """``__iter__`` of a subclass that overrides it. Most call DataLoader's patched one, and may
        do more around that, so the whole of it is called where its iterator is made again."""
        if any(x is loader for x in again):
            return plain(loader)

        def make() -> Iterator[Any]:
            again.append(loader)
            try:
                return cast(Iterator[Any], plain(loader))
            finally:
                again.pop()

        random = _random(_own(getattr(loader, "generator", None)))
        before, made = OPEN.count, plain(loader)
        if type(made) is LoaderIterator and made.loader is loader:
            made.make = make
        if type(made) is GeneratorType or before != OPEN.count:
            return made
        first = [made]
        return LoaderIterator(loader, lambda: first.pop() if first else make(), random)

    def follow_class(kind: type) -> None:
        for one in (kind, *kind.__subclasses__()):
            if "__iter__" in vars(one) and one not in (DataLoader, ElasticLoader):
                patches.around(one, "__iter__", own)

    def made_class(kind: Any, /, **given: Any) -> None:
        super(DataLoader, kind).__init_subclass__(**given)
        follow_class(kind)

    OPEN.thread = threading.get_ident()
    follow_class(DataLoader)
    patches.around(DataLoader, "__iter__", __iter__)
    patches.put(DataLoader, "__init_subclass__", classmethod(made_class))
    patches.put(RANGES, "samplers", (Sampler,))
    patches.put(RANGES, "iterate", _iterate)
    patches.put(RANGES, "moves", _moves)
    patches.after(DataLoader, "__init__", functools.partial(_note_made, Counter()))


def _iterate(sampler: Any) -> Iterator[Any]:
    """The iterator of a loop over a sampler; the plain one if a loader's draw runs that loop."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == __file__:
            return iter(sampler)
        frame = frame.f_back
    return LoaderIterator(sampler, lambda: iter(sampler))


def _sampler_of(loader: Any) -> Any:
    batched = getattr(loader, "batch_sampler", None)
    for _ in range(SAMPLERS_DEEP):  # accelerate's sampler wraps another one, to shard batches
        inner = getattr(batched, "batch_sampler", None)
        batched = batched if inner is None else inner
    return getattr(batched, "sampler", None) or getattr(loader, "sampler", None)


def batches() -> tuple[tuple[Spot, int], ...]:
    """How many batches were trained on, of each iterator that gives such."""
    every = (x for x in OPEN.all() if x.is_training)
    return tuple((batches_at(x.spot), x.cursor.first or 0) for x in every)


def epochs() -> Epochs:
    """The epochs of the samplers that the script sets, also of loaders that it evaluates with."""
    known = ((*made, getattr(_sampler_of(x), "epoch", None)) for x, made in [*MADE.items()])
    return tuple((spot, before, epoch) for spot, before, epoch in known if type(epoch) is int)


def set_epochs(given: Epochs, besides: Collection[tuple[Spot, int]]) -> None:
    """Set the samplers to the epochs that they have at the peers, but those of loaders ``besides``,
    which are set with their iterators."""
    theirs = {(spot, before): epoch for spot, before, epoch in given}
    for loader, made in [*MADE.items()]:
        sampler, epoch = _sampler_of(loader), theirs.get(made)
        if made not in besides and epoch is not None and hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)


def _note_made(numbers: Counter[Spot], loader: Any) -> None:
    frames = script_frames()
    if frames and (len(numbers) < LOOPS_MAX or spot_of(frames[0]) in numbers):
        spot = spot_of(frames[0])
        MADE[loader] = spot, numbers[spot]
        MADE_IN[loader] = RANGES.current({x.name for x in spots_of(frames)})
        numbers[spot] += 1
