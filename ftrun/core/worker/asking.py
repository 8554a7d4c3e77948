"""The next move of a worker that needs a peer's answer, and its knowledge of its peers. Pure.

Not here: which answer is needed (exchanging.py, exchange_places.py); sockets and waiting
(training/exchanges.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ftrun.core.ids import Attempt
from ftrun.core.messages import Roster
from ftrun.core.quorum import Endpoint, Quorum
from ftrun.core.worker.exchange import ExchangeQuestion


@dataclass(frozen=True, slots=True)
class Known:
    """What one worker knows at present.

    ``roster``: the lighthouse's answer to the last ``AskLighthouse``; None: it has not arrived yet.
    ``quorum``: the one in force, or None. ``now``: the time, in seconds. ``is_alone``: its step is
    void, or it was left out of a quorum; it joins the others at its next boundary. ``in_step``:
    this worker has a step under way. ``gaps``: how often a quorum may have left it out.
    ``late_to``: it is late for the names of this step and of earlier ones.
    """

    roster: Roster | None
    quorum: Quorum | None
    now: float
    is_alone: bool = False
    in_step: bool = False
    gaps: int = 0
    late_to: int = -1


@dataclass(frozen=True, slots=True)
class AskPeer:
    """Ask a peer. Report the answer, or its lack, to the object that has made this move."""

    replica_id: str
    endpoint: Endpoint
    question: ExchangeQuestion


@dataclass(frozen=True, slots=True)
class AskLighthouse:
    """Ask the lighthouse for a Roster.

    ``anew``: a peer of the former Roster was not reached. Drop that Roster, and ask after a moment.
    """

    anew: bool = False


@dataclass(frozen=True, slots=True)
class AwaitQuorum:
    """Wait until a quorum is in force."""


@dataclass(frozen=True, slots=True)
class AwaitChange:
    """A member was not reached: wait for another quorum, but only a moment, then ask the member
    again.
    """

    replica_id: str


@dataclass(frozen=True, slots=True)
class GiveUpQuorum:
    """A member has not been reached for long, so the members must report again (REJOIN)."""

    attempt: Attempt
    replica_id: str


NextMove: TypeAlias = AskPeer | AskLighthouse | AwaitQuorum | AwaitChange | GiveUpQuorum
