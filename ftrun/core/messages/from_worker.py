"""Messages of a worker to the lighthouse; its agent relays them unchanged."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from ftrun.core.activity import Activity
from ftrun.core.ids import NO_ATTEMPT, Attempt, StateId, Tag
from ftrun.core.quorum import Endpoint, Quorum


@dataclass(frozen=True, slots=True)
class SwitchPromise:
    """A worker begins ``step`` only under the prepared quorum.

    ``confirmed``: a Switch has arrived.
    """

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
    current step are complete (its results stand). ``under``: the tag under which it would commit
    that step, if its part of it can stand in a next quorum of the same members: it has results of
    its first ``done`` operations, and its script has received the first ``handed`` of these.
    ``voted``: the tag of a vote within the group whose outcome it does not know yet.
    ``local_step_index``: the step, counted from its start, that it works on or begins next.
    ``repairable``: under a next quorum it can continue that step and lose nothing. ``torn``: a heal
    left ``state`` half overwritten, so it holds no state. ``freezes_membership``: at its step the
    script permits no join. ``too_few``: it repeats its step because too few contributed, so every
    ready replica is needed. ``contributors_min``: its script commits no step with fewer
    (``min_replica_size``); 0: not reported. ``refused``: why no attempt can carry out an operation
    of the attempt that it gave up last; "": none was refused. ``refused_tries``: its failed tries
    of the step after ``state`` for such a reason, its own or a peer's.
    """

    state: StateId
    endpoint: Endpoint
    interrupted: Attempt = NO_ATTEMPT
    in_force: Quorum | None = None
    pending: PendingQuorum | None = None
    reduced: Tag | None = None
    under: Tag | None = None
    handed: int = 0
    done: int = 0
    voted: Tag | None = None
    healing: bool = False
    local_step_index: int = 0
    repairable: bool = False
    torn: bool = False
    freezes_membership: bool = False
    too_few: bool = False
    contributors_min: int = 0
    refused: str = ""
    refused_tries: int = 0

    @property
    def is_in_quorum(self) -> bool:
        """Whether the worker is in a quorum, or prepares one, that it has not given up."""
        return any(quorum.attempt > self.interrupted for quorum in self.quorums())

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
    """The process group of ``attempt`` could not be built.

    ``unreached``: the host of a store or a peer to which no connection could be made; "": none.
    """

    attempt: Attempt
    reason: str
    unreached: str = ""


@dataclass(frozen=True, slots=True)
class Promised:
    """``step`` will not begin under the old quorum until Switch, Cancel or Interrupt (Q5)."""

    attempt: Attempt
    step: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The worker cannot promise ``step``: it has begun ``current``, or does not know the attempt.

    ``later``: it promises by itself at its first boundary at ``step`` or later at which its script
    lets members join. At each earlier boundary from ``step`` on it refuses again.
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
    """A reduction, vote or heal under ``attempt`` failed here; the worker has given it up.

    ``own``: by its own decision (a vote against, an operation that was refused): no connection and
    no member has failed, so none is to blame.
    """

    attempt: Attempt
    step: int
    reason: str
    own: bool = False


@dataclass(frozen=True, slots=True)
class Healed:
    """The worker has applied the state of ``step``. ``donors``: replica ids, shown to people."""

    attempt: Attempt
    step: int
    donors: tuple[str, ...]
    nbytes: int
    duration_s: float


class LeaveReason(Enum):
    """Why a worker leaves: its script has ended, it called ``leave``, or it was drained.

    EARLY: its script has ended, and its peers train on from the state that it holds.
    """

    FINISHED = "finished"
    EARLY = "early"
    LEFT = "left"
    DRAINED = "drained"


@dataclass(frozen=True, slots=True)
class Leaving:
    """The worker leaves the job. ``step``: the step at which its script has ended early."""

    reason: LeaveReason
    step: int | None = None


@dataclass(frozen=True, slots=True)
class HealProgress:
    """The part of a state that has arrived. ``total_bytes`` None: no donor has sent it yet."""

    done_bytes: int
    total_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """The facts that are equal on all replicas with one state: ``step`` and ``lineage`` name it.

    ``settings``: of the optimizers, for people too. ``parameters``: their digest; "": not computed
    at this step. ``position``: the place in the script. ``is_late``: at the script's end the digest
    was taken late, so the script may have changed the parameters since that step.
    """

    step: int
    lineage: str
    settings: str
    parameters: str = ""
    position: str = ""
    is_late: bool = False


@dataclass(frozen=True, slots=True)
class Resumption:
    """Where all would resume after a loss: ``step``, whose state is ``age_s`` old; 0: the start."""

    step: int
    age_s: float


@dataclass(frozen=True, slots=True)
class Progress:
    """A worker's progress. Status and restart budgets use it. No answer; the newest one counts.

    ``phase``: one of ``activity.Activity``. ``since_s``: the seconds since that phase began.
    ``pause``: the name of the announced pause that it is in. ``beats``: the number of the script's
    calls of ``ftrun.heartbeat()``. ``position``: the place in its script, for people. ``steps``:
    the number of steps that this process has timed itself; ``usual_s`` and ``longest_s``: the times
    of its last ones (step_times.py). ``step_s`` and ``own_s``: the time of the very last ones, and
    the part of it in which it did not wait for others (core/worker/pace.py). ``heal``: the one
    under way. ``marks``: of its last steps, for comparison (core/worker/marks.py), oldest step
    first. ``worker_lost``, ``node_lost``, ``job_lost``: what a loss of one would cost now; None:
    not reported. ``empty``: how many of the committed steps were none of the script's, because
    only that a replica joins has made them (inject/zero_edit/inside.py).
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
    marks: tuple[Mark, ...] = ()
    worker_lost: Resumption | None = None
    node_lost: Resumption | None = None
    job_lost: Resumption | None = None
    empty: int = 0


@dataclass(frozen=True, slots=True)
class Present:
    """The worker sets its script up and asks for its peers; it has sent no Report yet.

    The lighthouse answers with a Roster: at once if a quorum trains, else when all replicas that
    are to take part are present.

    ``part``: the slots that this worker's last Roster named, if no replica trained then. So a
    restarted lighthouse knows which slots take part in the set-up. ``together``: its process groups
    span all replicas, so that all restart if one of them ends before the first step. ``ended``: its
    script has ended, and these were its parameters after the last step.
    """

    endpoint: Endpoint
    part: tuple[str, ...] = ()
    together: bool = False
    ended: Mark | None = None


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
