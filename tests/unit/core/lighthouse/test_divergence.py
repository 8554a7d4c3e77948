"""Replicas that hold one state by name, and are not alike."""

from __future__ import annotations

from dataclasses import replace

from ftrun.core import messages as m
from ftrun.core.activity import Activity
from ftrun.core.lighthouse.divergence import STATES_MAX
from ftrun.core.messages import Mark
from tests.unit.core.books.booked_job import BookedJob

SOUND = "SGD lr 0.1, momentum 0.9"
ODD = "SGD lr 0.5, momentum 0.9"


class Job(BookedJob):
    """Formed, with some replicas that have healed into it."""

    def __init__(self, replicas: int = 3, healed: str = "") -> None:
        super().__init__(replicas)
        self.form()
        for name in healed:
            self.core.state.replicas[name].has_healed = True

    def marks(self, name: str, *marks: Mark) -> None:
        word = m.Progress(marks[-1].step, 0, Activity.STEP, marks=marks)
        line = m.ReplicaProgress(name, self.incarnations[name], word)
        self.sent.clear()
        self.send(name, m.Heartbeat((line,)))

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
    assert "heals anew" in cause
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
    assert "its parameters are not those of replicas 0 and 1" in job.replaced["2"]


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
