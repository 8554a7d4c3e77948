"""A worker's generations in its agent's memory, in the place of a Manager.

In one replica group there are no replicas to ask. So each worker is seen as a replica of one
worker, whose only peer is its own predecessor: what a newcomer gets from its peers otherwise, the
place and the state, it gets from the newest generation here. A step begins with a new generation.

Not here: calls and their log (world/replayed.py), the memory itself (snapshots/area.py).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from ftrun.base import clock
from ftrun.base.errors import UserError
from ftrun.checkpoint.format import pack
from ftrun.checkpoint.leaves import Leaf
from ftrun.checkpoint.meshes import chunk_of
from ftrun.core.replay.falls import Fall
from ftrun.core.replay.log_rules import Misses
from ftrun.inject.zero_edit import suspended, told
from ftrun.inject.zero_edit.batches import Batches
from ftrun.inject.zero_edit.frames import call_site
from ftrun.inject.zero_edit.generations import Generations, described, restored
from ftrun.inject.zero_edit.gradients import Gradients
from ftrun.inject.zero_edit.place import Place
from ftrun.inject.zero_edit.values.journal import packed, unpacked
from ftrun.inject.zero_edit.values.units import part, versions_of
from ftrun.inject.zero_edit.world.replayed import ReplayedWorld, stay
from ftrun.inject.zero_edit.world.replayed_call import mark_of_pass
from ftrun.snapshots.area import NONE, State
from ftrun.snapshots.board import Word
from ftrun.snapshots.group_memory import GroupMemory
from ftrun.training.context import WorkerContext

Layouts = list[list[list[int]] | None]
"""Of each DistributedDataParallel, in the order in which the script made them: for each bucket the
numbers of its parameters; None: the first buckets."""


GRADIENTS = "gradients"
"""In a state: of each parameter, where the script has not dropped them since the last step."""


class Memory(Generations):
    """Stands in for the Manager and its session.

    Args:
        here: this worker, as a replica of one worker.
        memory: of its group.

    Attributes:
        world: the script's groups; ``script``: the rooms, once they are there.
        layouts: gives the buckets of this process now; None: they are about to change, so that
            nobody could begin here. ``their_layouts``: those of the generation that it begins with.
        place: of the state that was loaded.
    """

    snapshots = resuming = joining = None
    ends_early = False

    def __init__(self, here: WorkerContext, memory: GroupMemory) -> None:
        self.session = self.exchanges = self.healing = self.progress = self
        kind: type[ReplayedWorld] = ReplayedWorld
        if here.device == "cuda":
            from ftrun.inject.zero_edit.world.on_device import DeviceWorld as kind
        super().__init__(kind(here, int(here.replica_id), memory), memory)
        self.place = ""
        self.layouts: Callable[[], Layouts | None] = list
        self.their_layouts: Layouts = []
        self.script: Any = None
        self._functions: dict[str, tuple[Callable[[Any], None], Callable[[], Any]]] = {}
        self._step = 0
        self._head: Any = None
        self._state: State | None = None
        self._copying: threading.Thread | None = None
        self._misses = Misses()
        self.gradients = Gradients(lambda: self.script.stepping.optimizers.all(), self.lacks)
        self._gradients: list[Any] = []  # of the predecessor
        self._is_passing, self._pass_mark = False, 0
        self.batches = Batches(lambda: self.awaits_newcomers, self.differs)
        self._chunks: dict[str, tuple[int, ...] | None] = {}
        if self.world.is_newcomer:
            self.world.is_proven = False
            self._state = self.find()
            self._head, self._random, _ = unpacked(self._state.head)
            self.their_layouts, self._step = self._head["layouts"], self._head["step"]

    # ------------------------------------------------------------ as a Manager

    @property
    def awaits_newcomers(self) -> bool:
        """Whether a generation is due in the next step."""
        return self.number == NONE or self.is_due(self._step)

    def current_step(self) -> int:
        """From 1 on: what is at its first step has a state, too."""
        return self._step + 1

    def register_state_dict_fn(
        self, key: str, load: Callable[[Any], None], state: Callable[[], Any]
    ) -> None:
        self._functions[key] = load, state

    def start_quorum(self, *, allow_heal: bool) -> None:
        """A step begins. ``allow_heal``: at a place."""
        self.join()
        self.gradients.step_begins()
        self.step_begins(self._step)
        if self.world.is_walking:
            self._load()
        elif allow_heal and self.awaits_newcomers:
            self._take()
        self.world.begins(self._step)
        self.began_at = clock.now()
        self.world.begins_step()
        self.world.given_mark = hash((0, self._pass_mark)) if self._is_passing else 0

    def should_commit(self) -> bool:
        self.counts()
        return True

    def counts(self) -> None:
        """A step is taken."""
        self.world.proves()
        self._step += 1
        self.batches.step_ended()
        self.board.set(self.world.rank, Word.REACHED, self._step)
        if self.batches.have_drawn:
            self.board.set(self.world.rank, Word.DRAWS, 1)

    def is_healing(self) -> bool:
        return False

    def linger(self, _: object = None) -> bool:
        self.world.ends()
        return True

    def peek_place(self, _: float) -> str | None:
        """Where the predecessor has stood."""
        found: str | None = None if self._head is None else self._head["place"]
        return found

    def wants_mark(self) -> bool:
        return False

    def keep_state(self) -> None:
        """Of the end of a loop: no peer asks for it."""

    def members(self) -> list[str]:
        return []

    heal_with_place = keep_state

    def heal_unlike(self, _: str) -> None:
        """Each has its own."""

    show_place = watch_optimizer = heal_unlike

    def tell(self, lacking: Sequence[str]) -> None:
        """Tell what this replacement could not be given."""
        if lacking:
            told.say(f"rank {self.world.rank} goes on without {', '.join(lacking)}")

    def lacks(self, what: Sequence[str]) -> None:
        """A generation would be without something that the script trains with."""
        if what:
            self.world.falls(Fall.SCRIPT, f"it would go on without {', '.join(what)}")

    def differs(self, what: Sequence[str]) -> None:
        """This replacement has not what its predecessor had in this step, and must not go on."""
        self.world.must_follow(f"it would go on without {', '.join(what)}")
        self.lacks(what)
        stay()

    # ------------------------------------------------------------ generations

    @property
    def calls_within(self) -> int:
        """All calls are ``exchanges`` of a place."""
        return 0

    def is_noted(self) -> None:
        """The script is noted: perhaps at the place of the step that begins next."""
        world, is_in_step = self.world, self.script.course.now.is_in_step
        can = world.is_open and world.fell is None and not (world.is_apart or is_in_step)
        if can and self.awaits_newcomers:
            world.is_at_place(self._step)

    def _take(self) -> None:
        """Copy the state, unless a replacement could not begin at it."""
        world, layouts = self.world, self.layouts()
        place: Place = self.script.standing.shown()
        if world.fell or not world.is_open or layouts is None:
            return
        lacks = self._misses.look(
            is_logged=world.may_be_made(place.exchanges),
            # At the pass itself it would have another one, and no call that is under way.
            is_known=not self._step or bool(place.loaders or place.turn),
            is_settled=world.is_settled_until(place.exchanges),
        )
        if lacks is not None:
            if self._misses.are_too_many and lacks is Fall.SCRIPT:
                self.lacks([f"the batch at {call_site()}: no loader and no range() loop gives it"])
            elif self._misses.are_too_many:
                world.falls(lacks, lacks.words)
            return
        calls, before = world.begun(), world.begun(place.exchanges)
        began = time.thread_time()
        world.is_made(self._step)
        tree: dict[str, Any] = {key: state() for key, (_, state) in self._functions.items()}
        if self.gradients.are_kept:
            tree[GRADIENTS] = [x.grad for x in self.gradients.all()]
            self.gradients.are_given()
        else:
            self.gradients.are_left_out()
        given = pack(tree)
        noting = self.script.noting
        names, random = self.script.randomness.encoded()
        head = {
            "step": self._step,
            "place": replace(place, calls=()).encode(),
            "layouts": layouts,
            "batches": self.batches.digests(),
            "iterators": names,
            "draws": self.batches.have_drawn,
            "printed": () if noting.printed is None else noting.printed.at_place,
            "files": {} if noting.appended is None else noting.appended.for_generation(self._step),
            **described(given),
            "on_device": world.on_device(given.leaves),
            "chunks": self._chunks_of(given.leaves),
        }
        text = packed(head, random)
        own = self._stepped()
        leaves = [leaf if _address(leaf) in own else _copied(leaf) for leaf in given.leaves]
        later: list[Any] = [leaf.data for leaf in given.leaves if _address(leaf) in own]
        versions = versions_of(later)
        then, aside = versions(), world.copying()

        def copy() -> None:
            began = time.thread_time()
            is_whole = lambda: versions() == then  # noqa: E731
            with aside():
                self.write(text, leaves, head["step"], calls, before, is_whole=is_whole)
            self.took_s += time.thread_time() - began - self.area.touched_s

        self.number += 1
        self.took_s = time.thread_time() - began + self.script.sparing.took_s
        if len(later) == 0 or not self.number:
            copy()
        else:
            self._copying = threading.Thread(target=copy, name="ftrun-copy", daemon=True)
            self._copying.start()

    def _chunks_of(self, leaves: Sequence[Leaf]) -> dict[str, tuple[int, ...] | None]:
        """Where the local parts of DTensors begin, for what writes them to a disk."""
        for leaf in leaves:
            if leaf.spec.mesh and leaf.spec.mesh not in self._chunks:
                with contextlib.suppress(UserError):  # it is told when one is to be written
                    self._chunks[leaf.spec.mesh] = chunk_of(leaf.value)
        return self._chunks

    def passes(self, inputs: tuple[Any, ...] | None) -> None:
        """A pass in training begins; None: the loop has been told of it."""
        self._is_passing = inputs is not None
        if self._is_passing:
            self.batches.passes(inputs)
            self._pass_mark = mark_of_pass(inputs)
            self.world.given_mark = hash((self.world.given_mark, self._pass_mark))
            self._is_like_before()

    def _is_like_before(self) -> None:
        """A replacement's first pass: what it gets is what its predecessor got."""
        if not self.world.is_walking:
            self.world.proves()
            self._give_gradients()

    def _give_gradients(self) -> None:
        if self._gradients:
            given, self._gradients = self._gradients, []
            for parameter, gradient in zip(self.gradients.all(), given, strict=False):
                # No view, which a script could not detach in place.
                parameter.grad = None if gradient is None else gradient.clone()

    def _stepped(self) -> set[int]:
        """The memory of what only optimizers change, so that a copy of it may take its time until
        they do."""
        found: set[int] = set()
        for optimizer in self.script.stepping.optimizers.all():
            for parameter in (x for group in optimizer.param_groups for x in group["params"]):
                values = (parameter, *optimizer.state.get(parameter, {}).values())
                tensors = (x for x in values if isinstance(x, torch.Tensor))
                found.update(part(x).data_ptr() for x in tensors)
        return found - {0}

    def join(self) -> None:
        """Wait for the copy under way: what it copies is about to change."""
        if self._copying is not None:
            self._copying.join()
            self._copying = None

    def _load(self) -> None:
        """Go on with the predecessor's state."""
        state, self._state, head = self._state, None, self._head
        assert state is not None, "a replacement has found one"
        own = pack({key: give() for key, (_, give) in self._functions.items()})
        tree = restored(state, head, own.leaves)
        self.place = head["place"]
        if self.script.noting.appended is not None:
            self.script.noting.appended.goes_on(head["step"], head["files"])
        if self.script.noting.printed is not None:
            done, world = self.world.done, self.world
            self.script.noting.printed.goes_on(head["printed"], lambda: world.count <= done)
        walk, held = self.script.counters.walk, Place.decode(self.place).held
        self.lacks(suspended.come_to(walk.held(), [suspended.Suspended(*x) for x in held]))
        self.script.randomness.given = head["iterators"], self._random
        have_drawn = head["draws"] or bool(self.board.read(self.world.rank, Word.DRAWS))
        random = self._random[len(head["iterators"]) :]
        self.batches.expect(head["batches"], random, have_drawn=have_drawn)
        for key, (load, _) in self._functions.items():
            load(tree[key])
        self._gradients = tree.get(GRADIENTS, [])
        self.world.is_walking = False
        if self._is_passing:  # of the first step: there was no draw before it
            self.batches.compare()
            self._is_like_before()
        self.board.set(self.world.rank, Word.LOADED_AT, time.monotonic_ns())


def _address(leaf: Leaf) -> int:
    return leaf.data.data_ptr() if isinstance(leaf.data, torch.Tensor) else 0


def _copied(leaf: Leaf) -> Leaf:
    """A leaf that may change in the step."""
    data = leaf.data.clone() if isinstance(leaf.data, torch.Tensor) else bytes(leaf.data)
    return replace(leaf, data=data if isinstance(data, torch.Tensor) else memoryview(data))
