"""LocalSGD and DiLoCo on real Managers (scripted_agent.py): equal global weights, whoever dies."""

from __future__ import annotations

import hashlib
import random
import threading
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ftrun.base.errors import UserError
from ftrun.core.messages import Healed
from ftrun.torchft.local_sgd import DiLoCo, LocalSGD
from ftrun.training.fragments import Fragment
from ftrun.training.manager import Manager
from tests.unit.training.scripted_agent import DEADLINE_S, Job, job

FORMS: dict[str, dict[str, Any]] = {
    "local": {},
    "plain": {"fragments": 1},
    "quantised": {"fragments": 1, "should_quantize": True},
    "buckets": {"fragments": 1, "use_bucketization": True, "bucket_cap_mb": 1},
    "streaming": {"fragments": 2, "fragment_sync_delay": 1, "fragment_update_alpha": 0.25},
    "streaming, quantised": {
        "fragments": 2, "fragment_sync_delay": 1, "should_quantize": "fp8",
        "use_bucketization": True,
    },
}  # fmt: skip
SYNC_EVERY = 4


class Replica:
    """A model in one form of local training; its global weights after each outer step."""

    def __init__(self, running: Job, slot: str, form: str, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(8, 40), nn.BatchNorm1d(40), nn.Linear(40, 1))
        self.inner = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.outer = torch.optim.SGD(self.model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        self.manager = running.add(
            slot,
            use_async_quorum=form == "local",
            load_state_dict=self._load,
            state_dict=lambda: {"model": self.model.state_dict(), "inner": self.inner.state_dict()},
        )
        self.numbers = torch.Generator().manual_seed(seed + 7)
        self.digests: dict[tuple[int, str], str] = {}
        self.local = self._local(form)

    def _local(self, form: str) -> Any:
        arguments = dict(FORMS[form])
        if not arguments:
            return LocalSGD(self.manager, self.model, self.inner, SYNC_EVERY)
        layers = list(self.model)
        parts: list[nn.Module] = (
            [self.model] if arguments.pop("fragments") == 1 else [layers[0], layers[2]]
        )
        return DiLoCo(
            self.manager, parts, self.inner, self.outer, sync_every=SYNC_EVERY, **arguments
        )

    def _load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.inner.load_state_dict(state["inner"])

    def inner_step(self) -> None:
        self.inner.zero_grad()
        inputs = torch.randn((16, 8), generator=self.numbers)
        loss = (self.model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        loss.backward()
        before = self.manager.state_dict()["step"]
        self.inner.step()
        if self.local._local_step == 0:
            state = self.manager.state_dict()
            if state["step"] > before:  # else it is not committed here: the weights are its own
                self.digests[state["step"], state["lineage"]] = self.digest()

    def digest(self) -> str:
        """Of the global weights and the outer optimizer."""
        found = hashlib.sha256()
        for tensor in self.tensors():
            found.update(tensor.detach().contiguous().numpy().tobytes())
        return found.hexdigest()

    def tensors(self) -> list[torch.Tensor]:
        if isinstance(self.local, LocalSGD):
            return list(self.model.parameters())
        fragments = self.local._fragments
        found = [t for fragment in fragments for t in fragment.original_parameters.values()]
        state = self.outer.state_dict()["state"]
        return found + [state[key]["momentum_buffer"] for key in sorted(state)]


class Run:
    """Three replicas; ``victim`` dies once, after ``steps`` inner steps, and comes again."""

    def __init__(self, running: Job, form: str, victim: str, steps: int) -> None:
        self._running, self._form = running, form
        self._victim, self._steps = victim, steps
        self._end: int | None = None
        self.replicas = {slot: Replica(running, slot, form, int(slot)) for slot in "012"}
        self.first = self.replicas[victim]
        self._all_have_ended = threading.Barrier(3)

    def train(self, slot: str, manager: Manager) -> None:
        if slot == self._victim:
            with self.replicas[slot].local:
                for _ in range(self._steps):
                    self.replicas[slot].inner_step()
            self._running.die(slot)
            self._running.agent.restart(slot)
            self.replicas[slot] = Replica(self._running, slot, self._form, 100)
        replica = self.replicas[slot]
        with replica.local:
            while self._end is None or replica.manager.state_dict()["step"] < self._end:
                replica.inner_step()
                has_trained = replica.manager.batches_committed() > 0
                if slot == self._victim and self._end is None and has_trained:
                    self._end = replica.manager.state_dict()["step"] + 3
        # A peer may still lack the last result: if this one left, it would reduce again without it.
        self._all_have_ended.wait(DEADLINE_S)
        replica.manager.leave()


@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize("seed", [1, 2])
def test_global_weights_are_equal_after_each_outer_step(
    tmp_path: Path, form: str, seed: int
) -> None:
    drawn = random.Random(f"{form} {seed}")
    victim, steps = drawn.choice("012"), drawn.randrange(SYNC_EVERY, 6 * SYNC_EVERY)
    with job(tmp_path, 3, min_replicas=1) as three:
        run = Run(three, form, victim, steps)
        three.run(run.train)
        healed = three.agent.sent(victim, Healed)
    everyone = [*run.replicas.values(), run.first]
    compared = 0
    for state in run.replicas["0" if victim != "0" else "1"].digests:
        digests = {one.digests[state] for one in everyone if state in one.digests}
        assert len(digests) == 1, f"{state}: victim {victim} after {steps} inner steps"
        compared += 1
    assert compared >= 3 and healed and len(healed[-1].donors) == 1
    ends = {replica.digest() for replica in run.replicas.values()}
    assert len(ends) == 1


class _Dies(Exception):
    """The replica ends here."""


@pytest.mark.parametrize("form", [form for form in FORMS if form != "local"])
def test_a_death_within_an_outer_step_costs_the_survivors_nothing(
    tmp_path: Path, form: str
) -> None:
    """One dies when it has issued a part of its batch: the others reduce all of it again."""
    with job(tmp_path, 3, min_replicas=1) as three:
        replicas = {slot: Replica(three, slot, form, int(slot)) for slot in "012"}
        gone = threading.Event()

        def train(slot: str, manager: Manager) -> int:
            replica = replicas[slot]
            with replica.local:
                while manager.state_dict()["step"] < 2:
                    replica.inner_step()
                before = manager.state_dict()["step"]
                if slot == "2":
                    _break_in_batch(manager)
                    with pytest.raises(_Dies):
                        while True:
                            replica.inner_step()
                    three.die(slot)
                    gone.set()
                    return 0
                for _ in range(SYNC_EVERY):
                    replica.inner_step()
                assert gone.wait(DEADLINE_S)
                while manager.state_dict()["step"] == before:
                    replica.inner_step()
            assert manager.num_participants() == 2
            return manager.state_dict()["step"] - before

        steps = three.run(train)
        inner = FORMS[form]["fragments"]
        assert steps == [inner, inner, 0]  # no outer step was computed again
        assert replicas["0"].digest() == replicas["1"].digest()


def _break_in_batch(manager: Manager) -> None:
    """Let the script end when it has issued one reduction of its next batch."""
    issue, issued = manager.session.issue, 0

    def count(reduction: Any) -> Any:
        nonlocal issued
        issued += 1
        if issued > 1 or reduction.closes:
            raise _Dies
        return issue(reduction)

    manager.session.issue = count  # type: ignore[method-assign]


@pytest.mark.parametrize("batched", [True, False], ids=["batch", "no batch"])
def test_only_a_batch_can_be_repaired_when_some_results_have_come(
    tmp_path: Path, batched: bool
) -> None:
    issued = threading.Barrier(3)
    with job(tmp_path, 3, min_replicas=1) as three:

        def reduce(slot: str, manager: Manager) -> tuple[bool, float]:
            manager.start_quorum()
            tensors = [torch.full((2,), float(slot)) for _ in range(3)]
            with suppress(UserError), manager.batch() if batched else nullcontext():
                works = [manager.allreduce(tensor) for tensor in tensors[:2]]
                if not batched:
                    works[0].wait()
                issued.wait(DEADLINE_S)
                if slot == "2":
                    three.die(slot)
                    return False, 0.0
                works.append(manager.allreduce(tensors[2]))
            for work in works:
                work.wait()
            return manager.should_commit(), tensors[0][0].item()

        for slot in "012":
            three.add(slot)
        assert three.step() == [True] * 3
        found = three.run(reduce)[:2]
    assert [committed for committed, _ in found] == [batched, batched]
    if batched:
        assert [mean for _, mean in found] == [0.5, 0.5]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"sync_every": 0}, "each needs a step of its own"),
        ({"sync_every": 3, "parts": 2}, "is no multiple of 2"),
        ({"fragment_sync_delay": 4}, "at most 3"),
        ({"fragment_sync_delay": -1}, "at most 3"),
        ({"fragment_update_alpha": 1.5}, "from 0 to 1"),
        ({"bucket_cap_mb": 0, "use_bucketization": True}, "more than 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_schedule_that_cannot_be_kept_is_refused(
    tmp_path: Path, arguments: dict[str, Any], error: str
) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parts = list(model)[: arguments.pop("parts", 1)]
    with job(tmp_path, 1) as single:
        manager = single.add("0", use_async_quorum=False)
        with pytest.raises(ValueError, match=error):
            DiLoCo(manager, parts, optimizer, optimizer, **{"sync_every": 4, **arguments})


def test_what_would_train_nothing_is_refused(tmp_path: Path) -> None:
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    with job(tmp_path, 1) as single:
        manager = single.add("0")
        with pytest.raises(ValueError, match="use_async_quorum=False"):
            DiLoCo(manager, [model], inner, inner, 4)
    (second := tmp_path / "second").mkdir()
    with job(second, 1) as single:
        manager = single.add("0", use_async_quorum=False)
        with pytest.raises(UserError, match="never change"):
            DiLoCo(manager, [model], inner, torch.optim.SGD(other.parameters(), lr=0.1), 4)
        with pytest.raises(AssertionError, match="2 outer optimizers for 1"):
            DiLoCo(manager, [model], inner, [inner, inner], 4)


def test_an_outer_step_leaves_other_fragments_and_inner_gradients_alone(tmp_path: Path) -> None:
    """One outer optimizer of all parameters steps the fragment whose turn it is."""
    model: Any = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    outer = torch.optim.SGD(model.parameters(), lr=1.0)
    with job(tmp_path, 1) as single:
        manager = single.add("0", use_async_quorum=False)
        with DiLoCo(manager, list(model), inner, outer, sync_every=2):
            before = model[1].weight.detach().clone()
            model(torch.ones(2, 3)).sum().backward()
            gradient = model[1].weight.grad
            assert gradient is not None
            inner.step()  # and the outer step of the first fragment
            torch.testing.assert_close(model[1].weight.detach(), before - 0.1 * gradient)
            assert model[1].weight.grad is gradient and model[0].weight.grad is None


def test_a_parameter_larger_than_a_bucket_has_one_of_its_own(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(700, 700), nn.Linear(700, 4), nn.Linear(4, 2).double())
    before = [p.detach().clone() for p in model.parameters()]
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    outer = torch.optim.SGD(model.parameters(), lr=1.0)
    with job(tmp_path, 1) as single:
        manager = single.add("0", use_async_quorum=False)
        local = DiLoCo(manager, [model], inner, outer, 1, use_bucketization=True, bucket_cap_mb=1)
        with local:
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            inner.step()
    # Alone, with an outer rate of 1, an outer step comes to where the inner one has been.
    for parameter, was in zip(model.parameters(), before, strict=True):
        torch.testing.assert_close(parameter.detach(), was - 0.1)
    names = [set(bucket) for bucket in _bucket_names(model, 1 << 20)]
    assert names == [{"0.weight"}, {"0.bias", "1.weight", "1.bias"}, {"2.weight", "2.bias"}]


def _bucket_names(model: nn.Module, limit: int) -> list[list[str]]:
    fragment: Any = object.__new__(Fragment)
    fragment._grads = {name: p.detach() for name, p in model.named_parameters()}
    found: list[list[str]] = fragment._buckets(limit)
    return found
