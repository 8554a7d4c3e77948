"""The job as the facts describe it: the only source of all books.

Not here: what the books make of it (account.py, incidents.py).
"""

from __future__ import annotations

from ftrun.core.books.facts import JobKnown, Seen, Stage
from ftrun.core.books.history import History
from ftrun.core.quorum import Quorum


class Picture:
    """The latest facts about the job.

    ``slots``: their last known state; ``members``: the slots in the quorum. ``changed``: slots that
    were sent since the account last looked. ``step_apart``: the last step of a group that trains
    without a quorum. ``is_issued``, ``words``: see ``Stood``.
    """

    def __init__(self, now: float, changes_max: int) -> None:
        self.now = now
        self.job: JobKnown | None = None
        self.stage = Stage.TAKEOVER
        self.step = self.step_apart = 0
        self.quorum: Quorum | None = None
        self.is_issued = False
        self.words = ""
        self.slots: dict[str, Seen] = {}
        self.members: set[str] = set()
        self.changed: set[str] = set()
        self.history = History(changes_max)

    @property
    def job_id(self) -> str:
        """The job's id; "": it is not known yet."""
        return self.job.job_id if self.job is not None else ""
