"""The books of one job: the use of its time, its failures, its changes of membership.

They receive facts and request none. ``take`` enters what has happened; ``settle`` draws the
conclusions once all of an event was sent. Both return the records to keep. No decision depends on
the books. Not here: when facts are sent (telling.py), what is shown of the books (snapshot.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ftrun.core.activity import Activity
from ftrun.core.books import facts as f
from ftrun.core.books.account import Account
from ftrun.core.books.incidents import Incidents
from ftrun.core.books.picture import Picture
from ftrun.core.books.records import AccountRecord, SaveAccount, SaveIncident


class Books:
    """All books of one job.

    ``earlier``: the account of the lighthouse's last life, if there is one.
    """

    def __init__(self, now: float, changes_max: int, earlier: AccountRecord | None = None) -> None:
        self.picture = Picture(now, changes_max)
        self.history = self.picture.history
        self.incidents = Incidents(self.picture)
        self.account = Account(self.picture, self.incidents, earlier)
        self._is_told = False
        self._enter: dict[type, Callable[[Any], None]] = {
            f.JobKnown: self._job_known,
            f.AgentCame: self._agent_came,
            f.ChangeBegan: self._change_began,
            f.ChangeEnded: self._change_ended,
            f.Stood: self._stood,
            f.Seen: self._seen,
            f.StoodStill: self.account.stood_still,
            f.Lost: self.incidents.lost,
            f.GivenUp: self.incidents.given_up,
            f.NodeLost: self.incidents.node_lost,
            f.Failed: self.incidents.failed,
            f.Started: self.incidents.started,
            f.Healed: self.incidents.healed,
            f.Moved: self.incidents.moved,
            f.WentOn: self.incidents.went_on,
        }

    def take(self, facts: Iterable[f.Fact], now: float) -> list[SaveIncident]:
        """Enter what has happened, in order."""
        self.picture.now = now
        for fact in facts:
            self._enter[type(fact)](fact)
            self._is_told = True
        return self._records() if self.incidents.unsaved else []

    def settle(self, now: float) -> list[SaveIncident | SaveAccount]:
        """All of an event was sent: book the time, close incidents that are over."""
        self.picture.now = now
        records: list[SaveIncident | SaveAccount] = []
        if self._is_told or self.incidents.have_changed:
            self._is_told = False
            self.account.update()
        if self.incidents.open or self.incidents.gone_at is not None:
            self.incidents.run_rules()
            records += self._records()
        self.account.updated_at = now
        if now >= self.account.save_at:
            records += self.account.save()
        return records

    def abandon(self, words: str, now: float) -> list[SaveIncident]:
        """There will be no further reports: close all open incidents."""
        self.picture.now = now
        self.incidents.abandon(words)
        return self._records()

    def check(self, slots: Iterable[f.Seen]) -> None:
        """Assert what must hold between events. ``slots``: their present state.

        Raises:
            AssertionError: a sum is wrong, or a change was not sent.
        """
        self.incidents.check()
        self.account.check(slots)

    # ------------------------------------------------------------ inside

    def _job_known(self, job: f.JobKnown) -> None:
        self.picture.job = job
        self.incidents.job_is_known(job)

    def _agent_came(self, came: f.AgentCame) -> None:
        self.account.note_age(came.age_s)
        self.incidents.agent_came(came.incidents)

    def _seen(self, slot: f.Seen) -> None:
        picture, name = self.picture, slot.replica_id
        picture.slots[name] = slot
        if slot.progress is not None and slot.progress.phase is Activity.APART:
            picture.step_apart = slot.progress.step
        picture.changed.add(name)
        (picture.members.add if slot.is_member else picture.members.discard)(name)

    def _stood(self, job: f.Stood) -> None:
        picture = self.picture
        picture.stage, picture.step, picture.words = job.stage, job.step, job.words
        picture.quorum, picture.is_issued = job.quorum, job.is_issued

    def _change_began(self, change: f.ChangeBegan) -> None:
        self.history.begin(self.picture.now, change.kind, change.reason)

    def _change_ended(self, change: f.ChangeEnded) -> None:
        self.history.complete(self.picture.now, change.quorum, change.words)

    def _records(self) -> list[SaveIncident]:
        """The records of the incidents that have changed, with their cost so far."""
        unsaved, self.incidents.unsaved = self.incidents.unsaved, []
        now, cost_s = self.picture.now, self.account.cost_s
        return [self.incidents.record(x, cost_s(x.number, now)) for x in unsaved]
