"""The state that one worker holds, and its progress in healing: getting its peers' state.

A heal has three stages: a quorum makes this replica a newcomer (``healing``); a thread fetches and
verifies the state (``loaded``); the main thread applies it. Meanwhile the script's own state may be
overwritten, and is *torn* until a heal is applied (S3). Only a *fresh* state, the one that the
worker started with, may be overwritten, because a restart brings it back. A state of the job that
this worker once held is kept until the new one is complete (C6).

All donors may refuse, because they cannot serve their state. A further try may succeed, but each
try interrupts every replica: after ``REFUSALS_MAX`` refused tries in a row this worker ends.

Not here: when a heal begins or fails (machine.py), donors and bytes (checkpoint/).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ftrun.core.ids import StateId, Tag, extend_lineage
from ftrun.core.quorum import Quorum
from ftrun.core.worker.events import LoadState

REFUSALS_MAX = 3


class HealState:
    """The state that one worker holds. ``state``: what the script holds.

    ``healing``: that is not yet the state of the quorum. ``loaded``: the state that has arrived and
    is verified, but not applied. ``torn``: ``state`` is half overwritten. ``is_fresh``: the worker
    holds the state that it started with. ``heals_first``: newcomers heal before their forward pass
    (a synchronous quorum). ``given_at``: the step of the state that it began with, or that was
    applied last. ``healed_to``: the same, or the step at which it came back after a quorum had left
    it out. ``has_committed``: this process has committed a step. ``catches_up``: the step was begun
    only to load the peers' state.
    """

    def __init__(self, state: StateId, heals_first: bool) -> None:
        self.state = state
        self.healing = False
        self.loaded: StateId | None = None
        self.torn = False
        self.is_fresh = True
        self.heals_first = heals_first
        self._refusals = 0  # by all donors, in a row
        self.healed_to = self.given_at = state.step
        self.has_committed = False
        self.catches_up = False

    def reset(self, state: StateId) -> None:
        self.state = state
        self.healed_to = self.given_at = state.step

    def succeed(self, state: StateId) -> None:
        """The script holds a state of the job to which another process has trained."""
        self.reset(state)
        self.is_fresh, self.has_committed = False, True

    @property
    def must_load(self) -> bool:
        """A state is wanted and has not arrived."""
        return self.healing and self.loaded is None

    @property
    def after(self) -> StateId | None:
        """The state that this worker holds after its heal, if it heals; None: not known yet."""
        return self.loaded if self.healing else self.state

    def begin(self, heals: bool, wanted: StateId | None) -> None:
        """A step begins; ``wanted``: the state that its quorum begins with."""
        assert heals or not self.torn, "S3: trains from a torn state"
        self.healing = heals
        self.loaded = self.loaded if heals and self.loaded == wanted else None

    def load(self, tag: Tag, quorum: Quorum) -> Iterable[LoadState]:
        """In a step that needs a state which has not arrived: fetch it."""
        if self.must_load:
            yield LoadState(tag, quorum, self.is_fresh, self.catches_up)

    def keep_loaded_if(self, wanted: StateId | None) -> None:
        """The step is repaired under a quorum that begins with ``wanted``."""
        self.loaded = self.loaded if self.loaded == wanted else None

    def overwrite(self) -> None:
        """The fetching thread begins to overwrite the script's own state."""
        assert self.is_fresh, "C6: writes over the job's state"
        self.torn = True

    def refuse(self) -> bool:
        """All donors have refused. Returns whether the tries are used up."""
        self._refusals += 1
        return self._refusals >= REFUSALS_MAX

    def apply(self, tag: Tag) -> bool:
        """The script has applied the loaded state; False: that state was given up meanwhile."""
        if self.loaded is None:  # no other worker holds this state: it gets its own name (S1)
            lineage = extend_lineage(self.state.lineage, tag)
            self.state = replace(self.state, lineage=lineage)
            return False
        self.state, self.loaded = self.loaded, None
        self.healed_to = self.given_at = self.state.step
        self.healing = self.torn = self.is_fresh = False
        self._refusals = 0
        return True

    def spoil(self) -> bool:
        """The loaded state cannot be applied. Returns False if it was given up meanwhile."""
        was_loaded, self.loaded = self.loaded is not None, None
        return was_loaded

    def commit(self, tag: Tag) -> None:
        assert not self.healing and not self.torn, "S3: commits from a state that is not healed"
        self.state = self.state.committed(tag)  # C2
        self.is_fresh = False
        self.has_committed = True
