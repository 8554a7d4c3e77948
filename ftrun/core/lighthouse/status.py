"""The types of the status that ``/status`` serves and ``ftrun status --json`` prints.

Each field stands here once: the OpenAPI document is derived from these types, and the table, the
metrics and ``ftrun chaos`` read them. ``*_s`` are seconds. Not here: the values (snapshot.py fills
``MembershipStatus``, lighthouse/status.py the rest).
"""

from __future__ import annotations

from typing import TypedDict


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
    """The job as requested; ``job_id`` is empty before the first agent attaches."""

    job_id: str
    replicas: int
    workers_per_replica: int
    min_replicas: int
    nodes: int


class QuorumStatus(TypedDict):
    """The quorum in force. ``live``: the members that are not lost."""

    quorum_id: int
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


class ReplicaStatus(TypedDict):
    """One slot of the job. ``scalars``: what the script logged; None is NaN or infinite.

    ``last_event``: the last notice that names the replica. ``restart_in_s``: until it is started
    again, in the phase "backoff". ``pause``: the name of the pause that the script has announced,
    with its seconds so far.
    """

    replica_id: str
    phase: str
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


class ChangeStatus(TypedDict):
    """One change of membership. ``duration_s`` of one ``under_way``: until now."""

    kind: str
    reason: str
    quorum: str
    members: list[str]
    step: int | None
    ago_s: float
    duration_s: float
    under_way: bool


class OutcomeStatus(TypedDict):
    """How the job ended."""

    exit_code: int
    reason: str


class MembershipStatus(TypedDict):
    """The part of a status that the core knows."""

    phase: str
    phase_age_s: float
    job: JobStatus
    epoch: int
    step: int
    quorum: QuorumStatus | None
    replicas: list[ReplicaStatus]
    restarts: int
    waiting_for: list[str]
    waiting: WaitStatus | None
    agents: list[AgentStatus]
    history: list[ChangeStatus]
    outcome: OutcomeStatus | None


class Status(MembershipStatus):
    """The whole status. ``messages_received``: how many of each kind, since the start."""

    lighthouse: LighthouseStatus
    events: list[NoticeStatus]
    messages_received: dict[str, int]


class StackStatus(TypedDict):
    """The Python stacks of one worker; empty: it gave none."""

    replica_id: str
    group_rank: int
    text: str


class OperationStatus(TypedDict):
    """A request of a person and what has become of it. ``state``: under way, done or failed."""

    operation: int
    command: str
    state: str
    text: str
    stacks: list[StackStatus]
