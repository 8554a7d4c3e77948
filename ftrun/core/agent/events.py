"""The supervisor's events and its instructions.

Events are in the past tense, instructions in the imperative. Messages of the lighthouse and of
workers are events too (core/messages/). Not here: decisions (supervisor.py).
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import TypeAlias

from ftrun.core import messages as m
from ftrun.core.forms import Form
from ftrun.core.ids import OfIncarnation, StateId, WorkerKey
from ftrun.core.replay.afterwards import Waits
from ftrun.core.replay.alike import Unlike
from ftrun.core.replay.falls import Fall
from ftrun.core.replay.settling import Board, Generation

SIGTERM = int(signal.SIGTERM)
SIGKILL = int(signal.SIGKILL)

# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Kept:
    """What the agent's memory holds of a worker that dies (snapshots/area.py).

    ``place``: where a replacement would begin, or why none can. ``step``: of the newest generation,
    in the script's count; -1: there is none. ``reached``: the number of its steps. ``set_up_s``:
    how long its main thread has worked to its first generation. ``why``: a detail of the reason, as
    a worker has reported it. ``written``: the reason that a process of the group has written.
    """

    place: Generation | Fall
    step: int
    reached: int = 0
    set_up_s: float = 0.0
    why: str = ""
    written: Fall | None = None


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """A worker's process has ended, or could not be started.

    ``status``: the exit code, or minus the signal. ``pid`` 0: it could not be started. ``memory``:
    the evidence that the kernel killed it because memory ran out; "": there is none. ``recorded``:
    an exception in its error file. ``kept``: what memory holds of it; None: there are no memory
    snapshots. ``ago_s``: the time since its end, if that was learnt late (a silent node).
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
    """A worker has died; the kernel frees its memory before the process is gone (``WorkerExited``).

    ``end``: the end as it will be reported then. Its status is never 0.
    """

    end: WorkerExited


@dataclass(frozen=True, slots=True)
class OtherWorldMade:
    """A process that is no worker has created torch's default process group at the job's address.

    ``is_open``: the run may begin again in another form.
    """

    is_open: bool


@dataclass(frozen=True, slots=True)
class ScriptTimerSet:
    """A worker's script has set a timer of torch's.

    ``pid``: the worker's process. ``left_s``: until it expires. ``number``: the signal to send
    then; 0 or less: none.
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
    """A worker's message, for the lighthouse too or for its agent alone."""

    key: WorkerKey
    message: m.FromWorker | m.ToItsAgent


@dataclass(frozen=True, slots=True)
class StacksTaken:
    """The answer to ``TakeStacks``: by group_rank; "" where there are none."""

    incarnation: str
    stacks: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class BoardSeen:
    """The answer to ``LookAtBoard``: the words of all ranks (core/replay/mending.py: look).

    ``boundary``: the newest boundary that all ranks have in memory (core/replay/settling.py:
    common). ``waits``: a node of the group is missing, and the group can resume from there once
    another node has taken its place. ``why``: see Kept. ``steps``: by rank, its number of steps;
    ``calls``: by rank, its last report of the call that it waits in (core/replay/afterwards.py).
    ``lost``: by rank, its number of steps that were not committed.
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
class WorkersUnlike:
    """Workers of a group that hold the same parameters do not any more. They are reported again,
    until ``LetDiffer`` or until their memory shows it no more.
    """

    incarnation: str
    found: Unlike


@dataclass(frozen=True, slots=True)
class MemorySeen:
    """The answer to ``LookAtMemory``: the whole states that are held outside the workers.

    ``held``: for each whose it is (a replica's in memory, or "" for a snapshot on a disk), its
    step, and the place of the script from which its owner goes on: a lower number is earlier.
    """

    held: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class ManagerFound:
    """The script makes a Manager, and does not declare that it can repeat a step from its state.

    From now on there are no memory snapshots.
    """


@dataclass(frozen=True, slots=True)
class HealthChecked:
    """``--health-check`` has ended before a restart.

    ``failure``: why it failed; "": the node is well.
    """

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
    """The spawner has imported its last module. Standbys forked from now on have all modules."""


@dataclass(frozen=True, slots=True)
class StandbyExited:
    """A standby has ended before it was used, or could not be started.

    ``status``: see ``WorkerExited``. ``lacks_room``: it was not started, because it would not fit
    into the memory that is free.
    """

    name: str
    status: int
    lacks_room: bool = False


@dataclass(frozen=True, slots=True)
class SpawnerLost:
    """The spawner or its stores have ended: nothing can be started any more."""

    reason: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class LighthouseSent:
    """The lighthouse has sent a message. ``asked_at``: when the request was sent that it answers.

    ``at``: the lighthouse's address, and ``epoch``: its epoch, if there are several lighthouses.
    ``agreed``: from the HeartbeatAck, if the message is one.
    """

    asked_at: float | None = None
    at: str = ""
    epoch: int = 0
    agreed: StateId | None = None


@dataclass(frozen=True, slots=True)
class LighthouseGone:
    """The stream, or an attempt to open one, has failed.

    ``is_moved``: this agent closed it, because another lighthouse leads and answers.
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
    | WorkersUnlike
    | MemorySeen
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

    ``peers_train``: a replica of this node trains, which the new one must join. ``sound_until``: if
    no replica holds the job's state any more, it may resume from the memory of earlier
    incarnations, at this step or an earlier one; -1: at none.
    """

    restarts: int
    standbys: tuple[str, ...] = ()
    peers_train: bool = False
    sound_until: float = -1


@dataclass(frozen=True, slots=True)
class ReplaceWorker:
    """Start one worker of a running incarnation again. ``standby``: "" for a fork."""

    key: WorkerKey
    restarts: int
    standby: str


@dataclass(frozen=True, slots=True)
class MakeDecree(OfIncarnation):
    """Raise the number on the board of this incarnation, and wake all of its workers.

    ``group_rank``: the worker that has died, whose earlier reports are void; -1: none.
    """

    number: int
    group_rank: int


class HoldGroup(OfIncarnation):
    """Keep the store and the memory of this incarnation, even without a process, until a sweep."""


@dataclass(frozen=True, slots=True)
class RewindMemory(OfIncarnation):
    """Drop states of steps later than ``boundary``, and raise the number on the board."""

    number: int
    boundary: int


class LetDiffer(OfIncarnation):
    """Compare the parameters of this incarnation's workers no more."""


@dataclass(frozen=True, slots=True)
class ShareMemory:
    """All replicas resume together, from this replica's memory of a step."""

    replica_id: str
    step: int


@dataclass(frozen=True, slots=True)
class SetNodesAside:
    """Nodes that stand by take the places of those that have altered these ranks' parameters."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LookAtBoard(OfIncarnation):
    """Answer with ``BoardSeen``."""


@dataclass(frozen=True, slots=True)
class LookAtMemory:
    """Answer with ``MemorySeen``."""


@dataclass(frozen=True, slots=True)
class StartStandby:
    """Start a worker that waits for its assignment."""

    name: str


@dataclass(frozen=True, slots=True)
class SignalReplica(OfIncarnation):
    """Send a signal to the process groups of an incarnation's workers."""

    number: int


@dataclass(frozen=True, slots=True)
class SignalWorker:
    """Send a signal to one worker, not to its children."""

    key: WorkerKey
    number: int


@dataclass(frozen=True, slots=True)
class AskToStop(OfIncarnation):
    """Ask the scripts of an incarnation to stop. The second time: to leave at once.

    ``number``: the signal for scripts that have a handler of their own.
    """

    number: int = SIGTERM


@dataclass(frozen=True, slots=True)
class PassSignal:
    """Send a signal to every worker of this agent that survives it."""

    number: int


@dataclass(frozen=True, slots=True)
class ShowStacks:
    """Show the Python stacks of every worker of this agent, and write them to its log."""


class SweepReplica(OfIncarnation):
    """End the processes that the workers of an unfinished incarnation have left behind."""


@dataclass(frozen=True, slots=True)
class DropMemory:
    """This replica is not started here any more: its memory is not needed.

    "": all replicas train again, and need nothing that was left before.
    """

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
    """Send to every worker of an incarnation. AnotherForm: leave what you have, and ask for it."""

    message: m.LeaveNow | m.AnotherForm


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
    """Add the last lines of output, and send the evidence to the lighthouse."""

    evidence: m.FailureEvidence


@dataclass(frozen=True, slots=True)
class WorkerLife:
    """One life of one worker; each life has its own log."""

    replica_id: str
    group_rank: int
    restarts: int


@dataclass(frozen=True, slots=True)
class ShowNotice:
    """One line for people. ``log``: the worker whose log has more."""

    kind: str
    replica_ids: tuple[str, ...]
    text: str
    log: WorkerLife | None = None


@dataclass(frozen=True, slots=True)
class EndAgent:
    """Nothing runs any more: exit. ``kind``: see messages.JobFailed.

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
    | LetDiffer
    | SetNodesAside
    | ShareMemory
    | DropMemory
    | LookAtBoard
    | LookAtMemory
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
