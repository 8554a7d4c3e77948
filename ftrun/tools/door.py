"""``ftrun lighthouse --jobs``: a lighthouse process for each job, behind one address.

Each lighthouse has its own directory in the state directory, and is started when the first agent of
its job connects. A killed one is restarted with its journal; one whose job has ended, ends. Not
here: the door itself (lighthouse/door.py), one lighthouse's process (agent/embedded.py).
"""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ftrun.agent.embedded import EmbeddedLighthouse
from ftrun.base.addresses import join_address
from ftrun.config.settings import check_writable
from ftrun.core.lighthouse.stopping import LEAVING_MAX_S
from ftrun.lighthouse.door import HouseStatus, serve_door
from ftrun.lighthouse.settings import ServiceSettings
from ftrun.protocol.embedding import Embedding, ServiceAddress

JOBS_MAX = 256
START_S = 4.0
"""How long an agent's call is held before the agent has to retry."""
GUARD_BYTES = 16
ENDS_S = 5.0
AGAIN = "It restarts; training continues"

log = logging.getLogger(__name__)


@dataclass
class House:
    """One job's lighthouse. ``up``: set while it has an ``address``."""

    lighthouse: EmbeddedLighthouse
    address: ServiceAddress | None = None
    starts: int = 0
    up: asyncio.Event = field(default_factory=asyncio.Event)


class Houses:
    """All lighthouses of a door, by job."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = settings
        self._houses: dict[str, House] = {}

    async def port(self, job_id: str) -> int | str:
        """See lighthouse/door.py."""
        house = self._houses.get(job_id)
        if house is None and len(self._houses) >= JOBS_MAX:
            return f"this door has {JOBS_MAX} jobs already"
        if house is None:
            house = self._start(job_id)
        try:
            await asyncio.wait_for(house.up.wait(), START_S)
        except asyncio.TimeoutError:
            return "this job's lighthouse is being started"
        assert house.address is not None
        return _port(house.address.grpc)

    def listed(self) -> list[HouseStatus]:
        """See lighthouse/door.py."""
        found: list[HouseStatus] = []
        for job_id, house in sorted(self._houses.items()):
            at = house.address or ServiceAddress(":0", ":0")
            found.append(
                {
                    "job_id": job_id,
                    "agents_port": _port(at.grpc),
                    "status_port": _port(at.http),
                    "pid": at.pid,
                    "starts": house.starts,
                }
            )
        return found

    async def stop(self) -> None:
        """See lighthouse/door.py."""
        houses = [house.lighthouse for house in self._houses.values()]
        await asyncio.gather(*(house.stop(LEAVING_MAX_S + ENDS_S) for house in houses))

    def _start(self, job_id: str) -> House:
        settings = self._settings
        home = settings.state_dir / "jobs" / job_id
        any_port = join_address(settings.grpc_address()[0], 0)
        logs = home / "logs"
        logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        tls = settings.tls.absolute()
        embedding = Embedding(
            str(home),
            settings.token,
            any_port,
            any_port,
            tls=tuple(str(path) for path in (tls.cert, tls.key, tls.ca) if path is not None),
            for_nodes=True,
            once=True,
        )
        house = House(
            EmbeddedLighthouse(
                embedding,
                os.urandom(GUARD_BYTES).hex(),
                logs / "lighthouse.log",
                partial(self._ready, job_id),
                partial(self._ended, job_id),
            )
        )
        self._houses[job_id] = house
        house.lighthouse.start()
        return house

    def _ready(self, job_id: str, address: ServiceAddress) -> None:
        house = self._houses[job_id]
        house.address = address
        house.starts += 1
        house.up.set()
        log.info("job %s: its lighthouse (pid %d) is at %s", job_id, address.pid, address.grpc)

    def _ended(self, job_id: str, how: str, delay_s: float | None) -> None:
        house = self._houses[job_id]
        house.up.clear()
        house.address = None
        if delay_s is None:
            del self._houses[job_id]
            log.info("job %s: its lighthouse %s", job_id, how)
        else:
            log.warning("job %s: its lighthouse %s. %s.", job_id, how, AGAIN)


def run_door(settings: ServiceSettings) -> int:
    """Serve until SIGTERM or SIGINT, with a log on stderr. Returns the exit code.

    Raises:
        UserError: a setting is wrong, or a port is taken; nothing was started.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s door: %(message)s")
    settings.check()
    check_writable(Path(settings.state_dir / "jobs"), "--state")
    return asyncio.run(_run(settings))


async def _run(settings: ServiceSettings) -> int:
    return await serve_door(settings, Houses(settings))


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
