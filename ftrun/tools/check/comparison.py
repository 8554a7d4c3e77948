"""Compares a run with deaths to the undisturbed run. Pure.

Not here: each run's own problems (verdict.py), the comparison of files (place.py).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any

from ftrun.base.words import first_of
from ftrun.tools.check.place import Difference, How, form_of
from ftrun.tools.check.runs import Reports, Run, Trial

TEXT_CHARS_MAX = 24
OUTSIDE = "tensors outside modules"
"""As in inject/zero_edit/trial.py, which imports torch."""


def compared(trial: Trial, run: Run) -> tuple[list[str], list[str]]:
    """Lines about equal and different results; and the problems that make the check fail."""
    before, after = trial.undisturbed.reports, run.reports
    equal, told, problems = list[str](), list[str](), list[str]()
    inputs = [*_other_inputs(before, after, trial.named)]
    is_alike = all(after[x]["parameters"] == before[x]["parameters"] for x in before)
    # Random numbers excuse a difference only if they show in a batch or a parameter.
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
    equal += run.beside.equal
    for name, found in run.beside.unlike.items():
        if name in run.beside.lost:
            told.append(f"lost with the replica that wrote it, and not due again: {name} {found}")
        elif _varies(trial, name, found):
            told.append(f"not compared: {name} {found}, as in another undisturbed run")
        elif _is_wrong(trial, found):
            problems.append(f"{name} {found}, unlike the undisturbed run's")
        else:
            told.append(f"not equal to the undisturbed run: {name} {found}")
    ours = {name for report in after.values() for name in report["files"]}
    known = {os.path.basename(name) for report in before.values() for name in report["files"]}
    left = [x for x in run.beside.more if x not in ours and os.path.basename(x) in known]
    more = [name for name in run.beside.more if name not in left]
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
    """Whether this difference is a problem. Equal objects may be written as different bytes."""
    return found.is_lack or (trial.is_group and found.how is not How.BYTES)


def _varies(trial: Trial, name: str, found: Difference) -> bool:
    """Whether a file differs as much between two undisturbed runs as after deaths."""
    before = None if trial.again is None else trial.again.beside.unlike.get(name)
    return before is not None and before.how >= found.how


def _apart(undisturbed: Run, run: Run, left: Collection[str]) -> list[str]:
    """Directories that only the run with deaths has, because a replica continued in a new one.

    Considers directories whose names differ only in numbers from one of the undisturbed run, if the
    run with deaths has more of them. A start that reached no step does not count: under torchrun
    such a start leaves a directory too.
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


def after_evaluations(trial: Trial, run: Run) -> Iterator[str]:
    """Differences caused by a death in an evaluation, where a peer counts twice; not an error."""
    values = [*other_values(trial, run)]
    if values:
        yield f"after deaths in evaluations, in which a peer counted twice: {first_of(values)}"


def _other_inputs(before: Reports, after: Reports, named: Callable[[int], str]) -> Iterator[str]:
    """The first step at which a replica got a different batch. A newcomer has no earlier ones."""
    for index, report in before.items():
        theirs = after[index]["inputs"]
        odd = [int(x) for x in theirs if report["inputs"].get(x, theirs[x]) != theirs[x]]
        if odd:
            yield f"{named(index)} from step {min(odd)} on"


def _unlike(before: Reports, after: Reports, index: int, kind: str) -> Iterator[str]:
    ours, theirs = after[index]["kept"][kind], before[index]["kept"][kind]
    # A newcomer may have variables that only its peer had.
    names = ours.keys() & theirs.keys() if kind == OUTSIDE else {**ours, **theirs}
    yield from (name for name in names if ours.get(name) != theirs.get(name))


def may_vary(trial: Trial, run: Run) -> bool:
    """Whether a run differs from the undisturbed one where two undisturbed runs may differ too."""
    unlike = (x for name, x in run.beside.unlike.items() if name not in run.beside.lost)
    is_unlike = any(_is_wrong(trial, found) for found in unlike)
    return is_unlike or (trial.is_group and any(other_values(trial, run)))


def other_values(trial: Trial, run: Run) -> Iterator[str]:
    """Values of the script that differ in another run, each once."""
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
