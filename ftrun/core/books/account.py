"""The account of a job: the use of each second of each replica, and the cost of failures (A1).

``update`` runs once after an event, when all its consequences were sent. It examines only the slots
that have changed, and all of them when a quorum breaks up or comes into force. Heartbeats are sent
about once a second, so a change that a Progress reports began earlier: it is booked from its begin.
Time that was booked as training and proves to be lost is booked again:

- a loop that all others waited for, and that is given up, stood still since then (charges.py);
- a group that must compute its step again was repairing, for as long as it had computed that step;
- after a rollback, the training since the step to which the job went back is lost at all replicas.

Not here: the arithmetic (ledger.py), the meaning of a use (uses.py), which incident lost time is
charged to (charges.py), the record that outlives the lighthouse (account_record.py), the views
(account_status.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from ftrun.core.activity import Activity
from ftrun.core.books.account_record import Former, document, restored
from ftrun.core.books.charges import Charges
from ftrun.core.books.facts import Seen, Stage, StoodStill
from ftrun.core.books.history import Change
from ftrun.core.books.incidents import Incidents
from ftrun.core.books.ledger import Ledger, SlotBook, microseconds
from ftrun.core.books.picture import Picture
from ftrun.core.books.records import AccountRecord, SaveAccount
from ftrun.core.books.uses import GOES_ON, LOST, Use, goodput, use_of
from ftrun.core.messages import JobAccount, Progress, SlotAccount

MARKS_KEPT = 40
MARK_EVERY = 1_000_000
SAVE_EVERY_S = 5.0
SAVE_EVERY_SLOT_S = 0.01
"""An account of very many replicas is written less often, because its record is long."""
SAVE_SOON_S = 0.5
"""Sooner after a failure, because the next lighthouse may book lost time as training."""
SLOTS_TOLD_MAX = 256
AGE_MAX_S = 86400.0
ENDED_UNSEEN = frozenset({Use.NO_QUORUM, Use.HEALING})
"""Uses that a worker may have left since its last Progress; the next comes a second later."""
NOT_THERE = frozenset({Use.ABSENT, Use.STARTING})
"""The use of a slot before its agent has attached."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The job reached this step at this time."""

    at: int
    step: int


class Account:
    """The books of one job; they are open from its first agent until its end.

    ``stood_at``: when its first quorum came into force. ``steps``: committed since then, without
    those that were trained twice; ``empty``: those of them that were none of the script's.
    ``marks``: of the steps that it reached, a second or more apart.
    ``was_restored``: it continues an earlier lighthouse's account. ``refusal``: why it does not.
    ``save_at``: when to write it next. ``updated_at``: the time of the last event.
    """

    def __init__(
        self, picture: Picture, incidents: Incidents, record: AccountRecord | None = None
    ) -> None:
        self.ledger = Ledger((), 0)
        self.is_open = False
        self.was_restored = False
        self.refusal = ""
        self.stood_at: int | None = None
        self.steps = self.empty = 0
        self.marks: deque[Mark] = deque(maxlen=MARKS_KEPT)
        self.save_at = float("inf")
        self.updated_at = picture.now
        self._picture = picture
        self._record = record
        self._began_at = picture.now
        self._formers: dict[str, Former] = {}
        self._restored_at = 0
        self._is_closed = False
        self._age = 0
        self._booked_at: tuple[Stage, bool] | None = None
        self._incidents = incidents
        self._members = 0
        self._charges = Charges(picture, incidents)
        self._seen: dict[str, Progress] = {}
        self._highest = self._step = 0
        self._empty_seen: int | None = None  # of all steps of the job, also before this account
        self._latest: Mark | None = None
        self._change: Change | None = None
        self._repaired = 0
        self._issued: object = None
        self._soon_at = 0.0

    # ------------------------------------------------------------ what has happened

    def note_age(self, seconds: float) -> None:
        """An agent has attached that started ``seconds`` ago. The job began with the first."""
        if not self.is_open:
            self._age = microseconds(min(seconds, AGE_MAX_S))

    def stood_still(self, stop: StoodStill) -> None:
        """The process, or its machine, was stopped until now."""
        if self._is_running:
            since = self._advance() - microseconds(stop.lasted_s)
            charge = self.ledger.books[stop.replica_id].charge
            self.ledger.rebook(stop.replica_id, since, GOES_ON, Use.STOPPED, charge)

    def update(self) -> None:
        """Book what has changed; call it once all consequences of an event were sent."""
        picture = self._picture
        if not self.is_open and picture.job is not None:
            self._open()
        if not self._is_running:
            return
        if picture.history.under_way is not self._change:
            self._note_cost_of_change()
        has_changed = len(picture.members) != self._members
        if self._incidents.have_changed:
            has_changed |= self._charges.have_changed()
        if has_changed:
            self._members = len(picture.members)
            self._advance()
            if self._incidents.open or self._charges.by_slot:
                self._charges.apply(self.ledger, microseconds(self.updated_at))
            self.save_at = min(self.save_at, self._soon_at)
        if self.stood_at is not None and picture.stage is not Stage.TAKEOVER:
            self._note_steps()
        self._book()
        if self.stood_at is None and picture.stage is Stage.STANDS:
            self._note_quorum()
        if picture.stage is Stage.ENDED:
            self._advance()
            self._is_closed = True
            self.save_at = picture.now

    def save(self) -> list[SaveAccount]:
        """The document to write, now that it is due: rarely, at the end, never during a repair."""
        picture = self._picture
        is_calm = picture.stage in (Stage.STANDS, Stage.ENDED)
        if not is_calm and (self.stood_at is not None or picture.stage is not Stage.EMPTY):
            return []
        slots_s = SAVE_EVERY_SLOT_S * len(self.ledger.books)
        self.save_at = picture.now + SAVE_EVERY_S + slots_s
        self._soon_at = picture.now + SAVE_SOON_S + slots_s
        if self._is_closed:
            self.save_at = float("inf")
        record = self.record(picture.now)
        return [] if record is None else [record]

    def record(self, now: float) -> SaveAccount | None:
        """The account that a later lighthouse continues from; None: there is nothing yet."""
        if not self.is_open:
            return None
        if not self._is_closed:
            self.ledger.advance(microseconds(now))
        return SaveAccount(
            document(self._picture, self.ledger, self.stood_at, self.steps, self.empty)
        )

    # ------------------------------------------------------------ figures

    @property
    def step(self) -> int:
        return self._picture.step

    def now(self, now: float) -> int:
        """The time for which figures are computed: now, or the job's end."""
        return self.ledger.now if self._is_closed else max(self.ledger.now, microseconds(now))

    def book(self, replica_id: str) -> SlotBook:
        """The books of one slot; empty ones before the account is open."""
        now = self.ledger.now
        return self.ledger.books.get(replica_id) or SlotBook(Use.ABSENT, now, now)

    def lost(self, book: SlotBook, now: int) -> int:
        """The time that this slot has lost since the job's first quorum came into force."""
        if self.stood_at is None:
            return 0
        spent = book.seconds(now)
        return max(0, sum(spent.get(use, 0) for use in LOST) - book.lost_before)

    def goodput(self, now: int) -> float | None:
        """The share of training in all that counts; None: there was no quorum yet."""
        return None if self.stood_at is None else goodput(self.ledger.total(now))

    def cost_s(self, incident: int, now: float) -> float:
        """The replica-seconds that are charged to this incident until now."""
        return self.ledger.cost(incident, self.now(now)) / 1e6

    def of_job(self, now_s: float, steps_lost: int) -> JobAccount:
        """The account that agents receive at the end."""
        now = self.now(now_s)
        books = self.ledger.books if len(self.ledger.books) <= SLOTS_TOLD_MAX else {}
        return JobAccount(
            wall_s=(now - self.ledger.began) / 1e6,
            lost_s=sum(self.lost(book, now) for book in self.ledger.books.values()) / 1e6,
            goodput=self.goodput(now),
            steps=self.steps - self.empty,
            slots=tuple(SlotAccount(x, self.lost(book, now) / 1e6) for x, book in books.items()),
            steps_lost=steps_lost,
        )

    def check(self, slots: Iterable[Seen]) -> None:
        """Assert A1, and that every slot is booked as what it is.

        Raises:
            AssertionError: a sum is wrong, or a change was overlooked.
        """
        if not self.is_open:
            return
        self.ledger.check()
        if self._is_closed:
            return
        for slot in slots:
            if slot.replica_id not in self._formers:
                use = use_of(slot, self._picture.stage, is_forming=self._is_forming)
                book = self.ledger.books[slot.replica_id]
                assert book.use is use, f"A1: {slot.replica_id} is {use}, booked as {book.use}"

    # ------------------------------------------------------------ inside

    @property
    def _is_running(self) -> bool:
        return self.is_open and not self._is_closed

    def _open(self) -> None:
        """The job is known: its time begins now, or continues from the record."""
        picture, now = self._picture, microseconds(self._picture.now)
        assert picture.job is not None
        self.is_open = True
        self.save_at = picture.now + SAVE_EVERY_S
        record, self._record, found = self._record, None, None
        if record is not None:  # without a journal the job is known only some time later
            age_s = record.age_s + picture.now - self._began_at
            try:
                found = restored(AccountRecord(record.document, age_s), picture, now)
            except ValueError as error:
                self.refusal = str(error)
        self._is_closed = picture.stage is Stage.ENDED
        if found is None:
            self.ledger = Ledger(picture.job.slots, now - self._age, Use.STARTING)
            self._advance()
            return
        self.was_restored = True
        self.ledger, self._formers = found.ledger, found.formers
        self._restored_at, self.stood_at = self.ledger.now, found.stood_at
        self.steps, self._highest, self.empty = found.steps, found.highest, found.empty

    def _advance(self) -> int:
        self.ledger.advance(microseconds(self._picture.now))
        return self.ledger.now

    def _book(self) -> None:
        picture, stage = self._picture, (self._picture.stage, self._is_forming)
        names = list(picture.changed if stage == self._booked_at else picture.slots)
        picture.changed.clear()
        self._booked_at = stage
        for name in names:
            slot = picture.slots[name]
            self._book_slot(slot, use_of(slot, picture.stage, is_forming=stage[1]))

    @property
    def _is_forming(self) -> bool:
        """Whether no quorum is in force, and there was none before or the job has begun again."""
        if self._picture.stage is Stage.STANDS:
            return False
        change = self._picture.history.under_way
        return self.stood_at is None or (change is not None and change.kind == "form")

    def _book_slot(self, slot: Seen, use: Use) -> None:
        name, progress = slot.replica_id, slot.progress
        if name in self._formers and not self._is_known_again(slot, use):
            return
        book = self.ledger.books[name]
        is_news = progress is not None and progress is not self._seen.get(name)
        if use is not book.use:
            at = now = self._advance()
            if is_news and progress is not None:
                at = self._dated(now, book, use, slot, progress)
            charge = self._charges.by_slot.get(name, 0) if use in LOST else 0
            self.ledger.change(name, use, charge, at)
        if is_news and progress is not None:
            self._seen[name] = progress
            if self.steps and progress.step:
                before = progress.empty if self._empty_seen is None else self._empty_seen
                self._empty_seen = max(before, progress.empty)
                self.empty += self._empty_seen - before

    def _dated(self, now: int, book: SlotBook, use: Use, slot: Seen, progress: Progress) -> int:
        """When the use that a Progress reports began.

        A step begins before its wait for peers does, so the begin of the step is not the end of the
        wait. A Progress may be of the last moment without a quorum, or of a heal: steps that were
        committed since then were trained, although none was under way when it was sent.
        """
        since, before = now - microseconds(progress.since_s), self._seen.get(slot.replica_id)
        committed = 0 if before is None else progress.steps - before.steps
        if book.use in ENDED_UNSEEN and use in GOES_ON and committed > 0:
            return since - microseconds(committed * progress.usual_s)
        is_of_step = use is Use.TRAINING and since <= book.since
        return now if slot.is_overtaken or is_of_step else since

    def _is_known_again(self, slot: Seen, use: Use) -> bool:
        """Book the time without a lighthouse, as soon as it is known what the slot did then.

        ``use``: its use now, by what is known without that. A script without a Manager runs on
        without a quorum, so there is no takeover that waits for its agent.
        """
        name, at, ledger = slot.replica_id, self._restored_at, self.ledger
        former = self._formers[name]
        if slot.incarnation == former.incarnation:
            if slot.progress is not None and slot.progress.phase is Activity.APART:
                self._advance()
                ledger.rebook(name, at, {Use.ABSENT}, Use.RUNNING)
                del self._formers[name]
                return True
            if not slot.is_known:
                return False
            self._advance()
            step = max(report.state.step for report in slot.reports)
            is_in_quorum = any(report.is_in_quorum for report in slot.reports)
            did, until = former.use_since(step, is_in_quorum, at)
            ledger.rebook(name, at, {Use.ABSENT}, did)
            if until is not None:
                ledger.rebook(name, until, {did}, Use.NO_QUORUM)
        may_come = former.use is Use.RUNNING and use in NOT_THERE
        if not slot.incarnation and (may_come or self._picture.stage is Stage.TAKEOVER):
            return False
        del self._formers[name]
        return True

    # ------------------------------------------------------------ steps

    def _note_quorum(self) -> None:
        """A quorum is in force for the first time: from now on time can be lost."""
        now = self._advance()
        for book in self.ledger.books.values():
            spent = book.seconds(now)
            book.lost_before = sum(spent.get(use, 0) for use in LOST)
        self.stood_at = now
        self._highest = self._step = self._picture.step
        self._empty_seen = None if self._highest else 0  # one that resumes knows of those before
        self.save_at = self._picture.now  # a later lighthouse would not know what was before

    def _note_steps(self) -> None:
        picture = self._picture
        step, before, self._step = picture.step, self._step, picture.step
        quorum = picture.quorum if picture.is_issued else None
        if quorum is not None and quorum.attempt != self._issued:
            self._issued = quorum.attempt
            if step < before:
                self._roll_back(step)
            elif quorum.recomputes:
                self._recompute(quorum.recomputes, step)
        if step > before:
            now = self._advance()
            self._latest = Mark(now, step)
            if not self.marks or now - self.marks[-1].at >= MARK_EVERY:
                self.marks.append(self._latest)
        if step > self._highest:
            now = self._advance()
            self.ledger.bands.add_steps(step - self._highest, now)
            self.steps += step - self._highest
            self._highest = step

    def _roll_back(self, step: int) -> None:
        """The job resumes at an earlier step: the training since then is lost."""
        self._advance()
        later = [mark for mark in self.marks if mark.step > step]
        since = later[0].at if later else self.ledger.now
        for name, book in self.ledger.books.items():
            self.ledger.rebook(name, since, {Use.TRAINING}, Use.REPAIRING, book.charge)
        self.marks.clear()
        self._latest = None

    def _recompute(self, names: tuple[str, ...], step: int) -> None:
        """These groups compute the step under way again, as far as they had computed it."""
        now, change, mark = self._advance(), self._picture.history.under_way, self._latest
        if mark is None or change is None or step < mark.step:
            return
        broke = min(now, microseconds(change.began_at))
        spent = max(0, broke - mark.at) // (step - mark.step + 1)
        for name in names:
            charge = self.ledger.books[name].charge
            self.ledger.rebook(name, broke - spent, {Use.TRAINING}, Use.REPAIRING, charge)

    # ------------------------------------------------------------ what failures cost

    def _note_cost_of_change(self) -> None:
        """Repairs since a change began are its cost, once it is over."""
        repaired, change = self.repaired(microseconds(self._picture.now)), self._change
        if change is not None:
            change.cost_s = (repaired - self._repaired) / 1e6
        self._change, self._repaired = self._picture.history.under_way, repaired

    def repaired_in_change_s(self, now: float) -> float:
        """The cost of repairs in the change that is under way."""
        if not self._is_running or self._change is None:
            return 0.0
        return (self.repaired(microseconds(now)) - self._repaired) / 1e6

    def repaired(self, now: int) -> int:
        return self.ledger.total(max(now, self.ledger.now)).get(Use.REPAIRING, 0)
