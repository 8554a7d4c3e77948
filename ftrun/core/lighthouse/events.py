"""The lighthouse's events, instructions, settings and journal record.

Not here: the decisions (machine.py, membership.py), how a journal is written (lighthouse/).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeAlias

from ftrun.core.books.records import SaveAccount, SaveIncident
from ftrun.core.ids import WorkerKey
from ftrun.core.lighthouse.slots import Absence
from ftrun.core.messages import EndJob, FromAgent, Hello, JobSpec, ToAgent
from ftrun.core.quorum import Member, Quorum

TAKEOVER_GRACE_MIN_S = 2.0
"""An agent whose call to a standby has just failed calls again within this time."""


@dataclass(frozen=True, slots=True)
class LighthouseSettings:
    """Every wait and every limit of the lighthouse that is not the job's own (``JobSpec``).

    ``attach_s``: within it a live agent attaches to a lighthouse that has been restarted: it tries
    at least every 2 s (protocol/rpc.py). ``attempts_max``: the limit of attempts in a row without a
    commit in between; then the replica that failed most often is replaced. ``switch_failures_max``:
    failures of a switch before the replicas that held it up are replaced. ``drain_gather_s``: nodes
    that are asked to leave within this time after another leave with it. ``switch_retry_max_s``:
    the longest pause between two tries of a switch. ``freeze_timeout_s``: how long a switch waits
    for a step at which the script lets members join, before it is begun again. ``http``: the
    lighthouse's address for people, as agents receive it. ``is_local``: it listens on the loopback
    interface by default, not by request, so it refuses a job on several nodes.
    """

    takeover_grace_s: float = 5.0
    rejoin_timeout_s: float = 5.0
    build_timeout_s: float = 10.0
    promise_timeout_s: float = 10.0
    freeze_timeout_s: float = 600.0
    assign_gather_s: float = 0.2
    reassign_grace_s: float = 5.0
    spare_grace_s: float = 0.5
    join_gather_s: float = 0.05
    finish_grace_s: float = 0.1
    drain_gather_s: float = 0.5
    probe_s: float = 0.5
    attach_s: float = 2.5
    switch_retry_max_s: float = 2.0
    attempts_max: int = 10
    refusals_max: int = 10
    switch_failures_max: int = 3
    margin_max: int = 64
    changes_max: int = 100
    story_lines_max: int = 64
    agents_max: int = 4096
    http: str = ""
    is_local: bool = False

    def after_watching(self, silent_s: float) -> LighthouseSettings:
        """The settings of a standby that saw the former lighthouse silent for ``silent_s``.

        The agents have held calls to it open meanwhile, so live ones attach at once.
        """
        grace_s = max(self.takeover_grace_s - silent_s, TAKEOVER_GRACE_MIN_S)
        return replace(self, takeover_grace_s=grace_s, attach_s=self.probe_s)


@dataclass(frozen=True, slots=True)
class JournaledOperation:
    """A request that survives the lighthouse: the fields of Request and Operation that must
    persist.
    """

    number: int
    command: str
    replica_id: str = ""
    group_rank: int | None = None
    node: str = ""
    request_id: str = ""
    incarnation: str = ""
    was_live: bool = False
    step: int | None = None
    has_ended: bool = False
    has_failed: bool = False
    text: str = ""
    is_held: bool = False


@dataclass(frozen=True, slots=True)
class JournalState:
    """The record that must survive the lighthouse: small, written as a whole, the newest counts.

    ``epoch``: the highest epoch that was ever used. ``quorum``: the last one issued, or the one
    whose switch was confirmed (then ``switch_step`` is its step). ``finished``: the slots whose
    part is over. ``spec``: None until there is a job. ``unaccounted``: members that were removed
    from a quorum and may still run with the job's state (departed.py). ``outcome``: how the job has
    ended, if it has. ``agents_seen``: the highest number of agents attached at once. ``withdrawn``:
    the slots that are not assigned, because people have drained them (operators.py), or because the
    job continues without their replicas; ``absent``: the latter, and those that have left early
    (giving_up.py). ``operations``: what people have requested, also what is done, so that it is not
    done twice.
    """

    epoch: int = 0
    quorum: Quorum | None = None
    switch_step: int | None = None
    spec: JobSpec | None = None
    finished: tuple[str, ...] = ()
    unaccounted: tuple[Member, ...] = ()
    outcome: EndJob | None = None
    agents_seen: int = 0
    withdrawn: tuple[str, ...] = ()
    absent: tuple[Absence, ...] = ()
    operations: tuple[JournaledOperation, ...] = ()


# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class AgentAttached:
    """An agent's stream is open. A former stream of the same agent is over."""

    agent_id: str
    hello: Hello


@dataclass(frozen=True, slots=True)
class AgentSent:
    """Messages arrived on the agent's stream: one, or several at once, in order."""

    agent_id: str
    messages: tuple[FromAgent, ...]


@dataclass(frozen=True, slots=True)
class AgentDetached:
    """The agent's stream is over."""

    agent_id: str


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The deadline has passed, or the lighthouse begins: check all deadlines."""


@dataclass(frozen=True, slots=True)
class Request:
    """A person's request. ``command``: drain, restart, kill or stack.

    ``replica_id``: "": all of them, or all of ``node``. ``group_rank`` None: all of its workers.
    ``request_id``: chosen by the caller; the same request with the same id is one operation.
    """

    command: str
    replica_id: str = ""
    group_rank: int | None = None
    node: str = ""
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class OperatorAsked:
    """A person has made a request. ``number``: assigned by the shell, never used before."""

    number: int
    request: Request


Event: TypeAlias = AgentAttached | AgentSent | AgentDetached | TimerFired | OperatorAsked

# ---------------------------------------------------------------- instructions


@dataclass(frozen=True, slots=True)
class SendToAgent:
    """Queue ``message`` on the agent's stream."""

    agent_id: str
    message: ToAgent


@dataclass(frozen=True, slots=True)
class Journal:
    """Put ``record`` on disk before anything that follows is carried out."""

    record: JournalState


@dataclass(frozen=True, slots=True)
class CloseAgent:
    """End the agent's stream after what is queued; it will not be reported as detached."""

    agent_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class OperationChanged:
    """The text of an operation has changed, or it has ended: its waiters look again."""

    number: int


@dataclass(frozen=True, slots=True)
class BeginAgain:
    """This life of the lighthouse is over: begin another at once, from the journal (agents.py)."""

    reason: str


Instruction: TypeAlias = (
    SendToAgent | Journal | CloseAgent | SaveIncident | SaveAccount | OperationChanged | BeginAgain
)


# ---------------------------------------------------------------- operations


@dataclass
class Operation:
    """A request and its progress. ``text``: for people, at each moment.

    ``refused``: the HTTP status of a request that was not carried out. ``incarnation``: the one
    that it is about; ``was_live``: that was a member. ``agents``: those that were asked to leave.
    ``step``: the step at which a replica leaves. ``wanted``: workers whose stacks have not arrived.
    ``is_resumed``: an earlier life of the lighthouse has begun it, and this one has not continued
    it yet. ``is_held``: it has not begun, because the agents are not back yet. ``is_owed``: its
    agent was out of reach when its order was due. ``restarts``: the number of restarts of its
    replica when a worker was killed, because the worker may be replaced inside the replica.
    """

    number: int
    request: Request
    text: str = ""
    has_ended: bool = False
    has_failed: bool = False
    refused: int = 0
    incarnation: str = ""
    was_live: bool = False
    agents: set[str] = field(default_factory=set)
    is_resumed: bool = False
    is_held: bool = False
    is_owed: bool = False
    restarts: int | None = None
    step: int | None = None
    wanted: set[WorkerKey] = field(default_factory=set)
    stacks: dict[WorkerKey, str] = field(default_factory=dict)
    deadline: float | None = None
