"""One worker in a schedule: its script, and the shell under it as inject/zero_edit/world/ has it.

Four threads: the script, one that completes calls, one that carries out decrees, one that copies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftrun.core.replay import log_rules, settling
from ftrun.core.replay.afterwards import Waits
from ftrun.core.replay.falls import Fall
from ftrun.core.replay.log_rules import Keeps, is_in_vain, is_over, keeps, of_all
from ftrun.core.replay.mirroring import has_all
from ftrun.core.replay.pacing import Pace, is_due
from ftrun.core.replay.settling import Board, Generation, Source, Step
from tests.sim.replay.group import Call, Group
from tests.sim.replay.memory import Calls, Slot, Thread, joined, parts
from tests.sim.replay.script import (
    FENCES,
    Id,
    changed,
    first_state,
    nothing_shown,
    result,
    step,
)

if TYPE_CHECKING:
    from tests.sim.replay.world import World


@dataclass(frozen=True)
class Rules:
    """The decisions; a planted bug replaces some of them."""

    next_step: Callable[..., Step] = settling.next_step
    source: Callable[..., Source] = settling.source
    again: Callable[..., list[Id] | Fall] = settling.again
    in_all_logs: Callable[..., dict[int, int]] = settling.in_all_logs
    needed_from: Callable[..., int] = settling.needed_from
    begin: Callable[..., Generation | Fall] = settling.begin
    common: Callable[..., int | None] = settling.common
    keeps: Callable[..., Keeps | None] = keeps
    of_all: Callable[..., int] = of_all
    pace: Callable[[], Pace] = Pace
    is_in_vain: Callable[..., bool] = is_in_vain
    is_over: Callable[..., bool] = is_over
    begins: Callable[..., bool] = log_rules.begins
    others_are_ahead: Callable[..., bool] = settling.others_are_ahead
    needed: Callable[..., int] = log_rules.needed
    may_be_made: Callable[..., bool] = log_rules.may_be_made


class Process:
    """One worker: its script, and the shell under it, in four threads."""

    def __init__(self, world: World, rank: int, is_new: bool) -> None:
        self.world, self.rank, self.is_new = world, rank, is_new
        self.rules, self.area = world.rules, world.areas[rank]
        self.node = world.node_of[rank]
        self.board = world.boards[self.node]
        self.here = {x: [y for y in world.nodes[self.node] if y in members]
                     for x, members in enumerate(world.spec.groups)}  # fmt: skip
        self.spans = {x for x, own in self.here.items() if len(own) < len(world.spec.groups[x])}
        self.elsewhere = {x: world.elsewhere() for x in world.spec.own(rank) if x in self.spans}
        self.unwaited: dict[int, list[int]] = {x: [] for x in self.elsewhere}
        self.is_alive, self.is_gone, self.has_left, self.is_over = True, False, False, False
        self.gone_at = 0
        self.begun: dict[int, int] = dict.fromkeys(world.spec.own(rank), 0)
        self.calls: list[Call] = []
        self.state = first_state(world.spec, rank)
        self.shown = nothing_shown(world.spec)
        self.group: Group | None = None
        self.first: dict[int, int] | None = None
        self.cut = self.number = self.loaded = -1
        self.before = dict(self.begun)
        self.is_open = self.is_busy = False
        self.is_copying = self.is_full = False
        self.opened = [] if is_new else [0]
        self.whole_from: int | None = 0
        self.pace, self.at = self.rules.pace(), 0
        self.is_apart = is_new and len(world.nodes) > 1
        is_at_once = is_new and not self.is_apart
        self.place = self.choose() if is_at_once else Fall.NO_GENERATION

    # ------------------------------------------------------------ the script

    def main(self) -> Thread:
        spec = self.world.spec
        number = 0
        if self.is_new:
            yield "started"
            if self.is_apart:
                yield from self.await_words()
                self.place = self.choose()
            number = yield from self.load()
            self.is_apart = False
        else:
            yield from self.area.open_log(0, 0)
        while number < len(spec.steps):
            total = yield from self.step(number)
            yield lambda: not self.is_copying
            for index, word in enumerate(self.state):
                self.state[index] = changed(word, index, total)
                yield "word changed"
            number += 1
        self.before = dict(self.begun)
        yield from self.boundary(number)
        yield lambda: not self.is_copying
        self.world.see_that(
            self.state == self.world.known.states[-1][self.rank], "end", f"of rank {self.rank}"
        )
        self.board.over[self.rank] = self.is_over = True
        yield "over"
        yield lambda: all(self.board.over)
        self.has_left = True

    def await_words(self) -> Thread:
        """Wait until this node's board has the words of all ranks."""
        while True:
            self.board.published[self.rank] = self.board.number
            yield "published"
            words = yield from self.look()
            if has_all(words):
                break
            yield from self.await_news(words)
        for group, number in self.rules.in_all_logs(words.done).items():
            if group in self.elsewhere:
                self.elsewhere[group].logged = number

    def await_news(self, board: Board) -> Thread:
        yield lambda: self.is_news(board) or list(self.board.over) != board.over

    def choose(self) -> Generation | Fall:
        """The generation to begin at. It is chosen before the rank publishes: no group has a first
        call until then."""
        area = self.area
        return self.rules.begin(area.generations(), area.logged(), self.board.done, self.rank)

    def chosen(self) -> Generation | Fall:
        return self.place

    def load(self) -> Thread:
        found = self.chosen()
        if isinstance(found, Fall):
            yield from self.falls(found)
        assert not isinstance(found, Fall)
        slot = next(x for x in self.area.slots if x.number == found.number)
        for index, word in enumerate(slot.words):
            self.state[index] = word
            yield "word loaded"
        self.begun, self.shown = self.began(slot), list(slot.shown)
        known = self.world.known
        self.number, self.loaded, self.opened = found.number, slot.step, [slot.step]
        self.whole_from = found.place
        is_right = self.state == known.states[slot.step][self.rank]
        self.world.see_that(is_right, "torn", f"rank {self.rank}, generation {found.number}")
        is_right = self.begun == known.calls[slot.step][self.rank]
        self.world.see_that(is_right, "calls", f"{found}")
        return slot.step

    def began(self, slot: Slot) -> dict[int, int]:
        return dict(slot.before)

    def boundary(self, step: int) -> Thread:
        """A step may begin with a generation: each step does, or those that rank 0 announces."""
        if step == self.loaded:
            return
        self.at = step
        if self.rank == 0 and self.world.is_rare:
            yield from self.announce(step)
        if not self.is_due(step):
            self.world.see_that(self.is_new or step not in self.world.due, "due", f"step {step}")
            return
        since, begun = sum(self.before.values()), sum(self.begun.values())
        if not self.rules.may_be_made(whole_from=self.whole_from, since=since, begun=begun):
            return
        self.number += 1
        number, calls = self.number, (dict(self.begun), self.before)
        yield lambda: not self.is_busy
        self.is_busy = True
        if self.is_full:
            yield from self.open_log(step)
        self.board.full[self.rank] = 0
        self.is_busy = False
        self.is_copying = True
        self.world.spawn(self, self.copy(number, step, calls, list(self.shown)))
        if step == 0:
            yield lambda: not self.is_copying

    def is_due(self, step: int) -> bool:
        return not self.world.is_rare or step == 0 or is_due(self.board.due, step)

    def at_place(self, step: int) -> Thread:
        """Come to the place of a step: its log begins there, if it is due."""
        if step == self.loaded or not self.is_due(step):
            return
        yield lambda: not self.is_busy
        self.is_busy = True
        if self.rules.begins(
            self.area.logged(),
            self.area.generations(),
            begun=sum(self.begun.values()),
            is_full=self.is_full,
            is_behind=sum(self.begun.values()) < self.logged,
            spans=len(self.world.nodes) > 1,
        ):
            yield from self.open_log(step)
        self.is_busy = False

    def open_log(self, step: int) -> Thread:
        area = self.area
        if self.is_full:
            yield from area.cut_logs(self.rules.needed)
            self.is_full, self.whole_from = False, self.logged
        first = max(self.logged, *(log.end for log in area.logged()), 0)
        yield from area.open_log(area.newest_log + 1, first)
        self.opened = [*self.opened[-1:], step]

    def announce(self, step: int) -> Thread:
        """Announce steps; the clocks may show any time."""
        draws = self.world.draws
        word = self.pace.begins(
            step,
            self.board.due,
            draws.choice([0.0, 100.0, 1000.0]),
            1.0,
            1.0,
            fills=draws.random() < 0.2,
            is_behind=self.is_new and self.rules.others_are_ahead(self.begun, self.board.done),
        )
        if word != self.board.due:
            self.board.due = word
            self.world.announced(word)
            yield "announced"

    def copy(self, number: int, step: int, calls: Calls, shown: list[int]) -> Thread:
        yield from self.area.write(number, step, self.state, calls, shown)
        self.is_copying = False

    def step(self, number: int) -> Thread:
        salt = self.world.known.salts[number]
        run = step(self.world.spec, number, self.rank, self.state, self.shown, salt)
        request, self.before = next(run), dict(self.begun)
        yield from self.at_place(number)
        self.look_at_logs(number)
        for group, known in self.elsewhere.items():
            known.step_begins(self.begun[group])
        while True:
            if request[0] == "begin":
                answer = self.begin(*request[1:])
                yield "call begun"
            elif request[0] == "wait":
                answer = yield from self.wait(request[1])
            else:
                answer = None
                if request[0] == "take":
                    yield from self.boundary(number)
            try:
                request = run.send(answer)
            except StopIteration as end:
                return end.value

    # ------------------------------------------------------------ calls

    def begin(self, kind: str, group: int, root: int, given: int, shows: int) -> Call:
        call = Call(sum(self.begun.values()), group, self.begun[group], kind, root, given)
        call.is_bare, call.shows = self.is_full, shows
        self.calls.append(call)
        self.begun[group] += 1
        if group in self.elsewhere:
            self.unwaited[group].append(call.number)
            self.elsewhere[group].begins(call.number, min(self.unwaited[group]))
        self.drop(group)
        if self.from_where(call) is Source.LIVE:
            self.issue(call)
        self.note_joined()
        return call

    def done_of(self, group: int) -> list[int]:
        """What a group's members have done: exact for this node, and what is known of others."""
        done = [self.board.done[rank][group] for rank in self.here[group]]
        return [*done, self.elsewhere[group].logged] if group in self.elsewhere else done

    def first_of(self, group: int) -> int | None:
        return None if self.first is None else self.first[group]

    def drop(self, group: int) -> None:
        """Drop the group's inputs that no rank needs."""
        done = self.done_of(group)
        known = self.rules.needed_from(self.first_of(group), done, is_open=self.is_open)
        self.calls = [x for x in self.calls if not self.is_past(x, group, known)]
        if self.is_open:
            kept = [x.id for x in self.calls if self.is_past(x, group, min(done))]
            self.world.see_that(not kept, "kept", f"inputs that nobody needs: {kept}")

    def is_past(self, call: Call, group: int, known: int) -> bool:
        return call.group == group and call.number < known and call.is_through

    def issue(self, call: Call) -> None:
        assert self.group is not None
        call.place = self.group.issue(self.rank, call)

    def from_where(self, call: Call) -> Source:
        first, done = self.first_of(call.group), self.done_of(call.group)
        return self.rules.source(call.number, first, done, is_open=self.is_open)

    def wait(self, call: Call) -> Thread:
        yield lambda: call.is_through
        found = self.world.known.results[call.id][self.rank]
        text = f"rank {self.rank}, call {call.id}, {call.kind}"
        self.world.see_that(call.found == found, "result", text)
        if call.group in self.elsewhere:
            self.unwaited[call.group].remove(call.number)
        given, call.found = call.found, -1  # the script overwrites the buffer
        return given

    def answer(self, call: Call) -> Thread:
        """Take the result from the log, unless the call is issued first."""
        text = f"rank {self.rank}, call {call.id}"
        self.world.see_that(self.is_new, "repeats", f"a survivor takes from the log: {text}")
        own = self.area.find(call.id)
        if own is None or own[1] != call.kind:
            yield from self.falls(Fall.OTHER_CALL)
        call.is_kept = False
        yield "from the log"
        what = self.what(call)
        if what is Keeps.NOTHING:
            inputs: dict[int, int] = {call.root: call.given}
            call.found = result(call.kind, call.root, self.rank, inputs)
        elif what is Keeps.RESULT:
            call.found = yield from self.read(self.rank, call)
        elif what is Keeps.ALIKE:
            rank = self.rules.of_all(call.number, self.here[call.group])
            call.found = yield from self.read(rank, call)
        else:
            inputs = {}
            for rank in self.world.spec.groups[call.group]:
                inputs[rank] = yield from self.read(rank, call)
            call.found = result(call.kind, call.root, self.rank, inputs)
        self.through(call)

    def through(self, call: Call) -> None:
        """The script has its result in its buffer, perhaps before it waits."""
        call.is_through = True
        if call.shows >= 0:
            assert call.found is not None
            self.shown[call.shows] = call.found

    def read(self, rank: int, call: Call) -> Thread:
        """Read the words of an entry; a living peer may overwrite its log at the same time."""
        is_here = self.world.node_of[rank] == self.node
        self.world.see_that(is_here, "reach", f"rank {self.rank} reads the log of rank {rank}")
        area, words = self.world.areas[rank], list[int]()
        while (found := area.find(call.id)) is not None:
            (log, _, offset, size), words = found, []
            for index in range(size):
                words.append(log.data[offset + index])
                yield "part read"
            if not self.is_other(area.find(call.id), found):
                break
        else:
            yield from self.falls(Fall.PEER_LOG)
        self.world.see_that(len(words) == 2, "entry", f"of call {call.id}: {words}")
        return joined(words)

    def is_other(self, entry: object, former: object) -> bool:
        """Whether a peer has overwritten its log in the meantime."""
        return entry != former

    def completer(self) -> Thread:
        """Gives each call its result, and logs, in order, those that the log lacks."""
        while True:
            yield self.has_work
            for call in self.from_log():
                yield from self.answer(call)
            self.note_joined()
            self.is_busy = True
            self.complete()
            yield "call complete"
            yield from self.log()
            self.is_busy = False

    def waits(self) -> Waits:
        """The first call that it has begun and that is not complete."""
        begun = [call for call in self.calls if not call.is_through]
        if not begun:
            return Waits(0, -1, "", 0, 0.0)
        first = min(begun, key=lambda call: call.at)
        return Waits(first.group, first.number, first.kind, 0, 0.0)

    def has_work(self) -> bool:
        if self.is_busy or all(call.is_through for call in self.calls):
            return False
        return bool(self.ready() or self.next_logged() or self.from_log())

    def from_log(self) -> list[Call]:
        calls = [x for x in self.calls if x.found is None and x.place is None]
        return [call for call in calls if self.from_where(call) is Source.LOG]

    def ready(self) -> list[tuple[Call, dict[int, int]]]:
        if self.group is None:
            return []
        calls = [x for x in self.calls if x.place is not None and x.found is None]
        asked = [(x, x.place) for x in calls if x.place is not None]
        found = [(x, self.group.inputs(self.rank, x.group, place)) for x, place in asked]
        return [(call, inputs) for call, inputs in found if inputs is not None]

    def complete(self) -> None:
        for call, inputs in self.ready():
            call.found = result(call.kind, call.root, self.rank, inputs)
            if call.group in self.elsewhere and call.kind in FENCES:
                self.elsewhere[call.group].completes(call.number)

    def next_logged(self) -> Call | None:
        """The next call with a result to log, in order; calls that are logged already do not
        wait."""
        calls = [x for x in self.calls if x.found is not None and not x.is_through]
        return next((call for call in calls if call.at <= self.logged), None)

    @property
    def logged(self) -> int:
        """The number of its calls in its log."""
        return sum(self.board.done[self.rank].values())

    def log(self) -> Thread:
        while (call := self.next_logged()) is not None:
            assert call.found is not None
            if call.at == self.logged:
                what = self.what(call)
                value = call.given if what is Keeps.INPUT else call.found
                is_here = self.rank == self.rules.of_all(call.number, self.here[call.group])
                is_empty = what is Keeps.NOTHING or (what is Keeps.ALIKE and not is_here)
                words = [] if is_empty else parts(value)
                if not (self.is_full or self.is_logged(call)):
                    yield from self.area.log(call.id, call.kind, words)
                    if self.area.is_full:
                        self.fills()
                self.board.done[self.rank][call.group] = call.number + 1
            self.through(call)
            yield "call through"

    def fills(self) -> None:
        """Keep nothing before the next generation: the log is full."""
        self.is_full, self.whole_from = True, None
        if self.opened:
            self.board.full[self.rank] = self.opened[-1] + 1

    def look_at_logs(self, step: int) -> None:
        """A step begins."""
        areas = [self.world.areas[rank] for rank in self.world.nodes[self.node]]
        newest = [max((x.step for x in area.generations()), default=-1) for area in areas]
        if self.rules.is_over(self.opened, step, newest):
            self.area.drop_logs(self.area.newest_log - 2)
        if not self.is_full and self.rules.is_in_vain(self.board.full, self.opened):
            self.fills()

    def what(self, call: Call) -> Keeps | None:
        spans = call.group in self.spans
        return self.rules.keeps(call.kind, is_root=call.root == self.rank, spans=spans)

    def is_logged(self, call: Call) -> bool:
        """Whether a worker that died before it had counted this call had logged it."""
        return self.area.find(call.id) is not None

    # ------------------------------------------------------------ decrees

    def watcher(self) -> Thread:
        while True:
            board = yield from self.look()
            group = -1 if self.group is None else self.group.number
            found = self.rules.next_step(board, self.rank, self.cut, group)
            yield from self.carry_out(found, board)

    def carry_out(self, found: Step, board: Board) -> Thread:
        match found:
            case Step.GO_ON:
                yield lambda: self.board.number != board.number
            case Step.CUT if self.world.stays(self, board.number):
                yield lambda: False
            case Step.CUT:
                self.leave_group()
                self.cut = board.number
                yield "cut"
            case Step.PUBLISH:
                yield from self.publish(board.number)
            case Step.WAIT:
                yield lambda: self.is_news(board)
            case Step.CONNECT if self.is_apart:
                yield lambda: not self.is_apart or self.is_news(board)
            case Step.CONNECT:
                yield from self.connect(board.number)

    def look(self) -> Thread:
        """Read the board. The words are not read at one moment, but in this order."""
        words = self.board
        number = words.number
        yield "look"
        published = list(words.published)
        yield "look"
        return Board(number, published, [dict(own) for own in words.done], list(words.over))

    def is_news(self, board: Board) -> bool:
        words = self.board
        return words.number != board.number or words.published != board.published

    def leave_group(self) -> None:
        if self.group is not None:
            self.group.cut.add(self.rank)
        self.group, self.first, self.is_open = None, None, False
        for call in self.calls:
            call.place = None

    def publish(self, number: int) -> Thread:
        yield lambda: not self.is_busy
        self.board.published[self.rank] = number
        yield "published"

    def connect(self, number: int) -> Thread:
        self.first = self.rules.in_all_logs(self.board.done)
        yield "first call read"
        if not self.is_alive:  # its last threads may write words, but make no connections
            yield lambda: False
        group = self.world.group(number)
        group.here.add(self.rank)
        yield "arrived"
        board = self.board
        if self.world.breaks():
            self.first = None
            board.broken[self.rank] = number
            yield lambda: board.number != number
            return
        yield lambda: group.stands or board.number != number
        if board.number == number and group.stands:
            yield "connected"
            yield from self.enter(group, self.first)
        else:
            self.first = None

    def enter(self, group: Group, first: dict[int, int]) -> Thread:
        self.group = group
        kept = {call.id: call for call in self.again()}
        again = self.rules.again(first, self.begun, list(kept))
        if isinstance(again, Fall):
            yield from self.falls(again)
        assert not isinstance(again, Fall)
        for one in again:
            self.world.see_that(one in kept, "input", f"call {one} is not kept")
            self.issue(kept[one])
            yield "issued again"
        while late := [x for x in self.calls if x.place is None and x.number >= first[x.group]]:
            self.issue(late[0])
            yield "issued again"
        self.is_open = True
        self.note_joined()
        yield "in force"

    def again(self) -> list[Call]:
        """The calls whose inputs it has, to issue again."""
        return [call for call in self.calls if call.is_kept and not call.is_bare]

    def note_joined(self) -> None:
        """Note that all calls before the first ones are behind it."""
        if self.is_open and self.group and self.has_caught_up:
            self.board.joined[self.rank] = self.group.number

    @property
    def has_caught_up(self) -> bool:
        first = self.first
        if first is None or not settling.is_back(first, self.begun):
            return False
        return all(call.is_through for call in self.calls if call.number < first[call.group])

    def falls(self, reason: Fall) -> Thread:
        self.board.falls[self.rank] = reason
        yield lambda: False
