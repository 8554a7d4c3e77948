"""Whose value a newcomer takes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from ftrun.inject.zero_edit.frames import Spot, spot_of
from ftrun.inject.zero_edit.place import Details, LoaderPlace, Place, batches_at
from ftrun.inject.zero_edit.values import counters
from ftrun.inject.zero_edit.values.counters import Counters
from ftrun.inject.zero_edit.values.frameworks import Frameworks
from ftrun.inject.zero_edit.values.histories import DIGEST
from ftrun.inject.zero_edit.values.legacy import Left, left_at
from ftrun.inject.zero_edit.values.sources import Sources, Taken
from ftrun.inject.zero_edit.values.writing import write_values
from tests.unit.inject.zero_edit.values.counted import counters_of

Script = Callable[[], FrameType]


class Replica:
    """A script of one frame, whose variables are ``names``."""

    def __init__(self, directory: Path, slot: str, life: str = "life", **names: Any) -> None:
        self.names, self.step = {"steps": 0, "best": None, "log": [], **names}, 0
        self.counters: Counters = counters_of(
            Frameworks(), directory, lambda: self.step, life, slot
        )
        self.in_frame(
            lambda frame: self.counters.begin(self.counters.read(self.counters.walk.walk([frame])))
        )

    def in_frame(self, call: Callable[[FrameType], Any]) -> Any:
        calls = [call]

        def main(steps: int, best: Any, log: Any) -> tuple[Any, ...]:
            found = calls.pop()(sys._getframe())  # no variable of this frame leads to its closure
            return found, steps, best, log

        found, *values = main(**self.names)
        self.names = dict(zip(("steps", "best", "log"), values, strict=True))
        return found

    def note(self, step: int, number: int = 0, **names: Any) -> Place:
        """A step's place, where the script holds ``names``, in the ``number``-th of a loop."""
        self.step = step
        self.names.update(steps=step, **names)
        loop = ((Spot("test_counters.py:run", 1), number),)

        def at(frame: FrameType) -> Place:
            here = spot_of(frame)
            values, details = self.counters.note(
                self.counters.read(self.counters.walk.walk([frame])), loop
            )
            stack = (here, Spot("test_counters.py:run", 2))
            place = Place(stack=stack, ranges=loop, counters=values, details=details, step=step)
            return Place.decode(place.encode())

        found = self.in_frame(at)
        assert isinstance(found, Place)
        return found

    def joins(self, place: Place, step: int, monkeypatch: pytest.MonkeyPatch) -> Taken:
        """It has healed to the state of ``step``."""
        self.step = step

        def at(frame: FrameType) -> Taken:
            monkeypatch.setattr(counters, "script_frames", lambda: [frame])
            return self.counters.take(place)

        found = self.in_frame(at)
        assert isinstance(found, Taken)
        return found


def test_what_one_rank_alone_keeps_comes_from_its_predecessor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, peer = Replica(tmp_path, "0"), Replica(tmp_path, "1")
    first.note(0), peer.note(0)
    first.note(1, best=0.5, log=[(1, 0.5)])
    place = peer.note(9)
    late = {"late.py:<module>late": {"count": 3}}
    place = replace(place, counters={**place.counters, **late})
    again = Replica(tmp_path, "0")
    taken = again.joins(place, 9, monkeypatch)
    assert taken.lacking == ["the values of late, which it has not imported"]
    assert again.names == {"steps": 9, "best": 0.5, "log": [(1, 0.5)]}
    assert taken.of_its_own == ["best None→0.5", "log 0 values→1 value"]
    assert taken.changed == ["steps 0→9"]
    again.note(10)
    once_more = Replica(tmp_path, "0")  # it had not changed it, and leaves it all the same
    once_more.joins(peer.note(12), 12, monkeypatch)
    assert once_more.names["best"] == 0.5 and once_more.names["log"] == [(1, 0.5)]


def test_who_goes_through_last_steps_again_has_the_counters_before_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: its predecessor had noted a later step than the peer, so it counted steps twice."""
    first, peer = Replica(tmp_path, "0"), Replica(tmp_path, "1")
    first.note(0), peer.note(0)
    place = replace(peer.note(7), has_finished=True, commits=2)
    first.note(6, best=0.5)
    first.note(8, best=0.25)
    again = Replica(tmp_path, "0")
    taken = again.joins(place, 9, monkeypatch)
    assert again.names["steps"] == 7 and taken.changed == ["steps 0→7"]
    assert again.names["best"] == 0.5


@pytest.mark.parametrize(("step", "line"), [(3, 7), (2, 7), (3, 8)])
def test_what_was_computed_within_a_turn_is_the_predecessors_at_that_point_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, line: int
) -> None:
    """A newcomer goes through the steps of the turn again, with newer models than then. At another
    point it may have counted what its predecessor counts later."""
    first, peer = Replica(tmp_path, "0"), Replica(tmp_path, "1")
    for one in (first, peer):
        one.counters.begins(())
        place = one.note(1, best=1)
    for at in (2, 3):
        first.step, first.names["best"] = at, at / 10
        first.in_frame(
            lambda frame: first.counters.leave_within(
                first.counters.read(first.counters.walk.walk([frame])), (), (Spot("a.py:f", 7),)
            )
        )
    again = Replica(tmp_path, "0")
    assert again.joins(replace(place, behind=2), 1, monkeypatch).of_its_own == []
    assert again.names["best"] == 1
    again.step, again.names["best"] = step, 5.5  # as the models are now
    monkeypatch.setattr(counters, "stack", lambda: (Spot("a.py:f", line),))

    def at_pass(frame: FrameType) -> None:
        monkeypatch.setattr(counters, "script_frames", lambda: [frame])
        again.counters.take_within()

    again.in_frame(at_pass)
    assert again.names["best"] == (0.3 if (step, line) == (3, 7) else 5.5)


def test_a_loss_is_set_and_keeps_its_gradients(tmp_path: Path) -> None:
    best = torch.ones((), requires_grad=True) * 3
    replica = Replica(tmp_path, "0", best=best)
    values = {"best": {"kind": "tensor", "values": ["float32", [], [0.5]]}}
    words = replica.in_frame(lambda frame: write_values(frame, values))
    assert words == ["best tensor(3.)→tensor(0.5000)"]
    assert replica.names["best"] is best and best == 0.5 and best.requires_grad
    values = {"best": {"kind": "tensor", "values": ["float32", [1], [0.25]]}}
    replica.in_frame(lambda frame: write_values(frame, values))
    assert replica.names["best"] is not best and replica.names["best"] == 0.25


def test_a_peer_that_has_an_older_value_from_there_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slot 1 dies and heals from slot 0; then slot 0 dies, and heals from slot 1."""
    first = Replica(tmp_path, "0")
    first.note(0)
    place = first.note(3, best=0.5)
    peer = Replica(tmp_path, "1")
    peer.joins(place, 3, monkeypatch)
    assert peer.names["best"] == 0.5
    first.note(5, best=0.25)
    again = Replica(tmp_path, "0")
    again.joins(peer.note(8), 8, monkeypatch)
    assert again.names["best"] == 0.25


def test_what_peers_have_changed_later_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, peer = Replica(tmp_path, "0"), Replica(tmp_path, "1")
    for replica in (first, peer):
        replica.note(0)
        replica.note(1, best=7)
    place = peer.note(4, best=None)  # as it was at first, as for a count that begins anew
    again = Replica(tmp_path, "0")
    assert again.joins(place, 4, monkeypatch).of_its_own == []
    assert again.names["best"] is None


@pytest.mark.parametrize(
    ("life", "step", "number"),
    [("another", 9, 0), ("life", 0, 0), ("life", 9, 1)],
    ids=["the job has begun anew", "later than its state", "its function was called anew"],
)
def test_a_value_of_another_time_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, life: str, step: int, number: int
) -> None:
    first, peer = Replica(tmp_path, "0"), Replica(tmp_path, "1")
    first.note(0), peer.note(0)
    first.note(1, best=0.5)
    again = Replica(tmp_path, "0", life)
    taken = again.joins(peer.note(step, number), step, monkeypatch)
    assert again.names["best"] is None and taken.of_its_own == []


def test_on_another_node_there_is_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    first, peer = Replica(tmp_path / "a", "0"), Replica(tmp_path / "b", "1")
    first.note(0), peer.note(0)
    first.note(1, best=0.5)
    again = Replica(tmp_path / "b", "0")
    taken = again.joins(peer.note(9), 9, monkeypatch)
    assert not taken.has_left and again.names["best"] is None
    assert "not restored: what it alone had counted" in taken.words(is_new=True)


def test_a_replica_that_was_out_for_some_steps_keeps_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, peer = Replica(tmp_path, "0"), Replica(tmp_path, "1")
    first.note(0), peer.note(0)
    first.note(2, best=0.5, log=[1])
    place = peer.note(6)
    first.joins(replace(place), 6, monkeypatch)
    assert first.names == {"steps": 6, "best": 0.5, "log": [1]}


def test_a_list_that_was_too_long_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Replica(tmp_path, "1")
    peer.note(0)
    place = peer.note(1, log=[1.0] * 20_000)
    again = Replica(tmp_path, "0")
    taken = again.joins(place, 1, monkeypatch)
    assert taken.lacking == ["log (list of 20000)"]
    assert "; not restored: log (list of 20000)" in taken.words(is_new=False)


def test_what_was_counted_on_the_way_past_a_loop_is_undone(tmp_path: Path) -> None:
    counters = counters_of(Frameworks(), tmp_path)

    def train(bad: int, fails: list[int], names: dict[str, int]) -> tuple[Any, ...]:
        if not bad:
            counters.remember()
        bad += 2
        fails.append(8)
        names["late"] = 1
        return bad, fails, names

    def main() -> tuple[Any, ...]:
        bad, fails, names, seen, stage = 0, [1], {"a": 1}, 5, "low"
        counters.remember()
        bad, seen, stage = 2, 6, "high"
        fails.append(8)
        names["a"] = 3
        here = spot_of(sys._getframe())
        counters.restore(Place(stack=(here,), counters={here.name: {"stage": "high"}}))
        return bad, fails, names, seen, stage

    assert main() == (0, [1], {"a": 1}, 5, "high")
    found = train(0, [1], {})
    counters.restore(Place())  # that call has returned
    assert found == (2, [1, 8], {"late": 1})


def differing(directory: Path) -> tuple[Replica, Replica]:
    """Two replicas with a cursor by rank, a sum of their own, and a directory that rank 0 chose."""
    first, peer = Replica(directory, "0", log=0.0), Replica(directory, "1", log=0.0)
    for step in range(1, 5):
        first.note(step, best=8 * step, log=0.5 * step)
        peer.note(step, best=8 * step + 4, log=0.25 * step)
    return first, peer


def test_a_cursor_by_rank_goes_on_with_its_distance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = differing(tmp_path)
    place = first.note(9, 1, best=72, log=4.5)
    successor = Replica(tmp_path, "1")
    taken = successor.joins(place, 9, monkeypatch)
    assert successor.names["best"] == 76
    assert taken.of_its_own == ["best None→76"]


def test_a_newcomer_knows_what_it_had_while_all_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: another replica died before it was back, and went on at its distance from nothing."""
    first, _ = differing(tmp_path)
    successor = Replica(tmp_path, "1", log=0.0)
    successor.joins(first.note(9, 1, best=72, log=4.5), 9, monkeypatch)
    place = successor.note(10, 1, best=84)
    again = Replica(tmp_path, "0", log=0.0)
    again.joins(place, 10, monkeypatch)
    assert again.names["best"] == 80


def test_what_differed_is_the_predecessors_while_the_loops_stand_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = differing(tmp_path)
    successor = Replica(tmp_path, "1", log=0.0)
    spot = Spot("test_counters.py:run", 1)
    place = first.note(9, 0, best=72, log=4.5)
    inner = replace(place, ranges=((spot, 0), (Spot("test_counters.py:main", 2), 9)))
    taken = successor.joins(inner, 9, monkeypatch)
    assert successor.names["log"] == 3.5  # 1.0 when all trained, and what the donor added to 2.0
    assert "plus what its donor has added since: log" in taken.words(is_new=False)
    later = Replica(tmp_path, "1", log=0.0)
    taken = later.joins(replace(inner, ranges=((spot, 0), *inner.ranges)), 9, monkeypatch)
    assert later.names["log"] == 3.5
    assert "its own log (ranks differ: it has its peer's)" not in taken.lacking


def test_a_list_that_its_peer_has_emptied_since_is_the_peers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen in nanoVLM: times of each rank, in lists that begin anew at each line of the log."""
    first, peer = Replica(tmp_path, "0", log=[]), Replica(tmp_path, "1", log=[])
    for step in range(1, 5):
        first.note(step, log=[0.5 * x for x in range(step)])
        peer.note(step, log=[0.25 * x for x in range(step)])
    successor = Replica(tmp_path, "1", log=[])
    taken = successor.joins(first.note(9, log=[7.0]), 9, monkeypatch)
    assert successor.names["log"] == [7.0]
    assert taken.of_its_own == [] and "log 0 values→1 value" in taken.changed
    assert "plus what its donor has added since: log" in taken.words(is_new=False)
    peer.note(5, log=[3.0])  # it had emptied its own, too
    later = Replica(tmp_path, "1", log=[])
    later.joins(first.note(9, log=[7.0]), 9, monkeypatch)
    assert later.names["log"] == [3.0]


def test_a_text_that_has_become_a_list_since_has_no_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, peer = Replica(tmp_path, "0", log=[]), Replica(tmp_path, "1", log=[])
    for step in range(1, 5):
        first.note(step, log=f"a {step}")
        peer.note(step, log=f"b {step}")
    peer.note(5, log=[1.0, 2.0])
    successor = Replica(tmp_path, "1", log=[])
    successor.joins(first.note(9, log=[3.0]), 9, monkeypatch)
    assert successor.names["log"] == [1.0, 2.0]


@pytest.mark.parametrize(
    ("theirs", "own", "is_taken"),
    [
        ("run_1130-131951", "run_1130-132010", True),
        (Path("out/20261130-131951"), Path("out/20261130-132010"), True),
        ("other_1130-131951", "run_1130-132010", False),
        ("tcp://127.0.0.1:34567", "tcp://127.0.0.1:34568", False),
        ("fold 1", "fold 2", False),  # no time is so short
        ("1130131951", 1130132010, False),
    ],
)
def test_a_name_by_the_time_is_that_of_the_predecessor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, theirs: Any, own: Any, is_taken: bool
) -> None:
    """Seen in nanoVLM: a newcomer saved its checkpoints beside those of its predecessor, because
    the run's name has the time, and its directory is made by the first checkpoint."""
    first, peer = Replica(tmp_path, "0", best=theirs), Replica(tmp_path, "1")
    for step in range(1, 3):
        first.note(step)
        place = peer.note(step)
    again = Replica(tmp_path, "0", best=own)
    taken = again.joins(place, 2, monkeypatch)
    assert (again.names["best"] == theirs) is is_taken
    assert bool(taken.of_its_own) is is_taken
    again.note(3)
    last = Replica(tmp_path, "0", best=own)
    last.joins(peer.note(4), 4, monkeypatch)
    assert (last.names["best"] == theirs) is is_taken


def test_a_name_that_peers_have_changed_is_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, peer = Replica(tmp_path, "0", best="at 1130-131951"), Replica(tmp_path, "1", best="")
    first.note(1), peer.note(1)
    again = Replica(tmp_path, "0", best="at 1130-132010")
    again.joins(peer.note(2, best="at 1130-140000"), 2, monkeypatch)
    assert again.names["best"] == "at 1130-140000"


@pytest.mark.parametrize("value", [0.5, torch.tensor(0.5)])
def test_a_fraction_of_a_first_evaluation_is_the_peers_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: Any
) -> None:
    """Seen in Fabric's language model: nobody knows whether ranks agree on it."""
    first, peer = Replica(tmp_path, "0", log=None), Replica(tmp_path, "1", log=None)
    for step in range(1, 5):
        first.note(step)
        peer.note(step)
    successor = Replica(tmp_path, "1", log=None)
    taken = successor.joins(first.note(9, 0, best=1, log=value), 9, monkeypatch)
    assert successor.names["log"] == 0.5 and successor.names["best"] == 1
    assert taken.lacking == ["its own log (it has its peer's, computed meanwhile)"]


def test_of_what_each_epoch_begins_the_donors_stands_in_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = differing(tmp_path)
    place = first.note(9, 0, best=72, log=4.5)
    inner = Spot("test_counters.py:main", 2)
    moved = replace(place, ranges=((inner, 3), (Spot("test_counters.py:main", 3), 9)))
    monkeypatch.setattr(counters, "left_at", _with_ranges(left_at, {inner: 2}))
    successor = Replica(tmp_path, "1", log=0.0)
    taken = successor.joins(moved, 9, monkeypatch)
    assert successor.names["log"] == 4.5
    assert taken.lacking == ["its own log (ranks differ: it has its peer's)"]


def test_a_loader_that_begins_anew_is_another_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen in torcheval's example, with a ``while`` around its loader: a metric had what its
    predecessor had counted in the epoch before."""
    loader = Spot("test_counters.py:main", 3)
    for drawn, value in ((2, 4.5), (9, 3.5)):
        (tmp_path / str(drawn)).mkdir()
        first, _ = differing(tmp_path / str(drawn))
        place = first.note(9, 0, best=72, log=4.5)
        moved = replace(place, ranges=(), loaders=(LoaderPlace(loader, 0, None, drawn),))
        found = _with_ranges(left_at, {batches_at(loader): 6})
        monkeypatch.setattr(counters, "left_at", found)
        successor = Replica(tmp_path / str(drawn), "1", log=0.0)
        taken = successor.joins(moved, 9, monkeypatch)
        assert (successor.names["log"], bool(taken.lacking)) == (value, drawn < 6)


def _with_ranges(plain: Callable[..., Any], ranges: dict[Spot, int]) -> Callable[..., Any]:
    def found(path: Path, until: int, at: int = 0) -> Any:
        return replace(plain(path, until), ranges=ranges)

    return found


def test_tensors_of_packages_that_differed_while_all_trained_are_named() -> None:
    """Those that are another one at each draw have no digest: nothing of them is needed."""
    theirs = {f"{x}{DIGEST}": "1" for x in ("apart", "alike", "gone", "anew")} | {"count": "1"}
    left = {f"{x}{DIGEST}": "2" for x in ("apart", "gone", "later")} | {"count": "2"}
    left |= {f"alike{DIGEST}": "1", f"anew{DIGEST}": ""}
    now = {f"{x}{DIGEST}": "3" for x in ("apart", "alike", "anew", "later")} | {"count": "3"}
    pairs = [(3, {"kept": theirs}, {"kept": left})]
    sources = Sources(Place(), None, pairs, lambda *_: -1)
    assert sources.differed("kept", now, DIGEST) == [f"apart{DIGEST}"]
    assert Sources(Place(), None, [], lambda *_: -1).differed("kept", now, DIGEST) == []


def test_a_value_differed_also_at_the_place_before_which_its_peer_has_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, peer = Replica(tmp_path, "0"), Replica(tmp_path, "1")
    for step in range(1, 4):
        for one in (first, peer):
            one.note(step, step, best=0)
    peer.note(4, 4, best=0.4)  # a sum that the last step has begun; then it dies
    first.counters._script.are_together = False  # type: ignore[misc]
    place = first.note(4, 4, best=0.3)
    successor = Replica(tmp_path, "1")
    taken = successor.joins(place, 4, monkeypatch)
    assert successor.names["best"] == 0.4
    assert taken.of_its_own == ["best None→0.4"]


def test_the_keys_of_a_dict_come_in_the_order_of_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen in IBRNet's log line: what its peer gave came first."""
    first = Replica(tmp_path, "0", log={})
    peer = Replica(tmp_path, "1", log={})
    place = Place()
    for step in range(1, 4):
        for rank, one in enumerate((first, peer)):
            one.names["log"].update({"loss": rank + step, "lr": step})
            one.names["log"].update({"psnr": step} if rank == 0 else {})
        first.note(step)
        place = peer.note(step)
    successor = Replica(tmp_path, "0", log={})
    successor.joins(place, 3, monkeypatch)
    assert successor.names["log"] == {"loss": 3, "lr": 3, "psnr": 3}
    assert [*successor.names["log"]] == ["loss", "lr", "psnr"]


def test_what_its_predecessor_lacked_too_is_not_named() -> None:
    """Seen: guided-diffusion's rank 0 has writers that no other rank has."""
    steps = {"writers[2].keys": 3, "writers[1].rows": 3, "writers[3].rows": 4}
    place = Place(details=lambda: Details({"f": steps}))
    left = Left("life", {"f": {"writers[1].rows": (1, 3)}})
    sources = Sources(place, left, [(3, {}, {})], lambda *_: -1)
    assert [x for x in steps if sources.is_missed("f", x)] == ["writers[1].rows", "writers[3].rows"]
    assert Sources(place, None, [], lambda *_: -1).is_missed("f", "writers[2].keys")
    assert not sources.is_missed("f", f"writers[3].rows{DIGEST}")


def test_a_value_that_was_alike_while_all_trained_is_the_donors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, peer = Replica(tmp_path, "0"), Replica(tmp_path, "1")
    for step in range(1, 4):
        for one in (first, peer):
            one.note(step, best=step)
    peer.note(4, best=4)  # the last step of the predecessor, which its peer has not noted
    place = first.note(9, 1, best=9)
    successor = Replica(tmp_path, "1")
    taken = successor.joins(place, 9, monkeypatch)
    assert successor.names["best"] == 9 and taken.of_its_own == []


def test_what_the_predecessor_never_changed_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, peer = Replica(tmp_path, "0"), Replica(tmp_path, "1")
    for step in range(1, 4):
        first.note(step, best=0.5)
        peer.note(step)
    place = first.note(9, 0, best=0.5)
    successor = Replica(tmp_path, "1")
    successor.joins(place, 9, monkeypatch)
    assert successor.names["best"] is None


def test_a_step_that_is_tried_again_tells_nobody_who_differed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: a count of the tries, which the predecessor had noted before the second one."""
    first, peer = Replica(tmp_path, "0", log=0.0), Replica(tmp_path, "1", log=0.0)
    for step in range(1, 5):
        first.note(step, best=step)
        peer.note(step, best=step)
    place = first.note(4, best=5)
    successor = Replica(tmp_path, "1", log=0.0)
    taken = successor.joins(place, 4, monkeypatch)
    assert successor.names["best"] == 5 and not taken.of_its_own
