"""The lighthouse's phases, and how membership works, in one page.

A quorum is in force until the lighthouse replaces it. There are three changes and no others:
- *Form*: EMPTY → BUILD → STEADY. No replica trains; the replicas that are ready begin.
- *Shrink*: a replica is lost, or a group fails. REJOIN: all survivors are interrupted and report
  their state. BUILD: the next quorum, of survivors only, and the state that it begins with.
- *Switch*: a replica joins or drains. PREPARE: the next group is built next to the one in force.
  PROPOSE: all promise not to begin step S under the old one. SWITCH: confirmed, on disk first.
  Until then it can be cancelled and costs no replica a step; a loss among the members cancels it.

All members take part in every reduction, so one interrupted member stops the old quorum for the
rest (succession.py). If *no* member is left to interrupt, the lighthouse waits until it is certain
that the members cannot train on elsewhere: FENCE. A restarted lighthouse collects reports first:
TAKEOVER.

Every attempt has a number above all that were ever issued (attempts.py). An answer with another
number has no effect (Q2, C3). The unit of loss is an incarnation: one that was lost and still lives
is a newcomer, and is interrupted before anything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType


class Phase(Enum):
    """One phase for each thing that the lighthouse waits for."""

    TAKEOVER = "takeover"
    EMPTY = "empty"
    BUILD = "build"
    STEADY = "steady"
    PREPARE = "prepare"
    PROPOSE = "propose"
    SWITCH = "switch"
    REJOIN = "rejoin"
    FENCE = "fence"
    ENDED = "ended"


_P = Phase
TRANSITIONS: Mapping[Phase, frozenset[Phase]] = MappingProxyType(
    {
        # restarted: reports of the members that are back
        _P.TAKEOVER: frozenset({_P.EMPTY, _P.STEADY, _P.SWITCH, _P.REJOIN, _P.FENCE, _P.ENDED}),
        # no replica trains: enough replicas that are ready
        _P.EMPTY: frozenset({_P.BUILD, _P.ENDED}),
        # NewQuorum is sent: every worker has built it; an error or a loss → REJOIN
        _P.BUILD: frozenset({_P.STEADY, _P.REJOIN, _P.ENDED}),
        # all train: nothing; a newcomer or a drain → PREPARE
        _P.STEADY: frozenset({_P.PREPARE, _P.REJOIN, _P.ENDED}),
        # Prepare is sent: every worker has built it; a failure → STEADY
        _P.PREPARE: frozenset({_P.PROPOSE, _P.STEADY, _P.REJOIN, _P.ENDED}),
        # ProposeSwitch is sent: every worker has promised; a refusal → PROPOSE again, at a later
        # step
        _P.PROPOSE: frozenset({_P.PROPOSE, _P.SWITCH, _P.STEADY, _P.REJOIN, _P.ENDED}),
        # Switch is sent: every worker trains under it and the leavers have left
        _P.SWITCH: frozenset({_P.STEADY, _P.REJOIN, _P.ENDED}),
        # Interrupt is sent: every survivor has reported, and they are enough
        _P.REJOIN: frozenset({_P.BUILD, _P.FENCE, _P.ENDED}),
        # no survivor: old members dead or silent for long (→ EMPTY), or back (→ REJOIN)
        _P.FENCE: frozenset({_P.EMPTY, _P.REJOIN, _P.ENDED}),
        _P.ENDED: frozenset(),
    }
)

IN_QUORUM = frozenset({_P.BUILD, _P.STEADY, _P.PREPARE, _P.PROPOSE, _P.SWITCH})
"""The phases in which a quorum is in force, or is being built."""
