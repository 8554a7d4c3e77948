"""Messages of an agent to the lighthouse."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from ftrun.core.failure_kinds import HEAL
from ftrun.core.ids import OfIncarnation, WorkerKey
from ftrun.core.messages.from_worker import FromWorker, Progress
from ftrun.core.messages.loss import Loss
from ftrun.core.version import PROTOCOL_VERSION


@dataclass(frozen=True, slots=True)
class JobSpec:
    """The settings that all agents of a job must share; the first agent brings them.

    ``rebalance``: replicas may be moved to nodes that join late. ``hang_timeout_s``: how long a
    member's loop may stand still while the others wait for it; 0: without a limit.
    ``accepts_fewer``: the user has stated ``min_replicas``, so a job in which that number finishes
    has succeeded. ``spare_nodes``: how many nodes should stand by. ``on_corruption``: the reaction
    when replicas hold unlike parameters that were equal (core/failure_kinds.py).
    ``waits_for_mends``: a lost worker is replaced in its replica, and the replica is waited for
    like a newcomer meanwhile.
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
    accepts_fewer: bool = False
    spare_nodes: int = 0
    on_corruption: str = HEAL
    waits_for_mends: bool = False


@dataclass(frozen=True, slots=True)
class RunningReplica(OfIncarnation):
    """A replica group that an agent runs.

    ``has_left``: it no longer trains, and its processes are about to end.
    """

    has_left: bool = False


@dataclass(frozen=True, slots=True)
class KeptSlot:
    """A slot of an agent's, with or without a live replica; the counts are those of its restarts.

    Without one the agent is about to start it again. ``restarts_left``: in its budget.
    """

    replica_id: str
    restarts: int = 0
    restarts_left: int | None = None


@dataclass(frozen=True, slots=True)
class Hello:
    """An agent's first message on a stream; its workers' Reports follow as WorkerMessages.

    ``capacity``: how many replica groups fit on the node. ``dead``: incarnations that ended on this
    node; the lighthouse may not know their end. ``finished``: slots that ended well. ``epoch``: of
    the lighthouse that last welcomed this agent; 0: none has. ``age_s``: the seconds since the
    agent started. ``version``: the protocol's; 0: the agent is older than this field.
    ``incidents``: the highest number of an incident that it was sent. ``rank``: the agent's place
    among the job's, if it has one: the first gets the first slots. ``placed``: how many groups have
    their nodes, if groups are larger than a node; 0: not known. ``kept``: the slots in which it
    runs or is about to start a replica.
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
    rank: int | None = field(default=None, repr=False)
    placed: int = field(default=0, repr=False)
    kept: tuple[KeptSlot, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class WorkerMessage:
    """A worker's message to the lighthouse, relayed by its agent."""

    key: WorkerKey
    message: FromWorker


@dataclass(frozen=True, slots=True)
class ReplicaStarted(OfIncarnation):
    """The agent has started an incarnation of a slot; ``restarts`` counts the earlier ones.

    ``restarts_left``: in the slot's budget; None: the agent is older than this field. The message
    is sent again when a worker of the incarnation is being replaced (``mends``), and when all are
    connected again.
    """

    restarts: int
    restarts_left: int | None = field(default=None, repr=False, compare=False)
    mends: bool = False


@dataclass(frozen=True, slots=True)
class StartFailure:
    """A script's end before its first step, by the script's own fault.

    ``signature``: equal for equal failures. ``exit_code``: of the first worker that failed.
    """

    signature: str
    exit_code: int
    words: str


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception of the script's own code at ``step``, in a replica that held its peers' state.

    ``signature``: equal for equal exceptions with equal frames. ``words``: with the line.
    """

    signature: str
    step: int
    exit_code: int
    words: str

    def is_like(self, other: Raised) -> bool:
        """Whether it is the same exception, at the same step."""
        return (self.signature, self.step) == (other.signature, other.step)


@dataclass(frozen=True, slots=True)
class ReplicaLost(OfIncarnation):
    """An incarnation has ended badly (or is being killed); its processes cannot act any more.

    ``killed``: see Loss. ``start_failure``: set if it had not reached its first step. ``kind``: of
    the failure (core/failure_kinds.py); "": it did not fail, its agent has stopped it. ``raised``:
    the script's exception that ended it, at a later step. ``follows``: the incarnation as which
    evidence of a worker was sent that was replaced in vain, so that this loss follows from it.
    """

    cause: str
    killed: bool = False
    start_failure: StartFailure | None = None
    kind: str = ""
    raised: Raised | None = None
    follows: str = ""


@dataclass(frozen=True, slots=True)
class FailedWorker:
    """One worker that ended badly by itself, with all that its agent knows of it.

    ``kind``: see ReplicaLost. ``status``: the exit code, or minus the signal. ``age_s``: the time
    from its end until this was sent. ``memory``: the kernel's evidence that its memory ran out.
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
class FailureEvidence(OfIncarnation):
    """How an incarnation has failed, sent once all of its workers have ended.

    ``workers``: the first cause, and then those that ended by themselves before they were stopped.
    ``step``: the last one that it is known to have trained; ``has_step`` False: none is known.
    ``verdict``: the consequence, one word of ``core/failure_kinds.py``; ``words``: the same for
    people. ``restart_in_s``: the wait until it is started again. ``incident``: the number of the
    record that a lighthouse has sent about it; 0: none. If a worker was replaced inside its group,
    and this is over: ``steps_again``: the number of repeated steps; ``stood_s``: how long all
    waited for it.
    """

    restarts: int
    workers: tuple[FailedWorker, ...]
    has_step: bool = False
    step: int = 0
    verdict: str = ""
    words: str = ""
    restart_in_s: float = 0.0
    incident: int = 0
    steps_again: int = 0
    stood_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ReplicaFinished(OfIncarnation):
    """All workers of the slot have ended with exit code 0.

    ``idle``: no incarnation of the slot on this node was ever in a quorum. ``unjoined``: it was
    started again, and this incarnation has not joined its peers. ``early``: the step at which it
    has left while its peers train. If any of these is set, an agent repeats the message to a new
    lighthouse.
    """

    idle: bool = False
    unjoined: bool = False
    early: int | None = None


@dataclass(frozen=True, slots=True)
class ReplicaProgress(OfIncarnation):
    """One line of a heartbeat: the newest Progress of group_rank 0."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """The agent's measurements of one worker's process; None: not known, or not present.

    ``device``: "cpu" or "cuda:3". ``cpu_share``: of one core. GPU figures are the device's, all
    processes together. ``age_s``: since the measurement. ``node``: where it runs; "": on the
    agent's.
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
    node: str = ""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The agent is alive; ``progress`` lists only replicas whose step or phase has changed.

    ``quiet``: do not send a HeartbeatAck (the rule is in core/agent/lease.py). ``workers``: what
    was measured since the last Heartbeat; mostly nothing. ``wants_glance``: the answer should have
    one.
    """

    progress: tuple[ReplicaProgress, ...] = ()
    quiet: bool = False
    workers: tuple[WorkerFacts, ...] = ()
    wants_glance: bool = False


@dataclass(frozen=True, slots=True)
class AgentLeaving:
    """The agent received SIGTERM: its replicas leave at a boundary that all members agree on.

    Its slots then go to other agents, and it takes no new ones. ``running``: the replicas that
    still have a process. The agent's other slots are free at once.
    """

    reason: str
    running: tuple[RunningReplica, ...] = ()


@dataclass(frozen=True, slots=True)
class JobFailed:
    """The agent gives the job up without asking, because no other replica could continue.

    ``kind``: "script" if the exit code is the first cause's own; "": it is ftrun's.
    """

    exit_code: int
    reason: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class ReplicaGivenUp(OfIncarnation):
    """The agent will not start this replica again. The job continues without it, or ends.

    ``exit_code``, ``reason``, ``kind``: of the job, if it ends for this reason, as in
    ``JobFailed``. ``elsewhere``: another node may try it, because this node may be the cause.
    ``has_trained``: it has committed a step on this node.
    """

    exit_code: int
    reason: str
    kind: str = ""
    elsewhere: bool = False
    has_trained: bool = False


@dataclass(frozen=True, slots=True)
class WorkerStacks:
    """The Python stacks of one worker, the answer to ``AskStacks``; "": there are none."""

    request: int
    key: WorkerKey
    text: str


@dataclass(frozen=True, slots=True)
class PeersSilent:
    """Hosts that acknowledge nothing sent from this node; empty: all do again."""

    hosts: tuple[str, ...] = ()


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
    | PeersSilent
    | Goodbye
)
