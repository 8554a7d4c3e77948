"""Starts a run whose settings are known: checks this machine, then becomes the agent.

Only this module combines the agent, the lighthouse and ``ftrun status``: these packages do not
import each other. Not here: the options (commands/), what the agent does (agent/).
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ftrun.agent.devices import Machine, check_master_port, check_own_address, inspect_machine
from ftrun.agent.file_timer import check_timer_file
from ftrun.agent.launch import SpawnerLaunch
from ftrun.agent.watch import Watch, unwatched
from ftrun.base import clock
from ftrun.base.descriptors import allow_descriptors, descriptors_needed
from ftrun.base.errors import ExitCode
from ftrun.config.checks import check
from ftrun.config.forms import in_form
from ftrun.config.settings import RunSettings
from ftrun.config.starting import line
from ftrun.core.agent.events import EndAgent
from ftrun.core.forms import Form
from ftrun.logs.marker import LogDirLock
from ftrun.protocol.auth import (
    default_token_path,
    load_or_create_token,
    new_token,
    one_token,
)
from ftrun.tools.status.jobs import RunningJob, birth_mark, read_job, remove_job, write_job

if TYPE_CHECKING:
    from ftrun.agent.team.main import Elect


def start_run(
    settings: RunSettings,
    launch: SpawnerLaunch | None,
    *,
    as_json: bool = False,
    watch: Watch = unwatched,
    token: str = "",
) -> int:
    """Check everything, then run the agent to its end or, without ``launch``, print the plan.

    ``as_json``: print the plan as JSON. ``watch``: is informed of the agent's actions
    (agent/watch.py). ``token``: the job's, if it is in no file.

    Returns:
        The exit code.

    Raises:
        UserError: a setting or this machine is wrong; nothing was started.
    """
    check(settings)
    one_token(token, settings.token_file)
    check_timer_file(os.environ)
    if settings.rendezvous is not None:
        from ftrun.agent.team.meeting import with_own_address

        settings = with_own_address(settings)
    machine = inspect_machine(settings, os.environ)
    if settings.lighthouse is not None and settings.tls:
        from ftrun.protocol.handshake import check_first_answer

        check_first_answer(settings.lighthouse_addresses(), settings.tls)
    if launch is None:
        from ftrun.agent.plan import print_json, print_plan

        (print_json if as_json else print_plan)(settings, machine)
        return ExitCode.OK
    if words := line(settings, os.environ):
        print(f"ftrun: {words}", file=sys.stderr, flush=True)
    ending = _run_in(settings, machine, launch, watch, token)
    while ending.again is not None:  # twice at most (core/forms.py)
        if ending.again is Form.ONE_WORLD and settings.snapshot_path is not None:
            where = settings.snapshot_path
            print(
                f"ftrun: --snapshot {where}: one world takes none of its replicas' snapshots, and "
                "writes none",
                file=sys.stderr,
                flush=True,
            )
        settings = in_form(settings, ending.again)
        launch = SpawnerLaunch()
        try:
            ending = _run_in(settings, inspect_machine(settings, os.environ), launch, watch, token)
        finally:
            launch.end()
    return ending.exit_code


def _run_in(
    settings: RunSettings, machine: Machine, launch: SpawnerLaunch, watch: Watch, given: str
) -> EndAgent:
    """Run the agent once, with settings of one form."""
    here, workers = machine.capacity, settings.workers_per_replica
    allow_descriptors(
        descriptors_needed(here, workers, settings.replicas, settings.standbys),
        f"{here} x {workers} workers on this node", launch.process.pid,
    )  # fmt: skip
    check_own_address(machine.host)
    if settings.master_port:
        check_master_port(machine.host, settings.master_port)
    settings.check_directories()
    if settings.snapshot_path is not None:
        from ftrun.snapshots.starting import prepare

        for line in prepare(settings):
            print(f"ftrun: {line}", file=sys.stderr, flush=True)

    from ftrun.protocol.quiet import load_grpc_quietly

    load_grpc_quietly()
    from ftrun.agent.main import Neighbours, run_agent

    token_file: Path | None = None
    token = given or new_token()
    if not given and (settings.token_file is not None or settings.lighthouse is not None):
        token_file = (settings.token_file or default_token_path()).absolute()
        token = load_or_create_token(token_file)
    neighbours = Neighbours(*_job_file(settings), watch, _elect(settings))
    lock = LogDirLock(settings.job_log_dir, settings.job_id)
    try:
        return run_agent(settings, machine, token, token_file, launch, neighbours)
    finally:
        lock.release()


def _elect(settings: RunSettings) -> Elect | None:
    """How the nodes agree on a meeting place through etcd; None: they do not use etcd."""
    if settings.rendezvous is None or not settings.rendezvous.register:
        return None
    from ftrun.lighthouse.electing import elected

    return elected


def _job_file(settings: RunSettings) -> tuple[Callable[[str, Path], None], Callable[[], None]]:
    """Two functions for the agent: publish where its job's status is served; withdraw that."""
    started = clock.wall().isoformat(timespec="seconds")

    def announce(http: str, token_file: Path) -> None:
        log_dir = str(settings.job_log_dir.absolute())
        tls = settings.tls.absolute()
        cert, key, ca = (str(path or "") for path in (tls.cert, tls.key, tls.ca))
        job = RunningJob(
            settings.job_id, http, os.getpid(), log_dir, str(token_file), started, cert, key, ca,
            birth=birth_mark(os.getpid()), host=socket.gethostname(),
        )  # fmt: skip
        write_job(job)

    def withdraw() -> None:
        job = read_job(settings.job_id)
        # Another agent of the job on this machine may have replaced the file.
        if job is not None and job.birth == birth_mark(os.getpid()):
            remove_job(settings.job_id)

    return announce, withdraw
