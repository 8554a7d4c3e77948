"""What is said after the runs of ``ftrun check``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftrun.tools.check.comparison import may_vary
from ftrun.tools.check.outcome import (
    differences_of,
    lost_at,
    taken_again,
    taken_since,
    told_after,
)
from ftrun.tools.check.place import Difference, Files, How
from ftrun.tools.check.plan import EVALUATION, STARTING, TRAINING, WRITING, Kill, Plan
from ftrun.tools.check.results import OUTSIDE, OWN
from ftrun.tools.check.runs import Loss, Run, Trial
from ftrun.tools.check.verdict import lines_of

NO_FILES = Files()
KILLS = (Kill(1, TRAINING, 5), Kill(0, WRITING, 9))
EXACT = Plan(KILLS, (), ("in an evaluation: there was none between the steps 1 and 18",))
JOINS = (
    (1, {"at": "batch 5", "set": ["i 0→5"], "lacking": [], "continued": []}),
    (0, {"at": "batch 9", "set": [], "lacking": [], "continued": []}),
)


def report(**changes: Any) -> dict[str, Any]:
    return {
        "step": 20,
        "parameters": "aa",
        "kept": {
            "parameters": {},
            "buffers": {"bn": "1 1.0"},
            "modules beside the model": {},
            "optimizers": {"SGD": "2"},
        },
        "inputs": {"5": ["x"], "6": ["y"]},
        "losses": {"5": ["0.5"], "6": ["0.25"]},
        "batches": {"the loader at a.py:5": {"5": [["x", "1"]], "6": [["y", "2"]]}},
        "now": {"a.py:main i": 7, "a.py:main best": 0.5},
        "counted": [],
        "still": [],
        "files": ["best.pt", "late.pt"],
        "lost": 0,
        "changes": [],
        "lacking": [],
        "carried": ["optimizers SGD (a.py:3)"],
        "loose": [],
        **changes,
    }


def run(
    first: dict[str, Any] | None = None,
    second: dict[str, Any] | None = None,
    kills: Sequence[Kill] = KILLS,
    joins: Sequence[Any] = JOINS,
    code: int = 0,
    late: bool = False,
) -> Run:
    reports = {0: first or report(), 1: second or report()}
    return Run(code, late, None, reports, joins, tuple(kills))


def trial(
    exact: Run | None = None, before: Run | None = None, files: Files = NO_FILES, **changes: Any
) -> Trial:
    undisturbed = before or run(kills=(), joins=())
    exact = replace(run() if exact is None else exact, beside=files)
    return Trial(2, 1, 60.0, undisturbed, **{"plan": EXACT, "training": exact, **changes})


def test_a_script_that_heals() -> None:
    lines, is_well = lines_of(trial(files=Files(["last.pt"])))
    assert is_well
    assert lines == [
        "carried: optimizers SGD (a.py:3)",
        "replica 1 was killed in training, after step 5, and joined at batch 5",
        "set there: i 0→5",
        "replica 0 was killed while it wrote a file, after step 9, and joined at batch 9",
        "not tried: a death in an evaluation: there was none between the steps 1 and 18",
        "equal to the undisturbed run: what each replica reads, losses, parameters, buffers, "
        "optimizers, 4 values of the script, last.pt",
        "ok: the script heals",
    ]


def test_one_of_several_workers_is_killed() -> None:
    lines, is_well = lines_of(replace(trial(run(report(step=21), report(step=21))), workers=2))
    assert is_well
    assert any(
        line.startswith("not compared with the undisturbed run: the peers") for line in lines
    )
    words = "worker 1 of replica 1 was killed in training, after step 5, and the replica joined at"
    assert any(line.startswith(words) for line in lines)


GROUP = (Kill(1, STARTING, 0), *KILLS)


def in_group(again: Sequence[tuple[int, int]], told: Sequence[str] = (), **changes: Any) -> Trial:
    """Two workers of one replica, each with its own part of the parameters."""
    other = report(parameters="bb")
    died = run(second=report(**{**other, **changes}), kills=GROUP, joins=())
    died = replace(died, again=tuple(again), told=tuple(told))
    plan = Plan(GROUP, (), ())
    before = run(second=other, kills=(), joins=())
    return replace(trial(died, before, plan=plan, is_group=True), workers=2)


def with_files(one: Trial, files: Files) -> Trial:
    assert one.training is not None
    return replace(one, training=replace(one.training, beside=files))


def test_workers_of_one_replica_that_lose_no_step() -> None:
    lines, is_well = lines_of(in_group([(0, 0), (0, 2), (0, 1)]))
    assert is_well, lines
    assert lines[1:] == [
        "worker 1 was killed at its start, before the first step: no step lost",
        "worker 1 was killed in training, after step 5: no step lost; its replacement repeated 2 "
        "steps",
        "worker 0 was killed while it wrote a file, after step 9: no step lost; its replacement "
        "repeated 1 step",
        "equal to the undisturbed run: what each worker reads, losses, parameters, buffers, "
        "optimizers, 4 values of the script",
        "ok: the script heals and no step was lost",
    ]


def test_a_first_step_that_is_begun_again_is_not_lost() -> None:
    lines, is_well = lines_of(in_group([(1, 0), (0, 2), (0, 1)]))
    assert is_well, lines
    assert lines[1] == "worker 1 was killed at its start, before the first step: all began again"
    assert not lines_of(in_group([(2, 0), (0, 2), (0, 1)]))[1]


def test_a_lost_step_of_one_replica_is_told_with_its_reason() -> None:
    why = "No memory snapshots: ftrun cannot follow this script"
    lines, is_well = lines_of(in_group([(0, 0), (5, 5), (0, 1)], [why]))
    assert not is_well
    assert "worker 1 was killed in training, after step 5: 5 steps lost; its replacement" in (
        "\n".join(lines)
    )
    assert lines[-2:] == ["FAILED: 5 steps lost", f"FAILED: {why}"]
    undisturbed = replace(run(kills=(), joins=()), told=(why,))
    assert lines_of(replace(in_group([]), undisturbed=undisturbed)) == ([f"FAILED: {why}"], False)


def test_of_one_replica_a_batch_must_be_as_undisturbed() -> None:
    changed: dict[str, Any] = {"inputs": {"6": ["z"]}}
    lines, is_well = lines_of(in_group([(0, 0)] * 3, **changed))
    assert not is_well
    assert lines[-1] == "FAILED: other batches: worker 1 at step 6"


def test_of_one_replica_each_value_must_be_as_undisturbed() -> None:
    """But for one that is another one in each run, as a time."""
    now = {"a.py:main i": 7, "a.py:main best": 0.25}
    one = in_group([(0, 0)] * 3, now=now)
    lines, is_well = lines_of(one)
    assert not is_well
    assert lines[-1] == "FAILED: not equal to the undisturbed run: best (0.25, undisturbed 0.5)"
    again = run(second=report(now={"a.py:main best": 0.75}), kills=(), joins=())
    assert lines_of(replace(one, again=again))[1]
    alike = run(second=report(), kills=(), joins=())
    assert not lines_of(replace(one, again=alike))[1]


def test_of_one_replica_nothing_may_be_lacking() -> None:
    lines, is_well = lines_of(in_group([(0, 0)] * 3, lacking=["losses (list of 20000)"]))
    assert not is_well
    words = "FAILED: the newcomer could not be given: losses (list of 20000)"
    assert lines[-1] == words


def test_a_worker_of_several_replicas_whose_replica_restarted() -> None:
    """No step was taken again, and yet its samples were lost."""
    one = replace(in_group([(0, 0), (0, 2), (0, 1)]), workers=1)
    lines, is_well = lines_of(one)
    assert is_well, lines
    assert lines[1] == "worker 1.0 was killed at its start, before the first step: no step lost"
    why = "worker 1.0 died. Worker 0 cannot be replaced alone, so its replica restarts"
    assert one.training is not None
    one.training = replace(one.training, fell={GROUP[0]: why, GROUP[1]: why})
    lines, is_well = lines_of(one)
    assert not is_well
    assert lines[2].startswith(
        "worker 1.0 was killed in training, after step 5: its replica restarted"
    )
    assert lines[-1] == f"FAILED: {why}"


def on_nodes(loss: Loss | None, told: Sequence[str] = (), **changes: Any) -> Trial:
    """Two workers on two nodes, of which the second one is lost."""
    one = in_group([(0, 0), (0, 2), (0, 1)])
    other = report(**{"parameters": "bb", **changes})
    lost = replace(run(second=other, kills=(), joins=()), loss=loss, told=tuple(told))
    return replace(one, nodes=2, lost=lost)


def test_a_lost_node_may_cost_the_steps_since_its_copy() -> None:
    lines, is_well = lines_of(on_nodes(Loss(9, 7, 2)))
    assert is_well, lines
    assert lines[2].startswith("worker 1 (node 1) was killed in training, after step 5: no step l")
    assert lines[4:] == [
        "node 1 (worker 1) was lost in training, after step 9: 2 steps lost; its states of step 7 "
        "were on another node",
        *(
            f"{when}equal to the undisturbed run: what each worker reads, losses, parameters, "
            "buffers, optimizers, 4 values of the script"
            for when in ("", "after the loss of node 1 (worker 1): ")
        ),
        "ok: the script heals; no step was lost with a worker, and 2 steps with a node",
    ]


def test_a_lost_node_that_costs_more_than_was_promised() -> None:
    why = "No memory snapshots any more: memory has become scarce"
    lines, is_well = lines_of(on_nodes(Loss(9, 7, 9), [why]))
    assert not is_well
    assert lines[-2:] == ["FAILED: 9 steps lost with node 1 (worker 1)", f"FAILED: {why}"]


def test_a_node_that_could_not_be_lost() -> None:
    lines, is_well = lines_of(on_nodes(None))
    assert not is_well
    words = "node 1 (worker 1) was not lost: its states did not come to another node in time"
    assert lines[-1] == f"FAILED: {words}"


def test_an_end_after_the_loss_of_a_node_that_is_other() -> None:
    lines, is_well = lines_of(
        on_nodes(Loss(9, 7, 2), now={"a.py:main i": 9, "a.py:main best": 0.5})
    )
    assert not is_well
    words = "after the loss of node 1 (worker 1): not equal to the undisturbed run: i (9, undis"
    assert [x for x in lines if x.startswith("FAILED")] == [lines[-1]]
    assert lines[-1].startswith(f"FAILED: {words}")


def test_the_steps_that_are_taken_again_after_a_loss() -> None:
    """The one that was under way had been taken by nobody."""
    steps = {0: [(8.0, 8), (9.0, 9), (11.0, 7), (12.0, 8), (13.0, 9)], 1: [(9.0, 9), (11.0, 9)]}
    assert lost_at(Loss(9, 7), 10.0, steps) == Loss(9, 7, 2)


def test_what_was_told_belongs_to_the_death_before_it() -> None:
    struck = {KILLS[0]: 10.0, KILLS[1]: 20.0}
    told = [(9.0, "before"), (11.0, "first"), (21.0, "second")]
    assert told_after(struck, KILLS[0], told) == ["first"]
    assert told_after(struck, KILLS[1], told) == ["second"]


def test_steps_that_are_taken_again_are_counted_from_one_death_to_the_next() -> None:
    struck = {KILLS[0]: 10.0, KILLS[1]: 20.0}  # of worker 1, then of worker 0
    steps = {
        0: [(8.0, 1), (9.0, 2), (11.0, 3), (21.0, 2), (22.0, 3), (23.0, 4)],
        1: [(8.0, 1), (9.0, 2), (11.0, 2), (12.0, 3), (24.0, 4)],
    }
    assert taken_again(struck, steps) == ((0, 1), (0, 2))


def test_a_newcomer_begins_within_a_turn_of_several_steps() -> None:
    """Seen with Lightning's GAN: its first pass was that of a step which had none undisturbed."""
    first = report(inputs={"4": ["x", "y"], "6": ["z"]})
    theirs = [report(inputs=x) for x in ({"5": ["y"], "6": ["z"]}, {"4": ["x", "y"], "5": ["z"]})]
    before = run(report(), first, (), ())
    assert [lines_of(trial(run(second=x), before))[1] for x in theirs] == [True, False]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"parameters": "bb"}, "the parameters differ at the end with deaths"),
        ({"lost": 4}, "4 steps were lost with deaths"),
        ({"step": 19}, "replicas came to the steps 20, 19"),
        ({"inputs": {"6": ["z"]}}, "other batches: replica 1 at step 6"),
        ({"inputs": {"6": ["y", "z"]}}, "other batches: replica 1 at step 6"),
        ({"inputs": {"7": ["y"]}}, "other batches: replica 1 at step 7"),
        (
            {"batches": {"the loader at a.py:5": {"6": [["y", "3"]]}}},
            "other batches: replica 1 at batch 6 of the loader at a.py:5",
        ),
        (
            {"batches": {"the loader at a.py:5": {"6": [["y", "2"], ["y", "2"]]}}},
            "other batches: replica 1 at batch 6 of the loader at a.py:5",
        ),
        (
            {"losses": {"5": ["1"], "6": ["2"]}},
            "other losses: replica 1 from step 5 on",
        ),
        (
            {"kept": {**report()["kept"], "optimizers": {"SGD": "3"}}},
            "optimizers SGD are not those of the undisturbed run",
        ),
    ],
)
def test_a_replica_that_is_not_as_undisturbed(changes: dict[str, Any], words: str) -> None:
    lines, is_well = lines_of(trial(run(second=report(**changes))))
    assert not is_well
    assert any(line.startswith("FAILED: ") and words in line for line in lines), lines


def test_tensors_outside_modules_are_compared() -> None:
    """Seen: "ok" of a script whose average, a dict on rank 0 alone, was not that of its last step.
    A newcomer may have one that its peer alone had."""
    kept = report()["kept"]
    first = report(kept={**kept, OUTSIDE: {"mean": "2"}})
    for mean, is_well in (("2", True), ("3", False)):
        second = report(kept={**kept, OUTSIDE: {"mean": mean, "of its peer": "4"}})
        undisturbed = Run(0, False, None, {0: first, 1: first})
        lines, found = lines_of(replace(trial(run(second, second)), undisturbed=undisturbed))
        assert found is is_well, lines
        words = "FAILED: tensors outside modules mean are not those of the undisturbed run"
        assert (words in lines) is not is_well


@pytest.mark.parametrize(
    ("exact", "words"),
    [
        (run(code=9), "the job with deaths ended with exit code 9"),
        (run(late=True), "the run with deaths did not end within 60 s"),
        (run(joins=JOINS[:1]), "of 2 killed replicas 1 joined their peers"),
        (run(kills=KILLS[:1]), "only 1 of 2 deaths came up"),
        (Run(0, False, None, {0: report()}, JOINS, KILLS), "replica 1 did not come to the end"),
        (replace(run(), refused={"form": "world", "reason": "a.py:3"}), "after a death: a.py:3"),
        (run(report(parameters="b"), report(parameters="b")), "the parameters are not those of"),
    ],
)
def test_a_run_that_went_wrong(exact: Run, words: str) -> None:
    lines, is_well = lines_of(trial(exact))
    assert not is_well
    assert any(line.startswith("FAILED: ") and words in line for line in lines), lines


def augmented(*labels: str, noise: str) -> dict[str, Any]:
    """Batches of two epochs whose images a loader's workers have changed."""
    each = [[f"{noise} {number}", label] for number, label in enumerate(labels)]
    return {"batches": {"the loader at a.py:5": {"5": each}}}


def test_what_two_undisturbed_runs_have_otherwise_is_not_compared_and_said() -> None:
    first, second = (report(**augmented("1", "2", noise=x), parameters=x) for x in ("a", "b"))
    before, again = run(first, first, (), ()), run(second, second, (), ())
    other = report(**augmented("2", noise="c"), parameters="c")
    one = trial(run(other, other), before)
    assert one.training is not None and may_vary(one, one.training)
    assert not lines_of(one)[1]
    lines, is_well = lines_of(replace(one, again=again))
    assert is_well, lines
    (left,) = [x for x in lines if x.startswith("not compared: ")]
    assert left.startswith(
        "not compared: what each replica reads (tensor 1 of the loader at a.py:5), parameters, bec"
    )
    assert "equal to the undisturbed run: the rest of what each replica reads, losses, " in (
        "\n".join(lines)
    )


def test_what_random_numbers_do_not_change_is_compared() -> None:
    """Seen: "ok" of a script in which a newcomer trained with its donor's labels, because it
    drew random numbers."""
    first, second = (report(**augmented("1", "2", noise=x), parameters=x) for x in ("a", "b"))
    before, again = run(first, first, (), ()), run(second, second, (), ())
    other = report(**augmented("1", noise="c"), parameters="c")
    lines, is_well = lines_of(replace(trial(run(other, other), before), again=again))
    assert not is_well
    words = "other batches: replica 0 at batch 5 of the loader at a.py:5, replica 1 at batch 5 of "
    assert lines[-1].startswith(f"FAILED: {words}"), lines


def test_batches_of_another_form_in_each_run_are_not_compared() -> None:
    first, second = (report(inputs={"6": x}) for x in (["y"], ["y", "z"]))
    before, again = run(first, first, (), ()), run(second, second, (), ())
    one = trial(run(second, report(inputs={"6": ["x"]})), before)
    lines, is_well = lines_of(replace(one, again=again))
    assert is_well, lines


def test_what_only_rounding_changes_is_well() -> None:
    """Seen: the last bit of a gradient, as the memory of a newcomer is laid out otherwise."""
    ours, rounded, other = "1 2.0 0.5", "2 2.000001 0.5", "3 2.000001 0.6"
    first = report()
    first["kept"] |= {"parameters": {"weight": ours}}
    for found, loss, is_well in (
        (rounded, "0.5", True),
        (other, "0.5", False),
        (rounded, "1", False),
    ):
        changed = report(parameters="bb", losses={"5": [loss], "6": ["0.25"]})
        changed["kept"] |= {"parameters": {"weight": found}}
        lines, is_found = lines_of(trial(run(changed, changed), run(first, first, (), ())))
        assert is_found is is_well, lines
        text = "equal to the undisturbed run but for rounding: parameters"
        assert (text in lines) is is_well
        assert ("FAILED: the parameters are not those of the undisturbed run" in lines) != is_well


def test_a_second_undisturbed_run_that_failed_excuses_nothing() -> None:
    """Seen: each file was "not compared, as in another undisturbed run", which had none."""
    again = replace(run(kills=(), joins=()), exit_code=75, reports={})
    lines, is_well = lines_of(replace(trial(), again=again))
    assert not is_well
    assert "FAILED: the job undisturbed again ended with exit code 75" in lines


def test_nothing_else_excuses_what_was_lost() -> None:
    """An average that replica 0 alone keeps, in a script that draws noise."""
    average = {"modules beside the model": {"ema": "3"}}
    first, other = report(), report()
    first["kept"] |= average
    other["kept"] |= {"modules beside the model": {"ema": "4"}}
    other["inputs"] = {"6": ["z"]}
    noisy = report(inputs={"6": ["x"]})
    noisy["kept"] |= average
    before, again = run(first, kills=(), joins=()), run(noisy, kills=(), joins=())
    lines, is_well = lines_of(replace(trial(run(other), before), again=again))
    assert not is_well
    assert lines[-1].startswith("FAILED: modules beside the model ema are not those of the und")


@pytest.mark.parametrize("found", ["1", "2"])
def test_parameters_of_no_model_are_each_replicas_own(found: str) -> None:
    """Seen: "the parameters differ at the end undisturbed" of a script that shares its tables
    out over the ranks."""
    first, second, other = report(), report(), report()
    for one, table in ((first, "0"), (second, "1"), (other, found)):
        one["kept"] = {**one["kept"], OWN: {"SGD 4": table}}
    lines, is_well = lines_of(trial(run(first, other), run(first, second, (), ())))
    assert is_well == (found == "1"), lines
    words = "each replica has its own parameters of no model (SGD 4): compared with its own of the"
    assert any(x.startswith(words) for x in lines), lines
    wrong = "FAILED: parameters of no model SGD 4 are not those of the undisturbed run"
    assert (wrong in lines) != is_well


def test_values_that_one_run_lacks_are_not_counted_as_equal() -> None:
    first = report(now={"a.py:main i": 7})
    lines, is_well = lines_of(trial(run(first, report(now={}))))
    assert is_well and any("optimizers, 1 value of the script" in x for x in lines), lines


def test_a_lost_step_is_said_and_nothing_is_compared() -> None:
    lines, is_well = lines_of(trial(run(report(lost=1, parameters="b"), report(parameters="b"))))
    assert is_well
    assert any(line.startswith("not compared with the undisturbed run: a step") for line in lines)


def test_what_replica_0_alone_writes_is_named() -> None:
    before = run(report(), report(files=["best.pt"]), (), ())
    lines, is_well = lines_of(trial(before=before))
    words = "not done while replica 0 is away: what it alone writes (late.pt)"
    assert is_well and words in lines


def test_what_differs_and_may_is_named() -> None:
    other = report(now={"a.py:main i": 7, "a.py:main best": 0.25})
    files = Files(unlike={"log": Difference(How.LINES)})
    kept = {**report()["kept"], "buffers": {"bn": "9 0.8"}}
    lines, is_well = lines_of(trial(run(other, report(kept=kept)), files=files))
    assert is_well
    text = "\n".join(lines)
    assert "not equal to the undisturbed run: best (0.25, undisturbed 0.5)" in text
    assert "not equal to the undisturbed run: buffers bn" in text
    assert "not equal to the undisturbed run: log has other lines" in text


@pytest.mark.parametrize(
    ("ours", "theirs", "still"),
    [("1 1.0", "9 0.5", []), ("1 1.0", "9 0.99", ["bn"]), ("1 1.0", "9", []), ("1 1.0", "", [])],
)
def test_a_buffer_that_lacks_more_than_an_update_is_not_well(
    ours: str, theirs: str, still: list[str]
) -> None:
    """Or one that no forward pass changes."""
    first, other = report(still=still), report()
    first["kept"] |= {"buffers": {"bn": ours}}
    other["kept"] |= {"buffers": {"bn": theirs} if theirs else {}}
    lines, is_well = lines_of(trial(run(first, other), run(first, first, (), ())))
    assert not is_well
    assert lines[-1] == "FAILED: buffers bn are not those of the undisturbed run"


NOW = {"a.py:main i": 7, "a.py:main best": 0.5, "a.py:main all[0]": 0.5, "a.py:main all[1]": 1.5}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"a.py:main i": 6}, "i (6, undisturbed 7)"),
        ({"a.py:main best": 0.25}, "best (0.25, undisturbed 0.5)"),
        ({"a.py:main best": {"kind": "tensor"}}, "best (another tensor, undisturbed 0.5)"),
        ({"a.py:main all[1]": None}, "all (1 item, undisturbed 2)"),
    ],
)
def test_a_counter_that_nothing_names_is_not_well(changes: dict[str, Any], words: str) -> None:
    """Seen: "ok" of a script in which a newcomer had its donor's counter."""
    first = report(now=NOW, counted=[*NOW])
    now = {path: x for path, x in {**NOW, **changes}.items() if x is not None}
    name = words.partition(" (")[0]
    before = run(first, first, (), ())
    for lacking in ([], [f"its own {name} (ranks differ: it has its peer's)"]):
        other = report(now=now, counted=[*now], lacking=lacking)
        one = trial(run(first, other), before)
        lines, is_well = lines_of(one)
        assert is_well == bool(lacking), lines
        text = f"FAILED: nothing has named what is not as undisturbed: {words}"
        assert (lines[-1] == text) != is_well
        assert one.training is not None and may_vary(one, one.training) != is_well
    again = replace(before, reports={0: first, 1: report(now=now)})
    assert lines_of(replace(trial(run(first, report(now=now)), before), again=again))[1]


@pytest.mark.parametrize("is_rounded", [False, True])
def test_a_result_of_autograd_that_is_another_one_is_named(is_rounded: bool) -> None:
    """Seen: "ok" of a script whose average of the weights had begun again. It may follow from
    parameters that are rounded otherwise."""
    name, path = "mean[0]", "a.py:main mean[0]"
    ours, theirs = ({"kind": "result of autograd", "values": [x]} for x in "12")
    first = report(now={path: ours}, counted=[path])
    other = report(now={path: theirs}, counted=[path])
    if is_rounded:
        first["kept"]["parameters"] = {"w": "1 2.0 0.5"}
        other["kept"]["parameters"] = {"w": "2 2.000001 0.5"}
    lines, is_well = lines_of(trial(run(first, other), run(first, first, (), ())))
    assert is_well is is_rounded, lines
    words = f"{name} (another result of autograd, undisturbed another result of autograd)"
    assert f"not equal to the undisturbed run: {words}" in lines


def test_a_float_may_follow_from_a_running_average() -> None:
    first = report(now=NOW, counted=[*NOW])
    other = report(now={**NOW, "a.py:main best": 0.25}, counted=[*NOW])
    other["kept"] |= {"buffers": {"bn": "2 0.9"}}
    lines, is_well = lines_of(trial(run(first, other), run(first, first, (), ())))
    assert is_well, lines


def test_a_float_may_follow_from_what_is_not_compared() -> None:
    """Seen: the mean of a loss that two undisturbed runs had alike by chance."""
    first, second = (report(now=NOW, counted=[*NOW], losses={"5": [x]}) for x in ("1", "2"))
    for name, is_well in (("best", True), ("i", False)):
        other = report(now={**NOW, f"a.py:main {name}": 3}, counted=[*NOW], losses={"5": ["3"]})
        other["now"]["a.py:main best"] *= 1.0
        one = trial(run(first, other), run(first, first, (), ()))
        lines, found = lines_of(replace(one, again=run(first, second, (), ())))
        assert found is is_well, lines


def test_what_follows_from_sums_that_a_donor_went_on_with_is_told() -> None:
    """Seen with fast-DiT: a mean of such a sum was a lost counter."""
    first = report(now={"a.py:main mean": 0.5}, counted=["a.py:main mean"])
    second = report(now={"a.py:main mean": 0.51}, counted=["a.py:main mean"])
    for continued in ([], ["total"]):
        joins = [(who, {**join, "continued": continued}) for who, join in JOINS]
        one = trial(run(first, second, joins=joins), run(first, first, (), ()))
        lines, is_well = lines_of(one)
        assert is_well == bool(continued), lines
        assert ("its donor's steps count for it in: total" in lines) == is_well


def test_files_that_were_not_written_are_not_well() -> None:
    lines, is_well = lines_of(trial(files=Files(unlike={"best.pt": Difference(How.ABSENT)})))
    words = "FAILED: best.pt was not written, unlike the undisturbed run's"
    assert not is_well and lines[-1] == words


def test_files_that_differ_alike_are_one_line() -> None:
    """Seen: a line for each of twelve checkpoints that a dead replica had not written."""
    gone = {f"{step}.pt": Difference(How.ABSENT) for step in range(3)}
    files = Files(unlike={**gone, "log": Difference(How.COUNT, -2)}, lost={*gone, "log"})
    lines, _ = lines_of(trial(files=files))
    lost = "lost with the replica that wrote it, and not due again: "
    assert [x.removeprefix(lost) for x in lines if x.startswith(lost)] == [
        "each of 0.pt, 1.pt, 2.pt was not written",
        "log lacks 2 lines",
    ]


def test_what_was_due_between_the_death_and_the_join_is_named() -> None:
    for lost in ({"log"}, set[str]()):
        files = Files(unlike={"log": Difference(How.COUNT, -2)}, lost=lost)
        one = trial(files=files)
        lines, is_well = lines_of(one)
        words = "lost with the replica that wrote it, and not due again: log lacks 2 lines"
        assert is_well == bool(lost) == (words in lines)
        assert one.training is not None and may_vary(one, one.training) == (not lost)


@pytest.mark.parametrize("ours", [Difference(How.NUMBERS), Difference(How.COUNT, 1)])
def test_of_one_replica_each_file_must_be_as_undisturbed(ours: Difference) -> None:
    """But for one that is as unlike in another undisturbed run, as by its times."""
    one = with_files(in_group([(0, 0)] * 3), Files(unlike={"log": ours}))
    lines, is_well = lines_of(one)
    assert not is_well and one.training is not None and may_vary(one, one.training)
    assert lines[-1] == f"FAILED: log {ours}, unlike the undisturbed run's"
    alike = Files(unlike={"log": Difference(How.NUMBERS)})
    lines, is_well = lines_of(replace(one, again=replace(run(kills=(), joins=()), beside=alike)))
    other = Files(unlike={"log": Difference(How.BYTES)})  # equal objects may be other bytes
    assert lines_of(with_files(one, other))[1]
    is_time = ours.how is How.NUMBERS
    assert is_well == is_time, lines
    assert (f"not compared: log {ours}, as in another undisturbed run" in lines) == is_time


def test_a_file_that_only_a_run_with_deaths_has() -> None:
    """A checkpoint that the dead replica has written, and that nobody has removed, is not well."""
    began = run(report(files=["log.2"]))
    lines, is_well = lines_of(trial(began, files=Files(more=["log.2"])))
    assert is_well and "more than the undisturbed run: a life of a replica began log.2" in lines
    lines, is_well = lines_of(trial(began, files=Files(more=["log.1"])))  # the dead one's
    assert is_well and "more than the undisturbed run: a life of a replica began log.1" in lines
    lines, is_well = lines_of(trial(began, files=Files(more=["log.2", "run-2/late.pt"])))
    assert not is_well
    assert lines[-1].startswith("FAILED: run-2/late.pt was left by the replica that died"), lines


def test_a_life_that_went_on_in_a_directory_of_its_own_is_not_well() -> None:
    """As a logger of a package does that takes the next free number."""
    names = ["out/notes/1", "out/version_1/metrics.csv"]
    first = "out/version_0/metrics.csv"
    before = replace(run(kills=(), joins=()), files={first: Path("m")})
    exact = replace(run(report(files=names)), files=dict.fromkeys([first, names[0]], Path("m")))
    lines, is_well = lines_of(trial(exact, before, files=Files(more=names[:1])))
    assert is_well and lines[-2].endswith("a life of a replica began out/notes/1")
    exact.files[names[1]] = Path("m")
    lines, is_well = lines_of(trial(exact, before, files=Files(more=names)))
    assert not is_well
    assert lines[-1].startswith("FAILED: a life of a replica went on in out/version_1, beside")


def test_a_directory_by_the_time_is_another_one_in_each_run() -> None:
    """The start that was killed before its first step has left one, and went on nowhere."""
    before = replace(run(kills=(), joins=()), files={"runs/10-01/log": Path("m")})
    ours = dict.fromkeys(["runs/10-05/log", "runs/10-07/log"], Path("m"))
    exact = replace(run(), files=ours, early=frozenset({"runs/10-05/log"}))
    files = Files(["runs/10-01/log"], more=["runs/10-05/log"])
    lines, is_well = lines_of(trial(exact, before, files=files))
    assert is_well and lines[-2].endswith("a life of a replica began runs/10-05/log"), lines
    exact = replace(exact, early=frozenset())
    lines, is_well = lines_of(trial(exact, before, files=files))
    assert not is_well
    assert lines[-1].startswith("FAILED: a life of a replica went on in runs/10-05, runs/10-07, b")


def test_what_the_undisturbed_run_wrote_early_counts_as_its_own() -> None:
    """Seen in nanoVLM, which evaluates after its first step, and saves: there no second step had
    begun, and in the run with a death there one had."""
    names = ["run/1-30/step_0/x", "run/1-30/step_10/x"]
    early = frozenset(names[:1])
    before = replace(run(kills=(), joins=()), files=dict.fromkeys(names, Path("m")), early=early)
    ours = [x.replace("1-30", "2-15") for x in names]
    exact = replace(run(), files=dict.fromkeys(ours, Path("m")))
    lines, is_well = lines_of(trial(exact, before, files=Files(names)))
    assert is_well, lines


def test_a_step_is_taken_when_a_worker_begins_another_one() -> None:
    steps = {0: [(8.0, 0), (9.0, 0), (11.0, 1)], 1: [(8.0, 3), (12.0, 4)], 2: []}
    assert taken_since(steps) == 11.0
    assert taken_since({0: [(8.0, 0)]}) == float("inf")


def test_after_deaths_in_evaluations_all_is_as_undisturbed() -> None:
    kills = (Kill(1, EVALUATION, 4),)
    before = report(now={"a.py:main i": 7, "a.py:main best": 0.5}, counted=["a.py:main best"])
    plan, first = replace(EXACT, evaluations=kills), run(before, before, (), ())
    for best in (0.5, 0.75):
        other = report(now={"a.py:main i": 7, "a.py:main best": best})
        found = run(other, other, kills, JOINS[:1])
        one = trial(run(before, before), first, plan=plan, evaluations=found)
        lines, is_well = lines_of(one)
        assert is_well is (best == 0.5)
        words = "FAILED: after deaths in evaluations: nothing has named what is not as undisturbed"
        assert any(x.startswith(words) for x in lines) is not is_well


@pytest.mark.parametrize(
    ("form", "words"), [("world", "one world; try that"), ("explicit", "uses ftrun itself")]
)
def test_a_script_that_is_not_carried(form: str, words: str) -> None:
    refused = Run(1, False, {"form": form, "reason": "a.py:3: no"}, {})
    lines, is_well = lines_of(Trial(2, 1, 60.0, refused))
    assert not is_well
    assert lines[0] == "not carried: a.py:3: no"
    assert words in lines[1]


def test_runs_without_reports() -> None:
    ended = Run(0, False, None, {})
    assert lines_of(Trial(2, 1, 60.0, ended))[0] == [
        "the script has ended without a step of torch's DistributedDataParallel"
    ]
    assert "exit code 1" in lines_of(Trial(2, 1, 60.0, replace(ended, exit_code=1)))[0][0]
    late = Trial(2, 1, 60.0, Run(0, True, None, {}))
    words = "FAILED: the run undisturbed did not end within 60 s (--timeout)"
    assert lines_of(late) == ([words], False)


def test_a_script_that_is_too_short() -> None:
    lines, is_well = lines_of(replace(trial(), training=None, plan=Plan((), (), ())))
    assert not is_well and lines[-1].endswith(
        "before a replica could be killed: give it more steps"
    )


def test_batches_that_differ_are_not_well() -> None:
    found = "Replica 1 was at epoch 1 at step 9, unlike replica 0 at epoch 2: its batches differ"
    lacks = report(lacking=["the batches of the data loader at a.py:9"])
    exact = replace(run(second=lacks), differences=[found])
    lines, is_well = lines_of(trial(exact))
    assert not is_well and lines[-1] == f"FAILED: {found}"
    assert "the newcomer could not be given: the batches of the data loader at a.py:9" in lines


def test_differences_are_read_from_the_events_of_the_job(tmp_path: Path) -> None:
    log = tmp_path / "a-job"
    log.mkdir()
    events = [
        {"event": "notice", "kind": "formed", "text": "Replicas 0 and 1 in quorum 1."},
        {"event": "notice", "kind": "diverged", "text": "Replica 1 has another lr."},
    ]
    (log / "events.jsonl").write_text("".join(f"{json.dumps(x)}\n" for x in events))
    assert differences_of(tmp_path) == ["Replica 1 has another lr"]
