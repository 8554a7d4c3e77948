"""After the wait nothing writes for an aborted group; a collective that never ends is left."""

from __future__ import annotations

import multiprocessing
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch.distributed import Work

from ftrun.process_groups import writers
from ftrun.process_groups.gloo import GlooGroup, ProcessGroupGloo
from ftrun.process_groups.writers import (
    CHECKS,
    Builds,
    all_sleep,
    foreign_threads,
    wait_for_writers,
)
from tests.unit.process_groups.ranks import HOST, call_each, open_store, started


@pytest.fixture
def endless() -> Iterator[Work]:
    """A collective that its peer never joins, and that is never aborted."""
    _held, store = open_store()
    with started(1) as (peer,):
        peer.ask("build", store, "pair", 1, 2)
        group = ProcessGroupGloo().build(store, "pair", 0, 2, HOST, 60)
        peer.answer()
        yield group.allreduce([torch.ones(10)])
        group.shutdown()


def test_who_never_ends_is_left_when_all_threads_sleep(endless: Work) -> None:
    looks = iter([True, False, False, *[True] * CHECKS])
    assert wait_for_writers([endless], lambda: next(looks))
    assert next(looks, None) is None  # it was looked at so often


def test_nothing_is_looked_at_for_nothing() -> None:
    assert wait_for_writers([], lambda: pytest.fail("looked"))


def test_busy_threads_are_not_waited_for_without_end(
    endless: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "LIMIT_S", 0.05)
    assert not wait_for_writers([endless], lambda: False)
    monkeypatch.setattr(writers, "LIMIT_S", 1e9)
    assert wait_for_writers([endless], lambda: None)  # nothing is known of them


def test_a_built_group_knows_its_threads_and_whether_they_sleep() -> None:
    """On a torch that names threads otherwise, the wait would silently do nothing."""
    _held, store = open_store()
    with started(1) as (peer,):
        peer.ask("build", store, "pair", 1, 2)
        group = ProcessGroupGloo().build(store, "pair", 0, 2, HOST, 60)
        peer.answer()
        assert isinstance(group, GlooGroup)
        deadline = time.monotonic() + 60
        while not group.threads_sleep():
            assert time.monotonic() < deadline
        # On a torch that names its threads otherwise.
        while not all_sleep(group._tids, frozenset({"another kind"})):
            assert time.monotonic() < deadline
        group.shutdown()
        while group._tids & foreign_threads():  # they end with it, and are nobody else's
            assert time.monotonic() < deadline
        assert group.threads_sleep() is None


def test_threads_that_run_do_not_sleep_and_unknown_ones_are_not_judged() -> None:
    end, runs = threading.Event(), threading.Event()

    def works() -> None:
        runs.set()
        while not end.is_set():
            pass

    thread = threading.Thread(target=works, daemon=True)
    thread.start()
    try:
        assert runs.wait(60)
        assert thread.native_id is not None
        assert thread.native_id not in foreign_threads()
        name = frozenset({writers.thread_stat(thread.native_id)[0]})
        assert all_sleep((), name) is None
        deadline = time.monotonic() + 60
        # It runs, or waits for Python's lock and asks for that 200 times a second.
        for names, busy in ((name, False), (name | {"another kind"}, None)):
            while all_sleep({thread.native_id}, names) is not busy:
                assert time.monotonic() < deadline
    finally:
        end.set()
    thread.join(60)


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Threads wait for a processor, because many processes use one all the time."""
    burners = [multiprocessing.Process(target=_burn, daemon=True) for _ in range(processes)]
    for burner in burners:
        burner.start()
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.join()


def _burn() -> None:
    while True:
        pass


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_on_a_busy_machine_nobody_writes_late() -> None:
    """With a limit of 20 ms, 3 of 50 tensors became a sum of two quorums' gradients."""
    rng = random.Random(1)
    judged = 0
    _held, store = open_store()
    with started(2) as ranks, busy(16):
        for trial in range(30):
            delay_s, prefix = rng.uniform(0.0, 0.08), f"try/{trial}"
            late = call_each(
                ranks,
                "written_late",
                lambda rank, p=prefix, d=delay_s: (store, p, rank, d),  # type: ignore[misc]
            )
            assert not any(late), (trial, late)
            judged += late.count(0)
    assert judged > 30, "it was too busy to tell"


def test_threads_of_groups_that_were_built_at_the_same_time_are_not_told_apart() -> None:
    """Replicas that are threads of one process build theirs together."""
    builds = Builds()
    with builds.build() as first:
        with builds.build() as failed:
            pass
        assert first.has_own_threads
        with builds.build() as second:
            first.is_built = second.is_built = True
    with builds.build() as later:
        later.is_built = True
    assert not (first.has_own_threads or second.has_own_threads or failed.has_own_threads)
    assert later.has_own_threads
