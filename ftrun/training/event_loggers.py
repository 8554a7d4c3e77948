"""The loggers ``torchft_quorums``, ``torchft_commits`` and ``torchft_errors``: facts as ``extra``.

A handler that a script attaches to them gets a record with the facts as attributes: at each new
quorum, each decision about a step, each step with an error. A logger without a handler or a level
of its own gets no records. Otherwise a script that logs everything at level INFO would get a line
for each step.

Not here: the log lines for people, ``ftrun status``.
"""

from __future__ import annotations

import logging
import os

QUORUMS, COMMITS, ERRORS = (
    logging.getLogger(f"torchft_{name}") for name in ("quorums", "commits", "errors")
)


class EventLoggers:
    """The records of one Manager.

    Args:
        job_id: ftrun's id of the job; JOB_ID in the environment overrides it, as with torchft.
        replica_id: the script's own name for this replica group, or the slot.
    """

    def __init__(self, job_id: str, replica_id: str, group_rank: int) -> None:
        job = os.environ.get("JOB_ID", job_id)
        self._facts = {"job_id": job, "replica_id": replica_id, "rank": group_rank}
        self._quorum_id = -1

    def step_begins(self, quorum_id: int, step: int) -> None:
        """A step begins. Logs a record if its quorum differs from the last step's."""
        if quorum_id == self._quorum_id:
            return
        self._quorum_id = quorum_id
        if _is_heard(QUORUMS):
            facts = {**self._facts, "quorum_id": quorum_id, "step": step}
            QUORUMS.info("quorum %d from step %d on", quorum_id, step, extra=facts)

    def decided(self, step: int, committed: bool, error: Exception | None) -> None:
        """A step was decided; ``error``: why it was not committed."""
        is_told = _is_heard(COMMITS)
        if not is_told and error is None:
            return
        facts = {**self._facts, "quorum_id": self._quorum_id, "step": step}
        if is_told:
            words = "committed" if committed else "not committed"
            COMMITS.info("step %d: %s", step, words, extra={**facts, "commit_result": committed})
        if error is not None and _is_heard(ERRORS):
            ERRORS.info("step %d: %s", step, error, extra={**facts, "error": str(error)})


def _is_heard(logger: logging.Logger) -> bool:
    """Whether the script has configured this logger."""
    is_asked_for = bool(logger.handlers) or logger.level != logging.NOTSET
    return is_asked_for and logger.isEnabledFor(logging.INFO)
