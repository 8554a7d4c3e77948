"""Requests one operation from a job's lighthouse, and survives a restart of the lighthouse.

Each request has an id and is in the lighthouse's journal before it is acknowledged. So a client
without an answer retries with the same id, and the request is carried out once. Not here: how the
outcome is shown (operate/operation.py, screen/requests.py), what the request does
(core/lighthouse).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from ftrun.base import clock
from ftrun.base.errors import PeerError, UserError
from ftrun.base.words import plain
from ftrun.core.lighthouse.status import OperationStatus
from ftrun.tools.status.client import LighthouseUnreachable, answer_of, request
from ftrun.tools.status.jobs import agent_lives, read_job
from ftrun.tools.status.once import StatusQuery, find_job, find_lighthouse

WAIT_S = 20.0
ANSWER_S = 5.0
RETRY_S = 0.25
NOT_FOUND = 404
Answer = tuple[str, int, bytes]


class AgentsLeft(Exception):
    """The whole job was asked to leave, and its lighthouse is gone."""


class RequestLost(PeerError):
    """The lighthouse was restarted without its journal: it does not know the request."""

    def __init__(self) -> None:
        super().__init__(
            "The lighthouse was restarted and has lost its journal, so it does not know this "
            "request any more. It may be carried out, or not: look at `ftrun status`, and ask "
            "again."
        )


class Asker:
    """One request, until ``timeout_s`` from now.

    Args:
        query: names the job.
        sent: the request's fields for ``POST /operations``.
        say: called with each new message about the operation, and about an unreachable lighthouse.
    """

    def __init__(
        self,
        query: StatusQuery,
        sent: dict[str, Any],
        timeout_s: float,
        say: Callable[[str], object],
    ) -> None:
        self._command = f"ftrun {sent['command']}"
        if query.lighthouse is None:
            query = replace(query, job_id=find_job(query.job_id, self._command).job_id)
        self._query = query
        self._request_id = secrets.token_hex(8)
        self._sent = {**sent, "request_id": self._request_id}
        self._is_of_all = sent["command"] == "drain" and not sent["replica"]
        self._timeout_s = timeout_s
        self._deadline = clock.now() + timeout_s
        self._say = say
        self._is_acknowledged = False

    @property
    def left_s(self) -> float:
        """The seconds until the deadline."""
        return self._deadline - clock.now()

    def run(self, *, waits: Callable[[], bool], wait_s: float = WAIT_S) -> OperationStatus:
        """Send the request, and follow the operation to its end, while ``waits`` returns True.

        Raises: as ``begin`` and ``follow``.
        """
        operation, shown = self.begin(), ""
        while True:
            if operation["text"] not in ("", shown):
                shown = operation["text"]
                self._say(plain(shown))
            if operation["state"] != "under way" or self.left_s <= 0 or not waits():
                return operation
            operation = self.follow(operation, wait_s)

    def begin(self) -> OperationStatus:
        """Send the request. Returns the operation's present state.

        Raises:
            UserError: there is no such job, replica or node, or the request is refused.
            LighthouseUnreachable: no lighthouse answers.
            AgentsLeft: the job was asked to leave, and its lighthouse is gone.
        """
        answer = self._persist(self._post)
        operation = cast(OperationStatus, answer_of(*answer, "operation"))
        self._is_acknowledged = True
        return operation

    def follow(self, operation: OperationStatus, wait_s: float = WAIT_S) -> OperationStatus:
        """The operation's state, once it changes, or after ``wait_s``.

        Raises: as ``begin``, and RequestLost.
        """
        wait_s = max(0.0, min(self.left_s, wait_s))
        path = f"/operations/{operation['operation']}?wait={wait_s:.3f}"
        answer = self._persist(lambda: self._send("GET", path, None, wait_s))
        if answer[1] == NOT_FOUND:
            return self._lost()
        found = cast(OperationStatus, answer_of(*answer, "operation"))
        return found if found["request_id"] == self._request_id else self._lost()

    def _lost(self) -> OperationStatus:
        """Send a stack request again, which is not journaled because taking stacks twice is
        harmless."""
        if self._sent["command"] != "stack":
            raise RequestLost
        return self.begin()

    def _post(self) -> Answer:
        return self._send("POST", "/operations", self._sent, 0.0)

    def _send(self, method: str, path: str, sent: object, wait_s: float) -> Answer:
        try:
            address, token, tls = find_lighthouse(self._query, self._command)
        except UserError as error:
            if not self._is_acknowledged:
                raise
            raise LighthouseUnreachable(str(error)) from error  # its file is gone: it has ended
        return request(address, token, method, path, sent, tls=tls, timeout_s=wait_s + ANSWER_S)

    def _persist(self, ask: Callable[[], Answer]) -> Answer:
        """Retry until there is an answer, while the lighthouse may be restarted."""
        silent_since: float | None = None
        while True:
            try:
                return ask()
            except LighthouseUnreachable as error:
                now = clock.now()
                if silent_since is None:
                    silent_since = now
                    self._check_may_come_back(error)
                    self._say(
                        "The lighthouse does not answer. It may be restarting: asking on, for "
                        f"{max(0.0, self.left_s):.0f} s at most."
                    )
                self._check_goes_on(error, now - silent_since)
                time.sleep(RETRY_S)

    def _check_may_come_back(self, error: LighthouseUnreachable) -> None:
        """Raise the error if there is no sign that a lighthouse ever ran."""
        if not (self._is_acknowledged or error.was_sent or self._agent_lives()):
            raise error

    def _check_goes_on(self, error: LighthouseUnreachable, silent_s: float) -> None:
        """Raise if no answer can come any more, or none came in time."""
        lives = self._agent_lives()
        is_gone = not lives if lives is not None else silent_s >= ANSWER_S
        if self._is_of_all and self._is_acknowledged and is_gone:
            raise AgentsLeft
        state = "is in the lighthouse's journal" if self._is_acknowledged else "may have arrived"
        if lives is False:
            raise LighthouseUnreachable(
                f"The job's agent on this machine has ended, and no lighthouse answers. The "
                f"request {state}; whether it was carried out is not known. To see how the job "
                f"ended: ftrun explain {self._query.job_id}"
            ) from error
        if self.left_s <= 0:
            raise LighthouseUnreachable(
                f"No lighthouse has answered for {silent_s:.0f} s. The request {state}: "
                "a lighthouse that restarts with it carries it out. To see: ftrun status"
            ) from error

    def _agent_lives(self) -> bool | None:
        """Whether the job's agent on this machine lives; None: the job is of another machine."""
        if self._query.job_id is None or self._query.lighthouse is not None:
            return None
        try:
            job = read_job(self._query.job_id)
        except UserError:
            return False
        return False if job is None else agent_lives(job)
