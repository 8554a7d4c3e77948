"""A lighthouse that nobody has heard begins another life in the same process, on the same ports."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from ftrun.core import messages as m
from ftrun.protocol.auth import new_token
from ftrun.protocol.rpc import Connected, LighthouseConnection
from tests.unit.lighthouse.lighthouse_process import LighthouseProcess

TIMEOUT_S = 1.0
DEADLINE_S = 60.0
SPEC = m.JobSpec("job", 2, 2, 1, 60.0, TIMEOUT_S, 60.0, nodes=2)
HELLO = m.Hello("a", SPEC, 1, "host-a", "a:1")


class Talker:
    """An agent that says Hello on each stream, and speaks when it is told to."""

    def __init__(self, name: str, address: str, token: str) -> None:
        self._hello = replace(HELLO, agent_id=name, host=name, store=f"{name}:1")
        self.events: asyncio.Queue[object] = asyncio.Queue()
        self.connection = LighthouseConnection([address], token, self._on_event)
        self._task = asyncio.ensure_future(self.connection.run())

    def _on_event(self, event: object) -> None:
        if isinstance(event, Connected):
            self.connection.send(self._hello)
        self.events.put_nowait(event)

    async def welcome(self) -> m.Welcome:
        while True:
            event = await asyncio.wait_for(self.events.get(), DEADLINE_S)
            if isinstance(event, m.Welcome):
                return event

    async def close(self) -> None:
        self.connection.close()
        await self._task


def test_it_begins_again_when_it_hears_somebody(tmp_path: Path) -> None:
    async def main(lighthouse: LighthouseProcess) -> None:
        talkers = [Talker(name, lighthouse.grpc, lighthouse.token) for name in "ab"]
        first = [await talker.welcome() for talker in talkers]
        await asyncio.sleep(1.5 * TIMEOUT_S)  # the silence itself
        assert await asyncio.to_thread(lighthouse.status)  # it still serves
        talkers[0].connection.send(m.Heartbeat())
        again = [await talker.welcome() for talker in talkers]
        assert min(x.epoch for x in again) > max(x.epoch for x in first)
        attached = (await asyncio.to_thread(lighthouse.status))["agents"]
        assert sorted(x["agent_id"] for x in attached) == ["a", "b"]
        for talker in talkers:
            await talker.close()

    with LighthouseProcess(tmp_path, new_token()) as lighthouse:
        asyncio.run(main(lighthouse))
        assert lighthouse.wait_for("cut off from all of them")
        assert lighthouse.log.count("lighthouse ready") == 2
        assert "no heartbeat" not in lighthouse.log
