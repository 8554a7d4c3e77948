"""The rooms that keep one unmodified script, connected with each other and with the Manager.

Not here: what is done when the script draws, runs its model or steps (loop.py).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ftrun.core.forms import Form
from ftrun.inject.zero_edit.at_fall import AtFall
from ftrun.inject.zero_edit.carried import KEY, Carried
from ftrun.inject.zero_edit.charge import Charge
from ftrun.inject.zero_edit.counting import RANGES
from ftrun.inject.zero_edit.directories import Directories
from ftrun.inject.zero_edit.ending import Ending
from ftrun.inject.zero_edit.exactly_once import ExactlyOnce
from ftrun.inject.zero_edit.files import Drafts
from ftrun.inject.zero_edit.inside import Inside
from ftrun.inject.zero_edit.loaders import OPEN, batches
from ftrun.inject.zero_edit.marking import Marking
from ftrun.inject.zero_edit.mates import Mates
from ftrun.inject.zero_edit.memory import Memory
from ftrun.inject.zero_edit.models import Models
from ftrun.inject.zero_edit.noting import Noting
from ftrun.inject.zero_edit.passing import Passing
from ftrun.inject.zero_edit.peers import Peers
from ftrun.inject.zero_edit.place import Place, summary
from ftrun.inject.zero_edit.predecessor import Predecessor
from ftrun.inject.zero_edit.randomness import Randomness
from ftrun.inject.zero_edit.refusals import ours, refuse_away
from ftrun.inject.zero_edit.repeated import Repeated
from ftrun.inject.zero_edit.rewriting import Rewriting
from ftrun.inject.zero_edit.sparing import SHARE, Sparing
from ftrun.inject.zero_edit.standing import Standing
from ftrun.inject.zero_edit.states import BETWEEN, STEPPING, Course, Event, State
from ftrun.inject.zero_edit.stepping import Stepping
from ftrun.inject.zero_edit.trial import trial_of
from ftrun.inject.zero_edit.values import tensors
from ftrun.inject.zero_edit.values.counters import Counters
from ftrun.inject.zero_edit.values.frameworks import Frameworks
from ftrun.inject.zero_edit.values.own import Own
from ftrun.inject.zero_edit.values.tensors import Tensors
from ftrun.inject.zero_edit.world.quorums import Quorums
from ftrun.inject.zero_edit.world.world import World
from ftrun.snapshots.own_memory import area_here
from ftrun.training import injected
from ftrun.training.context import WorkerContext
from ftrun.training.manager import Manager

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.in_place import InPlace
    from ftrun.inject.zero_edit.loaders import LoaderIterator
    from ftrun.inject.zero_edit.loop import Loop


class Script:
    """One script, with all that ftrun keeps of it. Used by the main thread only.

    Attributes:
        at_fall: leaves its state where all are about to begin again.
        here: this worker; ``mates``: the workers of this replica.
        course: the state in which this replica is; ``loop``: what is called when the script draws,
            runs its model, reduces or steps.
        made: the Manager of this process; None: the script had no need of its peers yet.
        makes_manager: it is being made on the script's behalf.
        steps: that this process has ended; ``lost``: those of them that were not committed.
        come_for: the value of ``steps`` when it last came to a step.
        lacking: what the last place could not set, in words.
        own: the tensors that this worker leaves to its successor.
        predecessor: what a replacement of this worker begins with; None: there would be none.
        has_loaded: a state, since the step that begins was asked for; is_starting: one begins.
    """

    def __init__(
        self,
        here: WorkerContext,
        course: Course,
        loop: Loop,
        memory: Memory | None = None,
        keeper: InPlace | None = None,
    ) -> None:
        self.here, self.course, self.loop, self.memory = here, course, loop, memory
        self.made: Manager | None = None
        self.makes_manager = self._all_are_noted = False
        self.steps = self.lost = 0
        self.come_for = -1
        self.lacking: list[str] = []
        self.has_loaded = self.is_starting = False
        self.mates = Mates(here)
        self.mates.keeper = keeper
        self.peers, self.charge = Peers(self), Charge(self)
        self.frameworks = Frameworks()
        if memory is None:
            self.world = World(here, self.mates.rank, lambda why: self.at_fall.gives_up(why))
        else:
            self.world = memory.world
        kept = memory or keeper
        self.predecessor = None if kept is None else Predecessor(self, kept)
        self.at_fall = AtFall(self)
        self.world.leaves, self.world.asks = self.at_fall.is_on, refuse_away
        self.quorums = Quorums(self.world, here)
        self.counters = Counters(self)
        self.models = models = Models(self)
        self.tensors = Tensors(
            lambda: models.wrapped,
            models.beside,
            self.counters.walk,
            models.bare,
            models.buffers_apart,
        )
        self.tensors.keeps_all = self.counters.walk.reaches_all = kept is not None
        self.tensors.gives_all = keeper is None
        RANGES.are_predecessors = memory is not None or self.is_in_place
        if memory is not None:
            self.tensors.busy = memory.world.busy
        share = SHARE if memory is None else 0.0  # a place goes with a generation
        self.sparing = Sparing(self._needs_place, self.committed, share)
        self.randomness = Randomness(self)
        self.noting = Noting(self)
        self.counters.batches = batches
        self.world.is_of_model = self.tensors.are_trained
        self.stepping = Stepping(self)
        self.counters.walk.optimizers = self.stepping.optimizers.all
        self.tensors.stepping = self.stepping.optimizers.that_heal
        self.tensors.step = self.committed
        self.exactly_once: ExactlyOnce = ExactlyOnce(self)
        self.carried: Carried = Carried(self)
        self.ending: Ending = Ending(self)
        self.standing = Standing()
        self.marking = Marking(self)
        self.trial = trial_of(here)
        self.own = Own(self, area_here if kept is None else lambda: None)
        self.passing, self.inside = Passing(self), Inside(self)
        self.drafts: Drafts = Drafts(self)
        self.directories = Directories(self)
        self.counters.walk.writers = self._writers
        self.rewriting = Rewriting(self)
        if self.predecessor is not None:
            self.rewriting.appended = self.predecessor.appended
        self.repeated = Repeated(self)

    def _writers(self) -> list[Any]:
        return [*self.directories.writers(), *self.frameworks.callbacks]

    def _joins(self) -> bool:
        """Whether it is known before the script makes its process group that it has peers to join:
        its predecessor trained in this form, and a replica of this node does, or all go on with a
        state in memory."""
        kept = self.predecessor
        if kept is not None and kept.keeper.world.is_newcomer:
            return True
        goes_on = self.here.peers_train or self.at_fall.goes_on
        return self.memory is None and goes_on and self.directories.is_successor

    def is_on_its_way(self) -> bool:
        """Whether it has peers to join, as far as that was found out. In any thread."""
        peers = self.peers
        return bool(peers.place.entry) if peers.are_looked_for else self._joins()

    @property
    def is_in_place(self) -> bool:
        """Whether this worker replaces another one, and has not come to its place so far."""
        return self.predecessor is not None and not self.predecessor.has_come

    @property
    def begins_at(self) -> Place | None:
        """Where the predecessor stood in whose place this worker is; None: it is in nobody's, or
        has begun."""
        return None if self.predecessor is None else self.predecessor.place

    @property
    def may_follow(self) -> bool:
        """Whether this worker may follow another one: in its slot, or in an earlier run."""
        return self.here.restarts > 0 or bool(self.here.snapshot_dir) or self._joins()

    def knows_its_peers(self) -> bool:
        """Whether it is known if it has peers to join."""
        return self.memory is not None or self.peers.can_be_found or self._joins()

    def has_peers(self) -> bool:
        """Whether it has peers to join, as far as that is known. Before its first step only."""
        return bool(self.joins_at()) if self.peers.can_be_found else self._joins()

    def life(self) -> str:
        """Of the job; "" before the first step, and where the agent's memory has all."""
        is_left = self.course.now.has_stepped and self.memory is None
        return self.carried.life if is_left else ""

    @property
    def are_together(self) -> bool:
        """Whether all replicas train in the step under way."""
        return len(self.manager().session.exchanges.members()) == self.here.replicas > 1

    def committed(self) -> int:
        """How many steps are committed."""
        return 0 if self.made is None else self.made.current_step()

    def writes(self) -> None:
        """The script begins to write a file: what it has come to since its last step is left to a
        successor, which would not come to it again."""
        if self.course.now is BETWEEN and self.memory is None and self.drafts.is_loops:
            self.own.leave(self.manager().current_step(), compares=False)
            if not any(x.is_fresh for x in OPEN.all()):  # else a successor draws this batch again
                self.randomness.step_ended()

    def file(self, name: str) -> Path:
        """A file of this slot, which outlives this worker."""
        here = self.here
        named = name.format(replica_id=here.replica_id, group_rank=here.group_rank)
        return Path(here.socket_path).parent / named

    # ------------------------------------------------------------ the Manager

    def manager(self) -> Manager:
        """The Manager of this process, made at the script's first need of its peers."""
        if self.made is None:
            self.makes_manager = True
            if self.predecessor is not None:
                self.predecessor.keep()
            self.at_fall.keep()
            made: Any = self.memory or injected.manager(use_async_quorum=False)
            self.made = cast(Manager, made)
            self.makes_manager = False
            ending = self.ending
            for key, load, state in (
                (KEY, ending.load, ending.state),
                (tensors.KEY, ending.load_tensors, ending.tensors),
            ):
                self.made.register_state_dict_fn(key, ours(load), ours(state))
            self.made.session.healing.heal_unlike(tensors.KEY)
            self.made.session.heal_with_place()
            self.made.session.before_reduction = self.loop.before_reduction
            self.made.session.progress.position = self._words
            self.made.session.progress.empty = lambda: self.standing.empty
            if self.memory is None:
                self.made.session.healing.passes.own = lambda: self.tensors.own_buffers
            self.sparing.step = self.made.current_step
            self._all_are_noted = (
                self.made.session.snapshots is not None
                or self.here.min_replicas > 1
                or self.exactly_once.is_on
                or self.trial is not None
            )
            if self.made.session.snapshots is not None:
                self.made.session.snapshots.position = ours(lambda: self.standing.shown().encode())
            if self.at_fall.is_on:
                self.at_fall.connect(self.made.session.engine)
            if self.made.session.resuming is not None:
                self.made.session.resuming.form = Form.DDP.value
        return self.made

    def steps_of(self, manager: Manager) -> int:
        """How many steps of the script's are committed."""
        is_ahead = self.memory is not None  # it counts from 1 on
        return manager.current_step() - self.standing.empty - is_ahead

    def start(self, manager: Manager, *, allow_heal: bool) -> Place | None:
        """Begin a step; the peers' place, if this replica has healed to it.

        A heal that is interrupted leaves nothing: the step is void, and the next one heals.
        """
        self.charge.let_go(joins=not self.course.now.has_stepped)
        if self.models.have_buffers:
            self.models.step_begins()
        self.ending.is_offered, self.is_starting = False, True
        while True:
            self.has_loaded, place = False, None
            if self.predecessor is not None:
                self.predecessor.is_at_place = allow_heal
            manager.start_quorum(allow_heal=allow_heal)
            if self.has_loaded and manager.current_step():
                place = self.peers.loaded()
            lacks = manager.is_healing() or (place is None and self.has_loaded)
            # At step 0 all begin at the same place. Mates go on together, or not at all.
            lacks = lacks and manager.current_step() > 0
            if not (self.mates.any(lacks) if self.mates.are_several else lacks):
                break
            manager.should_commit()
        self.is_starting = False
        self.course.goes(Event.BEGUN, STEPPING)
        RANGES.tells_all = self.trial is not None
        self.tensors.let_go()
        return place

    # ------------------------------------------------------------ places

    def come_to(self, draws: list[LoaderIterator], *, is_late: bool = False) -> Place | None:
        """A step is about to begin with these draws: note where the script stands. None: the step
        has no place, as one that is ``is_late``, in a pass."""
        noting, standing, manager = self.noting, self.standing, self.made or self.manager()
        self.come_for = self.steps
        noted = (draws[0].noted if draws else None) or noting.stands(draws, passes=is_late)
        is_passed = noted.is_passed and noting.first is not None
        place = None if is_passed else noting.place(draws, noted)
        if place is not None:
            self.frameworks.capture()
            standing.is_at(place, manager.current_step())
        else:
            numbers = noting.numbers(draws, standing.functions)
            self.randomness.is_noted &= numbers is None  # a step of the same place
            standing.goes_on(numbers, manager.current_step())
        return place

    def notes_next(self) -> None:
        """Note the script at the next step, if it has drawn for that."""
        if self.noting.has_drawn_next:
            self.come_to(self.noting.training())

    def joins_at(self) -> str:
        """The stack at which the peers draw, if they train and this replica has not joined."""
        return "" if self.course.now.has_stepped else self.peers.entry

    def show_place(self, manager: Manager) -> None:
        """Show peers that heal where the script stands in this step."""
        shown, is_far = self.standing.shown, self.counters.walk.is_far
        manager.session.exchanges.show_place(lambda: self.encoded(shown().for_peers(is_far)))

    @ours
    def _words(self) -> str:
        """Where the script stands, for people; "" before its first step. In any thread."""
        return summary(self.standing.shown()) if self.course.now.has_stepped else ""

    @ours
    def encoded(self, place: Place) -> str:
        """A place of this replica, for a newcomer or a successor. In any thread."""
        calls = self.world.since(place.exchanges, place.has_finished)
        return replace(place, calls=calls).encode()

    def _needs_place(self) -> bool:
        """Whether the step that begins must have a place: it may be asked for one.

        If more than one replica is to train, a step may have to wait for one that joins in it. The
        loops of a package count at many places in a step.
        """
        manager, drafts = self.made, self.drafts
        named, drafts.has_named = drafts.has_named, False
        return (
            named  # the script may keep a list of its files, of which nobody else has one
            or manager is None
            or not self.course.now.has_stepped
            or self._all_are_noted
            or manager.session.awaits_newcomers
            or not self.world.is_whole
            or self.standing.is_in_package
            or (self.at_fall.is_on and self.world.needs_all)
            or (self.predecessor is not None and self.predecessor.is_due())
        )

    def may_load(self) -> bool:
        """Whether the peers' state is loaded now, and not when this newcomer has come to them."""
        return self.course.now is not State.JOINING or not self.peers.have_gone()

    def has_model(self) -> None:
        """The script has made its first model: this worker is not the first thing that trains."""
        RANGES.tells_all = True
        if self.mates.are_several:
            self.peers.look()
        if self.may_follow and self.joins_at():
            self.rewriting.passes()
