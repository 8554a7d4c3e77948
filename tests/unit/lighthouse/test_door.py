"""The door of many jobs: who is sent where, what it refuses, and its page."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import aiohttp

from ftrun.lighthouse.door import HouseStatus, serve_door
from ftrun.lighthouse.settings import ServiceSettings
from ftrun.protocol.auth import bearer, new_token
from ftrun.protocol.rpc import Connected, Disconnected, LighthouseConnection
from tests.unit.lighthouse.lighthouse_process import LighthouseProcess

TOKEN = new_token()
DEADLINE_S = 60.0
HOUSE: HouseStatus = {"job_id": "a", "agents_port": 1, "status_port": 2, "pid": 3, "starts": 4}


class FakeHouses:
    """``answer``: to whoever asks for a port. ``asked``: for which jobs."""

    def __init__(self, answer: int | str) -> None:
        self.answer = answer
        self.asked: list[str] = []

    async def port(self, job_id: str) -> int | str:
        self.asked.append(job_id)
        return self.answer

    def listed(self) -> list[HouseStatus]:
        return [HOUSE]

    async def stop(self) -> None:
        self.asked.append("stopped")


def behind_a_door(
    tmp_path: Path,
    houses: FakeHouses,
    use: Callable[[str, str], Coroutine[Any, Any, None]],
) -> None:
    """Serve a door and use it: by its addresses for agents and for people."""

    async def main() -> None:
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        settings = ServiceSettings(tmp_path, TOKEN, bind="127.0.0.1:0")
        serving = asyncio.ensure_future(serve_door(settings, houses, ready.set_result))
        found = re.search(r"agents (\S+), status http://(\S+)/jobs", await ready)
        assert found is not None
        try:
            await asyncio.wait_for(use(found[1], found[2]), DEADLINE_S)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            assert await asyncio.wait_for(serving, DEADLINE_S) == 0

    asyncio.run(main())
    assert houses.asked[-1] == "stopped"


async def first_event(address: str, job_id: str, wanted: type[Any]) -> Any:
    """The first event of this kind that an agent of the job has."""
    events: asyncio.Queue[Any] = asyncio.Queue()
    connection = LighthouseConnection([address], TOKEN, events.put_nowait, job_id=job_id)
    task = asyncio.ensure_future(connection.run())
    while not isinstance(event := await events.get(), wanted):
        pass
    connection.close()
    await task
    return event


def test_an_agent_is_sent_to_its_jobs_lighthouse(tmp_path: Path) -> None:
    (tmp_path / "house").mkdir()
    with LighthouseProcess(tmp_path / "house", TOKEN) as house:
        houses = FakeHouses(int(house.grpc.rpartition(":")[2]))

        async def use(agents: str, _people: str) -> None:
            event = await first_event(agents, "my-job", Connected)
            assert event.address == house.grpc

        behind_a_door(tmp_path, houses, use)
        assert houses.asked[0] == "my-job"


def test_an_agent_comes_back_if_nobody_is_where_it_was_sent(tmp_path: Path) -> None:
    houses = FakeHouses(1)

    async def use(agents: str, _people: str) -> None:
        event = await first_event(agents, "my-job", Disconnected)
        assert event.address == "127.0.0.1:1"
        event = await first_event(agents, "my-job", Disconnected)

    behind_a_door(tmp_path, houses, use)
    assert houses.asked[:2] == ["my-job", "my-job"]


def test_why_there_is_no_lighthouse_is_told(tmp_path: Path) -> None:
    houses = FakeHouses("this door has 256 jobs already")

    async def use(agents: str, _people: str) -> None:
        event = await first_event(agents, "my-job", Disconnected)
        assert "256 jobs already" in event.reason
        for name in ("", "../x", "a" * 65):
            event = await first_event(agents, name, Disconnected)
            assert "door of many jobs" in event.reason

    behind_a_door(tmp_path, houses, use)
    assert houses.asked == ["my-job", "stopped"]


def test_the_list_of_jobs_needs_the_token_and_its_page_does_not(tmp_path: Path) -> None:
    async def use(_agents: str, people: str) -> None:
        async with aiohttp.ClientSession() as client:

            async def ask(path: str, token: str = "") -> tuple[int, str]:
                headers = {"Authorization": bearer(token)} if token else {}
                async with client.get(f"http://{people}{path}", headers=headers) as answer:
                    return answer.status, await answer.text()

            assert (await ask("/jobs"))[0] == 401
            assert (await ask("/jobs", "a" * 64))[0] == 401
            status, text = await ask("/jobs", TOKEN)
            assert status == 200 and '"job_id": "a"' in text
            status, text = await ask("/")
            assert status == 200 and "/page/jobs.js" in text
            for path in ("/page/jobs.js", "/page/page.css", "/healthz"):
                assert (await ask(path))[0] == 200
            assert (await ask("/status", TOKEN))[0] == 404

    behind_a_door(tmp_path, FakeHouses(1), use)
