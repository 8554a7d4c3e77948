"""The replicas that live, as far as the lighthouse knows: one incarnation per slot (Q4, Q8).

Not here: which of them are in the quorum (membership.py), whose slot it is (slots.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ftrun.core.activity import Activity
from ftrun.core.ids import NO_ATTEMPT, Attempt, StateId, replica_order
from ftrun.core.lighthouse.choice import group_state
from ftrun.core.messages import LeaveReason, Progress, Report, RunningReplica, WorkerFacts
from ftrun.core.quorum import Endpoint, Member

BEFORE_A_QUORUM = frozenset({Activity.STARTING, Activity.QUORUM})


@dataclass(slots=True)
class Replica:
    """One living incarnation and the newest report of each of its workers.

    ``reports`` by group_rank; ``present``: the endpoints of workers that have sent Present.
    ``leaving``: why it leaves, once its workers have reported that. ``left``: the group_ranks that
    have. ``has_ended``: its processes are gone, with exit code 0. ``was_interrupted``: it was sent
    an Interrupt for the quorum that it reported when it came. ``state_at_join``: its state when it
    joined the quorum as one that must heal. ``target``: its address in messages to its agent.
    ``paused_at``: since when it is in an announced pause. ``heals``: it has joined a quorum whose
    state it does not hold yet. ``awaits_switch``: it is to join by a switch that is not complete.
    ``is_overtaken``: since its last Progress it has healed, or has joined a quorum that is in
    force. ``has_healed``: it joined a job that trained. ``joined_at``: when it joined its first
    quorum; 0.0: before this lighthouse began. ``waits_since``: since when it waits in a collective
    of the script. ``is_anew``: its script has shut a Manager down and made this one. ``mends``: a
    worker of it is being replaced. ``begun``: the last attempt whose first step its main thread has
    begun. ``facts``: what its agent has measured of each worker, by group_rank, with the time of
    the measurement.
    """

    replica_id: str
    incarnation: str
    agent_id: str
    store: str
    reports: dict[int, Report] = field(default_factory=dict)
    present: dict[int, Endpoint] = field(default_factory=dict)
    leaving: LeaveReason | None = None
    left: set[int] = field(default_factory=set)
    has_ended: bool = False
    was_interrupted: bool = False
    progress: Progress | None = None
    paused_at: float | None = None
    begun: Attempt = NO_ATTEMPT
    state_at_join: StateId | None = None
    heals: bool = False
    awaits_switch: bool = False
    is_overtaken: bool = False
    has_healed: bool = False
    joined_at: float = 0.0
    waits_since: float | None = None
    is_anew: bool = False
    mends: bool = False
    facts: dict[int, tuple[float, WorkerFacts]] = field(default_factory=dict)
    target: RunningReplica = field(init=False)
    _member: Member | None = field(init=False, default=None, repr=False)

    def __post_init__(self) -> None:
        self.target = RunningReplica(self.replica_id, self.incarnation)

    def member(self, workers_per_replica: int) -> Member:
        """Its entry in a quorum; it must be known in full."""
        ranks = range(workers_per_replica)
        endpoints: tuple[Endpoint, ...] = tuple([self.reports[rank].endpoint for rank in ranks])
        if self._member is None or self._member.endpoints != endpoints:
            self._member = Member(self.replica_id, self.incarnation, endpoints, self.store)
        return self._member

    def is_known(self, workers_per_replica: int) -> bool:
        return len(self.reports) == workers_per_replica

    def joins(self, must_heal: bool, now: float, by_switch: bool = False) -> None:
        """It becomes a member of a quorum. ``must_heal``: it does not hold the quorum's state."""
        self.state_at_join = group_state(self.reports.values()) if must_heal else None
        self.heals, self.awaits_switch, self.is_overtaken = must_heal, by_switch, True
        self.joined_at = self.joined_at or now

    def note_in_force(self) -> None:
        """The switch is complete: a wait for a quorum, by its last Progress, is over."""
        self.awaits_switch = False
        if self.progress is None or self.progress.phase in BEFORE_A_QUORUM:
            self.is_overtaken = True

    def has_not_healed(self) -> bool:
        """Whether it must heal and has not yet: its state is not of its quorum's history (Q3)."""
        reports = self.reports.values()
        if any(report.healing for report in reports):
            return True
        return self.state_at_join is not None and group_state(reports) == self.state_at_join

    def is_in_quorum(self) -> bool:
        """Whether some worker trains in a quorum, or prepares one, that it has not given up."""
        return any(report.is_in_quorum for report in self.reports.values())


class Replicas(dict[str, Replica]):
    """The living replicas by slot.

    ``ready``: those that are not in the quorum, are known in full and can join one. ``changed``:
    the state's set; slots that got or lost an incarnation are added to it.
    """

    def __init__(self, changed: set[str]) -> None:
        super().__init__()
        self.ready: set[str] = set()
        self.changed = changed

    def find(self, replica_id: str, incarnation: str) -> Replica | None:
        """This very incarnation, if it lives."""
        replica = self.get(replica_id)
        return replica if replica is not None and replica.incarnation == incarnation else None

    def add(self, replica: Replica) -> None:
        """A new incarnation; the slot must be free."""
        assert replica.replica_id not in self, "Q4: two incarnations in one slot"
        self[replica.replica_id] = replica
        self.changed.add(replica.replica_id)

    def remove(self, replica_id: str) -> None:
        """This replica has ended, or may have."""
        del self[replica_id]
        self.changed.add(replica_id)
        self.ready.discard(replica_id)

    def of_agent(self, agent_id: str) -> list[Replica]:
        mine = (r for r in self.values() if r.agent_id == agent_id)
        return sorted(mine, key=lambda r: replica_order(r.replica_id))

    def members(self, replica_ids: Iterable[str], workers_per_replica: int) -> tuple[Member, ...]:
        in_order = sorted(replica_ids, key=replica_order)
        return tuple(self[r].member(workers_per_replica) for r in in_order)
