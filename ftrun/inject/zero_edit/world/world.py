"""The script's world: all its process groups, and what becomes of them when ranks die and come.

Theory of operation. Before the first step all wanted ranks connect the script's groups as torch
would. From then on the groups follow the quorums of the Manager, as a part of each build:

- **A rank dies.** The Interrupt aborts the groups that it may be in. Each call under way comes to
  an end; then, in the build of the next quorum, the survivors tell each other how far they are,
  settle their calls (core/worker/settling.py), and connect the groups among themselves. When the
  quorum is in force the calls that nobody has completed go out again. The script sees none of it.
- **A rank comes.** It runs the script from its beginning. Until it has joined, its calls are
  answered from what its predecessor was given there (kept.py), or as by a group of itself. The
  groups of all are connected beside the old ones, and come in force at one boundary of a step for
  all. What its peers have called between its place and that boundary comes with the place.

What cannot be settled ends in one world that begins again, with a line that names it.

Not here: how groups follow quorums (quorums.py), the methods of torch (shell.py), how a script
makes its groups (opening.py).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch

from ftrun.base import clock
from ftrun.base.errors import PeerError, UserError
from ftrun.core.ids import NO_ATTEMPT, Attempt
from ftrun.inject.zero_edit import told
from ftrun.inject.zero_edit.frames import call_site, near_site
from ftrun.inject.zero_edit.refusals import refuse
from ftrun.inject.zero_edit.world.calls import (
    KEPT_BYTES_MAX,
    Buffers,
    Call,
    Record,
    State,
    UnderWay,
    as_bytes,
    wait_for_end,
)
from ftrun.inject.zero_edit.world.kept import GIVEN_EACH_MAX, Given, Kept, bodies_of, texts_of
from ftrun.inject.zero_edit.world.kinds import (
    Impossible,
    RootAway,
    There,
    has_no_data,
    may_share_out,
    nbytes,
)
from ftrun.inject.zero_edit.world.shell import Gift, Shell
from ftrun.process_groups.built import AbortSignal, BuiltGroup
from ftrun.process_groups.gloo import ProcessGroupGloo
from ftrun.training.context import WorkerContext
from ftrun.training.exchanged_tensors import small_bytes
from ftrun.training.groups import Following

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.in_place import InPlace

RECORDS_MAX = 1024
SENT_BYTES_MAX = 64 << 10
"""Of one call that a newcomer is given."""
SCRIPTS, NOW, PAST = range(3)
"""Whose a result is that a newcomer is given: of a call of the script's; of one that
DistributedDataParallel makes itself in the step under way; of one in an earlier step."""
CALLS_MAX = 1024
"""Of a group, whose results are kept because the script has not waited for all before them."""
_waited = attrgetter("waited")
WAIT_S, POLL_S = 1.0, 0.05
CANNOT = ": ftrun cannot follow it while a rank is away"
DECISION_S = 5.0
"""How long after the last heartbeat of a peer its failure waits for the lighthouse's decision."""


class World:
    """All groups of this process. Used by any thread.

    Args:
        here: this worker.
        rank: of it in the script's world.
        gives_up: a call cannot be followed while a rank is away, for a reason; it raises.

    Attributes:
        is_open: the script has made its world.
        is_walking: a newcomer that has not joined yet.
        is_passing: it passes over a loop in which its peers are not (passing.py).
        is_following: its peers have finished (ending.py).
        in_set_up: no step has begun.
        given: what each broadcast has given last.
        following: the worker whose quorums these groups follow, once the world is open.
        store: of the quorum in force, where a group that is made in training is connected.
        made_before: the keys of groups that peers had made in training before this rank joined.
        connecting: ends the connecting of a group that is being made, if the quorum changes.
        waits_for: tells the others that this rank waits in a call.
        may_hold: whether a call may wait for a rank that is away; ``lets_join``: that rank may join
            where the main thread waits in the call (inside.py).
        on_live: called before the first call of the script's that meets its peers' again.
        is_ours: the call that begins is torch's DistributedDataParallel's.
        is_of_model: whether tensors are those of a model that is trained on all replicas.
        optimizer: of a model, whose step is under way; "": none is.
        has_shared: the script has called what may average gradients since the last step.
        keeper: of this worker; None: nobody could take its place.
        has_plain: its calls may be plain ones (plain.py).
        unit: the calls of one of the script's that are several; None: there is no such.
        why_again: why all are about to begin again, as another thread has found; "": they are not.
        leaves: whoever gives up leaves its state before it asks; ``asks``: the same without;
            ``on_again``: called once if another thread has found that all begin again.
        needs_all: the script has made a call that can be made only while all ranks are there.
        needs_replicas: the job takes no step without all replicas.
        records: of what the latest calls have given, for newcomers.
        open_calls: where newcomers join in the step under way: the number of calls until then, and
            the numbers of those that they make with the others; None: they join where one begins.
        waited_s: so long the script has waited in calls. Whoever reads it may begin it anew.
    """

    call = Call

    def __init__(self, here: WorkerContext, rank: int, gives_up: Callable[[str], None]) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.waiting = 0
        self.waited_s = 0.0
        self.ready: deque[Call] = deque()
        self.buffers = Buffers()
        self.shells: dict[str, Shell] = {}
        self.given = Given()
        self.is_open = self.is_walking = self.is_passing = self.is_following = self.is_ours = False
        self.may_hold: Callable[[], bool] = lambda: False
        self.lets_join: Callable[[], None] = lambda: None
        self.on_live: Callable[[], None] | None = None
        self.keeper: InPlace | None = None
        self.in_set_up = self.has_plain = True
        self.optimizer, self.has_shared = "", False
        self.is_of_model: Callable[[Sequence[torch.Tensor]], bool] = lambda tensors: False
        self.kept: Kept | None = None
        self.members: tuple[int, ...] = ()
        self.rank = rank
        self.in_use, self.store = NO_ATTEMPT, ""
        self.made_before: Set[str] = frozenset()
        self.connecting = AbortSignal()
        self.following: Following | None = None
        self.waits_for: Callable[[Call], AbstractContextManager[None]] = lambda call: nullcontext()
        self._here, self._size = here, here.replicas * here.workers_per_replica
        self.needs_replicas = here.min_replicas == here.replicas > 1
        self.gives_up = gives_up
        self._old: list[BuiltGroup] = []
        self.destroyed_at: dict[str, tuple[Attempt, int]] = {}  # how far each group had come
        self.why_again, self.needs_all, self.leaves = "", False, False
        self.asks = gives_up
        self.on_again: Callable[[], None] = lambda: None
        self.unit: list[Call] | None = None
        self.count = 0  # of the script's calls
        self._boundary_count = 0
        self.records: deque[Record] = deque(maxlen=RECORDS_MAX)
        self._loaded: dict[int, list[Any]] = {}  # what a peer was given, by its number
        self.open_calls: tuple[int, Set[int]] | None = None

    @property
    def lowest(self) -> int:
        """The lowest rank that is there; this one, if it meets no peer."""
        return self.rank if self.is_apart else min(self.members, default=self.rank)

    # ------------------------------------------------------------ calls (under ``changed``)

    @property
    def is_whole(self) -> bool:
        is_apart = self.is_walking or self.is_passing or self.is_following  # asked in each step
        return len(self.members) == self._size and not is_apart

    @property
    def is_apart(self) -> bool:
        """Whether no call of this rank meets one of a peer."""
        return self.is_walking or self.is_passing or self.is_following

    def begin(self, shell: Shell, call: Call) -> None:
        """A rank begins a call."""
        kind, outputs, is_ours = call.kind, call.outputs, self.is_ours
        first = outputs[0] if outputs else None
        if (type(first) is not torch.Tensor or first.is_meta) and has_no_data(call):
            call.state, call.waited = State.THROUGH, True
            return
        waits = self.is_walking and self._is_awaited(call)
        is_apart = self.is_walking or self.is_passing or self.is_following
        is_noted = not is_ours or self._is_in_step
        if (is_apart and not waits) or (shell.replays and is_noted):
            self._answer(shell, call)
            return
        if is_ours:
            call.takes_deputy = call.is_sync = True  # torch's code waits in one order everywhere
        elif self.optimizer and may_share_out(call):
            self._refuse_in_step(call)
        if kind.is_in_place:
            call.kept = small_bytes(outputs, KEPT_BYTES_MAX)
        if call.kept is None or kind.is_by_rank:
            call.prepare()
        if kind.name == "broadcast" and call.args[-1].rootRank != call.own:
            call.before = small_bytes(outputs, GIVEN_EACH_MAX)
        gift = shell.gifts.pop(call.number, None) if shell.gifts and not waits else None
        there = shell.there
        if not (waits or gift or shell.is_stopped or there is None):
            if there.is_full:
                call.send(there)
            else:
                self._send_to_fewer(call, there)
        # Mostly it is under way meanwhile, so that this takes none of its time.
        if is_noted:
            if not (self.has_shared or is_ours):
                self.has_shared = may_share_out(call)
            self._note_begun(shell, call)
            if self.in_set_up and self.kept is not None:
                call.site = call.site or near_site()
        if self.unit is not None:
            self.unit.append(call)
            call.is_part = True
        if kind.needs_all:
            self.needs_all = True
            if kind.is_unsettled and self.keeper is not None:
                self.keeper.cannot(call)
        calls = shell.calls
        call.clears = not calls or all(map(_waited, calls.values()))
        if len(calls) >= CALLS_MAX:
            shell.forget()
        calls[call.number] = call
        shell.next += 1
        if waits:
            call.hold("its groups are connected where the next step begins")
        elif gift is not None:
            self._take(call, gift)
        elif call.native is None:
            call.is_sent()

    @property
    def _is_in_step(self) -> bool:
        """Whether a newcomer that joins in the step under way has to make the calls of
        DistributedDataParallel too. Those of its first pass come before the step."""
        return self.following is not None and self.following.in_step

    def _note_begun(self, shell: Shell, call: Call) -> None:
        call.record = [self.count, shell.key, self.is_ours, None]
        self.records.append(call.record)
        self.count += 1

    def _refuse_in_step(self, call: Call) -> None:
        refuse(
            f"{call_site()}: {call.kind.name.strip('_')} in a step of {self.optimizer}: its ranks "
            "may share out the work and the state of a step, so that a part of it is lost with "
            "each one"
        )

    def _take(self, call: Call, gift: Gift) -> None:
        """A call has been made before, by a peer or by a predecessor."""
        if gift.is_logged and self.keeper is not None and _unlike(call, gift.bodies):
            self.keeper.world.differs(call)
        call.is_logged = gift.is_logged
        if gift.is_half:
            call.half, call.has_result = (gift.bodies, gift.tag), True
        else:
            call.take(call.decoded(gift.bodies), gift.tag)

    def _is_awaited(self, call: Call) -> bool:
        """Whether peers wait in this call for this rank, which has healed in a step under way: it
        meets them where the next step begins."""
        return (
            not (self.in_set_up or self.is_ours)
            and call.kind.name in ("broadcast", "scatter")
            and getattr(call.args[-1], "rootRank", None) == call.own
            and call.is_sync
            and call.given_last() is None
            and self.may_hold()
        )

    def note(self, shell: Shell, call: Call) -> None:
        """A call at a known line is through."""
        if call.kind.name == "broadcast" and call.result is not None:
            self.given.keep(call.place(), call.bodies(), call.before)
        if self.in_set_up and self.kept is not None and not (call.takes_deputy or call.is_part):
            self.kept.add(shell.key, call.site, call.outputs)

    def _send_to_fewer(self, call: Call, there: There) -> None:
        if self.holds_for_all(call):
            return
        try:
            call.send(there)
            self.tells_of_deputy(call, call_site())
        except Impossible as error:
            if not self.holds(call, error):
                self._cannot(f"{call_site()}: {error}")
        if call.kind.name == "broadcast" and not (call.takes_deputy or call.awaits):
            root = call.args[-1].rootRank
            if root not in there.here:
                told.once(
                    f"{call_site()}: rank {root} of the group is away. The others use the last "
                    "value that it broadcast there"
                )

    def holds(self, call: Call, error: Impossible) -> bool:
        """Whether a call waits for the rank that is away, because its successor may join there."""
        may_wait = isinstance(error, RootAway) and call.is_sync and self.may_hold()
        if may_wait:
            call.hold(str(error))
        return may_wait

    def holds_for_all(self, call: Call) -> bool:
        """Whether a call between two steps waits for a rank that is away, without which the job
        takes no further step: in an evaluation, or for a file that only that rank writes."""
        is_held = self.needs_replicas and call.is_sync and not call.takes_deputy and self.may_hold()
        if is_held:
            call.hold("a rank is away, and the job needs all (--min-replicas)")
        return is_held

    def tells_of_deputy(self, call: Call, where: str) -> None:
        """In a job that needs all its replicas: a call is made without one of them, because the
        step under way has its averages, and its peers end it before they give their state. Or it is
        a model's broadcast of buffers between two steps: nobody has the lost rank's last ones."""
        if not self.needs_replicas or call.awaits or not call.outputs:
            return
        if call.takes_deputy:
            root = getattr(call.args[-1], "rootRank", call.own)
            if call.there is not None and root not in call.there.here:
                told.once(
                    f"{where}: rank {root} is away. Its peers' buffers of the model (running "
                    "averages) take the place of its own, whose last update is lost"
                )
        else:
            told.once(
                f"{where}: a rank has died after averages of this step were handed out. Its peers "
                "end the step without it: in this call another rank's tensor counts for it too"
            )

    def _cannot(self, reason: str) -> None:
        self.gives_up(f"{reason}{CANNOT}")

    def begins_again(self, reason: str) -> None:
        """All are about to begin again: the main thread gives up where it waits. In any thread."""
        with self.changed:
            is_first, self.why_again = not self.why_again, self.why_again or reason
            self.changed.notify_all()
        if is_first:
            self.on_again()

    def _answer(self, shell: Shell, call: Call) -> None:
        """Answer a call that no peer comes to."""
        call.waited = True
        if (shell.replays or self.is_following) and (not self.is_ours or self._is_in_step):
            self._note_begun(shell, call)
            _, bodies = shell.replays.pop(0) if shell.replays else (False, None)
            if call.kind.needs_all:
                name = call.kind.name
                self._cannot(f"{call_site()}: {name}, which sends each rank another part")
            if bodies is not None and not _unlike(call, bodies):
                call.take(call.decoded(bodies), None)
                return
        call.state = State.THROUGH
        if self.is_walking and not self.is_ours and self.kept is not None:
            call.site = call.site or near_site()
            bodies = self.kept.take(shell.key, call.site)
            if bodies is not None and not _unlike(call, bodies):
                call.write(call.decoded(bodies))
                return
            if call.outputs:
                told.once(self.kept.unknown(call.site, call.kind.name.strip("_")))
        call.takes_deputy = call.given_last() is None
        if self.is_passing and call.takes_deputy and not self.is_ours:
            self._see_that_it_is_known(call)
        there = There(len(shell.seats), shell.own, (shell.own,), None)
        try:
            _, after = call.kind.fewer(call, there)
        except Impossible as error:
            self._cannot(f"{call_site()}: {error}, in a replica that was restarted")
            return
        if after is not None:
            after()

    def _see_that_it_is_known(self, call: Call) -> None:
        """A newcomer passes over a loop: nobody gives it what its peers were given there."""
        root = getattr(call.args[-1], "rootRank", call.own)
        if call.kind.name in ("broadcast", "scatter") and root != call.own:
            raise UserError(
                f"this replica was restarted and cannot reach its peers: it skips loops of the "
                f"script, and the value that rank {root} sent by {call.kind.name} at "
                f"{call_site()} is gone. Use ftrun.Manager there (docs/MANAGER.md)"
            )

    @contextmanager
    def ours(self) -> Iterator[None]:
        """Calls of DistributedDataParallel itself: a newcomer makes them alone."""
        self.is_ours = True
        try:
            yield
        finally:
            self.is_ours = False

    @contextmanager
    def one_unit(self) -> Iterator[list[Call]]:
        """Several calls that belong together; yields them."""
        found: list[Call] = []
        self.unit = found
        try:
            yield found
        finally:
            self.unit = None

    # ------------------------------------------------------------ waits

    def await_decision(self, call: Call) -> None:
        """Wait until a call that has failed or is held goes on.

        Raises:
            Exception: its own error, if no member is lost.
        """
        following = self.following
        assert following is not None, "a call is made in a world that is open"
        following.may_wait()
        if self.keeper is not None:
            self.keeper.waits(call)
        if call.awaits:
            self._let_root_join(call)
        if self.why_again:
            self.gives_up(self.why_again)
        with self.changed:
            if call.state not in (State.FAILED, State.HELD):
                return
            if call.state is State.FAILED and not call.shell.is_stopped:
                self._is_its_own(call, following)
            if following.is_alone:
                call.restore()
                self._answer(self.shells[call.shell.key], call)
                return
            self.waiting += 1
            self.changed.wait(POLL_S if call.awaits else WAIT_S)
            self.waiting -= 1

    def _let_root_join(self, call: Call) -> None:
        limit_s = self._here.quorum_timeout_s
        if clock.now() - call.held_at > limit_s and not self.needs_replicas:
            self._cannot(f"{call_site()}: {call.awaits}")
        if not self.is_walking:
            most = "" if self.needs_replicas else f", {limit_s:.0f} s at most"
            told.once(
                f"{call_site()}: {call.awaits}. This rank waits for it{most}, and it joins there"
            )
        self.lets_join()

    def _is_its_own(self, call: Call, following: Following) -> None:
        """Raise the error of a call, if its peers are there, or nobody says that one is lost."""
        assert call.error is not None
        limit_s = self._here.heartbeat_timeout_s + DECISION_S
        built, began = call.shell.built, clock.now()
        while call.state is State.FAILED and not call.shell.is_stopped:
            if built is not None and built.is_connected():
                raise call.error
            left_s = began + limit_s - clock.now()
            if left_s <= 0:
                raise call.error
            self.waiting += 1
            self.changed.wait(min(left_s, WAIT_S))
            self.waiting -= 1
            following.may_wait()

    def complete_futures(self) -> None:
        """Complete the futures of calls that are through. Not under the lock."""
        while self.ready:
            try:
                call = self.ready.popleft()
            except IndexError:
                return
            if call.future is not None and not call.future.done():
                call.future.set_result(call.outputs)

    # ------------------------------------------------------------ groups

    def stop(self, shells: Sequence[Shell]) -> list[BuiltGroup]:
        """Hold the calls of these groups from now on; returns what is to be aborted. Under the
        lock."""
        for shell in shells:
            shell.is_stopped = True
        return [shell.built for shell in shells if shell.built is not None]

    def end_calls(self, aborted: Sequence[BuiltGroup], under_way: UnderWay) -> None:
        """Abort groups, and bring calls of theirs to an end. Not under the lock."""
        for built in [*aborted, *(group for *_, group in under_way if group is not None)]:
            built.abort()
        for _, native, group in under_way:
            wait_for_end(native, group)
        with self.changed:
            for call, native, _ in under_way:
                call.stop(native)
        self.complete_futures()

    def add(self, shell: Shell) -> None:
        with self.changed:
            self.shells[shell.key] = shell

    def destroyed(self, shell: Shell) -> None:
        with self.changed:
            if self.shells.get(shell.key) is shell:
                del self.shells[shell.key]
                self.destroyed_at[shell.key] = shell.round, shell.next
            self.retire(shell.built)
            shell.built = None

    def retire(self, built: BuiltGroup | None) -> None:
        """Connections are used no more here; peers may still wait for their last bytes."""
        if built is not None:
            self._old.append(built)

    def connect(self, shell: Shell, where: Callable[[], tuple[str, str]], timeout_s: float) -> None:
        """Connect a new group among the members that are there. Blocks until all have made it. If
        the quorum changes meanwhile, it is connected among those of the next one.

        Args:
            where: returns a store and a prefix, which all members have alike.

        Raises:
            PeerError: they have not met within ``timeout_s``.
        """
        deadline = clock.now() + timeout_s
        while True:
            with self.changed:
                at, here, (store, prefix) = self.in_use, self.places(shell, self.members), where()
                self.connecting = signal = AbortSignal()
            try:
                built = self.build_one(
                    shell, here, store, f"{prefix}/{shell.key}", deadline - clock.now(), signal
                )
            except PeerError:
                if not signal.triggered:
                    raise
                built = None
            with self.changed:
                if not signal.triggered:
                    self.put(shell, here, built)
                    return
                self.retire(built)
                if not self._changes_from(at, deadline - clock.now()):
                    raise PeerError("no quorum was formed in which a process group is connected")

    def _changes_from(self, at: Attempt, timeout_s: float) -> bool:
        """Wait for another quorum than that of ``at``; under the lock."""
        return self.changed.wait_for(lambda: self.in_use != at, timeout_s)

    def places(self, shell: Shell, seats: Sequence[int]) -> tuple[int, ...]:
        return tuple(place for place, seat in enumerate(shell.seats) if seat in seats)

    def build_one(
        self,
        shell: Shell,
        here: tuple[int, ...],
        store: str,
        prefix: str,
        timeout_s: float,
        abort: AbortSignal,
    ) -> BuiltGroup | None:
        if len(here) < 2:
            return None
        own = AbortSignal()
        unsubscribe = abort.subscribe(own.trigger)
        try:
            return ProcessGroupGloo(timeout=shell.timeout).build(
                store, prefix, here.index(shell.own), len(here), self._here.host, timeout_s, own
            )
        finally:
            unsubscribe()

    def put(self, shell: Shell, here: tuple[int, ...], built: BuiltGroup | None) -> None:
        if shell.built is not built:
            self.retire(shell.built)
        shell.built, shell.is_stopped = built, False
        size, own = len(shell.seats), shell.own
        shell.there = There(size, own, here, built, shell.devices, self.in_use)

    def release(self, *, only_aborted: bool = False) -> None:
        if not self._old:
            return
        old = [built for built in self._old if built.aborted or not only_aborted]
        self._old = [built for built in self._old if built not in old]
        if old and self.following is not None:
            self.following.release(old)

    @property
    def is_as_before(self) -> bool:
        """Whether nothing has happened since the last step began: mostly so."""
        return self._boundary_count == self.count and not (self._old or self.in_set_up)

    def begins_step(self) -> None:
        """A step begins. Under the lock."""
        self.in_set_up, self.open_calls = False, None
        for shell in self.shells.values():
            self.count += sum(bool(whose) for whose, _ in shell.replays)
        self._boundary_count = self.count
        for shell in self.shells.values():
            self._boundary_count -= len(shell.awaiting())
            shell.replays.clear()

    # ------------------------------------------------------------ for newcomers

    def joined_at(self, count: int, live: Mapping[str, int]) -> None:
        """Newcomers join in the step under way, at call ``live`` of each group. From any thread."""
        with self.changed:
            calls = [
                call
                for key, first in live.items()
                if key in self.shells
                for number, call in self.shells[key].calls.items()
                if number >= first
            ]
            self.open_calls = count, {call.record[0] for call in calls if call.record is not None}

    def since(self, first: int, is_over: bool) -> list[list[Any]]:
        """What this rank was given from call ``first`` on: before newcomers join, or all if it
        ``is_over``. From any thread. Of a call that they make with the others it is []."""
        with self.changed:
            stop, left = self.open_calls or (self._boundary_count, ())
            stop = max(self.count, stop) if is_over else stop
            known = dict(self._loaded)
            for number, group, is_ours, result in self.records:
                texts = None if result is None else texts_of(as_bytes(result), SENT_BYTES_MAX)
                known[number] = [group, texts, *[NOW] * is_ours]
            for number, (_, _, *ours) in known.items():
                if ours and number < self._boundary_count:
                    known[number] = [*known[number][:2], PAST]
            return [
                [] if index in left else known[index]
                for index in range(first, stop)
                if index in known
            ]

    def replay(self, first: int, given: Sequence[Sequence[Any]]) -> None:
        """This rank has healed to a place at call ``first``; a peer was given these since."""
        with self.changed:
            self.count = first
            self.records.clear()
            self._loaded = {first + at: list(x) for at, x in enumerate(given) if x}
            self._boundary_count = first + len(given)
            for shell in self.shells.values():
                shell.replays.clear()
            for key, texts, *ours in filter(None, given):
                if key in self.shells:
                    bodies = None if texts is None else bodies_of(texts)
                    self.shells[key].replays.append((ours[0] if ours else SCRIPTS, bodies))

    def pass_over(self, shell: Shell) -> None:
        """A call begins of a rank that has gone through steps again, where it made none of
        DistributedDataParallel's own: their results are not this call's."""
        if self.is_ours and not self._is_in_step:
            return
        with self.changed:
            while shell.replays and shell.replays[0][0] >= (PAST if self.is_ours else NOW):
                shell.replays.pop(0)
                self.count += 1


# ---------------------------------------------------------------- results as bytes


def _unlike(call: Call, bodies: Sequence[bytes]) -> bool:
    outputs = call.outputs
    return [len(x) for x in bodies] != [nbytes(x) for x in outputs]
