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
    member's loop may stand still while the others wait for it; 0: for ever. ``accepts_fewer``: the
    user has stated ``min_replicas``, so a job that ends with as many has done what was asked for.
    ``spare_nodes``: how many nodes are to stand by. ``on_corruption``: what follows when replicas
    hold unlike parameters that were equal (core/failure_kinds.py). ``waits_for_mends``: a lost
    worker is replaced in its replica, which is waited for like a newcomer meanwhile.
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
class Hello:
    """An agent's first message on a stream; its workers' Reports follow as WorkerMessages.

    ``capacity``: how many replica groups fit on the node. ``dead``: incarnations that ended on this
    node, and whose end a lighthouse may not know. ``finished``: slots that ended well. ``epoch``:
    that of the lighthouse that last welcomed this agent; 0: none has. ``age_s``: the seconds since
    the agent started. ``version``: the protocol's; 0: the agent is older than this field.
    ``incidents``: the highest number of an incident that it was sent. ``rank``: the agent's place
    among the job's, if it has one: the first gets the first slots. ``placed``: how many groups have
    their nodes, where they are larger than a node; 0: not known.
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


@dataclass(frozen=True, slots=True)
class WorkerMessage:
    """A worker's message to the lighthouse, relayed by its agent."""

    key: WorkerKey
    message: FromWorker


@dataclass(frozen=True, slots=True)
class ReplicaStarted(OfIncarnation):
    """The agent has started an incarnation of a slot; ``restarts`` counts the earlier ones.

    ``restarts_left``: of the slot's budget; None: the agent is older than this field. It is sent
    again when a worker is to be replaced in it (``mends``), and when all are connected again.
    """

    restarts: int
    restarts_left: int | None = field(default=None, repr=False, compare=False)
    mends: bool = False


@dataclass(frozen=True, slots=True)
class StartFailure:
    """A script's end before its first step, by the script's own fault.

    ``signature``: equal for equal failures. ``exit_code``: that of the first worker that failed.
    """

    signature: str
    exit_code: int
    words: str


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception of the script's own, at ``step``, of a replica that held its peers' state.

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

    ``killed``: as in Loss. ``start_failure``: set if it had not reached its first step. ``kind``:
    of the failure (core/failure_kinds.py); "": it did not fail, its agent has stopped it.
    ``raised``: the script's exception that ended it, at a later step. ``follows``: it is over
    because a worker's replacement did not help, whose evidence was sent as this incarnation's.
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
class FailureEvidence(OfIncarnation):
    """How an incarnation has failed, sent once all of its workers have ended.

    ``workers``: the first cause, and then those that ended by themselves before they were stopped.
    ``step``: the last one that it is known to have trained; ``has_step`` False: none is known.
    ``verdict``: the consequence, one word of ``core/failure_kinds.py``; ``words``: the same for
    people. ``restart_in_s``: the wait until it is started again. ``incident``: the number of the
    record that a lighthouse has sent of it; 0: none has. Of a worker that was replaced inside its
    group, which is over: ``steps_again``, and ``stood_s``: so long all have stood still for it.
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

    ``idle``: nothing that has run in the slot on this node was ever in a quorum. ``unjoined``: it
    was started again, and this incarnation has not joined its peers. ``early``: the step at which
    it has left, and its peers train on. If any of these is set, an agent repeats it to a new
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
    """The agent's measurements of one worker's process; None: not known, or there is no such thing.

    ``device``: "cpu" or "cuda:3". ``cpu_share``: of one core. GPU figures are of the device, all
    processes together. ``age_s``: since this was measured. ``node``: on which it runs; "": the
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
class ReplicaGivenUp(OfIncarnation):
    """The agent will not start this replica again. The job goes on without it, or ends.

    ``exit_code``, ``reason``, ``kind``: of the job, if it ends by this, as in ``JobFailed``.
    ``elsewhere``: another node may try it, because the cause may be this one's. ``has_trained``: it
    has committed a step on that node.
    """

    exit_code: int
    reason: str
    kind: str = ""
    elsewhere: bool = False
    has_trained: bool = False


@dataclass(frozen=True, slots=True)
class WorkerStacks:
    """The Python stacks of one worker, as ``AskStacks`` asks; "": it could not give any."""

    request: int
    key: WorkerKey
    text: str


@dataclass(frozen=True, slots=True)
class PeersSilent:
    """Hosts that acknowledge nothing that is sent to them from this node; none: all do again."""

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
