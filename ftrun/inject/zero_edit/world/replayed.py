"""The world of one replica group, whose lost worker is replaced in the middle of a call.

Theory of operation. The calls of each process group are numbered, alike at all its members. What a
call gives a worker goes to the log in its agent's memory, before the script sees it. A call that a
death breaks does not raise: whoever waits for it goes on to wait. A thread (reconnecting.py) ends
the calls of the broken groups, publishes how far this worker is, connects new groups, and issues
again what not all have (core/replay/settling.py says which). So it does not matter where the script
stands. A process group of this worker alone needs nothing of it.

A replacement runs the script from its beginning to the place of its newest generation, as any
newcomer does (world.py). From there its calls are answered from the log, until it comes to one that
not all have; by then its thread has connected it to the others.

Of a group on several nodes each node's logs have what a replacement there needs, and each node's
board the words of all (core/replay/mirroring.py).

Not here: one call (replayed_call.py), calls on a GPU (on_device.py), what a generation is
(memory.py), the memory itself (snapshots/area.py).
"""

from __future__ import annotations

import mmap
import resource
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any, NoReturn

import torch

from ftrun.base import clock
from ftrun.base.errors import UserError
from ftrun.checkpoint.leaves import Leaf
from ftrun.core.replay import log_rules
from ftrun.core.replay.falls import GROUPS_MAX, Fall
from ftrun.core.replay.log_rules import Keeps, is_in_vain, is_over, keeps, of_all
from ftrun.core.replay.mirroring import Elsewhere, has_all
from ftrun.core.replay.pacing import fills, fits
from ftrun.core.replay.settling import (
    Counts,
    Source,
    in_all_logs,
    needed_from,
    others_are_ahead,
    source,
)
from ftrun.inject.zero_edit import told
from ftrun.inject.zero_edit.frames import call_site, near_site
from ftrun.inject.zero_edit.values.units import memory
from ftrun.inject.zero_edit.world.calls import KEPT_BYTES_MAX, Call, State
from ftrun.inject.zero_edit.world.kinds import ROOTED, has_no_data, in_second, nbytes
from ftrun.inject.zero_edit.world.reconnecting import LOOK_S, Reconnecting
from ftrun.inject.zero_edit.world.replayed_call import Line, ReplayedCall, id_of, mark_of
from ftrun.inject.zero_edit.world.shell import Shell
from ftrun.inject.zero_edit.world.world import WAIT_S, World
from ftrun.process_groups.built import BuiltGroup, fail
from ftrun.snapshots.area import CALLS_MAX, KEPT, AreaFull, Entry
from ftrun.snapshots.board import Word
from ftrun.snapshots.group_memory import GroupMemory
from ftrun.snapshots.memory import offsets_of
from ftrun.training import context
from ftrun.training.context import WorkerContext
from ftrun.training.exchanged_tensors import small_bytes

AWAITED_MAX = 256
"""Calls that are noted, before it is looked which the script has waited for."""
_STRIDED = torch.strided
ERROR_S = 20.0
"""A call that has failed although nobody has died: after this time it is the script's own error."""


class CannotFollow(UserError):
    """A worker cannot go on from the place at which it is to begin."""


class ReplayedWorld(World):
    """All groups of this process, in one replica group with memory snapshots.

    Args:
        here: this worker, as if it were a replica of one worker; ``rank``: of it.
        memory: that of its group, which the agent holds.

    Attributes:
        is_newcomer: it replaces a lost worker.
        fell: why a death of a worker cannot be mended; None: it can.
        log: the number of the log under way.
        flying: the calls begun here that not all have logged, by their place in the program.
        before: of a replacement: by group, the calls before the place at which it begins.
        is_proven: it is no replacement, or has got what its predecessor had in its first step.
            Before, it has not joined: so the agent sees if it falls. ``has_left``: it has not come
            to all that its predecessor has done with other replicas; nor has it joined then.
        is_alone: whether this worker answers a call by itself, which its predecessor has not made;
            None: there are no such calls.
        given_mark: of what models were given since the last call; 0: of nothing. It goes into the
            mark of the next one, so that a repeated step that gets another batch is found.
        is_loading: a state is loaded, in which nothing may be called.
        least: the calls of a group of fewer workers are not followed.
    """

    call, least, is_loading = ReplayedCall, 2, False

    def __init__(self, here: WorkerContext, rank: int, memory: GroupMemory) -> None:
        super().__init__(here, rank, lambda reason: self.falls(Fall.SCRIPT, reason))
        self.has_plain = False  # what they give is logged
        self.memory, self.board, self.area = memory, memory.board, memory.area(rank)
        self.is_newcomer = self.board.read(rank, Word.STARTS) > 1
        self.done = sum(self.board.all_done()[rank].values())  # of all groups
        self.fell: Fall | None = None
        self.log = max(0, self.area.newest_log)
        self.flying: dict[int, ReplayedCall] = {}
        self.before: Counts = {}
        self.given_mark, self.is_proven = 0, True
        self.has_left: Callable[[], bool] = lambda: False
        self.is_alone: Callable[[Call], bool] | None = None
        self._known: Counts = {}
        self._opened = self.done
        self._lines: dict[str, Line] = {}
        self._latest: deque[int] = deque(maxlen=CALLS_MAX)  # the groups of these calls
        self._awaited: list[ReplayedCall] = []  # the script has their Works
        self._early: dict[int, tuple[ReplayedCall, Keeps, list[torch.Tensor]]] = {}
        self._is_full = False
        self._whole_from: int | None = 0
        self.steps: list[int] = []  # at whose places the last two logs were begun
        self._groups = Reconnecting(self, -1 if self.is_newcomer else self.board.decree)

    @property
    def is_whole(self) -> bool:
        return not self.is_apart

    def await_words(self) -> None:
        """A replacement: wait until this node's board has how far all ranks of all nodes are."""
        while True:
            self.board.set(self.rank, Word.PUBLISHED, self.board.decree)
            words = self.board.look()
            if has_all(words):
                self._known = in_all_logs(words.done)
                return
            if context.is_pressed():
                raise context.stops_with()
            time.sleep(LOOK_S)

    def falls(self, reason: Fall, why: str = "") -> None:
        """A death cannot be mended from now on. One that is behind others waits for its end."""
        if self.fell is None:
            is_first = not any(self.board.all(Word.FALL))
            self.fell = reason
            if why and (self.is_newcomer or is_first):  # the reason itself is the agent's
                self.board.why = why if why != reason.words else ""
                told.say(f"rank {self.rank} cannot be replaced alone, or replace another: {why}")
            self.board.set(self.rank, Word.FALL, reason)
        if self.is_newcomer and (self.is_apart or self._groups.first is None):
            self.must_follow(why or reason.words)
            stay()

    def must_follow(self, why: str) -> None:
        """This worker cannot go on from its place: the agent sees to it, if anybody has died.

        Raises:
            CannotFollow: nobody has: all have started from a disk.
        """
        if self.is_newcomer and not self.board.decree:
            raise CannotFollow(
                f"rank {self.rank} cannot resume from the snapshot on the disk: {why}. Give "
                "--resume none to start over"
            )

    def proves(self) -> None:
        """This replacement has got what its predecessor had."""
        if not self.is_proven:
            self.is_proven = True
            self.note_back()

    def note_back(self) -> None:
        """This replacement may be back now."""
        with self.changed:
            self._groups.note_back()

    # ------------------------------------------------------------ groups

    def add(self, shell: Shell) -> None:
        super().add(shell)
        if len(shell.seats) < self.least:
            return
        if not self.in_set_up:
            self.falls(Fall.LATE_GROUP, f"the one that is made at {call_site()}")
        here = tuple(x for x in shell.seats if x in self.memory.here)
        line = self._lines[shell.key] = Line(id_of(shell.key, shell.seats), shell.seats, here)
        if here != line.members:
            line.elsewhere = Elsewhere(self._known.get(line.id, 0))
        if not self.board.add_group(self.rank, line.id):
            self.falls(Fall.GROUPS, f"that at {call_site()} is the {GROUPS_MAX + 1}th")

    def opens(self, store: str, prefix: str) -> None:
        """The script makes its world."""
        if not self.is_newcomer:
            self.area.divide()
            self.area.open_log(0, 0)
            self.steps = [0]
        self._groups.starts(store, prefix)

    def destroyed(self, shell: Shell) -> None:
        """The script has destroyed a group: others may still need a call in it."""

    def retired(self) -> list[BuiltGroup]:
        """The connections that nobody uses any more."""
        old, self._old = self._old, []
        return old

    # ------------------------------------------------------------ calls (under ``changed``)

    def begun(self, count: int | None = None) -> dict[int, int]:
        """How many calls of each group this worker has begun, or had when it had ``count``."""
        since = 0 if count is None else self.count - count
        later = Counter(islice(reversed(self._latest), since))
        return {line.id: line.begun - later[line.id] for line in self._lines.values()}

    def is_settled_until(self, count: int) -> bool:
        """Whether the script has the results of all calls before this one, and waits for none."""
        with self.changed:
            self._awaited = [call for call in self._awaited if call.is_awaited]
            calls = self.flying.values()
            under_way = [x for x in calls if x.at < count and x.state is not State.THROUGH]
            return not under_way and all(call.at >= count for call in self._awaited)

    def begin(self, shell: Shell, call: Call) -> None:
        """A rank begins a call."""
        assert isinstance(call, ReplayedCall)
        call.number = -1
        kind, outputs = call.kind, call.outputs
        one = outputs[0] if outputs else None
        is_bare = (type(one) is not torch.Tensor or one.is_meta) and has_no_data(call)
        if is_bare or (self.is_alone is not None and self.is_alone(call)):
            call.state, call.waited = State.THROUGH, True
            return
        if self.is_walking or self.is_passing or self.is_following:
            if self.is_loading:
                self.falls(Fall.MANAGER, "the script makes a collective where it loads its state")
                stay()
            self._answer(shell, call)
            return
        if self.in_set_up and not self.is_ours:
            call.site = call.site or near_site()
        call.takes_deputy = self.is_ours
        if self.unit is not None:
            self.unit.append(call)
            call.is_part = True
        line = self._lines.get(shell.key)
        if line is not None:
            call.what = line.keeps.get(kind.name) or self._keeps(call, line)
            if call.what is None or (one is not None and one.layout is not _STRIDED):
                self.falls(Fall.CALL, call.words())
        if self.fell is not None or line is None:
            self._issue(call)
            return
        if not line.is_known:
            self._look_for(line)
        call.line, call.number, call.at = line, line.begun, self.count
        line.begun += 1
        self.count += 1
        self._latest.append(line.id)
        if not call.is_sync:
            self._note_awaited(call)
        if kind.is_in_place:
            call.inputs = outputs
        else:
            is_one = kind.inputs is in_second and type(call.args[1]) is torch.Tensor
            call.inputs = [call.args[1]] if is_one else kind.inputs(call)
        if call.what is not Keeps.INPUT:
            call.mark = mark_of(call.inputs)
        if self.given_mark:
            call.mark, self.given_mark = hash((call.mark, self.given_mark)), 0
        if line.elsewhere is not None:
            line.begins(call)
        groups = self._groups
        first = None if groups.first is None else groups.first.get(line.id, 0)
        done = line.done() if line.elsewhere is None else [*line.done(), line.elsewhere.logged]
        self._drop(line, needed_from(first, done, is_open=groups.is_open))
        comes_from = source(call.number, first, done, is_open=groups.is_open)
        if comes_from is Source.LOG:
            self.answer_from_log(call)
        else:
            self._keep(line, call, is_live=comes_from is Source.LIVE)
        if groups.told != groups.joined:
            groups.note_back()

    def _issue(self, call: Call) -> None:
        there = call.shell.there
        if there is None and self.fell is not None:
            stay()  # somebody has died, or this replacement is not connected so far
        assert there is not None
        call.issue(there)

    def busy(self) -> set[int]:
        """The memory of what this replacement's calls give that the script has Works of."""
        with self.changed:
            return {memory(x) for call in self._awaited for x in call.outputs}

    def _look_for(self, line: Line) -> None:
        """Its members have all added the group, before any can call in it."""
        places = self.board.places(line.id, line.here)
        line.done = self.board.reader(places)
        line.set_done = self.board.writer(places[line.here.index(self.rank)])
        line.is_known = True

    def _note_awaited(self, call: ReplayedCall) -> None:
        if len(self._awaited) >= AWAITED_MAX:
            self._awaited = [call for call in self._awaited if call.is_awaited]
        self._awaited.append(call)

    def _see_that_it_is_the_same(self, line: Line, call: ReplayedCall) -> None:
        """Its predecessor has made this call: another one would break the others'."""
        what, entry = call.what, self.area.find(line.id, call.number)
        sizes = [x.nbytes for x in self._to_log(line, call, what or Keeps.NOTHING)]
        if entry is not None and (entry.kind, entry.data.nbytes) != (what, offsets_of(sizes)[1]):
            self.differs(call)
        self._see_that_it_gives_the_same(call, entry)

    def differs(self, call: Call) -> NoReturn:
        """Its predecessor has made another call."""
        self.falls(Fall.OTHER_CALL, f"{call.words()}: its predecessor made another call")
        stay()

    def _see_that_it_gives_the_same(self, call: ReplayedCall, entry: Entry | None) -> None:
        """A script that trains with something that ftrun does not know computes other values."""
        if entry is not None and 0 not in (entry.mark, call.mark) and entry.mark != call.mark:
            self.falls(Fall.OTHER_INPUT, call.words())
            stay()

    def _keeps(self, call: ReplayedCall, line: Line) -> Keeps | None:
        name, spans = call.kind.name, line.elsewhere is not None
        if name in ROOTED:  # to ask options for one that they lack takes long
            is_root = call.args[-1].rootRank == call.own
            return keeps(name, is_root=is_root, spans=spans)
        found = keeps(name, is_root=False, spans=spans)
        if found is not None:
            line.keeps[name] = found
        return found

    def _keep(self, line: Line, call: ReplayedCall, *, is_live: bool) -> None:
        """Keep what a call gives; and issue it, if it ``is_live``."""
        # Its predecessor would have waited in this call, before it did what is left.
        if call.at == self.done and call.is_sync and self.has_left():
            self.differs(call)
        if is_live and self.is_newcomer and call.at < self.done:
            self._see_that_it_is_the_same(line, call)
        call.is_bare = self._is_full
        if call.kind.is_in_place and not call.is_bare:
            call.kept = small_bytes(call.outputs, KEPT_BYTES_MAX)
            if call.kept is None:
                call.prepare()
        self.flying[call.at] = line.kept[call.number] = call
        if not is_live:
            return
        try:
            call.send(call.shell.there)  # all ranks are there
            if call.native is None:
                call.is_sent()
        except Exception:  # torch refuses it, at all ranks alike
            del self.flying[call.at], line.kept[call.number]
            self.count, line.begun = call.at, call.number
            self._latest.pop()
            raise

    def _drop(self, line: Line, until: int) -> None:
        while line.oldest < until:
            call = line.kept.get(line.oldest)
            if call is not None:
                if call.state is not State.THROUGH:
                    return  # all have it, but for this replacement's script
                del line.kept[line.oldest], self.flying[call.at]
                call.given = None
                if call.kept is not None:
                    self.buffers.release(call.kept)
                    call.kept = None
            line.oldest += 1

    def is_through(self, call: ReplayedCall) -> None:
        """A call has its result, which the script has not seen yet: log it."""
        line = call.line
        if line is None or call.at not in self.flying:
            return  # from the log, or one that nobody needs
        if line.elsewhere is not None and call.kind.is_fence:
            line.elsewhere.completes(call.number)
        what = call.what or Keeps.NOTHING
        is_there = False
        if call.at == self.done and self.fell is None:
            is_there = self._log(line, call, what, self._to_log(line, call, what))
            while self._early and self.done in self._early:
                early, what_of, tensors = self._early.pop(self.done)
                assert early.line is not None, "it is numbered"
                self._log(early.line, early, what_of, tensors)
        elif call.at > self.done and self.fell is None:
            copies = [x.detach().clone() for x in self._to_log(line, call, what)]
            self._early[call.at] = call, what, copies
        if not (call.kept is not None or call.is_bare or (is_there and what is Keeps.INPUT)):
            call.keep_inputs()

    def logged_inputs(self, call: ReplayedCall) -> list[torch.Tensor] | None:
        """What a call has given, if the log has it."""
        entry = None if call.line is None else self.area.find(call.line.id, call.number)
        return None if entry is None else _parts(entry.data, call.inputs)

    def _to_log(self, line: Line, call: ReplayedCall, what: Keeps) -> list[torch.Tensor]:
        if what is Keeps.INPUT:
            return call.inputs
        is_elsewhere = what is Keeps.ALIKE and self.rank != of_all(call.number, line.here)
        return [] if what is Keeps.NOTHING or is_elsewhere else call.outputs

    def _log(
        self, line: Line, call: ReplayedCall, what: Keeps, tensors: Sequence[torch.Tensor]
    ) -> bool:
        # A predecessor may have logged it, and not counted it.
        is_there = self.is_newcomer and self.area.find(line.id, call.number) is not None
        if not (self._is_full or is_there):
            try:
                self.area.log(self.log, line.id, call.number, what, tensors, call.mark)
                is_there = True
            except AreaFull:
                self.fills_up()
        self.done = call.at + 1
        line.set_done(call.number + 1)
        return is_there

    @property
    def is_behind(self) -> bool:
        """Whether this replacement repeats calls that are in its log."""
        return self.is_newcomer and self.count < self.done

    @property
    def is_left_behind(self) -> bool:
        """Whether the others have made calls that this replacement repeats."""
        return self.is_newcomer and others_are_ahead(self.begun(), self.board.all_done())

    def fills_up(self) -> None:
        """The log has a gap from here on, which the next generation ends."""
        self._is_full, self._whole_from = True, None
        if self.steps:
            self.board.set(self.rank, Word.FULL, self.steps[-1] + 1)

    def fills_within(self, more: int, step: int) -> bool:
        """Whether a log is full that goes on for so many more steps. ``step``: it begins now."""
        had = max(1, step - self.steps[-1]) if self.steps else 1
        each, calls = self.area.log_bytes(self.log) / had, (self.done - self._opened) / had
        return calls * (had + more) > CALLS_MAX or fills(each, self.area.log_room, had + more)

    def has_room(self, more: int, groups: int = 1) -> bool:
        """Whether a generation may take memory that none has had, if all workers of this node do
        so, in so many groups."""
        now = int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
        peak = max(0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - now)
        return fits(self.board.room, more, peak, groups * len(self.memory.here))

    def may_be_made(self, since: int) -> bool:
        """Whether a generation can be made whose place is after so many calls."""
        return log_rules.may_be_made(whole_from=self._whole_from, since=since, begun=self.count)

    def is_at_place(self, step: int) -> None:
        """The script stands at what may be the place of a generation of ``step``."""
        with self.changed:
            if log_rules.begins(
                self.area.logs(),
                self.area.generations(),
                begun=self.count,
                is_full=self._is_full,
                is_behind=self.is_behind,
                spans=self.memory.spans,
            ):
                self._open_log(step)

    def is_made(self, step: int) -> None:
        """A generation of ``step`` is made."""
        with self.changed:
            if self._is_full:
                self._open_log(step)
            self.board.set(self.rank, Word.FULL, 0)

    def copying(self) -> Callable[[], AbstractContextManager[Any]]:
        """Called at the place of a generation: gives what to copy its tensors in, in any thread."""
        return nullcontext

    def on_device(self, leaves: Sequence[Leaf]) -> list[int]:  # noqa: ARG002
        """Which leaves of a state are on a GPU."""
        return []

    def _open_log(self, step: int) -> None:
        if self._is_full:
            self.area.cut_logs()
            self._is_full, self._whole_from = False, self.done
        self.log = self.area.newest_log + 1
        # A predecessor may have logged a call that it has not counted.
        self._opened = max(self.done, *(log.end for log in self.area.logs()), 0)
        self.area.open_log(self.log, self._opened)
        self.steps = [*self.steps[-1:], step]

    def begins(self, step: int) -> None:
        """A step begins. If it has a generation, that is under way."""
        here = self.memory.here
        newest = self.board.all(Word.NEWEST)[here.start : here.stop]
        with self.changed:
            if is_over(self.steps, step, newest):
                self.area.drop_logs(self.log - KEPT)
            if is_in_vain(self.board.all(Word.FULL), self.steps[-1:]) and not self._is_full:
                self.fills_up()

    def begins_step(self) -> None:
        super().begins_step()
        for line in self._lines.values():
            line.step_begins()

    # ------------------------------------------------------------ a replacement

    def replay(self, first: int, _given: Sequence[Sequence[Any]]) -> None:
        """This worker stands at the place of its generation, at its call ``first``."""
        with self.changed:
            for line in self._lines.values():
                line.begun = line.oldest = self.before.get(line.id, 0)
            self.count = self._whole_from = first

    def since(self, _first: int, _is_over: bool) -> list[list[Any]]:
        return []

    def answer_from_log(self, call: ReplayedCall) -> None:
        """All members have this call, and so has this replacement's log."""
        if call.line is not None:
            self._see_that_it_gives_the_same(call, self.area.find(call.line.id, call.number))
        call.waited = True
        call.take(self._logged(call), call.tag)  # also where it gives this rank nothing

    def _logged(self, call: ReplayedCall) -> list[torch.Tensor] | None:
        """The result of a call that all have; None: it has none."""
        outputs, what, line = call.outputs, call.what, call.line
        assert line is not None, "it is numbered"
        if what is Keeps.INPUT:
            inputs = call.inputs
            parts = [self._entry(line, call, rank, what, inputs) for rank in line.members]
            if len(outputs) == len(inputs):  # one tensor that has all
                joined = [torch.cat([x.reshape(-1) for x in y]) for y in zip(*parts, strict=True)]
                return [x.view_as(y) for x, y in zip(joined, outputs, strict=True)]
            return [part[index] for index in range(len(inputs)) for part in parts]
        if what is Keeps.RESULT:
            return self._entry(line, call, self.rank, what, outputs)
        if what is Keeps.ALIKE:
            return self._entry(line, call, of_all(call.number, line.here), what, outputs)
        self._entry(line, call, self.rank, Keeps.NOTHING, [])
        return None if not outputs else [x.clone() for x in outputs]

    def _entry(
        self,
        line: Line,
        call: ReplayedCall,
        rank: int,
        what: Keeps,
        like: Sequence[torch.Tensor],
    ) -> list[torch.Tensor]:
        """A copy of what a rank has logged: it may begin the log anew meanwhile."""
        area, size = self.memory.area(rank), offsets_of([x.nbytes for x in like])[1]
        entry = area.find(line.id, call.number)
        if entry is not None and (entry.kind != what or entry.data.nbytes != size):
            self.differs(call)
        if entry is not None:
            found = [x.clone() for x in _parts(entry.data, like)]
            again = area.find(line.id, call.number)
            if again is not None and again.data.data_ptr() == entry.data.data_ptr():
                return found
        self.falls(Fall.PEER_LOG)
        stay()

    # ------------------------------------------------------------ waits

    def await_decision(self, call: Call) -> None:
        """Wait until a call that has failed or is held goes on. See World."""
        if context.is_pressed():  # the others have left, and nobody is replaced any more
            raise context.stops_with()
        with self.changed:
            if call.state is State.FAILED and self._has_failed(call):
                assert call.error is not None
                raise call.error
            if call.state in (State.FAILED, State.HELD):
                self.waiting += 1
                self.changed.wait(WAIT_S)
                self.waiting -= 1

    def _has_failed(self, call: Any) -> bool:
        """Whether a call has failed by the script's own fault, or nobody is replaced any more."""
        built = call.shell.built
        if call.state is not State.FAILED or call.shell.is_stopped or self.fell is not None:
            return call.state is State.FAILED and self.fell is not None
        is_up = built is not None and built.is_connected()
        return bool(is_up or self.board.stops or clock.now() > call.failed_at + ERROR_S)

    def end_errors(self) -> None:
        """Futures, for which nobody may look, get the errors of their own calls."""
        with self.changed:
            calls = [x for x in self.flying.values() if x.future is not None]
            failed = [x for x in calls if self._has_failed(x)]
        for call in failed:
            if call.future is not None and not call.future.done():
                assert call.error is not None, "it has failed"
                fail(call.future, call.error)

    def says(self) -> None:
        """Tell the agent, after a death, which call this worker waits in."""
        if not self.board.decree:
            return
        with self.changed:
            begun = (x for x in self.flying.values() if not x.is_complete)
            call = min(begun, key=lambda call: call.at, default=None)
            if call is None:
                self.board.says(self.rank, 0, -1, "", 0)
                return
            kind, line = call.kind, call.line
            assert line is not None, "it is numbered"
            is_of_one_size = log_rules.is_of_one_size(kind.name)
            sizes = [nbytes(x) for x in kind.outputs(call)] if is_of_one_size else []
            size = 0 if inf in sizes else int(sum(sizes))
        self.board.says(self.rank, line.id, call.number, kind.name, size)

    # ------------------------------------------------------------ the end

    def ends(self) -> None:
        """The script is over: stay until that of each worker is."""
        self.board.set(self.rank, Word.OVER, 1)
        while not (all(self.board.all(Word.OVER)) or self.fell or context.is_pressed()):
            time.sleep(LOOK_S * 10)


def stay() -> NoReturn:
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
