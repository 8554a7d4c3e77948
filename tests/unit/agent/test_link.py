"""An agent's heartbeats, and the address at which people reach its lighthouse."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from ftrun.agent.link import LighthouseLink, web_address
from ftrun.core.messages import Hello, JobSpec, ToAgent
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
