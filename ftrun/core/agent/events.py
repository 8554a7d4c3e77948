"""The supervisor's events and its instructions.

Events are in the past tense, instructions in the imperative. What the lighthouse and workers send
are events as they are (core/messages/). Not here: decisions (supervisor.py).
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import TypeAlias

from ftrun.core import messages as m
from ftrun.core.forms import Form
from ftrun.core.ids import OfIncarnation, StateId, WorkerKey
from ftrun.core.replay.afterwards import Waits
from ftrun.core.replay.falls import Fall
from ftrun.core.replay.settling import Board, Generation

SIGTERM = int(signal.SIGTERM)
SIGKILL = int(signal.SIGKILL)

# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Kept:
    """What the agent's memory has of a worker that dies (snapshots/area.py).

    ``place``: where a replacement would begin, or why none can. ``step``: of the newest generation,
    as the script counts; -1: there is none. ``reached``: how many it has taken. ``set_up_s``: so
    long its main thread has worked to its first generation. ``why``: what a worker has told of the
    reason. ``written``: the reason that a process of the group has written.
    """

    place: Generation | Fall
    step: int
    reached: int = 0
    set_up_s: float = 0.0
    why: str = ""
    written: Fall | None = None


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """``status``: the exit code, or minus the signal. ``pid`` 0: it could not be started.

    ``memory``: how it is known that the kernel ended it for want of memory; "": it is not known.
    ``recorded``: an exception that it has left in its error file. ``kept``: of its state in memory;
    None: there are no memory snapshots. ``ago_s``: before it was known (a silent node).
    """

    incarnation: str
    group_rank: int
    pid: int
    status: int
    reason: str = ""
    memory: str = ""
    recorded: m.FailureReport | None = None
    kept: Kept | None = field(default=None, repr=False)
    ago_s: float = field(default=0.0, repr=False)


@dataclass(frozen=True, slots=True)
class WorkerDying:
    """A worker has died; the kernel takes its memory down before it is gone (``WorkerExited``).

    ``end``: as it will be reported then. Its status is never 0.
    """

    end: WorkerExited


@dataclass(frozen=True, slots=True)
class OtherWorldMade:
    """A process that is no worker has made a world of torch's at the job's address.

    ``is_open``: the run may begin again in another form.
    """

    is_open: bool


@dataclass(frozen=True, slots=True)
class ScriptTimerSet:
    """A worker's script has set a timer of torch's.

    ``pid``: the process of the worker that did. ``left_s``: until it runs out. ``number``: the
    signal that is wanted then; 0 or less: none.
    """

    key: WorkerKey
    pid: int
    scope: str
    left_s: float
    number: int


@dataclass(frozen=True, slots=True)
class ScriptTimerReleased:
    """A worker's script has released a timer."""

    key: WorkerKey
    pid: int
    scope: str


@dataclass(frozen=True, slots=True)
class WorkerSent:
    """A worker's message: one that the lighthouse gets too, or one for its agent alone.

    ``held``: with AnotherForm, whose whole state is held outside the workers, and of which step: a
    replica's in memory, or "" for a snapshot on a disk.
    """

    key: WorkerKey
    message: m.FromWorker | m.ToItsAgent
    held: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class StacksTaken:
    """The answer to ``TakeStacks``: by group_rank; "" where there are none."""

    incarnation: str
    stacks: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class BoardSeen:
    """The answer to ``LookAtBoard``: the words of all ranks (core/replay/mending.py: look).

    ``boundary``: of what is in memory (core/replay/settling.py: common). ``waits``: a node of the
    group is missing, and they can go on from there once one has come in its place. ``why``: see
    Kept. ``steps``: by rank, so many it has taken; ``calls``: what it has said last of the call
    that it waits in (core/replay/afterwards.py). ``lost``: by rank, so many
    that were not committed.
    """

    incarnation: str
    board: Board
    joined: tuple[int, ...]
    falls: tuple[int, ...]
    boundary: int | None = None
    broken: tuple[int, ...] = ()
    waits: bool = False
    why: str = ""
    steps: tuple[int, ...] = ()
    calls: tuple[Waits | None, ...] = ()
    lost: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ManagerFound:
    """The script makes a Manager, and nobody says that it can repeat a step from its state: from
    now on there are no memory snapshots."""


@dataclass(frozen=True, slots=True)
class HealthChecked:
    """``--health-check`` has ended before a restart. ``failure``: why not well; "": it is well."""

    incarnation: str
    failure: str


@dataclass(frozen=True, slots=True)
class SignalReceived:
    """A signal to the agent itself (signals.py)."""

    number: int


@dataclass(frozen=True, slots=True)
class StopAsked:
    """A second request: end now."""


@dataclass(frozen=True, slots=True)
class SpawnerReady:
    """Workers can be started, so this agent can send its Hello."""


@dataclass(frozen=True, slots=True)
class SpawnerWarmed:
    """The spawner has imported its last module: a standby forked from now on has all of them."""


@dataclass(frozen=True, slots=True)
class StandbyExited:
    """A standby has ended before it was used, or could not be started.

    ``status``: as in ``WorkerExited``.
    """

    name: str
    status: int


@dataclass(frozen=True, slots=True)
class SpawnerLost:
    """The spawner or its stores have ended: nothing can be started any more."""

    reason: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class LighthouseSent:
    """The lighthouse has sent a message; ``asked_at``: when the request it answers was sent.

    ``at``: its address, and ``epoch``: its own, where several lighthouses can be it. ``agreed``: as
    in HeartbeatAck, which this was.
    """

    asked_at: float | None = None
    at: str = ""
    epoch: int = 0
    agreed: StateId | None = None


@dataclass(frozen=True, slots=True)
class LighthouseGone:
    """The stream, or an attempt to open one, has failed.

    ``is_moved``: it was ended here, because another lighthouse leads and answers.
    """

    reason: str
    is_moved: bool = False


@dataclass(frozen=True, slots=True)
class TeamChanged:
    """The group has other nodes now, or none: all its workers end. ``text``: for people."""

    text: str


@dataclass(frozen=True, slots=True)
class TimerFired:
    """``next_deadline`` has passed."""


Event: TypeAlias = (
    WorkerDying
    | WorkerExited
    | OtherWorldMade
    | ScriptTimerSet
    | ScriptTimerReleased
    | WorkerSent
    | m.WorkerDisconnected
    | m.WorkerUsed
    | StacksTaken
    | BoardSeen
    | ManagerFound
    | HealthChecked
    | SignalReceived
    | m.DrainAsked
    | StopAsked
    | SpawnerReady
    | SpawnerWarmed
    | StandbyExited
    | SpawnerLost
    | LighthouseSent
    | LighthouseGone
    | TeamChanged
    | TimerFired
    | m.AssignSlots
    | m.RestartReplica
    | m.StopReplica
    | m.KillWorkers
    | m.IncidentRecord
    | m.EndJob
)


# ---------------------------------------------------------------- instructions


@dataclass(frozen=True, slots=True)
class StartReplica(OfIncarnation):
    """Start all workers of a new incarnation. The first of them are these standbys.

    ``peers_train``: a replica of this node trains, which the new one is to join. ``sound_until``:
    if no replica holds the job's state any more, it may begin from what those before it have left
    in memory, of this step or an earlier one; -1: of none.
    """

    restarts: int
    standbys: tuple[str, ...] = ()
    peers_train: bool = False
    sound_until: float = -1


@dataclass(frozen=True, slots=True)
class ReplaceWorker:
    """Start this one worker of a running incarnation again; ``standby``: "" for a fork."""

    key: WorkerKey
    restarts: int
    standby: str


@dataclass(frozen=True, slots=True)
class MakeDecree(OfIncarnation):
    """Raise the number on the board of this incarnation, and wake all of its workers.

    ``group_rank``: the worker that has died, so what it has told of its script is void; -1: none.
    """

    number: int
    group_rank: int


class HoldGroup(OfIncarnation):
    """Keep the store and the memory of this incarnation, also without a process, until a sweep."""


@dataclass(frozen=True, slots=True)
class RewindMemory(OfIncarnation):
    """Drop what is in memory of later than ``boundary``, and raise the number on the board."""

    number: int
    boundary: int


@dataclass(frozen=True, slots=True)
class ShareMemory:
    """All replicas begin again together, from what this one has in memory of a step."""

    replica_id: str
    step: int


class LookAtBoard(OfIncarnation):
    """Answer with ``BoardSeen``."""


@dataclass(frozen=True, slots=True)
class StartStandby:
    """Start a worker that waits for its assignment."""

    name: str


@dataclass(frozen=True, slots=True)
class SignalReplica(OfIncarnation):
    """Signal the process groups of an incarnation's workers."""

    number: int


@dataclass(frozen=True, slots=True)
class SignalWorker:
    """Signal one worker, and not its children."""

    key: WorkerKey
    number: int


@dataclass(frozen=True, slots=True)
class AskToStop(OfIncarnation):
    """Ask the scripts of an incarnation to stop; a second time: to leave where they stand.

    ``number``: the signal that a script with a handler of its own gets.
    """

    number: int = SIGTERM


@dataclass(frozen=True, slots=True)
class PassSignal:
    """Send a signal to every worker of this agent that does not die of it."""

    number: int


@dataclass(frozen=True, slots=True)
class ShowStacks:
    """Show the Python stacks of every worker of this agent, and put them into its log."""


class SweepReplica(OfIncarnation):
    """End the processes that the workers of an incarnation that has not finished left behind."""


@dataclass(frozen=True, slots=True)
class DropMemory:
    """This replica is not started here any more: nobody goes on from what it has in memory."""

    replica_id: str


@dataclass(frozen=True, slots=True)
class SendToLighthouse:
    """Send on the open stream. Without a stream the next Hello has the same facts."""

    message: m.FromAgent


@dataclass(frozen=True, slots=True)
class SendToWorkers:
    """Send to every worker of this agent."""

    message: m.Lease


@dataclass(frozen=True, slots=True)
class SendToReplica(OfIncarnation):
    """Send to every worker of an incarnation."""

    message: m.LeaveNow


@dataclass(frozen=True, slots=True)
class AskWorker:
    """Ask a worker for a Report, and answer with ``WorkerUsed``."""

    key: WorkerKey


class TakeStacks(OfIncarnation):
    """Take the Python stacks of an incarnation's workers, and answer with ``StacksTaken``."""


class CheckHealth(OfIncarnation):
    """Run ``--health-check`` for the slot of this ended incarnation: ``HealthChecked`` follows."""


@dataclass(frozen=True, slots=True)
class SendEvidence:
    """Add the last lines of output, and send this to the lighthouse."""

    evidence: m.FailureEvidence


@dataclass(frozen=True, slots=True)
class WorkerLife:
    """One life of one worker, with a log of its own."""

    replica_id: str
    group_rank: int
    restarts: int


@dataclass(frozen=True, slots=True)
class ShowNotice:
    """One line for people; ``log``: the worker whose log has more."""

    kind: str
    replica_ids: tuple[str, ...]
    text: str
    log: WorkerLife | None = None


@dataclass(frozen=True, slots=True)
class EndAgent:
    """Nothing runs any more: exit. ``kind``: as in messages.JobFailed.

    ``again``: the form in which the run begins again; None: it has ended.
    """

    exit_code: int
    reason: str
    kind: str = ""
    again: Form | None = None


Instruction: TypeAlias = (
    StartReplica
    | ReplaceWorker
    | MakeDecree
    | HoldGroup
    | RewindMemory
    | ShareMemory
    | DropMemory
    | LookAtBoard
    | StartStandby
    | SignalReplica
    | SignalWorker
    | AskToStop
    | PassSignal
    | ShowStacks
    | SweepReplica
    | SendToLighthouse
    | SendToWorkers
    | SendToReplica
    | AskWorker
    | TakeStacks
    | CheckHealth
    | SendEvidence
    | ShowNotice
    | EndAgent
)
