"""The end of a worker's process groups: it is bounded, also where a backend's threads stay."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ftrun.core.ids import Attempt
from ftrun.core.messages import Built
from ftrun.core.quorum import Member, Quorum
from ftrun.process_groups.base import Place, ProcessGroup
from ftrun.process_groups.built import AbortSignal, BuiltGroup
from ftrun.training import groups as module
from ftrun.training.context import WorkerContext
from ftrun.training.groups import Groups
from tests.jobs.process import wait
from tests.unit.training.scripted_agent import DEADLINE_S, ScriptedAgent


class StayingGroup(BuiltGroup):
    """Its threads end when the test lets them."""

    def __init__(self, place: Place, may_end: threading.Event) -> None:
        super().__init__(place.rank, place.world_size, None, place.signal)
        self.is_shut_down, self._may_end = False, may_end

    def shutdown(self) -> None:
        super().shutdown()
        assert self._may_end.wait(DEADLINE_S)
        self.is_shut_down = True


class Staying(ProcessGroup):
    def __init__(self) -> None:
        super().__init__(timedelta(seconds=DEADLINE_S))
        self.may_end = threading.Event()
        self.made: list[StayingGroup] = []

    def getBackendName(self) -> str:
        return "staying"

    def _connect(self, place: Place) -> BuiltGroup:
        self.made.append(StayingGroup(place, self.may_end))
        return self.made[-1]


@pytest.fixture
def context(tmp_path: Path) -> Iterator[WorkerContext]:
    agent = ScriptedAgent(tmp_path, 1, 1)
    yield agent.context("0")
    agent.close()


@pytest.fixture
def staying() -> Iterator[Staying]:
    staying = Staying()
    yield staying
    staying.may_end.set()


def built(context: WorkerContext, staying: Staying) -> Groups:
    """Groups, of which one is built."""
    key, reports = context.key, list[Any]()
    has_reported = threading.Event()

    def report(event: Any) -> None:
        reports.append(event)
        has_reported.set()

    members = tuple(
        Member(replica_id, key.incarnation, (), "127.0.0.1:1")
        for replica_id in (key.replica_id, "9")
    )
    groups = Groups(context, staying, report, DEADLINE_S)
    groups.build(Quorum(Attempt(1, 1), members, "127.0.0.1:1"))
    assert has_reported.wait(DEADLINE_S) and reports == [Built(Attempt(1, 1))]
    return groups


def test_the_end_does_not_wait_for_a_collective_that_stays(
    context: WorkerContext, staying: Staying, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLOSE_TIMEOUT_S", 0.1)
    built(context, staying).close()
    [group] = staying.made
    assert group.aborted and not group.is_shut_down


def test_groups_are_released_where_no_thread_starts_any_more(
    context: WorkerContext, staying: Staying, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = built(context, staying)
    staying.may_end.set()

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    groups.close()
    assert staying.made[0].is_shut_down


class SlowGroup(BuiltGroup):
    """It is in the backend until the worker's end waits for it."""

    def __init__(self) -> None:
        super().__init__(0, 1, None, AbortSignal())
        self.is_shut_down = False

    def shutdown(self) -> None:
        main = threading.main_thread().ident or 0
        is_waited_for = lambda: any(  # noqa: E731
            frame.f_code.co_name == "join"
            for frame, _ in traceback.walk_stack(sys._current_frames()[main])
        )
        wait(is_waited_for, "the end", DEADLINE_S)
        self.is_shut_down = True


def test_the_end_waits_for_groups_that_the_script_s_world_has_given_up(
    context: WorkerContext, staying: Staying
) -> None:
    """A thread in the backend would be unwound through C++ as the interpreter ends: "terminate
    called without an active exception"."""
    staying.may_end.set()
    groups, slow = built(context, staying), SlowGroup()
    groups.release([slow])
    groups.close()
    assert slow.is_shut_down
