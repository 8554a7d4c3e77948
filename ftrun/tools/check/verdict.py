"""The findings of a trial, as lines for people. Pure.

Not here: the runs (command.py).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftrun.base.words import counted, first_of
from ftrun.tools.check.place import Difference, Files, How, form_of
from ftrun.tools.check.plan import STARTING, WORDS, Kill, Plan

TEXT_CHARS_MAX = 24
OUTSIDE = "tensors outside modules"
"""As in inject/zero_edit/trial.py, which imports torch."""
Reports = Mapping[int, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Run:
    """The facts that are known after one run.

    ``refused``: what could not be carried, or None. ``reports``: what each replica has left at the
    end, by number; one that did not come to it has left none. ``joins``: of newcomers in their
    order, with their replica's number. ``kills``: those that struck. ``differences``: between
    replicas that the lighthouse has found. ``files``: those that it has written; ``early``: those
    among them that were last written before any step was taken. ``again``: for
    each death, how many steps another worker took again after it, and how many its replacement.
    ``told``: why not every death could be mended; ``fell``: after which.
    """

    exit_code: int
    is_late: bool
    refused: Mapping[str, Any] | None
    reports: Reports
    joins: Sequence[tuple[int, Mapping[str, Any]]] = ()
    kills: tuple[Kill, ...] = ()
    differences: Sequence[str] = ()
    files: dict[str, Path] = field(default_factory=dict)
    early: frozenset[str] = frozenset()
    again: tuple[tuple[int, int], ...] = ()
    told: tuple[str, ...] = ()
    fell: Mapping[Kill, str] = field(default_factory=dict)

    def is_whole(self, replicas: int) -> bool:
        """Whether all replicas have come to its end."""
        ended = not (self.refused or self.is_late or self.exit_code)
        return ended and len(self.reports) == replicas


@dataclass(slots=True)
class Trial:
    """All runs. ``exact`` must end as ``undisturbed``; in ``counted`` replicas died in evaluations,
    in which their peers counted for them. None: there was no such run.

    ``is_group``: workers are replaced in their group, and each is seen as one of ``replicas``.
    ``workers``: of each replica of the job. ``again``: undisturbed once more, by an uneven clock:
    what is another one in each run, or follows from the time, shows there, in values as in the
    files (``vary``). It cannot be compared."""

    replicas: int
    workers: int
    timeout_s: float
    undisturbed: Run
    plan: Plan | None = None
    exact: Run | None = None
    counted: Run | None = None
    again: Run | None = None
    files: Files = field(default_factory=Files)
    vary: Files = field(default_factory=Files)
    is_group: bool = False

    @property
    def kind(self) -> str:
        """What has a number."""
        return "worker" if self.is_group else "replica"

    @property
    def are_several(self) -> bool:
        """Whether there are several replicas whose workers are replaced in their group."""
        return self.is_group and self.replicas > self.workers

    def named(self, index: int) -> str:
        """What has a number, with it."""
        if self.are_several:
            return f"worker {index // self.workers}.{index % self.workers}"
        return f"{self.kind} {index}"

    def who(self, kill: Kill) -> str:
        """The process that was killed."""
        if self.is_group:
            return self.named(kill.victim)
        worker = f"worker {self.workers - 1} of " if self.workers > 1 else ""
        return f"{worker}replica {kill.victim}"


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
        report = first.reports[min(first.reports)]
        lines += [f"carried: {part}" for part in report["carried"]]
        lines += [f"not carried: {part}" for part in report["loose"]]
        for run in (trial.exact, trial.counted):
            if run is not None:
                lines += _deaths_in_group(trial, run) if trial.is_group else _deaths(trial, run)
                problems += _ends(trial, run, "with deaths")
        runs = [x for x in (first, trial.exact, trial.counted) if x is not None]
        lines += _changes(runs)
        lacks = [*_lacking(runs)]
        lines += [] if trial.is_group else lacks
        lines += [] if trial.is_group else _only_first(first.reports)
        lines += [f"not tried: a death {phase}" for phase in (trial.plan or _NONE).untried]
        if trial.exact is not None and _why_not(trial, trial.exact) and not problems:
            lines.append(
                f"not compared with the undisturbed run: {_why_not(trial, trial.exact)}; all "
                "replicas have the same parameters"
            )
        elif trial.exact is not None and not problems:
            told, wrong = _compared(trial, trial.exact)
            lines, problems = [*lines, *told], [*problems, *wrong]
        problems += lacks if trial.is_group else []
        if trial.counted is not None and not problems:
            lines += _counted(trial, trial.counted)
        if trial.exact is None:
            problems.append(
                f"the script ended before a {trial.kind} could be killed: give it more steps"
            )
    if problems:
        return [*lines, *(f"FAILED: {problem}" for problem in problems)], False
    lost = " and no step was lost" if trial.is_group else ""
    return [*lines, f"ok: the script heals{lost}"], True


_NONE = Plan((), (), ())


def _not_carried(refused: Mapping[str, Any]) -> list[str]:
    lines = [f"not carried: {refused['reason']}"]
    if refused["form"] == "world":
        lines.append("under --replicas it runs as under torchrun: one world, restarted as a whole")
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


def _deaths_in_group(trial: Trial, run: Run) -> Iterator[str]:
    """Each death, with the steps that it has cost."""
    for kill, (lost, repeated) in zip(run.kills, run.again, strict=True):
        when = f", after step {kill.step}" if kill.phase != STARTING else ""
        cost = f"{counted(lost, 'step')} lost" if _is_lost(kill, lost) else "no step lost"
        if lost and not _is_lost(kill, lost):
            cost = "all began again"
        elif _is_restart(trial, run, kill):
            cost = "its replica restarted"
        its = f"; its replacement repeated {counted(repeated, 'step')}" if repeated else ""
        yield f"{trial.who(kill)} was killed {WORDS[kill.phase]}{when}: {cost}{its}"


def _is_restart(trial: Trial, run: Run, kill: Kill) -> bool:
    """Whether a replica was restarted after a death, while others took steps without it."""
    return trial.are_several and kill in run.fell and kill.phase != STARTING


def _is_lost(kill: Kill, again: int) -> bool:
    """Whether steps that were begun ``again`` after a death had been taken before.

    Before the first snapshot is whole all begin the first step again, which nobody had finished.
    """
    return again > int(kill.phase == STARTING)


def _changes(runs: Sequence[Run]) -> Iterator[str]:
    """Values that the script changes and that no newcomer receives."""
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
    """Files that nobody writes while the first replica is away."""
    first, *others = (set(reports[index]["files"]) for index in sorted(reports))
    names = sorted(first.difference(*others))
    if names:
        yield f"not done while replica 0 is away: what it alone writes ({first_of(names)})"


def _ends(trial: Trial, run: Run, kind: str) -> Iterator[str]:
    """Problems of one run by itself."""
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
    planned = () if trial.plan is None else (trial.plan.exact, trial.plan.counted)
    due = next((kills for kills in planned if kills and set(run.kills) <= set(kills)), ())
    struck = len(run.kills)
    if run is not trial.undisturbed and struck < len(due):
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
    """Why a run with deaths need not end as the undisturbed one; "": it must."""
    if trial.workers > 1 and not trial.is_group:
        return "the peers of a replica of several workers train on while it is away"
    if _lost(run):
        return "a step was lost at a death, and the script goes on with its next batches"
    return ""


def _lost(run: Run) -> int:
    """How many steps were computed and not committed."""
    return max((report["lost"] for report in run.reports.values()), default=0)


# ---------------------------------------------------------------- beside the undisturbed run


def _compared(trial: Trial, run: Run) -> tuple[list[str], list[str]]:
    """Lines about what is equal and what is not; and what makes the check fail."""
    before, after = trial.undisturbed.reports, run.reports
    equal, told, problems = list[str](), list[str](), list[str]()
    inputs = [*_other_inputs(before, after, trial.named)]
    is_alike = all(after[x]["parameters"] == before[x]["parameters"] for x in before)
    # What random numbers change shows in a batch or a parameter: else they excuse nothing.
    draws = any(report["draws"] for report in before.values()) and not trial.is_group
    draws &= bool(inputs) or not is_alike
    why = (
        "the script draws random numbers in its steps, and a newcomer goes on with the global "
        "generators only: not with those of loader workers or of its own, nor with what was drawn "
        "before a step"
    )
    steps = {index: report["step"] for index, report in after.items()}
    if steps != {index: report["step"] for index, report in before.items()}:
        problems.append(f"{trial.kind}s came to the steps {first_of([*steps.values()])}")

    def judge(what: str, is_equal: bool, other: str) -> None:
        if is_equal:
            equal.append(what)
        elif draws:
            told.append(f"not compared: {what}, because {why}")
        else:
            problems.append(other)

    judge(f"what each {trial.kind} reads", not inputs, f"other batches: {first_of(inputs)}")
    judge("parameters", is_alike, "the parameters are not those of the undisturbed run")
    for kind in next(iter(before.values()))["kept"]:
        others = sorted({x for index in before for x in _unlike(before, after, index, kind)})
        if kind == "buffers" and others and not trial.is_group:
            told.append(
                f"not equal to the undisturbed run: buffers {first_of(others)}: those of replica 0 "
                "count, and its death loses an update of a running average, or repeats one"
            )
        elif others or any(report["kept"][kind] for report in before.values()):
            words = f"{kind} {first_of(others)} are not those of the undisturbed run"
            judge(kind, not others, words)
    values = [*other_values(trial, run)]
    number = sum(len(report["now"]) for report in before.values()) - len(values)
    if number:
        equal.append(f"{number} values of the script")
    if values:
        words = f"not equal to the undisturbed run: {first_of(values)}"
        (problems if trial.is_group else told).append(words)
    equal += trial.files.equal
    for name, found in trial.files.unlike.items():
        if name in trial.files.lost:
            told.append(f"lost with the replica that wrote it, and not due again: {name} {found}")
        elif _varies(trial, name):
            told.append(f"not compared: {name} {found}, as in another undisturbed run")
        elif _is_wrong(trial, found):
            problems.append(f"{name} {found}, unlike the undisturbed run's")
        else:
            told.append(f"not equal to the undisturbed run: {name} {found}")
    ours = {name for report in after.values() for name in report["files"]}
    known = {os.path.basename(name) for report in before.values() for name in report["files"]}
    left = [x for x in trial.files.more if x not in ours and os.path.basename(x) in known]
    more = [name for name in trial.files.more if name not in left]
    apart = _apart(trial.undisturbed, run, left)
    if more:
        told.append(f"more than the undisturbed run: a life of a replica began {first_of(more)}")
    if apart:
        problems.append(
            f"a life of a replica went on in {first_of(apart)}, beside the directory of the one "
            "before it: neither has all files of the run"
        )
    if left:
        problems.append(
            f"{first_of(left)} was left by the replica that died: the undisturbed run has removed "
            "it, or has it elsewhere"
        )
    return [f"equal to the undisturbed run: {first_of(equal)}", *told], problems


def _is_wrong(trial: Trial, found: Difference) -> bool:
    """Whether a file may not differ so. Objects that are equal are not always the same bytes."""
    return found.is_lack or (trial.is_group and found.how is not How.BYTES)


def _varies(trial: Trial, name: str) -> bool:
    """Whether a file is as unlike in another undisturbed run as in that with deaths."""
    before = trial.vary.unlike.get(name)
    return before is not None and before.how >= trial.files.unlike[name].how


def _apart(undisturbed: Run, run: Run, left: Collection[str]) -> list[str]:
    """The directories that only the run with deaths has, of those whose names differ in numbers
    alone, where it went on in more of them than the undisturbed one.

    A start that came to no step went on nowhere: torchrun's leave such a directory too.
    """
    theirs, ours = (
        dict.fromkeys(os.path.dirname(x) for x in one.files.keys() - one.early - {*left})
        for one in (undisturbed, run)
    )
    more = Counter(map(form_of, ours))
    more.subtract(map(form_of, theirs))
    known = {*map(form_of, theirs)}
    return sorted(
        x for x in ours if x not in theirs and form_of(x) in known and more[form_of(x)] > 0
    )


def _counted(trial: Trial, run: Run) -> Iterator[str]:
    """Changes by a death in an evaluation: a peer counts twice there, which is no error."""
    values = [*other_values(trial, run)]
    if values:
        yield f"after deaths in evaluations, in which a peer counted twice: {first_of(values)}"


def _other_inputs(before: Reports, after: Reports, named: Callable[[int], str]) -> Iterator[str]:
    """The first step at which a replica got another batch. A newcomer has none of earlier ones."""
    for index, report in before.items():
        theirs = after[index]["inputs"]
        odd = [int(x) for x in theirs if report["inputs"].get(x, theirs[x]) != theirs[x]]
        if odd:
            yield f"{named(index)} from step {min(odd)} on"


def _unlike(before: Reports, after: Reports, index: int, kind: str) -> Iterator[str]:
    ours, theirs = after[index]["kept"][kind], before[index]["kept"][kind]
    # A newcomer may have variables that its peer alone had.
    names = ours.keys() & theirs.keys() if kind == OUTSIDE else {**ours, **theirs}
    yield from (name for name in names if ours.get(name) != theirs.get(name))


def may_vary(trial: Trial, run: Run) -> bool:
    """Whether a run is unlike the undisturbed one where another undisturbed one may be so too."""
    unlike = (x for name, x in trial.files.unlike.items() if name not in trial.files.lost)
    is_unlike = any(_is_wrong(trial, found) for found in unlike)
    return is_unlike or (trial.is_group and any(other_values(trial, run)))


def other_values(trial: Trial, run: Run) -> Iterator[str]:
    """Values of the script that another run has otherwise, each once."""
    before, after = trial.undisturbed.reports, run.reports
    again = {} if trial.again is None else trial.again.reports
    seen = {path for path, _ in _differing(before, again)} if again else set()
    shown: Callable[[Any], str] = lambda value: f"{value!r:.{TEXT_CHARS_MAX}}"  # noqa: E731
    for path, (value, now) in _differing(before, after):
        if path not in seen:
            seen.add(path)
            name = path.partition(" ")[2]
            yield f"{name} ({shown(now)}, undisturbed {shown(value)})"


def _differing(before: Reports, after: Reports) -> Iterator[tuple[str, tuple[Any, Any]]]:
    for index, report in before.items():
        now = after[index]["now"] if index in after else {}
        for path, value in report["now"].items():
            if path in now and now[path] != value:
                yield path, (value, now[path])
