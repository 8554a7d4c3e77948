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
from typing import TYPE_CHECKING, Any

import torch

from ftrun.base import clock
from ftrun.base.errors import UserError
from ftrun.checkpoint.format import pack
from ftrun.checkpoint.leaves import Leaf
from ftrun.checkpoint.meshes import chunk_of
from ftrun.inject.zero_edit import told
from ftrun.inject.zero_edit.alike import Alike
from ftrun.inject.zero_edit.generations import Generations
from ftrun.inject.zero_edit.place import Place
from ftrun.inject.zero_edit.values.journal import packed
from ftrun.inject.zero_edit.values.units import part, versions_of
from ftrun.inject.zero_edit.world.replayed_call import mark_of_pass
from ftrun.snapshots.board import Word
from ftrun.snapshots.group_memory import GroupMemory
from ftrun.snapshots.states import described, restored
from ftrun.training.context import WorkerContext

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.predecessor import Predecessor

Layouts = list[list[list[int]] | None]
"""Of each DistributedDataParallel, in the order in which the script made them: for each bucket the
numbers of its parameters; None: the first buckets."""


GRADIENTS = "gradients"
"""In a state: of each parameter, where the script has not dropped them since the last step."""


class Memory(Generations):
    """Stands in for the Manager and its session.

    Args:
        memory: of its group.

    Attributes:
        script: the rooms, once they are there; their groups are those of ``world``.
        layouts: gives the buckets of this process now; None: they are about to change, so that
            nobody could begin here. ``their_layouts``: those of the generation that it begins with.
        step: that is under way, or the next one.
        alike: what its mates hold, too.
    """

    predecessor: Predecessor
    snapshots = resuming = None
    ends_early = awaits_newcomers = False

    def __init__(self, here: WorkerContext, memory: GroupMemory) -> None:
        self.session = self.exchanges = self.healing = self.progress = self
        super().__init__(here, memory)
        self.layouts: Callable[[], Layouts | None] = list
        self.their_layouts: Layouts = self.head.get("layouts", [])
        self.script: Any = None
        self._functions: dict[str, tuple[Callable[[Any], None], Callable[[], Any]]] = {}
        self.step: int = self.head.get("step", 0)
        self._copying: threading.Thread | None = None
        self._gradients: list[Any] = []  # of the predecessor
        self._pass_mark = 0
        self.alike = Alike(memory)
        self._chunks: dict[str, tuple[int, ...] | None] = {}

    # ------------------------------------------------------------ as a Manager

    @property
    def is_repeating(self) -> bool:
        """Whether this replacement has not its predecessor's state so far."""
        return self.world.is_walking

    def current_step(self) -> int:
        """From 1 on: what is at its first step has a state, too."""
        return self.step + 1

    def register_state_dict_fn(
        self, key: str, load: Callable[[Any], None], state: Callable[[], Any]
    ) -> None:
        self._functions[key] = load, state

    def start_quorum(self, *, allow_heal: bool) -> None:
        """A step begins. ``allow_heal``: at a place."""
        self.join()
        self.predecessor.gradients.step_begins()
        self.step_begins(self.step)
        if self.state is not None:
            self._load()
        elif allow_heal and self.wants(self.step):
            self._take()
        self.world.begins(self.step)
        self.began_at = clock.now()
        self.world.begins_step()
        self.world.given_mark = hash((0, self._pass_mark)) if self.predecessor.is_passing else 0

    def should_commit(self) -> bool:
        self.counts()
        return True

    def counts(self) -> None:
        """A step is taken."""
        self.world.proves()
        self.alike.stepped()
        self.step += 1
        self.predecessor.step_ended()
        self.board.set(self.world.rank, Word.REACHED, self.step)

    def is_healing(self) -> bool:
        return False

    def linger(self, _: object = None) -> bool:
        self.world.ends()
        return True

    def wants_mark(self) -> bool:
        return False

    def heal_with_place(self) -> None:
        """No peer asks for its state."""

    def members(self) -> list[str]:
        return []

    def heal_unlike(self, _: str) -> None:
        """Each has its own."""

    show_place = watch_optimizer = peek_place = heal_unlike

    def tell(self, lacking: Sequence[str]) -> None:
        """Tell what this replacement could not be given."""
        if lacking:
            told.say(f"rank {self.world.rank} continues without {', '.join(lacking)}")

    # ------------------------------------------------------------ generations

    def _take(self) -> None:
        """Copy the state, unless a replacement could not begin at it."""
        world, layouts = self.world, self.layouts()
        place: Place = self.script.standing.shown()
        if world.fell or not world.is_open or layouts is None:
            return
        began, gradients = time.thread_time(), self.predecessor.gradients
        found = self.predecessor.left(
            is_logged=world.may_be_made(place.within),
            is_settled=world.is_settled_until(place.within),
        )
        if found is None:
            return
        calls, before = world.begun(), world.begun(place.within)
        world.is_made(self.step)
        tree: dict[str, Any] = {key: state() for key, (_, state) in self._functions.items()}
        if gradients.are_kept:
            tree[GRADIENTS] = [x.grad for x in gradients.all()]
            gradients.are_given()
        else:
            gradients.are_left_out()
        given = pack(tree)
        more, random = found
        head = {
            **more,
            "layouts": layouts,
            **described(given),
            "on_device": world.on_device(given.leaves),
            "chunks": self._chunks_of(given.leaves),
        }
        text = packed(head, random)
        own = self._stepped()
        leaves = [leaf if _address(leaf) in own else _copied(leaf) for leaf in given.leaves]
        later: list[Any] = [leaf.data for leaf in given.leaves if _address(leaf) in own]
        optimizers = self.script.stepping.optimizers.all()
        versions, mark = versions_of(later), self.alike.marks(optimizers)
        then, aside = versions(), world.copying()

        def copy() -> None:
            began = time.thread_time()
            is_whole = lambda: versions() == then  # noqa: E731
            with aside():
                state = text, leaves, head["step"], calls, before
                self.write(*state, is_whole=is_whole, mark=mark)
            self.took_s += time.thread_time() - began - self.area.touched_s

        self.number, self.must = self.number + 1, False
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

    def passes(self, inputs: Any) -> None:
        """See Generations."""
        self._pass_mark = mark_of_pass(inputs)
        self.world.given_mark = hash((self.world.given_mark, self._pass_mark))

    def proves(self) -> None:
        """See Generations. It gets its predecessor's gradients."""
        super().proves()
        if self._gradients:
            given, self._gradients = self._gradients, []
            for parameter, gradient in zip(self.predecessor.gradients.all(), given, strict=False):
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
        state, world, done = self.taken(), self.world, self.world.done
        own = pack({key: give() for key, (_, give) in self._functions.items()})
        tree = restored(state, self.head, own.leaves)
        self.predecessor.begins(self.head, self.parts, lambda: world.count <= done)
        for key, (load, _) in self._functions.items():
            load(tree[key])
        self._gradients = tree.get(GRADIENTS, [])
        world.is_walking = False
        self.board.set(world.rank, Word.LOADED_AT, time.monotonic_ns())


def _address(leaf: Leaf) -> int:
    return leaf.data.data_ptr() if isinstance(leaf.data, torch.Tensor) else 0


def _copied(leaf: Leaf) -> Leaf:
    """A leaf that may change in the step."""
    data = leaf.data.clone() if isinstance(leaf.data, torch.Tensor) else bytes(leaf.data)
    return replace(leaf, data=data if isinstance(data, torch.Tensor) else memoryview(data))
