"""DataLoader iterators that know their cursor, and can be set to another one without loading.

Not here: which iterator gives training batches, and where it is to be set (loop.py).
"""

from __future__ import annotations

import ctypes
import functools
import gc
import inspect
import itertools
import sys
import threading
import warnings
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from types import FrameType, GeneratorType
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import torch
from torch.utils.data import IterableDataset, Sampler

from ftrun.inject.zero_edit import told
from ftrun.inject.zero_edit.counting import RANGES
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
from ftrun.inject.zero_edit.place import Moved
from ftrun.inject.zero_edit.randomness import NO_SEEDS, Seeds, States
from ftrun.inject.zero_edit.refusals import refuse
from ftrun.inject.zero_edit.values.kinds import plain_values

LOOPS_MAX = 1024
ENDED_MAX = 16
HELD_MAX = 16
ITERATORS_DEEP = SAMPLERS_DEEP = 4
SAMPLES_MAX = 1_000_000
"""Of a sampler, whose indices are drawn to its end in half a second."""
_COUNTS = (enumerate, *[x for x in (itertools.islice,) if hasattr(x, "__setstate__")])
"""Python 3.14 has no access to the other one's number."""

Positions = Sequence[tuple["weakref.ref[LoaderIterator]", int]]
"""Iterators, and how many batches each had given."""


class OpenIterators:
    """The iterators that are open, in the order in which the script began them.

    ``before_draw``, ``ended``: called when one is asked for a batch, and has none (loop.py).
    ``thread``: that trains; ``last``: the iterator that gave the last batch.
    ``on_batch``: gets each batch, and returns what is given in its place; ``keeps_seeds``: all that
    batches follow from is to be known; ``on_begin``: gives the memory that an iterator shares with
    its workers; ``reads_all``: these draw, so a batch is passed over by reading it, unless it is
    known what those of a predecessor's had (batches.py). ``own``: gives the script's generators of
    random numbers, by name. ``dim``: the loaders whose batches are drawn with gradients off, and
    trained on; ``has_dim``: one was drawn from so since the last pass. ``count``: of all so far.
    """

    def __init__(self) -> None:
        self.before_draw: Callable[[LoaderIterator], None] = lambda iterator: None
        self.ended: Callable[[LoaderIterator], None] = lambda iterator: None
        self.on_batch: Callable[[LoaderIterator, Any], Any] | None = None
        self.on_begin: Callable[[LoaderIterator], Any] = lambda iterator: None
        self.keeps_seeds = self.reads_all = self.has_dim = False
        self.count = 0
        self.own: Callable[[], Mapping[str, Any]] = dict
        self.dim: weakref.WeakSet[Any] = weakref.WeakSet()
        self._open: list[weakref.ref[LoaderIterator]] = []
        self._held: dict[tuple[tuple[Spot, ...], int], int | None] = {}
        self.ended_ones: deque[LoaderIterator] = deque(maxlen=ENDED_MAX)
        self.last: weakref.ref[LoaderIterator] | None = None
        self.thread = threading.get_ident()

    def evaluated(self) -> None:
        """A model is evaluated: the batch that was drawn last was not for training. Others may hold
        one that was: a loop that draws ahead, and evaluates in between."""
        last = None if self.last is None else self.last()
        if last is not None and not last.is_training:
            last.is_fresh, last.is_dim, last.is_evaluated = False, False, True

    def add(self, iterator: LoaderIterator) -> None:
        """The script begins to iterate. Those that are open at one place have different numbers."""
        self.count += 1
        known = [x for x in self.all() if x.spot == iterator.spot and not x.cursor.has_ended]
        free = set(range(len(known) + 1)) - {x.number for x in known}
        iterator.number = min(free)
        iterator.cursor.held = self._held.get(iterator.loop)
        self._open.append(iterator.here)

    def all(self) -> list[LoaderIterator]:
        """The iterators that have not ended, or whose last batches are not trained on yet."""
        if len(self._open) == 1:  # mostly so
            only = self._open[0]()
            if only is not None and not (only.cursor.has_ended and only.is_done):
                return [only]
        found = [(ref, it) for ref in self._open if (it := ref()) is not None and not it.is_done]
        self._open = [ref for ref, _ in found]
        return [it for _, it in found]

    def positions(self) -> Positions:
        """Where each open one stands."""
        return [(x.here, x.cursor.drawn) for x in self.all() if not x.cursor.has_ended]

    def learn(self, iterator: LoaderIterator) -> None:
        """Remember that the loop at this place trains, and how far it draws ahead."""
        key, iterator.learned = iterator.loop, iterator.cursor.held
        if key in self._held or len(self._held) < LOOPS_MAX:
            self._held[key] = iterator.cursor.held

    def has_learned(self, iterator: LoaderIterator) -> bool:
        """Whether the loop at this place is known to train."""
        return iterator.loop in self._held

    def end(self, iterator: LoaderIterator) -> None:
        """Keep an iterator that has ended: the script has dropped it, but not its last batches."""
        self.ended_ones.append(iterator)

    def words(self) -> str:
        """The loop that takes the batches, for people."""
        loaders = [str(x.spot) for x in self.all() if x.is_fresh]
        return f"the loader at {', '.join(loaders)}" if loaders else "a loop without a loader"


OPEN = OpenIterators()
MADE: WeakKeyDictionary[Any, tuple[Spot, int]] = WeakKeyDictionary()
"""Where each loader was made, and how many had been made there before."""
CHANGING: WeakKeyDictionary[Any, tuple[Values, set[str]]] = WeakKeyDictionary()
"""The facts of each loader when it was first iterated over, and those that have changed since."""


@dataclass(frozen=True, slots=True)
class Order:
    """What the order of an iterator's samples follows from, at the place of peers.

    ``moved``: their facts (``LoaderIterator.moved``); ``before``: those here before the script's
    variables were set. ``seeds``: its predecessor's: its sampler draws its order from them.
    """

    moved: Moved = ()
    before: Values = field(default_factory=dict)
    seeds: Seeds = NO_SEEDS


class LoaderIterator:
    """Stands for a DataLoader's own iterator, or for that of a sampler in a header of the script's.

    Attributes:
        spot: where the script began to iterate.
        cursor: which batch comes next, and which one the step trains on.
        is_fresh: it has given a batch since the last training step; is_dim: with gradients off.
        is_training: it gives the batches of training steps; is_evaluated: one of its batches was
            for an evaluation.
        begins_steps: a step begins at each draw, not at the forward pass after it.
        epoch: of its sampler, when its first batch was drawn: some samplers count on by themselves.
        began_with: its facts then.
        moved: the facts that have ever changed: then, and at the last draw that was noted.
        entry: the script's frames at the first draw.
        drawn_again: the same at the second.
        began: how many draws of all loaders there were before its first one.
        made: where the script made its loader, and how many it had made there before.
        noted: the script at the first draw since the last step (noting.py), which was number
            ``drawn_at`` of those of all loaders.
        length: how many batches it has; None: that is not known.
        learned: ``cursor.held`` as it was remembered last.
        begun: see Seeds; ``generator`` has the name "". Empty: its sampler has a seed. It is given
            if the iterator is made before this one.
        workers: what it shares with its workers (batches.py).
        here: refers to it, and does not keep it.
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
        self.began = self.drawn_at = 0
        self.made = MADE.get(loader, (NOWHERE, 0))
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
        self._make = make
        self._begin()
        self.begun = (begun,) if begun and self.begun else self.begun
        self.here = weakref.ref(self)
        OPEN.add(self)

    @property
    def loop(self) -> tuple[tuple[Spot, ...], int]:
        """A name of the loop that draws from it: all lines of the stack, because a package may
        iterate over all loaders, also those of an evaluation, at one line."""
        return self._made_by, self.number

    @property
    def name(self) -> str:
        """As ``LoaderPlace.name``."""
        return f"{self.spot} {self.number} {self.made[0]} {self.made[1]}"

    @property
    def is_sampler(self) -> bool:
        """Whether it gives indices: what has read them all may hold them for later."""
        return isinstance(self.loader, Sampler)

    @property
    def may_go_on(self) -> bool:
        """Whether it may be asked for more batches, if it has any. A package that evaluates begins
        anew each time, and may keep the last one, which it has stopped by a count."""
        return self.is_training or bool(self.spot.line) or not self.is_evaluated

    @property
    def is_done(self) -> bool:
        """Whether it has no more batches for a training step."""
        if not self.cursor.has_ended:
            return False
        if self.is_training:
            return self.cursor.is_over
        return not self.is_fresh

    def is_other_than(self, places: Sequence[Any]) -> bool:
        """Whether the peers draw their first batch of a step from a loader that the script has
        made at another line: ``for loader in (one, other):``."""
        at = places[0].made_at if places else NOWHERE
        return NOWHERE not in (at, self.made[0]) and at != self.made[0]

    def numbers(self, drawn: int | None = None) -> tuple[Any, ...]:
        """The fields of a LoaderPlace, at the step under way. ``drawn``: of one that is no step's,
        how many batches it has given."""
        first = (self.cursor.first or 0) if drawn is None else drawn
        held, is_dim = self.cursor.held, self.loader in OPEN.dim
        made = *self.made, self.moved, is_dim, self.cursor.dropped
        return self.spot, self.number, self.epoch, first, held, *made

    def measure(self) -> None:
        """Find out how many batches it has; the length of an IterableDataset is not certain."""
        try:
            self.length = None if self.must_read else len(self)
        except Exception:  # noqa: BLE001 - a sampler of the script's may have no length
            self.length = None

    @property
    def must_read(self) -> bool:
        """Whether a batch can be passed over only by reading it."""
        return isinstance(getattr(self.loader, "dataset", None), IterableDataset)

    def _parts(self) -> dict[str, Any]:
        """What the order of its samples may depend on."""
        parts = {x: getattr(self.loader, x, None) for x in ("dataset", "batch_sampler")}
        return {**parts, "sampler": self._sampler}

    def facts(self) -> Values:
        """The plain values of the parts, but for the epoch."""
        return {
            f"{part}.{name}": value
            for part, one in self._parts().items()
            if hasattr(one, "__dict__")
            for name, value in plain_values(vars(one)).items()
            if (part, name) != ("sampler", "epoch")
        }

    def note_facts(self) -> None:
        """See which facts have changed since the loader was first iterated over: a sampler may
        count how far it is, and begin there."""
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
        batched = getattr(self.loader, "batch_sampler", None)
        for _ in range(SAMPLERS_DEEP):  # accelerate's gives each rank its part of another's batches
            inner = getattr(batched, "batch_sampler", None)
            batched = batched if inner is None else inner
        found = getattr(batched, "sampler", None) or getattr(self.loader, "sampler", None)
        return found or (self.loader if self.is_sampler else None)

    @property
    def generator(self) -> torch.Generator | None:
        """The one that the script has given its loader or its sampler."""
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
            self._look()  # workers of the loader draw their indices earlier
            if OPEN.keeps_seeds:
                self.begun, self._seeds = (*self.begun[:1], _random(self._own())), None
        try:
            batch = self._draw() if self._given or OPEN.keeps_seeds else self.take()
            if OPEN.on_batch is not None:
                batch = OPEN.on_batch(self, batch)
        except StopIteration:
            cursor.has_ended = True
            OPEN.end(self)
            OPEN.ended(self)
            raise
        finally:
            cursor.drawn += 1
        is_dropped = cursor.is_unused and drops_result(sys._getframe(1))
        if is_dropped:
            cursor.drop()
        # What is drawn with gradients off is evaluated, also by a module beside the models.
        is_lit = self.is_training or torch.is_grad_enabled()
        self.is_fresh, self.is_dim = is_lit and not is_dropped, not is_lit
        OPEN.has_dim |= self.is_dim
        OPEN.last = self.here
        return batch

    def _draw(self) -> Any:
        """Its next batch. One that its predecessor's loop held is made as it was then."""
        number, own = self.cursor.drawn, OPEN.own()
        given = self._given.pop(number, None)
        if OPEN.keeps_seeds and self.cursor.held != 0:
            now = States({}) if self._has_workers else States.now(own)  # these have their own
            self._ahead.append((number, given or now))
        if given is None:
            return self.take()
        now = States.now(own)
        given.set(own)
        try:
            return self.take()
        finally:
            now.set(own)

    def take(self) -> Any:
        """Its next batch, as it is."""
        return next(self._inner)

    @property
    def _has_workers(self) -> bool:
        return bool(getattr(self.loader, "num_workers", 0))

    def read_again(self) -> None:
        """Begin the epoch once more, and read all that is before the batch given last."""
        self._begin_as(self.begun)
        for _ in range(self.cursor.drawn):
            self.take()

    def _begin(self) -> None:
        has_no_seed = getattr(self._sampler, "generator", self) is None  # but torch's own
        is_needed = has_no_seed or OPEN.keeps_seeds or self.generator is not None
        self.begun, self._seeds = (_random(self._own()),) if is_needed else (), None
        self._ahead.clear()
        self.workers = OPEN.on_begin(self)
        self._inner = self._make()

    def _begin_as(self, begun: tuple[States, ...]) -> None:
        """Begin as a predecessor did that had these states."""
        for states in begun[:1]:
            states.set(self._own())
        self._begin()
        for states in begun[1:]:
            states.set(self._own())
        self.begun = begun or self.begun

    def _own(self) -> dict[str, torch.Generator]:
        return _own(self.generator)

    def seeds(self, first: int, drawn: int) -> bytes:
        """What its batches follow from, encoded, where batch ``first`` is the next to be used, and
        ``drawn`` the next to be drawn."""
        if not OPEN.keeps_seeds and self._seeds is not None:
            return self._seeds
        held = {number: x for number, x in self._ahead if first <= number < drawn}
        workers = None if self.workers is None else self.workers.before(first)
        self._seeds = Seeds(self.begun, held, workers).encode()
        return self._seeds

    def begin_again(self, last: Seeds) -> None:
        """Draw its seed and its order again, if it is to give its first batch. ``last``: of the
        iteration before it, which its predecessor had perhaps not brought to its end."""
        if self.cursor.drawn == 0:
            if last.begun and self.generator is not None and self._is_short():
                self._end_as(last.begun[-1], self.generator)
            self._begin()

    def _is_short(self) -> bool:
        """Whether its sampler's indices can all be drawn at once."""
        try:
            is_short = len(self._sampler) <= SAMPLES_MAX
        except Exception:  # noqa: BLE001  # a sampler of the script's may have no length
            is_short = False
        if not is_short:
            told.once(
                f"the loader at {self.spot} has more than {SAMPLES_MAX:,} samples, or no length: "
                "what its sampler draws at the end of an epoch was not drawn again"
            )
        return is_short

    def _end_as(self, begun: States, generator: torch.Generator) -> None:
        """Let the script's generator go on as if an iteration that began so, and has given all of
        its batches, had come to its end: torch's RandomSampler draws there once more."""
        now, here = States.now(self._own()), generator.get_state()
        for draws_seed in (False, True):  # of the iteration, by the loader's own generator
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
        """Let the next draw give number ``batch`` (from 0) of ``epoch``; nothing else is loaded.

        A sampler whose epoch or ``order`` differs draws its order again.

        Returns:
            By how much its number has grown.
        """
        drawn = self.cursor.drawn
        self._seek(epoch, batch, order)
        self.cursor.set_to(batch)
        self._given = {} if order is None else dict(order.seeds.held)
        return batch - drawn

    def move_to(self, epoch: int | None, batch: int, order: Order | None = None) -> int:
        """The step under way, whose batches are drawn, began with number ``batch`` of ``epoch``."""
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
        """What the facts are to be at the place: as the script's variables were set to, else as
        those of the peers. One that counts by itself, as its batches are drawn, stays."""
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
        """Pass over batches: their indices are drawn, and no sample is read.

        Worker processes of the loader have some batches under way already: these are read. An
        IterableDataset has no indices: all is read.

        Args:
            given: the random numbers with which each worker goes on, at a batch of its own; all
                batches of the epoch so far are passed over then.
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
                self._inner._num_yielded += batches - left  # which it compares with its length
            if given is not None and passed:
                self.workers.go_on(batches, passed, given)
        for _ in range(left):
            next(self._inner, None)


def _own(generator: Any) -> dict[str, torch.Generator]:
    return {"": generator} if type(generator) is torch.Generator else {}


def _random(own: Mapping[str, torch.Generator]) -> States:
    """The generators from which an order may follow."""
    return States.now(own) if OPEN.keeps_seeds else States.of_torch(own)


def follow(moved: Sequence[tuple[LoaderIterator, int]], items: int | None = None) -> None:
    """Let each ``enumerate`` and ``islice`` follow the first of its loaders that was moved, by that
    much.

    ``items``: by so many items of a generator that draws from the first loader: it may have begun
    in the middle of that one, as where one iterator serves all epochs.
    """
    left = [x for x in gc.get_objects() if type(x) in _COUNTS]
    running = _running_generators()
    for number, (iterator, by) in enumerate(moved):
        for counted in [x for x in left if _is_of(_source(x), iterator, running, ITERATORS_DEEP)]:
            left.remove(counted)
            _count_on(counted, items if items is not None and not number else by)


def _running_generators() -> set[int]:
    """The generators on the stack, by their frames: they draw now."""
    frame: FrameType | None = sys._getframe()
    found = set()
    while frame is not None:
        if frame.f_code.co_flags & inspect.CO_GENERATOR:
            found.add(id(frame))
        frame = frame.f_back
    return found


def _source(counted: Any) -> Any:
    """What an ``enumerate`` or ``islice`` goes over; None: it has ended.

    From Python 3.12 on an ``islice`` refers to its own type, too.
    """
    return next((x for x in gc.get_referents(counted) if x is not type(counted)), None)


def _is_of(source: Any, iterator: LoaderIterator, running: Set[int], deep: int) -> bool:
    """Whether what gives items has them from a loader's iterator: it is that one, ``zip`` and the
    like, an iterator of the script's, or a generator that runs now."""
    kind = type(source)
    if source is iterator or kind is GeneratorType:
        return source is iterator or (source.gi_running and id(source.gi_frame) in running)
    leads_on = deep and (kind in (tuple, dict) or hasattr(kind, "__next__"))
    inner = gc.get_referents(source) if leads_on else ()
    return any(_is_of(x, iterator, running, deep - 1) for x in inner)


def _count_on(counted: Any, by: int) -> None:
    """Let an ``enumerate`` count on from a number that is greater by ``by``: its first field."""
    if type(counted) is itertools.islice:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            sliced: Any = counted
            _, (*_, step), passed = sliced.__reduce__()
            if step == 1:  # else it would have to know its next one, too
                sliced.__setstate__(passed + by)
        return
    number = ctypes.c_ssize_t.from_address(id(counted) + object.__basicsize__)
    if number.value == counted.__reduce__()[1][1]:
        number.value += by
    else:
        told.once("an enumerate cannot be set to the peers' place: this Python's is unknown")


def refuse_thread(iterator: LoaderIterator) -> NoReturn:
    """Refuse a script whose own thread draws the batches.

    Raises:
        Refused: always.
    """
    refuse(
        f"{iterator.spot}: a thread of the script's draws the batches of this loader, and ftrun "
        "follows a loop by its own draws. Draw them in the loop; the loader's num_workers has them "
        "ready in time"
    )


def install(patches: Patches, claims: Callable[[Any], LoaderIterator | None]) -> None:
    """Hand out our iterators for those of every DataLoader.

    ``claims``: gives the iterator of a loader whose samples ftrun chooses (exactly_once.py).
    """
    from torch.utils.data import DataLoader

    from ftrun.training.elastic_loader import ElasticLoader

    def __iter__(plain: Callable[[Any], Iterator[Any]], loader: Any) -> Any:
        if isinstance(loader, ElasticLoader):
            return plain(loader)
        claimed = claims(loader)
        return LoaderIterator(loader, lambda: plain(loader)) if claimed is None else claimed

    def own(plain: Callable[[Any], Any], loader: Any) -> Any:
        """Of a class with an ``__iter__`` of its own: most ask the plain one, which is ours."""
        random = _random(_own(getattr(loader, "generator", None)))
        before, made = OPEN.count, plain(loader)
        if type(made) is GeneratorType or before != OPEN.count:
            return made
        first = [made]
        return LoaderIterator(loader, lambda: first.pop() if first else plain(loader), random)

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
    patches.after(DataLoader, "__init__", functools.partial(_note_made, Counter()))


def _iterate(sampler: Any) -> Iterator[Any]:
    """What a header of the script's goes over a sampler by; not so one in a loader's own draw."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == __file__:
            return iter(sampler)
        frame = frame.f_back
    return LoaderIterator(sampler, lambda: iter(sampler))


def _note_made(numbers: Counter[Spot], loader: Any) -> None:
    frames = script_frames()
    if frames and (len(numbers) < LOOPS_MAX or spot_of(frames[0]) in numbers):
        spot = spot_of(frames[0])
        MADE[loader] = spot, numbers[spot]
        numbers[spot] += 1
