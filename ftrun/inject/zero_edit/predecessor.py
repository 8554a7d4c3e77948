"""An unmodified script whose workers are replaced in their group: what a generation has beside the
state, in one group (memory.py) and in a replica among others (in_place.py).

Such a worker's only peer is its own predecessor, at the begin of whose generation it joins. Where
that stood in the script, its random numbers, its batches, its files, its lines, and its groups
across replicas are in the generation's head. A generation is made at a step with a place, and in a
replica among others not before the first commit.

Not here: the memory and the Manager's part (memory.py, in_place.py), joining (loop.py), the groups
(world/succeeding.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ftrun.core.ids import Attempt
from ftrun.core.quorum import Quorum
from ftrun.core.replay.falls import Fall
from ftrun.core.replay.log_rules import Misses
from ftrun.inject.zero_edit import appended, suspended
from ftrun.inject.zero_edit.appended import Appended
from ftrun.inject.zero_edit.batches import Batches
from ftrun.inject.zero_edit.counting import RANGES
from ftrun.inject.zero_edit.frames import call_site
from ftrun.inject.zero_edit.gradients import Gradients
from ftrun.inject.zero_edit.patches import Patches
from ftrun.inject.zero_edit.place import Place
from ftrun.inject.zero_edit.printed import Printed
from ftrun.inject.zero_edit.world import succeeding
from ftrun.inject.zero_edit.world.replayed import stay
from ftrun.snapshots.area import Entry
from ftrun.snapshots.board import Word

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.in_place import InPlace
    from ftrun.inject.zero_edit.memory import Memory
    from ftrun.inject.zero_edit.script import Script


class Predecessor:
    """Of one worker, and this one as that of its replacement. For the main thread.

    Args:
        keeper: of the worker.

    Attributes:
        place: at which this replacement begins; None: it is none, or stands there.
        has_come: this worker is no replacement, or stands where its predecessor stood.
        is_at_place: the step that begins has a place.
        is_passing: a pass in training begins, of which the loop is being told.
        batches, gradients: what they are, beside the state; ``appended``, ``printed``: the files to
            which the script appends, and the lines that it prints.
    """

    def __init__(self, script: Script, keeper: InPlace | Memory) -> None:
        self.script, self.keeper, self._world = script, keeper, script.world
        own = keeper.world
        self.place = Place.decode(keeper.place) if own.is_newcomer else None
        self.has_come = own.is_proven = not own.is_newcomer
        self.is_at_place = self.is_passing = False
        self.batches = Batches(self)
        self._misses = Misses()
        self.gradients = Gradients(lambda: script.stepping.optimizers.all(), self.lacks)
        self.printed = Printed(keeper.board, own.rank)
        others = (own.memory, own.rank) if own.memory.spans else None
        self.appended = Appended(script.file(appended.FILE), others)
        self._groups: dict[str, Any] = {}
        self._bodies: Sequence[bytes] = ()

    def install(self, patches: Patches) -> None:
        self.batches.install(patches)
        self.gradients.install(patches)

    def keep(self) -> None:
        """The script's Manager is about to be made."""
        keeper = self.script.mates.keeper
        if keeper is not None:  # else one group's, in which no call is across replicas
            keeper.predecessor, self._world.keeper = self, keeper

    def lacks(self, what: Sequence[str]) -> None:
        """A replacement would be, or is, without something that the script trains with."""
        if what:
            self.keeper.world.falls(Fall.SCRIPT, f"it would continue without {', '.join(what)}")
        if what and self.keeper.is_repeating:
            stay()

    def differs(self, what: Sequence[str]) -> None:
        """This replacement has not what its predecessor had in this step, and must not go on."""
        self.keeper.world.must_follow(f"it would continue without {', '.join(what)}")
        self.lacks(what)
        stay()

    def passes(self, inputs: Any) -> None:
        """A pass in training begins; None: the loop has been told of it."""
        self.is_passing = inputs is not None
        if self.is_passing:
            self.batches.passes(inputs)
            self.keeper.passes(inputs)
            self._is_like_before()

    def _is_like_before(self) -> None:
        """A replacement's first pass: what it gets is what its predecessor got."""
        if self.has_come:
            self.keeper.proves()

    # ------------------------------------------------------------ while it trains

    def is_due(self) -> bool:
        """Whether a generation is due in the step that begins."""
        return self.script.made is None or self.keeper.wants(self.keeper.step)

    def is_noted(self) -> None:
        """The script is noted, perhaps at the place of the step that begins next."""
        own, is_in_step = self.keeper.world, self.script.course.now.is_in_step
        can = own.is_open and own.fell is None and not (own.is_apart or is_in_step)
        if can and self.is_due():
            own.is_at_place(self.keeper.step)

    def step_ended(self) -> None:
        """A step is taken."""
        self.batches.step_ended()
        if self.batches.have_drawn:
            self.keeper.board.set(self.keeper.world.rank, Word.DRAWS, 1)

    # ------------------------------------------------------------ a generation

    def left(
        self, *, is_logged: bool = True, is_settled: bool = True
    ) -> tuple[dict[str, Any], list[bytes]] | None:
        """The head of a generation of the step that has begun, and more bytes of it. None: nobody
        could begin there. ``is_logged``, ``is_settled``: see Misses, of calls in the group."""
        script, step = self.script, self.keeper.step
        place: Place = script.standing.shown()
        if not self.is_at_place:
            return None
        # At the first pass itself it would have another one, and no call that is under way.
        is_known = not step or bool(place.loaders or place.turn)
        is_settled = is_settled and succeeding.is_settled(self._world)
        lacks = self._misses.look(is_logged=is_logged, is_known=is_known, is_settled=is_settled)
        if lacks is not None:
            if self._misses.are_too_many and lacks is Fall.SCRIPT:
                self.lacks([f"the batch at {call_site()}: no loader and no range() loop gives it"])
            elif self._misses.are_too_many:
                self.keeper.world.falls(lacks, lacks.words)
            return None
        names, random = script.randomness.encoded()
        head = {
            "count": place.within,
            "place": script.encoded(place),
            "batches": self.batches.digests(),
            "draws": self.batches.have_drawn,
            "iterators": names,
            "random": len(random),
            "printed": self.printed.at_place,
            "step": step,
            "files": self.appended.for_generation(step),
        }
        if self._world.keeper is None:
            return head, random
        groups, bodies = succeeding.left_of(self._world)
        return {**head, "groups": groups, "own": script.tensors.own()}, [*random, *bodies]

    @contextmanager
    def giving(self) -> Iterator[None]:
        """The state is asked for, for a successor."""
        self.script.tensors.gives_all = True
        try:
            yield
        finally:
            self.script.tensors.gives_all = False

    # ------------------------------------------------------------ a replacement

    @property
    def has_calls(self) -> bool:
        """Whether its predecessor has made more calls across replicas."""
        return succeeding.has_more(self._world)

    def begins(
        self, head: dict[str, Any], bodies: Sequence[bytes], repeats: Callable[[], bool]
    ) -> None:
        """This replacement is about to load the state of its predecessor's generation.

        ``repeats``: whether it still does what its predecessor has done.
        """
        script, own = self.script, self.keeper.world
        random, self._bodies = bodies[: head["random"]], bodies[head["random"] :]
        self._groups = head.get("groups", {})
        script.randomness.given = head["iterators"], list(random)
        states = random[len(head["iterators"]) :]
        have_drawn = head["draws"] or bool(self.keeper.board.read(own.rank, Word.DRAWS))
        self.batches.expect(head["batches"], states, have_drawn=have_drawn)
        if self.is_passing:  # of the first step: there was no draw before it
            self.batches.compare()
        held = [suspended.Suspended(*x) for x in Place.decode(head["place"]).held]
        self.lacks(suspended.come_to(script.counters.walk.held(), held))
        self.appended.goes_on(head["step"], head["files"])
        self.printed.goes_on(head["printed"], repeats)

    def come(self) -> None:
        """This worker stands where its predecessor stood, or its peers."""
        self.has_come, self.place = True, None
        RANGES.are_predecessors = self.script.memory is not None
        if self.is_passing:
            self._is_like_before()

    def goes_on(self, quorum: Quorum, seen: Attempt, logged: Sequence[Entry]) -> None:
        """Its state is loaded: be where the predecessor was in the groups across replicas."""
        with self._world.changed:
            is_like = succeeding.go_on(self._world, self._groups, self._bodies, logged)
            self.script.quorums.succeed(quorum, seen)
        if not is_like:
            self.lacks(["the process groups that its predecessor had"])
