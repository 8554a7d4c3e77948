"""Fetches a job's status once a second, for ``ftrun status`` while it is watched.

A thread with one kept-alive connection, so that no key waits for the network. Each request results
in a ``Picture``: the last status with its age, and any problem in words. Not here: the display
(screen/, watch.py), single requests (client.py).

The states, and what the thread does next:

- LOOKING: no job runs here. It looks again every second.
- CHOOSING: several run here and none was named. It waits for ``choose``.
- LIVE: the status has arrived. It asks again at the next second.
- GONE: the lighthouse does not answer, but has not reported that the job has ended. It retries
  after half a second, then twice as long each time, up to ``BACKOFF_MAX_S``. The last status stays.
- REFUSED: the lighthouse has another token. It retries with the current content of the token's
  file.
- ENDED: the job has ended. It stops asking until another job is chosen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from ftrun.base import clock
from ftrun.base.errors import FtrunError, UserError
from ftrun.base.files import read_object
from ftrun.core.lighthouse.status import SCHEMA, OutcomeStatus, Status
from ftrun.tools.status.client import Connection, LighthouseUnreachable, WrongToken
from ftrun.tools.status.jobs import RunningJob, agent_lives, read_job, running_jobs
from ftrun.tools.status.once import StatusQuery, find_lighthouse

INTERVAL_S = 1.0
BACKOFF_MIN_S = 0.5
BACKOFF_MAX_S = 5.0
CHOICE_S = 1.0
REST_S = 60.0
EXIT_FILE = "exit.json"


class State(Enum):
    """The result of the last request."""

    LOOKING = "looking"
    CHOOSING = "choosing"
    LIVE = "live"
    GONE = "gone"
    REFUSED = "refused"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Picture:
    """The current knowledge of the job.

    Attributes:
        taken_at: when ``status`` arrived, on ftrun's clock.
        words: what is wrong.
        tried_at: the time of the last failed request.
        next_s: the time from then to the retry.
        jobs: to choose from.
        job: the file of the job, if it runs on this machine.
    """

    state: State
    status: Status | None = None
    taken_at: float = 0.0
    words: str = ""
    tried_at: float = 0.0
    next_s: float = 0.0
    jobs: tuple[RunningJob, ...] = ()
    job: RunningJob | None = None
    outcome: OutcomeStatus | None = None

    def age_s(self, now: float) -> float:
        return max(0.0, now - self.taken_at)


class Source:
    """Calls ``show`` in its own thread with each new picture, until ``stop``."""

    def __init__(self, query: StatusQuery, show: Callable[[Picture], None]) -> None:
        self._query = query
        self._show = show
        self._picture = Picture(State.LOOKING)
        self._connection: Connection | None = None
        self._choices = 0
        self._pause_s = 0.0
        self._is_stopped = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ftrun-status", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop asking. A pending request is not waited for."""
        self._is_stopped = True
        self._wake.set()

    def choose(self, job_id: str | None) -> None:
        """Watch this job; None: go back to the choice."""
        self._query = replace(self._query, lighthouse=None, job_id=job_id)
        self._choices += 1
        self._wake.set()

    def query(self) -> StatusQuery:
        """The current job, for other requests to its lighthouse."""
        return self._query

    def _run(self) -> None:
        choices = 0
        while not self._is_stopped:
            if choices != self._choices:
                choices = self._choices
                self._picture = Picture(State.LOOKING)
                self._hang_up()
            began_at = clock.now()
            picture = self._look()
            if self._is_stopped:
                break
            if choices == self._choices:  # otherwise another job was chosen meanwhile
                self._picture = picture
                self._show(picture)
                if picture.state is State.ENDED:
                    self._rest(choices)
                    continue
            self._wake.wait(max(0.0, began_at + self._pause_s - clock.now()))
            self._wake.clear()
        self._hang_up()

    def _rest(self, choices: int) -> None:
        """Pause until another job is chosen."""
        self._hang_up()
        while not self._is_stopped and choices == self._choices:
            self._wake.wait(REST_S)
            self._wake.clear()

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _look(self) -> Picture:
        self._pause_s = INTERVAL_S
        query, choices = self._query, self._choices
        try:
            if query.lighthouse is None and query.job_id is None:
                found = running_jobs()
                if not found:
                    return Picture(State.LOOKING, tried_at=clock.now())
                if len(found) > 1:
                    self._pause_s = CHOICE_S
                    return Picture(State.CHOOSING, jobs=tuple(found))
                # From here on this job is meant, even if another one starts.
                query = replace(query, job_id=found[0].job_id)
                if choices == self._choices:
                    self._query = query
            return self._ask(query)
        except (LighthouseUnreachable, UserError) as error:
            return self._lost(query, error)

    def _ask(self, query: StatusQuery) -> Picture:
        if self._connection is None:
            self._connection = Connection(*find_lighthouse(query))
        job = None if query.job_id is None else read_job(query.job_id)
        status = self._connection.fetch_status()
        if status.get("schema") != SCHEMA:
            version = status["lighthouse"].get("version", "?")
            raise UserError(
                f"The lighthouse is of another ftrun ({version}): its status has the schema "
                f"{status.get('schema')!r}, and this ftrun shows {SCHEMA!r}. Watch it with the "
                "ftrun that runs the job, or take its own JSON: ftrun status --json"
            )
        state = State.LIVE if status["outcome"] is None else State.ENDED
        return Picture(state, status, clock.now(), job=job, outcome=status["outcome"])

    def _lost(self, query: StatusQuery, error: FtrunError) -> Picture:
        """The picture when the lighthouse does not answer, or refuses."""
        self._hang_up()  # both files may have changed by then
        before, now = self._picture, clock.now()
        kept = replace(before, tried_at=now, words=str(error))
        outcome = self._ending(before, query)
        if outcome is not None:
            return replace(kept, state=State.ENDED, words="", outcome=outcome)
        never = isinstance(error, UserError) and before.status is None
        if never or isinstance(error, WrongToken):
            self._pause_s = BACKOFF_MAX_S
            return replace(kept, state=State.REFUSED, next_s=self._pause_s)
        again = before.state is State.GONE
        self._pause_s = min(BACKOFF_MAX_S, before.next_s * 2) if again else BACKOFF_MIN_S
        return replace(kept, state=State.GONE, next_s=self._pause_s)

    def _ending(self, before: Picture, query: StatusQuery) -> OutcomeStatus | None:
        """How the job has ended; None: it may still run."""
        known = before.job or (None if query.job_id is None else read_job(query.job_id))
        lives = None if known is None else agent_lives(known)
        if known is None or lives:
            return None
        found = _exit_of(Path(known.log_dir), known)
        if found is not None or lives is None:
            return found
        words = f"its ftrun on this machine (pid {known.pid}) was killed, and left no reason"
        return {"exit_code": -1, "reason": words}


def _exit_of(directory: Path, job: RunningJob) -> OutcomeStatus | None:
    """The content of the job's exit.json; None: no such file, or an earlier run's."""
    found = read_object(directory / EXIT_FILE)
    if found is None or str(found.get("time", "")) < job.started:
        return None
    return {"exit_code": int(found["exit_code"]), "reason": str(found["reason"])}
