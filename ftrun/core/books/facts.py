"""The facts that the books receive: what happens, in order, and a slot's state after an event.

Plain records. Their sender waits for no answer, and no decision depends on the books. Not here:
when they are sent (lighthouse/telling.py), what the books do with them (books.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ftrun.core import messages as m
from ftrun.core.quorum import Quorum


class Fact:
    """An event, or a present state."""

    __slots__ = ()


class Stage(Enum):
    """The stage of the whole job. BROKEN: no quorum is in force; EMPTY: and none is left."""

    TAKEOVER = "takeover"
    EMPTY = "empty"
    BROKEN = "broken"
    STANDS = "stands"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class JobKnown(Fact):
    """The job and its slots are known.

    Agents of an earlier life return within ``back_within_s``.
    """

    job_id: str
    slots: tuple[str, ...]
    back_within_s: float


@dataclass(frozen=True, slots=True)
class AgentCame(Fact):
    """An agent has attached.

    ``age_s``: the time since it started; ``incidents``: the number of the last record it received.
    """

    age_s: float
    incidents: int


@dataclass(frozen=True, slots=True)
class ChangeBegan(Fact):
    """A change of membership begins; if one is under way, it has one more reason."""

    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class ChangeEnded(Fact):
    """The change has led to this quorum; or to none, for the reason ``words``."""

    quorum: Quorum | None
    words: str = ""


@dataclass(frozen=True, slots=True)
class Lost(Fact):
    """An agent reports a loss."""

    agent_id: str
    host: str
    lost: m.ReplicaLost


@dataclass(frozen=True, slots=True)
class GivenUp(Fact):
    """The lighthouse gives these replicas up, because they did not answer in time."""

    losses: tuple[m.Loss, ...]


@dataclass(frozen=True, slots=True)
class NodeLost(Fact):
    """An agent and all its replicas are out of reach."""

    agent_id: str
    host: str
    losses: tuple[m.Loss, ...]


@dataclass(frozen=True, slots=True)
class Failed(Fact):
    """The evidence of an incarnation's failure; its loss may be unknown to this lighthouse."""

    agent_id: str
    host: str
    evidence: m.FailureEvidence


@dataclass(frozen=True, slots=True)
class Started(Fact):
    """An incarnation runs in a slot; it is in no quorum yet."""

    replica_id: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class Healed(Fact):
    """A replica that came back has its peers' state."""

    replica_id: str
    healed: m.Healed


@dataclass(frozen=True, slots=True)
class Moved(Fact):
    """The slot goes to another node."""

    replica_id: str
    words: str


@dataclass(frozen=True, slots=True)
class WentOn(Fact):
    """The job continues without the slot's replica."""

    replica_id: str
    words: str


@dataclass(frozen=True, slots=True)
class StoodStill(Fact):
    """The replica's process, or its machine, was stopped for ``lasted_s``, until now."""

    replica_id: str
    lasted_s: float


@dataclass(frozen=True, slots=True)
class Stood(Fact):
    """The job's present stage. ``quorum``: in force or being built; in BROKEN the last one.

    ``step``: the highest that a member has reached. ``is_issued``: the quorum was sent, and is not
    built yet. ``words``: why the job has ended.
    """

    stage: Stage
    step: int
    quorum: Quorum | None
    is_issued: bool = False
    words: str = ""


@dataclass(frozen=True, slots=True)
class Seen(Fact):
    """The present state of a slot that has changed.

    ``is_first``: an agent is to start its first incarnation. ``incarnation``: the one that lives;
    "": none, and then the other fields mean nothing. ``is_known``: all its workers have reported.
    ``is_unhealed``: it joined the quorum to heal, and by its ``reports`` it has not. ``heals``,
    ``awaits_switch``, ``is_overtaken``: see lighthouse/replicas.py.
    """

    replica_id: str
    is_open: bool
    is_finished: bool
    is_drained: bool
    is_backing_off: bool
    is_first: bool = False
    incarnation: str = ""
    is_member: bool = False
    leaving: m.LeaveReason | None = None
    is_known: bool = False
    reports: tuple[m.Report, ...] = ()
    progress: m.Progress | None = None
    is_overtaken: bool = False
    heals: bool = False
    awaits_switch: bool = False
    is_unhealed: bool = False
