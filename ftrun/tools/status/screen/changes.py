"""The timeline of membership changes, and the incidents, as tables; the newest is first.

Pure. Not here: the whole record of an incident (pages.py asks the lighthouse), painting (sheet.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ftrun.core.books.history import ChangeStatus
from ftrun.core.lighthouse.status import IncidentStatus, Status
from ftrun.tools.status.screen.pieces import BAD, CARE, DIM, TEXT, Line, line
from ftrun.tools.status.words import age, duration, plain, ranges

REST = 500
"""The last column takes all that is left."""


@dataclass(frozen=True, slots=True)
class ChangeColumn:
    """A column of the timeline."""

    title: str
    cells: int
    rank: int
    cell: Callable[[ChangeStatus], Line]
    right: bool = False
    most: int = 0
    short: str = ""
    eager: bool = False
    is_core: bool = True


@dataclass(frozen=True, slots=True)
class IncidentColumn:
    """A column of the incidents."""

    title: str
    cells: int
    rank: int
    cell: Callable[[IncidentStatus], Line]
    right: bool = False
    most: int = 0
    short: str = ""
    eager: bool = False
    is_core: bool = True


def changes(status: Status) -> list[tuple[str, ChangeStatus]]:
    """The changes with keys that stay the same from poll to poll, newest first."""
    found, seen = [], dict[str, int]()
    for change in status["history"]:
        name = f"{change['quorum']}:{change['kind']}:{change['step']}"
        seen[name] = seen.get(name, 0) + 1
        found.append((f"change:{name}:{seen[name]}", change))
    return found[::-1]


def incidents(status: Status) -> list[tuple[str, IncidentStatus]]:
    """The incidents, newest first."""
    return [(f"incident:{x['number']}", x) for x in status["incidents"]][::-1]


def cost(seconds: float) -> Line:
    """Replica-seconds; a dash for none."""
    return line(duration(seconds)) if seconds >= 0.0005 else line(("-", DIM))


def _kind(change: ChangeStatus) -> Line:
    if change["under_way"]:
        return line((plain(change["kind"]), CARE))
    return line(plain(change["kind"]))


def _took(change: ChangeStatus) -> Line:
    length = duration(change["duration_s"])
    return line((f"{length} …", CARE)) if change["under_way"] else line(length)


def _members(change: ChangeStatus) -> Line:
    return line((plain(ranges(change["members"])) or "-", DIM))


def _change_step(change: ChangeStatus) -> Line:
    step = change["step"]
    return line(("-", DIM)) if step is None else line((f"{step:,}", DIM))


def _who(incident: IncidentStatus) -> Line:
    role = BAD if incident["is_open"] else TEXT
    return line((plain(ranges(incident["replicas"])) or "-", role))


def _incident_cost(incident: IncidentStatus) -> Line:
    steps = incident["cost_steps"]
    if not steps:
        return cost(incident["cost_s"])
    return line((f"{steps} step{'s' * (steps != 1)} ", CARE), *cost(incident["cost_s"]))


def _verdict(incident: IncidentStatus) -> Line:
    if incident["is_open"]:
        return line(("under way", CARE))
    return line((plain(incident["verdict"]) or "-", DIM))


CHANGES = (
    ChangeColumn("ago", 6, 0, lambda x: line((age(x["ago_s"]), DIM)), right=True),
    ChangeColumn("change", 6, 0, _kind, most=10),
    ChangeColumn("took", 7, 1, _took, right=True, most=14),
    ChangeColumn("cost", 7, 2, lambda x: cost(x["cost_s"]), right=True, most=12),
    ChangeColumn("step", 6, 3, _change_step, right=True, most=11),
    ChangeColumn("members", 7, 5, _members, most=14),
    ChangeColumn("cause", 16, 4, lambda x: line(plain(x["reason"]) or "-"), most=REST),
)
INCIDENTS = (
    IncidentColumn("ago", 6, 0, lambda x: line((age(x["ago_s"]), DIM)), right=True),
    IncidentColumn("no", 3, 4, lambda x: line((str(x["number"]), DIM)), right=True, most=6),
    IncidentColumn("replica", 7, 0, _who, most=12),
    IncidentColumn("cost", 7, 2, _incident_cost, right=True, most=18),
    IncidentColumn("verdict", 9, 5, _verdict, most=14),
    IncidentColumn("node", 6, 6, lambda x: line((plain(x["host"]) or "-", DIM)), most=16),
    IncidentColumn("first cause", 16, 3, lambda x: line(plain(x["words"]) or "-"), most=REST),
)
