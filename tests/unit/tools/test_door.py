"""The lighthouses behind a door, without their processes: limits, starts and ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from ftrun.lighthouse.settings import ServiceSettings
from ftrun.protocol.embedding import Embedding, ServiceAddress
from ftrun.tools import door
from ftrun.tools.door import Houses

ADDRESS = ServiceAddress("0.0.0.0:4001", "0.0.0.0:4002", 77)


class FakeLighthouse:
    """Comes up, or ends, when the test says so."""

    made: list[FakeLighthouse]

    def __init__(
        self,
        embedding: Embedding,
        guard_id: str,
        log_path: Path,
        on_ready: Callable[[ServiceAddress], None],
        on_end: Callable[[str, float | None], None],
    ) -> None:
        self.embedding, self.on_ready, self.on_end = embedding, on_ready, on_end
        self.stopped = False
        FakeLighthouse.made.append(self)

    def start(self) -> None:
        pass

    async def stop(self, limit_s: float) -> None:
        self.stopped = True


@pytest.fixture
def houses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Houses:
    monkeypatch.setattr(door, "EmbeddedLighthouse", FakeLighthouse)
    monkeypatch.setattr(door, "START_S", 0.01)
    monkeypatch.setattr(FakeLighthouse, "made", [], raising=False)
    return Houses(ServiceSettings(tmp_path, "a" * 64, bind="10.0.0.1:29510"))


def test_a_job_has_one_lighthouse_which_comes_and_goes(houses: Houses, tmp_path: Path) -> None:
    async def play() -> None:
        assert await houses.port("a") == "this job's lighthouse is being started"
        assert await houses.port("a") == "this job's lighthouse is being started"
        (one,) = FakeLighthouse.made
        told = one.embedding
        assert told.state_dir == str(tmp_path / "jobs" / "a")
        assert (told.bind, told.http, told.once) == ("10.0.0.1:0", "10.0.0.1:0", True)
        (listed,) = houses.listed()
        assert (listed["agents_port"], listed["starts"]) == (0, 0)
        one.on_ready(ADDRESS)
        assert await houses.port("a") == 4001
        one.on_end("was killed", 0.05)
        assert await houses.port("a") == "this job's lighthouse is being started"
        one.on_ready(ADDRESS)
        (listed,) = houses.listed()
        assert (listed["status_port"], listed["pid"], listed["starts"]) == (4002, 77, 2)
        one.on_end("has ended with its job", None)
        assert houses.listed() == []
        await houses.port("a")  # the next run of the job
        assert len(FakeLighthouse.made) == 2
        await houses.stop()
        assert [x.stopped for x in FakeLighthouse.made] == [False, True]

    asyncio.run(play())


def test_there_is_a_limit(houses: Houses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "JOBS_MAX", 1)

    async def play() -> None:
        await houses.port("a")
        assert await houses.port("b") == "this door has 1 jobs already"
        assert len(FakeLighthouse.made) == 1

    asyncio.run(play())
