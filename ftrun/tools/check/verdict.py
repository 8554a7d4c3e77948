"""The findings of a trial, as lines for people. Pure.

Not here: the runs (command.py), the comparison of two runs (comparison.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ftrun.base.words import counted, first_of
from ftrun.tools.check.comparison import compared
from ftrun.tools.check.plan import STARTING, WORDS, Kill, Plan
from ftrun.tools.check.results import OWN
from ftrun.tools.check.runs import Reports, Run, Trial


def lines_of(trial: Trial) -> tuple[list[str], bool]:
    """The lines, and whether the script heals."""
    first = trial.undisturbed
    if first.refused is not None:
        return _not_carried(first.refused), False
    if first.told:
        return [f"FAILED: {first.told[0]}"], False
    if not (first.reports or first.is_late):
        return [_nothing_to_carry(first)], False
    lines, problems = list[str](), list(_ends(trial, first, "undisturbed"))
    if not problems:
        lines, problems = _after(trial)
    if problems:
        return [*lines, *(f"FAILED: {problem}" for problem in problems)], False
    return [*lines, f"ok: the script heals{_costs(trial)}"], True


def _after(trial: Trial) -> tuple[list[str], list[str]]:
    """Lines and problems, given an undisturbed run without problems."""
    first, plan = trial.undisturbed, trial.plan or _NONE
    report, problems = first.reports[min(first.reports)], list[str]()
    lines = [f"carried: {part}" for part in report["carried"]]
    lines += [f"not carried: {part}" for part in report["loose"]]
    for run, due in ((trial.training, plan.training), (trial.evaluations, plan.evaluations)):
        if run is not None:
            lines += _deaths_in_group(trial, run) if trial.is_group else _deaths(trial, run)
            problems += _ends(trial, run, "with deaths", due)
    if trial.again is not None:
        problems += _ends(trial, trial.again, "undisturbed again")
    if trial.lost is not None:
        lines += _loss(trial, trial.lost)
        problems += _ends_after_loss(trial, trial.lost)
    runs = [x for x in (first, *trial.with_deaths, trial.lost) if x is not None]
    lines += _changes(runs)
    lacks = [*_lacking(runs)]
    lines += [] if trial.is_group else lacks
    lines += [] if trial.is_group else [*_only_first(first.reports), *_own(first.reports)]
    lines += [f"not tried: a death {phase}" for phase in plan.untried]
    for told, wrong in [] if problems else [*_compared(trial)]:
        lines, problems = [*lines, *told], [*problems, *wrong]
    problems += lacks if trial.is_group else []
    if not trial.with_deaths:
        problems.append(
            f"the script ended before a {trial.kind} could be killed: give it more steps"
        )
    return lines, problems


def _compared(trial: Trial) -> Iterator[tuple[list[str], list[str]]]:
    """The lines and problems of each run that is compared with the undisturbed one."""
    runs = {"": trial.training, "after deaths in evaluations: ": trial.evaluations}
    if trial.lost is not None:
        runs[f"after the loss of {trial.lost_node}: "] = trial.lost
    for after, run in runs.items():
        if run is None:
            continue
        told, wrong = list[str](), list[str]()
        if run is not trial.lost and (why := _why_not(trial, run)):
            same = "all replicas have the same parameters"
            told.append(f"not compared with the undisturbed run: {why}; {same}")
        else:
            told, wrong = compared(trial, run)
        yield [after + x for x in told], [after + x for x in wrong]


def _costs(trial: Trial) -> str:
    """How many steps were lost, in a group."""
    if trial.lost is None or trial.lost.loss is None:
        return " and no step was lost" if trial.is_group else ""
    again = trial.lost.loss.again
    return f"; no step was lost with a worker, and {counted(again, 'step')} with a node"


_NONE = Plan((), (), ())


def _not_carried(refused: Mapping[str, Any]) -> list[str]:
    lines = [f"not carried: {refused['reason']}"]
    if refused["form"] == "world":
        lines.append("under --replicas it runs as one world; try that: --workers-per-replica N")
    else:
        lines.append("it uses ftrun itself: the script decides what heals")
    return lines


def _nothing_to_carry(run: Run) -> str:
    if run.exit_code:
        return f"the script failed before its first step (exit code {run.exit_code})"
    return "the script has ended without a step of torch's DistributedDataParallel"


# ---------------------------------------------------------------- how the runs went


def _deaths(trial: Trial, run: Run) -> Iterator[str]:
    """Each death, with the join that followed it."""
    joins = list(run.joins)
    for kill in run.kills:
        found = next((x for x in joins if x[0] == kill.victim), None)
        text = f"{trial.who(kill)} was killed {WORDS[kill.phase]}, after step {kill.step}"
        if found is None:
            yield text
            continue
        joins.remove(found)
        join = found[1]
        yield f"{text}, and {'the replica ' * (trial.workers > 1)}joined at {join['at']}"
        if join["set"]:
            yield f"set there: {first_of(join['set'])}"
        if join["lacking"]:
            yield f"the newcomer could not be given: {first_of(join['lacking'])}"
        if join["continued"]:
            yield f"its donor's steps count for it in: {first_of(join['continued'])}"


def _deaths_in_group(trial: Trial, run: Run) -> Iterator[str]:
    """Each death, with the steps that it cost."""
    for kill, (lost, repeated) in zip(run.kills, run.again, strict=True):
        when = f", after step {kill.step}" if kill.phase != STARTING else ""
        cost = f"{counted(lost, 'step')} lost" if _is_lost(kill, lost) else "no step lost"
        if lost and not _is_lost(kill, lost):
            cost = "all began again"
        elif _is_restart(trial, run, kill):
            cost = "its replica restarted"
        its = f"; its replacement repeated {counted(repeated, 'step')}" if repeated else ""
        yield f"{trial.who(kill)} was killed {WORDS[kill.phase]}{when}: {cost}{its}"


def _loss(trial: Trial, run: Run) -> Iterator[str]:
    """The loss of a node, with the steps that it cost."""
    if run.loss is not None:
        step, copied, again = run.loss.step, run.loss.copied, run.loss.again
        cost = f"{counted(again, 'step')} lost" if again else "no step lost"
        yield (
            f"{trial.lost_node} was lost in training, after step {step}: {cost}; its states of "
            f"step {copied} were on another node"
        )


def _ends_after_loss(trial: Trial, run: Run) -> Iterator[str]:
    """Problems of the run in which a node is lost."""
    yield from _ends(trial, run, "with a lost node")
    if run.loss is None:
        yield f"{trial.lost_node} was not lost: its states did not come to another node in time"
    elif run.loss.again > run.loss.step - run.loss.copied:
        yield f"{counted(run.loss.again, 'step')} lost with {trial.lost_node}"
        yield from () if run.exit_code else run.told  # otherwise they are reported already


def _is_restart(trial: Trial, run: Run, kill: Kill) -> bool:
    """Whether a replica was restarted after a death while the others took steps without it."""
    return trial.are_several and kill in run.fell and kill.phase != STARTING


def _is_lost(kill: Kill, again: int) -> bool:
    """Whether the steps that were begun ``again`` after a death had been taken before.

    Before the first snapshot is whole all begin the first step again, which none had finished.
    """
    return again > int(kill.phase == STARTING)


def _changes(runs: Sequence[Run]) -> Iterator[str]:
    """Values that the script changes and that newcomers do not receive."""
    reports = [report for run in runs for report in run.reports.values()]
    changes = sorted({name for report in reports for name in report["changes"]})
    if changes:
        yield f"not carried, and the script changes it: {first_of(changes)}"


def _lacking(runs: Sequence[Run]) -> Iterator[str]:
    reports = [report for run in runs for report in run.reports.values()]
    lacking = sorted({name for report in reports for name in report["lacking"]})
    if lacking:
        yield f"the newcomer could not be given: {first_of(lacking)}"


def _only_first(reports: Reports) -> Iterator[str]:
    """Files that are not written while the first replica is away."""
    first, *others = (set(reports[index]["files"]) for index in sorted(reports))
    names = sorted(first.difference(*others))
    if names:
        yield f"not done while replica 0 is away: what it alone writes ({first_of(names)})"


def _own(reports: Reports) -> Iterator[str]:
    """Parameters that each replica has otherwise, because no DistributedDataParallel has them."""
    every = [report["kept"].get(OWN, {}) for report in reports.values()]
    names = sorted({x for of in every for x in of if len({one.get(x) for one in every}) > 1})
    if names:
        yield (
            f"each replica has its own {OWN} ({first_of(names)}): compared with its own of the "
            "undisturbed run"
        )


def _ends(trial: Trial, run: Run, kind: str, due: Sequence[Kill] = ()) -> Iterator[str]:
    """Problems of one run by itself. ``due``: the planned deaths."""
    if run.is_late:
        yield f"the run {kind} did not end within {trial.timeout_s:g} s (--timeout)"
        return
    if run.refused is not None:
        yield f"it cannot be carried after a death: {run.refused['reason']}"
        return
    if run.exit_code:
        yield f"the job {kind} ended with exit code {run.exit_code}"
    missing = [trial.named(index) for index in range(trial.replicas) if index not in run.reports]
    if missing:
        yield f"{', '.join(missing)} did not come to the end"
    struck = len(run.kills)
    if struck < len(due):
        yield f"only {struck} of {len(due)} deaths came up: the script took another way after one"
    if trial.is_group:
        deaths = zip(run.kills, run.again, strict=True)
        lost = sum(again for kill, (again, _) in deaths if _is_lost(kill, again))
        if lost:
            yield f"{counted(lost, 'step')} lost"
        if lost or run.exit_code:
            yield from run.told
        else:
            yield from (run.fell[x] for x in run.kills if _is_restart(trial, run, x))
        return
    if len(run.joins) < struck:
        yield f"of {struck} killed replicas {len(run.joins)} joined their peers"
    yield from run.differences
    digests = {index: report["parameters"] for index, report in run.reports.items()}
    if len(set(digests.values())) > 1:
        each = ", ".join(f"replica {index}: {digest}" for index, digest in digests.items())
        yield f"the parameters differ at the end {kind} ({each})"
    lost = _lost(run)
    if lost > len(run.kills):
        yield f"{lost} steps were lost {kind}"


def _why_not(trial: Trial, run: Run) -> str:
    """Why a run with deaths need not end like the undisturbed one; "": it must."""
    if trial.workers > 1 and not trial.is_group:
        return "the peers of a replica of several workers train on while it is away"
    if _lost(run):
        return "a step was lost at a death, and the script goes on with its next batches"
    return ""


def _lost(run: Run) -> int:
    """How many steps were computed and not committed."""
    return max((report["lost"] for report in run.reports.values()), default=0)
