"""Tensors and arrays that a script keeps outside its modules."""

from __future__ import annotations

import copy
import sys
import weakref
from collections import Counter, defaultdict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.optim.swa_utils import AveragedModel

from ftrun.inject.zero_edit import around
from ftrun.inject.zero_edit.models import Models
from ftrun.inject.zero_edit.patches import Patches
from ftrun.inject.zero_edit.values.histories import DIGEST
from ftrun.inject.zero_edit.values.tensors import (
    AS,
    ATTRIBUTES,
    LATE,
    MODULES,
    REBOUND,
    STILL,
    UNITS,
    Tensors,
)
from ftrun.inject.zero_edit.values.units import mapped
from ftrun.inject.zero_edit.values.walk import Reached, Walk
from ftrun.inject.zero_edit.values.writing import set_to

HERE = "test_tensors.py"


class Average:
    """A script's own class."""

    def __init__(self) -> None:
        self.shadow = {"a": torch.zeros(2), "b": torch.zeros(3)}
        self.slow = [torch.zeros(2)]
        self.last = torch.zeros(2)
        self.name = "average"


def draw(tensors: Tensors) -> None:
    """The script draws a batch in the caller's frame."""
    frame = sys._getframe(1)
    tensors.look(tensors._walk.walk([frame]))


def of(tensors: Tensors) -> dict[str, Any]:
    """What heals, by path."""
    units = tensors.state()[UNITS].items()
    return {key.split(" ", 1)[1]: entry["value"] for key, entry in units if AS not in entry}


def test_units() -> None:
    variables = {
        "average": Average(),
        "table": numpy.zeros((2, 2)),
        "names": ["a", "b"],
        "numbers": [1.0] * 1000,
        "model": nn.Linear(2, 2),
        "parameters": list(nn.Linear(2, 2).parameters()),
        "nested": {"config": {"lr": 0.1}, "best": {"state": {"w": torch.ones(2)}, "epoch": 3}},
        "mixed": [torch.zeros(2), object()],
        "rank_table": torch.zeros(2),
    }
    assert list(Walk().walk([sys._getframe()], [variables])[0].units) == [
        *("table", "parameters", "nested", "average.shadow", "average.slow", "average.last"),
    ]


def test_what_never_changes_belongs_to_its_replica() -> None:
    tensors, data, average = Tensors(lambda: ()), torch.randn(4), Average()
    draw(tensors)
    tensors.begin()
    for _ in range(3):
        draw(tensors)
        average.shadow["a"] = average.shadow["a"] + 1
        average.slow[0].add_(1)
    draw(tensors)
    assert data.numel() == 4
    assert sorted(of(tensors)) == ["average.shadow", "average.slow"]


def test_batches_and_results_are_not_kept() -> None:
    tensors = Tensors(lambda: ())
    draw(tensors)
    tensors.begin()
    for step in range(3):
        batch, group = {"x": torch.randn(2)}, [torch.randn(2)]
        loss = torch.zeros(2) + step
        loss.add_(1)
        draw(tensors)
        assert len(batch) == len(group)
        del batch, group  # the draw gives others
        assert of(tensors) == {}


def test_a_batch_is_not_held() -> None:
    tensors = Tensors(lambda: ())
    draw(tensors)
    tensors.begin()
    batch = torch.randn(2)
    held = weakref.ref(batch)
    draw(tensors)
    batch = torch.randn(2)
    assert held() is None and batch is not None


def test_data_of_a_phase_heal_from_its_first_draw_on() -> None:
    """Seen: a newcomer trained on what it had collected itself, because its peers' data were new
    at each phase, and are not changed in place."""
    tensors = Tensors(lambda: ())
    draw(tensors)
    tensors.begin()
    for phase in range(3):
        data = torch.full((2,), float(phase))
        frame = sys._getframe()
        tensors.look(tensors._walk.walk([frame]), begins=not phase)  # then the name is known
        for _ in range(3):
            assert torch.equal(of(tensors)["data"], data)
            batch = data + 1
            draw(tensors)
        assert list(of(tensors)) == ["data"] and batch.numel() == 2


def test_a_batch_with_two_steps_is_each_ranks_own_unless_it_changes() -> None:
    """Seen: a script that steps two optimizers with a batch got its donor's."""
    tensors, batch = Tensors(lambda: ()), torch.ones(2)
    draw(tensors)
    tensors.begin()
    for batch in (torch.zeros(2), torch.ones(2)):  # noqa: B007 - the loop draws into it
        for _ in range(3):
            frame = sys._getframe()
            names = around.drawn(frame.f_code, frame.f_lineno)
            assert names == {"batch", "_"}
            tensors.look(tensors._walk.walk([frame]), [names], begins=True)
            assert "batch" not in of(tensors)
    batch.add_(1)
    assert "batch" in of(tensors)


def test_a_copy_of_the_best_state_is_kept_at_once() -> None:
    """Seen: a newcomer at the first batch of an epoch lacked what an evaluation had kept."""
    model = nn.Linear(2, 2)
    tensors = Tensors(lambda: [model])
    draw(tensors)
    tensors.begin()
    draw(tensors)
    best = copy.deepcopy(model.state_dict())
    alias = model.state_dict()
    draw(tensors)
    assert list(of(tensors)) == ["best"] and best is not alias
    draw(tensors)
    assert list(of(tensors)) == ["best"]
    best = copy.deepcopy(model.state_dict())
    kept = best["weight"].clone()
    with torch.no_grad():
        model.weight.add_(1)
    draw(tensors)
    assert torch.equal(of(tensors)["best"]["weight"], kept)
    held = weakref.ref(best["weight"])
    del best
    assert held() is None and of(tensors) == {}


def test_a_dict_whose_tensors_are_all_new_each_time() -> None:
    """Seen: a new tensor had the id of the first one, so that nothing seemed to have changed."""
    tensors = Tensors(lambda: ())
    average = {"w": torch.zeros(2)}
    draw(tensors)
    tensors.begin()
    for number in range(1, 9):
        average["w"] = average["w"] + 1
        average["w"] = average["w"] * 1  # in the memory of the one before, mostly
        draw(tensors)
        assert of(tensors)["average"]["w"].tolist() == [number, number]
    average["w"] = average["w"] + 1  # at the end of a loop, without a draw
    assert of(tensors)["average"]["w"].tolist() == [9, 9]


def test_a_dict_gets_numbers_of_numpy_after_the_draw() -> None:
    """Seen in DINO: a group of the optimizer gets its learning rate so, and the job became one
    world, undisturbed."""
    tensors = Tensors(list)
    group: dict[str, Any] = {"params": [torch.zeros(2)], "lr": 0.1}
    for _ in range(2):
        draw(tensors)
    tensors.begin()
    draw(tensors)
    group["lr"] = numpy.float64(0.05)
    group["params"][0] += 1
    assert of(tensors)["group"]["lr"] == 0.05
    tensors.load(tensors.state())  # as a newcomer does, whose group has such a number already
    assert group["lr"] == 0.05
    here = "test_tensors.py:test_a_dict_gets_numbers_of_numpy_after_the_draw group"
    assert [x for x in tensors.digests() if "<module>" not in x] == [here]


def test_an_array_that_is_changed_in_place() -> None:
    tensors, table = Tensors(lambda: ()), numpy.zeros(3, dtype=numpy.int64)
    draw(tensors)
    tensors.begin()
    draw(tensors)
    assert of(tensors) == {}
    table[1] += 1
    draw(tensors)
    assert of(tensors)["table"].tolist() == [0, 1, 0]


def test_a_copy_of_a_parameter_is_kept_although_it_is_a_result_of_autograd() -> None:
    tensors, weight = Tensors(lambda: ()), torch.ones(2, requires_grad=True)
    average, doubled = [weight.clone(), weight.double()], [weight * 2]
    draw(tensors)
    tensors.begin()
    with torch.no_grad():
        for one in (*average, *doubled):
            one.add_(1.0)
    draw(tensors)
    assert [x.tolist() for x in of(tensors)["average"]] == [[2.0, 2.0], [2.0, 2.0]]
    assert "doubled" not in of(tensors)


def test_tensors_of_inference_mode_have_no_version_and_are_left_out() -> None:
    tensors = Tensors(lambda: ())
    draw(tensors)
    tensors.begin()
    with torch.inference_mode():
        kept = {"a": torch.zeros(2), "b": torch.zeros(())}
        alone = torch.zeros(3)
    for _ in range(3):
        draw(tensors)
    assert of(tensors) == {} and kept and alone.numel() == 3


def test_an_object_that_fails_ends_the_search_and_not_the_script(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Odd:
        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            raise ValueError("no")

    monkeypatch.setattr(sys, "__stderr__", sys.stderr)
    tensors, odd = Tensors(lambda: ()), Odd()
    draw(tensors)
    draw(tensors)
    assert odd is not None and of(tensors) == {}
    assert capsys.readouterr().err.count("because finding them failed") == 1


def test_what_is_always_another_tensor_is_named() -> None:
    tensors, average = Tensors(lambda: ()), Average()
    draw(tensors)
    tensors.begin()
    for _ in range(3):
        average.last = torch.zeros(2)
        draw(tensors)
    assert of(tensors) == {}
    assert tensors.changing() == [f"average.last ({HERE})"]
    newcomer = Tensors(lambda: ())
    newcomer.load(tensors.state())
    assert newcomer.state()[REBOUND] == tensors.state()[REBOUND] != []
    assert newcomer.lacking == ["average.last (rebound)"]


def test_what_several_frames_reach_is_carried_once() -> None:
    tensors, average = Tensors(lambda: ()), Average()

    def epoch(mine: Average) -> None:
        frames = [sys._getframe(), sys._getframe(1)]
        tensors.look(tensors._walk.walk(frames))
        mine.shadow["a"] = mine.shadow["a"] + 1

    epoch(average)
    tensors.begin()
    epoch(average)
    epoch(average)
    units = tensors.state()[UNITS]
    assert [key.split(" ", 1)[1] for key in units] == ["mine.shadow", "average.shadow"]
    assert [next(iter(unit)) for unit in units.values()] == ["value", AS]


def test_what_says_its_rank_stays_the_replicas_own() -> None:
    tensors, kept = Tensors(lambda: ()), {"rank": 1, "sum": torch.zeros(2)}
    draw(tensors)
    tensors.begin()
    draw(tensors)
    kept["sum"] = torch.ones(2)
    draw(tensors)
    assert list(of(tensors)["kept"]) == ["sum"]


def test_of_what_another_rank_has_left_for_its_successor_a_peer_takes_its_part() -> None:
    """In a generation is all of a worker's; who goes on from it in another replica is a peer."""
    tensors, walk = Tensors(lambda: ()), Walk()
    tensors._walk, walk.reaches_all = walk, True
    values = {"rank_sum": 1, "sum": 2}
    units = {
        "f kept": {"value": values, "device": ""},
        "f batch": {"value": 3, "device": ""},
        "m helper.total": {"value": 4, "device": ""},
        "f rank_total": {"value": 5, "device": ""},
        "f also": {AS: "f kept"},
        "f also.batch": {AS: "f batch"},
    }
    attributes = {"plain": {"net": {"layer rank_count": 1, "layer count": 2}}}
    tree = {UNITS: units, ATTRIBUTES: attributes, REBOUND: ["f x"], "modules": {"a": 1}}
    walk._far = {"m": frozenset({""}), "g": frozenset()}
    tensors._late = {("f", "batch")}
    own = tensors.own()
    assert own == {"late": ["f batch"], "far": {"m": [""]}}
    walk._far, tensors._late = {}, set()  # those of the one that takes it do not count
    assert tensors.without_own(tree, own) == {
        UNITS: {"f kept": {"value": {"sum": 2}, "device": ""}, "f also": {AS: "f kept"}},
        ATTRIBUTES: {"plain": {"net": {"layer count": 2}}},
        REBOUND: ["f also.batch", "f batch", "f rank_total", "f x", "m helper.total"],
        "modules": {"a": 1},
    }


def given(path: str, value: Any, device: str = "cpu") -> dict[str, Any]:
    """A state of the test's own function."""
    function = f"{HERE}:{sys._getframe(1).f_code.co_name}"
    return {f"{function} {path}": {"value": value, "device": device}}


@pytest.mark.usefixtures("as_script")
def test_a_newcomer_sets_tensors_in_place() -> None:
    tensors, average = Tensors(lambda: ()), Average()
    shadow, first, slow = average.shadow, average.shadow["a"], average.slow[0]
    units = given("average.shadow", {"a": torch.ones(2), "c": torch.ones(1)})
    tensors.load({UNITS: units | given("average.slow", [torch.full((2,), 5.0)])})
    assert average.shadow is shadow and shadow["a"] is first and average.slow[0] is slow
    assert first.tolist() == [1.0, 1.0] and slow.tolist() == [5.0, 5.0]
    assert shadow["c"].tolist() == [1.0] and tensors.lacking == []


class Momentum:
    """As optimizers that people write keep it: by parameters, by their ids, and by layers."""

    def __init__(self, model: nn.Module) -> None:
        self.all = list(model.parameters())
        self.model, self.first = model, torch.nn.Parameter(torch.ones(1))
        self.of: dict[Any, Any] = {p: torch.zeros_like(p) for p in self.all}
        self.steps = dict.fromkeys(self.all, 0)
        self.ids: dict[int, Any] = {}
        self.state: Any = defaultdict(dict)

    def step(self, by: float) -> None:
        for p in self.all:
            self.of[p].add_(by)
            self.steps[p] += 1
            self.ids[id(p)] = torch.full_like(p, by)
        for layer in self.model.children():
            self.state[layer]["rate"] = by
            self.state[layer]["sum"] = torch.ones(2) * by
        self.model.cache = {self.all[0]: torch.full((2,), by)}  # type: ignore[assignment]

    def values(self) -> Any:
        of = [float(self.of[p].detach().mean()) for p in self.all]
        ids = [float(self.ids[id(p)].mean()) for p in self.all]
        layers = [(self.state[x]["rate"], float(self.state[x]["sum"][1])) for x in self.model]  # type: ignore[attr-defined]
        cache: Any = self.model.cache
        return of, ids, layers, [self.steps[p] for p in self.all], float(cache[self.all[0]][0])


@pytest.mark.usefixtures("as_script")
def test_what_is_kept_by_parameters_or_layers_heals() -> None:
    """Seen by reading: it was neither carried nor named, and ids were those of the donor."""

    def rank(by: float, tree: Any = None) -> tuple[Any, Any, list[str]]:
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        momentum, tensors = Momentum(model), Tensors(lambda: [model])
        draw(tensors)
        tensors.begin()
        for _ in range(2):
            momentum.step(by)
            draw(tensors)
        kept = [*momentum.of.values()]
        if tree is not None:
            tensors.load(tree)
            assert all(x is y for x, y in zip(kept, momentum.of.values(), strict=True))
            return momentum.values(), {}, tensors.lacking
        momentum.of[momentum.first] = torch.ones(1)  # of no module
        draw(tensors)
        return momentum.values(), tensors.state(), []

    donors, tree, _ = rank(3.0)
    newcomers, _, lacking = rank(1.0, tree)
    assert newcomers == donors and lacking == ["momentum.of (rebound)"]


@pytest.mark.usefixtures("as_script")
def test_copies_of_parameters_heal_and_parameters_of_a_model_do_so_with_it() -> None:
    net = nn.Linear(2, 1)
    tensors, params = Tensors(lambda: [net]), list(net.parameters())
    average = [nn.Parameter(p.detach().clone()) for p in params]
    one, made = nn.Parameter(torch.tensor(1.0)), [params[0] * 2]  # a part of a graph
    draw(tensors)
    tensors.begin()
    draw(tensors)
    with torch.no_grad():
        for tensor in (*average, *params, one):
            tensor.add_(1)
    assert {*of(tensors)} == {"average", "one"} and made
    assert {path for _, path in tensors.carried()} == {"average", "one"}
    first = average[0]
    units = given("average", [torch.full((1, 2), 5.0), torch.zeros(1)])
    tensors.load({UNITS: units | given("one", torch.tensor(3.0))})
    assert average[0] is first and first.requires_grad and first.tolist() == [[5.0, 5.0]]
    assert type(one) is nn.Parameter and one.item() == 3.0


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.usefixtures("as_script")
def test_a_saved_checkpoint_has_the_tensors_of_an_optimizer_which_heal_with_it() -> None:
    model = nn.Linear(2, 2)
    adam = torch.optim.AdamW(model.parameters())
    tensors = Tensors(lambda: [model])
    tensors.stepping = lambda: [adam]
    draw(tensors)
    tensors.begin()
    for _ in range(3):
        model(torch.ones(2)).sum().backward()
        adam.step()
        draw(tensors)
    best = torch.ones(1)
    kept = {"model": model.state_dict(), "optimizer": adam.state_dict(), "best": best}
    for _ in range(3):
        draw(tensors)
        best.add_(1)
        adam.step()
    assert len(kept) == 3
    assert sorted(of(tensors)) == ["best"]


def test_a_dtensor_is_a_tensor_whose_shard_is_set(mesh: DeviceMesh) -> None:
    def sharded(value: float) -> Any:
        return distribute_tensor(torch.full((4,), value), mesh, [Shard(0)])

    tensors, average = Tensors(lambda: ()), Average()
    kept: Any = average
    kept.shadow, kept.slow, kept.last = {"a": sharded(0.0)}, [sharded(0.0)], sharded(0.0)
    norm = distribute_tensor(torch.tensor(2.0), mesh, [Replicate()])  # not read as one number
    draw(tensors)
    tensors.begin()
    assert of(tensors) == {}
    kept.shadow["a"].add_(1)
    kept.last.to_local().add_(1)
    draw(tensors)
    assert {*of(tensors)} == {"average.shadow", "average.last"} and norm.to_local() == 2.0
    before = kept.shadow["a"]
    units = given("average.shadow", {"a": sharded(7.0), "b": sharded(8.0)})
    tensors.load({UNITS: units | given("average.last", sharded(9.0))})
    assert kept.shadow["a"] is before and before.to_local().tolist() == [7.0] * 4
    assert kept.shadow["b"].to_local().tolist() == [8.0] * 4
    assert kept.last.to_local().tolist() == [9.0] * 4


def test_what_is_written_by_data_has_changed() -> None:
    tensors, average = Tensors(lambda: ()), {"w": torch.zeros(8, 9).t()}
    draw(tensors)
    tensors.begin()
    draw(tensors)
    assert of(tensors) == {}
    average["w"].data.mul_(0.9).add_(1)
    assert {*of(tensors)} == {"average"}


def test_what_is_made_anew_before_the_pass_is_given_as_at_the_draw() -> None:
    tensors, average = Tensors(lambda: ()), torch.zeros(2)
    tensors.keeps_all = True
    tensors.begin()
    draw(tensors)
    average = average + 1
    assert of(tensors)["average"].tolist() == [0.0, 0.0] and average.sum() == 2.0


@pytest.mark.usefixtures("as_script")
def test_two_names_of_one_object_stay_two_names() -> None:
    tensors, average = Tensors(lambda: ()), Average()
    tensors.begin()
    average.shadow = {"a": torch.ones(2)}
    best, last = average.shadow, average.last
    for _ in range(2):
        draw(tensors)
    last.add_(1)
    state = tensors.state()
    assert {*state[UNITS]} >= {f"{HERE}:{sys._getframe().f_code.co_name} best"}
    average.shadow, best, average.last, last = {}, {}, torch.zeros(2), torch.zeros(2)
    tensors.load(state)
    assert best is average.shadow and best["a"].tolist() == [1.0, 1.0]
    assert last is average.last and last.tolist() == [1.0, 1.0]


@pytest.mark.usefixtures("as_script")
def test_a_part_of_another_tensor_is_replaced() -> None:
    tensors, data = Tensors(lambda: ()), torch.zeros(4)
    part = data[:2]
    tensors.load({UNITS: given("part", torch.ones(2)) | given("new", torch.ones(1))})
    assert data.tolist() == [0.0] * 4
    assert part.tolist() == [1.0, 1.0]


@pytest.mark.usefixtures("as_script")
def test_what_has_no_place_is_named() -> None:
    tensors = Tensors(lambda: ())
    unknown = {"a.py:f x": {"value": 1, "device": ""}}
    tensors.load({UNITS: given("missing.shadow", torch.ones(2)) | unknown})
    assert tensors.lacking == ["missing.shadow", "x"]


@pytest.mark.usefixtures("as_script")
def test_a_newcomer_gives_what_it_has_got() -> None:
    tensors, average = Tensors(lambda: ()), Average()
    draw(tensors)
    tensors.begin()
    tensors.load({UNITS: given("average.shadow", {"a": torch.ones(2), "b": torch.ones(3)})})
    assert of(tensors)["average.shadow"]["a"].tolist() == [1.0, 1.0]
    assert average.name == "average"


@pytest.fixture
def as_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the frames of this file alone be the script's."""

    def frames() -> list[Any]:
        frame, found = sys._getframe(1), []
        while frame is not None:
            if frame.f_code.co_filename == __file__ and frame.f_code is not frames.__code__:
                found.append(frame)
            frame = frame.f_back  # type: ignore[assignment]
        return found

    monkeypatch.setattr("ftrun.inject.zero_edit.values.walk.script_frames", frames)


def test_a_module_that_was_made_late_heals_if_the_newcomer_has_made_it_too() -> None:
    theirs, ours = nn.Linear(2, 1), nn.Linear(2, 1)
    name = f"Linear (a.py:3){LATE} 1"
    both = {name: theirs, f"Net (a.py:9){LATE} 1": theirs}
    donor = Tensors(lambda: (), lambda: both)
    newcomer = Tensors(lambda: (), lambda: {name: ours})
    state = donor.state()
    assert set(state[MODULES]) == set(both)
    newcomer.load(state)
    assert torch.equal(theirs.weight, ours.weight)
    assert newcomer.words == ["Linear (a.py:3)"]
    assert newcomer.lacking == ["the Net (a.py:9), which was made after the first step"]
    other = Tensors(lambda: (), lambda: {name: nn.Linear(3, 1)})
    other.load(state)
    assert len(other.lacking) == 2 and other.words == []


class Learner(nn.Module):
    """Holds what is trained, and what follows it; as people write it, a count and an object too."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Linear(2, 1)
        self.teacher = nn.Linear(2, 1)
        self.register_buffer("updates", torch.zeros(()))

    def get_extra_state(self) -> Any:
        return {"names": ["a"], "code": len, "object": self}

    def set_extra_state(self, state: Any) -> None:
        self.extra = state


def of_learner(learner: Learner) -> tuple[Models, Tensors]:
    script: Any = SimpleNamespace(mates=None, world=None)
    models = Models(script)
    models._made = [(weakref.ref(x), "a.py:7") for x in (learner, *learner.children())]
    models.wrapped = [learner.student]
    return models, Tensors(lambda: models.wrapped, models.beside)


@pytest.mark.usefixtures("as_script")
def test_a_module_of_its_rank_that_nobody_has_changed_stays() -> None:
    nets = [nn.Linear(1, 1), nn.Linear(1, 1)]
    donor, newcomer = (Tensors(lambda: (), {"net 1": x}.copy) for x in nets)
    donor.begin()
    before = nets[1].weight.clone()
    newcomer.unlike = newcomer.again = frozenset({"net 1"})
    newcomer.load(donor.state())
    assert torch.equal(nets[1].weight, before) and newcomer.lacking == []
    nets[0].weight.data.add_(1)
    newcomer.load(donor.state())
    assert torch.equal(nets[1].weight, nets[0].weight) and len(newcomer.lacking) == 1
    newcomer.begin()
    assert newcomer.state()[STILL] == donor.state()[STILL] == []


def test_a_module_around_the_trained_one_heals_without_it() -> None:
    theirs, ours = Learner(), Learner()
    theirs.get_buffer("updates").add_(3)
    before = ours.student.weight.clone()
    (models, donor), (_, newcomer) = of_learner(theirs), of_learner(ours)
    assert [*models.beside().values()] == [theirs]
    newcomer.load(donor.state())
    assert torch.equal(theirs.teacher.weight, ours.teacher.weight) and ours.updates == 3
    assert torch.equal(before, ours.student.weight)
    assert ours.extra["names"] == ["a"] and ours.extra["object"] is ours
    assert newcomer.words == ["Learner (a.py:7)"]
    assert newcomer.lacking == ["object of Learner (a.py:7) (a Learner)"]


def test_a_wrapper_with_nothing_of_its_own_is_none_of_these() -> None:
    net = nn.Linear(2, 1)
    models = of_learner(Learner())[0]
    wrapper = nn.Sequential(net)
    models._made, models.wrapped = [(weakref.ref(wrapper), "a.py:9")], [net]
    assert models.beside() == {}


def test_an_average_that_one_rank_alone_keeps_is_named_and_asked_of_nobody() -> None:
    average, teachers = nn.Linear(2, 1), [nn.Linear(2, 1), nn.Linear(2, 1)]
    before = average.weight.clone()
    first = {"Linear (a.py:3) 1": average, "Linear (a.py:5) 1": teachers[0]}
    newcomer = Tensors(lambda: (), lambda: first)
    peer = Tensors(lambda: (), lambda: {"Linear (a.py:5) 1": teachers[1]})
    newcomer.load(peer.state())
    assert torch.equal(teachers[0].weight, teachers[1].weight)
    assert torch.equal(average.weight, before)
    assert newcomer.lacking == ["the Linear (a.py:3), which its peers lack"]
    peer.load(newcomer.state())
    assert peer.lacking == []


def test_modules_that_are_made_late_are_known_by_their_line() -> None:
    patches = Patches()
    script: Any = SimpleNamespace(mates=None, world=None)
    models = Models(script)
    models.install(patches)
    try:
        early = nn.Linear(2, 2)
        models.keep()
        assert [*models.beside().values()] == [early]
        models.wrapped.append(early)
        average, plain = AveragedModel(early), nn.ReLU()
        made = [nn.Linear(1, 1) for _ in range(2)]
        wrapper = nn.Sequential(early)
        [_, *found] = models.beside()
        modules = [models.beside()[name] for name in found]
    finally:
        patches.undo()
    assert modules == [average, *made]
    assert [name.partition(" ")[0] for name in found] == ["AveragedModel", "Linear", "Linear"]
    assert [name[-2:] for name in found] == [" 1", " 1", " 2"]
    assert plain
    assert wrapper
    del made, modules
    assert [*models.beside().values()] == [early, average]


def test_a_copy_of_a_state_has_its_kinds_of_dicts() -> None:
    """MultiStepLR asks its milestones, a Counter, for more than a dict can."""
    lists = defaultdict(list, a=[torch.ones(1)])
    state: dict[str, Any] = {"milestones": Counter({3: 1}), "of": lists}
    copied = mapped(state, torch.clone)
    assert type(copied["milestones"]) is Counter and copied["milestones"] == {3: 1}
    assert copied["of"]["a"][0] is not state["of"]["a"][0] and copied["of"]["b"] == []


class Rollouts(torch.optim.SGD):
    """Something of a package's that is another one at each generation."""

    def __init__(self) -> None:
        super().__init__([nn.Parameter(torch.zeros(1))], lr=0.1)
        self.kept: Any = None
        self.last = torch.zeros(2)

    def generate(self, value: float) -> None:
        self.last = torch.full((2,), -value)
        self.kept = [{"ids": torch.full((2,), value), "none": None} for _ in range(2)]


def of_package() -> tuple[Rollouts, Tensors]:
    one = Rollouts()
    walk = Walk()
    walk.optimizers = lambda: [one]
    tensors = Tensors(lambda: (), walk=walk)
    return one, tensors


def draws(tensors: Tensors) -> Reached:
    reached = tensors._walk.walk(tensors._walk.frames())
    tensors.look(reached)
    return reached[-1]


def test_what_a_package_makes_anew_heals_as_it_was_at_the_draw() -> None:
    one, tensors = of_package()
    draws(tensors)
    tensors.begin()
    for number in range(3):
        draws(tensors)
        one.generate(number)
    draws(tensors)
    one.generate(9)  # its peers do so too, from the place on
    assert of(tensors)["Rollouts.kept"][0]["ids"].tolist() == [2, 2]
    state = tensors.state()
    assert state[REBOUND] == [] and tensors.changing() == []
    other, newcomer = of_package()
    draws(newcomer)
    newcomer.begin()
    newcomer.load(state)
    assert [x["ids"].tolist() for x in other.kept] == [[2, 2], [2, 2]]
    assert other.last.tolist() == [-2, -2] and newcomer.lacking == []
    assert newcomer.words == ["Rollouts.kept (2 tensors)", "Rollouts.last (2)"]


def test_what_a_package_keeps_is_held_for_those_that_ask_only() -> None:
    one, tensors = of_package()
    tensors.begin()
    one.generate(1)
    draws(tensors)
    before = weakref.ref(one.kept[0]["ids"])
    one.generate(2)
    assert before() is not None
    tensors.let_go()
    assert before() is None
    found = [x.split(" ")[1] for x in tensors.state()[REBOUND]]
    assert found == ["Rollouts.kept", "Rollouts.last"]


@pytest.mark.parametrize("keeps_all", [False, True])
def test_what_a_package_keeps_for_some_steps_is_compared_between_ranks(keeps_all: bool) -> None:
    one, tensors = of_package()
    tensors.keeps_all, tensors.gives_all = keeps_all, not keeps_all
    tensors.begin()
    found = []
    for value in (1, 1, 2, 2, 1, 3, 3):
        if one.kept is None or one.kept[0]["ids"][0] != value:
            one.generate(value)
        found.append(draws(tensors).values[f"Rollouts.kept{DIGEST}"])
    first, second, third = found[1], found[2], found[6]
    assert found == ["", first, second, second, first, "", third]
    assert len({first, second, third}) == 3
    one.kept[1]["ids"].add_(1)  # in place
    assert draws(tensors).values[f"Rollouts.kept{DIGEST}"] not in found


def test_names_of_parameters_outside_the_models() -> None:
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.zeros(2))

    heat, pair, by_name = nn.Parameter(torch.zeros(2)), [nn.Parameter(torch.zeros(2))], Average()
    loss = Loss()
    tensors = Tensors(lambda: (), lambda: {"Loss (a.py:3) 1": loss})
    draw(tensors)
    names = tensors.names()
    assert names[id(heat)].endswith(" heat ") and names[id(loss.scale)] == "Loss (a.py:3) 1 0"
    assert names[id(by_name.shadow["b"])].endswith(" by_name.shadow b")
    assert id(pair[0]) not in names, "a list may be of a set"


def test_what_a_turn_hands_on_is_a_successors_and_a_peers_if_it_is_small() -> None:
    def play(name: str, *, keeps_all: bool, gives_all: bool) -> tuple[bool, ...]:
        """Whether it is a value, and is given, and is told to be lacking."""
        walk = Walk()
        tensors = Tensors(list, walk=walk)
        tensors.keeps_all, walk.reaches_all = keeps_all, keeps_all
        tensors.begin()
        small, large = torch.zeros(2), torch.zeros(1 << 12)
        for _ in range(3):
            small, large = small + 1, large + 1
            reached = walk.walk([sys._getframe()])
            tensors.hand_on(reached, [{"small", "large"}], batches=True)
            tensors.look(reached)
        tensors.gives_all = gives_all
        state = tensors.state()
        found = {x.split(" ")[1] for x in state[UNITS]}, {x.split(" ")[1] for x in state[REBOUND]}
        assert large.sum() == 3 << 12
        return (name in reached[0].values, *(name in x for x in found))

    for keeps_all in (False, True):
        assert play("small", keeps_all=keeps_all, gives_all=False) == (True, False, False)
        assert play("large", keeps_all=keeps_all, gives_all=False) == (False, False, True)
    assert play("small", keeps_all=True, gives_all=True) == (True, False, False)
    assert play("large", keeps_all=True, gives_all=True) == (False, True, False)


def test_what_is_made_of_a_batch_is_not_for_peers_because_it_lasts_for_two_steps_of_it() -> None:
    tensors, mean = Tensors(list), torch.zeros(2)
    features: Any = None
    tensors.keeps_all, tensors.gives_all = True, False
    draw(tensors)
    tensors.begin()
    given = []
    for step in range(1, 4):
        mean.add_(1)
        for has_batch in (False, True):
            features = torch.full((3,), step) if has_batch else features
            tensors.look(tensors._walk.walk([sys._getframe()]), has_batch=has_batch)
            given.append(sorted({"features", "mean"} & of(tensors).keys()))
    assert given == [["mean"]] * 6 and features[0] == 3
    tensors.gives_all = True
    assert {"features", "mean"} <= of(tensors).keys()


def test_a_tensor_that_is_equal_is_not_written_to() -> None:
    """Seen in HiFi-GAN: a window that autograd kept for the backward pass of the step."""
    net, window = nn.Linear(2, 2), torch.arange(4.0)
    loss = (net(torch.ones(2)).sum() * window).sum()
    assert set_to(window, torch.arange(4.0), "cpu", set()) is window
    loss.backward()
    assert set_to(window, torch.ones(4), "cpu", set()) is window
    assert torch.equal(window, torch.ones(4))
