"""Compares a run with deaths to the undisturbed run. Pure.

Not here: each run's own problems (verdict.py), the comparison of files (place.py).
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from ftrun.base.words import counted as count_of
from ftrun.base.words import first_of
from ftrun.tools.check.place import Difference, How, form_of
from ftrun.tools.check.results import (
    BUFFERS,
    LOSSES,
    PARAMETERS,
    READS,
    ROUNDING,
    Seen,
    results,
)
from ftrun.tools.check.runs import Reports, Run, Trial

TEXT_CHARS_MAX = 24
_COUNTS = frozenset({bool, int, str})
"""Values that do not follow from what may differ, as a loss of an evaluation does."""
WHY = (
    "two undisturbed runs differ there, too: the second one has drawn other random numbers where a "
    "newcomer does not get its predecessor's, as in the workers of a loader or in an evaluation "
    "that it has not made"
)


Lines = tuple[list[str], list[str], list[str]]
"""What is equal; what else is told; what makes the check fail."""


def compared(trial: Trial, run: Run) -> tuple[list[str], list[str]]:
    """Lines about equal and different results; and the problems that make the check fail."""
    before, after = trial.undisturbed.reports, run.reports
    problems, steps = list[str](), {index: report["step"] for index, report in after.items()}
    if steps != {index: report["step"] for index, report in before.items()}:
        problems.append(f"{trial.kind}s came to the steps {first_of([*steps.values()])}")
    equal, told = list[str](), list[str]()
    for look in (_results, _values, _files, _more_files):
        for lines, more in zip((equal, told, problems), look(trial, run), strict=True):
            lines += more
    line = f"equal to the undisturbed run: {first_of(equal) or 'nothing'}"
    return [line, *told], problems


def _results(trial: Trial, run: Run) -> Lines:
    """What the workers have read and computed."""
    equal, told, problems, left = list[str](), list[str](), list[str](), list[str]()
    before, vary = trial.undisturbed.reports, set[tuple[str, int, tuple[str, ...]]]()
    if trial.again is not None:
        known = results(before, trial.again.reports)
        vary = {(what, x.of, x.place) for what, seen in known for x in seen if not x.is_equal}
    rounded = dict[str, list[Seen]]()
    for what, seen in results(before, run.reports):
        named, excused, wrong = what.format(kind=trial.kind), list[Seen](), list[Seen]()
        for x in (x for x in seen if not x.is_equal):
            may = any((what, x.of, x.place[:part]) in vary for part in range(len(x.place) + 1))
            (excused if may else wrong).append(x)
        averages = [x for x in wrong if what == BUFFERS and _is_average(trial, x)]
        if averages:
            told.append(
                f"not equal to the undisturbed run: buffers {first_of(_where(averages))}: those "
                "of replica 0 count, and its death loses an update of a running average, or "
                "repeats one"
            )
            wrong = [x for x in wrong if x not in averages]
        if wrong and not trial.is_group and all(x.is_rounding for x in wrong):
            rounded[what] = wrong
        elif wrong:
            problems.append(_wrong(trial, what, wrong))
        share = _share(seen, excused)
        if excused:
            left.append(named + f" ({share})" * bool(share))
        if seen and not (wrong or averages) and (share or not excused):
            equal.append(f"the rest of {named}" if excused else named)
    told += [f"not compared: {first_of(left)}, because {WHY}"] if left else []
    if problems:  # and what follows from these
        problems += [_wrong(trial, what, wrong) for what, wrong in rounded.items()]
    elif rounded:
        names = [what.format(kind=trial.kind) for what in rounded]
        told.append(f"equal to the undisturbed run but for rounding: {first_of(names)}")
    return equal, told, problems


def _is_average(trial: Trial, buffer: Seen) -> bool:
    """Whether a buffer may lack an update of a running average. One that no pass has changed in
    the undisturbed run must be equal."""
    still = trial.undisturbed.reports[buffer.of]["still"]
    return not trial.is_group and buffer.where not in still and buffer.is_near


def _values(trial: Trial, run: Run) -> Lines:
    """The script's plain values."""
    before, after = trial.undisturbed.reports, run.reports
    number = sum(len(x["now"].keys() & after[index]["now"].keys()) for index, x in before.items())
    number -= sum(1 for _ in _differing(before, after))
    equal = [f"{count_of(number, 'value')} of the script"] if number else []
    values, wrong = [*other_values(trial, run)], [*_lost_counters(trial, run)]
    words = [f"not equal to the undisturbed run: {first_of(values)}"] if values else []
    lost = [f"nothing has named what is not as undisturbed: {first_of(wrong)}"] if wrong else []
    return (equal, [], words) if trial.is_group else (equal, words, lost)


def _files(trial: Trial, run: Run) -> Lines:
    """The files that the undisturbed run has written."""
    told, wrongs = dict[str, list[str]](), dict[str, list[str]]()
    for name, found in run.beside.unlike.items():
        into, words = told, f"not equal to the undisturbed run: {{}} {found}"
        if name in run.beside.lost:
            words = f"lost with the replica that wrote it, and not due again: {{}} {found}"
        elif _varies(trial, name, found):
            words = f"not compared: {{}} {found}, as in another undisturbed run"
        elif _is_wrong(trial, found):
            into, words = wrongs, f"{{}} {found}, unlike the undisturbed run's"
        into.setdefault(words, []).append(name)
    lines, wrong = ([x.format(_each(y)) for x, y in of.items()] for of in (told, wrongs))
    return run.beside.equal, lines, wrong


def _more_files(trial: Trial, run: Run) -> Lines:
    """The files that only the run with deaths has written."""
    told, problems = list[str](), list[str]()
    before, after = trial.undisturbed.reports, run.reports
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
    return [], told, problems


def _each(names: Sequence[str]) -> str:
    return "each of " * (len(names) > 1) + first_of(names)


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
    run with deaths has more of them. There a start that reached no step does not count: under
    torchrun such a start leaves a directory too.
    """
    theirs, ours = (
        dict.fromkeys(os.path.dirname(x) for x in files - {*left})
        for files in (undisturbed.files.keys(), run.files.keys() - run.early)
    )
    more = Counter(map(form_of, ours))
    more.subtract(map(form_of, theirs))
    known = {*map(form_of, theirs)}
    return sorted(
        x for x in ours if x not in theirs and form_of(x) in known and more[form_of(x)] > 0
    )


def _where(seen: Sequence[Seen]) -> list[str]:
    return sorted({x.where for x in seen})


def _wrong(trial: Trial, what: str, wrong: Sequence[Seen]) -> str:
    """A problem, in words."""
    if what == PARAMETERS:
        return "the parameters are not those of the undisturbed run"
    if what not in (READS, LOSSES):
        return f"{what} {first_of(_where(wrong))} are not those of the undisturbed run"
    places = {x.of: dict[str, None]() for x in wrong}
    for x in wrong:
        places[x.of][x.where] = None
    each = [
        f"{trial.named(index)} {f'from {first} on' if more else f'at {first}'}"
        for index, (first, *more) in sorted(places.items())
    ]
    return f"other {'batches' if what == READS else LOSSES}: {first_of(each)}"


def _share(seen: Sequence[Seen], excused: Sequence[Seen]) -> str:
    """Which part of the results could not be compared, in words; "": all."""
    left = {x.place for x in excused}
    if left >= {x.place for x in seen}:
        return ""
    return first_of(sorted({" ".join(reversed(place)) for place in left}))


def may_vary(trial: Trial, run: Run) -> bool:
    """Whether a run differs from the undisturbed one where two undisturbed runs may differ too."""
    unlike = (x for name, x in run.beside.unlike.items() if name not in run.beside.lost)
    if any(_is_wrong(trial, found) for found in unlike):
        return True
    before, after = trial.undisturbed.reports, run.reports
    others = (x for _, seen in results(before, after) for x in seen if not x.is_equal)
    values = other_values if trial.is_group else _lost_counters
    return any(others) or any(values(trial, run))


def other_values(trial: Trial, run: Run) -> Iterator[str]:
    """Values of the script that differ in another run, each once."""
    return (words for *_, words in _others(trial, run))


def _others(trial: Trial, run: Run) -> Iterator[tuple[str, tuple[Any, Any], str]]:
    """The path of each, the values, and the words."""
    before, after = trial.undisturbed.reports, run.reports
    again = {} if trial.again is None else trial.again.reports
    seen = {path for path, _ in _differing(before, again)} if again else set()
    for path, (value, now) in _differing(before, after):
        if path not in seen:
            seen.add(path)
            name = path.partition(" ")[2]
            yield path, (value, now), f"{name} ({_shown(now)}, undisturbed {_shown(value)})"


def _shown(value: Any) -> str:
    """A plain value, or the kind of another one (inject/zero_edit/values)."""
    is_packed = isinstance(value, dict) and "kind" in value
    return f"another {value['kind']}" if is_packed else f"{value!r:.{TEXT_CHARS_MAX}}"


def _lost_counters(trial: Trial, run: Run) -> Iterator[str]:
    """Values that the script changes in its steps, and that a newcomer lacks although no line of
    its join says so."""
    before, after = trial.undisturbed.reports, run.reports
    every = [*before.values(), *after.values()]
    counted = {path for report in every for path in report["counted"]}
    named = {x for report in every for x in (*report["lacking"], *report["changes"])}
    named |= {x for _, join in run.joins for x in join["lacking"]}
    known = {x.removeprefix("its own ").partition(" (")[0] for x in named}
    again = {} if trial.again is None else trial.again.reports
    # What is computed from these is other, too.
    have_others = (
        any(join["continued"] for _, join in run.joins)
        or any(not x.is_equal for _, seen in results(before, again) for x in seen)
        or any(
            x["kept"]["buffers"] != after[index]["kept"]["buffers"] for index, x in before.items()
        )
    )

    def is_named(name: str) -> bool:
        return any(name == x or name.startswith((f"{x}.", f"{x}[")) for x in known)

    is_rounded = any(not x.is_equal for _, seen in results(before, after) for x in seen)
    for path, values, words in _others(trial, run):
        is_count = not have_others or all(type(x) in _COUNTS for x in values)
        is_known = is_named(path.partition(" ")[2]) or _is_rounded(*values)
        is_known |= is_rounded and any(map(_is_result, values))  # a digest tells no more
        if path in counted and is_count and not is_known:
            yield words
    known_items = dict(_items(before, again)) if again else {}
    for path, (number, now) in _items(before, after):
        name = path.partition(" ")[2]
        if path not in known_items and f"{path}[{number - 1}]" in counted and not is_named(name):
            yield f"{name} ({count_of(now, 'item')}, undisturbed {number})"


def _is_result(value: Any) -> bool:
    return isinstance(value, dict) and value.get("kind") == "result of autograd"


def _is_rounded(value: Any, now: Any) -> bool:
    """Whether two numbers may be computed from another order of sums."""
    are_floats = type(value) is float and type(now) is float
    return are_floats and math.isclose(value, now, rel_tol=ROUNDING)


def _items(before: Reports, after: Reports) -> Iterator[tuple[str, tuple[int, int]]]:
    """The lists that have another number of items in another run."""
    for index, report in before.items():
        now = after[index]["now"] if index in after else {}
        theirs, ours = (
            Counter(path.rpartition("[")[0] for path in of if path.endswith("]"))
            for of in (report["now"], now)
        )
        for path in theirs.keys() & ours.keys():
            if theirs[path] != ours[path]:
                yield path, (theirs[path], ours[path])


def _differing(before: Reports, after: Reports) -> Iterator[tuple[str, tuple[Any, Any]]]:
    for index, report in before.items():
        now = after[index]["now"] if index in after else {}
        for path, value in report["now"].items():
            if path in now and now[path] != value:
                yield path, (value, now[path])
