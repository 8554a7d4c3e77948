"""``ftrun chaos`` from start to end: wait, kill, watch the replacement, report, sum up.

Not here: finding the job and its status (status/), the workers that may be killed (targets.py), the
random draws (draws.py), the agent's end (held_agent.py).
"""

from __future__ import annotations

import secrets
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from signal import Signals

from ftrun.base import clock
from ftrun.base.errors import ExitCode, UserError
from ftrun.base.words import duration, plain
from ftrun.core.lighthouse.status import IncidentStatus, ReplicaStatus, Status
from ftrun.protocol.auth import load_token
from ftrun.tools.chaos.draws import Draws
from ftrun.tools.chaos.held_agent import HeldAgent
from ftrun.tools.chaos.targets import Target, find_targets, trains
from ftrun.tools.status.client import LighthouseUnreachable, fetch_status
from ftrun.tools.status.jobs import RunningJob
from ftrun.tools.status.once import find_job

LOOK_S = 0.05
"""Interval of status requests: the lighthouse sends no event when a replica joins."""
REPLACED_S_MAX = 120.0
COMMIT_S_MAX = 30.0
SILENT_S_MAX = 15.0
RESULTS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class ChaosSettings:
    """The options. ``duration_s`` and ``kills`` None: until the job ends, or Ctrl-C.

    ``result``: the result file of a campaign (campaign.py).
    """

    mtbf_s: float
    job_id: str | None = None
    duration_s: float | None = None
    kills: int | None = None
    seed: int | None = None
    signal: Signals = Signals.SIGKILL
    only_replica: str | None = None
    token_file: Path | None = None
    result: Path | None = None


@dataclass
class Tally:
    """The results until now. ``back_s``: from a kill until the replacement was a member."""

    kills: int = 0
    back_s: list[float] = field(default_factory=list)
    missing: int = 0


class JobEnded(Exception):
    """The job has ended, or its lighthouse no longer answers."""


def run_chaos(settings: ChaosSettings, show: Callable[[str], None] = print) -> int:
    """Kill until the time or the number of kills is reached, or the job ends.

    Returns:
        The exit code.

    Raises:
        UserError: no such job runs here, it is another user's, or it has no such replica.
        LighthouseUnreachable: its lighthouse did not answer the first request.
    """
    job = find_job(settings.job_id, "ftrun chaos")
    with HeldAgent(job) as agent:
        return Session(settings, job, agent, show).run()


class Session:
    """One ``ftrun chaos`` and the job whose workers it kills."""

    def __init__(
        self,
        settings: ChaosSettings,
        job: RunningJob,
        agent: HeldAgent,
        show: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._job = job
        self._agent = agent
        self._print = show
        self._token = load_token(settings.token_file or Path(job.token_file))
        self._seed = secrets.randbelow(1 << 31) if settings.seed is None else settings.seed
        self._draws = Draws(settings.mtbf_s, self._seed)
        self._tally = Tally()
        self._began = clock.now()

    def run(self) -> int:
        """See ``run_chaos``."""
        status = fetch_status(self._job.http, self._token, tls=self._job.tls)
        self._announce(status)
        length_s = self._settings.duration_s
        until = None if length_s is None else self._began + length_s
        try:
            while self._has_kills_left() and self._pause(self._draws.pause_s(), until):
                self._kill_one(until)
        except JobEnded as ending:
            self._print(f"{ending}.")
        except KeyboardInterrupt:
            self._print("Ctrl-C.")
        self._sum_up()
        return ExitCode.OK

    def _announce(self, status: Status) -> None:
        settings, only = self._settings, self._settings.only_replica
        names = [replica["replica_id"] for replica in status["replicas"]]
        if only is not None and only not in names:
            raise UserError(
                f"--only-replica {only}: job {self._job.job_id} has replicas {', '.join(names)}."
            )
        self._check_alive()
        whom = "a random worker" if only is None else f"a worker of replica {only}"
        self._print(
            f"Job {self._job.job_id}: {settings.signal.name} to {whom} on this machine every "
            f"{duration(settings.mtbf_s)} on average, {self._length()} (seed {self._seed}). "
            "Ctrl-C ends that; the job continues."
        )

    def _check_alive(self) -> None:
        if not self._agent.lives:
            raise UserError(
                f"The agent of job {self._job.job_id} (pid {self._job.pid}, on {self._job.host}) "
                "does not run on this machine. Nothing was killed."
            )

    def _length(self) -> str:
        length_s, kills = self._settings.duration_s, self._settings.kills
        limits = [] if length_s is None else [f"for {duration(length_s)}"]
        if kills is not None:
            limits.append("once" if kills == 1 else f"{kills} times")
        return " or ".join(limits) or "until the job ends"

    def _has_kills_left(self) -> bool:
        return self._settings.kills is None or self._tally.kills < self._settings.kills

    # ------------------------------------------------------------ one kill

    def _kill_one(self, until: float | None) -> None:
        target, status = self._await_target(until)
        if target is None or not target.strike(self._settings.signal):
            return
        killed_at = clock.now()
        self._tally.kills += 1
        self._line(
            f"{self._settings.signal.name} to replica {target.replica_id}, worker "
            f"{target.group_rank} (pid {target.pid}) at step {status['step']}"
        )
        self._watch_replacement(target, killed_at, last_incident(status))

    def _await_target(self, until: float | None) -> tuple[Target | None, Status]:
        """Wait for a worker to kill. The last member is spared, because the state would be lost."""
        shown = False
        while True:
            status = self._status()
            if has_state_elsewhere(status):
                only = self._settings.only_replica
                targets = find_targets(status, self._job.pid, only)
                if targets:
                    return self._draws.victim(targets), status
            if not shown:
                shown = True
                self._line("no worker to kill now (a job's last member is spared); waiting")
            if not self._pause(LOOK_S * 4, until):
                return None, status

    def _watch_replacement(self, target: Target, killed_at: float, after: int) -> None:
        """Wait until the replica is a member again, then until it has committed a step."""
        name = f"replica {target.replica_id}"
        rejoined = partial(_rejoined, target=target, after=after)
        joined_at_step = self._watch(REPLACED_S_MAX, rejoined)
        if joined_at_step is None:
            self._tally.missing += 1
            self._line(f"{name} is not back after {duration(REPLACED_S_MAX)}")
            return
        back_s = clock.now() - killed_at
        self._tally.back_s.append(back_s)
        del self._tally.back_s[:-RESULTS_MAX]
        words = f"{name}: its replacement is a member after {duration(back_s)}"
        # Progress arrives with heartbeats, so a commit is seen up to one heartbeat late.
        has_got_on = partial(_got_on, target=target, from_step=joined_at_step, after=after)
        step = self._watch(COMMIT_S_MAX, has_got_on)
        if step is None:
            self._line(f"{words}; no commit of it was seen in {duration(COMMIT_S_MAX)}")
        else:
            seen = duration(clock.now() - killed_at)
            self._line(f"{words}, and was seen to have committed step {step} after {seen}")

    def _watch(self, timeout_s: float, look: Callable[[Status], int | None]) -> int | None:
        """Fetch the status until ``look`` returns a value, or the time is over."""
        deadline = clock.now() + timeout_s
        while (found := look(self._status())) is None and clock.now() < deadline:
            self._pause(LOOK_S, deadline)
        return found

    # ------------------------------------------------------------ the job

    def _status(self) -> Status:
        """The status, from a lighthouse that may be away for up to ``SILENT_S_MAX``.

        Raises:
            JobEnded: the job has ended, or the lighthouse was away for longer.
        """
        deadline = clock.now() + SILENT_S_MAX
        while True:
            try:
                status = fetch_status(self._job.http, self._token, tls=self._job.tls)
            except LighthouseUnreachable:
                if self._agent.ends_within(LOOK_S):
                    raise JobEnded(f"Job {self._job.job_id} has ended") from None
                if clock.now() > deadline:
                    raise JobEnded(
                        f"The lighthouse of job {self._job.job_id} has not answered for "
                        f"{duration(SILENT_S_MAX)}"
                    ) from None
                continue
            outcome = status["outcome"]
            if outcome is not None:
                raise JobEnded(f"Job {self._job.job_id} has ended: {plain(outcome['reason'])}")
            return status

    def _pause(self, seconds: float, until: float | None) -> bool:
        """Wait, at most until ``until``. Returns False at that time. JobEnded: the agent has
        ended."""
        left_s = seconds if until is None else min(seconds, until - clock.now())
        if self._agent.ends_within(left_s):
            raise JobEnded(f"Job {self._job.job_id} has ended")
        return until is None or clock.now() < until

    def _line(self, text: str) -> None:
        self._print(f"{clock.now() - self._began:8.2f} s  {plain(text)}")

    def _sum_up(self) -> None:
        tally = self._tally
        elapsed = duration(clock.now() - self._began)
        found = tally.back_s
        line = f"{tally.kills} kill{'' if tally.kills == 1 else 's'} in {elapsed}"
        if found:
            line += (
                f"; {len(found)} replaced: median {duration(statistics.median(found))}, "
                f"max {duration(max(found))}"
            )
        if tally.missing:
            line += f"; {tally.missing} not replaced within {duration(REPLACED_S_MAX)}"
        self._print(f"{line}. Seed {self._seed}.")


def members(status: Status) -> list[str]:
    """The replicas that train."""
    return [r["replica_id"] for r in status["replicas"] if trains(r)]


def has_state_elsewhere(status: Status) -> bool:
    """Whether a lost worker's state is held by another replica, or in memory."""
    recovery = status["recovery"]
    return len(members(status)) > 1 or bool(recovery and recovery["worker"]["from_step"])


def mend_of(status: Status, replica_id: str | None, after: int) -> IncidentStatus | None:
    """The incident of a worker of this replica that was replaced alone; None: there is none.

    ``after``: the number of the last incident before.
    """
    for one in status["incidents"]:
        if one["number"] > after and replica_id in one["replicas"] and not one["is_open"]:
            return one
    return None


def last_incident(status: Status) -> int:
    """The number of the last incident; 0: there is none."""
    return max((one["number"] for one in status["incidents"]), default=0)


def replica_of(status: Status, replica_id: str | None) -> ReplicaStatus:
    """The replica with that id.

    Raises:
        JobEnded: the job no longer has it.
    """
    for replica in status["replicas"]:
        if replica["replica_id"] == replica_id:
            return replica
    raise JobEnded(f"replica {replica_id} is no part of the job any more")


def _rejoined(status: Status, target: Target, after: int) -> int | None:
    """The job's step, if another incarnation of the target's replica trains, or the worker was
    replaced in this one. ``after``: see ``mend_of``."""
    replica = replica_of(status, target.replica_id)
    is_new = replica["incarnation"] != target.incarnation
    is_back = trains(replica) and (is_new or mend_of(status, target.replica_id, after) is not None)
    return status["step"] if is_back else None


def _got_on(status: Status, target: Target, from_step: int, after: int) -> int | None:
    """The replacement's step, if it is beyond ``from_step``."""
    step = replica_of(status, target.replica_id)["step"]
    is_back = _rejoined(status, target, after) is not None
    return step if is_back and step is not None and step > from_step else None
