"""A loader's iterator goes to another batch, and reads no sample on its way."""

from __future__ import annotations

import gc
import itertools
import random
import weakref
from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
)

from ftrun.inject.zero_edit.loaders import OPEN, LoaderIterator, Order, follow, install
from ftrun.inject.zero_edit.patches import Patches
from ftrun.inject.zero_edit.randomness import Seeds, States


class Numbers(Dataset[int]):
    def __init__(self) -> None:
        self.read: list[int] = []

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        self.read.append(index)
        return index


def iterator_of(loader: Any) -> LoaderIterator:
    def make() -> Iterator[Any]:
        return DataLoader.__iter__(loader)

    return LoaderIterator(loader, make)


def batches(iterator: Any) -> list[list[int]]:
    return [batch.tolist() for batch in iterator]


@pytest.fixture(autouse=True)
def _no_garbage() -> None:
    """Else a worker of a loader, which is a fork, may collect what earlier tests have left.

    Seen: one ended threads of its parent's, which it has not, and came to no end.
    """
    gc.collect()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("drawn", [0, 1, 4])
def test_it_goes_to_a_batch(workers: int, drawn: int) -> None:
    plain = batches(DataLoader(Numbers(), 8, num_workers=workers))
    numbers = Numbers()
    iterator = iterator_of(DataLoader(numbers, 8, num_workers=workers))
    iterator.go_to(None, drawn)
    assert batches(iterator) == plain[drawn:]
    if not workers:
        assert numbers.read == [n for batch in plain[drawn:] for n in batch]


def test_it_goes_back() -> None:
    iterator = iterator_of(DataLoader(Numbers(), 8))
    next(iterator), next(iterator), next(iterator)
    iterator.go_to(None, 1)
    assert next(iterator).tolist() == list(range(8, 16))
    assert iterator.cursor.drawn == 2


def test_it_goes_to_another_epoch() -> None:
    numbers = Numbers()
    sampler: Any = DistributedSampler(numbers, num_replicas=2, rank=1, seed=3)
    loader = DataLoader(numbers, 4, sampler=sampler)
    sampler.set_epoch(2)
    wanted = batches(DataLoader.__iter__(loader))
    sampler.set_epoch(0)
    iterator = iterator_of(loader)
    next(iterator)
    iterator.go_to(2, 3)
    assert iterator.epoch == 2
    assert batches(iterator) == wanted[3:]


def test_open_iterators() -> None:
    loader = DataLoader(Numbers(), 8)
    made = [iterator_of(loader) for _ in range(2)]
    assert [it.number for it in made] == [0, 1]
    assert all(it in OPEN.all() for it in made)
    batches(made[0])
    assert made[0] in OPEN.all()  # its last batch may wait for its step
    made[0].is_fresh = False
    assert made[0] not in OPEN.all()
    assert len(made[1]) == 5
    assert isinstance(next(made[1]), torch.Tensor)


def test_an_iterator_that_the_script_has_dropped_lives_until_its_last_batch_is_trained_on() -> None:
    made = iterator_of(DataLoader(Numbers(), 8))
    batches(made)
    ended = weakref.ref(made)
    del made
    assert ended() in OPEN.all()
    OPEN.ended_ones.clear()
    assert ended() is None


def test_a_loop_is_known_again() -> None:
    loader = DataLoader(Numbers(), 8)
    for held in (None, 1):
        made = iterator_of(loader)
        assert made.cursor.held == held
        made.cursor.held = 1
        OPEN.learn(made)
        assert OPEN.has_learned(made)
        del made


class CountsOn(DistributedSampler[int]):
    """accelerate's sampler: it sets its next epoch itself, when its indices are drawn."""

    def __iter__(self) -> Iterator[int]:
        yield from super().__iter__()
        self.epoch += 1


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_that_counts_on(workers: int) -> None:
    numbers = Numbers()
    sampler: Any = CountsOn(numbers, num_replicas=2, rank=1, seed=3)
    loader = DataLoader(numbers, 4, sampler=sampler, num_workers=workers)
    iterator = iterator_of(loader)
    first = batches(iterator)
    assert (iterator.epoch, sampler.epoch) == (0, 1)
    iterator.go_to(0, 2)
    assert batches(iterator) == first[2:]


def test_the_step_under_way_is_moved() -> None:
    made = iterator_of(DataLoader(Numbers(), 8))
    next(made), next(made)
    made.cursor.begin()
    made.move_to(None, 2)  # the script holds two batches, of which one is trained on in this step
    assert next(made).tolist() == list(range(32, 40))


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(40))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterable_dataset_is_read_to_its_batch(workers: int) -> None:
    plain = batches(DataLoader(Stream(), 4, num_workers=workers))
    iterator = iterator_of(DataLoader(Stream(), 4, num_workers=workers))
    next(iterator)
    assert iterator.must_read
    assert iterator.go_to(None, 5) == 4
    assert batches(iterator) == plain[5:]
    assert iterator.go_to(None, 1) < 0
    assert batches(iterator) == plain[1:]


class InOrderOf:
    """A batch sampler of a script, whose order depends on an epoch that torch does not know."""

    def __init__(self) -> None:
        self.epoch = 0

    def __iter__(self) -> Iterator[list[int]]:
        for first in range(4):
            yield [first + 10 * self.epoch]

    def __len__(self) -> int:
        return 4


def test_a_sampler_whose_values_have_healed_is_asked_anew() -> None:
    sampler = InOrderOf()
    iterator = iterator_of(DataLoader(Numbers(), batch_sampler=sampler))
    facts = iterator.facts()
    assert iterator.facts() == facts
    sampler.epoch = 1
    assert iterator.facts() != facts
    assert iterator.go_to(None, 2, Order(before=facts)) == 2
    assert batches(iterator) == [[12], [13]]


class Advanced(DistributedSampler[int]):
    """The loop tells it how far it is; it begins there, and takes no epoch in between."""

    def __init__(self, data: Any) -> None:
        super().__init__(data, 2, 0, shuffle=True)
        self.progress, self._is_reset = 0, True

    def set_epoch(self, epoch: int) -> None:
        assert self._is_reset, "reset the progress first"
        self.epoch = epoch

    def advance(self, count: int) -> None:
        self.progress, self._is_reset = self.progress + count, False

    def reset(self) -> None:
        self.progress, self._is_reset = 0, True

    def __iter__(self) -> Iterator[int]:
        yield from [*super().__iter__()][self.progress :]


class Counting(Advanced):
    """It counts by itself what it gives."""

    def __iter__(self) -> Iterator[int]:
        for index in [*DistributedSampler.__iter__(self)][self.progress :]:
            self.progress += 1
            yield index

    def advance(self, count: int) -> None:
        pass


class Consumed(Advanced):
    """It gives whole batches, from the samples that were consumed on."""

    def __iter__(self) -> Iterator[Any]:
        order = [*DistributedSampler.__iter__(self)]
        yield from (order[x : x + 4] for x in range(self.progress, len(order), 4))


def loader_over(kind: type[Advanced], workers: int) -> tuple[Any, Any]:
    sampler = kind(Numbers())
    if kind is Consumed:
        return sampler, DataLoader(
            Numbers(), batch_sampler=cast("Any", sampler), num_workers=workers
        )
    return sampler, DataLoader(Numbers(), 4, sampler=sampler, num_workers=workers)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("resumed", [0, 8])
@pytest.mark.parametrize("is_reached", [True, False])
@pytest.mark.parametrize("kind", [Advanced, Counting, Consumed])
def test_a_sampler_that_keeps_its_own_progress_is_not_passed_over_twice(
    kind: type[Advanced], is_reached: bool, resumed: int, workers: int
) -> None:
    """``resumed``: at the newcomer, from a file of the script's; ``is_reached``: as a variable."""
    sampler, loader = loader_over(kind, workers)
    for epoch in range(2):
        sampler.reset()
        sampler.set_epoch(epoch)
        peer = iterator_of(loader)
        for _ in range(3):
            peer.note_facts()
            if peer.cursor.drawn < 2 or not epoch:
                next(peer)
                sampler.advance(4)
    assert {name for name, *_ in peer.moved} <= {"sampler.progress", "sampler._is_reset"} | {
        "batch_sampler.progress",
        "batch_sampler._is_reset",
        "batch_sampler.epoch",
    }
    other, its_loader = loader_over(kind, workers)
    other.progress = resumed
    newcomer = iterator_of(its_loader)
    before = newcomer.facts()
    if is_reached:
        vars(other).update({x: y for x, y in vars(sampler).items() if type(y) in (int, bool)})
    newcomer.go_to(peer.epoch, 2, Order(peer.moved, before))
    assert (other.progress, other._is_reset) == (sampler.progress, sampler._is_reset)
    assert batches(newcomer) == batches(peer)


def test_enumerate_counts_on_from_where_its_loader_was_moved() -> None:
    first, other = (iterator_of(DataLoader(Numbers(), 2)) for _ in range(2))
    pairs, alone = enumerate(zip(first, other, strict=True)), enumerate([first, other])
    assert next(pairs)[0] == 0 and next(alone) == (0, first)
    follow([(first, first.move_to(None, 4)), (other, other.move_to(None, 4))])
    assert next(pairs)[0] == 5, "once, although two loaders were moved"

    assert next(alone) == (1, other), "it goes over them, and does not draw"


def test_enumerate_over_an_iterator_of_the_scripts_counts_on() -> None:
    class Prefetcher:
        def __init__(self, loader: LoaderIterator) -> None:
            self.loader, self.ready = loader, next(loader)

        def __iter__(self) -> Prefetcher:
            return self

        def __next__(self) -> Any:
            ready, self.ready = self.ready, next(self.loader)
            return ready

    iterator = iterator_of(DataLoader(Numbers(), 2))
    pairs = enumerate(map(str, Prefetcher(iterator)))
    assert next(pairs)[0] == 0
    follow([(iterator, 7)])
    assert next(pairs)[0] == 8


def test_an_islice_counts_on_too() -> None:
    iterator = iterator_of(DataLoader(Numbers(), 2))
    pairs = enumerate(itertools.islice(iterator, 8))
    next(pairs)
    follow([(iterator, iterator.go_to(None, 6))])
    assert [number for number, _ in pairs] == [6, 7]


class Shard(BatchSampler):
    """As accelerate's, which knows the batches of all ranks."""

    def __init__(self, inner: Any) -> None:
        self.batch_sampler = inner

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batch_sampler)


def test_the_order_of_a_sampler_in_others() -> None:
    def loader(seed: int) -> Any:
        own = torch.Generator().manual_seed(seed)
        inner: Any = DataLoader(Numbers(), 4, shuffle=True, generator=own)
        return DataLoader(Numbers(), batch_sampler=Shard(inner.batch_sampler))

    predecessor, newcomer = iterator_of(loader(3)), iterator_of(loader(4))
    begun = Seeds.decode(predecessor.seeds(0, 0))
    whole = batches(predecessor)
    next(newcomer)
    newcomer.go_to(None, 3, Order(seeds=begun))
    assert batches(newcomer) == whole[3:]


class Drawn(Dataset[float]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> float:
        return random.random() + float(torch.rand(()))


def test_batches_that_a_loop_has_drawn_ahead_are_made_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(OPEN, "keeps_seeds", True)
    predecessor = iterator_of(DataLoader(Drawn(), 2, shuffle=True))
    drawn = []
    for _ in range(4):
        drawn.append(next(predecessor))
        torch.rand(3), random.random()  # as a model and a script do
    seeds = Seeds.decode(predecessor.seeds(2, 4))  # a step that begins with number 2
    torch.manual_seed(9)
    newcomer = iterator_of(DataLoader(Drawn(), 2, shuffle=True))
    newcomer.go_to(None, 2, Order(seeds=seeds))
    before = States.now()
    assert [next(newcomer).tolist() for _ in range(2)] == [x.tolist() for x in drawn[2:]]
    assert States.now() == before
    assert newcomer.seeds(2, 4) == predecessor.seeds(2, 4)


def test_pythons_own_enumerate_counts_on_too() -> None:
    """As in ``for i, batch in tqdm(enumerate(loader)):``."""
    iterator = iterator_of(DataLoader(Numbers(), 2))
    first, second = enumerate(iterator), enumerate(iterator, 10)
    assert next(first)[0] == 0 and next(second)[0] == 10
    follow([(iterator, iterator.move_to(None, 4))])
    assert [next(x)[0] for x in (first, second)] == [5, 15]
    assert iterator.cursor.drawn == 8


def test_pythons_own_enumerate_counts_on_in_the_middle_of_a_draw() -> None:
    iterator = iterator_of(DataLoader(Numbers(), 2))
    pairs = enumerate(iterator)

    def before(drawn: LoaderIterator) -> None:
        if drawn is iterator and not drawn.cursor.drawn:
            follow([(iterator, iterator.go_to(None, 5))])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OPEN, "before_draw", before)
        found = [(index, batch.tolist()) for index, batch in pairs]
    assert found[0] == (5, [10, 11]) and len(found) == 15


def test_what_is_drawn_with_gradients_off_gives_no_training_batch() -> None:
    """Seen: rank 0 evaluates a module beside, on a loader without an end, and newcomers were set
    to the place of that one."""
    training, evaluation = iterator_of(DataLoader(Numbers(), 8)), iterator_of(DataLoader(Numbers()))
    with torch.no_grad():
        next(evaluation)
    _ = next(training)  # a batch that is thrown away is none
    assert (training.is_fresh, evaluation.is_fresh) == (True, False)
    training.is_training = True
    with torch.no_grad():
        training.is_fresh = False
        _ = next(training)
    assert training.is_fresh


def test_what_a_loop_holds_while_it_evaluates_is_for_training() -> None:
    """Seen: rank 0 was taken to be a batch behind its peers, which do not evaluate."""
    held, evaluation = iterator_of(DataLoader(Numbers(), 8)), iterator_of(DataLoader(Numbers()))
    _ = next(held)
    OPEN.evaluated()
    assert not held.is_fresh  # it was drawn last
    _ = next(held)
    next(evaluation)
    OPEN.evaluated()
    assert (held.is_fresh, evaluation.is_fresh) == (True, False)
    held.is_training = True
    _ = next(held)
    OPEN.evaluated()
    assert held.is_fresh


def test_pythons_own_enumerate_over_a_generator_counts_its_items() -> None:
    """One iterator for all epochs, and ``enumerate`` over a generator for each (YOLOv5)."""
    iterator = iterator_of(DataLoader(Numbers(), 2))
    begun = 0

    def epoch() -> Iterator[Any]:
        for _ in range(5):
            yield next(iterator)

    def before(drawn: LoaderIterator) -> None:
        if drawn is iterator and begun and not drawn.cursor.drawn:
            follow([(iterator, iterator.go_to(None, 12))], 2)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OPEN, "before_draw", before)
        begun = 1
        index, batch = next(enumerate(epoch()))
    assert (index, batch.tolist()) == (2, [24, 25])


def test_a_loader_with_iterators_of_its_own_is_followed() -> None:
    """Seen: torchdata's, which asks nothing of torch's."""
    patches = Patches()
    before = OPEN.thread
    install(patches, lambda loader: None)
    try:

        class Own(DataLoader[int]):
            def __iter__(self) -> Any:
                return iter([torch.tensor([n]) for n in range(4)])

        class Shown(DataLoader[int]):
            def __iter__(self) -> Any:
                yield from super().__iter__()

        own, shown = iter(Own(Numbers())), iter(Shown(Numbers(), 20))
        assert type(own) is LoaderIterator and type(shown) is not LoaderIterator
        own.go_to(None, 3)
        assert batches(own) == [[3]]
        own.go_to(None, 2)
        assert batches(own) == [[2], [3]]
        count = OPEN.count
        assert batches(shown) == [[*range(20)], [*range(20, 40)]]
        assert OPEN.count == count + 1

        class Around(DataLoader[int]):
            """Seen: RecBole's is another one but in its own ``__iter__``."""

            begins = False

            def __iter__(self) -> Any:
                self.begins = True
                try:
                    return super().__iter__()
                finally:
                    self.begins = False

            def __getattribute__(self, name: str) -> Any:
                if name == "dataset" and not self.begins:
                    return "another data set"
                return super().__getattribute__(name)

        class Deeper(Around):
            def __iter__(self) -> Any:
                return super().__iter__()

        for kind in (Around, Deeper):
            around, count = iter(kind(Numbers(), 20)), OPEN.count
            assert type(around) is LoaderIterator
            assert batches(around) == [[*range(20)], [*range(20, 40)]]
            around.go_to(None, 1)
            assert (batches(around), OPEN.count) == ([[*range(20, 40)]], count)

        class Drawn(DataLoader[int]):
            def __iter__(self) -> Any:
                self.seed = int(torch.randint(1 << 40, ()))
                return iter([torch.tensor([self.seed])])

        drawn = Drawn(Numbers(), shuffle=True)
        own = iter(drawn)
        first = drawn.seed
        next(own), iter(drawn)
        own.go_to(None, 0, Order(seeds=Seeds(own.begun)))
        assert (drawn.seed, batches(own)) == (first, [[first]])
    finally:
        patches.undo()
        OPEN.thread = before
    assert "__init_subclass__" not in vars(DataLoader)
