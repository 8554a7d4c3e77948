"""Real processes: a lighthouse dies by -9 and comes back; the quorum in force stands."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from ftrun.core import messages as m
from ftrun.core.ids import unpack_quorum_id
from ftrun.protocol import rpc
from ftrun.protocol.auth import new_token
from ftrun.protocol.rpc import Disconnected
from tests.unit.lighthouse.lighthouse_process import LighthouseProcess
from tests.unit.lighthouse.scripted_agent import ScriptedAgent

SPEC = m.JobSpec("job", 2, 1, 1, 5.0, 10.0, 60.0)
DEADLINE_S = 60.0


@pytest.fixture(autouse=True)
def tries_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the agent is back well within the new lighthouse's takeover grace."""
    monkeypatch.setattr(rpc, "BACKOFF_LAST_S", 0.1)


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 5 * DEADLINE_S))


async def forms_a_quorum(lighthouse: LighthouseProcess) -> ScriptedAgent:
    agent = ScriptedAgent("node-a", SPEC, [lighthouse.grpc], lighthouse.token)
    await agent.until(lambda: agent.trains(members=2))
    return agent


async def is_back(agent: ScriptedAgent) -> None:
    """The stream broke, and a lighthouse has welcomed the agent since."""

    def welcomed() -> bool:
        kinds = [type(event) for event in agent.received]
        return Disconnected in kinds and m.Welcome in kinds[kinds.index(Disconnected) :]

    await agent.until(welcomed)


def test_a_restarted_lighthouse_adopts_the_quorum_in_force(tmp_path: Path) -> None:
    async def main() -> None:
        with LighthouseProcess(tmp_path, new_token()) as lighthouse:
            agent = await forms_a_quorum(lighthouse)
            before, status = agent.attempt(), await settled(lighthouse)
            assert status["quorum"]["live"] == ["0", "1"]
            assert lighthouse.end(signal.SIGKILL) == -signal.SIGKILL
            for worker in agent.workers.values():
                worker.received.clear()
                worker.steps(3)  # training continues without a lighthouse
            await asyncio.to_thread(lighthouse.start)
            await is_back(agent)
            after = await settled(lighthouse)
            assert agent.attempt() == before
            assert after["quorum"]["quorum_id"] == status["quorum"]["quorum_id"]
            assert after["epoch"] > status["epoch"]
            words = [type(x) for w in agent.workers.values() for x in w.received]
            assert set(words) <= {m.AskReport}, "somebody noticed"
            # A loss after the takeover is met by a quorum of the new epoch.
            agent.kill("1")
            agent.start("1", "node-a-1-2")
            await agent.until(lambda: agent.step() and agent.trains(members=2))
            attempt = agent.attempt()
            assert attempt is not None
            assert unpack_quorum_id(attempt.quorum_id)[0] == after["epoch"]
            await agent.until(lambda: agent.step() and len(agent.states()) == 1)
            await agent.close()

    run(main())


def test_without_its_journal_it_rebuilds_from_what_agents_say(tmp_path: Path) -> None:
    async def main() -> None:
        with LighthouseProcess(tmp_path, new_token()) as lighthouse:
            agent = await forms_a_quorum(lighthouse)
            before, status = agent.attempt(), await settled(lighthouse)
            lighthouse.end(signal.SIGKILL)
            damaged = b"noise" + (tmp_path / "journal").read_bytes()
            (tmp_path / "journal").write_bytes(damaged)
            await asyncio.to_thread(lighthouse.start)
            assert "corrupt" in lighthouse.log
            assert (tmp_path / "journal.corrupt-1").read_bytes() == damaged
            await is_back(agent)
            after = await settled(lighthouse)
            assert agent.attempt() == before
            assert after["quorum"]["quorum_id"] == status["quorum"]["quorum_id"]
            assert after["epoch"] > status["epoch"]
            await agent.close()

    run(main())


async def settled(lighthouse: LighthouseProcess) -> dict[str, Any]:
    """The first status in which the lighthouse is steady again (takeover may take its grace)."""
    deadline = asyncio.get_running_loop().time() + DEADLINE_S
    while asyncio.get_running_loop().time() < deadline:
        status = await asyncio.to_thread(lighthouse.status)
        if status["phase"] == "steady":
            return status
        await asyncio.sleep(0.02)
    raise AssertionError(status)


def test_it_dies_with_its_agent(tmp_path: Path) -> None:
    """The parent that started it ends by -9; the lighthouse is gone before the reader knows."""
    program = (
        "import sys, time; sys.path.insert(0, sys.argv[1]);"
        "from pathlib import Path;"
        "from tests.unit.lighthouse.lighthouse_process import LighthouseProcess;"
        "x = LighthouseProcess(Path(sys.argv[2]), 'a' * 64); x.start();"
        "print(x.process.pid, flush=True); time.sleep(600)"
    )

    async def main() -> None:
        here = str(Path(__file__).parents[3])
        parent = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, here, str(tmp_path), stdout=asyncio.subprocess.PIPE
        )
        assert parent.stdout is not None
        pid = int(await asyncio.wait_for(parent.stdout.readline(), 2 * DEADLINE_S))
        child = os.pidfd_open(pid)
        parent.kill()
        await parent.wait()
        gone = asyncio.Event()
        asyncio.get_running_loop().add_reader(child, gone.set)
        await asyncio.wait_for(gone.wait(), DEADLINE_S)
        asyncio.get_running_loop().remove_reader(child)
        os.close(child)

    run(main())


def test_it_does_not_outlive_a_parent_that_was_faster(tmp_path: Path) -> None:
    lighthouse = LighthouseProcess(tmp_path, new_token())
    lighthouse.spawn(parent_pid=1)
    assert not lighthouse.wait_for("ready")
    assert lighthouse.process is not None
    assert lighthouse.process.wait(DEADLINE_S) == 0
    lighthouse.end()
