"""One agent from start to end: its token file, its runtime directory, its event loop.

The CLI calls ``run_agent``. Not here: the agent's work while it runs (shell.py).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ftrun.agent.devices import Machine
from ftrun.agent.launch import SpawnerLaunch
from ftrun.agent.setup import AgentSetup
from ftrun.agent.shell import Agent
from ftrun.agent.team.lead import Lead
from ftrun.agent.team.main import Elect, run_in_team
from ftrun.agent.team.member import Member
from ftrun.agent.terminal import flush_python_streams
from ftrun.agent.watch import Watch, unwatched
from ftrun.base import linux
from ftrun.base.errors import UserError, naming
from ftrun.config.settings import RunSettings
from ftrun.core.agent.events import EndAgent

TEMP_DIR_BYTES_MAX = 80


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Callbacks into other rooms, which the CLI passes to the agent.

    ``announce``: publishes the lighthouse's HTTP address and the path of the token, at each change.
    ``withdraw``: removes that at the end. ``watch``: see watch.py. ``elect``: see team/main.py.
    """

    announce: Callable[[str, Path], None]
    withdraw: Callable[[], None]
    watch: Watch = unwatched
    elect: Elect | None = None


def run_agent(
    settings: RunSettings,
    machine: Machine,
    token: str,
    token_file: Path | None,
    launch: SpawnerLaunch,
    neighbours: Neighbours,
) -> EndAgent:
    """Run one agent to its end.

    ``token_file``: a file that has the token; None: the token is this job's alone, and is written
    to the job's own directory until the job ends.
    """
    linux.become_subreaper()
    flush_python_streams()
    runtime_dir = _make_runtime_dir()
    try:
        setup = AgentSetup(settings, machine, token, launch, runtime_dir)
        return asyncio.run(_run(setup, token_file or _token_file(runtime_dir, token), neighbours))
    finally:
        neighbours.withdraw()
        shutil.rmtree(runtime_dir, ignore_errors=True)


def _make_runtime_dir() -> Path:
    """Make a directory of mode 0700 for the socket, whose path the kernel limits to 107 bytes."""
    try:
        if len(os.fsencode(tempfile.gettempdir())) <= TEMP_DIR_BYTES_MAX:
            return Path(tempfile.mkdtemp(prefix="ftrun-"))
        return Path(tempfile.mkdtemp(prefix="ftrun-", dir="/tmp"))
    except OSError as error:
        raise UserError(
            f"No temporary directory can be made ({error}). Set TMPDIR to one that you may write."
        ) from None


def _token_file(runtime_dir: Path, token: str) -> Path:
    path = runtime_dir / "token"
    path.touch(mode=0o600)
    with naming(path):
        path.write_text(token, encoding="ascii")
    return path


async def _run(setup: AgentSetup, token_file: Path, neighbours: Neighbours) -> EndAgent:
    def announce(http: str) -> None:
        neighbours.announce(http, token_file)

    def make(setup: AgentSetup, lead: Lead | None = None) -> Agent:
        return Agent(setup, announce, neighbours.watch, lead)

    if setup.settings.rendezvous is not None:
        return await run_in_team(setup, make, neighbours.elect)
    if setup.settings.workers_per_node is not None:
        return await Member(setup, make, announce).run()
    agent = make(setup)
    try:
        return await agent.run()
    finally:
        await agent.close()
