"""Seats of threads: which slot and incarnation, what a shutdown and a lost thread mean."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ftrun.compat.threads.replicas import (
    DEAD_KEPT,
    EndSeat,
    Newcomers,
    SeatGiven,
    SeatInstruction,
    SeatRefused,
    ThreadReplicas,
)
from ftrun.core.agent.events import SendToLighthouse
from ftrun.core.ids import NO_ATTEMPT, StateId, WorkerKey
from ftrun.core.messages import (
    InForce,
    ReplicaFinished,
    ReplicaLost,
    ReplicaStarted,
    Report,
)
from ftrun.core.quorum import Endpoint


def replicas(group_size: int = 1, slots: int = 4) -> ThreadReplicas:
    return ThreadReplicas("agent", group_size, slots)


def seat(
    those: ThreadReplicas, name: str, rank: int = 0, size: int = 1, store: str = ""
) -> tuple[SeatGiven, list[SeatInstruction]]:
    out = those.seat_asked(name, rank, size, store)
    those.check()
    assert isinstance(out[-1], SeatGiven)
    return out[-1], out[:-1]


def sent(out: list[SeatInstruction]) -> list[object]:
    return [x.message for x in out if isinstance(x, SendToLighthouse)]


def report() -> Report:
    return Report(StateId(0, "a"), Endpoint("h", "h:1"), NO_ATTEMPT)


def test_a_name_gets_the_slot_of_its_number_or_the_first_free_one() -> None:
    those = replicas()
    first, out = seat(those, "trainer")
    assert (first.key.replica_id, first.key.group_rank, first.restarts) == ("0", 0, 0)
    assert sent(out) == [ReplicaStarted("0", first.key.incarnation, 0)]
    assert seat(those, "2")[0].key.replica_id == "2"
    assert seat(those, "0")[0].key.replica_id == "1"
    assert {x.replica_id for x in those.running()} == {"0", "1", "2"}


def test_the_ranks_of_a_group_are_one_incarnation_and_finish_together() -> None:
    those = replicas(group_size=2)
    zero, _ = seat(those, "a", 0, 2, "s:1")
    one, out = seat(those, "a", 1, 2, "s:1")
    assert zero.key.incarnation == one.key.incarnation and not out
    assert those.seat_left(zero.key) == []
    assert sent(those.seat_left(one.key)) == [ReplicaFinished("0", one.key.incarnation)]
    assert those.finished() == ("0",) and not those.running()
    assert those.seat_left(one.key) == []


def test_a_rank_that_fails_ends_the_others_before_the_loss_is_reported() -> None:
    those = replicas(group_size=2)
    zero, _ = seat(those, "a", 0, 2, "s:1")
    one, _ = seat(those, "a", 1, 2, "s:1")
    end, lost = those.seat_left(one.key, "ValueError: no")
    assert isinstance(end, EndSeat) and end.key == zero.key and "ValueError: no" in end.reason
    assert isinstance(lost, SendToLighthouse) and isinstance(lost.message, ReplicaLost)
    assert not those.is_open(zero.key)
    assert [x.incarnation for x in those.dead()] == [zero.key.incarnation]
    again, out = seat(those, "a", 1, 2, "s:2")
    assert (again.key.replica_id, again.restarts) == ("0", 1)
    assert sent(out) == [ReplicaStarted("0", again.key.incarnation, 1)]
    assert again.key.incarnation != one.key.incarnation
    # The shutdown of a rank of the earlier incarnation means nothing for the new one.
    assert those.seat_left(zero.key) == [] and those.is_open(again.key)


def test_a_manager_in_a_seat_that_is_taken_begins_the_next_incarnation() -> None:
    those = replicas(group_size=2)
    zero, _ = seat(those, "a", 0, 2, "s:1")
    again, out = seat(those, "a", 0, 2, "s:1")
    assert isinstance(out[0], EndSeat) and out[0].key == zero.key
    assert [type(x) for x in sent(out)] == [ReplicaLost, ReplicaStarted]
    other, out = seat(those, "a", 1, 2, "s:2")  # the store of another incarnation
    assert isinstance(out[0], EndSeat) and out[0].key == again.key
    assert other.restarts == 2


def test_a_name_that_has_finished_and_comes_back_gets_another_slot() -> None:
    those = replicas(slots=2)
    first, _ = seat(those, "0")
    those.seat_left(first.key)
    again, _ = seat(those, "0")
    assert (again.key.replica_id, again.restarts) == ("1", 0)
    those.seat_left(again.key)
    (refused,) = those.seat_asked("0", 0, 1, "")
    assert isinstance(refused, SeatRefused) and "2 replica groups" in refused.reason


def test_what_fits_no_group_is_refused_in_words() -> None:
    those = replicas(group_size=2)
    (size,) = those.seat_asked("a", 0, 1, "")
    (rank,) = those.seat_asked("a", 2, 2, "")
    assert isinstance(size, SeatRefused) and "world_size" in size.reason
    assert isinstance(rank, SeatRefused) and "ranks 0 to 1" in rank.reason
    assert not those.running()


def test_the_lighthouse_takes_a_replica_out() -> None:
    those = replicas()
    given, _ = seat(those, "a")
    end, lost = those.taken_out(given.key.incarnation, "it hangs")
    assert end == EndSeat(given.key, "it hangs")
    assert isinstance(lost, SendToLighthouse)
    assert those.taken_out(given.key.incarnation, "again") == []


def test_the_end_of_the_job_ends_all_that_is_open() -> None:
    those = replicas()
    keys = [seat(those, name)[0].key for name in ("a", "b")]
    assert those.job_ended("over") == [EndSeat(key, "over") for key in keys]
    assert those.job_ended("over") == []


def test_newcomers_are_idle_until_all_ranks_report_and_join_when_a_quorum_stands() -> None:
    those = replicas(group_size=2)
    keys = [seat(those, "a", rank, 2, "s:1")[0].key for rank in (0, 1)]
    mine = frozenset({keys[0].incarnation})
    assert those.newcomers() == Newcomers(idle=mine)
    those.worker_sent(keys[0], report())
    assert those.newcomers() == Newcomers(idle=mine)
    those.worker_sent(keys[1], report())
    assert those.newcomers() == Newcomers(joining=mine)
    for key in keys:
        those.worker_sent(key, InForce(NO_ATTEMPT, 0))
    those.worker_sent(WorkerKey("9", "gone", 0), report())
    assert those.newcomers() == Newcomers()


def test_few_losses_are_kept() -> None:
    those = replicas()
    for _ in range(DEAD_KEPT + 3):
        given, _ = seat(those, "a")
        those.seat_left(given.key, "again")
    assert len(those.dead()) == DEAD_KEPT


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["take", "leave", "fail", "out"]),
            st.sampled_from("abc"),
            st.integers(0, 1),
            st.sampled_from(["s:1", "s:2"]),
        ),
        max_size=40,
    )
)
def test_no_incarnation_is_ever_begun_or_ended_twice(
    events: list[tuple[str, str, int, str]],
) -> None:
    those = replicas(group_size=2, slots=64)
    keys: dict[tuple[str, int], WorkerKey] = {}
    started: list[str] = []
    over: list[str] = []
    for what, name, rank, store in events:
        key = keys.get((name, rank), WorkerKey("0", "none", rank))
        if what == "take":
            out = those.seat_asked(name, rank, 2, store)
            given = [x for x in out if isinstance(x, SeatGiven)]
            assert len(given) == 1 and those.is_open(given[0].key)
            keys[name, rank] = given[0].key
        elif what == "out":
            out = those.taken_out(key.incarnation, "out")
        else:
            out = those.seat_left(key, "failed" if what == "fail" else "")
        those.check()
        for message in sent(out):
            if isinstance(message, ReplicaStarted):
                started.append(message.incarnation)
            else:
                assert isinstance(message, ReplicaLost | ReplicaFinished)
                over.append(message.incarnation)
    assert len(set(started)) == len(started) and len(set(over)) == len(over)
    assert {x.incarnation for x in those.running()} == set(started) - set(over)
