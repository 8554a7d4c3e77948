"""One collective of the script: issued on a real backend, and settled if a rank dies meanwhile.

| state   | means                                                  | left by                       |
|---------|--------------------------------------------------------|-------------------------------|
| HELD    | it waits for a group: the one in use was aborted       | ``issue``                     |
| ISSUED  | torch's backend carries it out                         | SECOND, THROUGH, FAILED       |
| SECOND  | its result is there, and the second phase is under way | THROUGH, FAILED               |
| FAILED  | its Work has ended with an error; membership decides   | ``issue``, ``take``           |
| THROUGH | its result is in the script's tensors                  |                               |

What it gives is kept as long as it may be issued again, if it writes over that. A small result is
kept until all ranks are known to have theirs. All methods but those of ``CallWork`` and
``await_native`` are called under the world's lock.

Not here: which calls are issued again (core/worker/settling.py), the groups (shell.py).
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist

from ftrun.base import clock
from ftrun.inject.zero_edit.frames import call_site
from ftrun.inject.zero_edit.world.kinds import Kind, There, in_first, listed_first, nbytes
from ftrun.process_groups.built import BuiltGroup
from ftrun.process_groups.writers import wait_for_writers
from ftrun.training.exchanged_tensors import from_bytes, small_bytes, to_bytes, words

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.world.shell import Shell

T = TypeVar("T")
ABORTED = "the group was aborted"
KEPT_BYTES_MAX = 256 << 10
"""A larger result is not copied: a second phase shows that all ranks have theirs."""
RECHECK, LATER = timedelta(milliseconds=20), timedelta(milliseconds=100)
"""After the first ``OFTEN`` times a call is waited for longer: each end of a wait is an error of
torch's, and takes as much as the rest of the call."""
OFTEN, TOLD_AFTER = 5, 34
"""So many times a call is waited for before peers are told, of which one may have ended."""


class State(Enum):
    """See the module's table."""

    HELD = "held"
    ISSUED = "issued"
    SECOND = "second"
    FAILED = "failed"
    THROUGH = "through"


HELD, ISSUED, SECOND, FAILED, THROUGH = State  # to ask the class costs more at each call
profiles: Callable[[], bool] = torch._C._autograd._profiler_enabled
modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
_now = clock.now


class Buffers:
    """Host memory for copies of large inputs, used again: fresh pages cost as much as the call."""

    FREE_MAX = 16

    def __init__(self) -> None:
        self._free: deque[torch.Tensor] = deque(maxlen=self.FREE_MAX)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor | bytes:
        """A copy of ``tensor``; of a small one its bytes, because torch's own copy costs more."""
        is_small = tensor.is_cpu and nbytes(tensor) <= KEPT_BYTES_MAX
        return to_bytes(tensor) if is_small else self.clone(tensor)

    def clone(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of ``tensor``, as a tensor."""
        tensor = tensor.detach()
        if tensor.layout is torch.strided and tensor.nbytes > KEPT_BYTES_MAX:
            return self.taken(tensor).copy_(tensor)
        return tensor.clone()

    def taken(self, like: torch.Tensor) -> torch.Tensor:
        """Memory of that shape, with any values."""
        for index, free in enumerate(self._free):
            if (free.shape, free.dtype, free.device) == (like.shape, like.dtype, like.device):
                del self._free[index]
                return free
        return torch.empty_like(like, memory_format=torch.preserve_format)

    def release(self, copies: Sequence[torch.Tensor | bytes]) -> None:
        """These copies are needed no more."""
        for copy in copies:
            if isinstance(copy, bytes) or copy.is_inference():
                continue
            if copy.layout is torch.strided and copy.nbytes > KEPT_BYTES_MAX:
                self._free.append(copy)


Record = list[Any]
"""What a call has given, for a newcomer: longer than the call, and without its tensors. Its number
among the calls of the script, the key of its group, whether it is DistributedDataParallel's own,
and the result or None."""


class Call:
    """One call of one rank.

    Args:
        shell: its group.
        kind: of collective; ``args``: as torch's backend takes them.
        number: of the call in the group.
        is_sync: the script waits for it at once, so that a second phase comes in order.

    Attributes:
        outputs: the tensors that it writes.
        site: the script's line, for what was given there last; "": it is not looked for.
        takes_deputy: a broadcast from a rank that is away is that of its deputy.
        before: of a broadcast, what a rank that is to get it has in its place; None: not known.
        tag: names the ranks whose inputs are in the result.
        is_part: it is one of several that make one call of the script's.
        record: what is noted of it for a newcomer.
        is_large: its result is not kept. ``is_two``: it has a second phase, and ``has_result`` from
            then on.
        since: when peers were told first that this rank waits in it.
        awaits: what it is held for, in words: its root is away, and may come back; "": it is not.
        held_at: since when.
        half: the result that its predecessor had, in the second phase, and its tag; None: none.
        is_logged: what it has given is in the log of whoever keeps this worker.
        handle: gives the Work that the script has got, as long as it has it. ``new_future``: makes
            a future that may have its tensors.
        waited: the script has waited for it. ``clears``: it has waited for all calls before.
    """

    state = HELD
    outputs: list[torch.Tensor]
    kept: Sequence[torch.Tensor | bytes] | None = None
    result: Sequence[torch.Tensor | bytes] | None = None
    record: Record | None = None
    native: Any = None
    there: There | None = None
    after: Callable[[], object] | None = None
    future: torch.futures.Future[Any] | None = None
    error: Exception | None = None
    tag: object = None
    since: float | None = None
    awaits, held_at, site = "", 0.0, ""
    before: Sequence[bytes] | None = None
    half: tuple[Sequence[bytes], object] | None = None
    takes_deputy = waited = clears = is_two = is_part = is_large = has_result = False
    is_logged = False
    handle: Callable[[], object] = staticmethod(lambda: None)
    new_future: Callable[[], torch.futures.Future[Any]] = torch.futures.Future

    def __init__(
        self, shell: Shell, kind: Kind, args: tuple[Any, ...], number: int, is_sync: bool
    ) -> None:
        self.shell, self.kind, self.args, self.number = shell, kind, args, number
        self.is_sync = is_sync
        outputs, first = kind.outputs, args[0]
        if outputs is listed_first:
            self.outputs = first
        else:
            is_one = outputs is in_first and type(first) is torch.Tensor
            self.outputs = [first] if is_one else outputs(self)

    @property
    def own(self) -> int:
        """The place of this rank in its group."""
        return self.shell.own

    def await_native(self, native: Any, timeout: timedelta | None) -> Exception | None:
        """Wait for a native Work, not under the lock; its error, or None. Without ``timeout`` it
        was waited for already.

        Returns early if another one has replaced it.
        """
        try:
            if self.kind.is_unsettled:  # a deadline in the middle would break Gloo's connections
                native.wait() if timeout is None else native.wait(timeout)
            elif timeout is not None:
                _wait_for(native, timeout)
            elif not _has_ended(self, native):
                _wait_long(self, native)
        except RuntimeError as error:
            return error
        return None

    # ------------------------------------------------------------ under the world's lock

    def writes(self, work: Callable[[], T]) -> T:
        """Run ``work``, which may write its tensors, in any thread: an evaluation may reduce
        tensors of torch's inference mode."""
        for tensor in self.outputs:
            if tensor.is_inference():
                with torch.inference_mode():
                    return work()
        return work()

    def prepare(self) -> None:
        """Keep what it gives, if it writes over that."""
        kind, outputs = self.kind, self.outputs
        if self.kept is None:  # else it is small
            self.is_large = sum(map(nbytes, outputs)) > KEPT_BYTES_MAX
            if kind.is_in_place:
                self.kept = list(map(self.shell.world.buffers.clone, outputs))
        if (self.is_large or kind.is_by_rank) and self.is_sync and not kind.is_unsettled:
            self.is_two = bool(outputs or kind.inputs(self))

    def restore(self) -> None:
        """Put back what it gives, if it was written over."""
        self.native = self.after = None
        self.has_result = False
        if self.kept is not None:
            kept = self.kept
            self.write(
                [
                    from_bytes(x, y) if isinstance(x, bytes) else x
                    for x, y in zip(kept, self.kind.inputs(self), strict=True)
                ]
            )

    def issue(self, there: There) -> None:
        """Issue it, perhaps once more, among those that are there.

        Raises:
            Impossible: it needs a rank that is away.
            Exception: torch's own, for a call that is wrong.
        """
        self.send(there)
        self.is_sent()

    def send(self, there: There) -> None:
        """As ``issue``, before anybody hears of its result: ``is_sent`` follows."""
        if self.there is not None:
            self.restore()
        self.there, self.tag, self.has_result, kind = there, there.since, False, self.kind
        if there.is_full and not kind.is_ours:
            is_watched = profiles() or modes()  # else a call spares torch's dispatcher
            backend = there.torchs() if is_watched else there.built.native  # type: ignore[union-attr]
            issued = None if kind.quicker is None else kind.quicker(self, backend)
            self.native, self.after = issued or (getattr(backend, kind.name)(*self.args), None)
        else:
            self.native, self.after = self.writes(partial(kind.fewer, self, there))
        self.state, self.awaits = ISSUED, ""

    def is_sent(self) -> None:
        """It was sent, unless it is held."""
        if self.native is None and self.state is ISSUED:
            self._has_result()
        elif self.future is not None:
            self._listen()

    def hold(self, reason: str) -> None:
        """Wait until the rank is back that is to give it."""
        if not self.awaits:
            self.awaits, self.held_at = reason, clock.now()
        self.state, self.native = HELD, None

    def given_last(self) -> list[torch.Tensor] | None:
        """What the root of this broadcast has given at this line last."""
        if self.kind.name != "broadcast":
            return None
        bodies = self.shell.world.given.at(self.place())
        return None if bodies is None else self.decoded(bodies)

    def decoded(self, bodies: Sequence[bytes]) -> list[torch.Tensor]:
        """A result that ``bodies`` had."""
        outputs = self.outputs
        return [from_bytes(body, like) for body, like in zip(bodies, outputs, strict=True)]

    def bodies(self) -> list[bytes]:
        return as_bytes(self.result or ())

    def words(self) -> str:
        """For people: where the script makes it now."""
        return f"{self.kind.name.strip('_')} at {call_site()}"

    def place(self) -> str:
        """A name of this broadcast, by its line and its tensors."""
        tensors = ", ".join(words("", tensor) for tensor in self.outputs)
        return f"{self.shell.key} {self.site}{tensors}"

    def ended(self, native: Any, error: Exception | None) -> None:
        """A native Work has ended; nothing happens if it is not the one under way."""
        is_under_way = self.state is ISSUED or self.state is SECOND
        if native is not self.native or not is_under_way:
            return
        if error is not None:
            self._fails(error)
        elif self.state is ISSUED and (self.is_two or self.after is not None):
            self._has_result()
        else:
            self._is_through()

    def take(self, result: Sequence[torch.Tensor] | None, tag: object) -> None:
        """Its result is a peer's; None: its own stands."""
        if result is not None:
            self.write(result)
            self.tag = tag
        self.native = self.after = None
        self._is_through()

    def stands(self) -> None:
        """All have its result: its own, or that of its predecessor, is right."""
        bodies, tag = self.half or (None, None)
        self.take(None if bodies is None else self.decoded(bodies), tag)

    def write(self, result: Sequence[torch.Tensor]) -> None:
        """Let the script's tensors have a result."""
        outputs = self.outputs
        self.writes(lambda: [x.copy_(y) for x, y in zip(outputs, result, strict=True)])

    def stop(self, native: Any) -> None:
        """The group was aborted, and ``native`` writes no more: it has ended, for good."""
        future = _future_of(native)
        error: Exception | None = RuntimeError(ABORTED)
        if future is not None and future.done():  # else a lost message: it ends at its timeout
            error = _error_of(future)
        self.ended(native, error)

    def _fails(self, error: Exception) -> None:
        self.state, self.error = FAILED, error
        self.shell.world.changed.notify_all()

    def _has_result(self) -> None:
        after, self.after = self.after, None
        if after is not None:
            self.writes(after)
        there = self.there
        if not self.is_two or there is None or there.is_alone:
            self._is_through()
            return
        if self.shell.world.keeper is not None:
            self.shell.world.keeper.logs(self, is_half=True)
        self.state, self.has_result = SECOND, True
        if self.shell.is_stopped:
            self._fails(RuntimeError(ABORTED))
            return
        self.native = there.native.allreduce([torch.zeros(1)], dist.AllreduceOptions())
        if self.future is not None:
            self._listen()

    def _is_through(self) -> None:
        self._keep_result()
        shell, world = self.shell, self.shell.world
        if not self.kind.is_unsettled:
            self.native = None
        if self.site:
            world.note(shell, self)
        if self.future is not None:
            world.ready.append(self)
        if world.waiting:
            world.changed.notify_all()

    def _keep_result(self) -> None:
        """It is through: keep what others may need, and no more than that."""
        shell, kind = self.shell, self.kind
        world = shell.world
        if world.keeper is not None:
            world.keeper.logs(self)
        self.state, self.half = THROUGH, None
        if self.is_large:
            world.buffers.release(self.kept or ())
        elif not (self.is_two or kind.is_by_rank):  # such a result is right at this rank alone
            outputs = self.outputs
            result = small_bytes(outputs, KEPT_BYTES_MAX)
            self.result = list(map(world.buffers.clone, outputs)) if result is None else result
            if self.record is not None:
                self.record[-1] = self.result
        self.kept = None
        if self.clears and kind.is_fence:
            # All have come to it, and have waited for what was before it, as this rank has.
            calls, own = shell.calls, self.number
            for number in [*calls] if len(calls) > 1 else ():
                if number < own:
                    del calls[number]

    def _listen(self) -> None:
        native = self.native
        future = _future_of(native)
        if future is not None:
            future.add_done_callback(lambda done: self._on_done(native, done))

    def _on_done(self, native: Any, done: torch.futures.Future[Any]) -> None:
        world = self.shell.world
        with world.changed:
            self.ended(native, _error_of(done))
        world.complete_futures()

    def listen(self) -> torch.futures.Future[Any]:
        """A future of its value; it completes outside of the lock."""
        if self.future is None:
            self.future = self.new_future()
            if self.state is THROUGH:
                self.future.set_result(self.outputs)
            elif self.native is not None:
                self._listen()
        return self.future


def as_bytes(copies: Sequence[torch.Tensor | bytes]) -> list[bytes]:
    """Copies that ``Buffers`` has made, as bytes."""
    return [x if isinstance(x, bytes) else to_bytes(x) for x in copies]


UnderWay = list[tuple[Call, Any, "BuiltGroup | None"]]
"""Calls, each with its native Work and the group that carries it out."""


def under_way_of(calls: Iterable[Call]) -> UnderWay:
    """Those of these calls that a backend carries out. Under the lock."""
    issued = [(call, call.native, call.there) for call in calls if call.native is not None]
    return [(call, native, there.built if there else None) for call, native, there in issued]


def wait_for_end(native: Any, built: BuiltGroup | None) -> None:
    """Wait until a Work of an aborted group has ended, or writes no more. Not under the lock."""
    if _future_of(native) is not None:
        wait_for_writers([native], built.threads_sleep if built is not None else lambda: None)


def _future_of(native: Any) -> torch.futures.Future[Any] | None:
    try:
        return native.get_future()  # type: ignore[no-any-return]
    except RuntimeError:  # Gloo's send and receive have none
        return None


def _error_of(done: torch.futures.Future[Any]) -> Exception | None:
    try:
        done.value()
    except RuntimeError as error:
        return error
    return None


class CallWork(dist.Work):
    """What the script waits for. ``call``: is set by whoever makes it, because an ``__init__`` of
    its own would cost at each call."""

    call: Call

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return when the result is there.

        Raises:
            Exception: torch's own error, if no death has caused it.
        """
        call = self.call
        world = call.shell.world
        while (state := call.state) is not THROUGH:
            native = call.native
            if native is None or not (state is ISSUED or state is SECOND):
                world.await_decision(call)
                continue
            began, error = _now(), None
            if timeout or call.kind.is_unsettled:
                error = call.await_native(native, timeout or None)  # torch's C++ says zero
            else:
                try:
                    native.wait(RECHECK)  # mostly it is enough
                except RuntimeError:
                    error = call.await_native(native, None)
            world.waited_s += _now() - began
            with world.lock:
                call.ended(native, error)
            if world.ready:
                world.complete_futures()
        call.waited = True
        return True

    def is_completed(self) -> bool:
        """Whether the result is there."""
        call = self.call
        native = call.native
        if call.state in (ISSUED, SECOND) and native is not None:
            future = _future_of(native)
            if future is None:
                return bool(native.is_completed())
            if future.done():
                call._on_done(native, future)
        return call.state is THROUGH

    is_success = is_completed

    def exception(self) -> Any:
        """None: an error is raised by ``wait``."""
        return None

    def result(self) -> list[torch.Tensor]:
        return self.call.outputs

    def synchronize(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        """The rank from which a receive from any has got its tensor."""
        return int(self.call.native._source_rank())

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[Any]:
        with self.call.shell.world.lock:
            return self.call.listen()


def _has_ended(call: Call, native: Any) -> bool:
    """After a wait: whether ``native`` has ended, or another one has replaced it."""
    if not native.is_completed():
        return call.native is not native
    native.wait()  # it has ended just now, and perhaps well
    return True


def _wait_long(call: Call, native: Any) -> None:
    with contextlib.ExitStack() as told:
        following = call.shell.world.following
        for tries in itertools.count(1):
            if following is not None:
                following.serve()
            if tries == TOLD_AFTER:
                told.enter_context(call.shell.world.waits_for(call))
            try:
                native.wait(RECHECK if tries < OFTEN else LATER)
                return
            except RuntimeError:
                if _has_ended(call, native):
                    return


def _wait_for(native: Any, timeout: timedelta) -> None:
    try:
        native.wait(timeout)
    except RuntimeError as error:
        if not native.is_completed():
            raise TimeoutError(str(error)) from error  # the script's own limit
        native.wait()
