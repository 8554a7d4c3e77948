"""An agent's heartbeats, and the address at which people reach its lighthouse."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from ftrun.agent.link import LighthouseLink, web_address
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
    ToAgent,
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

    def link_opened(self, address: str) -> None:
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
