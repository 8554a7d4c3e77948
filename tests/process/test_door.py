"""Many jobs behind one address: each has a lighthouse process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

from ftrun.base import clock
from ftrun.core import messages as m
from ftrun.protocol.rpc import Connected, Disconnected
from tests.jobs import TOKEN, Job, Lighthouse, ask
from tests.process.test_operators import CPU
from tests.unit.lighthouse.scripted_agent import ScriptedAgent

JOBS = 10
DEADLINE_S = 120.0
TRAINS = "import ftrun\nmanager = ftrun.manager()\nprint('up', flush=True)\n"


class Noting(ScriptedAgent):
    """An agent that notes the ends of its streams."""

    def __init__(self, job_id: str, number: int, address: str, token: str) -> None:
        self.addresses: list[str] = []
        self.ends: list[str] = []
        spec = m.JobSpec(job_id, 2, 1, 2, 5.0, 2.0, 60.0)
        super().__init__(f"{job_id}-{number}", spec, [address], token)

    def _on_event(self, event: Any) -> None:
        if isinstance(event, Connected):
            self.addresses.append(event.address)
        elif isinstance(event, Disconnected):
            self.ends.append(event.reason)
        super()._on_event(event)

    async def welcomed(self, times: int = 1) -> None:
        """Wait until its job's lighthouse has taken it in so often."""
        end = clock.now() + DEADLINE_S
        while sum(isinstance(x, m.Welcome) for x in self.received) < times:
            assert clock.now() < end, (self.agent_id, self.ends, self.received[-5:])
            await asyncio.sleep(0.05)  # between two looks


def test_ten_jobs_have_one_door_and_a_killed_lighthouse_harms_no_other(tmp_path: Path) -> None:
    with Lighthouse(tmp_path, "--jobs") as door:
        with Job(tmp_path, TRAINS, *door.found_by, "--replicas", "1", *CPU) as job:
            job.expect("up")
            assert job.end() == 0
        door.expect("job job: its lighthouse has ended with its job")
        asyncio.run(ten_jobs(tmp_path, door))
        door.signal(signal.SIGTERM)
        assert door.end() == 0
    assert door.left() == []


async def ten_jobs(directory: Path, door: Lighthouse) -> None:
    token = (directory / TOKEN).read_text().strip()
    names = [f"job-{number}" for number in range(JOBS)]
    agents = {name: [Noting(name, n, door.address, token) for n in (0, 1)] for name in names}
    everybody = [agent for both in agents.values() for agent in both]
    await asyncio.gather(*(agent.welcomed() for agent in everybody))
    for both in agents.values():
        assert both[0].addresses == both[1].addresses != [door.address]
    assert len({agent.addresses[0] for agent in everybody}) == JOBS
    before = {one["job"]: one for one in await shown(directory, door)}
    assert sorted(before) == sorted(names)
    assert all(one["replicas"] == 2 for one in before.values())

    seen = {agent: len(agent.ends) for agent in everybody}
    os.kill(before["job-3"]["pid"], signal.SIGKILL)
    await asyncio.gather(*(agent.welcomed(2) for agent in agents["job-3"]))
    after = {one["job"]: one for one in await shown(directory, door)}
    changed = [name for name in names if after[name]["pid"] != before[name]["pid"]]
    assert changed == ["job-3"]
    disturbed = {agent.spec.job_id for agent in everybody if len(agent.ends) > seen[agent]}
    assert disturbed == {"job-3"}
    await asyncio.gather(*(agent.close() for agent in everybody))


async def shown(directory: Path, door: Lighthouse) -> list[dict[str, Any]]:
    """What ``ftrun ps --lighthouse`` shows, while the agents go on."""
    words = ("ps", "--json", "--lighthouse", door.http, "--token-file", str(directory / TOKEN))
    done = await asyncio.get_running_loop().run_in_executor(None, ask, directory, *words)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["jobs"]
    return found
