"""Which values and which failures a launch reports, out of the host's records."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from ftrun.base.errors import LaunchError, UserError
from ftrun.base.packed import NoValue
from ftrun.tools.launching.records import Lines, to_line
from ftrun.tools.launching.story import Story


def story(*records: dict[str, Any], workers: int = 2) -> Story:
    """A story of these records, one second apart, as they come through the pipe."""
    told, lines = Story(), Lines()
    first = {"event": "settled", "job_id": "job", "workers": workers}
    data = b"".join(to_line({"at": at, **one}) for at, one in enumerate((first, *records)))
    for start in range(0, len(data), 7):
        for record in lines.feed(data[start : start + 7]):
            told.add(record)
    return told


def life(replica: str, incarnation: str, restart: int = 0) -> list[dict[str, Any]]:
    """A replica group of two workers is started."""
    return [
        {"event": "life", "replica": replica, "incarnation": incarnation, "restart": restart},
        *(
            {"event": "worker", "incarnation": incarnation, "rank": rank, "pid": 100 + rank}
            for rank in (0, 1)
        ),
    ]


def exited(incarnation: str, rank: int, status: int, reason: str = "") -> dict[str, Any]:
    return {
        "event": "exited", "incarnation": incarnation, "rank": rank, "pid": 100 + rank,
        "status": status, "reason": reason,
    }  # fmt: skip


def raised(incarnation: str, rank: int) -> dict[str, Any]:
    return {
        "event": "raised", "incarnation": incarnation, "rank": rank, "type": "ValueError",
        "message": "no", "traceback": "Traceback …",
    }  # fmt: skip


def stopping(incarnation: str, asked: bool = False) -> dict[str, Any]:
    return {"event": "stopping", "incarnation": incarnation, "asked": asked}


def lost(incarnation: str, killed: bool = False) -> dict[str, Any]:
    return {"event": "lost", "incarnation": incarnation, "reason": "hangs", "killed": killed}


def ended(code: int, reason: str = "it ended") -> dict[str, Any]:
    return {"event": "ended", "exit_code": code, "reason": reason}


def value(incarnation: str, group_rank: int) -> str:
    return f"{incarnation}{group_rank}"


def failed(told: Story) -> LaunchError:
    with pytest.raises(LaunchError) as caught:
        told.result(value)
    return caught.value


def test_values_are_those_of_the_life_that_finished() -> None:
    told = story(
        *life("0", "a"), *life("1", "b"), exited("b", 0, -9), stopping("b"), exited("b", 1, -9),
        lost("b"), *life("1", "c", 1), {"event": "finished", "incarnation": "c"},
        {"event": "finished", "incarnation": "a"}, ended(0),
    )  # fmt: skip
    assert told.result(value) == {0: "a0", 1: "a1", 2: "c0", 3: "c1"}
    assert list(told.result(value)) == [0, 1, 2, 3]


def test_a_replica_that_was_drained_has_no_value() -> None:
    told = story(
        *life("0", "a"), *life("1", "b"), stopping("b", asked=True), exited("b", 0, 75),
        exited("b", 1, 75), lost("b"), {"event": "finished", "incarnation": "a"}, ended(0),
    )  # fmt: skip
    assert told.result(value) == {0: "a0", 1: "a1"}
    assert told.failures() == ()


def test_a_sibling_that_was_stopped_is_no_failure_and_the_first_cause_is_first() -> None:
    error = failed(
        story(
            *life("1", "b"),
            *life("0", "a"),
            raised("b", 1),
            exited("b", 1, 1),
            stopping("b"),
            exited("b", 0, -9),
            lost("b"),
            exited("a", 0, -11),
            raised("a", 1),
            exited("a", 1, 1),
            ended(1, "replica 1 has failed"),
        )
    )
    assert [(one.rank, one.status, one.signal_name) for one in error.failures] == [
        (3, 1, ""), (0, -11, "SIGSEGV"), (1, 1, ""),
    ]  # fmt: skip
    text = str(error)
    assert text.startswith("The job has ended with exit code 1: replica 1 has failed.")
    assert "rank 3 (replica 1, worker 1, pid 101) raised ValueError: no" in text
    assert "first of 3 failures" in text and text.endswith("Traceback …")


def test_a_worker_that_was_given_up_is_a_failure_with_its_reason() -> None:
    error = failed(story(*life("0", "a"), stopping("a"), lost("a"), exited("a", 0, -9), ended(137)))
    assert [(one.rank, one.status, one.reason) for one in error.failures] == [(0, -9, "hangs")]
    assert "rank 0 (replica 0, worker 0, pid 100): hangs" in str(error)


@pytest.mark.parametrize(("asked", "killed"), [(True, False), (False, True)])
def test_a_loss_by_request_is_none(asked: bool, killed: bool) -> None:
    told = story(*life("0", "a"), stopping("a", asked), lost("a", killed), ended(75, "SIGTERM"))
    error = failed(told)
    assert (error.failures, error.exit_code) == ((), 75)


def test_failures_of_former_lives_are_kept_apart() -> None:
    error = failed(
        story(
            *life("0", "a"),
            exited("a", 0, 3),
            stopping("a"),
            exited("a", 1, -9),
            *life("0", "b", 1),
            raised("b", 0),
            exited("b", 0, 1),
            exited("a", 1, 5),
            ended(1),
        )
    )
    assert [(one.restart, one.status) for one in error.earlier] == [(0, 3)]
    assert [(one.restart, one.error_type) for one in error.failures] == [(1, "ValueError")]
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (str(copy), copy.failures, copy.earlier) == (str(error), error.failures, error.earlier)


def test_what_was_refused_is_an_error_of_the_user_or_of_the_job() -> None:
    refused = {"event": "refused", "text": "There is no such thing."}
    with pytest.raises(UserError, match="no such thing"):
        story({**refused, "exit_code": 2}, ended(2)).result(value)
    assert failed(story({**refused, "exit_code": 76}, ended(76))).exit_code == 76


def test_a_value_that_cannot_be_read_names_its_worker() -> None:
    def read(incarnation: str, group_rank: int) -> str:
        if group_rank == 1:
            raise NoValue("a lock was returned")
        return "fine"

    told = story(*life("0", "a"), {"event": "finished", "incarnation": "a"}, ended(0))
    with pytest.raises(LaunchError, match="not every value") as caught:
        told.result(read)
    assert caught.value.values == {0: "fine"}
    [one] = caught.value.failures
    assert (one.rank, one.status, one.reason) == (1, 1, "a lock was returned")


def test_an_end_without_a_last_word_is_a_bug() -> None:
    assert failed(story(*life("0", "a"))).exit_code == 70
