"""Random numbers: a newcomer goes on where its predecessor's generators stood.

Each worker writes the states of the global generators (torch's, Python's and numpy's), and of those
that the script has made, to a small file of its slot: those at each place, as they were before the
step's first batch was drawn, and those after each commit. Its successor on the same node takes the
last ones that are not of a later step than the state that it heals to. So a replica that joins at
the very step in which its predecessor died draws what that one would have drawn: masks of a
dropout, noise, augmentations that are not made in a loader's worker processes, and the order of a
sampler without a seed.

A newcomer that finds nothing there takes a seed of its own.

Not here: when it joins (loop.py), the file (journal.py), the generators (values/generators.py).
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from ftrun.inject.zero_edit.values.generators import global_ones, set_to, state_of
from ftrun.inject.zero_edit.values.journal import Journal, packed, read, unpacked

FILE = "random-{replica_id}.{group_rank}"


@dataclass(frozen=True, slots=True)
class States:
    """Where the generators stand, by name: the global ones, and those that the script has made."""

    of: Mapping[str, bytes]

    @staticmethod
    def now(own: Mapping[str, Any] = MappingProxyType({})) -> States:
        """The states of this moment. ``own``: by name, the generators of the script's."""
        return States({name: state_of(x) for name, x in {**global_ones(), **own}.items()})

    @staticmethod
    def of_torch(own: Mapping[str, Any]) -> States:
        """Of torch's global one, and of these."""
        known = {"torch": torch.default_generator, **own}
        return States({name: state_of(x) for name, x in known.items()})

    def set(self, own: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Let the generators go on from here; those that are not known here stay as they are."""
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
    """What the batches of one iterator follow from, beside its loader.

    ``begun``: the generators before it was made, from which a sampler without a seed has its order
    and workers their seeds; and, if it has no workers, those before its first batch. ``held``: by
    number, those before each batch that the loop has drawn, and not used so far. ``workers``: what
    each worker of the loader has (batches.py); None: that is not known.
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
"""Of each iterator at a place its name (``LoaderPlace.name``), and its encoded seeds."""


@dataclass(frozen=True, slots=True)
class _Left:
    """A predecessor's generators. ``is_between``: two steps; else it is of a place. ``seeds``: of
    the iterators there, by name; the first one is the one that it drew from."""

    is_between: bool
    seeds: dict[str, Seeds]
    states: States


class Randomness:
    """The random numbers of one worker. For the main thread.

    Attributes:
        is_noted: the step under way.
        own: the generators of the script's, by name, as they were found last.
        given: by a predecessor's generation, as ``encoded`` gives it; None: by its file alone.

    Args:
        path: of the slot's file; ``rank``: of this worker in the script's world.
        step: how many steps are committed; ``life``: of the job, "" before the first step.
    """

    def __init__(
        self,
        path: Path,
        rank: int,
        step: Callable[[], int],
        life: Callable[[], str],
    ) -> None:
        self._path = path
        self._rank, self._step, self._life = rank, step, life
        self._journal = Journal(path, "the random numbers of this worker are lost with it")
        self._has_left = self._is_off = self.is_noted = False
        self._seeds: Left = ()
        self._noted: States | None = None
        self._left: _Left | None = None
        self.given: tuple[list[str], list[bytes]] | None = None
        self.own: Mapping[str, Any] = {}

    # ------------------------------------------------------------ for a successor

    def now(self, own: Mapping[str, Any] = MappingProxyType({})) -> States | None:
        """The generators at a draw; None: nobody can go on with them. ``own``: see States."""
        self.own = own
        return None if self._is_off else States.now(own)

    def note(self, states: States, seeds: Left) -> None:
        """A step begins at a place, with these ``states`` there, and ``seeds`` of its iterators."""
        self.is_noted, self._seeds, self._noted = True, seeds, states
        self._leave(states, is_between=False)

    def encoded(self) -> tuple[list[str], list[bytes]]:
        """The names of the iterators at the place that was noted last, what each follows from, and
        the generators."""
        return ([], []) if self._noted is None else self._encoded(self._noted)

    def _encoded(self, states: States) -> tuple[list[str], list[bytes]]:
        names, seeds = [name for name, _ in self._seeds], [x for _, x in self._seeds]
        return names, [*seeds, *states.encode()]

    def step_ended(self) -> None:
        """A step that was noted has ended, or a file is written after it: what follows draws from
        here."""
        self.is_noted = False
        if not self._is_off and self._life():
            self._leave(States.now(self.own), is_between=True)

    def _leave(self, states: States, *, is_between: bool) -> None:
        life = self._life()
        if self._is_off or not life:
            return
        self._has_left, (names, parts) = True, self._encoded(states)
        self._is_off = not self._journal.put([life, self._step(), is_between, names], parts)

    # ------------------------------------------------------------ of a newcomer

    @contextmanager
    def joining(self, until: int, begin_again: Callable[[Seeds], None]) -> Iterator[None]:
        """This newcomer goes to its peers' place, with the state of step ``until``.

        Args:
            begin_again: begins the iterator once more that gives the first batch, if that is its
                first one: the predecessor may have died before it had begun it. It is told of
                the iteration in which that one was.
        """
        left = self._left = None if self._has_left else self._found(until)
        renew_random(self._rank, self._step())
        yield
        if left is not None:
            left.states.set(self.own)
            if left.is_between:
                begin_again(next(iter(left.seeds.values()), NO_SEEDS))

    def seeds(self, first: str) -> dict[str, Seeds]:
        """Those of the predecessor's iterators, as far as they are known. ``first``: the name of
        the one that the peers draw from; the predecessor's may have another one."""
        found = {} if self._left is None else self._left.seeds
        return {first: next(iter(found.values())), **found} if found else {}

    def _found(self, until: int) -> _Left | None:
        """What the predecessor has left of this life of the job, at ``until`` or before."""
        if self.given is not None:
            return left_of(*self.given, is_between=False) if self.given[1] else None
        try:
            for (life, step, is_between, names), parts in reversed(read(self._path)):
                if life == self._life() and step <= until:
                    return left_of(names, parts, is_between=is_between)
        except (ValueError, LookupError, TypeError):
            pass  # it is no record of ours
        return None


def renew_random(rank: int, step: int) -> None:
    """A newcomer must not draw the numbers of the job's first steps once more."""
    mixed = hashlib.blake2b(f"{rank} joins at {step}".encode(), digest_size=8)
    seed_with(int.from_bytes(mixed.digest(), "little"))


def seed_with(number: int) -> None:
    """Let all generators begin from a number."""
    torch.manual_seed(number)
    random.seed(number)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(number % (1 << 32))


def left_of(names: Sequence[str], parts: Sequence[bytes], *, is_between: bool) -> _Left:
    """What was left of iterators with these names, and then of the generators."""
    seeds = {name: Seeds.decode(x) for name, x in zip(names, parts, strict=False) if x}
    return _Left(is_between, seeds, States.decode(parts[len(names) :]))
