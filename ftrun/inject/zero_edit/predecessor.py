"""An unmodified script whose workers are replaced in place: what a generation has beside the state.

Such a worker's only peer is its own predecessor, at the begin of whose generation it joins. Where
that stood in the script, its random numbers, its batches and its groups across replicas are in the
generation's head. A generation is made at a step with a place, and not before the first commit.

Not here: the memory and the Manager's part (in_place.py), joining (loop.py), the groups
(world/succeeding.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ftrun.core.ids import Attempt
from ftrun.core.quorum import Quorum
from ftrun.core.replay.falls import Fall
from ftrun.core.replay.log_rules import Misses
from ftrun.inject.zero_edit import suspended
from ftrun.inject.zero_edit.batches import Batches
from ftrun.inject.zero_edit.counting import RANGES
from ftrun.inject.zero_edit.frames import call_site
from ftrun.inject.zero_edit.gradients import Gradients
from ftrun.inject.zero_edit.patches import Patches
from ftrun.inject.zero_edit.place import Place
from ftrun.inject.zero_edit.world import succeeding
from ftrun.inject.zero_edit.world.replayed import stay
from ftrun.snapshots.area import Entry

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.in_place import InPlace
    from ftrun.inject.zero_edit.script import Script


class Predecessor:
    """Of one worker, and this one as that of its replacement. For the main thread.

    Attributes:
        place: at which this replacement begins; None: it is none, or has its predecessor's state.
        has_come: this worker is no replacement, or stands where its predecessor stood.
    """

    def __init__(self, script: Script, keeper: InPlace) -> None:
        self._script, self.keeper, self._world = script, keeper, script.world
        self.place = Place.decode(keeper.place) if keeper.is_repeating else None
        self.has_come = keeper.world.is_proven = not keeper.is_repeating
        self._is_at_place = self._is_passing = False
        self.batches = Batches(self.is_due, self.differs)
        self._misses = Misses()
        self._gradients = Gradients(lambda: script.stepping.optimizers.all(), self.lacks)
        self._groups: dict[str, Any] = {}
        self._bodies: Sequence[bytes] = ()

    def install(self, patches: Patches) -> None:
        self.batches.install(patches)
        self._script.models.on_inputs = self._passes
        self._gradients.install(patches)

    def keep(self) -> None:
        """The script's Manager is about to be made."""
        self.keeper.predecessor, self._world.keeper = self, self.keeper

    def lacks(self, what: Sequence[str]) -> None:
        """A replacement would be, or is, without something that the script trains with."""
        if what:
            self.keeper.world.falls(Fall.SCRIPT, f"it would go on without {', '.join(what)}")
        if what and self.keeper.is_repeating:
            stay()

    def differs(self, what: Sequence[str]) -> None:
        """This replacement has not what its predecessor had in this step, and must not go on."""
        self.lacks(what)
        stay()

    def _passes(self, inputs: Any) -> None:
        """A pass in training begins; None: the loop has been told of it."""
        self._is_passing = inputs is not None
        if self._is_passing:
            self.batches.passes(inputs)
            self._is_like_before()

    def _is_like_before(self) -> None:
        """A replacement's first pass: what it gets is what its predecessor got."""
        if self.has_come:
            self.keeper.world.proves()

    # ------------------------------------------------------------ while it trains

    def is_due(self) -> bool:
        """Whether a generation is due in the step that begins."""
        made = self._script.made
        return made is not None and self.keeper.wants(made.current_step())

    @property
    def calls_within(self) -> int:
        """How many calls inside this replica the worker has made."""
        return self.keeper.world.count

    def is_noted(self) -> None:
        """The script is noted, perhaps at the place of the step that begins next."""
        made, course = self._script.made, self._script.course.now
        if made is not None and not course.is_in_step:
            self.keeper.is_noted(made.current_step())

    def step_ended(self) -> None:
        """A step is taken."""
        self.batches.step_ended()

    # ------------------------------------------------------------ a generation

    @contextmanager
    def at_place(self) -> Iterator[None]:
        """A step begins that has a place."""
        self._is_at_place = True
        try:
            yield
        finally:
            self._is_at_place = False

    def left(self) -> tuple[dict[str, Any], list[bytes]] | None:
        """The head of a generation of the step that has begun, and more bytes of it. None: nobody
        could begin there."""
        script, made = self._script, self._script.made
        place: Place = script.standing.shown()
        if not (self._is_at_place and made is not None and made.current_step()):
            return None
        is_known, is_settled = bool(place.loaders or place.turn), succeeding.is_settled(self._world)
        lacks = self._misses.look(is_logged=True, is_known=is_known, is_settled=is_settled)
        if lacks is not None:
            if self._misses.are_too_many and lacks is Fall.SCRIPT:
                self.lacks([f"the batch at {call_site()}: no loader and no range() loop gives it"])
            elif self._misses.are_too_many:
                self.keeper.world.falls(lacks, lacks.words)
            return None
        names, random = script.randomness.encoded()
        groups, bodies = succeeding.left_of(self._world)
        printed, appended = script.noting.printed, script.noting.appended
        head = {
            "count": place.within,
            "place": script.encoded(),
            "batches": self.batches.digests(),
            "draws": self.batches.have_drawn,
            "iterators": names,
            "random": len(random),
            "groups": groups,
            "printed": () if printed is None else printed.at_place,
            "step": (step := made.current_step()),
            "files": {} if appended is None else appended.for_generation(step),
        }
        return head, [*random, *bodies]

    @contextmanager
    def giving(self) -> Iterator[None]:
        """The state is asked for, for a successor."""
        self._script.tensors.gives_all = True
        try:
            yield
        finally:
            self._script.tensors.gives_all = False

    def is_left(self) -> None:
        """A generation is made."""
        self._gradients.are_left_out()

    def inherits(self, head: dict[str, Any], bodies: Sequence[bytes]) -> None:
        """All replicas were restarted, and this worker goes on from a generation of before."""
        self._script.randomness.given = head["iterators"], list(bodies[: head["random"]])
        self._generators_of(head)  # what does not come there is told as it joins

    def _generators_of(self, head: dict[str, Any]) -> list[str]:
        """Let the generators that the script holds stand where they stood; those that do not."""
        walk, held = self._script.counters.walk, Place.decode(head["place"]).held
        return suspended.come_to(walk.held(), [suspended.Suspended(*x) for x in held])

    # ------------------------------------------------------------ a replacement

    @property
    def has_calls(self) -> bool:
        """Whether its predecessor has made more calls across replicas."""
        return succeeding.has_more(self._world)

    def begins(self, head: dict[str, Any], bodies: Sequence[bytes]) -> None:
        """This replacement is about to load the state of its predecessor's generation."""
        script, keeper = self._script, self.keeper
        random, self._bodies = bodies[: head["random"]], bodies[head["random"] :]
        self._groups = head["groups"]
        script.randomness.given = head["iterators"], list(random)
        states = random[len(head["iterators"]) :]
        self.batches.expect(head["batches"], states, have_drawn=head["draws"])
        if self._is_passing:  # of the first step: there was no draw before it
            self.batches.compare()
        self.lacks(self._generators_of(head))
        if script.noting.appended is not None:
            script.noting.appended.goes_on(head["step"], head["files"])
        if script.noting.printed is not None:
            script.noting.printed.goes_on(head["printed"], lambda: keeper.is_repeating)

    def come(self) -> None:
        """This worker stands where its predecessor stood, or its peers."""
        self.has_come, RANGES.are_predecessors = True, False
        if self._is_passing:
            self._is_like_before()

    def goes_on(self, quorum: Quorum, seen: Attempt, logged: Sequence[Entry]) -> None:
        """Its state is loaded: be where the predecessor was in the groups across replicas."""
        with self._world.changed:
            is_like = succeeding.go_on(self._world, self._groups, self._bodies, logged)
            self._script.quorums.succeed(quorum, seen)
        self.place = None
        if not is_like:
            self.lacks(["the process groups that its predecessor had"])
