"""Where a replica is in the training of its script: the states of ``loop.py``, and their one table.

Theory of operation. The script knows no steps: it draws batches, runs its model, reduces gradients
and lets optimizers step. The first pass in training after a commit begins a step, whose end the
first optimizer that steps decides. A replica that was started again runs the script from its
beginning as well, and finds on its way that its peers train. It takes no step of its own then: it
passes over the loops in which they are not, joins where they are, and is set to their place.

| state | the replica |
|---|---|
| SET_UP | has not begun a step; if peers train, it is on its way to them |
| PASSING | is on its way, and has taken one batch of a loop in which its peers are not |
| GHOST | is in such a step, of which nothing counts, until an optimizer steps |
| JOINING | has come to its peers: it waits for them, and takes their state |
| STEPPING | is in a step |
| BETWEEN | is between two steps |
| REPLAYING | has joined peers some steps after its place: it goes through one of these alone |
| FOLLOWING | the same, between two of these and after the last one |
| ENDED | has come to the end of the script |

It is some steps after its place if its peers have finished, have taken several steps with one
batch, or wait for it between two steps (inside.py): then it goes on with them in the step that has
begun.

What has happened is one of the script's events, or the Manager has begun a step (BEGUN), or the
replica was set to its peers' place (PLACED). A step begins as STEPPING in any case, because it is
known only then how far the peers are.

Not here: what is done at an event (loop.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType


class State(Enum):
    """One for each answer to a pass, a reduction or an optimizer of the script.

    Attributes:
        has_stepped: the replica has begun a step, or has joined its peers in one.
        is_in_step: the next optimizer that steps ends something.
        is_within: it may be between a pass and its step.
        is_alone: passes and reductions are this replica's alone, and of no step with peers.
    """

    has_stepped: bool
    is_in_step: bool
    is_within: bool
    is_alone: bool

    SET_UP = "set-up"
    PASSING = "passing"
    GHOST = "ghost"
    JOINING = "joining"
    STEPPING = "stepping"
    BETWEEN = "between"
    REPLAYING = "replaying"
    FOLLOWING = "following"
    ENDED = "ended"

    __hash__ = object.__hash__  # an enumeration's own takes a microsecond in each step


class Event(Enum):
    """The script's activity, and what follows from it."""

    DRAW = "a loader is asked for a batch"
    PASS = "a forward pass in training"
    REDUCE = "a backward pass reduces"
    STEP = "an optimizer steps"
    END = "the script has ended"
    BEGUN = "a step has begun"
    PLACED = "set to the peers' place"

    __hash__ = object.__hash__


_S, _E = State, Event
_Row = Mapping[Event, frozenset[State]]


def _row(**events: tuple[State, ...]) -> _Row:
    return MappingProxyType({_E[name]: frozenset(states) for name, states in events.items()})


_WITHOUT_PEERS = _row(
    DRAW=(_S.JOINING,),
    PASS=(_S.JOINING, _S.GHOST),
    REDUCE=(),
    STEP=(),
    END=(_S.ENDED,),
    BEGUN=(_S.STEPPING,),
)
TABLE: Mapping[State, _Row] = MappingProxyType(
    {
        # no peer trains → BEGUN; else the first loop is the peers' (JOINING) or not (GHOST)
        _S.SET_UP: _WITHOUT_PEERS,
        _S.PASSING: _row(
            DRAW=(_S.JOINING,), PASS=(_S.JOINING, _S.GHOST), REDUCE=(), STEP=(), END=()
        ),
        _S.GHOST: _row(
            DRAW=(_S.JOINING,), PASS=(_S.JOINING, _S.GHOST), REDUCE=(), STEP=(_S.PASSING,), END=()
        ),
        # a script that catches an error of the join comes again
        _S.JOINING: _WITHOUT_PEERS,
        # a newcomer is placed, or goes on to its peers, who wait elsewhere (PASSING); a member is
        # placed that was left out for some steps
        _S.STEPPING: _row(
            DRAW=(),
            PASS=(),
            REDUCE=(),
            STEP=(_S.BETWEEN,),
            END=(_S.ENDED,),
            PLACED=(_S.STEPPING, _S.REPLAYING, _S.PASSING),
        ),
        # further optimizers of the step come here, and share its outcome
        _S.BETWEEN: _row(
            DRAW=(), PASS=(), REDUCE=(), STEP=(), END=(_S.ENDED,), BEGUN=(_S.STEPPING,)
        ),
        _S.REPLAYING: _row(DRAW=(), PASS=(), REDUCE=(), STEP=(_S.FOLLOWING,), END=(_S.ENDED,)),
        # after the last one, with peers that train, its own step is under way
        _S.FOLLOWING: _row(
            DRAW=(),
            PASS=(_S.REPLAYING, _S.STEPPING),
            REDUCE=(_S.REPLAYING, _S.STEPPING),
            STEP=(),
            END=(_S.ENDED,),
        ),
        # at exit a script may still run its model: nobody else does
        _S.ENDED: _row(DRAW=(), PASS=(), REDUCE=(), STEP=(), END=()),
    }
)
"""By state and event the states that may follow; at an event without one it stays. An event that a
state does not have cannot happen there."""

_MOVES = {(x, event, to) for x in TABLE for event, after in TABLE[x].items() for to in after}

BETWEEN, STEPPING = State.BETWEEN, State.STEPPING
"""Asked for several times in each step: to ask the class takes longer than the rest of a line."""

for _state in State:  # asked in each step
    _state.has_stepped = _state not in (_S.SET_UP, _S.PASSING, _S.GHOST, _S.JOINING)
    _state.is_in_step = _state in (_S.GHOST, _S.STEPPING, _S.REPLAYING)
    _state.is_within = _state in (_S.STEPPING, _S.REPLAYING, _S.FOLLOWING)
    _state.is_alone = _state in (_S.REPLAYING, _S.ENDED)


class Course:
    """The state of one replica. ``now``: it; for the main thread."""

    def __init__(self) -> None:
        self.now = State.SET_UP

    def goes(self, event: Event, to: State) -> None:
        """``event`` has this state follow."""
        move = self.now, event, to
        assert move in _MOVES, f"{event.value}: from {self.now.value} to {to.value}"
        self.now = to
