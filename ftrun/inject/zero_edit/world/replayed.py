"""The world of one replica group, whose lost worker is replaced in the middle of a call.

Theory of operation. All groups are of all workers, and all their calls are numbered in one order.
What a call gives a worker goes to the log in its agent's memory, before the script sees it. A call
that a death breaks does not raise: whoever waits for it goes on to wait. A thread ends the calls of
the broken groups, publishes how far this worker is, connects new groups, and issues again what not
all have (core/replay/settling.py says which). So it does not matter where the script stands.

A replacement runs the script from its beginning to the place of its newest generation, as any
newcomer does (world.py). From there its calls are answered from the log, until it comes to one that
not all have; by then its thread has connected it to the others.

Not here: what a generation is (memory.py), the memory itself (snapshots/area.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from ftrun.base import clock
from ftrun.base.errors import PeerError
from ftrun.core.replay.falls import Fall
from ftrun.core.replay.log_rules import Keeps, keeps, of_all
from ftrun.core.replay.settling import (
    Source,
    Step,
    again,
    in_all_logs,
    needed_from,
    next_step,
    source,
)
from ftrun.inject.zero_edit import told
from ftrun.inject.zero_edit.frames import call_site, near_site
from ftrun.inject.zero_edit.world.calls import KEPT_BYTES_MAX, Call, State, wait_for_end
from ftrun.inject.zero_edit.world.kinds import has_no_data, nbytes
from ftrun.inject.zero_edit.world.shell import Shell
from ftrun.inject.zero_edit.world.world import WAIT_S, World
from ftrun.process_groups.built import AbortSignal, BuiltGroup
from ftrun.snapshots.area import CALLS_MAX, AreaFull, GroupMemory, Word
from ftrun.snapshots.memory import offsets_of
from ftrun.training.context import WorkerContext

LOOK_S = 0.0005
LATE_S = 0.2
ERROR_S = 20.0
"""A call that has failed although nobody has died: after this time it is the script's own error."""


class ReplayedCall(Call):
    """A call whose result is logged. Its inputs are kept until all workers have logged theirs.

    Attributes:
        given: what it gives, once it is through: copies, or a tensor and its version.
    """

    shell: Any
    given: list[Any] | None = None
    failed_at = 0.0

    def prepare(self) -> None:
        """Keep what it gives, if it writes over that."""
        kind = self.kind
        if kind.is_in_place:
            self.kept = list(map(self.shell.world.buffers.copy, kind.outputs(self)))

    def _keep_result(self) -> None:
        self.shell.world.is_through(self)

    def _fails(self, error: Exception) -> None:
        self.failed_at = clock.now()
        super()._fails(error)

    def keep_inputs(self) -> None:
        """It is through, and others may not be: keep what it gives, as it is now.

        A large one is not copied, because as a rule it is a buffer that nobody writes any more; if
        somebody has, its version tells.
        """
        if self.kept is None:
            copy = self.shell.world.buffers.copy
            self.given = [
                (x, x._version) if nbytes(x) > KEPT_BYTES_MAX and not x.is_inference() else copy(x)
                for x in self.kind.inputs(self)
            ]

    def release(self) -> None:
        """All have logged it."""
        if self.kept is not None:
            self.shell.world.buffers.release(self.kept)
        self.kept = self.given = None

    def scratch(self) -> ReplayedCall | None:
        """The same call with a result that nobody needs; None: its inputs are gone."""
        kind, outputs, inputs = self.kind, self.kind.outputs(self), self.kind.inputs(self)
        kept = self.kept if self.kept is not None else self.given
        values = (
            [] if kept is None else [_as_given(x, y) for x, y in zip(kept, inputs, strict=True)]
        )
        if kept is None or any(x is None for x in values):
            return None
        is_own = bool(inputs) and bool(outputs) and inputs[0] is outputs[0]
        made = iter(values if is_own else [torch.empty_like(x) for x in outputs])
        args = [*self.args]
        args[0] = _mapped(args[0], lambda _: next(made))
        if not is_own and inputs:
            given = iter(values)
            at = 0 if not outputs else 1
            args[at] = _mapped(args[at], lambda _: next(given))
        return ReplayedCall(self.shell, kind, tuple(args), self.number, "", self.is_sync)


class ReplayedWorld(World):
    """All groups of this process, in one replica group with memory snapshots.

    Args:
        here: this worker, as if it were a replica of one worker; ``rank``: of it.
        memory: that of its group, which the agent holds.

    Attributes:
        is_newcomer: it replaces a lost worker.
        fell: why a death of a worker cannot be mended; None: it can.
        log: the number of the log under way.
    """

    call = ReplayedCall

    def __init__(self, here: WorkerContext, rank: int, memory: GroupMemory) -> None:
        super().__init__(here, rank, lambda reason: self.falls(Fall.SCRIPT, reason))
        self.memory, self.board, self.area = memory, memory.board, memory.area(rank)
        self.is_newcomer = self.board.read(rank, Word.STARTS) > 1
        self.done = self.board.read(rank, Word.DONE)
        self.fell: Fall | None = None
        self.log = max(0, self.area.newest_log)
        self._opened = self.done
        self._joined = -1 if self.is_newcomer else self.board.decree
        self._first: int | None = None if self.is_newcomer else 0
        self._is_open = not self.is_newcomer
        self._cut = -1
        self._flying: dict[int, ReplayedCall] = {}  # begun here, and not logged by all
        self._oldest = 0
        self._early: dict[int, tuple[int, list[torch.Tensor]]] = {}  # through before their turn
        self._is_full = False
        self._again: list[ReplayedCall] = []
        self._aborts: list[BuiltGroup] = []
        self._place = ("", "")

    @property
    def is_whole(self) -> bool:
        return not self.is_apart

    def falls(self, reason: Fall, why: str = "") -> None:
        """A death cannot be mended from now on. One that is behind others waits for its end."""
        if self.fell is None:
            self.fell = reason
            self.board.set(self.rank, Word.FALL, reason)
            if why and (self.is_newcomer or not self.rank):  # the reason itself is the agent's
                told.say(f"rank {self.rank} cannot be replaced alone, or replace another: {why}")
        if self.is_newcomer and (self.is_apart or self._first is None):
            _stay()

    # ------------------------------------------------------------ calls (under ``changed``)

    def begin(self, shell: Shell, call: Call) -> None:
        """A rank begins a call."""
        assert isinstance(call, ReplayedCall)
        call.number = -1
        if has_no_data(call):
            call.state, call.waited = State.THROUGH, True
            return
        if self.is_apart:
            self._answer(shell, call)
            return
        if self.in_set_up and not self.is_ours:
            call.site = call.site or near_site()
        call.takes_deputy = self.is_ours
        if self._unit is not None:
            self._unit.append(call)
            call.is_part = True
        what = self._keeps(call)
        if what is None:
            self.falls(Fall.CALL, f"{call.kind.name.strip('_')} at {call_site()}")
        if self.fell is not None:
            self._issue(call)
            return
        number = call.number = self.count
        self.count += 1
        done = self.board.all(Word.DONE)
        self._drop(needed_from(self._first, done, is_open=self._is_open))
        match source(number, self._first, done, is_open=self._is_open):
            case Source.LOG:
                self._answer_from_log(call)
            case Source.WAIT:
                self._keep(call)
            case Source.LIVE:
                if self.is_newcomer and number < self.done:
                    self._see_that_it_is_the_same(call)
                self._keep(call)
                if self.board.read(self.rank, Word.JOINED) != self._joined:
                    self._is_back()
                try:
                    self._issue(call)
                except Exception:
                    del self._flying[number]  # torch refuses it, at all ranks alike
                    self.count = number
                    raise

    def _see_that_it_is_the_same(self, call: ReplayedCall) -> None:
        """Its predecessor has made this call: another one would break the others'."""
        what, entry = self._keeps(call), self.area.find(call.number)
        sizes = [x.nbytes for x in self._to_log(call, what or Keeps.NOTHING)]
        if entry is not None and (entry.kind, entry.data.nbytes) != (what, offsets_of(sizes)[1]):
            where = f"{call.kind.name.strip('_')} at {call_site()}"
            self.falls(Fall.OTHER_CALL, f"{where}: its predecessor made another call")
            _stay()

    def _keeps(self, call: ReplayedCall) -> Keeps | None:
        if len(call.shell.seats) != self.memory.board.ranks:
            return None
        root = getattr(call.args[-1], "rootRank", None)
        return keeps(call.kind.name, is_root=root == call.own)

    def _keep(self, call: ReplayedCall) -> None:
        call.prepare()
        self._flying[call.number] = call

    def _drop(self, until: int) -> None:
        while self._oldest < until:
            call = self._flying.pop(self._oldest, None)
            self._oldest += 1
            if call is not None:
                call.release()

    def is_through(self, call: ReplayedCall) -> None:
        """A call has its result, which the script has not seen yet: log it."""
        number = call.number
        if number not in self._flying:
            return  # from the log, or one that nobody needs
        what = self._keeps(call) or Keeps.NOTHING
        if number >= self.done and self.fell is None:
            found = self._to_log(call, what)
            if number > self.done:
                self._early[number] = what, [x.detach().clone() for x in found]
            else:
                self._log(number, what, found)
                while self.done in self._early:
                    self._log(self.done, *self._early.pop(self.done))
                self.board.set(self.rank, Word.DONE, self.done)
        entry = self.area.find(number) if what is Keeps.INPUT else None
        if entry is None:
            call.keep_inputs()
        else:
            call.given = _parts(entry.data, call.kind.inputs(call))

    def _to_log(self, call: ReplayedCall, what: Keeps) -> list[torch.Tensor]:
        is_here = self.rank == of_all(call.number, self.board.ranks)
        if what is Keeps.NOTHING or (what is Keeps.ALIKE and not is_here):
            return []
        return call.kind.inputs(call) if what is Keeps.INPUT else call.kind.outputs(call)

    def _log(self, number: int, what: int, tensors: Sequence[torch.Tensor]) -> None:
        is_there = self.is_newcomer and self.area.find(number) is not None  # but not its ``done``
        if not (self._is_full or is_there):
            try:
                self.area.log(self.log, number, what, tensors)
            except AreaFull:  # the agent sees the gap; the next generation ends it
                self._is_full = True
        self.done = number + 1

    @property
    def is_half_full(self) -> bool:
        """Whether the log under way is."""
        return self.done - self._opened > CALLS_MAX // 2 or (
            2 * self.area.log_bytes(self.log) > self.area.layout[1]
        )

    def opens_log(self, number: int) -> None:
        """A generation is whole: what follows goes to the next log."""
        self.area.open_log(number, self.done)
        self.log, self._opened, self._is_full = number, self.done, False

    # ------------------------------------------------------------ a replacement

    def replay(self, first: int, _given: Sequence[Sequence[Any]]) -> None:
        """This worker stands at the place of its generation, at call ``first``."""
        with self.changed:
            self.count = self._oldest = first

    def since(self, _first: int, _is_over: bool) -> list[list[Any]]:
        return []

    def _answer_from_log(self, call: ReplayedCall) -> None:
        call.waited = True
        result = self._logged(call)
        if result is not None:
            call.take(result, None)

    def _logged(self, call: ReplayedCall) -> list[torch.Tensor] | None:
        """The result of a call that all have; None: it has none."""
        outputs, what = call.kind.outputs(call), self._keeps(call)
        if what is Keeps.INPUT:
            inputs = call.kind.inputs(call)
            parts = [self._entry(call, rank, what, inputs) for rank in call.shell.seats]
            if len(outputs) == len(inputs):  # one tensor that has all
                joined = [torch.cat([x.reshape(-1) for x in y]) for y in zip(*parts, strict=True)]
                return [x.view_as(y) for x, y in zip(joined, outputs, strict=True)]
            return [part[index] for index in range(len(inputs)) for part in parts]
        if what is Keeps.RESULT:
            return self._entry(call, self.rank, what, outputs)
        if what is Keeps.ALIKE:
            return self._entry(call, of_all(call.number, self.board.ranks), what, outputs)
        self._entry(call, self.rank, Keeps.NOTHING, [])
        return None if not outputs else [x.clone() for x in outputs]

    def _entry(
        self, call: ReplayedCall, rank: int, what: Keeps, like: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """A copy of what a rank has logged: it may begin the log anew meanwhile."""
        area, size = self.memory.area(rank), offsets_of([x.nbytes for x in like])[1]
        entry = area.find(call.number)
        if entry is not None and (entry.kind != what or entry.data.nbytes != size):
            where = f"{call.kind.name.strip('_')} at {call_site()}"
            self.falls(Fall.OTHER_CALL, f"{where}: its predecessor made another call")
        elif entry is not None:
            found = [x.clone() for x in _parts(entry.data, like)]
            again = area.find(call.number)
            if again is not None and again.data.data_ptr() == entry.data.data_ptr():
                return found
        self.falls(Fall.PEER_LOG)
        _stay()

    # ------------------------------------------------------------ waits

    def await_decision(self, call: Call) -> None:
        """Wait until a call that has failed or is held goes on. See World."""
        with self.changed:
            if call.state is State.FAILED and self._has_failed(call):
                assert call.error is not None
                raise call.error
            if call.state in (State.FAILED, State.HELD):
                self.waiting += 1
                self.changed.wait(WAIT_S)
                self.waiting -= 1

    def _has_failed(self, call: Any) -> bool:
        """Whether a call has failed by the script's own fault."""
        built = call.shell.built
        if call.state is not State.FAILED or call.shell.is_stopped or self.fell is not None:
            return call.state is State.FAILED and self.fell is not None
        is_up = built is not None and built.is_connected()
        return bool(is_up or clock.now() > call.failed_at + ERROR_S)

    # ------------------------------------------------------------ the thread that mends

    def opens(self, store: str, prefix: str) -> None:
        """The script makes its world."""
        self._place = store, prefix
        if not self.is_newcomer:
            self.area.divide()
            self.area.open_log(0, 0)
        threading.Thread(target=self._mend, name="ftrun-mend", daemon=True).start()

    def _mend(self) -> None:
        try:
            while True:
                words = self.board.look()
                match next_step(words, self.rank, self._cut, self._joined):
                    case Step.GO_ON:
                        self.board.wait(words.number, WAIT_S)
                        self._end_errors()
                    case Step.CUT:
                        self._drop_groups()
                        self._cut = words.number
                    case Step.PUBLISH:
                        self.board.set(self.rank, Word.PUBLISHED, words.number)
                    case Step.WAIT:
                        time.sleep(LOOK_S)
                    case Step.CONNECT if self.is_apart:
                        time.sleep(LOOK_S)
                    case Step.CONNECT:
                        self._connect(words.number, in_all_logs(words.done))
        except Exception as error:
            self.falls(Fall.SCRIPT, f"{type(error).__name__}: {error}")
            raise

    def _end_errors(self) -> None:
        """Futures, for which nobody may look, get the errors of their own calls."""
        with self.changed:
            calls = [x for x in self._flying.values() if x.future is not None]
            failed = [x for x in calls if self._has_failed(x)]
        for call in failed:
            if call.future is not None and not call.future.done():
                call.future.set_exception(call.error)

    def _drop_groups(self) -> None:
        """Bring all calls to an end."""
        with self.changed:
            self._first, self._is_open = None, False
            for shell in self.shells.values():
                shell.is_stopped = True
            groups = [x.built for x in self.shells.values() if x.built is not None]
            calls = [
                (call, call.native, None if call.there is None else call.there.built)
                for call in (*self._flying.values(), *self._again)
                if call.native is not None
            ]
        for built in groups:
            built.abort()
        for _, native, group in calls:
            wait_for_end(native, group)
        with self.changed:
            for call, native, _ in calls:
                call.stop(native)
            self._again.clear()
        self.complete_futures()
        self.board.set(self.rank, Word.CUT_AT, time.monotonic_ns())

    def _connect(self, number: int, first: int) -> None:
        """Connect the groups of a decree, unless a newer one comes."""
        signal, is_over = AbortSignal(), threading.Event()

        def watch() -> None:
            while not is_over.is_set():
                if self.board.wait(number, 0.1) > number:
                    signal.trigger()
                    return

        threading.Thread(target=watch, name="ftrun-decrees", daemon=True).start()
        store, prefix = self._place
        with self.changed:
            self._first = first
        made: list[tuple[Shell, BuiltGroup | None]] = []
        try:
            for key, shell in sorted(self.shells.items()):
                here, limit_s = tuple(range(len(shell.seats))), shell.timeout.total_seconds()
                name = f"{prefix}/{number}/{key}"
                made.append((shell, self.build_one(shell, here, store, name, limit_s, signal)))
        except PeerError:  # another has died, and the decree is still to come
            _shut_down([built for _, built in made if built is not None])
            with self.changed:
                self._first = None
            if self.board.wait(number, LATE_S) == number:  # nobody has: let all try once more
                self.board.set(self.rank, Word.BROKEN, number)
                self.board.wait(number, WAIT_S)
            return
        finally:
            is_over.set()
        with self.changed:
            for shell, built in made:
                self.put(shell, tuple(range(len(shell.seats))), built)
            self._joined = number
            self._is_open = self._issue_again(first)
            if self._is_open and self.count >= first:
                self._is_back()
            self.changed.notify_all()
        self.complete_futures()
        old, self._old = self._old, []
        _shut_down(old)

    def _is_back(self) -> None:
        """This worker goes on in the group of the newest decree."""
        self.board.set(self.rank, Word.JOINED_AT, time.monotonic_ns())
        self.board.set(self.rank, Word.JOINED, self._joined)

    def _answer_before(self, first: int) -> None:
        """All have these calls, and so has this replacement's log."""
        for number in sorted(x for x in self._flying if x < first):
            if self._flying[number].state is not State.THROUGH:
                self._answer_from_log(self._flying[number])

    def _issue_again(self, first: int) -> bool:
        """Whether all could be issued that must be."""
        self._answer_before(first)
        order = again(first, self.count, self._flying.keys())
        if isinstance(order, Fall):
            self.falls(order)
            return False
        for number in order:
            call = self._flying[number]
            known = call.scratch() if call.state is State.THROUGH else call
            if known is None or known.shell.there is None:
                self.falls(Fall.INPUT)
                return False
            if known is not call:
                known.number = -1
                self._again.append(known)
            try:
                known.issue(known.shell.there)
            except RuntimeError as error:
                known.state, known.error = State.FAILED, error
        return True

    # ------------------------------------------------------------ the end

    def destroyed(self, shell: Shell) -> None:
        """The script has destroyed a group: others may still need a call in it."""

    def retire(self, built: BuiltGroup | None) -> None:
        if built is not None:
            self._old.append(built)

    def ends(self) -> None:
        """The script is over: stay until that of each worker is."""
        self.board.set(self.rank, Word.OVER, 1)
        while not all(self.board.all(Word.OVER)) and self.fell is None:
            time.sleep(LOOK_S * 10)


def _stay() -> NoReturn:
    """A replacement cannot go on. The agent ends it, with all other workers."""
    while True:
        threading.Event().wait()


def _parts(data: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors of a log's entry, which are views of it."""
    offsets, _ = offsets_of([x.nbytes for x in like])
    return [
        data[at : at + x.nbytes].view(x.dtype).view(x.shape)
        for at, x in zip(offsets, like, strict=True)
    ]


def _as_given(kept: Any, like: torch.Tensor) -> torch.Tensor | None:
    """What a call has given; None: somebody has written over it."""
    if isinstance(kept, tuple):
        tensor, version = kept
        is_there = tensor.untyped_storage().nbytes() >= tensor.nbytes
        return tensor if is_there and tensor._version == version else None
    if isinstance(kept, bytes):
        from ftrun.training.exchanged_tensors import from_bytes

        return from_bytes(kept, like)
    return kept.clone() if isinstance(kept, torch.Tensor) else None


def _mapped(value: Any, change: Any) -> Any:
    """The same lists with other tensors."""
    if isinstance(value, torch.Tensor):
        return change(value)
    return [_mapped(x, change) for x in value]


def _shut_down(groups: Sequence[BuiltGroup]) -> None:
    """In a thread of its own: the backend may wait for ever for an operation of a lost peer."""

    def work() -> None:
        for group in groups:
            group.shutdown()

    threading.Thread(target=work, name="ftrun-shutdown", daemon=True).start()
