"""The assignment of a worker at its start: its script, its environment, its context.

Not here: when it starts (fleet.py), the variables (environment.py), the fork (spawner.py).
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from ftrun.agent.devices import DeviceSlices, Machine
from ftrun.agent.environment import Place, threads_per_worker, worker_environment
from ftrun.agent.error_files import clear_error_file, error_path
from ftrun.agent.file_timer import timer_path
from ftrun.agent.process import StartWorker
from ftrun.agent.workers import SOCKET_NAME
from ftrun.config.forms import injection
from ftrun.config.settings import RunSettings
from ftrun.config.starting import starts_fresh
from ftrun.core.agent.events import StartReplica
from ftrun.core.forms import AUTO, Form
from ftrun.core.ids import WorkerKey
from ftrun.logs.layout import log_path
from ftrun.training.context import WorkerContext

FORM_MARGIN_S = 30.0
"""A worker waits this much longer for its first quorum than the lighthouse gathers members."""


class Assignments:
    """The messages with which workers are started. ``slices``: the devices of each replica.

    ``are_fresh``: the workers are separate interpreters (config/starting.py). ``is_one_world``: the
    script's world has all replicas, unless it turns out otherwise; ``world_port``: of that world's
    store, once it listens.
    """

    def __init__(
        self, settings: RunSettings, machine: Machine, slices: DeviceSlices, runtime_dir: Path
    ) -> None:
        self._settings = settings
        self._machine = machine
        self._slices = slices
        self._runtime_dir = runtime_dir
        self.are_fresh = starts_fresh(settings, os.environ)
        self.is_one_world = injection(settings) in (AUTO, Form.DDP.value)
        self.world_port = 0

    def of_worker(
        self, start: StartReplica, group_rank: int, port: int, lighthouse: str
    ) -> StartWorker:
        """The message for one worker. ``port``: of the group's store."""
        settings, machine = self._settings, self._machine
        key = WorkerKey(start.replica_id, start.incarnation, group_rank)
        threads = threads_per_worker(settings, machine)
        devices = self._slices.take(start.replica_id)
        error_file = self.error_file(start, group_rank)
        clear_error_file(error_file)
        binding = self._slices.binding(start.replica_id, group_rank, machine)
        timers = str(timer_path(os.environ, self._runtime_dir) or "")
        place = Place(key, start.restarts, port, devices, lighthouse, str(error_file), timers)
        place = replace(place, world_port=self.world_port or port)
        script = settings.script.as_started()
        injected = injection(settings)
        explicit = {}
        if injected == AUTO:
            explicit = worker_environment(settings, machine, place, threads, Form.EXPLICIT.value)
        return StartWorker(
            key=key,
            target=script.target,
            kind=script.kind,
            args=script.args,
            environment=worker_environment(settings, machine, place, threads),
            threads=threads,
            fresh=self.are_fresh,
            inject=injected,
            torchft=settings.torchft,
            explicit_environment=explicit,
            context=self._context(start),
            standby=start.standbys[group_rank] if group_rank < len(start.standbys) else "",
            stdin=settings.reads_stdin(key),
            cpus=binding.cpus if binding is not None else (),
            memory_node=binding.memory_node if binding is not None else -1,
        )

    def error_file(self, start: StartReplica, group_rank: int) -> Path:
        log_dir = self._settings.job_log_dir
        return error_path(log_path(log_dir, start.replica_id, group_rank, start.restarts))

    def _context(self, start: StartReplica) -> dict[str, Any]:
        """A WorkerContext without the fields that the spawner adds; settings by their names."""
        s = self._settings
        return {
            **s.shared_with(WorkerContext),
            "host": self._machine.host,
            "socket_path": str(self._runtime_dir / SOCKET_NAME),
            "device": self._machine.device,
            "heal_tls": bool(s.tls),
            "connect_timeout_s": s.join_timeout_s,
            "quorum_timeout_s": s.join_timeout_s + FORM_MARGIN_S,
            "restarts": start.restarts,
            "peers_train": start.peers_train,
            "script": s.script.name,
            "snapshot_dir": str(s.snapshot_path or ""),
            "snapshot_every_s": s.snapshot_every_s,
            "resume_dir": str(s.resume_path or ""),
        }
