"""When a snapshot is taken: the schedule of one worker, and of replicas whose writers die."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import example, given
from hypothesis import strategies as st

from ftrun.core.worker.snapshots import (
    INTERVALS_MAX,
    LIMIT_MIN_S,
    Decision,
    PartSchedule,
    SkipNotices,
    SnapshotSchedule,
)

EVERY_S = 10.0
NOTHING, LOOK, TAKE = Decision.NOTHING, Decision.LOOK, Decision.TAKE


def looked(at: float = 0.0) -> SnapshotSchedule:
    """A writer that has found no snapshot."""
    schedule = SnapshotSchedule(EVERY_S, at)
    assert schedule.at_boundary(True, at) is LOOK
    schedule.looked(None, at)
    assert schedule.at_boundary(True, at + 0.4 * EVERY_S) is NOTHING
    assert schedule.at_boundary(True, at + 0.5 * EVERY_S) is Decision.PREPARE
    schedule.prepared()
    return schedule


def test_a_writer_looks_first_and_takes_one_each_interval() -> None:
    schedule = looked()
    assert schedule.at_boundary(True, 9.9) is NOTHING
    assert schedule.at_boundary(True, 10.5) is TAKE
    assert schedule.is_writing
    schedule.written()
    assert not schedule.is_writing
    assert schedule.at_boundary(True, 20.4) is NOTHING
    assert schedule.at_boundary(True, 20.5) is TAKE
    schedule.written()
    assert schedule.counts.written == 2 and schedule.counts.skipped == 0


def test_one_that_does_not_write_takes_none() -> None:
    schedule = SnapshotSchedule(EVERY_S, 0.0)
    assert all(schedule.at_boundary(False, float(now)) is NOTHING for now in range(100))


def test_a_snapshot_that_takes_longer_than_the_interval_puts_the_next_one_off() -> None:
    schedule = looked()
    assert schedule.at_boundary(True, 10.0) is TAKE
    assert schedule.at_boundary(True, 19.9) is NOTHING
    assert schedule.at_boundary(True, 20.0) is Decision.SKIP
    assert schedule.at_boundary(True, 20.1) is NOTHING  # once an interval
    assert schedule.at_boundary(True, 30.0) is Decision.SKIP
    schedule.written()
    assert schedule.at_boundary(True, 31.0) is TAKE, "what was left out is made up for at once"
    schedule.written()
    assert schedule.at_boundary(True, 40.9) is NOTHING
    assert schedule.at_boundary(True, 41.0) is TAKE
    assert (schedule.counts.written, schedule.counts.skipped) == (2, 2)


def test_one_that_failed_is_counted_and_the_next_is_due_as_usual() -> None:
    schedule = looked()
    assert schedule.at_boundary(True, 10.0) is TAKE
    schedule.failed()
    schedule.failed()  # a process that was abandoned is reported twice at most
    assert schedule.counts.failed == 1
    assert schedule.at_boundary(True, 19.0) is NOTHING
    assert schedule.at_boundary(True, 20.0) is TAKE


def test_a_write_over_its_limit_is_abandoned_also_by_one_that_is_the_writer_no_more() -> None:
    limit_s = max(LIMIT_MIN_S, INTERVALS_MAX * EVERY_S)
    schedule = looked()
    assert schedule.at_boundary(True, 10.0) is TAKE
    assert schedule.at_boundary(False, 10.0 + limit_s) is NOTHING
    assert schedule.at_boundary(False, 10.1 + limit_s) is Decision.ABANDON
    schedule.failed()
    assert schedule.at_boundary(False, 10.2 + limit_s) is NOTHING


def test_a_new_writer_goes_on_where_its_predecessor_was() -> None:
    schedule = SnapshotSchedule(EVERY_S, 0.0)
    assert schedule.at_boundary(False, 50.0) is NOTHING
    assert schedule.at_boundary(True, 51.0) is LOOK
    assert schedule.at_boundary(True, 51.1) is NOTHING
    schedule.looked(4.0, 51.2)
    assert schedule.at_boundary(True, 52.1) is NOTHING
    assert schedule.at_boundary(True, 52.2) is Decision.PREPARE
    schedule.prepared()
    assert schedule.at_boundary(True, 57.1) is NOTHING
    assert schedule.at_boundary(True, 57.2) is TAKE


def test_a_job_that_goes_on_is_not_due_because_its_snapshot_is_old() -> None:
    schedule = SnapshotSchedule(EVERY_S, 100.0)
    assert schedule.at_boundary(True, 100.0) is LOOK
    schedule.looked(3600.0, 100.5)
    assert schedule.at_boundary(True, 105.5) is Decision.PREPARE
    schedule.prepared()
    assert schedule.at_boundary(True, 109.9) is NOTHING
    assert schedule.at_boundary(True, 110.0) is TAKE


def test_one_that_comes_late_and_finds_an_old_one_is_due_at_once() -> None:
    for age_s in (3600.0, None):
        schedule = SnapshotSchedule(EVERY_S, 100.0, is_late=True)
        assert schedule.at_boundary(True, 100.0) is LOOK
        schedule.looked(age_s, 100.5)
        assert schedule.at_boundary(True, 100.6) is TAKE


def test_a_new_writer_that_finds_nothing_counts_from_its_own_start() -> None:
    schedule = SnapshotSchedule(EVERY_S, 0.0)
    assert schedule.at_boundary(True, 51.0) is LOOK
    schedule.looked(None, 51.1)
    assert schedule.at_boundary(True, 51.2) is TAKE


def test_one_that_writes_again_looks_again_when_its_own_write_is_over() -> None:
    schedule = looked()
    assert schedule.at_boundary(True, 10.0) is TAKE
    assert schedule.at_boundary(False, 11.0) is NOTHING
    assert schedule.at_boundary(True, 12.0) is NOTHING
    schedule.written()
    assert schedule.at_boundary(True, 13.0) is LOOK


def test_a_directory_that_does_not_answer_for_an_interval_is_told() -> None:
    schedule = SnapshotSchedule(EVERY_S, 0.0)
    assert schedule.at_boundary(True, 0.0) is LOOK
    assert schedule.at_boundary(True, 9.9) is NOTHING
    assert schedule.at_boundary(True, 10.0) is Decision.SKIP
    assert schedule.at_boundary(True, 10.1) is NOTHING
    schedule.looked(None, 11.0)
    assert schedule.at_boundary(True, 11.0) is TAKE


def test_an_age_from_the_future_delays_nothing() -> None:
    schedule = SnapshotSchedule(EVERY_S, 0.0)
    assert schedule.at_boundary(True, 0.0) is LOOK
    schedule.looked(-1000.0, 0.0)
    assert schedule.at_boundary(True, EVERY_S) is TAKE


# ------------------------------------------------------------ replicas of several workers


def lead(at: float = 0.0) -> SnapshotSchedule:
    """The first of several workers, which has found no snapshot."""
    schedule = SnapshotSchedule(EVERY_S, at, is_several=True)
    assert schedule.at_boundary(True, at) is LOOK
    schedule.looked(None, at)
    assert schedule.at_boundary(True, at + 0.5 * EVERY_S) is Decision.PREPARE
    schedule.prepared()
    return schedule


def mate(at: float = 0.0) -> PartSchedule:
    """Another worker, whose memory is ready."""
    schedule = PartSchedule(EVERY_S, at)
    assert schedule.at_boundary(False, at) is NOTHING
    assert schedule.at_boundary(True, at) is Decision.WARM and schedule.is_idle
    assert schedule.at_boundary(True, at + 0.5 * EVERY_S) is Decision.PREPARE
    assert not schedule.is_idle
    schedule.prepared()
    return schedule


def vote(
    schedules: list[SnapshotSchedule | PartSchedule],
    now: float,
    step: int,
    committed: bool = True,
) -> bool:
    """One step's vote, as training/vote.py counts it."""
    ballots = [schedule.ballot(now) for schedule in schedules]
    agreed = all(ballots)
    for schedule in schedules:
        schedule.voted(agreed, step, committed=committed)
    return agreed


def test_all_workers_take_at_the_boundary_after_the_vote_that_the_lead_asks_in() -> None:
    """Whatever their clocks say, and whoever is the writer by then."""
    first, other = lead(), mate(7.0)
    assert not vote([first, other], 9.9, 4)
    assert first.at_boundary(True, 9.9, 4) is NOTHING
    assert first.at_boundary(True, 10.5, 4) is NOTHING, "it is due, but no vote has agreed"
    assert vote([first, other], 10.5, 5)
    assert first.at_boundary(False, 10.6, 5) is TAKE
    assert other.at_boundary(False, 3.0, 5) is TAKE
    first.written()
    other.written()
    assert not vote([first, other], 20.5, 6), "the lead was not the writer in that step"
    assert first.at_boundary(True, 20.5, 6) is LOOK, "it has become the writer again"


def test_what_a_vote_has_agreed_holds_for_one_boundary() -> None:
    first, other = lead(), mate()
    assert vote([first, other], 10.5, 5)  # the boundary of step 5 is none for snapshots
    assert not (first.is_writing or other.is_writing)
    assert vote([first, other], 11.0, 6)
    assert first.at_boundary(True, 11.0, 6) is TAKE and other.at_boundary(True, 11.0, 6) is TAKE
    first.written()
    other.written()
    assert vote([first, other], 30.0, 7, committed=False)
    assert first.at_boundary(True, 30.0, 7) is NOTHING
    assert other.at_boundary(True, 30.0, 7) is NOTHING


def test_a_worker_that_still_writes_puts_it_off_and_that_is_told_once_an_interval() -> None:
    first, other = lead(), mate()
    assert vote([first, other], 10.0, 1)
    assert first.at_boundary(True, 10.0, 1) is TAKE and other.at_boundary(True, 10.0, 1) is TAKE
    assert not vote([first, other], 19.0, 2)
    first.failed()
    assert first.at_boundary(True, 19.0, 2) is NOTHING
    for now, expected in ((20.0, NOTHING), (29.9, NOTHING), (30.0, Decision.SKIP), (30.1, NOTHING)):
        assert not vote([first, other], now, 3)
        assert first.at_boundary(True, now, 3) is expected, now
    other.failed()
    assert vote([first, other], 30.2, 5), "it is taken as soon as all can"
    assert first.at_boundary(True, 30.2, 5) is TAKE
    assert (first.counts.failed, first.counts.skipped, other.counts.failed) == (1, 1, 1)


def test_a_part_over_its_limit_is_abandoned_and_a_last_one_needs_an_idle_worker() -> None:
    other = mate()
    other.voted(True, 3, committed=True)
    assert other.at_boundary(True, 10.0, 3) is TAKE and not other.at_end(10.0)
    assert other.at_boundary(False, 10.1 + LIMIT_MIN_S, 4) is Decision.ABANDON
    other.failed()
    assert other.at_end(20.0) and other.is_writing


# ------------------------------------------------------------ replicas whose writers die


@dataclass
class Replicas:
    """Replicas in lockstep, a second a step; a dead one is back some steps later, as a new one.

    ``newest``: when the newest whole snapshot was begun: what a kill of everything goes back to.
    """

    write_s: int
    now: float = 0.0
    newest: float = 0.0
    alive: dict[int, SnapshotSchedule] = field(default_factory=dict)
    back_at: dict[int, float] = field(default_factory=dict)
    writes: dict[int, float] = field(default_factory=dict)

    def step(self, dies: int | None) -> None:
        """One step; replica ``dies`` is killed in it."""
        self.now += 1.0
        for name, began in list(self.writes.items()):
            if self.now - began >= self.write_s:
                self.newest = max(self.newest, began)
                self.alive[name].written()
                del self.writes[name]
        for name in [n for n, at in self.back_at.items() if at <= self.now]:
            del self.back_at[name]
            self.alive[name] = SnapshotSchedule(EVERY_S, self.now, is_late=True)
        if dies in self.alive and len(self.alive) > 1:
            del self.alive[dies]
            self.writes.pop(dies, None)
            self.back_at[dies] = self.now + 3
        for name, schedule in self.alive.items():
            self._decide(name, schedule, is_writer=name == min(self.alive))

    def _decide(self, name: int, schedule: SnapshotSchedule, *, is_writer: bool) -> None:
        decision = schedule.at_boundary(is_writer, self.now)
        if decision is LOOK:
            schedule.looked(self.now - self.newest if self.newest else None, self.now)
        elif decision is Decision.PREPARE:
            schedule.prepared()
        elif decision is TAKE:
            assert is_writer
            self.writes[name] = self.now


@example(
    write_s=1, deaths={5: 0, 121: 1, 1: 0, 119: 0, 2: 0, 117: 1}
)  # four writers in as many seconds
@given(
    write_s=st.integers(1, 8),
    deaths=st.dictionaries(st.integers(1, 200), st.integers(0, 2), max_size=12),
)
def test_a_kill_of_everything_loses_an_interval_a_write_and_what_dead_writers_had_begun(
    write_s: int, deaths: dict[int, int]
) -> None:
    """Each writer that dies in the middle costs its write, and a look of a second, no more; each
    other one that comes when a snapshot is due costs a look."""
    job = Replicas(write_s, alive={n: SnapshotSchedule(EVERY_S, 0.0) for n in range(3)})
    costly = 0.0
    for second in range(1, 201):
        dies = deaths.get(second)
        writer = min(job.alive)
        if dies in job.writes:
            costly += write_s + 2.0
        job.step(dies)
        if min(job.alive) != writer and job.now - job.newest >= EVERY_S and dies not in job.writes:
            costly += 1.0
        bound = EVERY_S + write_s + 2.0 + costly
        assert job.now - job.newest <= bound, (second, deaths)
        if not job.writes:
            costly = 0.0 if job.now - job.newest <= EVERY_S else costly


def test_skipped_ones_are_told_when_it_begins_and_when_it_is_over() -> None:
    notices = SkipNotices()
    assert not notices.written()
    assert [notices.skipped(total) for total in (1, 2, 3)] == [True, False, False]
    assert [notices.written(), notices.written()] == [True, False]
    assert notices.skipped(4)


def test_where_each_second_one_is_skipped_few_lines_come() -> None:
    notices = SkipNotices()
    told = [notices.skipped(total) + notices.written() for total in range(1, 101)]
    assert sum(told) == 2 * 7
