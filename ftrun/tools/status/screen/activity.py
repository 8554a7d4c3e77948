"""A replica's activity in one word, and its urgency.

Pure. Not here: how a replica's time is booked (core/lighthouse), how it is painted (columns.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from ftrun.base.words import age, amount, plain
from ftrun.core.lighthouse.status import HealStatus, ReplicaStatus, WaitStatus
from ftrun.tools.status.screen.pieces import BAD, CARE, DIM, GOOD, NOTE

HUNG, ABSENT, GIVEN_UP, STOPPED, BACKOFF, NO_QUORUM, HEALING, REPAIRING, STARTING, WAITING = (
    "hung", "absent", "given up", "stopped", "backoff", "no quorum", "healing", "repairing",
    "starting", "waiting",
)  # fmt: skip
PAUSED, OUTSIDE, DRAINING, TRAINING, RUNNING, DRAINED, FINISHED = (
    "paused", "outside", "draining", "training", "running", "drained", "finished",
)  # fmt: skip

ORDER = (
    HUNG, ABSENT, GIVEN_UP, STOPPED, BACKOFF, NO_QUORUM, HEALING, REPAIRING, STARTING, WAITING,
    PAUSED, OUTSIDE, DRAINING, TRAINING, RUNNING, DRAINED, FINISHED,
)  # fmt: skip
"""The most urgent first: the order of the groups when replicas are folded by state."""

SICK = frozenset(
    {HUNG, ABSENT, GIVEN_UP, STOPPED, BACKOFF, NO_QUORUM, HEALING, REPAIRING, STARTING}
)
"""Groups of these activities are open from the start."""

_LOOKS = {
    HUNG: ("✖", BAD), ABSENT: ("✖", BAD), GIVEN_UP: ("✖", BAD), STOPPED: ("✖", BAD),
    BACKOFF: ("○", BAD), NO_QUORUM: ("○", CARE), HEALING: ("◐", CARE), REPAIRING: ("◐", CARE),
    STARTING: ("◌", CARE), WAITING: ("◌", NOTE), PAUSED: ("‖", NOTE), OUTSIDE: ("‖", NOTE),
    DRAINING: ("◌", NOTE), TRAINING: ("●", GOOD), RUNNING: ("●", NOTE), DRAINED: ("·", DIM),
    FINISHED: ("·", DIM),
}  # fmt: skip
_BY_USE = {
    "training": TRAINING, "outside": OUTSIDE, "waiting": WAITING, "repairing": REPAIRING,
    "healing": HEALING, "starting": STARTING, "backoff": BACKOFF, "no quorum": NO_QUORUM,
    "stopped": STOPPED, "absent": ABSENT, "drained": DRAINED, "finished": FINISHED,
    "running": RUNNING,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Activity:
    """A replica's activity. ``name``: one of ORDER, or a use that this screen does not know.

    ``words``: the name with its facts. ``age``: its duration. ``mark`` and ``role`` show the same
    as the name, at a glance.
    """

    name: str
    words: str
    age: str
    mark: str
    role: str


def name_of(replica: ReplicaStatus) -> str:
    """The activity in one word."""
    if replica["is_hung"]:
        return HUNG
    if replica["restart_in_s"] is not None:
        return BACKOFF
    if replica["pause"] is not None:
        return PAUSED
    if replica["heal"] is not None:
        return HEALING
    if replica["phase"] in (DRAINING, GIVEN_UP):
        return replica["phase"]
    return _BY_USE.get(replica["use"], plain(replica["use"]))


def activity(replica: ReplicaStatus, wait: WaitStatus | None = None) -> Activity:
    """A replica's activity. ``wait``: what the job waits for, which may be this replica."""
    name = name_of(replica)
    mark, role = look(name)
    words, since = name, age(replica["use_s"])
    if name == BACKOFF:
        words, since = f"restarts in {replica['restart_in_s'] or 0:.0f} s", ""
    elif name == PAUSED:
        words = f"paused: {plain(replica['pause'] or '')}"
        since = age(replica["pause_s"]) if replica["pause_s"] is not None else since
    elif name == HEALING and replica["heal"] is not None:
        words = f"healing {heal_words(replica['heal'])}"
    elif name == HUNG:
        is_waited_for = wait is not None and replica["replica_id"] in wait["whom"]
        since = age(wait["since_s"]) if wait is not None and is_waited_for else ""
    return Activity(name, words, since, mark, role)


def look(name: str) -> tuple[str, str]:
    """Mark and role of a name."""
    return _LOOKS.get(name, ("·", DIM))


def heal_words(heal: HealStatus) -> str:
    """``30 % of 4.1 GB``, or only the bytes done, if the total is not known yet."""
    done, total = heal["done_bytes"], heal["total_bytes"]
    if not total:
        return amount(done)
    return f"{min(100, done * 100 // total)} % of {amount(total)}"
