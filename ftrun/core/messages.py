"""Every message of the membership protocol, as immutable records.

Three parties: **lighthouse** (decides), **agent** (one per node, relays and supervises), **worker**
(one training process). Workers speak to their agent only; what is for the lighthouse is relayed as
it is. The class names are the message names of ``protocol/ftrun.proto`` and the field names are
the same, so that the codec needs no table.

Not here: what a quorum is made of (quorum.py), what each party does on receipt (worker/, agent/,
lighthouse/).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from ftrun.core.ids import NO_ATTEMPT, Attempt, StateId, Tag, WorkerKey
from ftrun.core.quorum import Endpoint, Quorum
from ftrun.core.version import PROTOCOL_VERSION

USAGE_CODE = 2
"""The exit code of a script that was called wrongly, by custom and by argparse."""

# ---------------------------------------------------------------- records shared by messages


@dataclass(frozen=True, slots=True)
class Loss:
    """A replica that is out, and why, in words for people.

    ``killed``: it had been asked to end, and had to be killed: it may not have saved all.
    """

    replica_id: str
    incarnation: str
    cause: str
    killed: bool = False


# ---------------------------------------------------------------- lighthouse → worker


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Abort everything up to and including ``attempt``; answer with a Report."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class NewQuorum:
    """Form or shrink: build ``quorum`` in the background; in force here as soon as it is built."""

    quorum: Quorum


@dataclass(frozen=True, slots=True)
class Prepare:
    """Build ``quorum`` in the background beside the one in force; swap at a Switch only."""

    quorum: Quorum


@dataclass(frozen=True, slots=True)
class ProposeSwitch:
    """Promise not to begin ``step`` under the old quorum, or refuse."""

    attempt: Attempt
    step: int


@dataclass(frozen=True, slots=True)
class Switch:
    """Confirmed: at the boundary of ``step`` the prepared quorum comes into force."""

    attempt: Attempt
    step: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """The switch under ``attempt`` is off; the promise is void; throw away what was built."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class AskReport:
    """Send a Report now (a lighthouse or a link has come back)."""


ToWorker: TypeAlias = Interrupt | NewQuorum | Prepare | ProposeSwitch | Switch | Cancel | AskReport


# ---------------------------------------------------------------- worker → lighthouse


@dataclass(frozen=True, slots=True)
class SwitchPromise:
    """A worker begins ``step`` under the prepared quorum or never. ``confirmed``: a Switch came."""

    step: int
    confirmed: bool = False


@dataclass(frozen=True, slots=True)
class PendingQuorum:
    """A quorum that a worker prepares, and what it has promised about it, if anything."""

    quorum: Quorum
    promise: SwitchPromise | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """All that the lighthouse must know of a worker: its first word, its answer to an Interrupt.

    ``state``: what it holds. ``interrupted``: the highest attempt that it has given up for good (by
    an Interrupt or an error of its own); NO_ATTEMPT for one that never was in a quorum.
    ``in_force`` / ``pending``: the quorums it trains in and prepares, records included, so that a
    lighthouse without a journal can rebuild. ``reduced``: the tag under which all operations of its
    current step are complete (its results stand); ``voted``: the tag of a vote within the group
    whose outcome it does not know yet. ``local_step_index``: which step, counted from its start, it
    works on or would begin next; ``repairable``: with a next quorum it can go on with that step and
    lose nothing. ``torn``: a heal broke off, and ``state`` is half written over: it holds none.
    ``freezes_membership``: at its step the script lets nobody join; ``too_few``: too few
    contributed to its step, which it repeats, so that whoever is ready is needed.
    """

    state: StateId
    endpoint: Endpoint
    interrupted: Attempt = NO_ATTEMPT
    in_force: Quorum | None = None
    pending: PendingQuorum | None = None
    reduced: Tag | None = None
    voted: Tag | None = None
    healing: bool = False
    local_step_index: int = 0
    repairable: bool = False
    torn: bool = False
    freezes_membership: bool = False
    too_few: bool = False

    def quorums(self) -> list[Quorum]:
        """The quorums that the worker trains in or prepares."""
        pending = self.pending.quorum if self.pending is not None else None
        return [quorum for quorum in (self.in_force, pending) if quorum is not None]


@dataclass(frozen=True, slots=True)
class Built:
    """The process group of ``attempt`` stands."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class BuildFailed:
    """The process group of ``attempt`` could not be built."""

    attempt: Attempt
    reason: str


@dataclass(frozen=True, slots=True)
class Promised:
    """Will not begin ``step`` under the old quorum until Switch, Cancel or Interrupt (Q5)."""

    attempt: Attempt
    step: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Cannot promise ``step``: has begun ``current`` already (or does not know the attempt).

    ``later``: it will promise by itself, at its first boundary from ``step`` on at which its script
    lets members join; said again at each one before at which it does not.
    """

    attempt: Attempt
    step: int
    current: int
    later: bool = False


@dataclass(frozen=True, slots=True)
class InForce:
    """The worker's main thread trains under ``attempt`` from ``step`` on."""

    attempt: Attempt
    step: int


@dataclass(frozen=True, slots=True)
class Errored:
    """A reduction, vote or heal under ``attempt`` failed here; the worker has given it up."""

    attempt: Attempt
    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class Healed:
    """The state of ``step`` was applied. ``donors``: replica ids; for events and status."""

    attempt: Attempt
    step: int
    donors: tuple[str, ...]
    nbytes: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class Leaving:
    """The worker goes: ``reason`` is "finished" (script ended), "left" or "drained"."""

    reason: str


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a worker is: for status and restart budgets. No answer; the last one wins.

    ``phase``: one of ``activity.Activity``; ``since_s``: how long it has been in it.
    """

    step: int
    batches: int
    phase: str
    scalars: tuple[tuple[str, float], ...] = ()
    since_s: float = 0.0


FromWorker: TypeAlias = (
    Report
    | Built
    | BuildFailed
    | Promised
    | Refused
    | InForce
    | Errored
    | Healed
    | Leaving
    | Progress
)


# ---------------------------------------------------------------- agent ↔ worker, not relayed


@dataclass(frozen=True, slots=True)
class WorkerHello:
    """A worker's first frame to its agent: who it is (checked against what was started)."""

    key: WorkerKey
    pid: int
    token: str = field(repr=False, default="")


@dataclass(frozen=True, slots=True)
class Lease:
    """The worker may commit until ``until_s``, and not from then on (Q3).

    ``until_s``: on the monotonic clock, which the agent and its workers share. The agent sends each
    new lease ahead of time, because a stopped agent cannot send anything later. When a lease ends
    it sends the same one again, so that its workers notice at once and not at their next tick.
    """

    until_s: float


@dataclass(frozen=True, slots=True)
class LeaveNow:
    """The worker shall leave at its next boundary by itself: no lighthouse will agree on one.

    A step that waits for a quorum, or for peers, is given up for it. ``in_quorum``: it leaves also
    while a quorum stands; else only if it is in none, and so has nobody to agree with.
    """

    reason: str
    in_quorum: bool


@dataclass(frozen=True, slots=True)
class FailureReport:
    """An uncaught exception of the script, sent before the worker exits."""

    error_type: str
    message: str
    traceback: str


@dataclass(frozen=True, slots=True)
class NoManager:
    """The script has made no Manager so far; sent at its first optimizer step, or at its end.

    ``has_stepped``: an optimizer has stepped, so it trains.
    """

    has_stepped: bool


# ---------------------------------------------------------------- agent → lighthouse


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What all agents of a job must agree on; the first one brings it.

    ``rebalance``: replicas may be moved to nodes that come late.
    """

    job_id: str
    replicas: int
    workers_per_replica: int
    min_replicas: int
    join_timeout_s: float
    heartbeat_timeout_s: float
    isolation_limit_s: float
    nodes: int = 1
    rebalance: bool = True


@dataclass(frozen=True, slots=True)
class RunningReplica:
    """A replica group that an agent runs.

    ``has_left``: it trains no more, and its processes are about to end.
    """

    replica_id: str
    incarnation: str
    has_left: bool = False


@dataclass(frozen=True, slots=True)
class Hello:
    """An agent's first message on a stream; its workers' Reports follow as WorkerMessages.

    ``capacity``: how many replica groups fit on the node. ``dead``: incarnations whose end this
    agent saw and cannot be sure that a lighthouse knows. ``finished``: slots that ended well.
    ``epoch``: of the lighthouse that has welcomed it last; 0: none has. ``age_s``: how long ago the
    agent was started. ``version``: of this protocol; 0: from before it had one.
    """

    agent_id: str
    spec: JobSpec
    capacity: int
    host: str
    store: str
    running: tuple[RunningReplica, ...] = ()
    dead: tuple[Loss, ...] = ()
    finished: tuple[str, ...] = ()
    epoch: int = 0
    age_s: float = 0.0
    version: int = PROTOCOL_VERSION


@dataclass(frozen=True, slots=True)
class WorkerMessage:
    """What a worker says to the lighthouse, relayed."""

    key: WorkerKey
    message: FromWorker


@dataclass(frozen=True, slots=True)
class ReplicaStarted:
    """The agent has started an incarnation of a slot; ``restarts`` counts those before it."""

    replica_id: str
    incarnation: str
    restarts: int


@dataclass(frozen=True, slots=True)
class StartFailure:
    """A script's end before its first step that the script itself is to blame for.

    ``signature``: equal for equal failures. ``exit_code``: that of the first worker that failed.
    """

    signature: str
    exit_code: int
    words: str


@dataclass(frozen=True, slots=True)
class ReplicaLost:
    """An incarnation has ended badly (or is being killed); its processes cannot act any more.

    ``killed``: as in Loss. ``start_failure``: set if it had not come to its first step.
    """

    replica_id: str
    incarnation: str
    cause: str
    killed: bool = False
    start_failure: StartFailure | None = None


@dataclass(frozen=True, slots=True)
class ReplicaFinished:
    """All workers of the slot have ended with exit code 0."""

    replica_id: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class ReplicaProgress:
    """One line of a heartbeat: the newest Progress of group_rank 0."""

    replica_id: str
    incarnation: str
    progress: Progress


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The agent lives; ``progress`` only of replicas whose step or phase has changed.

    ``quiet``: no HeartbeatAck is wanted (core/agent/lease.py says when one is).
    """

    progress: tuple[ReplicaProgress, ...] = ()
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class AgentLeaving:
    """SIGTERM to the agent: what it runs leaves at a boundary that all agree on.

    Its slots are for others then, and it takes none itself. ``running``: the replicas of which a
    process still lives; those that are not listed are free at once.
    """

    reason: str
    running: tuple[RunningReplica, ...] = ()


@dataclass(frozen=True, slots=True)
class JobFailed:
    """The agent gives the job up: restart budget spent or a crash loop."""

    exit_code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The agent ends in order; nothing of it runs any more."""


FromAgent: TypeAlias = (
    Hello
    | WorkerMessage
    | ReplicaStarted
    | ReplicaLost
    | ReplicaFinished
    | Heartbeat
    | AgentLeaving
    | JobFailed
    | Goodbye
)


# ---------------------------------------------------------------- lighthouse → agent


@dataclass(frozen=True, slots=True)
class Welcome:
    """The stream is accepted. ``epoch``: of this lighthouse's life.

    ``http``: ``host:port`` where it answers people, as it is bound; empty: nowhere.
    """

    epoch: int
    http: str = ""
    version: int = PROTOCOL_VERSION


@dataclass(frozen=True, slots=True)
class AssignSlots:
    """The slots this agent shall run, all of them; it stops what is not in the list."""

    replica_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ToWorkers:
    """``message`` for every worker of these incarnations that this agent runs."""

    targets: tuple[RunningReplica, ...]
    message: ToWorker


@dataclass(frozen=True, slots=True)
class RestartReplica:
    """Kill and restart this incarnation: it did not answer within its deadline."""

    replica_id: str
    incarnation: str
    reason: str


@dataclass(frozen=True, slots=True)
class HeartbeatAck:
    """The answer to a Heartbeat that is not quiet: the lighthouse lives and knows this agent."""


@dataclass(frozen=True, slots=True)
class Notice:
    """One line for people: ``kind`` is formed, lost, joined, healed, switched, finished …

    ``replica_ids``: whom it is about; none if these are very many (core/lighthouse/outbox.py).
    """

    kind: str
    replica_ids: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class EndJob:
    """The job is over: stop what still runs. ``exit_code`` 0: every member has finished."""

    exit_code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """The Hello is refused for good (another job, another spec, same agent twice)."""

    reason: str


ToAgent: TypeAlias = (
    Welcome | AssignSlots | ToWorkers | RestartReplica | HeartbeatAck | Notice | EndJob | Rejected
)
