"""Loses a node in a trial once a standby node is ready and another node has copies of its states.

A worker asks before each step whether it may begin (inject/zero_edit/allowed.py). It may as soon as
the job's status shows the steps before. So the status always shows what the loss of a node would
cost now, and the node is killed as soon as the cost is small. Not here: the processes
(launching.py).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

from ftrun.base import clock
from ftrun.base.errors import PeerError, UserError
from ftrun.base.files import write_whole
from ftrun.inject.zero_edit.allowed import ALLOWED, ASKED
from ftrun.tools.check.plan import LOSS_AFTER
from ftrun.tools.check.runs import Loss
from ftrun.tools.status.client import Connection
from ftrun.tools.status.once import StatusQuery, find_lighthouse

LOST = "lost.json"
STANDS_BY = " stands by: "
COPY_S = 20.0
"""How long the last step at which a node may be lost waits for the copies: a few rounds of
copies."""
ALL = 1 << 62
"""Every step may begin."""


class Move(Enum):
    """The answer to a worker that asks."""

    WAIT, GO, LOSE, GIVE_UP = range(4)


@dataclass(frozen=True, slots=True)
class Seen:
    """From the status: the steps taken, and the step from which all would resume without the
    node."""

    step: int
    copied: int


def move(step: int, seen: Seen | None, due: range, *, is_late: bool) -> Move:
    """Whether a step may begin, or the node is killed now.

    Args:
        step: the number of steps taken.
        seen: None: there is no status yet.
        due: the steps at which the node may be lost.
        is_late: the step has waited for ``COPY_S``.
    """
    if not step:
        return Move.GO
    if seen is None or seen.step < step:
        return Move.WAIT
    if seen.copied and step >= max(due[0], seen.copied + LOSS_AFTER):
        return Move.LOSE
    if step < due[-1]:
        return Move.GO
    if not is_late:
        return Move.WAIT
    return Move.LOSE if seen.copied else Move.GIVE_UP  # copies may keep up with slow steps


class Losing:
    """The loss of a node in one run, in ``directory``.

    Args:
        job_id: finds the job's status.
        due: see ``move``.
        start_spare: starts a standby node.
        lose: kills the node.
    """

    def __init__(
        self,
        directory: Path,
        job_id: str,
        due: range,
        start_spare: Callable[[], None],
        lose: Callable[[], None],
    ) -> None:
        self._directory, self._query, self._due = directory, StatusQuery(job_id=job_id), due
        self._start_spare, self._lose = start_spare, lose
        self._is_started = self._stands_by = False
        self._asked, self._allowed, self._since = -1, 0, 0.0
        self._connection: Connection | None = None

    def look(self, line: str) -> None:
        """Answer a worker's question, if there is one. ``line``: of a launcher's output, or ""."""
        self._stands_by |= self._is_started and STANDS_BY in line
        with contextlib.suppress(FileNotFoundError):
            asked = int((self._directory / ASKED).read_text())
            if asked != self._asked:
                self._asked, self._since = asked, clock.now()
        if self._asked < self._allowed:
            return
        if not self._is_started:
            self._is_started = True
            self._start_spare()
        if self._stands_by:
            self._answer(self._asked)

    def _answer(self, step: int) -> None:
        is_late = clock.now() >= self._since + COPY_S
        seen = self._seen() if step else None
        match move(step, seen, self._due, is_late=is_late):
            case Move.GO:
                self._allow(step + 1)
                return
            case Move.WAIT:
                return
            case Move.LOSE:
                assert seen is not None
                loss = asdict(Loss(step, seen.copied))
                write_whole(self._directory / LOST, json.dumps(loss))
                self._lose()
            case Move.GIVE_UP:
                pass
        self._allow(ALL)

    def _allow(self, until: int) -> None:
        self._allowed = until
        write_whole(self._directory / ALLOWED, str(until))

    def _seen(self) -> Seen | None:
        """The job's status; None: there is none now."""
        try:
            if self._connection is None:
                self._connection = Connection(*find_lighthouse(self._query))
            status = self._connection.fetch_status()
        except (UserError, PeerError):
            self._connection = None
            return None
        recovery = status["recovery"]
        return Seen(status["step"], recovery["node"]["from_step"] if recovery else 0)
