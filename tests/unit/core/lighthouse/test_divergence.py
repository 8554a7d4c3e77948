"""Replicas that hold one state by name, and are not alike."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ftrun.core import messages as m
from ftrun.core.activity import Activity
from ftrun.core.failure_kinds import HEAL, REPORT, STOP
from ftrun.core.lighthouse.divergence import STATES_MAX
from ftrun.core.messages import Mark
from ftrun.core.quorum import Endpoint
from tests.unit.core.books.booked_job import BookedJob

SOUND = "SGD lr 0.1, momentum 0.9"
ODD = "SGD lr 0.5, momentum 0.9"


class Job(BookedJob):
    """Formed, with some replicas that have healed into it."""

    def __init__(self, replicas: int = 3, healed: str = "", action: str = HEAL) -> None:
        super().__init__(replicas, action=action)
        self.form()
        for name in healed:
            self.core.state.replicas[name].has_healed = True

    def marks(self, name: str, *marks: Mark) -> None:
        word = m.Progress(marks[-1].step, 0, Activity.STEP, marks=marks)
        line = m.ReplicaProgress(name, self.incarnations[name], word)
        self.sent.clear()
        self.send(name, m.Heartbeat((line,)))

    def compare(self, step: int, *digests: str) -> None:
        """All show their parameters, in the order of the slots."""
        for name, digest in zip(self.incarnations, digests, strict=True):
            self.marks(name, mark(step, parameters=digest))

    def end(self, *ends: Mark) -> None:
        """The scripts have ended, in the order of the slots."""
        self.sent.clear()
        for name, its in zip(self.incarnations, ends, strict=False):
            self.say(name, m.Present(Endpoint("h", "h:1"), ended=its))

    @property
    def compared(self) -> str:
        """By the last Roster."""
        found = [x.message for x in self.sent if isinstance(x, m.ToWorkers)]
        return [x.compared for x in found if isinstance(x, m.Roster)][-1]

    def finish(self) -> m.EndJob | None:
        for name in self.incarnations:
            self.say(name, m.Leaving(m.LeaveReason.FINISHED))
            self.send(name, m.ReplicaFinished(name, self.incarnations[name]))
        return self.core.state.outcome

    @property
    def replaced(self) -> dict[str, str]:
        return {x.replica_id: x.reason for x in self.sent if isinstance(x, m.RestartReplica)}

    @property
    def told(self) -> set[str]:
        return {x.text for x in self.sent if isinstance(x, m.Notice) and x.kind == "diverged"}


def mark(step: int, settings: str = SOUND, parameters: str = "", lineage: str = "l") -> Mark:
    return Mark(step, lineage, settings, parameters)


def test_a_newcomer_with_other_settings_is_replaced() -> None:
    job = Job(healed="1")
    job.marks("1", mark(70), mark(76, ODD))
    job.marks("0", mark(70), mark(76))
    assert job.replaced == {}  # the third may be like either
    job.marks("2", mark(76))
    cause = job.replaced["1"]
    assert cause.startswith(
        "has diverged at step 76: its optimizer has SGD lr 0.5, that of replicas 0 and 2 SGD lr 0.1"
    )
    assert "heals again" in cause
    assert list(job.replaced) == ["1"]


def test_of_two_the_one_that_healed_is_wrong() -> None:
    job = Job(2, healed="0")
    job.marks("1", mark(9))
    job.marks("0", mark(9, ODD))
    assert list(job.replaced) == ["0"]


def test_other_parameters_are_found_too() -> None:
    job = Job(healed="2")
    for name, digest in (("0", "aa"), ("1", "aa"), ("2", "bb")):
        job.marks(name, mark(100, parameters=digest))
    assert "its parameters differ from those of replicas 0 and 1" in job.replaced["2"]


def test_one_that_was_so_from_the_beginning_is_told_once() -> None:
    job = Job()
    told: list[str] = []
    for step in (1, 2):
        for name in "012":
            job.marks(name, mark(step, ODD if name == "2" else SOUND))
            assert job.replaced == {}
            told += job.told
    (text,) = told
    assert text.startswith("Replica 2 has diverged at step 1: its optimizer has SGD lr 0.5")
    assert text.endswith("the script takes it from its rank, or from a place that does not heal.")


def test_another_position_is_told_once_of_a_newcomer_too() -> None:
    job = Job(2, healed="1")
    told: list[str] = []
    for step in (5, 6):
        job.marks("0", replace(mark(step), position=f"batch {step}"))
        job.marks("1", replace(mark(step), position=f"batch {step + 1}"))
        assert job.replaced == {}
        told += job.told
    assert told == [
        "Replica 1 was at batch 6 at step 5, unlike replica 0 at batch 5: its batches differ."
    ]


def test_the_same_batch_by_other_lines_is_no_difference() -> None:
    job = Job(2)
    for name, file in (("0", "progress.py:7"), ("1", "train.py:60")):
        job.marks(
            name,
            replace(mark(5), position=f"epoch 1, batch 4 of the data loader at {file}, step 0"),
        )
        assert not job.told
    job.marks(
        "0", replace(mark(6), position="epoch 1, batch 5 of the data loader at progress.py:7")
    )
    job.marks("1", replace(mark(6), position="epoch 1, batch 4 of the data loader at train.py:60"))
    (text,) = job.told
    assert text.endswith("of the data loader at progress.py:7: its batches differ.")


def test_unlike_lineages_are_not_compared() -> None:
    job = Job(healed="1")
    job.marks("0", mark(5, lineage="a"))
    job.marks("2", mark(5, lineage="a"))
    job.marks("1", mark(5, ODD, lineage="b"))
    assert job.replaced == {}


def test_steps_that_only_one_has_shown_say_nothing() -> None:
    job = Job(healed="1")
    job.marks("0", mark(5))
    job.marks("2", mark(6))
    job.marks("1", mark(7, ODD))
    assert job.replaced == {}


def test_an_incarnation_that_is_gone_does_not_count() -> None:
    job = Job(2, healed="1")
    job.marks("1", mark(5, ODD))
    job.lose("1")
    job.start("1", "again")
    job.report("1")
    job.marks("0", mark(5))
    assert job.replaced == {}


def test_old_states_are_forgotten() -> None:
    job = Job(2, healed="1")
    for step in range(2 * STATES_MAX):
        job.marks("0", mark(step))
    divergence = job.core.membership.divergence
    assert len(divergence._states) == STATES_MAX
    job.marks("1", mark(1, ODD))
    assert job.replaced == {}
    job.marks("1", mark(2 * STATES_MAX - 1, ODD))
    assert list(job.replaced) == ["1"]


def test_a_number_of_settings_that_differs_is_named() -> None:
    job = Job(2, healed="1")
    job.marks("0", mark(5, "SGD lr 0.1, SGD lr 0.2"))
    job.marks("1", mark(5, "SGD lr 0.1"))
    assert "its optimizer has 1 settings, that of replica 0 2" in job.replaced["1"]


def test_the_odd_one_of_three_that_were_equal_heals_from_the_others() -> None:
    job = Job()
    job.compare(100, "aa", "aa", "aa")
    job.compare(200, "bb", "xx", "bb")
    (name, cause), *more = job.replaced.items()
    assert (name, more) == ("1", [])
    assert cause.startswith("is corrupted since a step after 100 and up to 200: its parameters")
    assert cause.endswith("(silent corruption); it heals from them")


def test_agents_are_sent_the_last_state_that_all_agreed_on() -> None:
    job = Job()
    job.compare(100, "aa", "aa", "aa")
    job.compare(200, "bb", "bb", "bb")
    job.compare(300, "cc", "cc", "xx")
    job.send("0", m.Heartbeat())
    acks = [x.agreed for x in job.sent if isinstance(x, m.HeartbeatAck)]
    assert acks[-1] is not None and acks[-1].step == 200


@pytest.mark.parametrize("digests", [("bb", "xx"), ("bb", "xx", "bb", "xx"), ("bb", "xx", "yy")])
def test_without_a_majority_nobody_is_replaced_and_both_sides_are_named(digests: Any) -> None:
    job = Job(len(digests))
    job.compare(100, *["aa"] * len(digests))
    told: set[str] = set()
    for name, digest in zip(job.incarnations, digests, strict=True):
        job.marks(name, mark(200, parameters=digest))
        assert job.replaced == {}
        told |= job.told
    (text,) = told
    assert "hold different parameters since a step after 100 and up to 200" in text
    assert "it is unknown which are right" in text and "Training continues" in text


def test_corruption_is_reported_once_for_each_agreement() -> None:
    job, told = Job(action=REPORT), list[str]()
    for step, odd in ((100, "aa"), (200, "xx"), (300, "xx"), (400, "aa"), (500, "xx")):
        for name in job.incarnations:
            job.marks(name, mark(step, parameters=odd if name == "2" else "aa"))
            assert job.replaced == {}
            told += job.told
    assert [text.partition(":")[0] for text in told] == [
        "Replica 2 is corrupted since a step after 100 and up to 200",
        "Replica 2 is corrupted since a step after 400 and up to 500",
    ]


@pytest.mark.parametrize(
    ("digests", "who"),
    [(("a", "a", "x"), "replica 2 is corrupted"), (("a", "x"), "replica 1 and replica 0 hold")],
)
def test_the_job_stops_where_that_is_asked_for(digests: Any, who: str) -> None:
    job = Job(len(digests), action=STOP)
    job.compare(100, *["aa"] * len(digests))
    job.compare(200, *digests)
    outcome = job.core.state.outcome
    assert outcome is not None and outcome.exit_code == 78 and outcome.reason.startswith(who)
    assert outcome.reason.endswith("--on-corruption stop")


def last(parameters: str, *, is_late: bool = False) -> Mark:
    return Mark(240, "end", "", parameters, is_late=is_late)


def test_nobody_is_judged_at_the_end_before_all_have_shown_it() -> None:
    job = Job()
    job.end(last("aa"), last("aa"))
    assert job.compared == ""
    job.end(last("aa"), last("aa"), last("aa"))
    assert job.compared == "end" and not job.told
    outcome = job.finish()
    assert outcome is not None and outcome.exit_code == 0


def test_one_that_was_corrupted_after_the_last_mark_heals_at_the_end() -> None:
    job = Job()
    job.compare(200, "aa", "aa", "aa")
    job.end(last("bb"), last("bx"), last("bb"))
    (name, cause), *more = job.replaced.items()
    assert (name, more, job.compared) == ("1", [], "")
    assert cause.startswith("is corrupted since a step after 200 and up to 240: its parameters")
    assert cause.endswith("it heals from them")


def test_the_job_stops_at_the_end_where_that_is_asked_for() -> None:
    job = Job(action=STOP)
    job.compare(200, "aa", "aa", "aa")
    job.end(last("bb"), last("bx"), last("bb"))
    outcome = job.core.state.outcome
    assert outcome is not None and outcome.exit_code == 78
    assert outcome.reason.startswith("replica 1 is corrupted since a step after 200")


@pytest.mark.parametrize(("action", "ends"), [(REPORT, "bxb"), (HEAL, "bx")])
def test_a_job_that_ends_with_unlike_replicas_does_not_end_with_0(action: Any, ends: str) -> None:
    job = Job(len(ends), action=action)
    job.compare(200, *["aa"] * len(ends))
    job.end(*map(last, ends))
    (text,) = job.told
    assert job.compared == "end" and text.endswith("The job ends like this.")
    assert "since a step after 200 and up to 240" in text
    outcome = job.finish()
    assert outcome is not None and outcome.exit_code == 78
    assert outcome.reason.startswith("all have reached the end, but replica 1 ")


def test_parameters_that_the_script_may_have_set_after_its_loop_are_named_alone() -> None:
    job = Job()
    job.compare(200, "aa", "aa", "aa")
    job.end(last("best", is_late=True), last("bb", is_late=True), last("bb", is_late=True))
    (text,) = job.told
    assert text.startswith("Replica 0 has ended with other parameters than replicas 1 and 2.")
    assert job.compared == "end" and not job.replaced
    outcome = job.finish()
    assert outcome is not None and outcome.exit_code == 0


def test_one_that_has_come_to_the_end_without_parameters_is_no_difference() -> None:
    job = Job()
    job.end(last("", is_late=True), last("bb"), last("bb"))
    assert job.compared == "end" and not job.told


def test_who_has_left_has_no_end() -> None:
    job = Job(2)
    lost = job.core.state.replicas["1"]
    job.lose("1")
    job.core.membership.divergence.ended(lost, last("xx"))
    job.end(last("bb"))
    assert not job.told


def test_the_end_of_one_that_is_lost_stands_for_nobody() -> None:
    job = Job()
    job.say("1", m.Present(Endpoint("h", "h:1"), ended=last("bb")))
    job.lose("1")
    job.end(last("bb"))
    assert job.core.state.compared == ""
    job.say("2", m.Present(Endpoint("h", "h:1"), ended=last("bb")))
    assert job.core.state.compared == "end"
