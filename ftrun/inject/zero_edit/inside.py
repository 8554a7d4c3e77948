"""A replica joins where its peers wait, between two steps, for what only it can give.

A rank that is away gives no broadcast at a line at which it gave none before, and makes no file.
Its peers do not miss that while they train. But where their script waits for it they come to no
further step, and a successor joins at steps. So the wait becomes the boundary: the next step begins
there. The successor is set to the place of the last step, goes through that and what follows alone
(ending.py), gets the results of the collectives that its peers have made since, and so comes to
what they wait for. Then all go on in the step that has begun.

Nobody can join at the first step of a quorum. So survivors take an *empty* one there, which only
counts: nothing is reduced, no optimizer steps, and it has no place.

Not here: the calls that wait (world/), the files that are asked for (directories.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftrun.inject.zero_edit.refusals import ours
from ftrun.inject.zero_edit.states import Event, State

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.script import Script


class Inside:
    """Begins steps of one replica in the middle of what its script does between them."""

    def __init__(self, script: Script) -> None:
        self._script = script
        world = script.world
        world.may_hold, world.lets_join = self.may_wait, self.lets_join

    def may_wait(self) -> bool:
        """Whether a step could begin here. From any thread."""
        script = self._script
        is_between = script.course.now is State.BETWEEN and not script.world.is_whole
        return is_between and not (script.exactly_once.is_on or script.mates.are_several)

    def waits_for_file(self, words: str, since_s: float) -> None:
        """The script asks again and again for a file that nobody makes.

        Raises:
            Refused: it has done so for as long as a quorum is waited for.
        """
        if not self.may_wait():
            return
        self.lets_join()
        limit_s = self._script.here.quorum_timeout_s
        if since_s > limit_s and not self._script.world.is_whole:
            why = f"which no rank has made for {limit_s:.0f} s while a rank is away"
            self._script.world.gives_up(f"{words}, {why}")

    @ours
    def lets_join(self) -> None:
        """Begin a step here if another replica is about to join. In the main thread."""
        script, manager = self._script, self._script.manager()
        is_due = manager.session.others_join or script.quorums.has_full
        if not (self.may_wait() and is_due):
            return
        before = script.world.members
        self.begin()
        if script.world.members != before:
            return
        if manager.should_commit():
            script.standing.empty += 1
        script.course.goes(Event.STEP, State.BETWEEN)

    def joins_others(self) -> bool:
        """Whether this replica, which has lost the last step, is to begin the next one here: its
        peers wait in that for a newcomer, because the job needs all replicas."""
        script = self._script
        is_alone = not (script.exactly_once.is_on or script.mates.are_several)
        is_between = script.course.now is State.BETWEEN and script.world.needs_replicas
        return is_between and is_alone and script.manager().session.others_heal

    def begin(self) -> None:
        """Begin the next step here. All go on in it."""
        script, manager = self._script, self._script.manager()
        script.noting.begun_at = ()
        script.standing.goes_back()
        script.start(manager, allow_heal=True)
        script.show_place(manager)
