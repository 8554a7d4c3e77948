"""Messages between the agents of one replica group's nodes, which the lighthouse does not see.

One agent **leads** the group: it alone has a supervisor and a link to the lighthouse. The agents of
the group's other nodes are its **hands**: they start, signal and watch the workers of their node,
and relay their messages. A hand opens the stream.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TypeAlias

from ftrun.core.ids import OfIncarnation, WorkerKey
from ftrun.core.messages.at_the_node import AnotherForm, Beat, FailureReport, LeaveNow, NoManager
from ftrun.core.messages.from_agent import WorkerFacts, WorkerMessage, WorkerStacks
from ftrun.core.messages.to_agent import AskStacks, EndJob, Rejected
from ftrun.core.messages.to_worker import ToWorker
from ftrun.core.replay.mirroring import RankWords
from ftrun.core.version import PROTOCOL_VERSION

# ---------------------------------------------------------------- hand → lead


@dataclass(frozen=True, slots=True)
class HandHello:
    """A node that offers itself, the first message of its stream.

    ``node``: its name, for people. ``host``: its address. ``workers``: how many it should run.
    ``rank``: the place that its user has stated; None: any. ``size``: of the team, as typed.
    ``mark``: a file that it has made in its --snapshot; "": it writes no states from its memory
    there.
    """

    node: str
    host: str
    workers: int
    rank: int | None
    size: str
    version: int = PROTOCOL_VERSION
    mark: str = ""


@dataclass(frozen=True, slots=True)
class RankEnded:
    """A worker has ended, or is dying (``is_dying``): then its end follows.

    ``exit_code``: or minus the signal. ``pid`` 0: it could not be started. ``output``: its last
    lines. Other fields: see core/agent/events.py.
    """

    incarnation: str
    group_rank: int
    pid: int
    exit_code: int
    is_dying: bool
    reason: str = ""
    memory: str = ""
    recorded: FailureReport | None = None
    output: str = ""


@dataclass(frozen=True, slots=True)
class RankMessage:
    """A worker's message to its agent, not for the lighthouse."""

    key: WorkerKey
    message: FailureReport | NoManager | AnotherForm | Beat


@dataclass(frozen=True, slots=True)
class WorkerDisconnected:
    """A worker has closed its last connection: it cannot answer, and need not answer."""

    key: WorkerKey


@dataclass(frozen=True, slots=True)
class WorkerUsed:
    """``cpu_s``: the processor time of a worker's process when it was asked for a Report."""

    key: WorkerKey
    pid: int
    cpu_s: float


@dataclass(frozen=True, slots=True)
class RankFacts:
    """The latest measurements of the node's workers."""

    workers: tuple[WorkerFacts, ...]


@dataclass(frozen=True, slots=True)
class RankKept:
    """What a node's memory has of one rank. ``steps``: those at whose begin it has the whole state.

    ``marks``: the three numbers of each of these states' marks (core/replay/settling.py); 0: it has
    none. ``is_copy``: another node runs the rank. ``fall``: why it cannot be followed
    (core/replay/falls.py).
    """

    group_rank: int
    steps: tuple[int, ...]
    marks: tuple[int, ...] = ()
    is_copy: bool = False
    fall: int = 0


@dataclass(frozen=True, slots=True)
class RanksKept:
    """What the node's memory has of a group. Sent from time to time, and before each worker's end.

    ``address``, ``certificate``: of the server from which other nodes may read it. ``copied``: the
    ``KeepRanks`` of this step is carried out. ``reason``: why the newest one could not be.
    ``number``: the decree in force there.
    """

    incarnation: str
    ranks: tuple[RankKept, ...]
    address: str
    certificate: str
    topology: str
    copied: int | None = None
    reason: str = ""
    number: int = 0


@dataclass(frozen=True, slots=True)
class RanksStored:
    """``WriteRanks`` or ``FillRanks`` of this ``name`` is carried out, or could not be: ``reason``.

    ``is_damaged``: the reason is a file that differs from what was written.
    """

    name: str
    reason: str = ""
    is_damaged: bool = False


@dataclass(frozen=True, slots=True)
class GroupWords:
    """Words of a node's ranks under decree ``number``; the lead forwards them to all hands."""

    incarnation: str
    number: int
    ranks: tuple[RankWords, ...]


@dataclass(frozen=True, slots=True)
class AskLease:
    """A hand asks for the lease. ``asked_at``: by its own clock; the answer repeats it."""

    asked_at: float


@dataclass(frozen=True, slots=True)
class DrainAsked:
    """Leave at a boundary, then end with ``exit_code``. From a hand: the whole group leaves.

    ``number``: the signal with which scripts are asked. ``is_notice``: the node will be taken away;
    a later request to stop counts as the first one.
    """

    reason: str
    exit_code: int
    number: int = int(signal.SIGTERM)
    is_notice: bool = False


# ---------------------------------------------------------------- lead → hand


@dataclass(frozen=True, slots=True)
class HandPlace:
    """A node's place in the group. A hand whose place changes ends its processes and begins again.

    ``number``: of ``nodes``. ``first``: the group rank of its first worker. ``master_addr``: the
    address of the group's store.
    """

    job_id: str
    number: int
    nodes: int
    first: int
    workers_per_replica: int
    master_addr: str


@dataclass(frozen=True, slots=True)
class StartRanks(OfIncarnation):
    """Start this node's workers of a new incarnation. ``port``: of the group's store.

    ``lighthouse``: its address, for workers. ``world_port``: of the store for the world of all
    replicas; 0: there is none.
    """

    restarts: int
    port: int
    lighthouse: str
    world_port: int = 0


@dataclass(frozen=True, slots=True)
class RankSource:
    """A server from which a rank's state can be read. ``node``: its name, for people."""

    group_rank: int
    node: str
    address: str
    certificate: str


@dataclass(frozen=True, slots=True)
class KeepRanks:
    """Keep the states of this step, and copy those of other nodes' ranks from their ``sources``.

    ``pinned``: all nodes have the states of this step, so keep them too; None: there is no such
    step.
    """

    incarnation: str
    step: int
    pinned: int | None
    sources: tuple[RankSource, ...]


@dataclass(frozen=True, slots=True)
class WriteRanks:
    """Write the states of a step, which the node holds, to the draft ``name`` in --snapshot.

    ``limit_s``: how long that may take.
    """

    incarnation: str
    step: int
    name: str
    limit_s: float


@dataclass(frozen=True, slots=True)
class FillRanks(OfIncarnation):
    """Before ``StartRanks``: load the states of the snapshot ``name`` into memory.

    ``digest``: of its manifest, as the lead has read it.
    """

    step: int
    name: str
    digest: str


@dataclass(frozen=True, slots=True)
class RewindRanks:
    """No process of the group runs: drop what is later than ``step``; decree ``number`` follows.

    ``sources``: for the states that this node does not have, because it replaces a lost one.
    """

    start: StartRanks
    number: int
    step: int
    sources: tuple[RankSource, ...]


@dataclass(frozen=True, slots=True)
class ReplaceRank(OfIncarnation):
    """Start this worker again, from its state in memory."""

    restarts: int
    group_rank: int


@dataclass(frozen=True, slots=True)
class GroupDue:
    """The steps at which all workers of the group keep their states: a word of their board."""

    incarnation: str
    word: int


@dataclass(frozen=True, slots=True)
class GroupDecree:
    """A worker of the group is lost, or the group could not be connected: wake all workers.

    ``lost``: its rank. ``number``: see core/replay/mending.py.
    """

    incarnation: str
    number: int
    lost: int | None = None


@dataclass(frozen=True, slots=True)
class SignalRanks(OfIncarnation):
    """Send a signal to the workers of an incarnation, or to one. ``asks``: as AskToStop does."""

    number: int
    group_rank: int | None = None
    asks: bool = False


@dataclass(frozen=True, slots=True)
class SweepRanks:
    """End what an ended incarnation has left running."""

    incarnation: str


@dataclass(frozen=True, slots=True)
class ToRanks(OfIncarnation):
    """A ``message`` for the workers of an incarnation, or for one; "" and None: for all."""

    group_rank: int | None
    message: ToWorker | LeaveNow


@dataclass(frozen=True, slots=True)
class LeaseLeft:
    """Workers may commit until ``left_s`` after ``asked_at`` on the hand's clock (Q3).

    A lease counts from the question. So no two clocks are compared, and a late answer does not
    prolong it.
    """

    asked_at: float
    left_s: float


FromHand: TypeAlias = (
    HandHello
    | RankEnded
    | RankMessage
    | WorkerDisconnected
    | WorkerUsed
    | RankFacts
    | RanksKept
    | RanksStored
    | GroupWords
    | AskLease
    | DrainAsked
    | WorkerMessage
    | WorkerStacks
)
ToHand: TypeAlias = (
    HandPlace
    | StartRanks
    | SignalRanks
    | SweepRanks
    | KeepRanks
    | WriteRanks
    | FillRanks
    | RewindRanks
    | ReplaceRank
    | GroupDue
    | GroupDecree
    | GroupWords
    | ToRanks
    | LeaseLeft
    | AskStacks
    | EndJob
    | Rejected
)
