"""The elastic agent: ``run`` launches one replica group and waits for it.

States: HEALTHY once all workers run, UNHEALTHY at the first failure, STOPPED until the group runs
again, then SUCCEEDED or FAILED; UNKNOWN if the job's agent is lost. Not here: the job itself
(launching/job.py), settings (translation.py).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from torch.distributed.elastic import metrics
from torch.distributed.elastic.agent.server.api import (
    DEFAULT_ROLE,
    ElasticAgent,
    RunResult,
    Worker,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsSpecs, SignalException

from ftrun.base import packed
from ftrun.base.errors import LaunchError, UserError
from ftrun.compat.elastic import recording
from ftrun.compat.elastic.failures import process_failures
from ftrun.compat.elastic.translation import (
    DEFAULT_SIGNALS,
    AgentOptions,
    log_dir_of,
    settings_of,
    target_of,
)
from ftrun.config.script import Script
from ftrun.inject import command
from ftrun.tools.launching.api import run_function
from ftrun.tools.launching.job import Job
from ftrun.tools.launching.records import Record
from ftrun.tools.launching.story import Story


class LocalElasticAgent(ElasticAgent):
    """Runs the workers of one WorkerSpec on this node. One object runs once."""

    def __init__(
        self,
        spec: WorkerSpec,
        logs_specs: LogsSpecs | None = None,
        start_method: str = "spawn",
        exit_barrier_timeout: float = 300,
        log_line_prefix_template: str | None = None,
        shutdown_timeout: int = 30,
        health_check_server: Any = None,
        *,
        signals_to_handle: str = DEFAULT_SIGNALS,
    ) -> None:
        if health_check_server is not None:
            raise UserError(
                "ftrun.elastic takes no health_check_server: /healthz of the job's lighthouse "
                "answers, and `ftrun status` shows its address. Nothing was started."
            )
        self._options = AgentOptions(
            logs_specs or DefaultLogsSpecs(),
            start_method,
            log_line_prefix_template,
            shutdown_timeout,
            signals_to_handle,
        )
        self._spec = spec
        self._group = WorkerGroup(spec)
        self._story = Story()
        named = recording.Job(spec.role, _name_of(spec.entrypoint))
        self._recorder = recording.Recorder(spec.event_log_handler, named, self._story)
        self._job_id = ""

    def get_worker_group(self, role: str = DEFAULT_ROLE) -> WorkerGroup:
        """The group's current state, and each worker with its pid and its ranks."""
        return self._group

    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Run the job to its end.

        Raises:
            UserError: nothing was started.
            SignalException: a signal has ended the job.
            LaunchError: it has ended for a cause outside its workers.
        """
        settings = settings_of(self._spec, self._options)
        with Job(one_group=True) as job:
            try:
                self._run(job, settings)
                values = self._story.result(partial(packed.read_value, job.directory))
            except KeyboardInterrupt:
                raise _stopped_by(signal.SIGINT) from None
            except LaunchError as error:
                if job.passed_on is not None:
                    raise _stopped_by(signal.Signals(job.passed_on)) from None
                return self._failed(error)
        self._turn(WorkerState.SUCCEEDED)
        self._recorder.workers_end()
        return RunResult(WorkerState.SUCCEEDED, values)

    def _run(self, job: Job, settings: dict[str, Any]) -> None:
        entrypoint, args = self._spec.entrypoint, tuple(self._spec.args)
        function: Callable[..., Any] = command.become
        call: tuple[Any, ...] = ((entrypoint, *args),)
        if isinstance(entrypoint, str):
            target = target_of(entrypoint, args)
            if target is not None:
                kind, (name, *words) = target
                job.run(Script(name, kind, tuple(words)), settings, self._hear)
                return
        elif entrypoint is not None:
            has_macro = any(isinstance(arg, str) and "$" in arg for arg in args)
            function, call = (command.call, (entrypoint, args)) if has_macro else (entrypoint, args)
        run_function(job, function, call, {}, settings, self._hear)

    def _failed(self, error: LaunchError) -> RunResult:
        if not error.failures:
            self._turn(WorkerState.UNKNOWN)
            raise error
        self._turn(WorkerState.FAILED)
        log_dir = log_dir_of(self._options.logs_specs)
        directory: Path | None = None if log_dir is None else log_dir / self._job_id / "errors"
        failures = process_failures(error.failures, directory)
        self._recorder.workers_end()
        return RunResult(WorkerState.FAILED, failures=failures)

    # ------------------------------------------------------------ what the agent reports

    def _hear(self, record: Record) -> None:
        self._story.add(record)
        match record["event"]:
            case "settled":
                self._job_id = record["job_id"]
            case "life":
                if record["restart"] > 0:
                    self._turn(WorkerState.STOPPED)
                left = self._spec.max_restarts - record["restart"]
                metrics.put_metric(f"workers.{self._spec.role}.remaining_restarts", left)
                self._assign()
            case "worker":
                self._group.workers[record["rank"]].id = record["pid"]
                if all(worker.id is not None for worker in self._group.workers):
                    self._turn(WorkerState.HEALTHY)
            case "raised":
                self._turn(WorkerState.UNHEALTHY)
            case "exited":
                life = self._story.life_of(record["incarnation"])
                if record["status"] != 0 and life is not None and not life.is_stopped:
                    self._turn(WorkerState.UNHEALTHY)
            case "stopping":
                self._turn(WorkerState.STOPPED)
        self._recorder.hear(record)

    def _assign(self) -> None:
        """Begin a new life of the group: the same ranks, and no pids yet."""
        size = self._spec.local_world_size
        self._group.workers = [Worker(rank, rank, rank, size, size) for rank in range(size)]
        group: Any = self._group  # torch's class declares these fields as None
        group.group_rank, group.group_world_size = 0, 1

    def _turn(self, state: WorkerState) -> None:
        if self._group.state != state:
            self._group.state = state
            metrics.put_metric(f"workers.{self._spec.role}.{state.name.lower()}", 1)


def _name_of(entrypoint: Any) -> str:
    if isinstance(entrypoint, str):
        return os.path.basename(entrypoint)
    return str(getattr(entrypoint, "__qualname__", entrypoint))


def _stopped_by(number: signal.Signals) -> SignalException:
    return SignalException(f"Process {os.getpid()} got signal: {number.name}", sigval=number)
