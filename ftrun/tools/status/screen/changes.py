"""The timeline of membership changes, and the incidents, as tables; the newest is first.

Pure. Not here: the whole record of an incident (pages.py asks the lighthouse), how it is painted
(widgets.py).
"""

from __future__ import annotations

from collections.abc import Callable

from rich.text import Text

from ftrun.base.words import age, duration, plain, ranges
from ftrun.core.books.history import ChangeStatus
from ftrun.core.lighthouse.status import IncidentStatus, Status
from ftrun.tools.status.screen.layout import Column
from ftrun.tools.status.screen.pieces import BAD, CARE, DIM, TEXT, line

REST = 500
"""The last column takes all remaining width."""


def changes(status: Status) -> list[tuple[str, ChangeStatus]]:
    """The changes, newest first, with keys that are stable between polls."""
    found, seen = [], dict[str, int]()
    for change in status["history"]:
        name = f"{change['quorum']}:{change['kind']}:{change['step']}"
        seen[name] = seen.get(name, 0) + 1
        found.append((f"change:{name}:{seen[name]}", change))
    return found[::-1]


def incidents(status: Status) -> list[tuple[str, IncidentStatus]]:
    """The incidents, newest first."""
    return [(f"incident:{x['number']}", x) for x in status["incidents"]][::-1]


def cost(seconds: float) -> Text:
    """Replica-seconds; a dash for none."""
    return line(duration(seconds)) if seconds >= 0.0005 else line(("-", DIM))


def _kind(change: ChangeStatus) -> Text:
    if change["under_way"]:
        return line((plain(change["kind"]), CARE))
    return line(plain(change["kind"]))


def _took(change: ChangeStatus) -> Text:
    length = duration(change["duration_s"])
    return line((f"{length} …", CARE)) if change["under_way"] else line(length)


def _members(change: ChangeStatus) -> Text:
    return line((plain(ranges(change["members"])) or "-", DIM))


def _change_step(change: ChangeStatus) -> Text:
    step = change["step"]
    return line(("-", DIM)) if step is None else line((f"{step:,}", DIM))


def _who(incident: IncidentStatus) -> Text:
    role = BAD if incident["is_open"] else TEXT
    return line((plain(ranges(incident["replicas"])) or "-", role))


def _incident_cost(incident: IncidentStatus) -> Text:
    steps = incident["cost_steps"]
    if not steps:
        return cost(incident["cost_s"])
    return line((f"{steps} step{'s' * (steps != 1)} ", CARE), cost(incident["cost_s"]))


def _verdict(incident: IncidentStatus) -> Text:
    if incident["is_open"]:
        return line(("under way", CARE))
    return line((plain(incident["verdict"]) or "-", DIM))


CHANGES: tuple[Column[Callable[[ChangeStatus], Text]], ...] = (
    Column("ago", 6, 0, lambda x: line((age(x["ago_s"]), DIM)), right=True),
    Column("change", 6, 0, _kind, most=10),
    Column("took", 7, 1, _took, right=True, most=14),
    Column("cost", 7, 2, lambda x: cost(x["cost_s"]), right=True, most=12),
    Column("step", 6, 3, _change_step, right=True, most=11),
    Column("members", 7, 5, _members, most=14),
    Column("cause", 16, 4, lambda x: line(plain(x["reason"]) or "-"), most=REST),
)
INCIDENTS: tuple[Column[Callable[[IncidentStatus], Text]], ...] = (
    Column("ago", 6, 0, lambda x: line((age(x["ago_s"]), DIM)), right=True),
    Column("no", 3, 4, lambda x: line((str(x["number"]), DIM)), right=True, most=6),
    Column("replica", 7, 0, _who, most=12),
    Column("cost", 7, 2, _incident_cost, right=True, most=18),
    Column("verdict", 9, 5, _verdict, most=14),
    Column("node", 6, 6, lambda x: line((plain(x["host"]) or "-", DIM)), most=16),
    Column("first cause", 16, 3, lambda x: line(plain(x["words"]) or "-"), most=REST),
)
