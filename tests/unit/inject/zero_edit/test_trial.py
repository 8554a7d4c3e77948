"""What ``ftrun check`` finds out about the random numbers of a script."""

from __future__ import annotations

import copy
import mmap
import pickle
import random
import sys
import time
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch

from ftrun.inject.zero_edit import trial
from ftrun.inject.zero_edit.values.generators import state_of


@pytest.mark.parametrize("draws", [True, False])
def test_a_loaders_worker_that_draws_is_seen(draws: bool) -> None:
    shared = mmap.mmap(-1, 1)
    collate = trial._Collating(list, shared)
    for number in range(3):
        if draws:
            random.random()
        assert collate((number,)) == [number]
    assert shared[0] == draws


def test_a_worker_that_is_no_fork_gets_the_scripts_own_function() -> None:
    make, given = trial._Collating(len, mmap.mmap(-1, 1)).__reduce__()
    assert pickle.dumps(make) and make(*given) is len


def test_a_copy_of_a_model_is_not_looked_at() -> None:
    """Also where what notes has what no copy and no file can have."""
    model, noted, shared = torch.nn.Linear(2, 1), list[Any](), mmap.mmap(-1, 1)
    hook = trial._Hook(lambda *given: noted.append((given, shared)))
    model.register_forward_pre_hook(hook, with_kwargs=True)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301
        other(torch.zeros(1, 2))
    assert not noted
    model(torch.zeros(1, 2))
    assert len(noted) == 1


def test_what_a_teacher_gets_is_no_batch_of_a_step() -> None:
    """Seen: a replacement's first step had one input less, and the check failed by "other batches":
    a DistributedDataParallel ran in training mode before the pass with which its step began."""
    noted: Any = SimpleNamespace(_inputs={}, _step=3)
    model, batch = torch.nn.Linear(2, 1), (torch.ones(1, 2),)
    trial.Trial._note_inputs(noted, model, batch, {})
    with torch.no_grad():
        trial.Trial._note_inputs(noted, model, batch, {})
    assert len(noted._inputs[3]) == 1


def test_generators_that_the_script_has_made_are_seen() -> None:
    own: list[Any] = [random.Random(3), numpy.random.default_rng(3)]
    random.random()
    known = {id(x): state_of(x) for x in trial._generators()}
    random.random()
    assert {id(x): state_of(x) for x in trial._generators()} == known
    for generator in own:
        generator.random()
        assert state_of(generator) != known[id(generator)]


def test_an_uneven_clock_goes_on_in_leaps(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10.0]
    user: Any = SimpleNamespace(__name__="user")
    for name in ("time", "monotonic", "perf_counter"):
        plain: Any = lambda: now[0]  # noqa: E731
        plain_ns: Any = lambda: int(now[0] * 1e9)  # noqa: E731
        monkeypatch.setattr(time, name, plain)
        monkeypatch.setattr(time, f"{name}_ns", plain_ns)
        setattr(user, f"own_{name}", plain)
    waits = SimpleNamespace(__name__="threading", now=time.monotonic)
    monkeypatch.setattr(sys, "modules", {"time": time, "user": user, "threading": waits})
    trial._make_uneven()
    seen = []
    for now[0] in (10.0, 11.5, 12.0):
        seen.append((time.time(), time.perf_counter_ns(), user.own_monotonic(), waits.now()))
    assert [x[0] for x in seen] == [10.0, 10 + 1.5 / trial.SLOW, 12.0]
    assert [x[1] for x in seen] == [int(x[0] * 1e9) for x in seen]
    assert [x[2] for x in seen] == [x[0] for x in seen]
    assert [x[3] for x in seen] == [10.0, 11.5, 12.0]
