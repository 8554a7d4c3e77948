"""The history of a launched job's workers, from the host's records.

Not here: the records (records.py), the files with the values (packed.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ftrun.base.errors import ExitCode, LaunchError, UserError
from ftrun.base.packed import NoValue
from ftrun.base.worker_failure import WorkerFailure
from ftrun.tools.launching.records import Record


@dataclass
class Life:
    """One start of a replica group. ``pids``, ``failures``: by rank in the group.

    ``is_stopped``: the agent stops it, so further exits are no failures. ``is_asked``: it was asked
    to stop, so its loss is no failure either.
    """

    replica_id: str
    incarnation: str
    restart: int
    pids: dict[int, int] = field(default_factory=dict)
    failures: dict[int, WorkerFailure] = field(default_factory=dict)
    is_stopped: bool = False
    is_asked: bool = False
    is_finished: bool = False


class Story:
    """Processes all records, in order. ``last``: the latest start of each replica."""

    def __init__(self) -> None:
        self.workers = 1
        self.last: dict[str, Life] = {}
        self.exit_code: int | None = None
        self.reason = ""
        self.refusal = ""
        self._lives: dict[str, Life] = {}
        self._earlier: list[WorkerFailure] = []

    def add(self, record: Record) -> None:
        match record["event"]:
            case "settled":
                self.workers = record["workers"]
            case "life":
                self._begin(record)
            case "refused":
                self.exit_code, self.refusal = record["exit_code"], record["text"]
            case "ended":
                self.exit_code, self.reason = record["exit_code"], record["reason"]
            case "worker" | "raised" | "exited" | "stopping" | "finished" | "lost":
                life = self._lives.get(record["incarnation"])
                if life is not None:
                    self._continue(life, record)

    def life_of(self, incarnation: str) -> Life | None:
        """The start with this incarnation, if it is the latest of its replica."""
        return self._lives.get(incarnation)

    def rank(self, life: Life, group_rank: int) -> int:
        """The global rank: replica 0 has the first ranks, replica 1 the next ones."""
        return int(life.replica_id) * self.workers + group_rank

    def failures(self) -> tuple[WorkerFailure, ...]:
        """The failures of the latest starts, the first cause first."""
        of_lives = (failure for life in self.last.values() for failure in life.failures.values())
        return tuple(sorted(of_lives, key=lambda failure: failure.at))

    def result(self, read: Callable[[str, int], Any]) -> dict[int, Any]:
        """The return values by global rank, of the replicas that have finished here.

        ``read``: reads one value, by incarnation and rank in the group.

        Raises:
            UserError: nothing was started.
            LaunchError: the job has failed, or a value cannot be read back.
        """
        if self.refusal:
            if self.exit_code == ExitCode.USAGE:
                raise UserError(self.refusal)
            raise LaunchError(self.exit_code or ExitCode.BUG, self.refusal)
        values, missing = self._values(read)
        earlier = tuple(self._earlier)
        if self.exit_code != 0:
            code = ExitCode.BUG if self.exit_code is None else self.exit_code
            reason = self.reason or "it was stopped"
            raise LaunchError(code, reason, self.failures(), earlier, values)
        if missing:
            reason = "it has finished, and not every value can be brought back"
            raise LaunchError(ExitCode.USAGE, reason, missing, earlier, values)
        return values

    def _values(
        self, read: Callable[[str, int], Any]
    ) -> tuple[dict[int, Any], tuple[WorkerFailure, ...]]:
        values, missing = {}, []
        for life, group_rank in self._finished():
            rank = self.rank(life, group_rank)
            try:
                values[rank] = read(life.incarnation, group_rank)
            except NoValue as error:
                pid = life.pids.get(group_rank, 0)
                missing.append(
                    WorkerFailure(
                        rank, life.replica_id, group_rank, pid, 1, life.restart, 0.0,
                        reason=str(error),  # it exited with 0, but has failed
                    )
                )  # fmt: skip
        return dict(sorted(values.items())), tuple(missing)

    def _finished(self) -> Iterator[tuple[Life, int]]:
        for life in self.last.values():
            if life.is_finished:
                for group_rank in range(self.workers):
                    yield life, group_rank

    def _begin(self, record: Record) -> None:
        replica_id = record["replica"]
        former = self.last.get(replica_id)
        if former is not None:
            self._earlier += former.failures.values()
            del self._lives[former.incarnation]
        life = Life(replica_id, record["incarnation"], record["restart"])
        self.last[replica_id] = self._lives[life.incarnation] = life

    def _continue(self, life: Life, record: Record) -> None:
        match record["event"]:
            case "worker":
                life.pids[record["rank"]] = record["pid"]
            case "raised":
                self._fail(
                    life, record, status=1, error_type=record["type"],
                    message=record["message"], traceback=record["traceback"],
                )  # fmt: skip
            case "exited":
                self._exited(life, record)
            case "stopping":
                life.is_stopped = True
                life.is_asked = life.is_asked or record["asked"]
            case "finished":
                life.is_finished = True
            case "lost":
                if not (life.failures or life.is_asked or record["killed"]):
                    self._fail(life, {**record, "rank": 0}, status=-9, reason=record["reason"])

    def _exited(self, life: Life, record: Record) -> None:
        group_rank, status = record["rank"], record["status"]
        failure = life.failures.get(group_rank)
        if failure is not None:
            life.failures[group_rank] = replace(
                failure, status=status or failure.status, pid=record["pid"] or failure.pid
            )
        elif status != 0 and not life.is_stopped:
            self._fail(life, record, status=status, reason=record["reason"])

    def _fail(self, life: Life, record: Record, **facts: Any) -> None:
        group_rank = record["rank"]
        life.failures[group_rank] = WorkerFailure(
            rank=self.rank(life, group_rank),
            replica_id=life.replica_id,
            group_rank=group_rank,
            pid=life.pids.get(group_rank, 0),
            restart=life.restart,
            at=record["at"],
            **facts,
        )
