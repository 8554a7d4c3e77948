"""Lists and their like: what has been added, what is at a place, what does not heal."""

from __future__ import annotations

import json
from collections import Counter, defaultdict, deque
from pathlib import Path
from typing import Any

import pytest
import torch

from ftrun.inject.zero_edit.values import histories, limits
from ftrun.inject.zero_edit.values.changes import Changes
from ftrun.inject.zero_edit.values.histories import (
    carries,
    put_into,
    see,
    within_limits,
)
from ftrun.inject.zero_edit.values.kinds import packed_values, unpacked

F = "train.py:main"


def note(known: Changes, step: int, **containers: Any) -> tuple[Any, Any]:
    """The containers that have ever changed, and the copies of those that have now, and heal."""
    before = known.before(F)
    seen = [(F, {name: see(x, before.get(name)) for name, x in containers.items()})]
    changed = known.note(seen, step).get(F, {})
    ever = known.changed(seen).get(F, {})
    cuts = [(F, path, known.step_of(F, path), copy) for path, copy in ever.items()]
    return cuts, [copy for copy in changed.values() if copy.heals]


def begun(**containers: Any) -> Changes:
    made = Changes()
    made.begin([(F, {name: see(x) for name, x in containers.items()})])
    return made


def given(cuts: Any) -> dict[str, Any]:
    """What a newcomer gets, through JSON."""
    found, _ = within_limits(cuts)
    return {path: unpacked(json.loads(json.dumps(packed))) for _, path, _, packed in found}


@pytest.mark.parametrize("count", [0, 3, 257, 5000])
def test_a_list_at_a_place_is_cut_where_it_was(count: int) -> None:
    losses = [0.5 * x for x in range(count)]
    known = begun(losses=losses)
    assert given(note(known, 1, losses=losses)[0]) == {}  # it has never changed
    losses.append(-1.0)
    cuts, grown = note(known, 2, losses=losses)
    losses.append(-2.0)  # after the draw
    assert given(cuts) == {"losses": losses[:-1]}
    assert cuts[0][2] == 2
    [more] = grown
    assert more.packed(more.start)["values"][-1] == -1.0
    assert more.start == count


def test_a_long_list_is_not_copied_in_each_step() -> None:
    losses = list(range(5000))
    known = begun(losses=losses)
    for step in range(20):
        losses.append(step)
        _, [more] = note(known, step, losses=losses)
        assert more.length - more.start == 1
    assert note(known, 30, losses=losses)[1] == []


def test_a_change_in_the_middle_of_a_long_list_is_found_at_once() -> None:
    table = list(range(1000))
    known = begun(table=table)
    table.append(0)
    table[500] = -1
    cuts, [more] = note(known, 1, table=table)
    assert given(cuts) == {"table": table} and more.start == 0
    table[0] = -5
    assert given(cuts)["table"][0] == 0  # of the place before


def test_a_long_list_that_is_filled_with_tensors() -> None:
    losses: list[Any] = [0.5] * 400
    known = begun(losses=losses)
    losses.append(1)
    cuts, _ = note(known, 1, losses=losses)
    losses[:] = [torch.zeros(3)] * 500
    assert given(cuts) == {"losses": [0.5] * 400 + [1]}
    assert within_limits(note(known, 2, losses=losses)[0]) == ([], [])


def test_losses_that_are_kept_with_their_gradients_are_numbers() -> None:
    weight = torch.ones(3, requires_grad=True)
    losses = [weight.sum()]
    known = begun(losses=losses)
    losses.append((2 * weight).sum())
    cuts, _ = note(known, 1, losses=losses)
    assert given(cuts) == {"losses": [torch.tensor(3.0), torch.tensor(6.0)]}
    assert not any(x.requires_grad for x in given(cuts)["losses"])


def test_an_emptied_list_begins_anew() -> None:
    losses = list(range(400))
    known = begun(losses=losses)
    losses.append(1)
    note(known, 1, losses=losses)
    losses.clear()
    cuts, [more] = note(known, 2, losses=losses)
    assert given(cuts) == {"losses": []} and (more.start, more.length) == (0, 0)


def test_other_containers() -> None:
    window: deque[float] = deque([1.0, 2.0], maxlen=2)
    table: dict[Any, Any] = {1: [0.5], "x": 2}
    names, counts = {"a"}, Counter("aab")
    rows: list[dict[str, float]] = [{"epoch": 0, "loss": 0.5}, {"epoch": 1}]
    pairs: list[tuple[int, Any]] = [(1, 0.5), (2, "x")]
    known = begun(window=window, names=names, table=table, counts=counts, rows=rows, pairs=pairs)
    window.append(3.0)
    names.add("b")
    table[1].append(0.25)
    counts["c"] += 1
    rows[1]["loss"] = 0.25
    pairs.append((3, None))
    cuts, _ = note(
        known, 1, window=window, names=names, table=table, counts=counts, rows=rows, pairs=pairs
    )
    expected = {
        "window": deque([2.0, 3.0]),
        "names": {"a", "b"},
        "table": {1: [0.5, 0.25], "x": 2},
        "counts": {"a": 2, "b": 1, "c": 1},
        "rows": [{"epoch": 0, "loss": 0.5}, {"epoch": 1, "loss": 0.25}],
        "pairs": [(1, 0.5), (2, "x"), (3, None)],
    }
    rows[0]["loss"] = table[1][0] = 9.0
    assert given(cuts) == expected


def test_numbers_of_numpy() -> None:
    numpy = pytest.importorskip("numpy")
    losses: list[Any] = []
    known = begun(losses=losses)
    losses += [numpy.float64(0.5), numpy.float32(0.25), numpy.int64(3), numpy.bool_(True)]
    cuts, _ = note(known, 1, losses=losses)
    assert given(cuts) == {"losses": [0.5, 0.25, 3, True]}
    losses.append(torch.tensor(1.5))
    cuts, _ = note(known, 2, losses=losses)
    assert given(cuts)["losses"][-1].item() == 1.5
    assert not carries([numpy.complex64(1)]) and not carries([numpy.zeros(2)])


def test_batches_are_no_history() -> None:
    known = begun()
    for step in range(3):
        cuts, _ = note(known, step, group=[torch.zeros(2)] * step)
        assert within_limits(cuts)[1] == []


@pytest.mark.parametrize(
    "container",
    [
        [torch.zeros(1)],
        [[[[1]]]],
        [object()],
        {1: lambda: 0},
        ["x" * 5000],
        [1] * (limits.LIST + 1),
    ],
    ids=["tensor", "deep", "object", "function", "text", "long"],
)
def test_what_does_not_heal(container: Any) -> None:
    assert not carries(container)
    known = begun(container=container)
    cuts, grown = note(known, 1, container=container)
    assert not within_limits(cuts)[0] and not grown


def test_a_list_that_is_too_long_is_named_if_it_changes() -> None:
    losses = [0.5] * (limits.LIST + 1)
    known = begun(losses=losses)
    assert within_limits(note(known, 1, losses=losses)[0]) == ([], [])
    losses.append(1)
    cuts, _ = note(known, 2, losses=losses)
    assert within_limits(cuts) == ([], [f"losses (list of {len(losses)})"])


def test_the_limit_is_for_all_together() -> None:
    small, large, larger = [1], [0.1] * 6000, [0.2] * 7000
    known = begun(small=[], large=[], larger=[])
    cuts, _ = note(known, 1, small=small, large=large, larger=larger)
    found, lacking = within_limits(cuts)
    assert [path for _, path, _, _ in found] == ["small", "large"]
    assert lacking == ["larger (list of 7000)"]
    cuts, _ = note(begun(texts=[]), 1, texts=["x" * 1000] * 300)
    assert within_limits(cuts)[1] == ["texts (list of 300)"]


def test_containers_are_set_in_place() -> None:
    window: deque[int] = deque([1], maxlen=2)
    table: defaultdict[str, list[int]] = defaultdict(list)
    table["old"].append(1)
    bits = bytearray(b"ab")
    for container, values in (([1], [2, 3]), (window, [4, 5]), ({1}, [6]), (bits, [7, 8, 9])):
        put_into(container, unpacked(packed_values(type(container), values)))
        assert list(container) == values
    put_into(table, unpacked(packed_values(defaultdict, [("new", [1])])))
    assert table == {"new": [1]} and table["other"] == []
    assert window.maxlen == 2
    assert histories.are_alike(table, {}) and not histories.are_alike([], {})


def test_bytes_that_are_too_many_are_named_if_they_change() -> None:
    flags = bytearray(20_000)
    first = see(flags)
    assert see(flags, first) is first and not first.heals
    flags[3] = 1
    assert see(flags, first) is not first
    cuts, _ = note(begun(flags=bytearray(20_000)), 1, flags=flags)
    assert within_limits(cuts)[1] == ["flags (bytearray of 20000)"]


def test_paths_are_values() -> None:
    """Seen: a list of the checkpoints that were saved, the oldest of which is removed."""
    found = histories._frozen_all([Path("a") / "b", (Path("c"), 1)])
    packed = packed_values(list, found)
    assert unpacked(json.loads(json.dumps(packed))) == [Path("a/b"), (Path("c"), 1)]
