"""What is said about a run, and the table of all. Pure.

A verdict is one of few words: ``same``, ``differs``, ``one world``, ``fails``, ``hangs``, most with
a reason. Not here: how a run is made (running.py) and read (ends.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

SAME, DIFFERS, ONE_WORLD, FAILS, HANGS = "same", "differs", "one world", "fails", "hangs"
NOT_RUN = "–"
BEGINS_AGAIN = re.compile(r"ftrun: (?P<why>.*?)\.? ftrun restarts the job as torchrun would")
"""What ftrun says when it cannot carry a script."""
LABEL = re.compile(r"^\[(?:\d+\.\d+\] |[a-z]+\d+\]:)", re.MULTILINE)
"""Before a line of a worker: of ftrun's, and of torchrun's with --tee."""
LACKS = re.compile(r"not restored: .*?(the \S+ \(\S+\) of this rank, which was its own)")
"""A module that a newcomer has as its donor has it, although that of each rank was another one."""
NOT_GIVEN = "the newcomer could not be given: "
"""So ``ftrun check`` names what a death has cost."""
NUMBER = re.compile(r"-?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?")
SHARE = re.compile(rf"(?:{NUMBER.pattern})(\s*%)?")
"""A whole number before a percent sign is measured, and not counted."""
WHY_MAX = 110


@dataclass
class Run:
    """A run that is over.

    ``end``: of each file its values, and under ``output`` the matches of the row's lines in order.
    ``joined``: which killed replicas were back before the next kill or the end. ``unequal``: what
    the lighthouse found to differ between replicas.
    """

    exit_code: int
    is_late: bool = False
    output: str = ""
    end: dict[str, Any] = field(default_factory=dict)
    steps: int = 0
    seconds: float = 0.0
    killed: list[str] = field(default_factory=list)
    joined: list[str] = field(default_factory=list)
    unequal: list[str] = field(default_factory=list)


@dataclass
class Result:
    """A row's verdicts; empty where nothing was run."""

    name: str
    is_seeded: bool = False
    undisturbed: str = ""
    killed: str = ""
    check: str = ""
    seconds: float = 0.0

    @property
    def is_wrong(self) -> bool:
        """Whether ``ftrun check`` says what the kills did not show, or the other way round.

        Not if it names what was lost: it kills at more moments, and compares without a tolerance.
        """
        if not self.check or not self.killed or NOT_GIVEN in self.check:
            return False
        return (self.check == "ok") != (self.killed == SAME)


def matches(output: str, expressions: Sequence[str]) -> list[list[str]]:
    """For each expression the groups of all that it matches, without the labels of replicas."""
    plain = LABEL.sub("", output).replace("\r", "\n")
    return [
        [
            " ".join(x.groups(default="")) if x.groups() else x[0]
            for x in re.finditer(e, plain, re.M)
        ]
        for e in expressions
    ]


def difference(one: Any, other: Any, tolerance: float | None) -> str:
    """Where two ends differ first; "" if nowhere.

    Args:
        one: an end, or a part of it. ``other``: of the other run.
        tolerance: None if all must be equal. Else tensors have the same type and shape and are
            finite, whole numbers are equal, others at most as far apart, relative; of the output
            the last match counts.
    """
    if tolerance is None and one == other:
        return ""
    for file in sorted({*one, *other}):
        if file not in one or file not in other:
            return f"{file} is {'missing' if file not in other else 'new'}"
        if file == "output":
            found = _outputs_differ(one[file], other[file], tolerance)
        else:
            found = _values_differ(one[file], other[file], tolerance)
        if found:
            return f"{file}: {found}"
    return ""


def _outputs_differ(
    one: Sequence[Sequence[str]], other: Sequence[Sequence[str]], tolerance: float | None
) -> str:
    for here, there in zip(one, other, strict=True):
        if tolerance is None:
            if sorted(here) != sorted(there):
                odd = [x for x in (*there, *here) if there.count(x) != here.count(x)]
                return f"{len(here)} and {len(there)} matches, as {odd[0]!r}"
        elif bool(here) != bool(there):
            return f"{len(here)} and {len(there)} matches"
        elif here and not is_alike(here[-1], there[-1], tolerance):
            return f"{here[-1]!r} and {there[-1]!r}"
    return ""


def _values_differ(
    one: Mapping[str, Any], other: Mapping[str, Any], tolerance: float | None
) -> str:
    if one.keys() != other.keys():
        odd = sorted(one.keys() ^ other.keys())
        return f"{odd[0]} in one only ({len(odd)} such)"
    odd = [
        key
        for key, value in one.items()
        if (
            other[key] != value if tolerance is None else not is_alike(value, other[key], tolerance)
        )
    ]
    if not odd:
        return ""
    return f"{odd[0]} is {one[odd[0]]!r:.60} and {other[odd[0]]!r:.60} ({len(odd)} of {len(one)})"


def is_alike(one: Any, other: Any, tolerance: float) -> bool:
    """Whether two values have the same form and numbers that are near."""
    if isinstance(one, list) and isinstance(other, list):
        return one[0] == other[0] and one[2] == other[2]
    if isinstance(one, bool) or isinstance(other, bool):
        return bool(one == other)
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        is_whole = isinstance(one, int) and isinstance(other, int)
        return one == other if is_whole else _is_near(float(one), float(other), tolerance)
    if isinstance(one, str) and isinstance(other, str):
        here, there = NUMBER.findall(one), NUMBER.findall(other)
        words = [NUMBER.sub("", x).split() for x in (one, other)]  # columns may be filled up
        if len(here) != len(there) or words[0] != words[1]:
            return False
        shares = [bool(x[1]) for x in SHARE.finditer(one)]
        return all(
            a == b
            or (
                (is_share or not (a.isdigit() and b.isdigit()))
                and _is_near(float(a), float(b), tolerance)
            )
            for a, b, is_share in zip(here, there, shares, strict=True)
        )
    return bool(one == other)


def _is_near(one: float, other: float, tolerance: float) -> bool:
    return one == other or abs(one - other) <= tolerance * max(abs(one), abs(other), 0.1)


def verdict(run: Run, plain: Run, is_seeded: bool, tolerance: float | None) -> str:
    """Of a run under ftrun beside one under torchrun; also of one with kills."""
    again = BEGINS_AGAIN.search(run.output)
    if run.is_late:
        return f"{HANGS} ({_reason(run, again)})"
    if run.exit_code:
        return f"{FAILS} (exit code {run.exit_code}: {_reason(run, again)})"
    exact = None if is_seeded and not run.killed else tolerance
    if again:  # what was printed before it began again is printed twice
        odd = difference(_once_each(plain.end), _once_each(run.end), exact)
    else:
        odd = difference(plain.end, run.end, exact)
    if odd:
        return f"{DIFFERS} ({_short(odd)}{'; one world' if again else ''})"
    if again:
        return f"{ONE_WORLD} ({_short(again['why'])})"
    if run.unequal:
        return f"{DIFFERS} ({_short(run.unequal[0])})"
    if run.killed and (lacks := LACKS.search(run.output)):
        return f"{DIFFERS} (not carried: {lacks[1]})"
    if run.killed and run.joined != run.killed:
        lost = [x for x in run.killed if x not in run.joined]
        what = "worker" if "." in lost[0] else "replica"
        return f"{FAILS} ({what} {', '.join(lost)} was not back)"
    if run.killed and len(run.killed) < 2:
        return f"{FAILS} (ended before the second kill)"
    return SAME


def _once_each(end: dict[str, Any]) -> dict[str, Any]:
    """An end with each match once."""
    return {**end, "output": [sorted(set(found)) for found in end["output"]]}


def _reason(run: Run, again: re.Match[str] | None) -> str:
    """The last line that looks like an error, else the last one."""
    if again:
        return _short(again["why"])
    lines = [line for line in LABEL.sub("", run.output).splitlines() if line.strip()]
    errors = [x for x in lines if re.match(r"(\w+\.)*\w*(Error|Exception|Refused)\b", x)]
    told = [x for x in lines if x.startswith("ftrun: ") and "given up" in x]
    return _short((errors or told or lines or ["no output"])[-1])


def _short(text: str) -> str:
    text = re.sub(r"/\S*/", "", " ".join(text.split())).replace("|", "/")
    return text if len(text) <= WHY_MAX else text[: WHY_MAX - 1] + "…"


def check_verdict(exit_code: int, output: str) -> str:
    """What ``ftrun check`` said: ``ok``, or its reason."""
    lines = [x.removeprefix("ftrun check: ") for x in output.splitlines() if "ftrun check: " in x]
    if exit_code == 0 and any(line.startswith("ok") for line in lines):
        return "ok"
    bad = [x for x in lines if x.startswith(("FAILED: ", "not carried: ", "the "))]
    failed = [x for x in bad if x.startswith("FAILED")]
    failed = [x for x in lines if failed and x.startswith(NOT_GIVEN)] or failed
    return f"not ok ({_short((failed or bad or lines or ['no verdict'])[0])})"


IN_PLACE = ", in place"
"""Ends the family of a row that is tried with memory snapshots."""
HEAD = (
    "| script | family | commit | seeded | undisturbed | replicas 0 and 1 killed | `ftrun check` |",
    "|---|---|---|---|---|---|---|",
)


def line_of(result: Result, repository: str, commit: str, script: str, family: str) -> str:
    """A row of the printed table."""
    place = f"[{repository}](https://github.com/{repository}) `{script}`"
    wrong = " **(wrong)**" if result.is_wrong else ""
    cells = (
        *(
            f"{result.name}: {place}",
            family,
            f"`{commit[:8]}`",
            "yes" if result.is_seeded else "no",
        ),
        *(result.undisturbed or NOT_RUN, result.killed or NOT_RUN),
        (result.check or NOT_RUN) + wrong,
    )
    return f"| {' | '.join(cells)} |"


def totals(lines: Sequence[str]) -> str:
    """The sums over the rows of a printed table."""
    every = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    in_place = [row for row in every if row[1].endswith(IN_PLACE)]  # scripts of other rows
    cells = [row for row in every if row not in in_place]
    places = {re.search(r"\[([^]]+)\]", row[0])[1] for row in cells}  # type: ignore[index]
    killed = [row for row in cells if row[5] != NOT_RUN]
    return (
        f"{len(cells)} scripts from {len(places)} repositories. "
        f"Undisturbed the same: {_count(cells, 4, SAME)} of {len(cells)}; "
        f"run as one world, for the reason named: {_count(cells, 4, ONE_WORLD)}. "
        f"Killed twice and healed in full: {_count(killed, 5, SAME)} of {len(killed)}. "
        f"Of those that do not, in place: {_count(in_place, 5, SAME)} of {len(in_place)}. "
        f"Wrong verdicts of `ftrun check`: {sum('(wrong)' in row[6] for row in every)}. "
        f"Seeded, and so compared to the last bit: {_count(cells, 3, 'yes')}."
    )


def _count(cells: Sequence[Sequence[str]], column: int, word: str) -> int:
    return sum(row[column].startswith(word) for row in cells)


def as_json(run: Run) -> dict[str, Any]:
    """A run without its output, to be kept."""
    return {**asdict(run), "output": ""}
