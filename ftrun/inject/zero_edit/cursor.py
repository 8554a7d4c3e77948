"""Which batch of an iterator a step trains on, although the loop may draw ahead. Pure.

Theory of operation. A loop that wants to know its last batch draws one more before it hands the
first one out, and one that accumulates gradients may draw several for one step. So the batch that
was drawn last says little. What a loop *holds* when a step is committed was drawn for later steps,
and the next step trains on the first batch of it. Between two commits a loop in its stride draws as
many batches as it trains on, while before its first step it draws those that it holds as well: the
difference is what it holds. It is learned at an iterator's second draw for a step, and mostly the
same for all iterators of that loop. A batch that was thrown away before the first step, to start
the loader's workers, is none that the loop holds.

Not here: the iterators (loaders.py), who asks (loop.py).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Cursor:
    """Of one iterator.

    Attributes:
        drawn: the draws so far, with the one that has found the end.
        held: how many drawn batches the loop holds when a step is committed; None: not known yet.
        first: the number of the batch that the step under way began with; None: not known.
        has_ended: a draw has found the end.
        dropped: how many of its first batches were thrown away before the loop.
    """

    drawn: int = 0
    held: int | None = None
    first: int | None = 0
    has_ended: bool = False
    dropped: int = 0
    _set_to: int = 0
    _before_first_step: int = 0
    _at_begin: int = 0
    _since_begin: int = 0  # the draws in the middle of the last step
    _at_commit: int | None = None  # None: no step was committed since it was made, or set
    _has_begun: bool = False
    _is_learned: bool = False  # False: ``held`` is what another iterator of this loop has shown

    def begin(self) -> int | None:
        """A step begins, if none is under way: the number of its first batch, from 0.

        Returns:
            None if it cannot be known.
        """
        if self._has_begun:
            return self.first
        self._has_begun, self._at_begin = True, self.drawn
        if self._at_commit is None:
            self._before_first_step = self.drawn - self._set_to
            self.first = self._set_to
            return self.first
        if not (self._is_learned or self.has_ended):  # a last group may be smaller
            drawn = self.drawn - self._at_commit
            if drawn > 0 or self._since_begin > 0:  # it is in its stride
                self.held, self._is_learned = max(0, self._before_first_step - drawn), True
        self.first = None if self.held is None else self._at_commit - self.held
        return self.first

    def commit(self) -> None:
        """A step has ended."""
        if self._at_commit is None and not self._has_begun:
            return  # its first batch was drawn for the next step
        self._since_begin = self.drawn - self._at_begin
        self._at_commit, self._has_begun = self.drawn, False

    @property
    def is_unused(self) -> bool:
        """Whether no step has begun with its batches."""
        return self._at_commit is None and not self._has_begun

    def drop(self) -> None:
        """What was drawn up to now is thrown away: no step has begun with it, and none will."""
        self.first = self._set_to = self.dropped = self.drawn

    def set_to(self, batch: int) -> None:
        """The next draw gives ``batch``, as if the loop had just begun there."""
        self.drawn = self._set_to = batch
        self.first, self._at_commit, self._is_learned = batch, None, False
        self.has_ended = self._has_begun = False
        self._since_begin = 0

    @property
    def is_drawn_early(self) -> bool:
        """The batch of the step under way was drawn in the middle of the step before."""
        if self._at_commit is None:
            return self.drawn > self._set_to
        return self.drawn == self._at_commit and self._since_begin > 0 and bool(self.held)

    @property
    def is_drawn_within(self) -> bool:
        """A batch was drawn in the middle of the step before."""
        return self._since_begin > 0

    @property
    def ahead(self) -> int:
        """How many batches were drawn from the first one of the step under way on."""
        return max(0, self.drawn - (self._set_to if self.first is None else self.first))

    def move(self, batch: int) -> None:
        """The step under way began with ``batch`` instead."""
        self.first, self.drawn, self.has_ended = batch, batch + self.ahead, False

    @property
    def is_over(self) -> bool:
        """Whether it has ended, and all its batches were trained on."""
        if not self.has_ended or self._at_commit is None:
            return False
        if self.held is None:
            is_only_batch = self.drawn - self._set_to == 2 and self._at_commit == self.drawn - 1
            return is_only_batch or self._at_commit == self.drawn  # a step was committed since
        return self._at_commit - self.held >= self.drawn - 1
