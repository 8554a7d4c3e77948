"""Every message of the membership protocol, as immutable records.

Three parties: **lighthouse** (decides), **agent** (one per node, relays and supervises), **worker**
(one training process). A worker sends to its agent only; the agent relays messages for the
lighthouse unchanged. Classes and fields have the names of ``protocol/ftrun.proto``, so that the
codec needs no table.

Not here: the records of a quorum (quorum.py), each party's reaction to a message (worker/, agent/,
lighthouse/).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from ftrun.core.activity import Activity
from ftrun.core.ids import NO_ATTEMPT, Attempt, StateId, Tag, WorkerKey
from ftrun.core.quorum import Endpoint, Quorum
from ftrun.core.version import PROTOCOL_VERSION

USAGE_CODE = 2
"""The exit code of a script with wrong arguments, by custom and by argparse."""

# ---------------------------------------------------------------- records shared by messages


@dataclass(frozen=True, slots=True)
class Loss:
    """A lost replica, and the cause as text for people.

    ``killed``: it was asked to end and had to be killed, so it may not have saved everything.
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
    """Form or shrink: build ``quorum`` in the background; it is in force as soon as it is built."""

    quorum: Quorum


@dataclass(frozen=True, slots=True)
class Prepare:
    """Build ``quorum`` in the background while another is in force; swap only at a Switch."""

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
    """The switch under ``attempt`` is cancelled: drop its promise and its process group."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class AskReport:
    """Send a Report now, because a lighthouse or a link has come back."""


@dataclass(frozen=True, slots=True)
class RosterEntry:
    """One replica of a Roster, with its endpoints by group_rank.

    ``position``: that of its last Progress; "" before it has one.
    """

    replica_id: str
    incarnation: str
    endpoints: tuple[Endpoint, ...]
    position: str = ""


@dataclass(frozen=True, slots=True)
class Roster:
    """The answer to Present, in the order of the slots.

    ``has_begun``: the job has come to its first step, and ``entries`` are the members that train;
    else they are all replicas that are to take part. ``finished``: slots whose part is over.
    """

    has_begun: bool
    entries: tuple[RosterEntry, ...] = ()
    finished: tuple[str, ...] = ()


ToWorker: TypeAlias = (
    Interrupt | NewQuorum | Prepare | ProposeSwitch | Switch | Cancel | AskReport | Roster
)


# ---------------------------------------------------------------- worker → lighthouse


@dataclass(frozen=True, slots=True)
class SwitchPromise:
    """A worker begins ``step`` only under the prepared quorum. ``confirmed``: a Switch came."""

    step: int
    confirmed: bool = False


@dataclass(frozen=True, slots=True)
class PendingQuorum:
    """A quorum that a worker prepares, and the worker's promise about it, if any."""

    quorum: Quorum
    promise: SwitchPromise | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """All that the lighthouse must know of a worker: its first message, or the answer to Interrupt.

    ``state``: the state that it holds. ``interrupted``: the highest attempt that it has given up
    for good (by an Interrupt or an error of its own); NO_ATTEMPT if it never was in a quorum.
    ``in_force`` / ``pending``: the quorums it trains in and prepares, as whole records, so that a
    lighthouse without a journal can rebuild. ``reduced``: the tag under which all operations of its
    current step are complete (its results stand). ``voted``: the tag of a vote within the group
    whose outcome it does not know yet. ``local_step_index``: the step, counted from its start, that
    it works on or begins next. ``repairable``: under a next quorum it can go on with that step and
    lose nothing. ``torn``: a heal left ``state`` half written over, so it holds none.
    ``freezes_membership``: at its step the script lets nobody join. ``too_few``: it repeats its
    step because too few contributed, so every ready replica is needed.
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
    """The process group of ``attempt`` is built."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class BuildFailed:
    """The process group of ``attempt`` could not be built."""

    attempt: Attempt
    reason: str


@dataclass(frozen=True, slots=True)
class Promised:
    """``step`` will not begin under the old quorum until Switch, Cancel or Interrupt (Q5)."""

    attempt: Attempt
    step: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The worker cannot promise ``step``: it has begun ``current``, or does not know the attempt.

    ``later``: it promises by itself at its first boundary from ``step`` on at which its script lets
    members join. At each earlier boundary from ``step`` on it refuses again.
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
    """The worker has applied the state of ``step``. ``donors``: replica ids, shown to people."""

    attempt: Attempt
    step: int
    donors: tuple[str, ...]
    nbytes: int
    duration_s: float


class LeaveReason(Enum):
    """Why a worker leaves: its script has ended, it called ``leave``, or it was drained."""

    FINISHED = "finished"
    LEFT = "left"
    DRAINED = "drained"


@dataclass(frozen=True, slots=True)
class Leaving:
    """The worker leaves the job."""

    reason: LeaveReason


@dataclass(frozen=True, slots=True)
class HealProgress:
    """The part of a state that has arrived. ``total_bytes`` None: no donor has said it yet."""

    done_bytes: int
    total_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """A worker's progress. Status and restart budgets use it. No answer; the newest one counts.

    ``phase``: one of ``activity.Activity``. ``since_s``: the seconds since that phase began.
    ``pause``: the name of the announced pause that it is in. ``beats``: how often the script has
    called ``ftrun.heartbeat()``. ``position``: where its script stands, for people. ``steps``: how
    many steps this process has timed itself; ``usual_s`` and ``longest_s``: how long its last ones
    took (step_times.py). ``step_s`` and ``own_s``: the time of the very last ones, and the part of
    it in which it did not wait for others (core/worker/pace.py). ``heal``: the one under way.
    """

    step: int
    batches: int
    phase: Activity
    scalars: tuple[tuple[str, float], ...] = ()
    since_s: float = 0.0
    pause: str = ""
    beats: int = 0
    position: str = ""
    steps: int = 0
    usual_s: float = 0.0
    longest_s: float = 0.0
    step_s: float | None = None
    own_s: float | None = None
    heal: HealProgress | None = None


@dataclass(frozen=True, slots=True)
class Present:
    """The worker sets its script up and wants to know its peers; it has sent no Report yet.

    The lighthouse answers with a Roster: at once if a quorum trains, else when all replicas that
    are to take part are present.
    """

    endpoint: Endpoint


FromWorker: TypeAlias = (
    Report
    | Present
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
    """A worker's first frame to its agent: its identity, which must be that of a started worker."""

    key: WorkerKey
    pid: int
    token: str = field(repr=False, default="")


@dataclass(frozen=True, slots=True)
class Lease:
    """The worker may commit until ``until_s``, and not from then on (Q3).

    ``until_s``: on the monotonic clock, which the agent and its workers share. The agent sends each
    new lease ahead of time, because a stopped agent cannot send anything later. When a lease ends
    the agent sends it again, so that its workers notice at once and not at their next tick.
    """

    until_s: float


@dataclass(frozen=True, slots=True)
class LeaveNow:
    """The worker leaves at its next boundary by itself, because no lighthouse will agree on one.

    It gives up a step that waits for a quorum or for peers. ``in_quorum``: it leaves even if it is
    in a quorum. Otherwise it leaves only if it is in none, and so needs no agreement.
    """

    reason: LeaveReason
    in_quorum: bool


@dataclass(frozen=True, slots=True)
class FailureReport:
    """An uncaught exception of the script, sent before the worker exits.

    ``step``: the one that it was in, or that came next; None: the script had begun none. A verdict
    needs this, because the last Progress may be 0.1 s old. ``heals``: the step is its peers', whose
    state it did not hold yet.
    """

    error_type: str
    message: str
    traceback: str
    step: int | None = None
    heals: bool = False


@dataclass(frozen=True, slots=True)
class NoManager:
    """The script has made no Manager so far; sent at its first optimizer step, or at its end.

    ``has_stepped``: an optimizer has stepped, so it trains.
    """

    has_stepped: bool


@dataclass(frozen=True, slots=True)
class Beat:
    """The loop of a script without a Manager goes on; sent at most once a second.

    ``pause``: the name of a pause that begins now, of at most ``limit_s`` seconds; "": none.
    """

    pause: str = ""
    limit_s: float = 0.0


# ---------------------------------------------------------------- agent → lighthouse


@dataclass(frozen=True, slots=True)
class JobSpec:
    """The settings that all agents of a job must share; the first agent brings them.

    ``rebalance``: replicas may be moved to nodes that join late. ``hang_timeout_s``: how long a
    member's loop may stand still while the others wait for it; 0: for ever.
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
    hang_timeout_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RunningReplica:
    """A replica group that an agent runs.

    ``has_left``: it no longer trains, and its processes are about to end.
    """

    replica_id: str
    incarnation: str
    has_left: bool = False


@dataclass(frozen=True, slots=True)
class Hello:
    """An agent's first message on a stream; its workers' Reports follow as WorkerMessages.

    ``capacity``: how many replica groups fit on the node. ``dead``: incarnations that ended on this
    node, and whose end a lighthouse may not know. ``finished``: slots that ended well. ``epoch``:
    that of the lighthouse that last welcomed this agent; 0: none has. ``age_s``: the seconds since
    the agent started. ``version``: the protocol's; 0: the agent is older than this field.
    ``incidents``: the highest number of an incident that it was sent.
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
    incidents: int = 0


@dataclass(frozen=True, slots=True)
class WorkerMessage:
    """A worker's message to the lighthouse, relayed by its agent."""

    key: WorkerKey
    message: FromWorker


@dataclass(frozen=True, slots=True)
class ReplicaStarted:
    """The agent has started an incarnation of a slot; ``restarts`` counts the earlier ones.

    ``restarts_left``: of the slot's budget; None: the agent is older than this field.
    """

    replica_id: str
    incarnation: str
    restarts: int
    restarts_left: int | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class StartFailure:
    """A script's end before its first step, by the script's own fault.

    ``signature``: equal for equal failures. ``exit_code``: that of the first worker that failed.
    """

    signature: str
    exit_code: int
    words: str


@dataclass(frozen=True, slots=True)
class ReplicaLost:
    """An incarnation has ended badly (or is being killed); its processes cannot act any more.

    ``killed``: as in Loss. ``start_failure``: set if it had not reached its first step. ``kind``:
    of the failure (core/failure_kinds.py); "": it did not fail, its agent has stopped it.
    """

    replica_id: str
    incarnation: str
    cause: str
    killed: bool = False
    start_failure: StartFailure | None = None
    kind: str = ""


@dataclass(frozen=True, slots=True)
class FailedWorker:
    """One worker that ended badly by itself, with all that its agent knows of it.

    ``kind``: as in ReplicaLost. ``status``: the exit code, or minus the signal. ``age_s``: the time
    from its end until this was sent. ``memory``: what the kernel counts of its memory's end.
    ``output``: its last lines. ``stacks``: its Python stacks, taken before it was killed.
    """

    group_rank: int
    pid: int
    status: int
    kind: str
    cause: str
    age_s: float
    error_type: str = ""
    message: str = ""
    traceback: str = ""
    memory: str = ""
    output: str = ""
    stacks: str = ""


@dataclass(frozen=True, slots=True)
class FailureEvidence:
    """How an incarnation has failed, sent once all of its workers have ended.

    ``workers``: the first cause, and then those that ended by themselves before they were stopped.
    ``step``: the last one that it is known to have trained; ``has_step`` False: none is known.
    ``verdict``: what follows, one word of ``core/failure_kinds.py``; ``words``: the same for
    people. ``restart_in_s``: the wait until it is started again. ``incident``: the number of the
    record that a lighthouse has sent of it; 0: none has.
    """

    replica_id: str
    incarnation: str
    restarts: int
    workers: tuple[FailedWorker, ...]
    has_step: bool = False
    step: int = 0
    verdict: str = ""
    words: str = ""
    restart_in_s: float = 0.0
    incident: int = 0


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
class WorkerFacts:
    """What the agent measures of one worker's process; None: not known, or there is no such thing.

    ``device``: "cpu" or "cuda:3". ``cpu_share``: of one core. GPU figures are of the device, all
    processes together. ``age_s``: since this was measured.
    """

    key: WorkerKey
    pid: int
    device: str
    cpu_share: float | None = None
    rss_bytes: int | None = None
    gpu_memory_bytes: int | None = None
    gpu_memory_total_bytes: int | None = None
    gpu_share: float | None = None
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The agent is alive; ``progress`` lists only replicas whose step or phase has changed.

    ``quiet``: no HeartbeatAck is wanted (the rule is in core/agent/lease.py). ``workers``: what was
    measured since the last Heartbeat; mostly nothing. ``wants_glance``: the answer is to have one.
    """

    progress: tuple[ReplicaProgress, ...] = ()
    quiet: bool = False
    workers: tuple[WorkerFacts, ...] = ()
    wants_glance: bool = False


@dataclass(frozen=True, slots=True)
class AgentLeaving:
    """The agent received SIGTERM: its replicas leave at a boundary that all members agree on.

    Its slots then go to other agents, and it takes no new ones. ``running``: the replicas of which
    a process still lives. The agent's other slots are free at once.
    """

    reason: str
    running: tuple[RunningReplica, ...] = ()


@dataclass(frozen=True, slots=True)
class JobFailed:
    """The agent gives the job up, without asking: no other replica could go on.

    ``kind``: "script" if the exit code is that of the first cause; "": it is ftrun's own.
    """

    exit_code: int
    reason: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class ReplicaGivenUp:
    """The agent will not start this replica again. The job goes on without it, or ends.

    ``exit_code``, ``reason``, ``kind``: of the job, if it ends by this, as in ``JobFailed``.
    ``elsewhere``: another node may try it, because the cause may be this one's.
    """

    replica_id: str
    incarnation: str
    exit_code: int
    reason: str
    kind: str = ""
    elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class WorkerStacks:
    """The Python stacks of one worker, as ``AskStacks`` asks; "": it could not give any."""

    request: int
    key: WorkerKey
    text: str


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The agent ends in order; none of its processes run any more."""


FromAgent: TypeAlias = (
    Hello
    | WorkerMessage
    | ReplicaStarted
    | ReplicaLost
    | FailureEvidence
    | ReplicaFinished
    | Heartbeat
    | AgentLeaving
    | JobFailed
    | ReplicaGivenUp
    | WorkerStacks
    | Goodbye
)


# ---------------------------------------------------------------- lighthouse → agent


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
class RestartReplica:
    """Kill and restart this incarnation: it did not answer within its deadline."""

    replica_id: str
    incarnation: str
    reason: str


@dataclass(frozen=True, slots=True)
class StopReplica:
    """Ask this incarnation to leave; then the agent starts the slot again, or not.

    ``incarnation`` "": the one that there is; if none runs, a planned restart is due now or off.
    ``at_boundary``: it is in a quorum, and a switch follows; otherwise it leaves where it stands.
    """

    replica_id: str
    incarnation: str
    restart: bool
    at_boundary: bool = False


@dataclass(frozen=True, slots=True)
class KillWorkers:
    """Kill these workers of an incarnation now, as a failure."""

    replica_id: str
    incarnation: str
    group_ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AskStacks:
    """Answer with a ``WorkerStacks`` for each of these workers."""

    request: int
    keys: tuple[WorkerKey, ...]


@dataclass(frozen=True, slots=True)
class DrainAgent:
    """Leave with all that runs on the node, as at SIGTERM."""

    reason: str


@dataclass(frozen=True, slots=True)
class JobGlance:
    """The job in short, for the terminal of an agent. ``live``: replicas that train together.

    ``steps_per_s``: of the last half minute; None: no step yet.
    """

    step: int
    live: int
    lost_s: float
    steps_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatAck:
    """The answer to a Heartbeat that is not quiet: the lighthouse lives and knows this agent."""

    glance: JobGlance | None = None


@dataclass(frozen=True, slots=True)
class Notice:
    """One line for people: ``kind`` is formed, lost, joined, healed, switched, finished …

    ``replica_ids``: the replicas concerned; none if they are very many (core/lighthouse/outbox.py).
    """

    kind: str
    replica_ids: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class SlotAccount:
    """The seconds in which a slot could not train since the job's first quorum stood."""

    replica_id: str
    lost_s: float


@dataclass(frozen=True, slots=True)
class JobAccount:
    """What the job's time went to (docs/ACCOUNT.md): in replica-seconds, but for ``wall_s``.

    ``goodput``: None: no quorum has stood, or nothing counts. ``slots``: none of a job of very
    many.
    """

    wall_s: float
    lost_s: float
    goodput: float | None
    steps: int
    slots: tuple[SlotAccount, ...] = ()


@dataclass(frozen=True, slots=True)
class EndJob:
    """The job is over: stop all processes. ``exit_code`` 0: every member has finished.

    ``kind``: as in JobFailed. ``account``: until the end; None: the job never had any agent.
    """

    exit_code: int
    reason: str
    kind: str = ""
    account: JobAccount | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class IncidentRecord:
    """An incident as it stands now, for the agents' log directories; a later one replaces it.

    ``incarnations``: those of which it has the evidence. ``is_open``: it is not over, so another
    record follows. ``document``: the record in JSON (docs/INCIDENTS.md).
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
    | HeartbeatAck
    | Notice
    | EndJob
    | IncidentRecord
    | Rejected
)
