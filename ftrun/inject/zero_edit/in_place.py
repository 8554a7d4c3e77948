"""Replicas: a lost worker of a replica of several is replaced inside its group.

Theory of operation. The process groups within the replica are those of world/replayed.py, and so is
that of its votes. Each step that begins with the job's state may begin with a generation: what the
script's state functions give, and what its machine is. Results of reductions with other replicas go
to a log of their own, before anybody can see them.

A replacement loads its predecessor's generation at its first boundary, and repeats what followed:
calls within the group, votes and reductions are answered from the logs. A reduction that its own
log does not have may be in that of another replica (results.py). Where one of them is in no log, it
is where its predecessor has come to. From there on it is a survivor that was interrupted and
answers late: the highest attempt that its group has seen is on the board (``Word.SEEN``). So the
other replicas wait for its answer, and nobody leaves the quorum.

What the log cannot give again is a fall: a step that was lost, other members, a heal. So each of
those is followed by a generation.

An unmodified script has its Manager from ftrun, and calls across replicas of its own, whose results
go to the same log (world/succeeding.py). Its replacement joins its predecessor's place as others
join their peers' (predecessor.py).

Not here: its machine (core/worker/machine.py), the agent's part (core/agent/replacing.py).
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ftrun.base import clock
from ftrun.checkpoint.format import pack
from ftrun.checkpoint.heal import FetchedState
from ftrun.core.ids import NO_ATTEMPT, Attempt, StateId
from ftrun.core.messages import Interrupt, NewQuorum
from ftrun.core.quorum import Quorum
from ftrun.core.replay.falls import Fall
from ftrun.core.worker import events as e
from ftrun.core.worker.comparison import Shape
from ftrun.inject.zero_edit.frames import call_site
from ftrun.inject.zero_edit.generations import Generations
from ftrun.inject.zero_edit.inherited import Inherited
from ftrun.inject.zero_edit.mates import Mates
from ftrun.inject.zero_edit.one_group import _Opening
from ftrun.inject.zero_edit.patches import Patches
from ftrun.inject.zero_edit.randomness import States
from ftrun.inject.zero_edit.results import Results
from ftrun.inject.zero_edit.values.journal import packed
from ftrun.inject.zero_edit.world import succeeding
from ftrun.inject.zero_edit.world.calls import Call, State
from ftrun.inject.zero_edit.world.objects import Objects
from ftrun.inject.zero_edit.world.opening import devices_of
from ftrun.inject.zero_edit.world.replayed import stay
from ftrun.inject.zero_edit.world.shell import Shell
from ftrun.protocol import codec
from ftrun.snapshots.area import NONE, Entry
from ftrun.snapshots.board import Word
from ftrun.snapshots.group_memory import LEFT, VARIABLE, GroupMemory
from ftrun.snapshots.memory import offsets_of
from ftrun.snapshots.states import described, restored
from ftrun.training import context
from ftrun.training.context import WorkerContext
from ftrun.training.healing import OWN
from ftrun.training.reductions import Reduction

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.script import Script
    from ftrun.training.engine import Engine
    from ftrun.training.resuming import Resuming


def install(here: WorkerContext) -> None:
    """Keep a worker whose script makes a Manager; call it before the script has any name of
    torch's."""
    keeper = keeper_of(here)
    if keeper is not None:
        patches = Patches()
        keeper.opening.install(patches)
        Objects().install(patches)


def keeper_of(here: WorkerContext) -> InPlace | None:
    """What keeps this worker; None: its agent has set no memory aside."""
    try:
        own, *others = os.environ[VARIABLE].split()
        memory = GroupMemory.open(own)
    except (KeyError, OSError, ValueError):
        return None
    left = others.pop() if others and LEFT in others[-1] else ""
    keeper = context.Process.keeper = InPlace(here, memory, others, left)
    return keeper


class InPlace(Generations):
    """Keeps one worker. See training/keeper.py for what is called when.

    Args:
        others: the places of the other replicas' memory.
        left: see Inherited.

    Attributes:
        backend: of the groups within its replica.
    """

    def __init__(
        self, here: WorkerContext, memory: GroupMemory, others: Sequence[str], left: str
    ) -> None:
        super().__init__(here, memory)
        world = self.world
        world.least = 1  # for the votes of a replica of one worker
        world.has_left = lambda: self.is_repeating and self._has_left
        self.backend = "cpu:gloo,cuda:nccl" if here.device == "cuda" else "gloo"
        self._results = Results(
            memory.results(here.group_rank),
            here.group_rank,
            others,
            lambda: self.number != NONE and world.fell is None,
            self._fills_up,
        )
        self._groups, self._inherits = here.replicas, left
        rooms: Any = SimpleNamespace(here=self.here, mates=Mates(self.here), world=world)
        path = Path(here.socket_path).parent / f"group-{here.replica_id}.{here.group_rank}"
        self.opening = _Opening(rooms, partial(world.falls, Fall.SCRIPT), path)
        self.is_repeating = world.is_newcomer
        self._seen = self.board.seen(world.rank)
        self._has_loaded = False  # it begins the step of which it has a generation
        self._quorum_id = -1
        self._left: set[tuple[int, int]] = set()  # the logged reductions that are to be repeated
        self._machine: Any = None  # of a Manager that is not made so far

    # ------------------------------------------------------------ the Manager

    def vote_group(self, timeout_s: float) -> Shell:
        """See Keeper."""
        ranks, limit = range(self.board.ranks), timedelta(seconds=timeout_s)
        return self.make_group("vote", ranks, limit, only_cpu=True)

    def make_group(
        self, name: str, ranks: Sequence[int], limit: timedelta, *, only_cpu: bool = False
    ) -> Shell:
        """A group over some ranks of this replica, all of whose calls are logged."""
        world, own = self.world, list(ranks).index(self.world.rank)
        backend = "gloo" if only_cpu else self.backend
        shell = Shell(world, name, ranks, own, limit, devices_of(backend), backend, None)
        self.opening.add(shell)
        return shell

    def resuming(self, engine: Engine) -> Resuming | None:
        """See Keeper."""
        if self.is_repeating or not self._inherits:
            return None
        try:
            return Inherited(engine, self._inherits, self._script)
        except (OSError, ValueError):
            return None  # another replica's, which trains again, and has freed it

    def _script(self) -> Script | None:
        return None if self.predecessor is None else self.predecessor.script

    def connect(self, session: Any) -> None:
        """See Keeper."""
        self._session, self._engine, self._machine = session, session.engine, session.machine
        if not self.is_repeating:
            self._results.starts()

    def lacks(self, what: str) -> None:
        """See Keeper."""
        if self.world.fell is None:
            self.world.falls(Fall.MANAGER, what)

    def leaves(self) -> None:
        """The script turns out to make its Manager itself: nobody keeps this worker."""
        context.Process.keeper = None
        self.world.falls(Fall.EXPLICIT)

    @property
    def may_leave(self) -> bool:
        """Whether a mate has been at the end with this worker, or its predecessor, and was let go:
        workers of one replica leave together, and who has left is not there to wait for."""
        return any(self.board.all(Word.OVER))

    def ends(self) -> None:
        """See Keeper."""
        if self.world.is_open and not self.world.is_apart:
            self.world.ends()

    # ------------------------------------------------------------ steps

    def begins(self) -> None:
        """See Keeper."""
        if self.state is not None:
            self._load()
        if self.is_repeating and not (self._is_behind or self._mates_have_begun):
            self._engine.feed(self._goes_live())

    @property
    def _is_behind(self) -> bool:
        """Whether its predecessor has done more than this process."""
        is_on_its_way = self.predecessor is not None and not self.predecessor.has_come
        return self._has_left or self.world.is_behind or is_on_its_way

    @property
    def _mates_have_begun(self) -> bool:
        """Whether a mate has begun the next step, so that its predecessor could have, too: then the
        group is in one step, and results that others have of it stand. So it is if its predecessor
        was alone, and had begun it."""
        board, step, own = self.board, self._machine.position, {self.world.rank}
        known = (board.begun(rank, step) for rank in set(range(board.ranks)) - own or own)
        return max(known, default=0) > 0

    @property
    def _has_left(self) -> bool:
        """Whether its predecessor has done more across replicas."""
        has_calls = self.predecessor is not None and self.predecessor.has_calls
        return bool(self._left) or has_calls

    @property
    def step(self) -> int:
        """That is under way, or the next one."""
        return 0 if self._machine is None else int(self._machine.position)

    def has_begun(self, *, is_whole: bool) -> None:
        """See Keeper."""
        world, step = self.world, self._machine.position
        self.step_begins(step)
        quorum_id = self._machine.tag.attempt.quorum_id
        self.must |= quorum_id != self._quorum_id
        self._quorum_id = quorum_id
        has_it, self._has_loaded = self._has_loaded, False
        if is_whole and self.wants(step) and not has_it:
            try:
                self._take(step)
            except Exception as error:  # noqa: BLE001  # of the script's functions: it trains on
                self.lacks(f"no snapshot of its state: {type(error).__name__}: {error}")
        world.begins(step)
        self._results.begins(world.log, self.area.oldest_log())
        self.began_at = clock.now()
        if self._machine.begun > self.board.read(world.rank, Word.BEGUN):  # or its predecessor has
            self.board.begins(world.rank, step, self._machine.begun)
        if self.is_repeating and not (self._is_behind or self._of_others(0)):
            self._engine.feed(self._goes_live())
        world.begins_step()

    def decided(self, *, committed: bool) -> None:
        """See Keeper."""
        self.must |= not committed
        if committed:
            self.board.set(self.world.rank, Word.REACHED, self._machine.state.step)
        elif self.is_repeating:
            self.world.falls(Fall.STEP_LOST)
            stay()
        else:
            lost = self.board.read(self.world.rank, Word.LOST)
            self.board.set(self.world.rank, Word.LOST, lost + 1)

    # ------------------------------------------------------------ reductions (the engine's lock)

    def sees(self, attempt: Attempt) -> None:
        """See Keeper."""
        if attempt > self._seen:
            self._seen = attempt
            self.board.see(self.world.rank, attempt)

    def hands_out(self, step: int, known: Sequence[tuple[int, Reduction]], at: Attempt) -> None:
        """See Keeper."""
        self._results.hands_out(step, known, at, self._machine.in_force, self._seen)

    def _fills_up(self) -> None:
        with self.world.changed:
            self.world.fills_up()

    def answers(self, step: int, index: int, reduction: Reduction) -> list[e.Event]:
        """See Keeper."""
        in_force = self._machine.in_force
        assert in_force is not None, "it repeats in a quorum"
        found = self._results.of(step, index, in_force) or self._of_others(index)
        if found is None:
            return [self._goes_live()]
        entry, quorum = found
        if quorum is None or not quorum.has_same_members(in_force):
            self.world.falls(Fall.QUORUM)
            stay()
        if entry.data.nbytes != offsets_of([reduction.data.nbytes])[1]:
            self.world.falls(Fall.OTHER_CALL, "its predecessor made another reduction")
            stay()
        self._left.discard((step, index))
        reduction.answer(entry.data[: reduction.data.nbytes])
        return [e.WentOut(quorum), e.OperationCompleted(quorum.attempt, index)]

    def _of_others(self, index: int) -> tuple[Entry, Quorum] | None:
        """What another replica's log has of a reduction of the step that is repeated."""
        number, in_force = self._machine.position, self._machine.in_force
        assert in_force is not None, "it repeats in a quorum"
        if self._machine.tries_again:
            return None
        return self._results.of_others(number, index, in_force, self._highest)

    def _before_call(self) -> None:
        """The script makes a call in the group."""
        # A mate that has come further makes such a call again, and this one is told like the mate.
        if self.is_repeating and (self._is_behind or self.world.is_left_behind):
            self.world.on_live = self._before_call
        elif self.is_repeating:
            self._engine.feed(self._goes_live())

    def _goes_live(self) -> Interrupt:
        """Its predecessor had come to here: answer like one that was interrupted."""
        self.is_repeating = False
        self.world.on_live = None
        self._results.is_back()
        self.world.note_back()
        self._engine.goes_live()
        return Interrupt(self._highest)

    @property
    def _highest(self) -> Attempt:
        """The highest attempt that its group has seen."""
        return max(self.board.seen(rank) for rank in range(self.board.ranks))

    # ------------------------------------------------------------ calls across replicas

    def logs(self, call: Call, *, is_half: bool = False) -> None:
        """A call has its result, which nobody has seen yet; ``is_half``: its second phase follows.
        Under the world's lock."""
        if call.future is not None and any(x.is_cuda for x in call.outputs):
            self.cannot(call)  # torch completes the future before the tensors are ready
            return
        if call.shell.calls.get(call.number) is not call or (call.is_logged and not call.is_two):
            return  # nobody meets anybody in it, or it is there
        tag = call.tag if isinstance(call.tag, Attempt) else NO_ATTEMPT
        self._results.logs(tag, succeeding.to_log(call, is_half=is_half))
        call.is_logged = True

    def waits(self, call: Call) -> None:
        """The script waits in a call that has failed, or is held."""
        quorum = self._machine.in_force
        if self.is_repeating and self._is_behind:
            self.world.differs(call)
        elif self.is_repeating:
            self._engine.feed(self._goes_live())
        elif quorum is not None and call.state is State.FAILED and _is_broken(call.shell):
            self._engine.feed(e.PeerUnreached(quorum.attempt, "of a collective"))

    def cannot(self, call: Call) -> None:
        """A call begins that cannot be repeated."""
        if self.world.fell is None:
            self.world.falls(Fall.CALL, f"{call.kind.name} at {call_site()}")

    # ------------------------------------------------------------ generations

    def _take(self, step: int) -> None:
        """Copy the state at the beginning of a step."""
        world = self.world
        with self._engine.lock:
            seed = self._machine.seed() if self._machine.in_force is not None else None
        if world.fell or seed is None:  # of one that is interrupted at once nobody knows the end
            return
        if self.predecessor is None:
            world.is_at_place(step)
            more: dict[str, Any] = {"count": world.count}
            random = States.now().encode()
        else:
            found = self.predecessor.left() if step else None
            if found is None:
                return
            more, random = found
        count = more["count"]
        if not (world.may_be_made(count) and world.is_settled_until(count)):
            return
        began, before, calls = time.thread_time(), world.begun(count), world.begun()
        if self.number == NONE:
            self.board.set(world.rank, Word.SET_UP, time.thread_time_ns())
        begun = world.count
        with nullcontext() if self.predecessor is None else self.predecessor.giving():
            given = pack(self._session.healing.tree())
        if world.count != begun:
            self.lacks("the script makes a collective where it gives its state")
            return
        world.is_made(step)
        head = {
            **more,
            "calls": self._results.calls,
            "state": [seed.state.step, seed.state.lineage],
            "begun": seed.begun,
            "shapes": None if seed.shapes is None else [asdict(x) for x in seed.shapes],
            "tries": seed.tries,
            "repeats": seed.repeats,
            **described(given),
            "on_device": world.on_device(given.leaves),
        }
        parts = [codec.encode(NewQuorum(seed.quorum)), *random]
        self.number, self.must = self.number + 1, False
        self.write(packed(head, parts), given.leaves, step, calls, before, groups=self._groups)
        if self.predecessor is not None:
            self.predecessor.gradients.are_left_out()
        self.took_s = time.thread_time() - began - self.area.touched_s

    def _load(self) -> None:
        """Go on with the predecessor's state."""
        state, head, (quorum, *random) = self.taken(), self.head, self.parts
        healing = self._session.healing
        tree = restored(state, head, pack(healing.tree()).leaves)
        known = StateId(*head["state"])
        shapes = head["shapes"]
        seed = e.Succeeds(
            known,
            codec.decode(quorum).quorum,
            head["begun"],
            None if shapes is None else tuple(_shape(x) for x in shapes),
            head["tries"],
            head["repeats"],
        )
        if self.predecessor is not None:
            self.predecessor.begins(head, random, lambda: self.is_repeating)
        self.world.is_loading = True
        fetched = FetchedState(known, tree, state.state.nbytes, 0.0, (), {})
        healing.succeed(fetched, self.place)
        self.world.is_loading = False
        self._session.progress.batches = int(tree[OWN]["batches_committed"])
        logged = self._results.calls_since(head["calls"])
        if self.predecessor is None:
            States.decode(random).set()
        else:
            self.predecessor.goes_on(seed.quorum, self._highest, logged)
        self._left = self._results.steps_since(head["begun"])
        self._quorum_id, self.must = seed.quorum.attempt.quorum_id, False
        self._has_loaded = True
        self.world.is_walking = False
        self.world.replay(head["count"], [])
        self.world.on_live = self._before_call
        self._engine.feed(seed)
        self.board.set(self.world.rank, Word.LOADED_AT, time.monotonic_ns())


def _is_broken(shell: Shell) -> bool:
    """Whether a peer's connection is gone, which nobody has said so far."""
    built = shell.built
    return not shell.is_stopped and built is not None and not built.is_connected()


def _shape(known: dict[str, Any]) -> Shape:
    fields: dict[str, Any] = {k: tuple(v) if type(v) is list else v for k, v in known.items()}
    return Shape(**fields)
