"""Messages of the lighthouse to an agent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from ftrun.core.ids import OfIncarnation, StateId, WorkerKey
from ftrun.core.messages.from_agent import RunningReplica
from ftrun.core.messages.to_worker import ToWorker
from ftrun.core.version import PROTOCOL_VERSION


@dataclass(frozen=True, slots=True)
class Welcome:
    """The stream is accepted. ``epoch``: this lighthouse's.

    ``http``: the ``host:port`` of its HTTP server, as it is bound; empty: it has none.
    """

    epoch: int
    http: str = ""
    version: int = PROTOCOL_VERSION


@dataclass(frozen=True, slots=True)
class AssignSlots:
    """All slots that this agent must run; it stops replicas of other slots."""

    replica_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ToWorkers:
    """``message`` for every worker of these incarnations that this agent runs."""

    targets: tuple[RunningReplica, ...]
    message: ToWorker


@dataclass(frozen=True, slots=True)
class RestartReplica(OfIncarnation):
    """Kill and restart this incarnation: it did not answer within its deadline."""

    reason: str


@dataclass(frozen=True, slots=True)
class StopReplica(OfIncarnation):
    """Ask this incarnation to leave; then the agent starts the slot again, or not.

    ``incarnation`` "": the present one; if none runs, a planned restart is due now or cancelled.
    ``at_boundary``: it is in a quorum, and a switch follows; otherwise it leaves at once.
    """

    restart: bool
    at_boundary: bool = False


@dataclass(frozen=True, slots=True)
class KillWorkers(OfIncarnation):
    """Kill these workers of an incarnation now, as a failure."""

    group_ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AskStacks:
    """Answer with a ``WorkerStacks`` for each of these workers."""

    request: int
    keys: tuple[WorkerKey, ...]


@dataclass(frozen=True, slots=True)
class DrainAgent:
    """Leave with all replicas of the node, as at SIGTERM."""

    reason: str


@dataclass(frozen=True, slots=True)
class AskHeartbeat:
    """Send a heartbeat now: an agent seems out of reach, and answers of the others prove that the
    lighthouse is not.
    """


@dataclass(frozen=True, slots=True)
class JobGlance:
    """A summary of the job for an agent's terminal. ``live``: replicas that train together.

    ``steps_per_s``: of the last half minute; None: no step yet.
    """

    step: int
    live: int
    lost_s: float
    steps_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatAck:
    """The answer to a Heartbeat that is not quiet: the lighthouse lives and knows this agent.

    ``agreed``: the last state at which all members have shown the same parameters.
    """

    glance: JobGlance | None = None
    agreed: StateId | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Notice:
    """One line for people: ``kind`` is formed, lost, joined, healed, switched, finished …

    ``replica_ids``: the replicas concerned; none if they are very many (core/lighthouse/outbox.py).
    ``elsewhere``: another agent shows it; this one does if they do not share a terminal.
    """

    kind: str
    replica_ids: tuple[str, ...]
    text: str
    elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class SlotAccount:
    """The seconds in which a slot could not train since the job's first quorum was in force."""

    replica_id: str
    lost_s: float


@dataclass(frozen=True, slots=True)
class JobAccount:
    """The uses of the job's time (docs/ACCOUNT.md): in replica-seconds, except for ``wall_s``.

    ``goodput``: None: there was no quorum, or nothing counts. ``slots``: empty in a job of very
    many. ``steps_lost``: committed by replicas that died with them, or to be trained again.
    """

    wall_s: float
    lost_s: float
    goodput: float | None
    steps: int
    slots: tuple[SlotAccount, ...] = ()
    steps_lost: int = 0


@dataclass(frozen=True, slots=True)
class EndJob:
    """The job is over: stop all processes. ``exit_code`` 0: every member has finished.

    ``kind``: see JobFailed. ``account``: until the end; None: the job never had any agent.
    """

    exit_code: int
    reason: str
    kind: str = ""
    account: JobAccount | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class IncidentRecord:
    """An incident's present state, for the agents' log directories; a later one replaces it.

    ``incarnations``: those whose evidence it has. ``is_open``: it is not over, so another record
    follows. ``document``: the record in JSON (docs/INCIDENTS.md).
    """

    number: int
    incarnations: tuple[str, ...]
    is_open: bool
    document: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """The Hello is refused for good (another job, another spec, same agent twice)."""

    reason: str


ToAgent: TypeAlias = (
    Welcome
    | AssignSlots
    | ToWorkers
    | RestartReplica
    | StopReplica
    | KillWorkers
    | AskStacks
    | DrainAgent
    | AskHeartbeat
    | HeartbeatAck
    | Notice
    | EndJob
    | IncidentRecord
    | Rejected
)
