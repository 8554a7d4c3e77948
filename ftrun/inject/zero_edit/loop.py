"""The script's training loop: boundaries of steps, a newcomer's way to its peers' place, the end.

Theory of operation. The first draw from a loader after a step notes where the script stands: its
frames, the plain values in them, its ``range`` loops. The first forward pass in training after a
commit begins a step (``start_quorum``); the first ``optimizer.step()`` decides it. The *place* of a
step is that of the first draw since the step before, and heals with the rest of the state.

A newcomer runs the script from its beginning, with the peers' results of all exchanges of the
set-up. At the first draw at which its stack equals the one at which its peers' loader gave its
first batch, it joins: the state heals first, then loops, loaders and counters are set to the peers'
place, and the draw yields the first batch that they train on. So no epoch is run twice, and a loop
that draws ahead (cursor.py) draws its next ones by itself. A loop that draws from no loader is
joined at the forward pass, in the same way.

Replicas join only at steps with a draw: a loop may take several between two draws (two models). At
the end a replica lingers until all others have come to it (training/lingering.py).

Not here: what is patched (models.py, stepping.py, loaders.py, counting.py, world.py), what a place
is made of (noting.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from ftrun.core.forms import Form
from ftrun.core.worker.marks import PARAMETERS_EVERY
from ftrun.errors import UserError
from ftrun.inject.zero_edit import charge, tensors, told
from ftrun.inject.zero_edit.carried import KEY, Carried
from ftrun.inject.zero_edit.counters import Counters
from ftrun.inject.zero_edit.ending import Ending
from ftrun.inject.zero_edit.exactly_once import ExactIterator, ExactlyOnce
from ftrun.inject.zero_edit.files import Drafts
from ftrun.inject.zero_edit.frames import (
    Spot,
    call_site,
    stack,
)
from ftrun.inject.zero_edit.frameworks import Frameworks
from ftrun.inject.zero_edit.lane import Lane
from ftrun.inject.zero_edit.loaders import OPEN, LoaderIterator, refuse_threads
from ftrun.inject.zero_edit.marking import Marking
from ftrun.inject.zero_edit.mates import Mates
from ftrun.inject.zero_edit.models import Models
from ftrun.inject.zero_edit.moving import Moving
from ftrun.inject.zero_edit.noting import Noted, Noting
from ftrun.inject.zero_edit.passing import (
    Passing,
    check_phase,
    peers_are_gone,
    stands_elsewhere,
)
from ftrun.inject.zero_edit.peers import Peers
from ftrun.inject.zero_edit.place import Place, digest, summary
from ftrun.inject.zero_edit.randomness import renew_random
from ftrun.inject.zero_edit.reading import come_near
from ftrun.inject.zero_edit.refusals import Refused, is_unfit, refuse
from ftrun.inject.zero_edit.rewriting import Rewriting
from ftrun.inject.zero_edit.sparing import Sparing
from ftrun.inject.zero_edit.standing import Standing
from ftrun.inject.zero_edit.stepping import Stepping
from ftrun.inject.zero_edit.tensors import Tensors
from ftrun.inject.zero_edit.trial import digests_of, trial_of
from ftrun.inject.zero_edit.world.quorums import Quorums
from ftrun.inject.zero_edit.world.world import World
from ftrun.training import injected
from ftrun.training.context import WorkerContext
from ftrun.training.manager import Manager

LINGER = timedelta(minutes=5)
"""How long those that have come to the end wait for the others: as long as torchrun's agents do."""


class Loop:
    """Connects the script's loop with the Manager. Used by the main thread only.

    Attributes:
        in_step: a step is under way.
        makes_manager: the Manager of this process is being made on the script's behalf.
        mates: the workers of this replica.
        on_raise: called if the script fails before its first step.
        on_world: called before the script makes its process group.
        steps: that this process has ended; ``lost``: those of them that were not committed.
    """

    def __init__(self, here: WorkerContext) -> None:
        self.in_step = self.makes_manager = False
        self.on_raise: Callable[[BaseException], None] = lambda error: None
        self.steps = self.lost = 0
        self.on_world: Callable[[], None] = lambda: None
        self.mates = Mates(here)
        self._peers = Peers(here, self.mates, self.manager)
        self._frameworks = Frameworks()
        self.world = World(here, self.mates.rank, _one_world)
        self.quorums = Quorums(self.world, here)
        self.counters = Counters(
            here,
            self._frameworks,
            lambda: self.manager().current_step(),
            lambda: self._carried.life if self._has_stepped else "",
            self.world.given,
            lambda: len(self.manager().exchanges.members()) == here.replicas > 1,
        )
        self._tensors = Tensors(
            lambda: self.models.wrapped,
            lambda: self.models.loose(),
            lambda: self.models.late_roots(),
        )
        self._sparing = Sparing(
            self._needs_place,
            lambda: 0 if self._manager is None else self._manager.current_step(),
        )
        self._noting = Noting(
            self._frameworks,
            self.counters,
            self._tensors,
            lambda: self.world.count,
            self._sparing,
        )
        self.models = Models(
            self.mates, self.world, self.manager, self.before_forward, self._evaluation
        )
        self.models.on_first = self._has_model
        self.stepping = Stepping(
            self.models.has_parameter_of,
            self.commit,
            lambda: self.in_step,
            lambda: self._ending.stands_still or self.passing.is_on,
            lambda: (self.steps, self.steps - self.lost) if self.exactly_once.is_on else None,
        )
        self.stepping.on_late = self.models.on_late = self._made_late
        self.exactly_once = ExactlyOnce(
            here.data,
            self.manager,
            lambda: bool(self.models.wrapped),
            self._replays_left,
            here.global_batch,
            here.workers_per_replica,
        )
        self._here = here
        self._manager: Manager | None = None
        self._carried = Carried(
            self.models,
            self.stepping,
            self._frameworks,
            self._check_phase,
            self._note_loaded,
            here.key.incarnation,
        )
        self._ending = Ending(
            self._carried, self._tensors, lambda: self.manager().current_step() > 0
        )
        self._first: Noted | None = None
        self._standing = Standing()
        self._marking = Marking(self.mates, self._standing)
        self._lane = Lane(self._awaits_newcomers, self._noting.leave_lane)
        self._has_loaded = False
        self._has_stepped = False
        self._joins_from: tuple[Spot, ...] = ()  # while it joins
        self._outcome = True
        self._is_told = False
        self._trial = trial_of(here)
        self._moving = Moving(
            here,
            lambda: self.mates.is_lead,
            self._carried,
            self.counters,
            self._tensors,
            self._ending,
            self._set_calls,
            self._trial,
        )
        if self._trial is not None:
            self._noting.look = self._trial.look
        self.passing = Passing(here, self.mates, self.world, lambda: self.models.wrapped)
        self.passing.on_begin = self._passes
        pid = os.getpid()  # a loader's workers, which it has forked, write for the loop after it
        self.drafts = Drafts(
            self.mates.rank,
            lambda: self.passing.is_on and os.getpid() == pid,
            lambda: self._peers.can_be_found and bool(self._joins_at()) and os.getpid() == pid,
        )
        self.rewriting = Rewriting(
            self.drafts,
            is_successor=here.restarts > 0 or bool(here.snapshot_dir),
            has_world=lambda: self._peers.can_be_found,
            joins=lambda: bool(self._joins_at()),
            has_begun=lambda: self._has_stepped,
        )
        self._batches_of = ""

    # ------------------------------------------------------------ the Manager

    def manager(self) -> Manager:
        """The Manager of this process, made at the script's first need of its peers."""
        if self._manager is None:
            self.makes_manager = True
            self._manager = injected.manager(use_async_quorum=False)
            self.makes_manager = False
            ending = self._ending
            self._manager.register_state_dict_fn(KEY, ending.load, ending.state)
            self._manager.register_state_dict_fn(tensors.KEY, ending.load_tensors, ending.tensors)
            self._manager.heal_unlike(tensors.KEY)
            self._manager.heal_with_place()
            self._manager.before_reduction = self._before_reduction
            if self._manager.snapshots is not None:
                self._manager.snapshots.position = lambda: self._standing.shown().encode()
            if self._manager.resuming is not None:
                self._manager.resuming.form = Form.DDP.value
        return self._manager

    def _joins_at(self) -> str:
        """The stack at which the peers draw, if they train and this replica has not joined."""
        return "" if self._has_stepped else self._peers.entry

    def _has_model(self) -> None:
        """The script has made its first model: this worker is not the first thing that trains."""
        if self.mates.are_several:
            self._peers.look()
        if self.rewriting.is_successor and self._joins_at():
            self.rewriting.passes()

    # ------------------------------------------------------------ draws

    def before_draw(self, iterator: LoaderIterator) -> None:
        """A loader is asked for its next batch."""
        if not self.models.wrapped:
            return
        self._lane.close()
        if self._trial is not None and not iterator.entry:
            self._trial.loader_begins()
        self._ending.before_draw()
        if self._joins_at():
            self.passing.before_draw(iterator)
            if not iterator.cursor.has_ended and self._comes_to_peers(stack(), iterator):
                self._join(stack(), iterator)
            elif isinstance(iterator, ExactIterator):
                stands_elsewhere(self._peers.place, stack())
        self._noting.draw(iterator)
        if isinstance(iterator, ExactIterator) and not self._ending.has_followed:
            self._begin_at_draw(iterator)

    def _evaluation(self) -> None:
        self._lane.close()
        self._noting.evaluation()
        if self._trial is not None:
            self._trial.evaluates()

    def loader_ended(self, iterator: LoaderIterator) -> None:
        """A loader has no further batch."""
        if iterator.is_training and self._has_stepped and not self.in_step:
            if not (self._outcome or self.exactly_once.is_on or self._ending.has_followed):
                self._catch_up()
            self._ending.loader_ended()

    def _catch_up(self) -> None:
        """Let the code after the loop, such as an evaluation, see the peers' state."""
        manager = self.manager()
        try:
            while self.mates.any(not manager.catch_up()):
                pass  # interrupted: each try waits for a quorum, which has a deadline
        except TimeoutError as error:
            told.say(
                f"replica {self._here.replica_id} has lost its last step, and goes on with the "
                f"state before it: {error}"
            )
        self._outcome = True

    def _begin_at_draw(self, iterator: ExactIterator) -> None:
        """Begin a step at its draw: a step decides which samples are this replica's."""
        if not self.in_step and not iterator.is_over:
            self._begin([iterator])
        elif self.in_step and iterator.is_fresh:
            iterator.refuse_several()

    # ------------------------------------------------------------ steps

    def before_forward(self) -> bool:
        """A forward pass in training: the first one after a commit begins a step.

        Returns:
            False if the pass does not count: the peers have finished, or are in another loop.
        """
        if self._lane.iterator is not None:
            if self.in_step:
                return True
            if self._lane.is_drawn:
                self._begin_in_lane()
                return True
            self._lane.close()
        draws = self._noting.training()
        refuse_threads(draws)
        self._moving.step_begins()
        if self._ending.has_followed:
            self.in_step = True  # of a step that it goes through again
            return False
        if self._is_behind():
            return False
        if self.in_step and not self.passing.is_on:
            return True
        self.exactly_once.expect()
        if self._joins_at():
            if not self._comes_to_peers(stack(), None):
                self._pass_over(draws)
                return False
            self._join(stack(), None)
            return not self._ending.has_followed
        self._begin(draws)
        return True

    def _before_reduction(self) -> bool:
        """A backward pass reduces gradients; False: they are this replica's alone.

        A loop may take several steps after one forward pass. The second one begins here; nobody
        joins in it, because a newcomer cannot begin in the middle of a pass.
        """
        if not self._has_stepped:
            return True
        if self.passing.is_on or self._ending.has_followed:
            return False
        if self._is_behind():
            return False
        if not self.in_step:
            self._begin(self._noting.training(), is_late=True)
        return True

    def _is_behind(self) -> bool:
        """Whether a pass is of a step that the peers have taken before this replica joined."""
        return self._ending.is_behind and self._ending.pass_begins()

    def _comes_to_peers(self, here: tuple[Spot, ...], iterator: LoaderIterator | None) -> bool:
        """Whether this newcomer has come to the place at which its peers have begun their loop.

        ``iterator``: is asked for its first batch.
        """
        if digest(here) != self._joins_at():
            return False
        place = self._peers.now()  # they may have gone on meanwhile
        is_left = bool(place.entry) and digest(place.entry) != digest(here)
        is_other = iterator is not None and iterator.is_other_than(place.loaders)
        return not (is_left or is_other or self.counters.unlike_loops(place))

    def _pass_over(self, draws: list[LoaderIterator]) -> None:
        """Pass over a loop in which the peers are not."""
        if not self.passing.knows(draws) and not self._peers.now().entry:
            peers_are_gone()
        here = (draws[0].entry if draws else ()) or stack()
        place = self._peers.place
        self.passing.pass_over(place, here, draws, self.counters.unlike_loops(place))
        self.in_step = True

    def _passes(self) -> None:
        """The first loop that is passed over has come to its first step, as at the peers once."""
        self._take_charge(self.manager())
        self.rewriting.passes()
        self.counters.remember()

    def _check_phase(self) -> None:
        """The peers may have gone on to another loop, or to another turn of one that cannot be set,
        since they were asked where they draw."""
        place = self._peers.loaded() if self._joins_from else None
        if place is not None:
            check_phase(place, self._joins_from, self.counters.unlike_loops(place))

    def _begin(self, draws: list[LoaderIterator], *, is_late: bool = False) -> None:
        """Begin a step at the place of the last draw; none that ``is_late``, in a pass, has one."""
        noted = (draws[0].noted if draws else None) or self._noting.stands(draws, passes=is_late)
        if self._first is None:
            self._first = self._begin_counting(noted)
        place = None if noted.is_passed else self._noting.place(draws, noted, self._first)
        if place is not None:
            self._frameworks.capture()
            self._standing.is_at(place)
        else:
            self._standing.goes_on(self._noting.numbers(draws, self._standing.functions))
        manager = self.manager()
        if not self._has_stepped:
            self._take_charge(manager)
        self._come_back(self._start(manager, allow_heal=place is not None), draws)
        self._show_place(manager)
        if self._trial is not None:
            self._trial.begins(manager.current_step())

    def _come_back(self, loaded: Place | None, draws: list[LoaderIterator]) -> None:
        """A replica has healed that has trained before: go to its peers' place, if it was out of
        the quorum for some steps."""
        if loaded is not None and not self._standing.is_like(loaded):
            is_drawn = not any(x.begins_steps for x in draws)
            self._moving.go_to(loaded, draws[0] if draws else None, is_drawn=is_drawn)
            self._standing.is_at(loaded)

    def _begin_in_lane(self) -> None:
        """Begin a step at which nothing is to be looked at, unless this replica heals in it."""
        manager = self.manager()
        self._has_loaded = False
        manager.start_quorum(allow_heal=False)
        if not (self._has_loaded or manager.is_healing()):
            self._lane.is_begun = self.in_step = True
            return
        self._lane.close()
        draws = self._noting.training()
        self._standing.goes_on(self._noting.numbers(draws, self._standing.functions))
        self._come_back(self._start(manager, allow_heal=False, is_begun=True), draws)
        self._show_place(manager)

    def _open_lane(self, iterator: LoaderIterator | None, manager: Manager) -> None:
        """After a step: go through the next ones without a look, if they are short."""
        if self._needs_place() or self._moving.is_on_its_way or self.mates.are_several:
            iterator = None
        step, due_step = manager.current_step(), self._sparing.due_step
        if not self._lane.look(iterator, self._standing.ranges, step, due_step):
            return
        self._standing.goes_through(self._lane.numbers)
        shown = self._standing.shown

        def encode(step: int) -> str | None:
            is_now = self._lane.is_begun and manager.current_step() == step
            return self._encoded(shown()) if is_now else None

        manager.progress.position = lambda: summary(shown())
        manager.exchanges.show_place_now(encode)

    def _awaits_newcomers(self) -> bool:
        return self._manager is not None and self._manager.awaits_newcomers

    def _needs_place(self) -> bool:
        """Whether the next step must have a place, because it may be asked for one.

        If more than one replica is to train, a step may have to wait for one that joins in it. The
        loops of a package count at many places in a step.
        """
        manager = self._manager
        return (
            manager is None
            or not self._has_stepped
            or manager.snapshots is not None
            or manager.awaits_newcomers
            or self._here.min_replicas > 1
            or self.exactly_once.is_on
            or self._trial is not None
            or self._standing.is_in_package
            or (manager.current_step() + 1) % PARAMETERS_EVERY == 0
        )

    def _begin_counting(self, noted: Noted) -> Noted:
        self.counters.begin(noted.read)
        self._tensors.begin()
        return replace(noted, read=noted.read.without_containers())

    def _show_place(self, manager: Manager) -> None:
        shown = self._standing.shown
        manager.progress.position = lambda: summary(shown())
        manager.exchanges.show_place(lambda: self._encoded(shown()))

    def _start(self, manager: Manager, *, allow_heal: bool, is_begun: bool = False) -> Place | None:
        """Begin a step; the peers' place, if this replica has healed to it.

        A heal that is interrupted leaves nothing: the step is void, and the next one heals.
        """
        self.models.step_begins()
        while True:
            if not is_begun:
                self._has_loaded = False
                manager.start_quorum(allow_heal=allow_heal)
            is_begun, place = False, None
            if self._has_loaded and manager.current_step():
                place = self._peers.loaded()
            lacks = manager.is_healing() or (place is None and self._has_loaded)
            # At step 0 all begin at the same place. Mates go on together, or not at all.
            if not self.mates.any(lacks and manager.current_step() > 0):
                break
            manager.should_commit()
        self._has_stepped = self.in_step = True
        return place

    def commit(self) -> bool:
        """The first optimizer steps: whether it may. Further ones of the same step follow it."""
        if self._ending.has_followed:
            if self.in_step:
                self.in_step = False
                self._replay()
            return False
        if self.passing.is_on:
            if self.in_step:
                self.in_step = False
                self._noting.commit()
            return False
        if self._ending.is_behind:
            self._ending.pass_ends()
            self._noting.commit()
            if self._trial is not None:
                self._trial.goes_through_again()
            return False
        if self.in_step:
            self._outcome = self.manager().should_commit()
            self.in_step = False
            self.steps += 1
            self._ending.step_ended()
            if self._outcome and self._lane.is_begun:
                self._lane.committed()
                self._standing.step_ended()
                return True
            self._lane.close()
            if self._outcome:
                self._marking.mark(self.manager())
                if self._trial is not None:
                    self._trial.committed(self.manager(), self._facts)
            self._standing.step_ended()
            self.lost += not self._outcome
            last = self._noting.commit()
            if self._outcome:
                self._open_lane(last, self.manager())
        return self._outcome

    def _replays_left(self) -> int | None:
        return self._ending.replays if self._ending.has_followed else None

    def _replay(self) -> None:
        if not self._ending.replays:
            raise UserError(
                f"this replica was started again, and has come to the end of its peers, which have "
                f"finished; but its script trains on at {call_site()}. It has joined them at the "
                "same lines in another call, or goes on by values that ftrun does not carry"
            )
        self._ending.step_again()

    # ------------------------------------------------------------ joining

    def _note_loaded(self) -> None:
        self._has_loaded = True

    def _join(self, here: tuple[Spot, ...], iterator: LoaderIterator | None) -> None:
        """Join the peers, and go to their place. ``iterator``: is asked for its next batch."""
        manager = self.manager()
        noted = self._noting.note()
        self._first = replace(noted, read=noted.read.without_containers())
        self._tensors.begin()
        self.in_step, has_passed = False, self.passing.is_on
        if not has_passed:
            self._take_charge(manager)
        if self._peers.are_looked_for:
            who = f"replica {self._here.replica_id}"
            come_near(iterator, self._peers.now, who=who, tells=self.mates.is_lead)
        self._joins_from = here
        loaded = self._start(manager, allow_heal=True)
        self._joins_from = ()
        if loaded is None and has_passed:
            peers_are_gone()
        self.passing.joined()
        if loaded is None:
            self.rewriting.begun()
            return  # the peers have gone: nobody to heal from, so it begins at the beginning
        self.counters.restore(loaded)
        self.rewriting.joined()
        renew_random(self.mates.rank, manager.current_step())
        self._moving.go_to(loaded, iterator, is_drawn=False)
        self._standing.is_at(loaded)
        self._frameworks.capture()
        self._show_place(manager)
        if self._trial is not None:
            self._trial.begins(manager.current_step())

    def _set_calls(self, place: Place) -> None:
        self._noting.has_place = True
        self.world.is_following = place.has_finished
        self.world.given.take(place.details().given)
        self.world.replay(place.exchanges, place.calls)

    def _encoded(self, place: Place) -> str:
        """For a newcomer, in any thread."""
        calls = self.world.since(place.exchanges, place.has_finished)
        return replace(place, calls=calls).encode()

    # ------------------------------------------------------------ the beginning and the end

    def _take_charge(self, manager: Manager) -> None:
        """Before the first step: what ftrun carries from now on, and what it does not."""
        for created in (self.stepping.optimizers, self.stepping.schedulers, self.stepping.scalers):
            created.keep()
        self.models.keep()
        optimizers = self.stepping.optimizers.all()
        managed = [x for x in optimizers if self.models.has_parameter_of(x)]
        self._marking.optimizers = managed
        for optimizer in managed:
            manager.watch_optimizer(optimizer)
        self.models.average_sharded(manager, managed)
        self._batches_of = self.exactly_once.words() or OPEN.words()
        if self._is_told:
            return
        self._is_told = True
        if self._trial is not None:
            self._trial.watch(self.models.wrapped)
        if self.mates.rank == 0 and not self._joins_at():
            told.say(charge.line(self.models, self.stepping, self._batches_of))

    def _made_late(self, what: str) -> None:
        if not self.mates.rank and self._has_stepped and not self._ending.has_followed:
            told.made_late(call_site(), what, self.steps)

    def _facts(self) -> dict[str, Any]:
        """For the report of a trial."""
        carried, loose = charge.parts(self.models, self.stepping)
        carried.append(f"batches of {self._batches_of}")
        tensors = self._tensors.carried()
        if tensors:
            paths = sorted({path for _, path in tensors})
            carried.append(f"tensors {', '.join(paths)}")
        return {
            "parameters": self._marking.digest(),
            "kept": digests_of(
                self.models.wrapped,
                {**self.models.loose(), **self.models.late_roots()},
                self._marking.optimizers,
            ),
            "lost": self.lost,
            "carried": carried,
            "loose": loose,
            "tensors": tensors,
            "changing": self._tensors.changing(),
            "lacking": self._moving.lacking,
        }

    def raised(self, error: BaseException) -> None:
        """The script has failed. Raises ``Refused`` if it is to begin again in another form."""
        if self.steps == 0 and isinstance(error, Refused):
            is_unfit(self._here, error)
        elif self.steps == 0:
            self.on_raise(error)

    def ends(self) -> None:
        """The script has ended well: wait for replicas that must heal once more."""
        self._lane.close()
        if self._manager is None or not self.models.wrapped:
            return
        if not (self._has_stepped or self._joins_at()):
            return
        if self.passing.is_on:
            stands_elsewhere(self._peers.place, stack())
        if not self._has_stepped:  # it has come to the end by a file that its predecessor wrote
            self._carried.is_over()
            self._start(self._manager, allow_heal=True)
            self._ending.has_followed = True
            self.rewriting.joined()
        if self.in_step and not self._ending.has_followed:  # between a forward pass and its step
            self._outcome = self._manager.should_commit()
            self.in_step = False
        self._ending.finish()
        if not self._ending.has_followed:
            self._standing.finish()
        self._show_place(self._manager)
        self.mates.any(False)  # they come together: one of them may still write a file
        is_together = self._manager.linger(LINGER)
        if self._manager.ends_early:
            told.left_early(self._here.replica_id, self._manager.current_step())
        elif not is_together:
            told.say(
                f"replica {self._here.replica_id} ends although others have not come to the end"
            )
        if self.mates.is_lead and not self._manager.ends_early:
            told.rank_0_missing(self._here.replica_id, self._manager.exchanges.members())
        if self._trial is not None:
            self._trial.write(self._facts())
        if self.lost:
            told.lost(self.lost, self.steps, come_again=self.exactly_once.is_on)


def _one_world(reason: str) -> None:
    """Nobody can follow the script any more: it begins again as one world."""
    refuse(reason)
