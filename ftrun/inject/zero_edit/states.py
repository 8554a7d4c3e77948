"""Where a replica is in the training of its script: the states of ``loop.py``, and their one table.

Theory of operation. The script has no notion of a step: it draws batches, runs its model, reduces
gradients and calls optimizers. A step begins at the first forward pass in training after a commit,
and ends at the first ``optimizer.step()``. A restarted replica also runs the script from the
beginning. If its peers already train, it takes no step of its own: it skips the loops that its
peers are not in, joins them at their loop, and is set to their place.

| state | the replica |
|---|---|
| SET_UP | has not begun a step; if peers train, it runs the script up to their place |
| PASSING | is skipping a loop that its peers are not in; it has drawn one batch of that loop |
| GHOST | is in a step of a skipped loop; it does not count, and ends when an optimizer steps |
| JOINING | has reached its peers' place; it waits for them and loads their state |
| STEPPING | is in a step |
| BETWEEN | is between two steps |
| REPLAYING | repeats, without its peers, a step that they took after the place at which it joined |
| FOLLOWING | is between two repeated steps, or after the last one |
| ENDED | has reached the end of the script |

A joining replica has steps to repeat if its peers have finished, have taken several steps with one
batch, or wait for it between two steps (inside.py). In the last case it then continues with them
in the step that has begun.

An event is an action of the script, the start of a step by the Manager (BEGUN), or the move to the
peers' place (PLACED). Each step begins as STEPPING, because only then does the replica learn how
far its peers are.

Not here: what is done at an event (loop.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType


class State(Enum):
    """The states. They differ in how ftrun handles a pass, a reduction or an optimizer's step.

    Attributes:
        has_stepped: the replica has begun a step, or has joined its peers in one.
        is_in_step: the next ``optimizer.step()`` ends a step, a skipped or a repeated one too.
        is_within: the script may be between a forward pass and its optimizer's step.
        is_alone: passes and reductions run on this replica only, outside any step of the quorum.
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

    __hash__ = object.__hash__  # Enum's own hash costs a microsecond in each step


class Event(Enum):
    """What the script does, and the two results of it: BEGUN and PLACED."""

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
        # no peer trains: BEGUN. Else the first loop is the peers' (JOINING) or another (GHOST)
        _S.SET_UP: _WITHOUT_PEERS,
        _S.PASSING: _row(
            DRAW=(_S.JOINING,), PASS=(_S.JOINING, _S.GHOST), REDUCE=(), STEP=(), END=()
        ),
        _S.GHOST: _row(
            DRAW=(_S.JOINING,), PASS=(_S.JOINING, _S.GHOST), REDUCE=(), STEP=(_S.PASSING,), END=()
        ),
        # a script that catches an error of the join may try again
        _S.JOINING: _WITHOUT_PEERS,
        # PLACED: a newcomer, or a member that missed some steps, is set to its peers' place;
        # PASSING: the peers wait in a later loop, and the newcomer runs on to it
        _S.STEPPING: _row(
            DRAW=(),
            PASS=(),
            REDUCE=(),
            STEP=(_S.BETWEEN,),
            END=(_S.ENDED,),
            PLACED=(_S.STEPPING, _S.REPLAYING, _S.PASSING),
        ),
        # a step's second and later optimizers step here, and share its outcome
        _S.BETWEEN: _row(
            DRAW=(), PASS=(), REDUCE=(), STEP=(), END=(_S.ENDED,), BEGUN=(_S.STEPPING,)
        ),
        _S.REPLAYING: _row(DRAW=(), PASS=(), REDUCE=(), STEP=(_S.FOLLOWING,), END=(_S.ENDED,)),
        # STEPPING: the last step is repeated and the peers train, so a common step is under way
        _S.FOLLOWING: _row(
            DRAW=(),
            PASS=(_S.REPLAYING, _S.STEPPING),
            REDUCE=(_S.REPLAYING, _S.STEPPING),
            STEP=(),
            END=(_S.ENDED,),
        ),
        # a script may still run its model at exit; its peers do not take part
        _S.ENDED: _row(DRAW=(), PASS=(), REDUCE=(), STEP=(), END=()),
    }
)
"""The states that may follow, by state and event. An empty set: the state stays as it is. An event
that is missing from a state's row cannot happen in that state."""

_MOVES = {(x, event, to) for x in TABLE for event, after in TABLE[x].items() for to in after}

BETWEEN, STEPPING = State.BETWEEN, State.STEPPING
"""Module variables, because each step reads them several times and a look-up in the class is slow.
"""

for _state in State:  # plain attributes, because each step reads them
    _state.has_stepped = _state not in (_S.SET_UP, _S.PASSING, _S.GHOST, _S.JOINING)
    _state.is_in_step = _state in (_S.GHOST, _S.STEPPING, _S.REPLAYING)
    _state.is_within = _state in (_S.STEPPING, _S.REPLAYING, _S.FOLLOWING)
    _state.is_alone = _state in (_S.REPLAYING, _S.ENDED)


class Course:
    """Holds the state of one replica in ``now``. For the main thread only."""

    def __init__(self) -> None:
        self.now = State.SET_UP

    def goes(self, event: Event, to: State) -> None:
        """Change the state to ``to``, because of ``event``; the table must allow it."""
        move = self.now, event, to
        assert move in _MOVES, f"{event.value}: from {self.now.value} to {to.value}"
        self.now = to
