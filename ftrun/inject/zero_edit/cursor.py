"""Finds the batch that a step trains on, for loops that draw ahead. Pure.

Theory of operation. A loop that must recognize its last batch draws one batch ahead, and a loop
that accumulates gradients may draw several for one step. So the batch drawn last need not be the
one that the step trains on. The batches that a loop *holds* when a step is committed were drawn for
later steps, and the next step trains on the first of them. Between two commits, a loop draws as
many batches as it trains on. Before its first step it draws in addition the batches that it holds.
So the difference of the two numbers is how many it holds. It is learned at an iterator's second
draw for a step, and is usually the same for all iterators of that loop. A batch that was thrown
away before the first step, to start the loader's workers, does not count as held.

Not here: the iterators (loaders.py), the callers (loop.py).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Cursor:
    """The position of one iterator.

    Attributes:
        drawn: the number of draws so far, including the one that has found the end.
        held: how many drawn batches the loop holds when a step is committed; None: not known yet.
        first: the number of the first batch of the step under way, from 0; None: not known.
        has_ended: a draw has found the end.
        dropped: how many of its first batches were thrown away before the loop.
        is_unused: no step has begun with its batches.
    """

    drawn: int = 0
    held: int | None = None
    first: int | None = 0
    has_ended: bool = False
    dropped: int = 0
    is_unused: bool = True
    _set_to: int = 0
    _before_first_step: int = 0
    _at_begin: int = 0
    _at_pass: int = 0
    _since_begin: int = 0  # draws between start and end of the last step
    _since_pass: int = 0  # those of them after its last forward pass
    _is_in_doubt: bool = False  # all draws of the last step were before a pass of it
    _at_commit: int | None = None  # None: no step was committed since it was made or set
    _has_begun: bool = False
    _is_learned: bool = False  # False: ``held`` comes from another iterator of this loop

    def begin(self, *, learns: bool = True) -> int | None:
        """Begin a step, if none is under way.

        Args:
            learns: its batches were drawn where those of the step before were, so that the number
                of batches shows how many are held.

        Returns:
            The number of its first batch, from 0; None: it cannot be known.
        """
        if self._has_begun:
            self._at_pass = self.drawn
            return self.first
        self._has_begun, self._at_begin, self._at_pass = True, self.drawn, self.drawn
        self.is_unused = False
        if self._at_commit is None:
            self._before_first_step = self.drawn - self._set_to
            self.first = self._set_to
            return self.first
        if learns and not (self._is_learned or self.has_ended):  # a last group may be smaller
            drawn = self.drawn - self._at_commit
            is_ahead = self._since_pass > 0 or self._is_in_doubt
            if drawn > 0 or (self._since_begin > 0 and is_ahead):  # it has drawn for this step
                self.held, self._is_learned = max(0, self._before_first_step - drawn), True
            self._is_in_doubt = self._since_begin > 0  # it may have trained on all of them
        self.first = None if self.held is None else self._at_commit - self.held
        return self.first

    def commit(self) -> None:
        """A step has ended."""
        if self._at_commit is None and not self._has_begun:
            return  # its first batches were drawn for the next step
        self._since_begin = self.drawn - self._at_begin
        self._since_pass = self.drawn - self._at_pass
        self._at_commit, self._has_begun = self.drawn, False

    def drop(self) -> None:
        """The batches drawn so far are thrown away: no step will train on them."""
        self.first = self._set_to = self.dropped = self.drawn

    def set_to(self, batch: int) -> None:
        """The next draw yields ``batch``, as if the loop had just begun there."""
        self.drawn = self._set_to = batch
        self.first, self._at_commit, self._is_learned = batch, None, False
        self.has_ended, self._has_begun, self.is_unused = False, False, True
        self._since_begin = self._since_pass = 0
        self._is_in_doubt = False

    @property
    def is_drawn_early(self) -> bool:
        """The batch of the step under way was drawn during the step before."""
        if self._at_commit is None:
            return self.drawn > self._set_to
        return self.drawn == self._at_commit and self._since_begin > 0 and bool(self.held)

    @property
    def is_drawn_within(self) -> bool:
        """A batch was drawn during the step before."""
        return self._since_begin > 0

    @property
    def ahead(self) -> int:
        """How many batches were drawn since the step's first one, including it."""
        return max(0, self.drawn - (self._set_to if self.first is None else self.first))

    def move(self, batch: int) -> None:
        """Set the position as if the step under way had begun with ``batch``."""
        self.first, self.drawn, self.has_ended = batch, batch + self.ahead, False

    @property
    def is_over(self) -> bool:
        """Whether it has ended, and all of its batches were trained on."""
        if not self.has_ended or self._at_commit is None:
            return False
        if self.held is None:
            is_only_batch = self.drawn - self._set_to == 2 and self._at_commit == self.drawn - 1
            return is_only_batch or self._at_commit == self.drawn  # a step was committed since
        return self._at_commit - self.held >= self.drawn - 1
