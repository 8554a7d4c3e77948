"""The events that one worker's machine takes, and the instructions that it returns.

Messages of the lighthouse (``messages.ToWorker``) and of the agent (``Lease``,
``LeaveNow``) are events too. Not here: the transitions (machine.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ftrun.core import messages as m
from ftrun.core.activity import Activity, Pause
from ftrun.core.ids import Attempt, StateId, Tag
from ftrun.core.quorum import Quorum
from ftrun.core.worker.comparison import USUAL, Entry, Question, Shape

# ---------------------------------------------------------------- events of the main thread


@dataclass(frozen=True, slots=True)
class BoundaryReached:
    """The script wants to begin its next step. ``freeze_membership``: no replica may join.

    ``catches_up``: it does so to load its peers' state, and gives the step up at once.
    """

    freeze_membership: bool = False
    catches_up: bool = False


@dataclass(frozen=True, slots=True)
class OperationIssued:
    """One more reduction of this step.

    ``batched``: its result is handed out together with the others of its batch. ``closes``: it is
    the last one of the batch. ``shape``: must match the shape of the other replicas' operation.
    """

    batched: bool = False
    closes: bool = False
    shape: Shape = USUAL


@dataclass(frozen=True, slots=True)
class OperationsEnded:
    """The script wants the results of this step: no more operations follow."""


@dataclass(frozen=True, slots=True)
class VoteStarted:
    """The ranks of a group of several workers vote; this rank votes for its own step."""


@dataclass(frozen=True, slots=True)
class Decided:
    """The outcome of the step for this replica group.

    ``shared``: every replica group comes to the same outcome (for example: too few members), so
    that a step that is not committed leaves no replica behind. ``torn``: the ranks of this group
    voted for different steps.
    """

    commit: bool
    shared: bool = False
    reason: str = ""
    torn: bool = False


@dataclass(frozen=True, slots=True)
class StateApplied:
    """The loaded state is now the script's own."""

    donors: tuple[str, ...]
    nbytes: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class StateReset:
    """The script has set its step (a checkpoint of its own was loaded)."""

    state: StateId


@dataclass(frozen=True, slots=True)
class WentAway:
    """The script leaves for good."""

    reason: m.LeaveReason


# ---------------------------------------------------------------- events of other threads


@dataclass(frozen=True, slots=True)
class Succeeds:
    """This process replaces a lost one, at a boundary that the lost one had reached.

    ``state``: the lost worker's state there. ``begun``: the number of steps that it had begun; the
    last of them had operations of these ``shapes`` (None: not known). ``tries``: its failed tries
    of the next step. ``repeats``: that step was begun before, with too few contributors.
    ``quorum``: was in force.

    From there on the process repeats the lost worker's steps from the log, alone, and sends
    nothing. An ``Interrupt`` with the highest attempt that its group has seen ends this: for its
    peers it is a survivor that answers late.
    """

    state: StateId
    quorum: Quorum
    begun: int
    shapes: tuple[Shape, ...] | None = None
    tries: int = 0
    repeats: bool = False


@dataclass(frozen=True, slots=True)
class WentOut:
    """The results of the repeated step have arrived in ``quorum``, which may be a later quorum than
    the one in which it began, because the step was repaired.
    """

    quorum: Quorum


@dataclass(frozen=True, slots=True)
class OperationCompleted:
    """Reduction ``index`` of this step is complete under ``attempt``."""

    attempt: Attempt
    index: int


@dataclass(frozen=True, slots=True)
class OperationFailed:
    """Reduction ``index`` failed under ``attempt``.

    ``refused``: all connections of the group are up, so the operation is at fault. False: one is
    lost. None: the group does not know.
    """

    attempt: Attempt
    index: int
    reason: str
    refused: bool | None = False


@dataclass(frozen=True, slots=True)
class OperationRefused:
    """A reduction of this step cannot be carried out, so it was not even issued."""

    reason: str


@dataclass(frozen=True, slots=True)
class OperationAnswered:
    """A member has answered ``question``."""

    question: Question
    replica_id: str
    entry: Entry


@dataclass(frozen=True, slots=True)
class StateLoaded:
    """The state for ``tag`` has arrived whole and verified; it is not applied yet."""

    tag: Tag
    state: StateId


@dataclass(frozen=True, slots=True)
class OverwriteBegun:
    """The state for ``tag`` is about to be written over the script's own, piece by piece."""

    tag: Tag


@dataclass(frozen=True, slots=True)
class StateSpoiled:
    """The loaded state was applied, but the script holds another one."""

    reason: str


@dataclass(frozen=True, slots=True)
class HealFailed:
    """No donor has sent the state for ``tag``.

    ``is_refused``: each donor answered that it cannot.
    """

    tag: Tag
    reason: str
    is_refused: bool = False


@dataclass(frozen=True, slots=True)
class PeersAsked:
    """The script needs to know its peers while it sets itself up."""


@dataclass(frozen=True, slots=True)
class StateKept:
    """Until the next step a copy of the state of the last commit can be served at any time.

    A peer that has lost that step may need it at once, because the script continues with a call
    that needs all peers.
    """


@dataclass(frozen=True, slots=True)
class PeerUnreached:
    """A member of ``attempt`` was unreachable for long, and the script needs its value."""

    attempt: Attempt
    replica_id: str


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed: check deadlines.

    ``pause``: the announced pause that the script is in. ``beats``: the number of its calls of
    ``ftrun.heartbeat()``. ``heal``: how much of the state to heal to has arrived. ``waited_s``: how
    long this thread has waited for another one to give up its turn. ``collective``: the script's
    own collective in which it waits, over all tries of it.
    """

    pause: Pause | None = None
    beats: int = 0
    heal: m.HealProgress | None = None
    waited_s: float = 0.0
    collective: Pause | None = None


Event: TypeAlias = (
    BoundaryReached
    | OperationIssued
    | OperationsEnded
    | VoteStarted
    | Decided
    | StateApplied
    | StateReset
    | WentAway
    | Succeeds
    | WentOut
    | OperationCompleted
    | OperationFailed
    | OperationRefused
    | OperationAnswered
    | m.Built
    | m.BuildFailed
    | OverwriteBegun
    | StateLoaded
    | StateSpoiled
    | HealFailed
    | PeersAsked
    | StateKept
    | PeerUnreached
    | Ticked
    | m.Interrupt
    | m.NewQuorum
    | m.Prepare
    | m.ProposeSwitch
    | m.Switch
    | m.Cancel
    | m.AskReport
    | m.Roster
    | m.Lease
    | m.LeaveNow
)

# ---------------------------------------------------------------- instructions


@dataclass(frozen=True, slots=True)
class Send:
    """Send ``message`` to the lighthouse, through the agent."""

    message: m.FromWorker


@dataclass(frozen=True, slots=True)
class BuildGroup:
    """Build a process group in the background; answer Built or BuildFailed."""

    quorum: Quorum


@dataclass(frozen=True, slots=True)
class AbortGroup:
    """Wake every waiter of this group, built or being built, at once; then release it."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class DropGroup:
    """This group is not used any more: release it in the background."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class UseGroup:
    """From now on operations are issued on this group."""

    quorum: Quorum


@dataclass(frozen=True, slots=True)
class Launch:
    """Issue the operations from ``first`` up to, not including, ``stop`` on the group in use, in
    order.
    """

    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask members for one of their operations; an OperationAnswered of each follows."""

    question: Question


@dataclass(frozen=True, slots=True)
class FailScript:
    """Raise an error in the script: its peers cannot train together with this worker."""

    reason: str


@dataclass(frozen=True, slots=True)
class Reissue:
    """In-step repair: restore the inputs of all operations from ``first`` on.

    A Launch of each of them follows.
    """

    first: int


@dataclass(frozen=True, slots=True)
class HandOut:
    """The results of these operations stand: return them to the script."""

    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FailOperations:
    """The step will not be committed: release every waiter for its operations."""

    reason: str


@dataclass(frozen=True, slots=True)
class LoadState:
    """Fetch the state for ``tag`` from the donors in the background.

    ``in_place``: it may overwrite the script's own state, after ``OverwriteBegun``. ``catches_up``:
    a state that a donor keeps between two steps is enough.
    """

    tag: Tag
    quorum: Quorum
    in_place: bool = False
    catches_up: bool = False


@dataclass(frozen=True, slots=True)
class OfferState:
    """Serve the script's state for ``tag`` to ``receivers`` peers until RetireState.

    ``kept``: the state is kept between two steps, so it is served only to peers that catch up.
    """

    tag: Tag
    state: StateId
    receivers: int
    kept: bool = False


@dataclass(frozen=True, slots=True)
class ShowProgress:
    """The worker's activity has changed: report it, and how long it has lasted."""

    activity: Activity
    since_s: float


@dataclass(frozen=True, slots=True)
class ShowPeers:
    """The peers are known: wake the script that asks for them."""

    roster: m.Roster


@dataclass(frozen=True, slots=True)
class RetireState:
    """The state for ``tag`` is about to change: finish transfers from a copy."""

    tag: Tag


Instruction: TypeAlias = (
    Send
    | BuildGroup
    | AbortGroup
    | DropGroup
    | UseGroup
    | Launch
    | Ask
    | FailScript
    | Reissue
    | HandOut
    | FailOperations
    | LoadState
    | OfferState
    | RetireState
    | ShowProgress
    | ShowPeers
)
