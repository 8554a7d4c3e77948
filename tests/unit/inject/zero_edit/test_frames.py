"""The script's frames, and the plain values in them."""

from __future__ import annotations

import sys
import types
import weakref
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from ftrun.inject.zero_edit import frames
from ftrun.inject.zero_edit.frames import (
    as_plain,
    call_site,
    is_own,
    is_script,
    read_values,
    script_frames,
    stack,
    variables_of,
)
from ftrun.inject.zero_edit.values.writing import write_values

KEPT: dict[str, Any] = {}


class Counters:
    def __init__(self) -> None:
        self.steps = 3
        self.rank = 1
        self.inner: Any = None


def test_values_of_a_frame() -> None:
    count, name, best, text = 4, "x", 0.5, None
    table = {"a": 1, "b": [2], 3: 4}
    holder = Counters()
    holder.inner = Counters()
    found = read_values(sys._getframe())
    assert found["count"] == 4
    assert (found["name"], found["best"], found["text"]) == ("x", 0.5, None)
    assert found["table[a]"] == 1
    assert "table[b]" not in found
    assert found["holder.steps"] == 3
    assert found["holder.inner.steps"] == 3
    assert "holder.rank" not in found
    assert (count, name, best, text, table[3]) == (4, "x", 0.5, None, 4)


def test_containers_of_a_frame() -> None:
    losses, ranks = [1.0], [0]
    history = {"train": [1.0], "inner": {"val": [2.0], "n": 1}, "by_epoch": {1: 2}}
    holder = Counters()
    holder.inner = {3}
    values = read_values(sys._getframe(), KEPT)
    assert {
        "losses": losses,
        "history[train]": [1.0],
        "history[inner][val]": [2.0],
        "history[by_epoch]": {1: 2},
        "holder.inner": {3},
    } == KEPT
    assert KEPT["losses"] is losses and ranks == [0]
    assert values["history[inner][n]"] == 1 and history["train"] is KEPT["history[train]"]


def test_numbers_of_numpy() -> None:
    numpy = pytest.importorskip("numpy")
    best, table, holder = numpy.float32(0.5), {"n": numpy.int64(2)}, Counters()
    holder.inner = numpy.float64(1.5)
    found = read_values(sys._getframe())
    assert (found["best"], found["table[n]"], found["holder.inner"]) == (0.5, 2, 1.5)
    assert {type(found[x]) for x in ("best", "table[n]", "holder.inner")} == {float, int}
    assert len(write_values(sys._getframe(), {"best": 0.25, "table[n]": 2})) == 1
    assert (best, table["n"]) == (0.25, 2)


def test_tensors_that_are_single_numbers() -> None:
    best, row, learned = torch.tensor(0.5), torch.zeros(2), torch.tensor(1.0, requires_grad=True)
    other: Any = None
    found = read_values(sys._getframe())
    assert found == {"best": {"ftrun.tensor": ["float32", 0.5]}, "other": None}
    new = {"ftrun.tensor": ["int64", 3]}
    before = best
    assert write_values(sys._getframe(), {"best": new, "row": new, "other": new}) == [
        "best tensor(0.5000)→tensor(3)",
        "other None→tensor(3)",
    ]
    assert (best.item(), best.dtype, before.item()) == (3, torch.int64, 0.5)
    assert other.item() == 3 and row.tolist() == [0, 0] and learned.item() == 1
    assert write_values(sys._getframe(), {"best": new}) == []


@dataclass
class Total:
    ready: int = 0


@dataclass
class Progress:
    """As Lightning's records: records in records."""

    total: Total = field(default_factory=Total)


class Inner:
    def __init__(self) -> None:
        self.progress, self.deeper = Progress(), Counters()


class Outer:
    def __init__(self) -> None:
        self.progress, self.inner = Progress(), Inner()


def test_records_in_records_are_one_object() -> None:
    loop = Outer()
    found = read_values(sys._getframe())
    assert found == {"loop.progress.total.ready": 0, "loop.inner.progress.total.ready": 0}
    assert write_values(sys._getframe(), {"loop.inner.progress.total.ready": 4})
    assert loop.inner.progress.total.ready == 4


def test_values_are_written() -> None:
    count, other = 4, 7
    table = {"a": 1}
    holder = Counters()
    changed = write_values(
        sys._getframe(), {"count": 9, "other": 8, "table[a]": 2, "holder.steps": 5, "new_one": 3}
    )
    assert (count, other, table["a"], holder.steps) == (9, 8, 2, 5)
    assert sorted(changed) == [
        "count 4→9",
        "holder.steps 3→5",
        "new_one →3",
        "other 7→8",
        "table[a] 1→2",
    ]


def test_a_variable_that_is_set_later_in_the_function() -> None:
    write_values(sys._getframe(), {"later": 5})
    if len(sys.argv) < 0:
        later = 1
    assert later == 5


def test_equal_values_are_left_alone() -> None:
    count = 4
    assert write_values(sys._getframe(), {"count": 4}) == []
    assert count == 4


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("rank", True),
        ("self.local_rank", True),
        ("state.is_world_process_zero", True),
        ("device", True),
        ("global_step", False),
        ("best", False),
    ],
)
def test_what_belongs_to_one_rank(name: str, own: bool) -> None:
    assert is_own(name) is own


def test_whose_code_it_is() -> None:
    assert is_script(__file__)
    assert not is_script(frames.__file__)
    assert not is_script(pytest.__file__)
    assert not is_script("<frozen runpy>")
    assert is_script("/opt/env/lib/python3/site-packages/transformers/trainer.py")
    assert not is_script("/opt/env/lib/python3/site-packages/torch/nn/modules/module.py")


def test_the_stack() -> None:
    found = script_frames()
    assert found[0].f_code.co_name == "test_the_stack"
    assert call_site() == f"{Path(__file__).name}:{sys._getframe().f_lineno}"


def test_what_is_read_lives_no_longer_than_the_script_holds_it() -> None:
    def held(read: Any) -> bool:
        result = Result()
        before = weakref.ref(result)
        read(sys._getframe())
        result = Result()
        return before() is not None and result is not None

    assert not held(read_values)
    assert not held(lambda frame: variables_of(frame).clear())


def test_a_dict_that_the_script_has_got_is_not_emptied() -> None:
    value = 3
    found = locals()
    read_values(sys._getframe())
    assert found["value"] == value


class Result:
    """Something large."""


def test_a_tuple_of_plain_values_is_one_value() -> None:
    best, pair, nested, long = (0.5, 3), (1, [2]), ((1,), 2), tuple(range(17))
    empty, tensors = (), (torch.ones(2), 1)
    scores = {"last": torch.tensor(0.5)}  # it is packed, too
    single, holder, table = (torch.tensor(1.5), 2), Counters(), {"best": (1, "x")}
    holder.inner = (1, None)
    frame = sys._getframe()
    found = read_values(frame)
    assert {name for name in found if "ftrun.tuple" in str(found[name])} == {
        "best",
        "single",
        "holder.inner",
        "table[best]",
    }
    assert found["scores[last]"] == {"ftrun.tensor": ["float32", 0.5]}
    assert scores
    other = {"best": (0.25, 4), "single": (torch.tensor(2.5), 7)}

    def newcomer(best: Any, single: Any, late: Any) -> tuple[Any, ...]:
        words = write_values(
            sys._getframe(), {"best": as_plain(other["best"]), "single": as_plain(other["single"])}
        )
        return words, best, single, late

    words, now, now_single, _ = newcomer(None, single, 1)
    assert now == (0.25, 4)
    assert now_single == (torch.tensor(2.5), 7)
    assert "best None→(0.25, 4)" in words
    assert (best, pair, nested, long, empty, tensors, table) is not None


class Phase(Enum):
    WARM = 1
    MAIN = 2


def test_a_member_of_an_enumeration_is_one_value() -> None:
    phase, holder = Phase.MAIN, Counters()
    holder.inner = Phase.MAIN
    found = read_values(sys._getframe())
    assert phase

    def newcomer(phase: Any, holder: Any) -> Any:
        write_values(sys._getframe(), {k: found[k] for k in ("phase", "holder.inner")})
        return phase, holder.inner

    assert newcomer(Phase.WARM, Counters()) == (Phase.MAIN, Phase.MAIN)
    assert (Phase.WARM.value, Phase.WARM.name) == (1, "WARM")


def test_numbers_that_json_lacks_are_left_out() -> None:
    elapsed, long = numpy.timedelta64(3, "s"), numpy.longdouble(1.5)
    assert not {"elapsed", "long"} & read_values(sys._getframe()).keys()
    assert (elapsed, long) is not None


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python has no columns before 3.11")
def test_two_calls_in_one_line_are_two_places() -> None:
    def where() -> tuple[Any, ...]:
        return stack()

    first, second = where(), where()
    again = [where() for _ in range(2)]
    assert first != second
    assert first[0] == second[0]
    assert (first[1].name, first[1].line) == (second[1].name, second[1].line)
    assert again[0] == again[1]


def test_an_installed_class_whose_base_runs_the_loop_holds_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seen: the steps of TRL's SFTTrainer were not carried, those of transformers' Trainer were."""
    for name in ("transformers", "trl", "library"):
        module = types.ModuleType(f"of_{name}")
        module.__file__ = f"/env/site-packages/{name}/trainer.py"
        monkeypatch.setitem(sys.modules, module.__name__, module)
    trainer = type("Trainer", (), {"__module__": "of_transformers"})
    derived = type("SFTTrainer", (trainer,), {"__module__": "of_trl"})
    other = type("Client", (), {"__module__": "of_library"})
    assert [frames.holds_values(kind) for kind in (trainer, derived, other)] == [True, True, False]
    assert frames._is_of_loop_package(derived) and not frames._is_of_loop_package(other)
