"""A lighthouse inside a program, for replicas that are its threads: no files, no web server.

It lives as long as the job of its one agent (agent.py), and is never restarted.

Not here: torchft's own quorums (quorum_server.py), a permanent lighthouse (main.py).
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

from ftrun.base import clock
from ftrun.base.addresses import LOOPBACK, join_address
from ftrun.core.lighthouse.events import JournalState
from ftrun.core.lighthouse.machine import Lighthouse
from ftrun.lighthouse.journal import JournalFile
from ftrun.lighthouse.server import MembershipServer
from ftrun.lighthouse.settings import EMBEDDED, ServiceSettings
from ftrun.lighthouse.shell import Shell
from ftrun.protocol.auth import new_token

RULES = replace(EMBEDDED, join_gather_s=0.0)
"""Newcomers join at once, because members wait for them between two steps (agent.py)."""

log = logging.getLogger(__name__)


class InProcessLighthouse:
    """Serves one job on a port of the loopback interface, with its own token."""

    def __init__(self) -> None:
        self.token = new_token()
        anywhere = join_address(LOOPBACK, 0)
        self._settings = ServiceSettings(Path(), self.token, bind=anywhere, http=anywhere)
        self._server: MembershipServer | None = None
        self._shell: Shell | None = None

    async def start(self) -> str:
        """Serve in the running loop. Returns the address for the agent."""
        self._server = MembershipServer(self._settings)
        host, port = self._server.bind()
        core = Lighthouse(RULES, JournalState(epoch=0), clock.now())
        self._shell = Shell(core, JournalFile())
        self._shell.failed.add_done_callback(_tell)
        self._shell.start()
        await self._server.start(self._shell)
        return join_address(host, port)

    async def stop(self) -> None:
        """End all streams and release the port."""
        if self._shell is not None:
            self._shell.stop()
            self._shell.failed.cancel()
        if self._server is not None:
            await self._server.stop()


def _tell(failed: asyncio.Future[None]) -> None:
    error = None if failed.cancelled() else failed.exception()
    if error is not None:
        log.error(
            "the lighthouse of this process has found a bug in itself and stops. Training "
            "continues until a replica comes or goes. Please report this.",
            exc_info=error,
        )
