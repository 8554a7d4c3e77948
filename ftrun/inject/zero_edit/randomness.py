"""Random numbers: a newcomer continues from the states of its predecessor's generators.

Each worker writes the states of all random generators to a small file of its slot: the global ones
of torch, Python and numpy, and those that the script has made. It writes them at each place, as
they were before the step's first batch was drawn, and, as far as the steps of this place go, before
each reduction (its peers may commit that step without it) and after each commit. Its successor on
the same node takes the last states that are not of a later step than the place at which it joins.
So a replica that joins at the step in which its predecessor died, or at the next one, draws the
same numbers as the predecessor would have: dropout masks, noise, augmentations outside a loader's
worker processes, and the order of a sampler without a seed.

Where all ranks have one seed, a generator stands alike on all of them. If the peers have gone on
meanwhile, the newcomer takes the states of such generators from its donor, whose place has them.

A newcomer that finds no such file uses a seed of its own.

Not here: when it joins (loop.py), the file (journal.py), the generators (values/generators.py).
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from ftrun.core.worker.origins import Origin, random_origin
from ftrun.inject.zero_edit.place import Details, Place
from ftrun.inject.zero_edit.values.generators import TORCH, global_ones, set_to, state_of
from ftrun.inject.zero_edit.values.journal import Journal, packed, read, unpacked

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.script import Script

FILE = "random-{replica_id}.{group_rank}"
PLACES = 4
"""Places whose states a donor compares with those that a newcomer's predecessor had there."""
SHOWN_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class States:
    """The states of generators, by name: the global ones, and those that the script has made."""

    of: Mapping[str, bytes]

    @staticmethod
    def now(own: Mapping[str, Any] = MappingProxyType({})) -> States:
        """The current states. ``own``: the script's generators, by name."""
        return States({name: state_of(x) for name, x in {**global_ones(), **own}.items()})

    @staticmethod
    def of_torch(own: Mapping[str, Any]) -> States:
        """The current states of torch's global CPU generator and of ``own``."""
        known = {TORCH: torch.default_generator, **own}
        return States({name: state_of(x) for name, x in known.items()})

    def digests(self) -> dict[str, str]:
        """A digest of each state, by name."""
        return {x: hashlib.blake2b(y, digest_size=8).hexdigest() for x, y in self.of.items()}

    def set(self, own: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Set the generators to these states. A generator that is not in both is left as it is."""
        known = {**global_ones(), **own}
        for name in self.of.keys() & known.keys():
            set_to(known[name], self.of[name])

    def encode(self) -> list[bytes]:
        """As bytes, in the order of ``decode``."""
        return [json.dumps([*self.of]).encode(), *self.of.values()]

    @staticmethod
    def decode(parts: Sequence[bytes]) -> States:
        """The states that ``encode`` has written."""
        return States(dict(zip(json.loads(parts[0]), parts[1:], strict=True)))


@dataclass(frozen=True, slots=True)
class Seeds:
    """The random states that the batches of one iterator depend on.

    Attributes:
        begun: the states before the iterator was made, which determine the order of a sampler
            without a seed and the seeds of workers; then, if it has no workers, those before its
            first batch.
        held: the states before each batch that the loop has drawn but not used yet, by number.
        workers: the states of each worker of the loader (batches.py); None: not known.
    """

    begun: tuple[States, ...] = ()
    held: Mapping[int, States] = field(default_factory=dict)
    workers: Sequence[bytes] | None = None

    def encode(self) -> bytes:
        states = [packed([], x.encode()) for x in (*self.begun, *self.held.values())]
        head = [len(self.begun), [*self.held], self.workers is not None]
        return packed(head, [*states, *(self.workers or ())])

    @staticmethod
    def decode(text: bytes) -> Seeds:
        """What ``encode`` has written."""
        (begun, held, has_workers), parts, _ = unpacked(text)
        count = begun + len(held)
        states = [States.decode(unpacked(x)[1]) for x in parts[:count]]
        of_held = dict(zip(held, states[begun:], strict=True))
        return Seeds(tuple(states[:begun]), of_held, parts[count:] if has_workers else None)


NO_SEEDS = Seeds()
Left = Sequence[tuple[str, bytes]]
"""For each iterator at a place its name (``LoaderPlace.name``) and its encoded seeds."""


@dataclass(frozen=True, slots=True)
class _Left:
    """A predecessor's random states.

    ``is_between``: they are from between two steps, not from a step's place. ``seeds``: of the
    iterators at the place, by name; the first is the one that the predecessor drew from.
    """

    is_between: bool
    seeds: dict[str, Seeds]
    states: States

    def with_donors(self, donor: _Left, alike: Set[str]) -> _Left:
        """The same with a donor's states of generators that stood alike on both; orders of samples
        follow from torch's."""
        alike &= donor.states.of.keys()
        states = {**self.states.of, **{name: donor.states.of[name] for name in alike}}
        of_order = donor if TORCH in alike else self
        return replace(of_order, states=States(states))


class Randomness:
    """The random numbers of one worker. For the main thread.

    Attributes:
        is_noted: the states were written at the place of the step under way, which several steps
            may share.
        own: the script's generators by name, as last found.
        given: the states in a predecessor's generation, as ``encoded`` returns them; None: there is
            no generation, so the file is read.
    """

    def __init__(self, script: Script) -> None:
        self._script, self._path = script, script.file(FILE)
        self._journal = Journal(self._path, "if this worker dies, its random numbers are lost")
        self._has_left = self._is_off = self.is_noted = False
        self._newest: Any = None  # what was left between two steps
        self._at_place: Any = None  # what was left at the last place: a full file keeps it
        self._seeds: Left = ()
        self._noted: States | None = None
        self._places: deque[tuple[int, States]] = deque(maxlen=PLACES)
        self._left: _Left | None = None
        self.given: tuple[list[str], list[bytes]] | None = None
        self.own: Mapping[str, Any] = {}

    # ------------------------------------------------------------ for a successor

    def now(self, own: Mapping[str, Any] = MappingProxyType({})) -> States | None:
        """The states at a draw; None: they cannot be written. ``own``: see ``States.now``."""
        self.own = own
        return None if self._is_off else States.now(own)

    def begins(self) -> None:
        """The first step has begun: write what was noted at its place."""
        if self._noted is not None:
            self._leave(self._noted)

    def note(self, states: States, seeds: Left) -> None:
        """Write the states at a step's place, and the seeds of the iterators there."""
        self.is_noted, self._seeds, self._noted = True, seeds, states
        self._places.append((self._script.committed(), states))
        self._leave(states)

    def shown(self, details: Callable[[], Details]) -> Callable[[], Details]:
        """The ``details`` of the place that was noted last, with its states for a newcomer."""
        places, (names, parts) = [*self._places], self.encoded()

        def with_random() -> Details:
            if sum(map(len, parts)) > SHOWN_BYTES_MAX:
                return details()
            known = [(step, states.digests()) for step, states in places]
            texts = [base64.b64encode(part).decode() for part in parts]
            return replace(details(), random=[known, names, texts])

        return with_random

    def encoded(self) -> tuple[list[str], list[bytes]]:
        """For the last noted place: the iterators' names; and their seeds, then the states."""
        return ([], []) if self._noted is None else self._encoded(self._noted)

    def _encoded(self, states: States) -> tuple[list[str], list[bytes]]:
        names, seeds = [name for name, _ in self._seeds], [x for _, x in self._seeds]
        return names, [*seeds, *states.encode()]

    def step_ended(self, *, reduces: bool = False) -> None:
        """Write the current states, after a noted step or before the script writes a file, or where
        a step ``reduces``: as those after it, because its peers may commit it alone."""
        if not self._is_off and self._script.life():
            self._leave(States.now(self.own), self._script.committed() + reduces, is_between=True)

    def _leave(self, states: States, step: int = -1, *, is_between: bool = False) -> None:
        life = self._script.life()
        if self._is_off or not life:
            return
        newest = is_between and (step, states)
        if newest and newest == self._newest:
            return  # the step is committed, and nothing was drawn since it has reduced
        self._newest, self._has_left = newest, True
        names, parts = self._encoded(states)
        entry = [life, step if is_between else self._script.committed(), is_between, names], parts
        self._at_place = self._at_place if is_between and self._at_place else entry
        journal = self._journal
        is_added = journal.add(*entry) or (
            is_between and journal.begin(*self._at_place) and journal.add(*entry)
        )
        self._is_off = not (is_added or journal.begin(*entry))

    # ------------------------------------------------------------ of a newcomer

    @contextmanager
    def joining(self, place: Place, begin_again: Callable[[Seeds], None]) -> Iterator[None]:
        """Around the move of this newcomer to its peers' ``place``.

        The predecessor's states are set at the end, or the donor's.

        Args:
            begin_again: called after that, if the states are from between two steps, with the seeds
                of the predecessor's last iteration. The predecessor may have died before it began
                the next one, so an iterator that has yielded no batch draws its order again.
        """
        left = self._left = None if self._has_left else self._found(place)
        renew_random(self._script.mates.rank, self._script.committed())
        yield
        if left is not None:
            left.states.set(self.own)
            if left.is_between:
                begin_again(next(iter(left.seeds.values()), NO_SEEDS))

    def seeds(self, first: str) -> dict[str, Seeds]:
        """The seeds of the predecessor's iterators, by name; empty: not known.

        ``first``: the name of the iterator that the peers draw from. The predecessor's first
        iterator counts as that one, even if its name differs.
        """
        found = {} if self._left is None else self._left.seeds
        return {first: next(iter(found.values())), **found} if found else {}

    def _found(self, place: Place) -> _Left | None:
        """The predecessor's last states in this life of the job, up to the step of a place; of
        generators that stood alike on the donor, those of the place."""
        if self.given is not None:
            return left_of(*self.given, is_between=False) if self.given[1] else None
        left, noted, is_here = None, dict[int, States](), False
        try:
            for (life, step, is_between, names), parts in read(self._path):
                if life == self._script.life() and step <= place.step:
                    left = left_of(names, parts, is_between=is_between)
                    is_here = step == place.step and not is_between
                    noted |= {} if is_between else {step: left.states}
            return left if left is None else _of_peers(left, noted, place.details(), is_here)
        except (ValueError, LookupError, TypeError):
            return left  # what follows is not of this format


def _of_peers(left: _Left, noted: Mapping[int, States], theirs: Details, is_here: bool) -> _Left:
    """What a predecessor has left, with the donor's states where ``random_origin`` says so.

    ``noted``: the predecessor's states by step.
    """
    places, names, texts = theirs.random or [[], [], []]
    known = [(states, noted[step].digests()) for step, states in places if step in noted]
    both, own = known[-1] if known else ({}, {})
    alike = {
        name
        for name, digest in both.items()
        if random_origin(is_here=is_here, was_alike=own.get(name) == digest) is Origin.DONOR
    }
    if not alike:
        return left
    parts = [base64.b64decode(text) for text in texts]
    return left.with_donors(left_of(names, parts, is_between=False), alike)


def renew_random(rank: int, step: int) -> None:
    """Reseed a newcomer, so that it does not repeat the random numbers of the job's first steps."""
    mixed = hashlib.blake2b(f"{rank} joins at {step}".encode(), digest_size=8)
    seed_with(int.from_bytes(mixed.digest(), "little"))


def seed_with(number: int) -> None:
    """Seed the global generators of torch, Python and numpy."""
    torch.manual_seed(number)
    random.seed(number)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(number % (1 << 32))


def left_of(names: Sequence[str], parts: Sequence[bytes], *, is_between: bool) -> _Left:
    """Decode the seeds of the iterators with these names, and the generators' states."""
    seeds = {name: Seeds.decode(x) for name, x in zip(names, parts, strict=False) if x}
    return _Left(is_between, seeds, States.decode(parts[len(names) :]))
