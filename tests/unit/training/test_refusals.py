"""Operations that cannot be carried out: no replica commits their step, and nobody is lost (C8)."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import ReduceOp, Work

from ftrun.core.lighthouse.events import LighthouseSettings
from ftrun.process_groups import ProcessGroupGloo
from ftrun.process_groups.built import FinishedWork
from ftrun.process_groups.wrappers import ErrorSwallowingProcessGroupWrapper
from ftrun.training.manager import Manager
from ftrun.training.reductions import Reduction
from tests.unit.training.scripted_agent import DEADLINE_S, Job, job

OFTEN = LighthouseSettings().attempts_max + 2
"""Tries of one step: more than an attempt may fail by the fault of a member."""


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Job]:
    """Two replicas, of which one is enough."""
    with job(tmp_path, 2, min_replicas=1) as both:
        yield both


def ones(*sizes: int, **kind: Any) -> torch.Tensor:
    return torch.ones(sizes or (3,), **kind)


REFUSED: dict[str, tuple[Callable[[], Any], Any]] = {
    "band": (ones, ReduceOp.BAND),
    "premul": (ones, ReduceOp.PREMUL_SUM),
    "order": (lambda: ones(dtype=torch.complex64), ReduceOp.MAX),
    "product": (lambda: ones(dtype=torch.complex64), ReduceOp.PRODUCT),
    "sparse": (lambda: ones(3, 3).to_sparse(), ReduceOp.SUM),
    "unsigned": (lambda: ones().to(torch.uint64), ReduceOp.SUM),
    "meta": (lambda: ones(device="meta"), ReduceOp.SUM),
    "list": (lambda: [ones(), ones()], ReduceOp.AVG),
    "none": (lambda: None, ReduceOp.SUM),
    "expanded": (lambda: ones(1).expand(4), ReduceOp.SUM),
    "overlapping": (lambda: ones(4).as_strided((2, 3), (1, 1)), ReduceOp.SUM),
}


def step(manager: Manager, tensor: Any, op: Any = ReduceOp.SUM) -> tuple[str, bool, int]:
    """One step with one reduction: its error, its outcome and the number of contributors."""
    manager.start_quorum()
    work = manager.allreduce(tensor, reduce_op=op)
    assert work.wait()
    assert work.get_future().done()
    error = manager.errored()
    text = "" if error is None else str(error.original_exception)
    return text, manager.should_commit(), manager.num_participants()


class CleanSteps:
    """Steps with results, each at its end in both replicas before either goes on.

    A replica that gives a step up interrupts its peer, which may have the step before it under way.
    """

    def __init__(self) -> None:
        self._both = threading.Barrier(2, timeout=DEADLINE_S)

    def __call__(self, manager: Manager, tensor: torch.Tensor) -> None:
        assert step(manager, tensor) == ("", True, 2)
        self._both.wait()


def test_what_cannot_be_reduced_is_an_error_of_the_step_and_the_next_is_clean(pair: Job) -> None:
    clean = CleanSteps()

    def run(slot: str, manager: Manager) -> None:
        clean(manager, ones())
        for name, (make, op) in REFUSED.items():
            text, committed, _ = step(manager, make(), op)
            assert text, name
            assert not committed, name
            clean(manager, total := ones())
            assert total.tolist() == [2.0, 2.0, 2.0], name

    pair.add("0")
    pair.add("1")
    pair.run(run)


def test_what_one_replica_alone_refuses_nobody_commits(pair: Job) -> None:
    """Its peer waits for the operation, and learns whose it is."""

    def run(slot: str, manager: Manager) -> list[tuple[str, bool, int]]:
        clean(manager, ones())
        found = []
        for _ in range(OFTEN):
            time.sleep(rng.choice((0.0, 0.1)))  # neither is always the first at a boundary
            found.append(step(manager, ones(1).expand(3) if slot == "0" else ones()))
        return [*found, step(manager, ones())]

    rng, clean = random.Random(1), CleanSteps()
    pair.add("0")
    pair.add("1")
    for slot, (*refused, last) in zip("01", pair.run(run), strict=True):
        assert last == ("", True, 2)
        assert [committed for _, committed, _ in refused] == [False] * OFTEN
        assert {contributors for _, _, contributors in refused} == {2}
        for text, _, _ in refused:
            assert "clone() it" in text
            assert slot == "0" or "refused at replica 0" in text


def test_tensors_of_odd_layouts_get_their_results(pair: Job) -> None:
    def run(slot: str, manager: Manager) -> None:
        number = int(slot) + 1
        lazy = torch.full((3,), number * (1 + 1j)).conj()
        negative = torch.full((3,), number * (1 + 1j)).conj().imag
        assert lazy.is_conj() and negative.is_neg()
        strided = torch.zeros(8).as_strided((3, 2), (2, 3))  # no two elements at one place
        strided += number
        expanded = torch.full((1, 3), float(number)).expand(1, 3)
        for tensor in (lazy, negative, strided, expanded):
            assert step(manager, tensor) == ("", True, 2)
        assert lazy.tolist() == [3 - 3j] * 3
        assert negative.tolist() == [-3.0] * 3
        assert strided.tolist() == [[3.0, 3.0]] * 3
        assert expanded.tolist() == [[3.0, 3.0, 3.0]]

    pair.add("0")
    pair.add("1")
    pair.run(run)


class BadFuture(FinishedWork):
    """A Work that does not keep to torch's interface."""

    def get_future(self) -> Any:
        raise AttributeError("this Work has no future")


class OddGroup(ProcessGroupGloo):
    """A script's own group, which fails while ``fails`` is set."""

    fails: Callable[[], Work] | None = None

    def allreduce(self, tensors: Any, opts: Any = ReduceOp.SUM) -> Work:  # type: ignore[override]
        return super().allreduce(tensors, opts) if self.fails is None else self.fails()


def _raises(error: Exception) -> Callable[[], Work]:
    def fail() -> Work:
        raise error

    return fail


FAILURES: dict[str, Callable[[], Work]] = {
    "raises": _raises(OSError("its own disk is full")),
    "in the Work": lambda: FinishedWork(error=ValueError("its own value")),
    "no future": lambda: BadFuture([]),
}


@pytest.mark.parametrize("at", ["1", "01"])
def test_what_a_group_of_the_script_raises_is_an_error_of_the_step(pair: Job, at: str) -> None:
    groups = {slot: OddGroup() for slot in "01"}
    for slot, group in groups.items():
        pair.add(slot, pg=group)

    clean = CleanSteps()

    def run(slot: str, manager: Manager) -> None:
        clean(manager, ones())
        for name, failure in FAILURES.items():
            for _ in range(1 if at == "1" else OFTEN // 2):
                groups[slot].fails = failure if slot in at else None
                text, committed, _ = step(manager, ones())
                assert not committed, name
                assert ("its own" in text) or ("no future" in text), (name, text)
        groups[slot].fails = None
        assert step(manager, ones()) == ("", True, 2)

    pair.run(run)


@pytest.mark.parametrize("at", ["1", "01"])
def test_what_a_wrapper_swallows_nobody_commits(pair: Job, at: str) -> None:
    groups = {slot: OddGroup() for slot in "01"}
    for slot, group in groups.items():
        pair.add(slot, pg=ErrorSwallowingProcessGroupWrapper(group))

    clean = CleanSteps()

    def run(slot: str, manager: Manager) -> None:
        clean(manager, ones())
        for name in ("raises", "in the Work"):
            groups[slot].fails = FAILURES[name] if slot in at else None
            text, committed, _ = step(manager, ones())
            assert not committed and "its own" in text, name
            groups[slot].fails = None
            clean(manager, total := ones())
            assert total.tolist() == [2.0, 2.0, 2.0]

    pair.run(run)


def test_a_reduction_completes_its_future_whatever_its_tensor_has_become() -> None:
    for finish in (lambda x: x.hand_out(2), lambda x: x.release()):
        reduction = Reduction(torch.ones(4, 2)[:, 0], ReduceOp.AVG)
        reduction.tensor = torch.ones(1).expand(4)  # as if its memory was shared meanwhile
        reduction.claim()
        finish(reduction)
        assert reduction.wait(60.0) and reduction.future.done()
        assert "single memory location" in str(reduction.failure)
