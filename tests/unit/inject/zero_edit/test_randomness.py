"""A newcomer's random numbers are those that its predecessor would have drawn, or its own."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler

from ftrun.inject.zero_edit.loaders import LoaderIterator, Order
from ftrun.inject.zero_edit.place import NO_DETAILS, Details, Place
from ftrun.inject.zero_edit.randomness import (
    SHOWN_BYTES_MAX,
    Randomness,
    Seeds,
    States,
    renew_random,
)
from ftrun.inject.zero_edit.values import generators


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that has not looked at numpy's generator; its generators are put back."""
    monkeypatch.setattr(generators.NUMPY, "_memory", b"")
    before = States.now()
    yield
    before.set()


def drawn() -> tuple[float, ...]:
    numpy = (float(np.random.rand()), float(np.random.randn()))
    return (random.random(), random.gauss(0, 1), *numpy, float(torch.rand(())))


def seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def test_a_newcomer_draws_numbers_of_its_own() -> None:
    found = []
    for rank, step in ((0, 0), (1, 0), (1, 7), (40_000, 123_456)):
        seed(1)
        at_first = drawn()
        renew_random(rank, step)
        found += [at_first, drawn()]
    for kind in zip(*found, strict=True):
        assert len(set(kind)) == 5, "the script's own seed, and four others"


def test_states_come_back_from_bytes_in_the_middle_of_a_pair() -> None:
    seed(3)
    drawn()  # both normal distributions draw pairs: one of each is kept
    parts = States.now().encode()
    expected = drawn()
    seed(4)
    States.decode(parts).set()
    assert drawn() == expected


@pytest.mark.parametrize(
    ("name", "draws"),
    [
        ("numpy", (np.random.rand, np.random.randn, np.random.randn)),
        ("python", (random.random, lambda: random.gauss(0, 1), lambda: random.gauss(0, 1))),
    ],
)
def test_a_global_one_is_read_again_once_it_was_drawn_from(
    name: str, draws: tuple[Callable[[], float], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    seed(5)
    monkeypatch.setattr(generators.NUMPY, "_memory", b"")
    now = States.now().of[name]
    assert States.now().of[name] is now
    for draw in draws:  # the second number of a pair is kept beside the memory that they come from
        draw()
        before, now = now, States.now().of[name]
        assert now != before


def test_a_global_generator_of_another_kind_goes_on_too() -> None:
    numpy: Any = np.random  # its stubs lack these
    before = numpy.get_bit_generator()
    numpy.set_bit_generator(numpy.PCG64(1))
    try:
        states = States.now()
        expected = drawn()
        assert drawn() != expected
        states.set()
        assert drawn() == expected
    finally:
        numpy.set_bit_generator(before)


def test_an_older_numpy_has_one_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(np.random, "get_bit_generator")
    seed(5)
    states = States.now()
    expected = drawn()
    states.set()
    assert drawn() == expected


class Worker:
    """One life of a slot."""

    def __init__(self, path: Path, step: int = 0, life: str = "life") -> None:
        self.step = step
        script: Any = SimpleNamespace(
            file=lambda _: path,
            mates=SimpleNamespace(rank=1),
            committed=lambda: self.step,
            life=lambda: life,
        )
        self.made = Randomness(script)

    def trains(self, steps: int, *, iterator: LoaderIterator | None = None) -> list[float]:
        """What a script draws in its steps."""
        found = []
        for _ in range(steps):
            states = self.made.now()
            assert states is not None
            seeds = [] if iterator is None else [(iterator.name, iterator.seeds(0, 0))]
            self.made.note(states, seeds)
            found.append(drawn()[0])
            self.step += 1
            assert self.made.is_noted
            self.made.step_ended()
        return found

    def joins(self, details: Details = NO_DETAILS) -> None:
        place = Place(step=self.step, details=lambda: details)
        with self.made.joining(place, lambda _: None):
            pass


def test_a_successor_goes_on_at_each_step(tmp_path: Path) -> None:
    """Also when the file is full several times."""
    seed(1)
    whole = Worker(tmp_path / "whole").trains(100)
    seed(1)
    assert Worker(tmp_path / "r").trains(80) == whole[:80]
    seed(7)
    newcomer = Worker(tmp_path / "r", step=80)
    newcomer.joins()
    assert newcomer.trains(20) == whole[80:]


def test_what_was_noted_before_the_first_step_is_left_when_that_has_begun(tmp_path: Path) -> None:
    """Seen: who died in the first turn of several steps left no numbers."""
    lives = iter(["", "life", "life", "life", "life"])
    worker = Worker(tmp_path / "r")
    script: Any = worker.made._script
    script.life = lambda: next(lives)
    seed(1)
    worker.made.note(States.now(), ())
    expected = drawn()
    worker.made.begins()
    newcomer = Worker(tmp_path / "r")
    newcomer.joins()
    assert drawn() == expected


@pytest.mark.parametrize("place", ["of the turn", "of the next one"])
@pytest.mark.parametrize("reduces", [True, False])
def test_each_step_of_a_turn_leaves_its_numbers(tmp_path: Path, place: str, reduces: bool) -> None:
    """Also the last one, if it dies when its peers have its gradients; also in a full file."""
    for steps in range(1, 40):
        worker = Worker(tmp_path / "r")
        seed(steps)
        worker.trains(1)  # of an older turn
        worker.made.note(States.now(), ())
        at_place = drawn()
        for step in range(steps):
            drawn()
            worker.made.step_ended(reduces=True)
            if step < steps - 1 or not reduces:
                worker.step += 1
                worker.made.step_ended()
        expected = drawn()
        newcomer = Worker(tmp_path / "r", 1 if place == "of the turn" else 1 + steps)
        newcomer.joins()
        assert drawn() == (at_place if place == "of the turn" else expected)


def test_one_whose_peers_have_gone_on_draws_what_nobody_has_drawn(tmp_path: Path) -> None:
    seed(1)
    before = Worker(tmp_path / "r").trains(5)
    newcomer = Worker(tmp_path / "r", step=50)
    newcomer.joins()
    assert set(newcomer.trains(5)).isdisjoint(before)


def dies_after(steps: int, peers_steps: int, path: Path, *, alike: bool = True) -> Details:
    """A worker and its peer train, and the worker dies; what the peer shows at its last place."""
    seed(1)
    Worker(path / "r").trains(steps)
    seed(1 if alike else 2)
    peer = Worker(path / "peer")
    peer.trains(peers_steps - 1)
    states = peer.made.now()
    assert states is not None
    peer.made.note(states, ())
    return peer.made.shown(lambda: NO_DETAILS)()


@pytest.mark.parametrize("alike", [True, False])
def test_where_all_have_one_seed_it_goes_on_as_the_peers_that_have_gone_on(
    tmp_path: Path, alike: bool
) -> None:
    """Seen in a script that shuffles its data by one seed on all ranks: after an evaluation that
    its predecessor had not come to, one rank drew other numbers than its peers for good."""
    seed(1)
    whole = Worker(tmp_path / "whole").trains(12)
    details = dies_after(5, 7, tmp_path, alike=alike)
    newcomer = Worker(tmp_path / "r", step=6)
    newcomer.joins(details)
    assert newcomer.trains(6) == (whole[6:] if alike else whole[5:11])


def test_at_the_place_where_it_died_it_goes_on_as_its_predecessor(tmp_path: Path) -> None:
    details = dies_after(5, 6, tmp_path)
    seed(3)
    worker = Worker(tmp_path / "r", step=5)
    states = worker.made.now()
    assert states is not None
    worker.made.note(states, ())
    expected = drawn()
    newcomer = Worker(tmp_path / "r", step=5)
    newcomer.joins(details)
    assert drawn() == expected


def test_states_that_are_too_large_are_not_shown(tmp_path: Path) -> None:
    worker = Worker(tmp_path / "r")
    worker.made.note(States({"own": b"x" * SHOWN_BYTES_MAX}), ())
    assert worker.made.shown(lambda: NO_DETAILS)() is NO_DETAILS


def test_another_life_of_the_job_and_later_steps_are_not_taken(tmp_path: Path) -> None:
    found = []
    for step, life in ((5, "another"), (-1, "life")):
        seed(1)
        Worker(tmp_path / "r").trains(5)
        newcomer = Worker(tmp_path / "r", step, life)
        newcomer.joins()
        found.append(drawn())
        renew_random(1, step)
        assert drawn() == found[-1], "a seed of its own"


def test_a_full_disk_costs_the_numbers_and_no_step(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    worker = Worker(tmp_path / "nowhere" / "r")
    worker.made.note(States.now(), ())
    worker.made.step_ended()
    assert worker.made.now() is None
    assert "if this worker dies, its random numbers are lost" in capfd.readouterr().err


def test_what_is_no_record_is_no_predecessor(tmp_path: Path) -> None:
    from ftrun.inject.zero_edit.values.journal import Journal

    for bodies in ([], [b"x"], [b"", b"x" * 30]):
        for names in ([], ["a loader"]):
            Journal(tmp_path / "r").begin(["life", 1, False, names], bodies)
            Worker(tmp_path / "r", step=5).joins()
        Journal(tmp_path / "r").begin(["life", 1, False], bodies)
        Worker(tmp_path / "r", step=5).joins()


class OfAPackage(DistributedSampler[int]):
    """Shows no generator, and draws from torch's global one: as Lightning's around a sampler."""

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(24).tolist())


def loader_of(sampler: Any = None) -> LoaderIterator:
    numbers: Any = list(range(24))
    loader: Any = DataLoader(numbers, 2, shuffle=sampler is None, sampler=sampler)
    return LoaderIterator(loader, lambda: DataLoader.__iter__(loader))


@pytest.mark.parametrize(
    "sampler", [None, OfAPackage(cast(Any, [0] * 24), 1, 0)], ids=["torch's", "a package's"]
)
def test_a_sampler_without_a_seed_has_the_order_of_the_predecessor(
    tmp_path: Path, sampler: Any
) -> None:
    seed(1)
    iterator = loader_of(sampler)
    assert iterator.begun
    batches = [next(iterator).tolist() for _ in range(5)]
    worker = Worker(tmp_path / "r", step=5)
    worker.trains(1, iterator=iterator)
    rest = [batch.tolist() for batch in iterator]
    assert rest
    for anew in (False, True):
        seed(8)
        other = loader_of(sampler)
        if anew:
            assert [next(other).tolist() for _ in range(5)] != batches
        newcomer = Worker(tmp_path / "r", step=6)
        with newcomer.made.joining(Place(step=6), lambda _: None):
            seeds = newcomer.made.seeds("of another name")["of another name"]
            assert seeds.begun == iterator.begun
            other.go_to(None, 5, Order(seeds=seeds))
        assert [batch.tolist() for batch in other] == rest


def test_between_two_steps_the_next_iterator_is_begun_again(tmp_path: Path) -> None:
    seed(1)
    Worker(tmp_path / "r").trains(3)
    order = [batch.tolist() for batch in loader_of()]
    seed(9)
    iterator = loader_of()
    newcomer = Worker(tmp_path / "r", step=3)
    with newcomer.made.joining(Place(step=3), iterator.begin_again):
        pass
    assert [batch.tolist() for batch in iterator] == order


@pytest.mark.parametrize("draws_seed", [False, True], ids=["of the sampler", "of both"])
@pytest.mark.parametrize("is_over", [False, True], ids=["at its last batch", "ended"])
def test_an_iteration_that_was_not_brought_to_its_end_is(draws_seed: bool, is_over: bool) -> None:
    """Seen with accelerate, in a death between two epochs: the newcomer's next order was not that
    of its peers, because torch's RandomSampler draws once more at its end."""

    def begin() -> tuple[Any, torch.Generator]:
        generator = torch.Generator().manual_seed(3)
        data: Any = list(range(8))
        of_loader = generator if draws_seed else None
        sampler = RandomSampler(data, generator=generator)
        loader = DataLoader(data, 2, sampler=sampler, generator=of_loader)
        return loader, generator

    def iterator_of(loader: Any) -> LoaderIterator:
        return LoaderIterator(loader, lambda: DataLoader.__iter__(loader))

    loader, generator = begin()
    first = iterator_of(loader)
    seeds = Seeds(first.begun)
    for _ in range(4):
        next(first)
    if is_over:
        assert next(first, None) is None
    left = generator.get_state()
    assert next(first, None) is None
    order = [x.tolist() for x in iterator_of(loader)]
    other, own = begin()
    newcomer = iterator_of(other)
    own.set_state(left)
    newcomer.begin_again(seeds)
    assert [x.tolist() for x in newcomer] == order


def test_a_sampler_with_a_generator_of_its_own_has_the_order_of_the_predecessor() -> None:
    def begin() -> tuple[Any, LoaderIterator]:
        generator = torch.Generator().manual_seed(3)
        loader: Any = DataLoader(list(range(8)), 2, shuffle=True, generator=generator)  # type: ignore[arg-type]
        return loader, LoaderIterator(loader, lambda: DataLoader.__iter__(loader))

    loader, _ = begin()
    second = LoaderIterator(loader, lambda: DataLoader.__iter__(loader))
    _, newcomer = begin()
    newcomer.go_to(None, 0, Order(seeds=Seeds(second.begun)))
    assert [x.tolist() for x in newcomer] == [x.tolist() for x in second]


def test_a_sampler_with_a_seed_needs_nobodys_order() -> None:
    plain: Any = DataLoader(list(range(8)), 2)  # type: ignore[arg-type]
    assert not LoaderIterator(plain, lambda: DataLoader.__iter__(plain)).begun
