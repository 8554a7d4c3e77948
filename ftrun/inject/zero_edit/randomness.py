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
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from ftrun.inject.zero_edit import told
from ftrun.inject.zero_edit.values.generators import global_ones, set_to, state_of
from ftrun.inject.zero_edit.values.journal import Journal, read

FILE = "random-{replica_id}.{group_rank}"


@dataclass(frozen=True, slots=True)
class States:
    """Where the generators stand, by name: the global ones, and those that the script has made."""

    of: Mapping[str, bytes]

    @staticmethod
    def now(own: Mapping[str, Any] = MappingProxyType({})) -> States:
        """The states of this moment. ``own``: by name, the generators of the script's."""
        return States({name: state_of(x) for name, x in {**global_ones(), **own}.items()})

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
class _Left:
    """A predecessor's generators. ``is_between``: two steps; else it is of a place. ``order``: of
    the iterator that it drew from, see ``Randomness.note``."""

    is_between: bool
    order: torch.Tensor | None
    states: States


class Randomness:
    """The random numbers of one worker. For the main thread.

    Attributes:
        is_noted: the step under way.

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
        self._journal = Journal(path)
        self._has_left = self._is_off = self.is_noted = False
        self._order: torch.Tensor | None = None
        self._left: _Left | None = None
        self._own: Mapping[str, Any] = {}

    # ------------------------------------------------------------ for a successor

    def now(self, own: Mapping[str, Any] = MappingProxyType({})) -> States | None:
        """The generators at a draw; None: nobody can go on with them. ``own``: see States."""
        self._own = own
        return None if self._is_off else States.now(own)

    def note(self, states: States, order: torch.Tensor | None) -> None:
        """A step begins at a place.

        Args:
            states: at the place.
            order: the state of torch's generator before the first iterator of the step was made,
                from which a sampler without a seed has its order; None: the step has none.
        """
        self.is_noted, self._order = True, order
        self._leave(states, is_between=False)

    def step_ended(self) -> None:
        """A step that was noted has ended: what follows draws from here."""
        self.is_noted = False
        if not self._is_off:
            self._leave(States.now(self._own), is_between=True)

    def _leave(self, states: States, *, is_between: bool) -> None:
        life = self._life()
        if self._is_off or not life:
            return
        order = b"" if self._order is None else self._order.numpy().tobytes()
        head, self._has_left = [life, self._step(), is_between], True
        try:
            self._is_off = not self._journal.put(head, [order, *states.encode()])
        except OSError as error:
            self._is_off = True
            told.once(f"the random numbers of this worker are lost with it: {error}")

    # ------------------------------------------------------------ of a newcomer

    @contextmanager
    def joining(self, until: int, begin_again: Callable[[], None]) -> Iterator[None]:
        """This newcomer goes to its peers' place, with the state of step ``until``.

        Args:
            begin_again: begins the iterator once more that gives the first batch, if that is its
                first one: the predecessor may have died before it had begun it.
        """
        left = self._left = None if self._has_left else self._found(until)
        renew_random(self._rank, self._step())
        yield
        if left is not None:
            left.states.set(self._own)
            if left.is_between:
                begin_again()

    @contextmanager
    def ordering(self) -> Iterator[torch.Tensor | None]:
        """Inside, a sampler draws its order as the predecessor's did. Yields what that follows from
        (``LoaderIterator.order``), if it is known: then a loader must begin once more."""
        order = None if self._left is None else self._left.order
        before = torch.get_rng_state()
        if order is not None:
            torch.set_rng_state(order[: len(before)])
        yield order
        torch.set_rng_state(before)

    def _found(self, until: int) -> _Left | None:
        """What the predecessor has left of this life of the job, at ``until`` or before."""
        try:
            for (life, step, is_between), (order, *states) in reversed(read(self._path)):
                if life == self._life() and step <= until:
                    known = _tensor(order) if order else None
                    return _Left(is_between, known, States.decode(states))
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


def _tensor(body: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(body), dtype=torch.uint8)
