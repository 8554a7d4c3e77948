"""An agent's heartbeats, and the address at which people reach its lighthouse."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftrun.agent.link import LighthouseLink, web_address
from ftrun.base import clock
from ftrun.core.activity import Activity
from ftrun.core.ids import WorkerKey
from ftrun.core.messages import (
    FromAgent,
    Heartbeat,
    Hello,
    JobSpec,
    LeaveReason,
    Leaving,
    Progress,
    ReplicaFinished,
    RunningReplica,
    ToAgent,
    WorkerFacts,
    WorkerMessage,
)
from ftrun.protocol.auth import new_token
from ftrun.protocol.rpc import Disconnected
from tests.unit.lighthouse.lighthouse_process import LighthouseProcess

SPEC = JobSpec("job", 1, 1, 1, 5.0, 0.5, 60.0)
DEADLINE_S = 60.0


class Listener:
    """Notes when each answered request was sent."""

    def __init__(self, answers: int) -> None:
        self.asked_at: list[float] = []
        self.done = asyncio.Event()
        self._answers = answers

    def link_opened(self) -> None:
        """The Hello is the first request."""

    def link_message(self, message: ToAgent, asked_at: float | None) -> None:
        if asked_at is not None:
            self.asked_at.append(asked_at)
        if len(self.asked_at) == self._answers:
            self.done.set()

    def link_failed(self, ending: Disconnected) -> None:
        raise AssertionError(ending)


def test_few_heartbeats_ask_and_all_that_do_are_answered(tmp_path: Path) -> None:
    async def main(lighthouse: LighthouseProcess) -> list[float]:
        listener = Listener(answers=4)
        patient = replace(SPEC, heartbeat_timeout_s=DEADLINE_S)  # the lighthouse, with this link
        hello = Hello("node", patient, 8, "h", "s")
        link = LighthouseLink(listener, lambda: hello, lighthouse.token, SPEC)
        link.start([lighthouse.grpc])
        await asyncio.wait_for(listener.done.wait(), DEADLINE_S)
        await link.close()
        return listener.asked_at

    with LighthouseProcess(tmp_path, new_token()) as lighthouse:
        asked_at = asyncio.run(main(lighthouse))
        heard = lighthouse.status()["messages_received"]["Heartbeat"]
    assert asked_at == sorted(asked_at)
    assert heard > len(asked_at) - 1  # a Hello asked as well


def test_a_heartbeat_carries_what_was_measured_once_and_the_progress_of_the_whole_group(
    tmp_path: Path,
) -> None:
    started = RunningReplica("0", "a")

    async def main(lighthouse: LighthouseProcess) -> list[dict[str, Any]]:
        patient = replace(SPEC, heartbeat_timeout_s=DEADLINE_S, workers_per_replica=2)
        hello = Hello("node", patient, 8, "h", "s", (started,))
        link = LighthouseLink(Listener(answers=0), lambda: hello, lighthouse.token, SPEC)
        link.start([lighthouse.grpc])
        keys = [WorkerKey("0", "a", rank) for rank in (0, 1)]
        progress = Progress(0, 0, Activity.STARTING, step_s=0.5, own_s=0.25)
        link.note_progress(keys[0], progress)
        link.note_progress(keys[1], replace(progress, own_s=0.5))
        link.note_facts(tuple(WorkerFacts(key, 812 + key.group_rank, "cpu") for key in keys))
        deadline = clock.now() + DEADLINE_S
        while clock.now() < deadline:
            (replica,) = lighthouse.status()["replicas"] or [{"workers": []}]
            if replica["workers"]:
                break
            await asyncio.sleep(0.05)
        await link.close()
        return [replica]

    with LighthouseProcess(tmp_path, new_token()) as lighthouse:
        (replica,) = asyncio.run(main(lighthouse))
    assert [worker["pid"] for worker in replica["workers"]] == [812, 813]
    assert 0.0 <= replica["workers"][0]["age_s"] < DEADLINE_S
    assert (replica["step_s"], replica["own_s"]) == (0.5, 0.5)


def test_a_lighthouse_of_an_earlier_epoch_is_not_followed(tmp_path: Path) -> None:
    """It has lost its journal and the time of day, or has slept: it must rise above, or go."""
    failed: list[Disconnected] = []

    class Failing(Listener):
        def link_failed(self, ending: Disconnected) -> None:
            failed.append(ending)
            self.done.set()

    async def main(lighthouse: LighthouseProcess) -> tuple[int, list[float]]:
        listener = Failing(answers=1)
        hello = Hello("node", SPEC, 8, "h", "s")
        link = LighthouseLink(listener, lambda: hello, lighthouse.token, SPEC)
        assert link._epochs.accepts(2**30)
        link.start([lighthouse.grpc])
        await asyncio.wait_for(listener.done.wait(), DEADLINE_S)
        await link.close()
        return link.epoch, listener.asked_at

    with LighthouseProcess(tmp_path, new_token()) as lighthouse:
        epoch, asked_at = asyncio.run(main(lighthouse))
    assert epoch == 2**30
    assert asked_at == []  # its answers are no lease
    assert f"followed a lighthouse of epoch {2**30}" in failed[0].reason


@pytest.mark.parametrize(
    ("bound", "reached", "asked_at"),
    [
        ("127.0.0.1:8000", "127.0.0.1:29510", "127.0.0.1:8000"),
        ("10.0.0.1:8000", "10.0.0.1:29510", "10.0.0.1:8000"),
        ("0.0.0.0:8000", "head:29510", "head:8000"),
        (":::8000", "[fd00::1]:29510", "[fd00::1]:8000"),
        # It answers people of its own host only, and this is another.
        ("127.0.0.1:8000", "10.0.0.1:29510", None),
        ("", "10.0.0.1:29510", None),
    ],
)
def test_the_lighthouse_says_where(bound: str, reached: str, asked_at: str | None) -> None:
    assert web_address(bound, reached) == asked_at


class Sent:
    """A connection that keeps what is sent."""

    def __init__(self) -> None:
        self.messages: list[FromAgent] = []

    def send(self, message: FromAgent) -> bool:
        self.messages.append(message)
        return True


@pytest.mark.parametrize(
    "end",
    [
        ReplicaFinished("1", "a"),
        WorkerMessage(WorkerKey("1", "a", 0), Leaving(LeaveReason.FINISHED)),
    ],
)
def test_the_last_steps_of_a_replica_go_before_its_end(end: FromAgent) -> None:
    link = LighthouseLink(Listener(0), lambda: None, "token", SPEC)
    sent = Sent()
    link._connection, link._open = sent, True  # type: ignore[assignment]
    for replica_id in ("0", "1"):
        link.note_progress(WorkerKey(replica_id, "a", 0), Progress(7, 7, Activity.STEP))
    link.send(end)
    first, second = sent.messages
    assert second is end
    assert isinstance(first, Heartbeat) and first.quiet
    assert [(line.replica_id, line.progress.step) for line in first.progress] == [("1", 7)]
    assert [line.replica_id for line in link._take_progress()] == ["0"]  # the next heartbeat's
