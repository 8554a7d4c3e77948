"""What a script's variables reach: how it is found, and set."""

from __future__ import annotations

import sys
import types
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from types import FrameType
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from ftrun.inject.zero_edit.frames import Values, spot_of, variables_of
from ftrun.inject.zero_edit.values import kinds, limits
from ftrun.inject.zero_edit.values.kinds import (
    holds_values,
    is_of_loop_package,
    is_own,
    packed,
    packed_values,
)
from ftrun.inject.zero_edit.values.walk import KEPT, Reached, Walk
from ftrun.inject.zero_edit.values.writing import lacks, settable, write_values


def values_of(frame: FrameType) -> Reached:
    """What one frame reaches now, whatever was there before."""
    return Walk().walk([frame])[0]


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
    found = values_of(sys._getframe()).values
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
    reached = values_of(sys._getframe())
    assert {
        "losses": losses,
        "history[train]": [1.0],
        "history[inner][val]": [2.0],
        "history[by_epoch]": {1: 2},
        "holder.inner": {3},
    } == reached.containers
    assert reached.containers["losses"] is losses and ranks == [0]
    assert reached.values["history[inner][n]"] == 1
    assert history["train"] is reached.containers["history[train]"]


def test_numbers_of_numpy() -> None:
    numpy = pytest.importorskip("numpy")
    best, table, holder = numpy.float32(0.5), {"n": numpy.int64(2)}, Counters()
    holder.inner = numpy.float64(1.5)
    found = values_of(sys._getframe()).values
    assert (found["best"], found["table[n]"], found["holder.inner"]) == (0.5, 2, 1.5)
    assert {type(found[x]) for x in ("best", "table[n]", "holder.inner")} == {float, int}
    assert len(write_values(sys._getframe(), {"best": 0.25, "table[n]": 2})) == 1
    assert (best, table["n"]) == (0.25, 2)


def test_tensors_that_are_single_numbers() -> None:
    best, row, learned = torch.tensor(0.5), torch.zeros(2), torch.tensor(1.0, requires_grad=True)
    other: Any = None
    found = values_of(sys._getframe()).values
    assert found == {"best": {"kind": "tensor", "values": ["float32", [], [0.5]]}, "other": None}
    new = {"kind": "tensor", "values": ["int64", [], [3]]}
    before = best
    assert write_values(sys._getframe(), {"best": new, "learned": new, "other": new}) == [
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
    loop.inner.deeper.inner = Counters()
    loop.inner.deeper.inner.inner = Counters()  # too deep
    found = values_of(sys._getframe()).values
    assert found == {
        "loop.progress.total.ready": 0,
        "loop.inner.progress.total.ready": 0,
        "loop.inner.deeper.steps": 3,
        "loop.inner.deeper.inner.steps": 3,
    }
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


def test_a_dict_in_an_attributes_dict_is_one_value() -> None:
    holder = Counters()
    holder.inner = {"val": {"best": 0.5}}
    assert values_of(sys._getframe()).containers == {"holder.inner[val]": {"best": 0.5}}


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


def test_what_is_read_lives_no_longer_than_the_script_holds_it() -> None:
    def held(read: Any) -> bool:
        result = Result()
        before = weakref.ref(result)
        read(sys._getframe())
        result = Result()
        return before() is not None and result is not None

    assert not held(values_of)
    assert not held(lambda frame: variables_of(frame).clear())


class Result:
    """Something large."""


def test_a_tuple_of_plain_values_is_one_value() -> None:
    best, pair, nested, long = (0.5, 3), (1, [2]), ((1,), 2), tuple(range(17))
    empty, tensors = (), (torch.ones(2), 1)
    scores = {"last": torch.tensor(0.5)}  # it is packed, too
    single, holder, table = (torch.tensor(1.5), 2), Counters(), {"best": (1, "x")}
    holder.inner = (1, None)
    frame = sys._getframe()
    found = values_of(frame).values
    assert {name for name in found if "'tuple'" in str(found[name])} == {
        "best",
        "single",
        "holder.inner",
        "table[best]",
    }
    assert found["scores[last]"] == {"kind": "tensor", "values": ["float32", [], [0.5]]}
    assert scores
    other = {"best": (0.25, 4), "single": (torch.tensor(2.5), 7)}

    def newcomer(best: Any, single: Any, late: Any) -> tuple[Any, ...]:
        words = write_values(
            sys._getframe(), {"best": packed(other["best"]), "single": packed(other["single"])}
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
    found = values_of(sys._getframe()).values
    assert phase

    def newcomer(phase: Any, holder: Any) -> Any:
        write_values(sys._getframe(), {k: found[k] for k in ("phase", "holder.inner")})
        return phase, holder.inner

    assert newcomer(Phase.WARM, Counters()) == (Phase.MAIN, Phase.MAIN)
    assert (Phase.WARM.value, Phase.WARM.name) == (1, "WARM")


def test_numbers_that_json_lacks_are_left_out() -> None:
    elapsed, long = numpy.timedelta64(3, "s"), numpy.longdouble(1.5)
    assert not {"elapsed", "long"} & values_of(sys._getframe()).values.keys()
    assert (elapsed, long) is not None


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
    assert [holds_values(kind) for kind in (trainer, derived, other)] == [True, True, False]
    assert is_of_loop_package(derived) and not is_of_loop_package(other)


class Meter:
    def __init__(self, count: int = 0) -> None:
        self.values: list[Any] = []
        self.count, self.local_rank = count, 7


class Plain:
    def __init__(self, count: int = 0) -> None:
        self.count, self.values = count, [count]


class Trainer:
    def __init__(self) -> None:
        self.callbacks: Any = [Meter(1), {"inner": Meter(2)}]
        self.parent = self


def found_in(frame: FrameType, walk: Walk) -> tuple[Values, dict[str, Any]]:
    """What the frame's collections lead to."""
    reached = walk.walk([frame])[0]
    containers = {path: x for path, x in reached.containers.items() if "." in path}
    return {path: x for path, x in reached.values.items() if "." in path}, containers


def test_objects_in_collections_of_any_kind() -> None:
    meters, pair, by_number = {"loss": Meter(3)}, (Meter(4), 1), {5: Meter(5)}
    trainer, nested = Trainer(), [[Meter(6)]]
    values, containers = found_in(sys._getframe(), Walk())
    assert {path: x for path, x in values.items() if path.endswith("count")} == {
        "meters[loss].count": 3,
        "pair[0].count": 4,
        "by_number[#5].count": 5,
        "trainer.callbacks[0].count": 1,
        "trainer.callbacks[1][inner].count": 2,
        "nested[0][0].count": 6,
    }
    assert containers["meters[loss].values"] == []
    assert (meters, pair, by_number, trainer, nested) is not None


def test_an_object_that_is_met_again_is_read_once() -> None:
    one = Meter(1)  # a variable may name it too: at a newcomer it may be unbound
    both = [one, one]
    values, _ = found_in(sys._getframe(), Walk())
    assert [x for x in values if x.endswith("count")] == ["one.count", "both[0].count"]
    assert both


def test_what_a_loops_variable_names_counts_where_it_is_kept() -> None:
    walk, groups = Walk(), [[Meter(1)], [Meter(2)]]
    walk.begin()
    for step, group in enumerate(groups):
        walk._step = lambda step=step: step  # type: ignore[misc]
        values, _ = found_in(sys._getframe(), walk)
        assert ("groups[1][0].count" in values) is (step == 1)
        assert group


def test_too_many_objects_are_left_out() -> None:
    many = [Meter() for _ in range(limits.ITEMS + 1)]
    assert found_in(sys._getframe(), Walk()) == ({}, {})
    assert many


def test_a_batch_does_not_count_and_a_collection_that_stays_does() -> None:
    step = 0
    held = Walk(lambda: step)
    batch, meters = [Meter()], {}
    meters["loss"] = Meter()
    found_in(sys._getframe(), held)
    held.begin()
    step = 1
    callbacks: list[Any] = []
    assert "meters[loss].count" in found_in(sys._getframe(), held)[0]
    kept = [batch]
    for step in range(2, 6):
        batch = [Meter(step)]
        kept.append(batch)
        values, _ = found_in(sys._getframe(), held)
        assert "batch[0].count" not in values
        assert "kept[0][0].count" in values or step == 2
        if step == 2:
            callbacks.append(Meter())  # it was there empty at the draw before
        else:
            assert "callbacks[0].count" in values


def test_a_batch_with_the_address_of_another() -> None:
    step = 0
    held = Walk(lambda: step)
    held.begin()
    batch = [Meter(0)]
    for step in range(1, 4):
        batch[0] = Meter(step)  # the list stays, as one at the same address would
        values, _ = found_in(sys._getframe(), held)
        assert "batch[0].count" not in values


def test_values_are_set_in_the_objects_that_are_there() -> None:
    trainer, by_number = Trainer(), {5: Meter()}
    values = {
        "trainer.callbacks[0].count": 11,
        "trainer.callbacks[1][inner].count": 12,
        "by_number[#5].count": 13,
        "trainer.callbacks[7].count": 14,
    }
    lists = {"by_number[#5].values": packed_values(list, [1, 2])}
    words = write_values(sys._getframe(), {**values, **lists})
    assert trainer.callbacks[0].count == 11
    assert trainer.callbacks[1]["inner"].count == 12
    assert (by_number[5].count, by_number[5].values) == (13, [1, 2])
    assert "trainer.callbacks[0].count 1→11" in words
    assert lacks(sys._getframe(), values) == ["trainer.callbacks[7]"]


def test_what_a_package_puts_into_its_own_collection_is_not_the_scripts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seen: accelerate keeps the loader of each evaluation, and no death was mended after one."""
    module = types.ModuleType("of_accelerate")
    module.__file__ = "/env/site-packages/accelerate/accelerator.py"
    monkeypatch.setitem(sys.modules, module.__name__, module)
    body = {"__module__": "of_accelerate"}
    accelerator, loader = (type(x, (), body)() for x in ("Accelerator", "Loader"))
    loader.iteration, loader.dataset = 2, object()
    callback: Any = Meter(3)
    callback.opaque = object()
    accelerator.loaders, accelerator.callbacks = [loader], [callback]
    given = values_of(sys._getframe()).values
    assert given["accelerator.loaders[0].iteration"] == 2
    accelerator.loaders, accelerator.callbacks = [], []
    frame = sys._getframe()
    assert lacks(frame, settable(frame, given)) == ["accelerator.callbacks[0]"]
    accelerator, own = None, [loader]
    given = values_of(frame).values
    own.clear()
    assert lacks(frame, settable(frame, given)) == ["own[0]"]


def test_what_a_function_has_of_the_one_that_made_it() -> None:
    def made() -> Callable[[], int]:
        count, losses, average = 0, [0.5], {"w": torch.zeros(2)}

        def update() -> int:
            nonlocal count
            count += 1
            losses.append(1.0)
            average["w"].add_(1)
            return count

        return update

    update, functions = made(), {"plain": made, "update": made()}
    update()
    found = Walk().walk([sys._getframe()])[0]
    assert found.values["update.count"] == 1 and functions["update"].__closure__
    assert found.containers["update.losses"] == [0.5, 1.0]
    assert found.units["update.average"]["w"].tolist() == [1.0, 1.0]
    assert found.values["functions[update].count"] == 0
    write_values(sys._getframe(), {"update.count": 7, "update.unknown": 8})
    assert update() == 8


def test_what_a_function_closes_over_counts_where_it_is_a_variable() -> None:
    """Seen: a script defines a function in each turn of its loop. Its replacement has variables,
    but not the function so far, and told that it was without them."""
    batch, count, walk = [torch.zeros(2)], 0, Walk()

    def step() -> Callable[[], Any]:
        nonlocal count
        count += 1
        return lambda: (batch, count)

    before = step
    inner = before()
    found = walk.walk([sys._getframe()])[0]
    paths = [*found.values, *found.units]
    assert [x for x in paths if x.endswith(("batch", "count"))] == ["count", "batch"], paths
    assert inner()[1] == 1 == found.values["count"]
    known = variables_of(sys._getframe())
    batch = [torch.ones(2)]
    found = walk.walk([sys._getframe()], [known])[0]
    assert found.units["step.batch"][0].tolist() == [1.0, 1.0], "that of another call is another"


def test_a_packages_object_that_keeps_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    package = types.ModuleType("averages")
    package.__file__ = "/env/lib/site-packages/averages/__init__.py"
    monkeypatch.setitem(sys.modules, "averages", package)
    kind = type("Average", (), {"__module__": "averages"})
    average: Any = kind()
    average.shadow, average.updates = [torch.zeros(2)], 3
    bar: Any = kind()
    bar.n, bar.ends, bar.worker, holder = 5, [1.0], kind(), Counters()
    bar.worker.n, holder.inner = 7, bar  # what it leads to may belong to this process
    for reaches_all in (False, True):
        walk = Walk()
        walk.reaches_all = reaches_all
        found = walk.walk([sys._getframe()])[0]
        assert [*found.units] == ["average.shadow"] and found.values["average.updates"] == 3
        counted = {"bar.n", "holder.inner.n"} & found.values.keys()
        assert counted == ({"bar.n", "holder.inner.n"} if reaches_all else set()) and bar.ends
        assert not any("ends" in x or "worker" in x for x in (*found.values, *found.containers))
    write_values(sys._getframe(), {"average.updates": 4, "holder.inner.n": 6})
    assert (average.updates, bar.n) == (4, 6)
    steps = [0]
    walk = Walk(lambda: steps[0])
    walk.begin()
    for step in range(3):  # a batch may be such an object, too
        steps[0], batch = step, kind()
        batch.x = torch.zeros(2)
        found = walk.walk([sys._getframe()])[0]
        assert [*found.units] == (["average.shadow"] if step else [])
        assert batch


def test_what_is_for_a_successor_alone_is_so_only_while_no_peer_is_given_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A package's object that the script makes in each epoch may be a batch in one step, and is
    given in the next one."""
    package = types.ModuleType("averages")
    package.__file__ = "/env/lib/site-packages/averages/__init__.py"
    monkeypatch.setitem(sys.modules, "averages", package)
    kind = type("Average", (), {"__module__": "averages"})
    steps = [0]
    walk = Walk(lambda: steps[0])
    walk.reaches_all = True
    walk.begin()
    average = kind()
    average.shadow, rank_losses, loss = torch.zeros(2), [0.5], 0.25
    near = []
    for step in range(3):
        steps[0], batch = step, kind()
        batch.x = torch.zeros(2)
        [found] = walk.walk([sys._getframe()])
        assert {"average.shadow", "batch.x"} <= found.units.keys()
        near.append(not walk.is_far(found.function, "average.shadow"))
        assert walk.is_far(found.function, "batch.x") and batch
        assert walk.is_far(found.function, "rank_losses")
        assert not walk.is_far(found.function, "loss")
    assert near == [False, True, True] and (rank_losses, loss) == ([0.5], 0.25)


def test_a_peer_makes_no_object_of_which_it_lacks_what_is_of_a_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A successor does, because it has it."""
    monkeypatch.setattr(kinds._Own, "names", kinds._Own.names)
    kinds.has_its_rank()
    try:
        walk, records = Walk(), [Plain(1), Meter(2)]
        walk.reaches_all = True
        [found] = walk.walk([sys._getframe()])
        paths = {x for x in found.values if x.startswith("records")}
        of_meter = {"records[1].__class__", "records[1].local_rank"}
        assert {"records[0].__class__", "records[1].count", *of_meter} <= paths and records
        assert {x for x in paths if walk.is_far(found.function, x)} == of_meter
    finally:
        monkeypatch.undo()
        kinds.is_own.cache_clear()
        kinds.LEFT_OUT.clear()


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., type]:
    """Makes a class of an installed package."""

    def made(package: str, name: str, *bases: type) -> type:
        module = types.ModuleType(f"of_{package}")
        module.__file__ = f"/env/site-packages/{package}/trainer.py"
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return type(name, bases, {"__module__": module.__name__})

    return made


class Restarts(torch.optim.lr_scheduler.LRScheduler):
    """A script's own, with torch's ``state_dict()``."""

    def get_lr(self) -> list[Any]:
        return [group["lr"] for group in self.optimizer.param_groups]


class Stated(Restarts):
    """One that gives less of itself."""

    def state_dict(self) -> dict[str, Any]:
        return {"last_epoch": self.last_epoch}


def test_a_scheduler_of_the_scripts_own_class_heals_as_torchs() -> None:
    """Seen: BasicSR's counted a milestone twice. It heals as it is where the step begins, and its
    attributes were set to what they had been at the draw before."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1)
    schedulers, stated = [Restarts(optimizer)], Stated(optimizer)
    values = Walk().walk([sys._getframe()])[0].values
    assert not [path for path in values if path.startswith("schedulers")] and schedulers
    assert values["stated.last_epoch"] == stated.last_epoch


def test_what_a_packages_trainer_and_optimizers_keep(installed: Callable[..., type]) -> None:
    """Seen: the rollouts of TRL's GRPOTrainer were neither carried nor named."""
    trainer: Any = installed("trl", "GRPOTrainer", installed("transformers", "Trainer"))()
    trainer.rollouts, trainer.metrics = [{"ids": torch.zeros(2), "n": None}], {"loss": [1.0]}
    trainer.steps, trainer.last = 3, torch.zeros(3)
    trainer.accelerator = installed("transformers", "Accelerator")()
    trainer.accelerator.losses, trainer.accelerator.count = [2.0], 9
    kind = installed("optimizers", "Lookahead", torch.optim.SGD)
    weights = [nn.Parameter(torch.zeros(2))]
    optimizer, other = kind(weights, lr=0.1), kind(weights, lr=0.1)
    plain = torch.optim.SGD(weights, lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(plain, 1)
    optimizer.slow, optimizer.rounds = [torch.ones(2)], 2
    optimizer.helper = installed("optimizers", "Helper")()
    optimizer.helper.seen, optimizer.helper.base = 4, plain
    other.rounds = 5
    trainer.optimizer = optimizer
    walk = Walk()
    walk.trainer, walk.optimizers = lambda: trainer, lambda: [plain, optimizer, other]
    frames = walk.frames()
    reached = walk.walk(frames)
    kept = reached[-1]
    assert kept.function == KEPT == spot_of(frames[-1]).name
    assert {path: x for path, x in kept.values.items() if "." in path} == {
        "Lookahead.rounds": 2,
        "Lookahead.helper.seen": 4,
        "Lookahead_2.rounds": 5,
        "GRPOTrainer.steps": 3,
    }
    assert kept.containers == {
        "GRPOTrainer.metrics[loss]": [1.0],
    }
    assert {*kept.units} == {"GRPOTrainer.rollouts", "GRPOTrainer.last", "Lookahead.slow"}
    for one in reached[:-1]:
        assert not [x for x in one.units if x.startswith(("trainer.", "optimizer."))]
        assert not [x for x in one.values if x.startswith("optimizer.")]
    words = write_values(frames[-1], {"Lookahead_2.rounds": 6, "GRPOTrainer.steps": 4})
    assert len(words) == 2 and (other.rounds, trainer.steps) == (6, 4) and scheduler


def test_what_a_packages_logger_has_not_written(installed: Callable[..., type]) -> None:
    """Its columns and its rows; what it leads to is not looked into."""
    writer: Any = installed("logger", "Writer")()
    writer.rows, writer.columns, writer.step = [{"loss": 1.0}], ["loss"], 3
    writer.files = installed("logger", "Files")()
    writer.files.count = 7
    walk = Walk()
    walk.writers = lambda: [writer]
    kept = walk.walk(walk.frames())[-1]
    assert kept.function == KEPT and kept.values == {"Writer.step": 3}
    assert kept.containers == {"Writer.rows": [{"loss": 1.0}], "Writer.columns": ["loss"]}


def test_optimizers_that_keep_nothing_cost_nothing() -> None:
    walk = Walk()
    plain = torch.optim.Adam([nn.Parameter(torch.zeros(2))])
    walk.optimizers = lambda: [plain]
    torch.optim.lr_scheduler.StepLR(plain, 1)
    frame = sys._getframe()
    others = walk.with_others([frame])
    assert others[0] is frame and not walk.kept()


def test_an_optimizer_of_the_scripts_is_found_once() -> None:
    class Counted(torch.optim.SGD):
        def __init__(self, weights: Any) -> None:
            super().__init__(weights, lr=0.1)
            self.seen: list[float] = [0.5]

    optimizer = Counted([nn.Parameter(torch.zeros(2))])
    walk = Walk()
    assert [*walk.walk([sys._getframe()])[0].containers] == ["optimizer.seen"]
    walk.optimizers = lambda: [optimizer]
    found = walk.walk([sys._getframe(), *walk.kept()])
    assert [[*x.containers] for x in found] == [[], ["Counted.seen"]]


def test_objects_that_a_newcomer_lacks_are_made() -> None:
    def donor() -> tuple[Values, dict[str, Any]]:
        meters, plain, some = defaultdict(Meter), {"loss": Plain(3)}, [Plain(4)]
        meters["loss"] = Meter(2)
        found = found_in(sys._getframe(), Walk())
        assert meters
        assert plain
        assert some
        return found

    values, containers = donor()
    meters: Any = defaultdict(Meter)
    plain: Any = {}
    some: Any = []
    lists = {path: packed_values(list, x) for path, x in containers.items()}
    words = write_values(sys._getframe(), {**values, **lists})
    assert (meters["loss"].count, meters["loss"].local_rank) == (2, 7)
    assert (type(plain["loss"]), vars(plain["loss"])) == (Plain, {"count": 3, "values": [3]})
    assert (type(some[0]), vars(some[0])) == (Plain, {"count": 4, "values": [4]})
    assert "plain[loss] made" in words
    assert lacks(sys._getframe(), [*values, *lists]) == []


class AttributeDict(dict[str, int]):
    """As people write it."""


class Record:
    def __init__(self) -> None:
        self.metrics = {"loss": 1.0}


def test_an_object_that_cannot_be_made_from_its_values_is_not_made() -> None:
    some: Any = [AttributeDict(), Record()]
    some[0].x = 1
    values, _ = found_in(sys._getframe(), Walk())
    assert not [path for path in values if path.endswith("__class__")]
    name = f"{__name__}:AttributeDict"
    made: Any = {}
    words = write_values(sys._getframe(), {"made[x].__class__": name, "made[x].x": 1})
    assert (words, made) == ([], {})
    assert some


def test_a_number_stays_a_number_as_a_key() -> None:
    values: dict[str, Any] = {"meters[#3].__class__": f"{__name__}:Meter"}
    meters: dict[Any, Any] = {}
    factory: defaultdict[Any, Any] = defaultdict(Meter)
    values |= {"meters[#3].count": 4, "factory[#5].count": 6}
    write_values(sys._getframe(), values)
    assert [(key, x.count) for key, x in meters.items()] == [(3, 4)]
    assert [(key, x.count) for key, x in factory.items()] == [(5, 6)]


@pytest.mark.parametrize("value", [deque([1], maxlen=2), object()], ids=["deque", "object"])
def test_an_object_with_what_does_not_heal_is_not_made(value: object) -> None:
    meters = {"loss": Plain()}
    meters["loss"].values = value  # type: ignore[assignment]
    values, _ = found_in(sys._getframe(), Walk())
    assert "meters[loss].__class__" not in values
    assert "meters[loss].count" in values


class Slotted:
    __slots__ = ("count",)


def test_objects_with_slots_are_as_others() -> None:
    some: list[Any] = [Slotted(), Meter(2)]
    some[0].count = 5
    values, _ = found_in(sys._getframe(), Walk())
    assert values["some[0].count"] == 5
    del some[0]
    some.insert(0, Slotted())
    write_values(sys._getframe(), values)
    assert some[0].count == 5


def test_an_object_that_fails_ends_the_search_and_not_the_script(
    capfd: pytest.CaptureFixture[str],
) -> None:
    class Odd(Meter):
        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            raise RuntimeError("odd")

    odd, held = [Odd()], Walk()
    assert found_in(sys._getframe(), held) == ({}, {})
    assert found_in(sys._getframe(), held) == ({}, {})
    assert capfd.readouterr().err.count("finding them failed: RuntimeError: odd") == 1
    assert odd


def test_a_class_of_another_package_is_not_made() -> None:
    made: Any = {}
    values = {"made[x].__class__": "collections:OrderedDict", "made[x].count": 1}
    assert write_values(sys._getframe(), values) == []
    assert made == {}
    assert lacks(sys._getframe(), values) == ["made[x]"]


MODULE = """
steps = [x for x in range(2)]
x, count = 7, 0
set_to(count=1)
set_to(count=2, x=8)
[set_to(count=count + x) for x in (10,)]
"""


def test_a_module_has_what_was_set_last() -> None:
    """Since Python 3.12 a comprehension runs in its module's frame, of which ``f_locals`` may be a
    copy then. Writing one back gave the frame the comprehension's ``x`` for good."""

    def set_to(**values: Any) -> None:
        frame = sys._getframe(1)
        while frame.f_code.co_name != "<module>":
            assert frame.f_back is not None
            frame = frame.f_back
        write_values(frame, values)
        assert {name: variables_of(frame)[name] for name in values} == values

    variables: dict[str, Any] = {"set_to": set_to}
    exec(compile(MODULE, "script.py", "exec"), variables)
    assert (variables["count"], variables["x"]) == (12, 8)
