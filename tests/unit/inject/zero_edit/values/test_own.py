"""Tensors that a worker leaves to its successor."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from ftrun.base import clock
from ftrun.inject.zero_edit.values.attributes import Buffers
from ftrun.inject.zero_edit.values.own import LOOK_EVERY_S, Own
from ftrun.inject.zero_edit.values.tensors import APART, CHANGED, MODULES, UNITS, Tensors
from ftrun.snapshots import own_memory
from ftrun.snapshots.area import NONE, Area
from ftrun.snapshots.own_memory import OwnMemory, area_here

ROOM = 4 << 20
LATER = 100


@pytest.fixture
def area(monkeypatch: pytest.MonkeyPatch) -> Iterator[Area]:
    launcher = OwnMemory(lambda: ROOM)
    monkeypatch.setenv(own_memory.VARIABLE, launcher.place("0", 0))
    found = area_here()
    assert found is not None
    yield found
    launcher.close()


def draw(tensors: Tensors, mean: list[torch.Tensor]) -> None:
    """The script draws in a function with one variable that counts."""
    assert mean
    tensors.look([x for x in tensors._walk.walk([sys._getframe()]) if x.units])


class Rank:
    """One with a module and a unit, at a step."""

    def __init__(
        self,
        area: Area | None,
        *,
        is_exact: bool = True,
        life: str = "a",
        buffers: bool = False,
    ) -> None:
        torch.manual_seed(0)
        self.net, self.mean, self.step = nn.Linear(2, 1), [torch.zeros(3)], 0
        self.tensors = Tensors(lambda: (), {"net 1": self.net}.copy)
        self.buffers = {"mean": torch.zeros(())}
        if buffers:
            known = {"buffers of Net (a.py:1) 1": Buffers(self.buffers)}
            self.tensors = Tensors(lambda: (), buffers=known.copy)
        self.tensors.step = lambda: self.step
        script: Any = SimpleNamespace(
            tensors=self.tensors,
            carried=SimpleNamespace(life=life),
            trial=object() if is_exact else None,
            mates=SimpleNamespace(rank=0, size=1),
        )
        self.own = Own(script, lambda: area)
        mean = self.mean
        for _ in range(2):
            draw(self.tensors, mean)
        self.tensors.begin()

    def goes_on(self, value: float) -> None:
        with torch.no_grad():
            self.net.weight.fill_(value)
            self.mean[0].fill_(value)
        self.step += 1
        draw(self.tensors, self.mean)


def test_a_successor_finds_the_newest(area: Area) -> None:
    rank = Rank(area)
    assert rank.own.find(LATER) is None
    for value in (1.0, 2.0):
        rank.goes_on(value)
        rank.own.leave(rank.step)
    assert rank.own.find(LATER) is None, "it is its own"
    found = Rank(area).own.find(LATER)
    assert found is not None and found.step == 2
    assert found.modules["net 1"]["value"]["weight"].tolist() == [[2.0, 2.0]]
    (unit,) = found.units.values()
    assert unit["value"][0].tolist() == [2.0] * 3 and unit[CHANGED] == 2


def test_a_copy_of_a_step_that_its_peers_have_not_begun_does_not_count(area: Area) -> None:
    """Seen: who died in the next step already left its successor a state one step ahead."""
    rank = Rank(area)
    for value in (1.0, 2.0):
        rank.goes_on(value)
        for _ in range(3):  # before the batch, at its place, before a file
            rank.own.leave(rank.step)
    found = Rank(area).own.find(1)
    assert found is not None and found.step == 1
    assert found.modules["net 1"]["value"]["weight"].tolist() == [[1.0, 1.0]]
    assert Rank(area).own.find(0) is None


def test_what_another_life_of_the_job_has_left_does_not_count(area: Area) -> None:
    rank = Rank(area)
    rank.goes_on(1.0)
    rank.own.leave(1)
    assert Rank(area, life="b").own.find(LATER) is None
    assert Rank(None).own.find(LATER) is None


def test_copies_take_a_share_of_the_time(area: Area, monkeypatch: pytest.MonkeyPatch) -> None:
    times: Iterator[float] = chain([0.0, 0.5], repeat(0.5))  # another thread may look too
    monkeypatch.setattr(clock, "now", lambda: next(times))
    rank = Rank(area, is_exact=False)
    rank.goes_on(1.0)
    rank.own.leave(1)
    for now, number in ((10.0, 0), (50.0, 0), (50.6, 1)):
        times = repeat(now)
        rank.goes_on(now)
        rank.own.leave(rank.step)
        assert area.newest == number, now


def test_without_any_it_looks_seldom(area: Area, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(area, is_exact=False)
    monkeypatch.setattr(clock, "now", lambda: 1.0)
    rank.own.leave(0)
    monkeypatch.setattr(rank.tensors, "own_state", lambda: pytest.fail("it is too soon"))
    monkeypatch.setattr(clock, "now", lambda: 0.9 + LOOK_EVERY_S)
    rank.own.leave(0)
    assert area.newest < 0


def test_too_much_is_named_once(area: Area, capfd: pytest.CaptureFixture[str]) -> None:
    rank = Rank(area)
    rank.net = rank.tensors._beside()["net 1"] = nn.Linear(1 << 19, 1)  # type: ignore[index]
    rank.tensors._beside = {"net 1": rank.net}.copy
    for _ in range(2):
        rank.goes_on(1.0)
        rank.own.leave(rank.step)
    text = capfd.readouterr().err
    assert text.count("this worker has 2.1 MB in tensors that its peers lack") == 2
    assert text.count("those outside modules are not") == 1
    assert text.count("those in modules beside the trained ones are not") == 1
    assert Rank(area).own.find(LATER) is None


def test_where_data_are_too_much_modules_are_left(area: Area) -> None:
    rank = Rank(area)
    rank.mean = [torch.zeros(1 << 19)]
    for value in (1.0, 2.0):
        rank.goes_on(value)
        draw(rank.tensors, rank.mean)
    rank.own.leave(rank.step)
    found = Rank(area).own.find(LATER)
    assert found is not None and found.modules and not found.units


def healed(newcomer: Rank, tree: dict[str, Any]) -> Tensors:
    newcomer.tensors.left = newcomer.own.find(LATER)
    frame = sys._getframe()
    newcomer.tensors._walk.frames = lambda: [frame]  # type: ignore[method-assign]
    newcomer.tensors.load(tree)
    return newcomer.tensors


def test_what_no_peer_has_is_the_predecessors(area: Area) -> None:
    rank, newcomer = Rank(area), Rank(area)
    rank.goes_on(3.0)
    rank.own.leave(1)
    tensors = healed(newcomer, {UNITS: {}, MODULES: {}})
    assert newcomer.net.weight.tolist() == [[3.0, 3.0]]
    assert tensors.own_words[0].startswith("Linear") or tensors.own_words[0] == "net"
    assert not [x for x in tensors.lacking if "peers lack" in x]


def test_a_module_that_is_alike_everywhere_is_the_donors(area: Area) -> None:
    rank, newcomer, donor = Rank(area), Rank(area), Rank(None)
    for one, value in ((rank, 3.0), (donor, 4.0)):
        one.goes_on(value)
    rank.own.leave(1)
    healed(newcomer, {**donor.tensors.state(), UNITS: {}})
    assert newcomer.net.weight.tolist() == [[4.0, 4.0]]
    newcomer.tensors.unlike = frozenset({"net 1"})
    healed(newcomer, {**donor.tensors.state(), UNITS: {}})
    assert newcomer.net.weight.tolist() == [[3.0, 3.0]]
    assert newcomer.tensors.lacking == ["mean"]  # which has no frame here


@pytest.mark.parametrize(
    ("at", "apart", "own"),
    [(None, 0, True), (1, 0, True), (2, 0, False), (2, 1, True), (3, 0, False), (3, 1, True)],
)
def test_whose_unit_counts(area: Area, at: int | None, apart: int, own: bool) -> None:
    rank, newcomer = Rank(area), Rank(area)
    rank.step = 1
    rank.goes_on(2.0)
    rank.tensors.apart = frozenset(rank.tensors.digests()) if apart else frozenset()
    rank.own.leave(2)
    newcomer.tensors.left = newcomer.own.find(LATER)
    assert newcomer.tensors.left is not None
    (name,) = newcomer.tensors.left.units
    theirs = {"value": [torch.zeros(3)], "device": "cpu", CHANGED: at}
    found = newcomer.tensors._own_units({} if at is None else {name: theirs}, frozenset())
    assert list(found) == ([name] if own else [])


@pytest.mark.parametrize(("is_left", "is_own"), [(True, False), (False, False), (False, True)])
def test_buffers_that_nobody_broadcasts(area: Area, is_left: bool, is_own: bool) -> None:
    """They are the predecessor's, or named, unless it is the predecessor's state."""
    rank, newcomer, donor = (Rank(x, buffers=True) for x in (area, area, None))
    for one, value in ((rank, 3.0), (donor, 4.0), (newcomer, 4.0)):
        one.step += 1
        one.buffers["mean"].fill_(value)
    donor.tensors.apart = frozenset(donor.tensors.digests())
    if is_left:
        rank.own.leave(1)
    newcomer.tensors.left = newcomer.own.find(LATER)
    newcomer.tensors.load(donor.tensors.state(), is_own=is_own)
    assert newcomer.buffers["mean"].item() == (3.0 if is_left else 4.0)
    named = ["the buffers of Net (a.py:1) of this rank, which were its own"]
    assert newcomer.tensors.lacking == ([] if is_left or is_own else named)
    assert newcomer.tensors.own_words == (["buffers of Net (a.py:1)"] if is_left else [])


def test_buffers_that_are_alike_everywhere_are_the_donors(area: Area) -> None:
    newcomer, donor = Rank(area, buffers=True), Rank(None, buffers=True)
    donor.buffers["mean"].fill_(4.0)
    newcomer.tensors.load(donor.tensors.state())
    may_be = "the buffers of Net (a.py:1) of this rank, which may have been its own"
    assert newcomer.tensors.lacking == [may_be]
    donor.tensors.shared = frozenset(donor.tensors.digests())
    newcomer.tensors.load(donor.tensors.state())
    assert not newcomer.tensors.lacking


class Store(dict[str, bytes]):
    """As torch's."""

    def set(self, key: str, value: str) -> None:
        self[key] = value.encode()

    def check(self, keys: Sequence[str]) -> bool:
        return all(key in self for key in keys)


def test_what_all_ranks_have_alike_is_left_no_more(area: Area) -> None:
    ranks, store = (Rank(area, is_exact=False), Rank(area, is_exact=False)), Store()
    for number, one in enumerate(ranks):
        vars(one.own).update(_store=store, _ranks=[number, 1 - number])
    for one in ranks:
        one.goes_on(1.0)
        one.own.leave(1, compares=False)  # as where one of them writes a file
    assert not store
    for one in ranks:
        one.own.leave(1)
    assert area.newest != NONE
    for one in ranks:
        one.own._hear()
        assert one.tensors.shared == frozenset(one.tensors.digests()) and not one.tensors.apart
    tree = ranks[0].tensors.own_state(ranks[0].tensors.shared)
    assert tree == {MODULES: {}, UNITS: {}}
    for one in ranks:
        one.own._due_at = 0.0
        one.own.leave(1)
    assert area.newest == NONE  # else a successor had what its peers have changed since
    ranks[0].goes_on(2.0)  # the other one does not
    ranks[1].step += 1
    for one in ranks:
        one.own.leave(2)
    for one in ranks:
        one.own._hear()
        assert not one.tensors.shared
        tree = one.tensors.own_state(one.tensors.shared)
        assert all(x[APART] for of in tree.values() for x in of.values()) and tree[MODULES]


def test_what_another_rank_alone_has_changed_is_not_taken_from_it(area: Area) -> None:
    """Seen: the successor of rank 1 got what rank 0 alone had, as its own that was lost."""
    ranks, store = (Rank(None), Rank(area)), Store()
    for number, one in enumerate(ranks):
        vars(one.own).update(_store=store, _ranks=[number, 1 - number])
    ranks[0].goes_on(2.0)
    ranks[1].step += 1
    ranks[0].own._area = area
    for one in ranks:
        one.own.leave(1)
    ranks[0].own._hear()
    for number, kept in enumerate(("2.0", "0.0")):
        newcomer = Rank(None)
        newcomer.net.weight.data.zero_()
        newcomer.tensors.rank = str(number)
        newcomer.tensors.load({**ranks[0].tensors.state(), UNITS: {}})
        assert str(newcomer.net.weight[0, 0].item()) == kept
        assert any("was its own" in x for x in newcomer.tensors.lacking) is (number == 0)


def test_a_rank_that_does_not_tell_is_not_waited_for(area: Area) -> None:
    rank, store = Rank(area), Store()
    vars(rank.own).update(_store=store, _ranks=[0, 1])
    rank.goes_on(1.0)
    rank.own.leave(1)
    assert [*store] == ["0@1"]
    found = Rank(area).own.find(LATER)
    assert found is not None and not found.modules["net 1"][APART]


def test_a_store_that_is_gone_is_asked_once(area: Area) -> None:
    asked: list[str] = []

    class Gone(Store):
        def set(self, key: str, value: str) -> None:
            asked.append(key)
            raise RuntimeError("the connection is closed")

    rank = Rank(area)
    vars(rank.own).update(_store=Gone(), _ranks=[0, 1])
    for value in (1.0, 2.0):
        rank.goes_on(value)
        rank.own.leave(rank.step)
    assert asked == ["0@1"] and area.newest == 1
