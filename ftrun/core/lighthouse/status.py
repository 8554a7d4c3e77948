"""The types of the status that ``/status`` serves and ``ftrun status --json`` prints.

Each field is defined here once: the OpenAPI document is derived from these types, and the table,
the metrics and ``ftrun chaos`` read them. ``*_s`` are seconds. Not here: the values (snapshot.py
fills ``MembershipStatus``, lighthouse/status.py the rest).
"""

from __future__ import annotations

from typing import TypedDict

from ftrun.core.books.history import ChangeStatus
from ftrun.core.torchft_quorum.status import TorchftStatus


class LighthouseStatus(TypedDict):
    """The lighthouse's process and its journal."""

    version: str
    pid: int
    uptime_s: float
    agents_attached: int
    journal_writes: int
    journal_write_s: float
    epoch: int


class JobStatus(TypedDict):
    """The job's settings; ``job_id`` is empty before the first agent attaches.

    ``spare_nodes``: the number of nodes that should stand by; those that do are the attached agents
    without slots. ``uptime_s``: since the account began, with the time in which no lighthouse
    lived.
    """

    job_id: str
    uptime_s: float
    replicas: int
    workers_per_replica: int
    min_replicas: int
    nodes: int
    spare_nodes: int


class QuorumStatus(TypedDict):
    """The quorum in force.

    ``live``: the members that are not lost. ``age_s``: since it was installed.
    """

    quorum_id: int
    age_s: float
    name: str
    attempt: int
    step: int | None
    members: list[str]
    live: list[str]
    newcomers: list[str]
    donors: list[str]


class NoticeStatus(TypedDict):
    """One notice that was sent to the agents. ``time``: in UTC, in ISO 8601."""

    kind: str
    replicas: list[str]
    text: str
    time: str
    ago_s: float


class WorkerStatus(TypedDict):
    """One worker's process, as its agent measures it; None: not known, or the machine lacks it.

    ``device``: "cpu" or for example "cuda:0". ``cpu_share``: 1.0 is one core in full. The GPU's
    figures are of the device, all processes together. ``age_s``: since the measurement. ``node``:
    the node's name, if it is not that of the replica's agent.
    """

    group_rank: int
    pid: int
    node: str
    device: str
    cpu_share: float | None
    rss_bytes: int | None
    gpu_memory_bytes: int | None
    gpu_memory_total_bytes: int | None
    gpu_share: float | None
    age_s: float


class HealStatus(TypedDict):
    """The heal that is under way. ``total_bytes`` None: the donor has not sent it yet."""

    done_bytes: int
    total_bytes: int | None


class ReplicaStatus(TypedDict):
    """One slot of the job. ``scalars``: what the script logged; None is NaN or infinite.

    ``use``: what its time is booked as (uses.py: Use), for ``use_s`` seconds so far; ``seconds`` by
    use since the job began, without uses that have none. ``step_s``: the median time of its last
    steps; ``own_s``: the part of it in which the replica did not wait for its peers.
    ``last_event``: the last notice that names the replica. ``restart_in_s``: until it is started
    again, in the phase "backoff". ``restarts_left``: of its budget, when it was started last; None:
    not known. ``is_hung``: it stands still while it should not, and is about to be replaced.
    ``pause``: the name of the pause that the script has announced, with its seconds so far.
    """

    replica_id: str
    phase: str
    use: str
    use_s: float
    seconds: dict[str, float]
    host: str | None
    step_s: float | None
    own_s: float | None
    heal: HealStatus | None
    restarts_left: int | None
    is_hung: bool
    workers: list[WorkerStatus]
    incarnation: str | None
    agent_id: str | None
    restarts: int
    restart_in_s: float | None
    step: int | None
    batches: int | None
    worker_phase: str | None
    pause: str | None
    pause_s: float | None
    scalars: dict[str, float | None]
    last_event: NoticeStatus | None


WaitStatus = TypedDict(
    "WaitStatus",
    {"for": str, "whom": list[str], "since_s": float, "at_most_s": float | None},
)
"""What the job waits for. ``at_most_s`` None: the wait has no limit."""


class AgentStatus(TypedDict):
    """One agent. ``silent_s``: since its last message."""

    agent_id: str
    host: str
    capacity: int
    attached: bool
    silent_s: float
    slots: list[str]


class BandsStatus(TypedDict):
    """The account over time, in bands of ``width_s`` seconds, oldest first.

    The last band is not full yet and ends now. The width doubles when there are too many bands.
    ``seconds`` by use: the replica-seconds of each band. ``steps``: committed in each band.
    """

    width_s: float
    last_s: float
    seconds: dict[str, list[float]]
    steps: list[int]


class AccountStatus(TypedDict):
    """The use of the time of all replicas since the job began (docs/ACCOUNT.md).

    ``total_s`` is the sum of ``seconds`` over all uses, and equals ``wall_s`` times the replicas.
    ``goodput``: the share of training in all that counts; None: there was no quorum yet.
    ``lost_s``: the seconds in which replicas could not train. ``steps``: committed since the job
    began.
    """

    wall_s: float
    total_s: float
    seconds: dict[str, float]
    goodput: float | None
    lost_s: float
    steps: int
    bands: BandsStatus


class RateStatus(TypedDict):
    """Steps per second, of the last half minute and of the run; None: no step yet."""

    now: float | None
    run: float | None


class IncidentStatus(TypedDict):
    """One failure in short; ``/incidents`` has the whole record.

    ``words``: its first cause in one line. ``cost_s``: in replica-seconds.
    """

    number: int
    ago_s: float
    is_open: bool
    replicas: list[str]
    host: str
    kind: str
    words: str
    step: int
    verdict: str
    cost_steps: int
    cost_s: float


class LossStatus(TypedDict):
    """The cost of a loss, if it happened now.

    All resume ``from_step`` (0: from the start, or from a checkpoint of the script's own), so
    ``steps`` are repeated, the work of ``seconds``.
    """

    from_step: int
    steps: int
    seconds: float


class RecoveryStatus(TypedDict):
    """The cost of a loss of a worker, of a node and of the whole job."""

    worker: LossStatus
    node: LossStatus
    job: LossStatus


class OutcomeStatus(TypedDict):
    """How the job ended."""

    exit_code: int
    reason: str


class MembershipStatus(TypedDict):
    """The part of a status that the core knows.

    ``scalars``: the scalars of the first live member that has any. ``incidents``: the last ones.
    ``recovery``: of a job with memory snapshots, or of replicas on one node with ``--snapshot``;
    else None.
    """

    phase: str
    phase_age_s: float
    job: JobStatus
    epoch: int
    step: int
    quorum: QuorumStatus | None
    replicas: list[ReplicaStatus]
    restarts: int
    account: AccountStatus
    rate: RateStatus
    scalars: dict[str, float | None]
    incidents: list[IncidentStatus]
    recovery: RecoveryStatus | None
    waiting_for: list[str]
    waiting: WaitStatus | None
    agents: list[AgentStatus]
    history: list[ChangeStatus]
    outcome: OutcomeStatus | None


SCHEMA = "ftrun.status/1"
"""The version of the status: fields may be added; a change of meaning raises the number."""


class Status(MembershipStatus):
    """The whole status. ``messages_received``: the number of each kind, since the start.

    ``idle_nodes``: the nodes in no replica group, where groups are larger than a node. ``schema``:
    ``SCHEMA``. ``torchft``: None: no port for torchft's own clients is open.
    """

    schema: str
    lighthouse: LighthouseStatus
    idle_nodes: list[str]
    events: list[NoticeStatus]
    messages_received: dict[str, int]
    torchft: TorchftStatus | None


class StackStatus(TypedDict):
    """The Python stacks of one worker; empty: it did not send any."""

    replica_id: str
    group_rank: int
    text: str


class OperationStatus(TypedDict):
    """A request of a person and its progress. ``state``: under way, done or failed.

    ``request_id``: the caller's.
    """

    operation: int
    request_id: str
    command: str
    state: str
    text: str
    stacks: list[StackStatus]
