"""The script's training loop: boundaries of steps, a newcomer's way to its peers' place, the end.

Theory of operation. The states of a replica, and what leads from one to another, are in states.py.
The first draw from a loader after a step notes where the script stands: its frames, the plain
values in them, its ``range`` loops. The first forward pass in training after a commit begins a step
(``start_quorum``); the first ``optimizer.step()`` decides it. The *place* of a step is that of the
first draw since the step before, and heals with the rest of the state.

A newcomer runs the script from its beginning, with the peers' results of all collectives of the
set-up. At the first draw at which its stack equals the one at which its peers' loader gave its
first batch, it joins: the state heals first, then loops, loaders and counters are set to the peers'
place, and the draw yields the first batch that they train on. So no epoch is run twice, and a loop
that draws ahead (cursor.py) draws its next ones by itself. Of a script without a loader the turns
of the innermost ``for`` loop around its step are such draws. Other loops are joined at the forward
pass, in the same way.

Replicas join only at steps with a draw: a loop may take several between two draws (two models). At
the end a replica lingers until all others have come to it (training/lingering.py).

Not here: what is patched (models.py, stepping.py, loaders.py, counting.py, world/), what a place is
made of (noting.py), how the rooms are connected (script.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ftrun.inject.zero_edit import told
from ftrun.inject.zero_edit.counting import COUNT_END, RANGES
from ftrun.inject.zero_edit.ending import part
from ftrun.inject.zero_edit.exactly_once import ExactIterator
from ftrun.inject.zero_edit.frames import Spot, stack
from ftrun.inject.zero_edit.loaders import OPEN, LoaderIterator
from ftrun.inject.zero_edit.memory import Memory
from ftrun.inject.zero_edit.moving import Moving
from ftrun.inject.zero_edit.passing import peers_are_gone, stands_elsewhere
from ftrun.inject.zero_edit.refusals import Refused, is_unfit, ours
from ftrun.inject.zero_edit.script import Script
from ftrun.inject.zero_edit.states import BETWEEN, STEPPING, Course, Event, State
from ftrun.training.context import WorkerContext

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.in_place import InPlace


class Loop:
    """Connects the script's loop with the Manager. Used by the main thread only.

    Attributes:
        script: the rooms that keep the script.
        on_raise: called if the script fails; whether it has ended no step.
    """

    def __init__(
        self, here: WorkerContext, memory: Memory | None = None, keeper: InPlace | None = None
    ) -> None:
        self.on_raise: Callable[[Exception, bool], None] = lambda error, is_early: None
        self._course = Course()
        self.script = Script(here, self._course, self, memory, keeper)
        self._moving = Moving(self.script)
        self._outcome = True  # of the last step

    # ------------------------------------------------------------ draws

    @ours
    def before_draw(self, iterator: LoaderIterator) -> None:
        """A loader is asked for its next batch."""
        script = self.script
        if not script.models.wrapped:
            return
        if self._course.now is not BETWEEN:  # mostly it is
            script.ending.goes_on(draws=True)
            if not self._course.now.has_stepped and script.joins_at():
                self._draws_on_its_way(iterator)
        if not iterator.entry:
            self._moving.begins(iterator)
        script.noting.draw(iterator)
        if isinstance(iterator, ExactIterator):
            self._begin_at_draw(iterator)

    @ours
    def before_turn(self, spot: Spot) -> None:
        """A turn of a loop begins that may be one around steps without a loader."""
        script = self.script
        if script.trial is not None:
            script.trial.look_at_draws()
        if not script.drafts.is_loops:
            return
        if self._course.now.has_stepped:
            script.noting.turn(spot)
            return
        turn = script.peers.place.turn if script.joins_at() else None
        if turn is not None and turn[0] == spot and script.peers.are_here(None):
            script.noting.tells_turns(spot)
            self._join(Event.DRAW, None)

    def _draws_on_its_way(self, iterator: LoaderIterator) -> None:
        self.script.passing.before_draw(iterator)
        if not iterator.cursor.has_ended and self.script.peers.are_here(iterator):
            self._join(Event.DRAW, iterator)
        elif isinstance(iterator, ExactIterator):
            stands_elsewhere(self.script.peers.place, stack())

    @ours
    def before_evaluation(self) -> None:
        """A model is evaluated."""
        OPEN.evaluated()
        if self.script.trial is not None:
            self.script.trial.evaluates()

    @ours
    def loader_ended(self, iterator: LoaderIterator) -> None:
        if iterator.is_training:
            self.script.ending.is_late = False
            self.loop_ended(COUNT_END)

    def loop_ended(self, steps: int) -> None:
        """A loop around so many steps has ended, or was left: also by an error of the script's,
        which an error here must not replace."""
        script, ending = self.script, self.script.ending
        if script.memory is not None or not script.drafts.is_loops:
            return
        if self._course.now is BETWEEN:
            has_lost = not (self._outcome or script.exactly_once.is_on)
            self._outcome |= ending.loop_ended(steps, has_lost=has_lost)
        elif self._course.now is State.FOLLOWING:
            ending.goes_on(draws=True)

    def _begin_at_draw(self, iterator: ExactIterator) -> None:
        """Begin a step at its draw: a step decides which samples are this replica's."""
        if self._course.now in (State.SET_UP, BETWEEN):
            if not iterator.is_over:
                iterator.cursor.begin()
                self._begin([iterator])
        elif self._course.now is STEPPING and iterator.is_fresh:
            iterator.refuse_several()

    # ------------------------------------------------------------ steps

    @ours
    def before_forward(self) -> bool:
        """A forward pass in training: the first one after a commit begins a step.

        Returns:
            False if the pass does not count: the peers have finished, or are in another loop.
        """
        script = self.script
        is_next = self._course.now is BETWEEN  # mostly so
        if is_next and script.noting.idle and stack() in script.noting.idle:
            return True
        draws = script.noting.training()
        if self._moving.has_moved:
            self._moving.step_begins()
        if not is_next and self._is_alone(Event.PASS):
            return False
        if self._course.now is STEPPING:
            script.noting.passes_again(draws)
            return True
        if script.exactly_once.is_on:
            script.exactly_once.expect()
        if is_next or not script.joins_at():
            self._begin(draws)
            return True
        if script.peers.are_here(None) and self._join(Event.PASS, None):
            return not self._course.now.is_alone
        self._pass_over(draws)
        return False

    def before_reduction(self) -> bool:
        """A backward pass reduces gradients; False: they are this replica's alone.

        A loop may take several steps after one forward pass. The second one begins here; nobody
        joins in it, because a newcomer cannot begin in the middle of a pass.
        """
        if self._course.now is STEPPING or self._may_reduce():
            script = self.script
            script.noting.begun_at, script.marking.is_reduced = (), True
            if script.randomness.is_noted:
                script.noting.reduces()
            return True
        return False

    @ours
    def _may_reduce(self) -> bool:
        if self._is_alone(Event.REDUCE):
            return False
        if self._course.now is BETWEEN:
            self._begin(self.script.noting.training(), is_late=True)
        return True

    @ours
    def commit(self) -> bool:
        """The first optimizer steps: whether it may. Further ones of the same step follow it."""
        script = self.script
        match self._course.now:
            case State.STEPPING:
                manager = script.made
                assert manager is not None
                self._outcome = manager.should_commit()
                script.marking.ended = None
                self._course.goes(Event.STEP, BETWEEN)
                if script.predecessor is not None:
                    script.predecessor.step_ended()
                script.steps += 1
                RANGES.steps += 1
                script.ending.step_ended()
                if self._outcome:
                    script.marking.mark(manager)
                    if script.trial is not None:
                        step = script.steps_of(manager)
                        script.trial.committed(
                            step, manager, script.charge.facts, script.counters.walk
                        )
                elif not manager.session.machine.was_taken:
                    script.lost += 1
                script.standing.steps += 1
                script.noting.commit()
            case State.GHOST:
                self._course.goes(Event.STEP, State.PASSING)
                script.noting.commit()
                return False
            case State.REPLAYING:
                self._course.goes(Event.STEP, State.FOLLOWING)
                RANGES.steps += 1
                script.ending.step_again()
                if script.ending.is_behind:
                    script.noting.commit()
                    if script.trial is not None:
                        script.trial.goes_through_again()
                return False
            case State.PASSING | State.JOINING | State.FOLLOWING | State.ENDED:
                return False
        return self._outcome

    def _begin(self, draws: list[LoaderIterator], *, is_late: bool = False) -> None:
        """Begin a step at the place of the last draw; none that ``is_late``, in a pass, has one."""
        script, standing = self.script, self.script.standing
        manager = script.made or script.manager()
        place = script.come_to(draws, is_late=is_late)
        if script.world.why_again:
            script.at_fall.looks()
        is_first = not self._course.now.has_stepped
        if is_first:
            script.charge.take(manager)
        loaded = script.start(manager, allow_heal=place is not None)
        if is_first:  # until all were there, one that died would have ended this life, too
            script.directories.begins()
            script.noting.begins()
            script.repeated.are_left()
        if loaded is not None and not standing.is_like(loaded):
            # It has trained before, and was out of the quorum for some steps.
            is_drawn = not any(x.begins_steps for x in draws)
            self._moving.go_to(loaded, draws[0] if draws else None, is_drawn=is_drawn)
        script.show_place(manager)
        if script.trial is not None:
            script.trial.begins(script.steps_of(manager), turn=place is not None)

    def _is_alone(self, event: Event) -> bool:
        """Whether a pass or a reduction is of no step with its peers."""
        if self._course.now is State.FOLLOWING:
            goes_on = self.script.ending.goes_on()
            self._course.goes(event, State.STEPPING if goes_on else State.REPLAYING)
        return self._course.now.is_alone

    # ------------------------------------------------------------ a newcomer

    def _pass_over(self, draws: list[LoaderIterator]) -> None:
        """Pass over a loop in which the peers are not."""
        if not draws:
            self.script.noting.tells_turns()
        self.script.passing.pass_over(draws)
        self._course.goes(Event.PASS, State.GHOST)

    def passes(self) -> None:
        """The first loop that is passed over has come to its first step, as at the peers once."""
        if self.script.peers.elsewhere is None:
            self.script.charge.take(self.script.manager())
        self.script.rewriting.passes()
        self.script.counters.remember()

    def _join(self, event: Event, iterator: LoaderIterator | None) -> bool:
        """Join the peers, and go to their place. ``iterator``: is asked for its next batch.

        Returns:
            False if they have gone on to another loop: they wait until this replica comes there.
        """
        script, manager = self.script, self.script.manager()
        has_passed = script.passing.is_on
        self._course.goes(event, State.JOINING)
        RANGES.steps += COUNT_END  # its peers may have taken many in the loops in which it joins
        if (loaded := script.peers.elsewhere) is not None:
            self._course.goes(Event.BEGUN, STEPPING)
            script.peers.elsewhere, RANGES.tells_all = None, script.trial is not None
            script.ending.load_later()
        else:
            script.noting.begin(script.noting.note())
            if not has_passed:
                script.charge.take(manager)
            if script.peers.are_looked_for:
                self._moving.come_near(iterator)
            loaded = script.start(manager, allow_heal=True)
        if loaded is None and has_passed:
            peers_are_gone()
        if loaded is not None and script.peers.elsewhere is not None:
            self._course.goes(Event.PLACED, State.PASSING)
            script.passing.walk_on(loaded, stack())
            return False
        script.passing.joined()
        if loaded is None:
            script.rewriting.begun()
            script.directories.begins()
            script.repeated.are_left()
            return True  # the peers have gone: nobody to heal from, so it begins at the beginning
        script.counters.restore(loaded)
        script.rewriting.joined()
        script.directories.joined()
        script.repeated.ends()
        begin_again = iterator.begin_again if iterator is not None else lambda _: None
        with script.randomness.joining(loaded, begin_again):
            self._moving.go_to(loaded, iterator, is_drawn=False)
        is_at_draw = iterator is not None or (event is Event.DRAW and script.is_in_place)
        if self._course.now is STEPPING and is_at_draw:
            script.ending.joined_at_draw()
        script.frameworks.capture()
        script.show_place(manager)
        if script.predecessor is not None:
            script.predecessor.come()
        if script.trial is not None:
            script.trial.begins(script.steps_of(manager))
        return True

    # ------------------------------------------------------------ the end

    def raised(self, error: Exception) -> None:
        """The script has failed. Raises ``Refused`` if it is to begin again in another form."""
        is_early = self.script.steps == 0
        if not isinstance(error, Refused):
            self.on_raise(error, is_early)
        elif is_early:
            is_unfit(self.script.here, error)

    @ours
    def ends(self) -> None:
        """The script has ended well: wait for replicas that must heal once more."""
        script, manager = self.script, self.script.made
        if manager is None or not script.models.wrapped:
            return
        state = self._course.now
        if not (state.has_stepped or script.joins_at()):
            return
        if script.passing.is_on:  # it has not come to them
            stands_elsewhere(script.peers.place, stack())
        if not state.has_stepped:  # it has come to the end by a file that its predecessor wrote
            script.carried.has_ended = True
            script.start(manager, allow_heal=True)
            script.ending.has_followed = True
            script.rewriting.joined()
            script.repeated.ends()
            if script.mates.is_lead:
                who = f"replica {script.here.replica_id}"
                told.say(f"{who} joined at the script's end, which it reached by its own files")
        elif script.memory is None and state.is_within and not script.ending.has_followed:
            # Between a pass and its step, which peers wait for.
            self._outcome = manager.should_commit()
        self._course.goes(Event.END, State.ENDED)
        script.ending.finish()
        if not script.ending.has_followed:
            script.standing.finish()
        script.show_place(manager)
        if script.memory is None:
            manager.session.show_end(*script.marking.end())
        part(manager, script.mates, script.here.replica_id)
        if script.trial is not None:
            script.trial.write(script.charge.facts())
        if script.lost:
            told.lost(script.lost, script.steps, come_again=script.exactly_once.is_on)
