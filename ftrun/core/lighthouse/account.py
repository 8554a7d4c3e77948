"""The account of a job: what each second of each replica went to, and what failures cost (A1).

``update`` runs once after every event, when all that follows from it is decided. It looks only at
the slots that the event touched, and at all of them when a quorum breaks or comes to stand. What
a Progress tells began a while ago, because heartbeats come about once a second: such a change is
booked from then on. Time that was booked as training and proves to be lost is booked again:

- a loop that all others waited for, and that is given up, stood still since then (charges.py);
- a group that has to compute its step again repaired, for as long as it had computed that step;
- after a rollback all trained in vain since the step to which the job went back.

Not here: the arithmetic (ledger.py), the meaning of a use (uses.py), which incident lost time is
charged to (charges.py), what outlives the lighthouse (account_record.py), the views
(account_status.py).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ftrun.core.lighthouse.account_record import AccountRecord, Former, document, restored
from ftrun.core.lighthouse.charges import Charges
from ftrun.core.lighthouse.events import SaveAccount
from ftrun.core.lighthouse.history import Change
from ftrun.core.lighthouse.incidents import Incidents
from ftrun.core.lighthouse.ledger import Ledger, SlotBook, microseconds
from ftrun.core.lighthouse.phases import Phase
from ftrun.core.lighthouse.replicas import Replica
from ftrun.core.lighthouse.slots import Slot
from ftrun.core.lighthouse.state import NO_SPEC, MembershipState
from ftrun.core.lighthouse.uses import (
    GOES_ON,
    LOST,
    STANDS,
    Situation,
    Use,
    goodput,
    situation,
    use_of,
)
from ftrun.core.messages import JobAccount, Progress, SlotAccount

MARKS_KEPT = 40
MARK_EVERY = 1_000_000
SAVE_EVERY_S = 5.0
SAVE_EVERY_SLOT_S = 0.01
"""The account of a job of very many replicas is written less often, because its record is long."""
SAVE_SOON_S = 0.5
"""The account is written sooner after a failure, because a lighthouse that dies next would book
the lost time as training."""
SLOTS_TOLD_MAX = 256
AGE_MAX_S = 86400.0
NOT_THERE = frozenset({Use.ABSENT, Use.STARTING})
"""What a slot is booked as before its agent has come."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The job came to this step then."""

    at: int
    step: int


class Account:
    """The books of one job; they are open from its first agent until its end.

    ``stood_at``: when its first quorum stood. ``steps``: committed since then, without those that
    were trained twice. ``marks``: of the steps that it came to, a second or more apart.
    ``was_restored``: it goes on from an earlier lighthouse's. ``refusal``: why it does not.
    """

    def __init__(
        self, state: MembershipState, incidents: Incidents, record: AccountRecord | None = None
    ) -> None:
        self.ledger = Ledger((), 0)
        self.is_open = False
        self.was_restored = False
        self.refusal = ""
        self.stood_at: int | None = None
        self.steps = 0
        self.marks: deque[Mark] = deque(maxlen=MARKS_KEPT)
        self._state = state
        self._incidents = incidents
        self._record = record
        self._began_at = state.now
        self._formers: dict[str, Former] = {}
        self._restored_at = 0
        self._is_closed = False
        self._age = 0
        self._touched: set[str] = set()
        self._known: Situation | None = None
        self._charges = Charges(state, incidents)
        self._seen: dict[str, Progress] = {}
        self._highest = self._step = 0
        self._latest: Mark | None = None
        self._change: Change | None = None
        self._repaired = 0
        self._issued: object = None
        self._updated_at = 0
        self._save_at = self._soon_at = 0.0

    # ------------------------------------------------------------ what has happened

    def note_age(self, seconds: float) -> None:
        """An agent has come that began so long ago; with the first one the job began."""
        if not self.is_open:
            self._age = microseconds(min(seconds, AGE_MAX_S))

    def touch(self, replica_id: str) -> None:
        """Something may have changed for this slot."""
        self._touched.add(replica_id)

    def stood_still(self, replica_id: str, lasted_s: float) -> None:
        """The process, or its machine, was stopped for so long, until now."""
        if self._is_running:
            now = self._advance()
            since = now - microseconds(lasted_s)
            charge = self.ledger.books[replica_id].charge
            self.ledger.rebook(replica_id, since, GOES_ON, Use.STOPPED, charge)

    def update(self) -> None:
        """Book what has changed; call it once all consequences of an event are drawn."""
        state = self._state
        if not self.is_open and state.spec is not NO_SPEC:
            self._open()
        if not self._is_running:
            return
        self._note_cost_of_change()
        if self._charges.have_changed():
            self._advance()
            self._charges.apply(self.ledger, self._updated_at)
            self._save_at = min(self._save_at, self._soon_at)
        self._note_steps()
        self._book()
        self._note_quorum()
        if state.phase is Phase.ENDED:
            self._advance()
            self._is_closed = True
            self._save_at = state.now
        self._updated_at = microseconds(state.now)

    def save(self) -> SaveAccount | None:
        """What is to be written now, if it is due: seldom, at the end, and never in a repair."""
        state = self._state
        has_none = self.stood_at is None and state.phase is Phase.EMPTY  # so none is broken
        is_calm = self._is_closed or state.phase in STANDS or has_none
        if not self.is_open or state.now < self._save_at or not is_calm:
            return None
        slots_s = SAVE_EVERY_SLOT_S * len(self.ledger.books)
        self._save_at = state.now + SAVE_EVERY_S + slots_s
        self._soon_at = state.now + SAVE_SOON_S + slots_s
        if self._is_closed:
            self._save_at = float("inf")
        return self.record(state.now)

    def record(self, now: float) -> SaveAccount | None:
        """All that a later lighthouse goes on from; None: there is nothing yet."""
        if not self.is_open:
            return None
        if not self._is_closed:
            self.ledger.advance(microseconds(now))
        return SaveAccount(document(self._state, self.ledger, self.stood_at, self.steps))

    # ------------------------------------------------------------ figures

    @property
    def step(self) -> int:
        """The step that the job has come to."""
        return self._state.step_max

    def now(self, now: float) -> int:
        """The moment for which figures are told: now, or the job's end."""
        return self.ledger.now if self._is_closed else max(self.ledger.now, microseconds(now))

    def book(self, replica_id: str) -> SlotBook:
        """The books of one slot; before they are open, empty ones."""
        now = self.ledger.now
        return self.ledger.books.get(replica_id) or SlotBook(Use.ABSENT, now, now)

    def lost(self, book: SlotBook, now: int) -> int:
        """The time that this slot has lost since the job's first quorum stood."""
        if self.stood_at is None:
            return 0
        spent = book.seconds(now)
        return max(0, sum(spent.get(use, 0) for use in LOST) - book.lost_before)

    def goodput(self, now: int) -> float | None:
        """The share of training in all that counts; None: no quorum has stood yet."""
        return None if self.stood_at is None else goodput(self.ledger.total(now))

    def cost_s(self, incident: int, now: float) -> float:
        """The replica-seconds that are charged to this incident until now."""
        return self.ledger.cost(incident, self.now(now)) / 1e6

    def of_job(self) -> JobAccount | None:
        """The account as the agents are sent it at the end; None: the job has none."""
        if not self.is_open:
            return None
        now = self.now(self._state.now)
        books = self.ledger.books if len(self.ledger.books) <= SLOTS_TOLD_MAX else {}
        return JobAccount(
            wall_s=(now - self.ledger.began) / 1e6,
            lost_s=sum(self.lost(book, now) for book in self.ledger.books.values()) / 1e6,
            goodput=self.goodput(now),
            steps=self.steps,
            slots=tuple(SlotAccount(x, self.lost(book, now) / 1e6) for x, book in books.items()),
        )

    def check(self) -> None:
        """Assert A1, and that every slot is booked as what it is.

        Raises:
            AssertionError: a sum is wrong, or a change was overlooked.
        """
        if not self.is_open:
            return
        self.ledger.check()
        if self._is_closed:
            return
        for slot in self._state.slots:
            if slot.replica_id not in self._formers:
                use = use_of(self._state, slot, self._situation())
                book = self.ledger.books[slot.replica_id]
                assert book.use is use, f"A1: {slot.replica_id} is {use}, booked as {book.use}"

    # ------------------------------------------------------------ inside

    @property
    def _is_running(self) -> bool:
        return self.is_open and not self._is_closed

    def _open(self) -> None:
        """The job is known: its time begins now, or goes on from the record."""
        state, now = self._state, microseconds(self._state.now)
        slots = [slot.replica_id for slot in state.slots]
        self.is_open = True
        self._save_at = state.now + SAVE_EVERY_S
        record, self._record, found = self._record, None, None
        if record is not None:  # without a journal the job is known only some time later
            age_s = record.age_s + state.now - self._began_at
            try:
                found = restored(AccountRecord(record.document, age_s), state, now)
            except ValueError as error:
                self.refusal = str(error)
        if found is None:
            self.ledger = Ledger(slots, now - self._age, Use.STARTING)
            self._advance()
            self._is_closed = state.phase is Phase.ENDED
            return
        self.was_restored = True
        self.ledger, self._formers = found.ledger, found.formers
        self._restored_at, self.stood_at = self.ledger.now, found.stood_at
        self.steps, self._highest = found.steps, found.highest
        self._is_closed = state.phase is Phase.ENDED

    def _advance(self) -> int:
        self.ledger.advance(microseconds(self._state.now))
        return self.ledger.now

    def _book(self) -> None:
        """Book the slots that may have changed."""
        state, slots = self._state, self._state.slots
        now = self._situation()
        touched = self._touched | state.replicas.changed | slots.changed
        for names in (self._touched, state.replicas.changed, slots.changed):
            names.clear()
        if now is not self._known:
            self._known = now
            for slot in slots:
                self._book_slot(slot, now)
        else:
            for name in touched:
                if name in slots:
                    self._book_slot(slots[name], now)

    def _situation(self) -> Situation:
        return situation(self._state, has_stood=self.stood_at is not None)

    def _book_slot(self, slot: Slot, situation: Situation) -> None:
        name = slot.replica_id
        replica = self._state.replicas.at(name)
        use = use_of(self._state, slot, situation)
        if name in self._formers and not self._is_known_again(name, replica, use):
            return
        book = self.ledger.books[name]
        progress = replica.progress if replica is not None else None
        is_news = progress is not None and progress is not self._seen.get(name)
        if use is not book.use:
            now = self._advance()
            at = now
            if is_news and progress is not None and replica is not None:
                at = self._dated(now, book, use, progress, replica)
            charge = self._charges.of(name) if use in LOST else 0
            self.ledger.change(name, use, charge, at)
        if is_news and progress is not None:
            self._seen[name] = progress

    @staticmethod
    def _dated(now: int, book: SlotBook, use: Use, progress: Progress, replica: Replica) -> int:
        """When a use began that a Progress tells of.

        A step begins before its wait for peers does, so its beginning says nothing of the wait's
        end.
        """
        since = now - microseconds(progress.since_s)
        is_of_step = use is Use.TRAINING and since <= book.since
        return now if replica.is_overtaken or is_of_step else since

    def _is_known_again(self, name: str, replica: Replica | None, use: Use) -> bool:
        """Book the time without a lighthouse, as soon as it is known what the slot did then.

        ``use``: what it does now, by what is known without that. A script without a Manager ran on
        without a quorum, so there is no takeover that waits for its agent.
        """
        former, state = self._formers[name], self._state
        is_same = replica is not None and replica.incarnation == former.incarnation
        if is_same and replica is not None:
            at, ledger = self._restored_at, self.ledger
            if replica.is_apart:
                self._advance()
                ledger.rebook(name, at, {Use.ABSENT}, Use.RUNNING)
                del self._formers[name]
                return True
            if not replica.is_known(state.workers):
                return False
            self._advance()
            step = max(report.state.step for report in replica.reports.values())
            did, until = former.use_since(step, replica.is_in_quorum(), at)
            ledger.rebook(name, at, {Use.ABSENT}, did)
            if until is not None:
                ledger.rebook(name, until, {did}, Use.NO_QUORUM)
        may_come = former.use is Use.RUNNING and use in NOT_THERE
        if replica is None and (may_come or state.phase is Phase.TAKEOVER):
            return False
        del self._formers[name]
        return True

    # ------------------------------------------------------------ steps

    def _note_quorum(self) -> None:
        """A quorum stands for the first time: from now on time can be lost."""
        state = self._state
        if self.stood_at is None and state.phase in STANDS:
            now = self._advance()
            for book in self.ledger.books.values():
                spent = book.seconds(now)
                book.lost_before = sum(spent.get(use, 0) for use in LOST)
            self.stood_at = now
            self._highest = self._step = state.step_max

    def _note_steps(self) -> None:
        state = self._state
        if self.stood_at is None or state.phase is Phase.TAKEOVER:
            return
        step, before, self._step = state.step_max, self._step, state.step_max
        quorum = state.quorum
        is_issued = state.phase is Phase.BUILD and quorum is not None
        if is_issued and quorum is not None and quorum.attempt != self._issued:
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
        """The job goes on from an earlier step: what was trained since then was in vain."""
        self._advance()
        later = [mark for mark in self.marks if mark.step > step]
        since = later[0].at if later else self.ledger.now
        for name, book in self.ledger.books.items():
            self.ledger.rebook(name, since, {Use.TRAINING}, Use.REPAIRING, book.charge)
        self.marks.clear()
        self._latest = None

    def _recompute(self, names: tuple[str, ...], step: int) -> None:
        """These groups compute the step under way again, as far as they had come."""
        now, change, mark = self._advance(), self._state.history.under_way, self._latest
        if mark is None or change is None or step < mark.step:
            return
        broke = min(now, microseconds(change.began_at))
        spent = max(0, broke - mark.at) // (step - mark.step + 1)
        for name in names:
            charge = self.ledger.books[name].charge
            self.ledger.rebook(name, broke - spent, {Use.TRAINING}, Use.REPAIRING, charge)

    # ------------------------------------------------------------ what failures cost

    def _note_cost_of_change(self) -> None:
        """What was repaired since the last event belongs to the change that was under way."""
        under_way = self._state.history.under_way
        change = self._change
        if change is None and under_way is None:
            return
        repaired = self.repaired(microseconds(self._state.now))
        if change is not None:
            change.cost_s += (repaired - self._repaired) / 1e6
        self._change, self._repaired = under_way, repaired

    def repaired_since_event_s(self, now: float) -> float:
        """The repairs since the last event, which no change has been booked for yet."""
        if not self._is_running or self._change is None:
            return 0.0
        return (self.repaired(microseconds(now)) - self._repaired) / 1e6

    def repaired(self, now: int) -> int:
        """All time spent with repairs."""
        return self.ledger.total(max(now, self.ledger.now)).get(Use.REPAIRING, 0)
