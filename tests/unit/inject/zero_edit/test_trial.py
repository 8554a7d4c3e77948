"""What ``ftrun check`` records in a worker, and what is other in its second undisturbed run."""

from __future__ import annotations

import copy
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
from ftrun.inject.zero_edit.digests import marks_of
from ftrun.inject.zero_edit.frames import Spot
from ftrun.inject.zero_edit.values.generators import state_of


def test_workers_of_a_loader_draw_others_in_the_run_that_shows_what_may_differ() -> None:
    """Also where the script seeds them."""
    for plain in (None, lambda _: torch.manual_seed(3)):
        torch.manual_seed(3)
        expected = torch.rand(1), random.random(), numpy.random.random()
        torch.manual_seed(3)
        trial._Otherwise(plain)(0)
        found = torch.rand(1), random.random(), numpy.random.random()
        assert all(x != y for x, y in zip(expected, found, strict=True))


def test_a_loader_without_workers_is_left_as_it_is() -> None:
    init: Any = trial.Trial.watch_loader
    for is_other, workers in ((True, 0), (False, 2)):
        loader = SimpleNamespace(num_workers=workers, worker_init_fn=None)
        init(SimpleNamespace(is_other=is_other), loader)
        assert loader.worker_init_fn is None
    loader = SimpleNamespace(num_workers=2, worker_init_fn=None)
    init(SimpleNamespace(is_other=True), loader)
    assert pickle.loads(pickle.dumps(loader.worker_init_fn))  # noqa: S301


def test_what_is_differentiated_is_noted_by_step() -> None:
    noted: Any = SimpleNamespace(_losses={}, _step=3, _trained={1})
    told: list[Any] = []
    loss = torch.ones(1)
    trial.Trial.differentiates(noted, lambda *of, **by: told.append((of, by)), loss, create=True)
    assert noted._losses == {3: marks_of(loss)} and told == [((loss,), {"create": True})]
    noted._trained = set()
    trial.Trial.differentiates(noted, lambda *_: None, loss)
    assert noted._losses == {3: marks_of(loss)}, "before there is a model"


def test_batches_are_noted_after_what_looks_at_them() -> None:
    """A loader is named by the line that made it: a newcomer may begin to iterate elsewhere."""
    opened: Any = SimpleNamespace(on_batch=None, on_begin=None, before_draw=None)
    noted: Any = SimpleNamespace(_batches={}, _opened=None)
    made = Spot("a.py:main", 3)

    def iterator(number: int, drawn: int) -> Any:
        cursor = SimpleNamespace(drawn=drawn)
        return SimpleNamespace(made=(made, number), cursor=cursor, is_sampler=False)

    trial.Trial.watch_batches(noted, opened)
    assert opened.on_batch(iterator(0, 4), 1) == 1
    opened.on_batch = lambda iterator, batch: batch + 1
    trial.Trial.watch_batches(noted, opened)
    assert opened.on_batch(iterator(0, 4), 1) == 2
    assert opened.on_batch(iterator(1, 0), 1) == 2
    first, second = f"the loader made at {made}", f"the loader made at {made} (2)"
    marks = marks_of(1), marks_of(2)
    assert noted._batches == {first: {4: [*marks]}, second: {0: [marks[1]]}}


def test_a_copy_of_a_model_is_not_looked_at() -> None:
    """Also where what notes has what no copy and no file can have."""
    model, noted, shared = torch.nn.Linear(2, 1), list[Any](), iter(())
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


def test_what_is_drawn_between_a_file_and_the_next_batch_is_seen() -> None:
    """The successor of one that died while it wrote the file does not draw it, as in an
    evaluation. What an iterator draws as it begins it draws, too."""
    nothing: Any = lambda _: None  # noqa: E731
    noted: Any = SimpleNamespace(_written=b"", _drawn=set(), _step=3, _opened=None, _batches={})
    noted.look_at_draws = lambda: trial.Trial.look_at_draws(noted)
    opened: Any = SimpleNamespace(on_batch=None, on_begin=nothing, before_draw=nothing)
    trial.Trial.watch_batches(noted, opened)
    first, later = (SimpleNamespace(cursor=SimpleNamespace(drawn=n)) for n in (0, 1))
    torch.rand(1)
    opened.on_begin(first)
    assert not noted._drawn, "nothing was written"
    noted._written = trial._random_numbers()
    opened.on_begin(first)
    torch.rand(1)  # the seed of its workers
    opened.before_draw(first)
    assert not noted._drawn
    opened.before_draw(later)
    assert noted._drawn == {3}


def test_each_generator_draws() -> None:
    every = [torch.Generator(), random.Random(1), numpy.random.default_rng(1)]
    every.append(numpy.random.RandomState(1))
    before = [state_of(x) for x in every]
    trial._draw_from(every)
    assert all(x != state_of(y) for x, y in zip(before, every, strict=True))


def test_generators_that_a_newcomer_does_not_get_back_are_found() -> None:
    own: list[Any] = [random.Random(3), numpy.random.default_rng(3)]
    found = trial._generators_but(own[:1])
    assert any(x is own[1] for x in found) and not any(x is own[0] for x in found)
    pythons: Any = random.getstate
    assert not any(x is pythons.__self__ for x in found)


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
    for now[0] in (10.0, 11.5, 12.0, 18.0):
        seen.append((time.time(), time.perf_counter_ns(), user.own_monotonic(), waits.now()))
    assert [x[0] for x in seen] == [10.0, 10 + 1.5 / trial.SLOW, 13.0, 22.0]
    assert [x[1] for x in seen] == [int(x[0] * 1e9) for x in seen]
    assert [x[2] for x in seen] == [x[0] for x in seen]
    assert [x[3] for x in seen] == [10.0, 11.5, 12.0, 18.0]
