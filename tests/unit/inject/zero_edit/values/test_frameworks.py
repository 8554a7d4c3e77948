"""What a framework's trainer keeps beside its loop heals, as it was at the place."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from ftrun.inject.zero_edit.frames import variables_of
from ftrun.inject.zero_edit.values.frameworks import Frameworks
from ftrun.inject.zero_edit.values.kinds import packed, unpacked
from ftrun.inject.zero_edit.values.walk import Walk
from ftrun.inject.zero_edit.values.writing import write_values


class Trainer:
    """As transformers' one: callbacks in a list that no frame names."""

    def __init__(self, *callbacks: Any) -> None:
        self.callback_handler = SimpleNamespace(callbacks=list(callbacks))
        self.state = SimpleNamespace(log_history=[])

    def train(self) -> FrameType:
        return sys._getframe()


class Patience:
    def __init__(self) -> None:
        self.waited = 0


class Counts:
    def __init__(self) -> None:
        self.seen, self.rank, self.table = 0, 1, torch.zeros(2)


class Loop:
    """As a loop of Lightning."""

    def __init__(self, *callbacks: Any) -> None:
        self.trainer = SimpleNamespace(callbacks=list(callbacks))

    def advance(self) -> FrameType:
        return sys._getframe()


@dataclass
class Sync:
    """As Lightning's."""

    fn: Any = None
    _should: bool = False
    rank_zero_only: bool = False
    group: Any = None


@dataclass
class Metadata:
    """As Lightning's, of which a second ``self.log`` must have an equal one."""

    fx: str
    name: str
    prog_bar: bool = False
    logger: bool = True
    on_step: bool = False
    on_epoch: bool = True
    reduce_fx: Any = "mean"
    enable_graph: bool = False
    add_dataloader_idx: bool = True
    dataloader_idx: int | None = None
    metric_attribute: str | None = None
    sync: Any = None

    def __post_init__(self) -> None:
        if isinstance(self.reduce_fx, str):
            self.reduce_fx = getattr(torch, self.reduce_fx)


class ResultMetric:
    """As Lightning's."""

    def __init__(self, meta: Metadata, is_tensor: bool) -> None:
        self.meta, self.is_tensor, self._update_count = meta, is_tensor, 0
        self.value, self.cumulated_batch_size = torch.tensor(0.0), torch.tensor(0)


class Results(dict[str, ResultMetric]):
    """As Lightning's."""

    def log(self, trainer: Any, value: float, size: int, reduce_fx: Any = "mean") -> None:
        meta = Metadata("training_step", "loss", on_step=True, reduce_fx=reduce_fx)
        meta.sync = Sync(trainer.strategy.reduce, True)
        metric = self.setdefault("training_step.loss", ResultMetric(meta, True))
        assert metric.meta == meta
        metric.value = metric.value + torch.tensor(value) * size
        metric.cumulated_batch_size = metric.cumulated_batch_size + size
        metric._update_count += 1


class Strategy:
    def reduce(self) -> None:
        """Over all ranks."""


class Best:
    """As ModelCheckpoint."""

    def __init__(self) -> None:
        self.models: dict[str, torch.Tensor] = {}

    def state_dict(self) -> dict[str, Any]:
        return {"models": self.models}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.models = state["models"]


@pytest.fixture(autouse=True)
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, name in ((Trainer, "transformers.trainer"), (Loop, "lightning.pytorch.loops")):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        monkeypatch.setattr(kind, "__module__", name)


def found(frame: FrameType) -> Frameworks:
    made = Frameworks()
    made.look([variables_of(sys._getframe()), variables_of(frame)])
    return made


def test_other_scripts_have_no_trainer() -> None:
    nothing = found(sys._getframe())
    assert not nothing.parts() and not nothing.callbacks


def test_the_log_of_transformers_heals() -> None:
    old, new = Trainer(Patience(), Counts()), Trainer(Patience(), Counts())
    donor, newcomer = found(old.train()), found(new.train())
    old.state.log_history.append({"loss": 0.5})
    for given, taken in zip(donor.parts(), newcomer.parts(), strict=True):
        taken.load_state_dict(given.state_dict())
    assert new.state.log_history == [{"loss": 0.5}]
    new.state.log_history.append({"loss": 0.4})
    assert len(old.state.log_history) == 1


def test_plain_values_of_callbacks_are_counters() -> None:
    read = []
    for seen in (7, 0):
        trainer = Trainer(Patience(), Counts())
        walk, frameworks = Walk(), found(trainer.train())
        walk.writers = partial(getattr, frameworks, "callbacks")
        trainer.callback_handler.callbacks[1].seen = seen
        (kept,) = walk.kept()
        read.append((kept, walk.walk([kept])[0].values))
    (_, donors), (newcomer, _) = read
    assert donors == {"Patience.waited": 0, "Counts.seen": 7}
    assert write_values(newcomer, donors) == ["Counts.seen 0→7"]
    assert trainer.callback_handler.callbacks[1].seen == 7
    assert not write_values(newcomer, {"Gone.seen": 1})


def test_peers_take_the_state_of_the_place() -> None:
    trainer = Trainer(Patience())
    donor = found(trainer.train())
    donor.capture()
    trainer.state.log_history.append({"loss": 0.5})
    assert [part.state_dict() for part in donor.parts()] == [{"log_history": []}]


def test_callbacks_of_lightning_heal_also_where_the_newcomer_has_none_of_their_tensors() -> None:
    old, new = Loop(Best()), Loop(Best())
    donor, newcomer = found(old.advance()), found(new.advance())
    old.trainer.callbacks[0].models["a.ckpt"] = torch.tensor(0.25)
    donor.capture()
    old.trainer.callbacks[0].models["b.ckpt"] = torch.tensor(0.125)
    state = donor.parts()[0].state_dict()
    assert "Tensor" not in repr(state)
    newcomer.parts()[0].load_state_dict(state)
    assert new.trainer.callbacks[0].models == {"a.ckpt": torch.tensor(0.25)}


def logging_loop() -> tuple[Loop, Results]:
    loop, results = Loop(), Results()
    loop.trainer.strategy = Strategy()
    loop.trainer._logger_connector = SimpleNamespace(_first_loop_iter=None)
    loop.trainer.fit_loop = SimpleNamespace(epoch_loop=SimpleNamespace(_results=results))
    return loop, results


@pytest.fixture
def results_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("lightning_results")
    names = {"_Metadata": Metadata, "_Sync": Sync, "_ResultMetric": ResultMetric}
    vars(module).update(names)
    monkeypatch.setitem(sys.modules, "lightning_results", module)
    monkeypatch.setattr(Results, "__module__", "lightning_results")
    return module


@pytest.mark.usefixtures("results_module")
def test_what_lightning_has_logged_of_an_epoch_heals() -> None:
    """Seen: the mean over an epoch was that of the steps since a death."""
    (old, donors), (new, own) = logging_loop(), logging_loop()
    donor, newcomer = found(old.advance()), found(new.advance())
    for value in (0.1, 0.7):
        donors.log(old.trainer, value, 4)
    old.trainer._logger_connector._first_loop_iter = False
    donor.capture()
    donors.log(old.trainer, 0.3, 2)
    newcomer.parts()[0].load_state_dict(donor.parts()[0].state_dict())
    assert new.trainer._logger_connector._first_loop_iter is False, "else all is reset"
    own.log(new.trainer, 0.3, 2)
    (theirs,), (mine,) = donors.values(), own.values()
    assert torch.equal(mine.value, theirs.value) and mine._update_count == 3
    assert int(mine.cumulated_batch_size) == 10


def test_another_lightning_keeps_its_sums(results_module: ModuleType) -> None:
    del results_module._Sync
    assert found(logging_loop()[0].advance()).parts() == []


@pytest.mark.usefixtures("results_module")
def test_a_sum_of_lightning_that_cannot_be_made_elsewhere_stays() -> None:
    loop, results = logging_loop()
    donor = found(loop.advance())
    results.log(loop.trainer, 0.5, 1, max)
    assert unpacked(donor.parts()[0].state_dict()["sums"]) == {}


@pytest.mark.parametrize("kind", [torch.float32, torch.int64, torch.bool, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_small_tensors_travel_as_numbers(kind: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.ones(shape).to(kind)
    back = unpacked(packed({"x": {"y": tensor}, "z": 1}))
    assert back["z"] == 1 and back["x"]["y"].dtype == kind
    assert back["x"]["y"].shape == tensor.shape and bool((back["x"]["y"] == tensor).all())


def test_a_second_trainer_takes_the_place_of_the_first() -> None:
    old, new = Trainer(Counts()), Trainer(Patience(), Counts())
    made = found(old.train())
    made.look([variables_of(new.train())])
    made.parts()[0].load_state_dict({"log_history": [{"loss": 1}]})
    assert new.state.log_history == [{"loss": 1}]
    assert made.callbacks == new.callback_handler.callbacks


def test_a_progress_bar_is_of_its_own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its numbers name lines that another process has drawn, and this one has not."""
    monkeypatch.setattr(Counts, "__module__", "lightning.pytorch.callbacks.progress.rich_progress")
    trainer = Loop(Counts())
    assert not found(trainer.advance()).callbacks
