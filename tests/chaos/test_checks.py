"""The checks of the chaos runs can fail: a made-up log of two replicas, spoilt in every way."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ftrun.core.ids import Attempt, Tag, extend_lineage
from tests.chaos import checks
from tests.chaos.job import Job
from tests.chaos.journal import Commit, Process, Try, last_step, read_journals
from tests.chaos.model import GRAIN, GRAINS_MAX, Trained, sample_ids
from tests.chaos.oracle import Unreplayable, replay
from tests.chaos.run import Outcome, draw, read
from tests.chaos.table import table

WHO = (("0", "a"), ("1", "b"))
STEPS = 4


def a_log() -> list[Process]:
    """The log of two replicas that train together; the second one has healed at step 0."""
    first = Process("0", "a", 10, 10, 0, lineage="origin", hash="", started_at=0.0)
    second = Process("1", "b", 11, 11, 0, lineage="other", hash="", started_at=0.0)
    trained = Trained(10)
    first.hash = trained.digest()
    lineage = "origin"
    for step in range(STEPS):
        tag = Tag(Attempt(1, 1), step)
        total = {p: torch.zeros_like(p) for p in trained.model.parameters()}
        for replica, process in enumerate((first, second)):
            ids = sample_ids(step, replica)
            process.tries.append(Try(0.0, step, step, lineage, tuple(ids)))
            trained.optimizer.zero_grad()
            trained.loss(trained.model, ids).backward()
            for parameter in total:
                assert parameter.grad is not None
                total[parameter] += parameter.grad * 0.5
        for parameter, gradient in total.items():
            parameter.grad = gradient
        trained.optimizer.step()
        lineage = extend_lineage(lineage, tag)
        fence = tag.attempt.quorum_id, tag.attempt.number, tag.step
        for process in (first, second):
            process.commits.append(
                Commit(0.0, step + 1, lineage, trained.digest(), fence, 2, WHO, WHO)
            )
    return [first, second]


def problems(log: list[Process]) -> list[str]:
    return [
        *checks._one_state_per_lineage(log),
        *checks._heals(log),
        *checks._steps_rise(log),
        *checks._divisors(log),
        *checks._one_history(log),
    ]


def test_a_sound_log_is_replayed_to_its_end() -> None:
    log = a_log()
    assert replay(log, log[0].commits[-1]) == STEPS
    assert problems(log) == []


def test_other_samples_than_written_down_are_found() -> None:
    log = a_log()
    log[1].tries[2] = replace(log[1].tries[2], ids=(1, 2, 3, 4))
    with pytest.raises(Unreplayable, match="after step 3 is"):
        replay(log, log[0].commits[-1])


def test_a_contributor_that_is_not_named_is_found() -> None:
    log = a_log()
    for process in log:
        process.commits[1] = replace(process.commits[1], who=WHO[:1])
    with pytest.raises(Unreplayable, match="after step 2 is"):
        replay(log, log[0].commits[-1])
    assert [line[:2] for line in problems(log)] == ["C4", "C4"]


def test_a_contributor_that_was_not_there_is_found() -> None:
    log = a_log()
    log[1].tries.pop(0)
    with pytest.raises(Unreplayable, match="never began"):
        replay(log, log[0].commits[-1])


def test_unlike_bits_under_one_lineage_are_found() -> None:
    log = a_log()
    log[1].commits[-1] = replace(log[1].commits[-1], hash="0" * 16)
    assert problems(log)[0].startswith("S1: at step 4/")


def test_a_heal_to_other_bits_than_the_donor_held_is_found() -> None:
    log = a_log()
    state = [log[0].hash, *(commit.hash for commit in log[0].commits)]
    log[1].heals = [(0, "came to nothing"), (0, state[0]), (3, state[3]), (4, "of no use")]
    assert problems(log) == []
    log[1].heals.append((3, state[2]))
    (problem,) = problems(log)
    assert problem.startswith("S3: replica 1 (pid 11, b) has healed to ")
    assert f"its donor held {state[3]}" in problem


def test_a_newcomer_that_has_not_healed_is_found() -> None:
    log = a_log()
    del log[1].commits[:2]
    assert problems(log) == ["S3: replica 1 (pid 11, b) begins with step 3 and has never healed"]


def test_ballast_counts_as_state() -> None:
    one, other = Trained(1, ballast_bytes=64), Trained(2, ballast_bytes=64)
    assert one.digest() != Trained(1, ballast_bytes=63).digest()
    other.load(one.state())
    assert other.digest() == one.digest()


def test_a_step_that_is_committed_twice_is_found() -> None:
    log = a_log()
    log[0].commits.append(log[0].commits[-1])
    assert problems(log)[0].startswith("C2: replica 0")


def test_two_lineages_that_go_on_are_found() -> None:
    log = a_log()
    for index in (2, 3):
        commit = log[1].commits[index]
        log[1].commits[index] = replace(commit, lineage=f"fork {index}", members=WHO[1:])
    assert any(line.startswith("Q3: two lineages at steps 3 and 4") for line in problems(log))


def test_a_last_commit_that_died_with_its_only_holder_is_no_fork() -> None:
    log = a_log()
    log[1].commits[-1] = replace(log[1].commits[-1], lineage="alone")
    assert problems(log) == []


def test_survivors_with_other_pids_are_found() -> None:
    before, after = {"0": 1, "1": 2}, {"0": 1, "1": 3}
    assert checks.check_pids(before, after, {"1"}) == []
    assert checks.check_pids(before, after, set())[0].startswith("P4: replica 1")


def test_gradients_divide_and_add_up_exactly() -> None:
    """The oracle relies on this: nothing is rounded for 1 to 4 contributors."""
    grains = torch.randint(-GRAINS_MAX, GRAINS_MAX, (100_000,)).to(torch.float64)
    for number in (1, 2, 3, 4):
        exact = grains * (12 // number) / 2**30
        assert torch.equal(grains * GRAIN * (1.0 / number), exact)
        assert torch.equal(exact * number, grains * GRAIN)


def test_journals_are_read_as_they_are_written(tmp_path: Path) -> None:
    about = {"replica": "0", "incarnation": "a", "pid": 5, "seed": 5, "ballast_bytes": 0}
    held = {"lineage": "x"}
    commit = {"step": 1, "lineage": "y", "hash": "g", "tag": [1, 1, 0], "number": 1}
    lines = [
        {"what": "start", "at": 1.0, **about, **held, "hash": "h"},
        {"what": "try", "at": 2.0, "step": 0, "held": 0, **held, "ids": [1]},
        {"what": "heal", "at": 2.5, "hash": "h"},
        {"what": "commit", "at": 3.0, **commit, "who": [["0", "a"]], "members": [["0", "a"]]},
    ]
    path = tmp_path / "journal.0.5"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"what": "tr')
    (process,) = read_journals(tmp_path)
    assert process.commits[0].who == (("0", "a"),)
    assert process.tries[0].ids == (1,)
    assert process.heals == [(0, "h")]
    assert last_step(path) == 1


def test_what_a_run_tells_as_json_can_be_read_again() -> None:
    told = Outcome(draw(17), ["a problem"], {"worker SIGKILL": 0.5}, 3.0, "", ["a line"], "here")
    assert read(json.loads(json.dumps(told.json()))) == told
    assert "| **all runs** | 1 | 0 |" in table([told])


def test_who_ends_between_two_looks_has_not_recovered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 6008: a worker that had raised lived at the first check and was gone at the second."""
    rest = {"1": (11, 5), "2": (12, 5)}
    looks = [{"0": (10, 5), **rest}, rest, {"0": (20, 5), **rest}]
    job = object.__new__(Job)
    job.replicas, job.story, job.began = 3, [], 0.0
    monkeypatch.setattr(job, "_newest", lambda: looks.pop(0))
    monkeypatch.setattr(job, "_watch", lambda: None)
    job.await_recovery(goal=3, gone={10}, timeout_s=10.0)
    assert looks == []


def test_a_microsecond_that_is_missing_in_the_account_is_found(tmp_path: Path) -> None:
    job = object.__new__(Job)
    job.directory, job.story, job.began = tmp_path, [], 0.0
    assert checks.check_account(job) == []
    slots = [{"spent": {"training": 7, "absent": 3}}, {"spent": {"training": 10}}]
    account = {
        "wall": 10,
        "steps": 4,
        "slots": slots,
        "bands": {"training": [10, 7], "absent": [3]},
    }
    job.service_dir.mkdir()
    path = job.service_dir / "account.json"
    path.write_text(json.dumps({"account": account}))
    assert checks.check_account(job) == []
    account["bands"] = {"training": [10, 7], "absent": [2]}
    slots[1]["spent"]["training"] = 9
    path.write_text(json.dumps({"account": account}))
    assert len(checks.check_account(job)) == 2
