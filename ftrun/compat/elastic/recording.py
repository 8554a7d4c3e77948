"""Passes a job's events to one of torch's handlers, at the same moments as torchelastic.

A worker has an event when it starts and when the job has ended, with torchelastic's names and
fields. Each record of the agent is an event too, ``ftrun.…``. There is no rendezvous event, because
there is no rendezvous.

Not here: the history of the workers (launching/story.py).
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch.distributed.elastic import events

from ftrun.base import clock
from ftrun.base.worker_failure import WorkerFailure
from ftrun.compat.elastic.failures import process_failures
from ftrun.tools.launching.records import Record
from ftrun.tools.launching.story import Story

MS_PER_S = 1000


@dataclass(frozen=True, slots=True)
class Job:
    """The names in every event. ``entry_point``: the script, a command, or a function's name."""

    role: str
    entry_point: str


class Recorder:
    """Records one job's events. ``handler``: a name of torch's registry."""

    def __init__(self, handler: str, job: Job, story: Story) -> None:
        self._handler = handler
        self._job = job
        self._story = story
        self._run_id = ""
        self._restarts = 0
        self._began_at = clock.now()

    def hear(self, record: Record) -> None:
        """Process a record of the agent, which the story has processed already."""
        match record["event"]:
            case "settled":
                self._run_id = record["job_id"]
            case "life":
                self._restarts = record["restart"]
            case "worker":
                life = self._story.life_of(record["incarnation"])
                if life is not None:
                    rank = self._story.rank(life, record["rank"])
                    self._worker("START", rank, record["rank"], record["pid"])
        facts = {**self._common(), **{key: x for key, x in record.items() if key != "event"}}
        self._record(f"ftrun.{record['event']}", events.EventSource.AGENT, facts)

    def workers_end(self) -> None:
        """The job has ended: one event for each worker of the latest lives."""
        for life in self._story.last.values():
            for rank in range(self._story.workers):
                failure = life.failures.get(rank)
                state = "FAILED" if failure else "SUCCEEDED" if life.is_finished else "TERMINATED"
                pid = life.pids.get(rank, 0)
                self._worker(state, self._story.rank(life, rank), rank, pid, failure)

    def _worker(
        self, state: str, rank: int, local_rank: int, pid: int, failure: WorkerFailure | None = None
    ) -> None:
        raw_error = None
        if failure is not None:
            found = process_failures((failure,), None)[failure.rank]
            raw_error = json.dumps(found.error_file_data)
        more = {
            "group_world_size": 1,
            "entry_point": self._job.entry_point,
            "local_rank": [local_rank],
            "role_rank": [local_rank],
            "role_world_size": [self._story.workers],
            "exit_code": [failure.status if failure else None],
            "worker_pid": [failure.pid if failure else None],
        }
        metadata = {
            **self._common(),
            "global_rank": rank,
            "group_rank": 0,
            "worker_id": str(pid),
            "state": state,
            "total_run_time": int(clock.now() - self._began_at),
            "rdzv_backend": "ftrun",
            "raw_error": raw_error,
            "metadata": json.dumps(more),
            "agent_restarts": self._restarts,
            "duration_ms": None,
        }
        self._record(f"torchelastic.worker.status.{state}", events.EventSource.WORKER, metadata)

    def _common(self) -> dict[str, Any]:
        return {
            "run_id": self._run_id,
            "role": self._job.role,
            "hostname": socket.gethostname(),
            "agent_pid": os.getpid(),
        }

    def _record(self, name: str, source: events.EventSource, metadata: dict[str, Any]) -> None:
        at = int(clock.wall().timestamp() * MS_PER_S)
        events.record(events.Event(name, source, at, dict(_scalars(metadata))), self._handler)


def _scalars(metadata: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """torch's events allow only scalar values: convert others to text."""
    for key, value in metadata.items():
        yield key, value if isinstance(value, str | int | float | bool | None) else str(value)
