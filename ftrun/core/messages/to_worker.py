"""Messages of the lighthouse to a worker; its agent relays them unchanged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ftrun.core.ids import Attempt, OfIncarnation
from ftrun.core.quorum import Endpoint, Quorum


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Abort everything up to and including ``attempt``; answer with a Report."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class NewQuorum:
    """Form or shrink: build ``quorum`` in the background; it is in force as soon as it is built.

    ``refused``: whose operation of the quorum's first step was refused, and why; "": none was.
    ``refused_tries``: the highest number of a member's failed tries of that step for such a reason.
    A worker that has tried it less often makes the step under way void and does not repair it.
    ``pauses``: a member is in an announced pause or at the end of its script, so its peers may have
    to wait for long.
    """

    quorum: Quorum
    refused: str = ""
    refused_tries: int = 0
    pauses: bool = False


@dataclass(frozen=True, slots=True)
class Prepare:
    """Build ``quorum`` in the background while another is in force; swap only at a Switch."""

    quorum: Quorum


@dataclass(frozen=True, slots=True)
class ProposeSwitch:
    """Promise not to begin ``step`` under the old quorum, or refuse."""

    attempt: Attempt
    step: int


@dataclass(frozen=True, slots=True)
class Switch:
    """Confirmed: at the boundary of ``step`` the prepared quorum comes into force."""

    attempt: Attempt
    step: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """The switch under ``attempt`` is cancelled: drop its promise and its process group."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class AskReport:
    """Send a Report now, because a lighthouse or a link has come back."""


@dataclass(frozen=True, slots=True)
class RosterEntry(OfIncarnation):
    """One replica of a Roster, with its endpoints by group_rank."""

    endpoints: tuple[Endpoint, ...]


@dataclass(frozen=True, slots=True)
class Roster:
    """The answer to Present, in the order of the slots.

    ``has_begun``: the job has reached its first step, and ``entries`` are the members that train;
    else they are all replicas that are to take part. ``finished``: slots whose part is over, also
    drained ones; ``early``: those of them that have left while others train. ``store``: the
    ``host:port`` of the TCPStore in which the replicas that set up meet. ``compared``: the lineage
    of the state whose parameters all members have shown at the end of their scripts, and by which
    they were judged; "": there is none yet.
    """

    has_begun: bool
    entries: tuple[RosterEntry, ...] = ()
    finished: tuple[str, ...] = ()
    early: tuple[str, ...] = ()
    store: str = ""
    compared: str = ""


ToWorker: TypeAlias = (
    Interrupt | NewQuorum | Prepare | ProposeSwitch | Switch | Cancel | AskReport | Roster
)
