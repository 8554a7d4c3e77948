"""Samples on real Managers (scripted_agent.py): once per epoch, weighted, healed, drawn ahead.

Each replica adds up, as its weights, a one for every sample it has trained: the weights of the job
count how often each sample was trained.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from ftrun.base.errors import UserError
from ftrun.training.elastic_loader import ElasticLoader
from ftrun.training.elastic_sampler import ElasticSampler
from ftrun.training.lingering import linger
from ftrun.training.manager import Manager
from tests.unit.training.scripted_agent import DEADLINE_S, Job, job

SAMPLES = 50
DEPTH = 2


class Numbers(Dataset[int]):
    """Sample x is x."""

    def __init__(self, size: int = SAMPLES) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index


def works_ahead(loader: Any) -> Iterator[Any]:
    """In place of torch's worker processes, which must not be forked beside other Managers."""
    lists = iter(loader.batch_sampler)
    under_way = deque(next(lists) for _ in range(loader.num_workers * DEPTH))
    while True:
        loaded = torch.tensor([loader.dataset[x] for x in under_way.popleft()])
        under_way.append(next(lists))
        yield loaded


@pytest.fixture(autouse=True)
def _no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = DataLoader.__iter__
    monkeypatch.setattr(
        DataLoader, "__iter__", lambda self: (works_ahead if self.num_workers else plain)(self)
    )


class Trainer:
    """A replica's script. ``counts[x]``: the sum of the averaged gradients of sample x."""

    def __init__(self, running: Job, slot: str, workers: int | None = None, **rules: Any) -> None:
        self.counts = torch.zeros(SAMPLES, dtype=torch.float64)
        arguments = {"repair": "discard"} if rules.get("global_batch") else {}
        self.manager = running.add(
            slot,
            load_state_dict=lambda state: self.counts.copy_(state["counts"]),
            state_dict=lambda: {"counts": self.counts},
            **arguments,  # type: ignore[arg-type]
        )
        self.sampler = ElasticSampler(self.manager, Numbers(), rules.pop("batch_size", 4), **rules)
        loader: Any = DataLoader(Numbers(), batch_sampler=self.sampler)
        if workers is not None:
            loader = ElasticLoader(Numbers(), self.sampler, num_workers=workers)
        self.loader = loader
        self.seen: list[tuple[int, list[int], int]] = []  # step, batch, samples that count
        self.sizes: list[int] = []
        self.gradient = torch.zeros(SAMPLES, dtype=torch.float64)

    def train(self, epochs: int, strike: Any = None, replicas: int = 3) -> None:
        """Go through ``epochs``; then serve those of ``replicas`` that have to heal once more."""
        for _ in self.sampler.epochs(epochs):
            for batch in self.loader:
                self.step(batch.tolist(), strike)
        own = self.manager.session
        assert linger(own.engine, own.flow, own.exchanges, replicas, DEADLINE_S)

    def step(self, batch: list[int], strike: Any = None) -> None:
        sampler, manager = self.sampler, self.manager
        self.seen.append((manager.current_step(), batch, sampler.samples))
        if sampler.begins_step:
            manager.start_quorum()  # as zero_grad(): goes on with the step of the draw
            self.gradient.zero_()
        for x in batch:  # the mean of the batch's samples
            self.gradient[x] += sampler.fraction / len(batch)
        if not sampler.ends_step:
            return
        if strike is not None:
            strike(manager.current_step())
        reduced = manager.session.allreduce_bucket(self.gradient, True, None)  # as DDP's
        manager.session.await_buckets()
        reduced.wait()
        contributors = manager.contributors()
        if manager.should_commit():
            self.counts += self.gradient * self.samples_of_step(contributors)
            self.sizes.append(round(self.samples_of_step(contributors)))

    def samples_of_step(self, contributors: tuple[str, ...]) -> float:
        """Each sample of a step counts 1 / (samples of the step)."""
        return 1.0 / float(self.gradient[self.gradient > 0].min()) if self.gradient.any() else 0.0


def trainers(running: Job, slots: str, **rules: Any) -> dict[str, Trainer]:
    return {slot: Trainer(running, slot, **rules) for slot in slots}


def run(running: Job, found: dict[str, Trainer], epochs: int, **more: Any) -> None:
    running.run(lambda slot, manager: found[slot].train(epochs, **more), sorted(found))


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Job]:
    with job(tmp_path, 3, min_replicas=1) as three:
        yield three


def exactly(counts: torch.Tensor, epochs: int) -> bool:
    return torch.allclose(counts, torch.full_like(counts, float(epochs)), atol=1e-9)


@pytest.mark.parametrize("workers", [None, 0, 2], ids=["plain", "elastic", "two workers"])
def test_each_sample_is_trained_once_per_epoch(trio: Job, workers: int | None) -> None:
    found = trainers(trio, "012", workers=workers)
    run(trio, found, epochs=3)
    for trainer in found.values():
        assert exactly(trainer.counts, 3)
        assert trainer.sizes == [12, 12, 12, 12, 2] * 3
        assert (trainer.sampler.epoch, trainer.sampler.trained) == (3, 0)
    assert len(found["0"].sampler) == 5
    last = [trainer.seen[4] for trainer in found.values()]
    assert sorted(samples for _, _, samples in last) == [0, 1, 1], "one has nothing left to count"


def test_epochs_are_permuted_as_torchs_sampler_permutes_them(trio: Job) -> None:
    from torch.utils.data.distributed import DistributedSampler

    found = trainers(trio, "012", seed=5)
    run(trio, found, epochs=2)
    torchs = DistributedSampler(Numbers(), 1, 0, seed=5)  # type: ignore[var-annotated]
    for epoch in (0, 1):
        torchs.set_epoch(epoch)
        drawn = [found[slot].seen[5 * epoch + n][1] for n in range(4) for slot in "012"]
        assert [x for batch in drawn for x in batch] == list(torchs)[:48]


@pytest.mark.parametrize("workers", [None, 2], ids=["plain", "two workers"])
@pytest.mark.parametrize("dies", ["0", "1", "2"])
def test_a_death_returns_its_slice(trio: Job, dies: str, workers: int | None) -> None:
    """The step of the death counts, without the slice of the dead, which comes next."""
    found = trainers(trio, "012", workers=workers)
    gone = threading.Event()

    class Dead(Exception):
        pass

    def train(slot: str, manager: Manager) -> None:
        def strike(step: int) -> None:
            if slot == dies and step == 2:
                trio.agent.lose(slot)
                gone.set()
                raise Dead

        try:
            found[slot].train(2, strike, replicas=2)
        except Dead:
            return

    trio.run(train, "012")
    assert gone.is_set()
    for slot in set("012") - {dies}:
        assert exactly(found[slot].counts, 2)
        assert found[slot].sizes[0] == 12  # one that was late in step 1 heals, and counts later


def test_a_replacement_goes_on_at_the_position_of_its_peers(trio: Job) -> None:
    found = trainers(trio, "012", workers=2)
    for trainer in found.values():
        trainer.seen.clear()
    died, has_joined = threading.Event(), threading.Event()

    def strike_of(slot: str) -> Any:
        def strike(step: int) -> None:
            if slot == "2" and died.is_set():
                has_joined.set()
            elif slot == "2" and step == 3:
                died.set()
                raise InterruptedError
            elif died.is_set():
                has_joined.wait(0.3)  # one joins between two steps: the others go on slowly

        return strike

    def train(slot: str, manager: Manager) -> None:
        try:
            found[slot].train(6, strike_of(slot))
        except InterruptedError:
            manager.session.close(None)
            trio.agent.lose("2")
            trio.agent.restart("2")
            found["2"] = Trainer(trio, "2", workers=2)
            found["2"].train(6, strike_of(slot))

    trio.run(train, "012")
    positions = [trainer.sampler.state_dict() for trainer in found.values()]
    assert positions[0] == positions[1]
    for slot in "01":
        assert exactly(found[slot].counts, 6)
    assert found["2"].seen, "it has joined"
    assert found["2"].counts.equal(found["0"].counts) and positions[2] == positions[0]


def test_one_that_is_back_after_the_last_step_heals_and_finishes(trio: Job) -> None:
    """It joins peers that linger, and adds zeros in the step in which it joins."""
    found = trainers(trio, "012")

    class Dead(Exception):
        pass

    def train(slot: str, manager: Manager) -> None:
        def strike(step: int) -> None:
            if slot == "2" and step == 2:
                raise Dead

        try:
            found[slot].train(1, strike)
        except Dead:
            manager.session.close(None)
            trio.agent.lose("2")
            ended = [found["0"].sampler, found["1"].sampler]
            trio.agent.wait(lambda: all(sampler.epoch == 1 for sampler in ended), "the last step")
            trio.agent.restart("2")
            found["2"] = Trainer(trio, "2")
            found["2"].train(1)

    trio.run(train, "012")
    assert not found["2"].seen, "nothing was left to train"
    for trainer in found.values():
        assert exactly(trainer.counts, 1)


def test_a_step_that_is_voted_down_gives_its_batch_again(tmp_path: Path) -> None:
    with job(tmp_path, 1) as alone:
        trainer = Trainer(alone, "0")
        found = iter(trainer.loader)
        first = next(found).tolist()
        trainer.manager.start_quorum()
        trainer.manager.allreduce(torch.ones(1)).wait()
        trainer.manager.report_error(RuntimeError("no"))
        assert not trainer.manager.should_commit()
        assert next(found).tolist() == first
        assert trainer.sampler.trained == 0
        trainer.step(first)
        assert trainer.sampler.trained == 4
        assert next(found).tolist() != first


@pytest.mark.parametrize("workers", [None, 2], ids=["plain", "two workers"])
def test_a_global_batch_stays_when_a_replica_dies(trio: Job, workers: int | None) -> None:
    found = trainers(trio, "012", workers=workers, global_batch=16, batch_size=3)

    def train(slot: str, manager: Manager) -> None:
        def strike(step: int) -> None:
            if slot == "1" and step == 2:
                trio.reach(step, "02")
                raise InterruptedError

        try:
            found[slot].train(3, strike, replicas=2)
        except InterruptedError:
            manager.session.close(None)
            trio.agent.lose(slot)

    trio.run(train, "012")
    for slot in "02":
        assert exactly(found[slot].counts, 3)
        assert found[slot].sizes == [16, 16, 16, 2] * 3
    drawn = [batch for step, batch, _ in found["0"].seen if step == 0]
    assert [len(batch) for batch in drawn] == [3, 3], "16 samples, of 3 replicas: 6, 5 and 5"
    drawn = [batch for step, batch, _ in found["0"].seen if step == 4]
    assert [len(batch) for batch in drawn] == [3, 3, 2], "of 2 replicas: 8 each"


def test_batches_of_a_step_are_added_up(tmp_path: Path) -> None:
    with job(tmp_path, 2) as pair:
        found = trainers(pair, "01", batches_per_step=3, workers=2)
        run(pair, found, epochs=2, replicas=2)
        assert exactly(found["0"].counts, 2)
        assert found["1"].sizes == [24, 24, 2] * 2


# ---------------------------------------------------------------- checkpoints and refusals


def test_a_checkpoint_goes_on_with_other_batches(tmp_path: Path) -> None:
    with job(tmp_path, 1) as alone:
        trainer = Trainer(alone, "0")
        for batch in trainer.loader:
            trainer.step(batch.tolist())
            if trainer.sampler.trained == 20:
                break
        saved, counts = trainer.sampler.state_dict(), trainer.counts.clone()
    (tmp_path / "second").mkdir()
    with job(tmp_path / "second", 2) as pair:
        found = trainers(pair, "01", batch_size=7)
        for trainer in found.values():
            trainer.counts.copy_(counts)
            trainer.sampler.load_state_dict(saved)
            assert trainer.sampler.trained == 20
        run(pair, found, epochs=2, replicas=2)
        assert exactly(found["1"].counts, 2)
        assert found["0"].sizes[:3] == [14, 14, 2]


@pytest.mark.parametrize(
    ("change", "words"),
    [({"samples": 51}, "samples 51 there, 50 here"), ({"fresh_from": 99}, "no position in 50")],
    ids=["other data", "no position"],
)
def test_a_checkpoint_of_other_data_is_refused(
    tmp_path: Path, change: dict[str, int], words: str
) -> None:
    with job(tmp_path, 1) as alone:
        sampler = Trainer(alone, "0").sampler
        with pytest.raises(UserError, match=words):
            sampler.load_state_dict({**sampler.state_dict(), **change})


def test_what_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    with job(tmp_path, 1) as alone:
        trainer = Trainer(alone, "0")
        sampler, manager = trainer.sampler, trainer.manager
        with pytest.raises(UserError, match="has an ElasticSampler already"):
            ElasticSampler(manager, 10, 2)
        with pytest.raises(UserError, match="not all above 0"):
            ElasticSampler(manager, 0, 2)
        with pytest.raises(UserError, match="leave out one"):
            ElasticSampler(manager, 10, 2, batches_per_step=2, global_batch=4)
        with pytest.raises(UserError, match="takes no shuffle"):
            ElasticLoader(Numbers(), sampler, shuffle=True)
        with pytest.raises(UserError, match="batches must come in order"):
            ElasticLoader(Numbers(), sampler, in_order=False)
        with pytest.raises(UserError, match="no batch has been drawn"):
            _ = sampler.samples, sampler.fraction
        manager.start_quorum()
        with pytest.raises(UserError, match="a step without a batch of the ElasticSampler"):
            manager.allreduce(torch.ones(1))
        batches = iter(sampler)
        next(batches)
        with pytest.raises(UserError, match="before this step is decided"):
            next(batches)


def test_gradients_before_the_last_batch_of_a_step_are_refused(tmp_path: Path) -> None:
    with job(tmp_path, 1) as alone:
        trainer = Trainer(alone, "0", batches_per_step=2)
        next(iter(trainer.sampler))
        with pytest.raises(UserError, match="reduced after batch 1 of 2"):
            trainer.manager.allreduce(torch.ones(1))


def test_a_global_batch_needs_steps_that_are_computed_again(tmp_path: Path) -> None:
    with job(tmp_path, 1) as alone, pytest.raises(UserError, match='repair="discard"'):
        ElasticSampler(alone.add("0"), 10, 2, global_batch=4)
