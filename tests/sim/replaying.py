"""Random schedules of a group that recovers without replicas (core/replay/), deaths at every word.

Each thread of each process is a generator that stops at every word that it reads or writes; a
schedule chooses which goes on, and where a process dies: in its own step, in the recovery, or as a
replacement. Memory, board and agent outlive the processes. The oracle is an undisturbed run
(replay_script.py). A thread that waits stops at a condition, so that nobody waits for ever unseen.

A planted bug (replay_mutants.py) is other ``Rules``, or a subclass of a part.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ftrun.core.replay import settling
from ftrun.core.replay.falls import Fall
from ftrun.core.replay.log_rules import Keeps, keeps
from ftrun.core.replay.mending import DEATHS_MAX, Decree, Mended, Mending
from ftrun.core.replay.settling import Board, Generation, Logged, Source, Step
from tests.sim.replay_script import Spec, Undisturbed, changed, first_state, needs, result, step
from tests.sim.violation import Violation

Stop: TypeAlias = "str | Callable[[], bool]"
Thread: TypeAlias = Generator[Stop, Any, Any]

SLOTS = 3
LIMIT_S = 60.0
STEPS_MAX = 200_000
PLACES = (
    *("generation begun", "word copied", "calls noted", "generation whole"),
    *("log closed", "log emptied", "log open", "word logged", "entry logged", "call counted"),
    *("call begun", "call complete", "call through", "word changed", "over"),
    *("cut", "published", "first call read", "arrived", "connected", "issued again", "in force"),
    *("started", "word loaded", "from the log", "part read"),
)
"""Where a process can die, by name."""


@dataclass(frozen=True)
class Rules:
    """The decisions; a planted bug replaces some."""

    next_step: Callable[..., Step] = settling.next_step
    source: Callable[..., Source] = settling.source
    again: Callable[..., list[int] | Fall] = settling.again
    in_all_logs: Callable[[list[int]], int] = settling.in_all_logs
    needed_from: Callable[..., int] = settling.needed_from
    begin: Callable[..., Generation | Fall] = settling.begin
    keeps: Callable[..., Keeps | None] = keeps


# ---------------------------------------------------------------- what outlives a process


@dataclass
class Slot:
    """A generation. ``number``: -1 while it is written."""

    number: int = -1
    calls: int = 0
    words: list[int] = field(default_factory=list)


@dataclass
class Log:
    """A log. ``index``: (kind, offset, words) of each call from ``first`` on."""

    number: int = -1
    first: int = 0
    count: int = 0
    index: list[tuple[str, int, int]] = field(default_factory=list)
    data: list[int] = field(default_factory=list)


class Area:
    """One rank's memory. ``room``: words of a log."""

    def __init__(self, words: int, room: int) -> None:
        self.slots = [Slot(words=[0] * words) for _ in range(SLOTS)]
        self.logs = [Log(data=[0] * room) for _ in range(SLOTS)]
        self.room = room
        self.is_full = False
        self.was_full = False
        self.was_whole = False

    def write(self, number: int, state: list[int], calls: int) -> Thread:
        slot = self.slots[number % SLOTS]
        slot.number = -1
        yield "generation begun"
        for index in range(len(state)):
            slot.words[index] = state[index]
            yield "word copied"
        slot.calls = calls
        yield "calls noted"
        slot.number = number
        self.was_whole = True
        yield "generation whole"

    def open_log(self, number: int, first: int) -> Thread:
        log = self.logs[number % SLOTS]
        if log.number == number:
            return
        log.number = -1
        yield "log closed"
        log.count, log.first = 0, first
        log.index.clear()
        yield "log emptied"
        log.number = number
        self.is_full = False
        yield "log open"

    def log(self, call: int, kind: str, words: list[int]) -> Thread:
        """Add a call to the newest log. After one that does not fit it takes none."""
        log = max(self.logs, key=lambda known: known.number)
        used = sum(size for _, _, size in log.index[: log.count])
        if self.is_full or used + len(words) > self.room:
            self.is_full = self.was_full = True
            return
        for index, word in enumerate(words):
            log.data[used + index] = word
            yield "word logged"
        del log.index[log.count :]
        log.index.append((kind, used, len(words)))
        yield "entry logged"
        log.count += 1
        yield "call counted"

    def find(self, call: int) -> tuple[Log, str, int, int] | None:
        for log in self.logs:
            if log.number >= 0 and log.first <= call < log.first + log.count:
                return log, *log.index[call - log.first]
        return None

    def generations(self) -> list[Generation]:
        return [Generation(x.number, x.calls) for x in self.slots if x.number >= 0]

    def logged(self) -> list[Logged]:
        return [Logged(x.first, x.first + x.count) for x in self.logs if x.number >= 0]


@dataclass
class Words:
    """The board."""

    number: int
    published: list[int]
    done: list[int]
    joined: list[int]
    over: list[bool]
    falls: list[int]


class Group:
    """The connections of one decree. Messages may come in any order, or be lost at a cut."""

    def __init__(self, world: World, number: int) -> None:
        self.number, self._world = number, world
        workers = world.spec.workers
        self.here: set[int] = set()
        self.cut: set[int] = set()
        self.issued: list[tuple[str, int, int]] = []
        self._counts = [0] * workers
        self._got: list[dict[int, dict[int, int]]] = [{} for _ in range(workers)]

    @property
    def stands(self) -> bool:
        return len(self.here) == self._world.spec.workers

    def issue(self, rank: int, call: Call) -> int:
        """A rank's next call on this group; returns its place."""
        place = self._counts[rank]
        self._counts[rank] += 1
        what = (call.kind, call.root, call.number)
        if place == len(self.issued):
            self.issued.append(what)
        if self.issued[place] != what:
            text = f"{what} of rank {rank} meets {self.issued[place]} in group {self.number}"
            raise Violation("meet", text)
        self._world.see_that(
            call.given == self._world.known.inputs[call.number][rank],
            "input",
            f"rank {rank} gives another input to call {call.number}",
        )
        self._got[rank].setdefault(place, {})[rank] = call.given
        for other in range(self._world.spec.workers):
            if other != rank and rank in needs(call.kind, call.root, other, len(self._counts)):
                self._world.network.append((self, place, rank, other, call.given))
        return place

    def deliver(self, place: int, sender: int, receiver: int, given: int) -> None:
        if receiver not in self.cut and sender not in self.cut:
            self._got[receiver].setdefault(place, {})[sender] = given

    def inputs(self, rank: int, place: int) -> dict[int, int] | None:
        """What the call at this place needs; None: not all of it is there."""
        kind, root, _ = self.issued[place]
        got = self._got[rank].get(place, {})
        return got if needs(kind, root, rank, len(self._counts)) <= got.keys() else None


# ---------------------------------------------------------------- a process


@dataclass
class Call:
    """A call of the script. ``place``: in the group in force; ``found``: its result."""

    number: int
    kind: str
    root: int
    given: int
    place: int | None = None
    found: int | None = None
    is_through: bool = False


class Process:
    """One worker: its script, and the shell under it, in four threads."""

    def __init__(self, world: World, rank: int, is_new: bool) -> None:
        self.world, self.rank, self.is_new = world, rank, is_new
        self.rules, self.board, self.area = world.rules, world.board, world.areas[rank]
        self.is_alive, self.is_gone, self.has_left = True, False, False
        self.gone_at = 0
        self.begun, self.calls = 0, dict[int, Call]()
        self.state = first_state(world.spec, rank)
        self.group: Group | None = None
        self.first: int | None = None
        self.cut = -1
        self.is_open = self.is_busy = False
        self.is_copying = False

    # ------------------------------------------------------------ the script

    def main(self) -> Thread:
        spec = self.world.spec
        number = 0
        if self.is_new:
            yield "started"
            generation = yield from self.load()
            number = generation.number
        else:
            yield from self.boundary(0)
        while number < len(spec.steps):
            total = yield from self.step(number)
            yield lambda: not self.is_copying
            for index, word in enumerate(self.state):
                self.state[index] = changed(word, index, total)
                yield "word changed"
            number += 1
            yield from self.boundary(number)
        yield lambda: not self.is_copying
        self.world.see_that(
            self.state == self.world.known.states[-1][self.rank], "end", f"of rank {self.rank}"
        )
        self.board.over[self.rank] = True
        yield "over"
        yield lambda: all(self.board.over)
        self.has_left = True

    def load(self) -> Thread:
        found = self.rules.begin(
            self.area.generations(), self.area.logged(), self.board.done, self.rank
        )
        if isinstance(found, Fall):
            yield from self.falls(found)
        slot = next(x for x in self.area.slots if x.number == found.number)
        for index, word in enumerate(slot.words):
            self.state[index] = word
            yield "word loaded"
        self.begun = found.calls
        known = self.world.known
        is_right = self.state == known.states[found.number][self.rank]
        self.world.see_that(is_right, "torn", f"rank {self.rank}, generation {found.number}")
        self.world.see_that(found.calls == known.calls[found.number], "calls", f"{found}")
        return found

    def boundary(self, number: int) -> Thread:
        yield lambda: not self.is_busy
        self.is_busy = True
        yield from self.area.open_log(number, self.begun)
        self.is_busy = False
        self.is_copying = True
        self.world.spawn(self, self.copy(number, self.begun))
        if number == 0:
            yield lambda: not self.is_copying

    def copy(self, number: int, calls: int) -> Thread:
        yield from self.area.write(number, self.state, calls)
        self.is_copying = False

    def step(self, number: int) -> Thread:
        run = step(self.world.spec, number, self.rank, self.state)
        request = next(run)
        while True:
            if request[0] == "begin":
                answer = self.begin(*request[1:])
                yield "call begun"
            else:
                answer = yield from self.wait(request[1])
            try:
                request = run.send(answer)
            except StopIteration as end:
                return end.value

    # ------------------------------------------------------------ calls

    def begin(self, kind: str, root: int, given: int) -> Call:
        call = Call(self.begun, kind, root, given)
        self.calls[call.number] = call
        self.begun += 1
        self.drop()
        if self.from_where(call) is Source.LIVE:
            self.issue(call)
        self.note_joined()
        return call

    def drop(self) -> None:
        """Keep no inputs that nobody needs."""
        known = self.rules.needed_from(self.first, self.board.done, is_open=self.is_open)
        for number in [x for x, call in self.calls.items() if x < known and call.is_through]:
            del self.calls[number]
        if self.is_open:
            kept = [x for x in self.calls if x < min(self.board.done) and self.calls[x].is_through]
            self.world.see_that(not kept, "kept", f"inputs that nobody needs: {kept}")

    def issue(self, call: Call) -> None:
        assert self.group is not None
        call.place = self.group.issue(self.rank, call)

    def from_where(self, call: Call) -> Source:
        done = self.board.done
        return self.rules.source(call.number, self.first, done, is_open=self.is_open)

    def wait(self, call: Call) -> Thread:
        yield lambda: call.is_through
        found = self.world.known.results[call.number][self.rank]
        text = f"rank {self.rank}, call {call.number}, {call.kind}"
        self.world.see_that(call.found == found, "result", text)
        given, call.found = call.found, -1  # the script writes over it
        return given

    def answer(self, call: Call) -> Thread:
        """Take the result from the log, unless the call is issued meanwhile."""
        text = f"rank {self.rank}, call {call.number}"
        self.world.see_that(self.is_new, "repeats", f"a survivor takes from the log: {text}")
        own = self.area.find(call.number)
        if own is None or own[1] != call.kind:
            yield from self.falls(Fall.OTHER_CALL)
        yield "from the log"
        what = self.rules.keeps(call.kind, is_root=call.root == self.rank)
        if what is Keeps.NOTHING:
            inputs: dict[int, int] = {call.root: call.given}
            call.found = result(call.kind, call.root, self.rank, inputs)
        elif what is Keeps.RESULT:
            call.found = yield from self.read(self.rank, call)
        else:
            inputs = {}
            for rank in range(self.world.spec.workers):
                inputs[rank] = yield from self.read(rank, call)
            call.found = result(call.kind, call.root, self.rank, inputs)
        call.is_through = True

    def read(self, rank: int, call: Call) -> Thread:
        """A word of an entry; a living peer may write over its log meanwhile."""
        area = self.world.areas[rank]
        found = area.find(call.number)
        if found is None:
            yield from self.falls(Fall.PEER_LOG)
        log, _, offset, size = found
        words = []
        for index in range(size):
            words.append(log.data[offset + index])
            yield "part read"
        if area.find(call.number) != found:
            yield from self.falls(Fall.PEER_LOG)
        return joined(words)

    def completer(self) -> Thread:
        """Gives each call its result, and logs those in order that the log lacks."""
        while True:
            yield self.has_work
            for call in self.from_log():
                yield from self.answer(call)
            self.is_busy = True
            self.complete()
            yield "call complete"
            yield from self.log()
            self.is_busy = False

    def has_work(self) -> bool:
        return not self.is_busy and bool(self.ready() or self.next_logged() or self.from_log())

    def from_log(self) -> list[Call]:
        calls = [x for x in self.calls.values() if x.found is None and x.place is None]
        return [call for call in calls if self.from_where(call) is Source.LOG]

    def ready(self) -> list[tuple[Call, dict[int, int]]]:
        if self.group is None:
            return []
        calls = [x for x in self.calls.values() if x.place is not None and x.found is None]
        found = [(x, self.group.inputs(self.rank, x.place)) for x in calls if x.place is not None]
        return [(call, inputs) for call, inputs in found if inputs is not None]

    def complete(self) -> None:
        for call, inputs in self.ready():
            call.found = result(call.kind, call.root, self.rank, inputs)

    def next_logged(self) -> Call | None:
        """A call with a result whose turn it is; what the log has already does not wait."""
        done = self.board.done[self.rank]
        calls = [x for x in self.calls.values() if x.found is not None and not x.is_through]
        return next((call for call in calls if call.number <= done), None)

    def log(self) -> Thread:
        while (call := self.next_logged()) is not None:
            assert call.found is not None
            if call.number == self.board.done[self.rank]:
                what = self.rules.keeps(call.kind, is_root=call.root == self.rank)
                value = call.given if what is Keeps.INPUT else call.found
                words = [] if what is Keeps.NOTHING else parts(value)
                if self.area.find(call.number) is None:
                    yield from self.area.log(call.number, call.kind, words)
                self.board.done[self.rank] = call.number + 1
            call.is_through = True
            yield "call through"

    # ------------------------------------------------------------ decrees

    def watcher(self) -> Thread:
        while True:
            board = yield from self.look()
            group = -1 if self.group is None else self.group.number
            match self.rules.next_step(board, self.rank, self.cut, group):
                case Step.LEAVE:
                    self.leave_group()
                    return
                case Step.GO_ON:
                    yield lambda: self.board.number != group or all(self.board.over)
                case Step.CUT:
                    self.leave_group()
                    self.cut = board.number
                    yield "cut"
                case Step.PUBLISH:
                    yield from self.publish(board.number)
                case Step.WAIT:
                    yield lambda: self.is_news(board)
                case Step.CONNECT:
                    yield from self.connect(board.number)

    def look(self) -> Thread:
        """The words are not read at one moment, but in this order."""
        words = self.board
        number = words.number
        yield "look"
        published = list(words.published)
        yield "look"
        return Board(number, published, list(words.done), list(words.over))

    def is_news(self, board: Board) -> bool:
        words = self.board
        return (
            words.number != board.number
            or words.published != board.published
            or all(self.board.over)
        )

    def leave_group(self) -> None:
        if self.group is not None:
            self.group.cut.add(self.rank)
        self.group, self.first, self.is_open = None, None, False
        for call in self.calls.values():
            call.place = None

    def publish(self, number: int) -> Thread:
        yield lambda: not self.is_busy
        self.board.published[self.rank] = number
        yield "published"

    def connect(self, number: int) -> Thread:
        self.first = self.rules.in_all_logs(self.board.done)
        yield "first call read"
        if not self.is_alive:  # its last threads may write words, and make no connections
            yield lambda: False
        group = self.world.group(number)
        group.here.add(self.rank)
        yield "arrived"
        board = self.board
        yield lambda: group.stands or board.number != number or all(board.over)
        if board.number == number and group.stands:
            yield "connected"
            yield from self.enter(group, self.first)
        else:
            self.first = None

    def enter(self, group: Group, first: int) -> Thread:
        self.group = group
        again = self.rules.again(first, self.begun, self.calls)
        if isinstance(again, Fall):
            yield from self.falls(again)
        for number in again:
            self.issue(self.calls[number])
            yield "issued again"
        while late := [x for x in self.calls.values() if x.place is None and x.number >= first]:
            self.issue(min(late, key=lambda call: call.number))
            yield "issued again"
        self.is_open = True
        self.note_joined()
        yield "in force"

    def note_joined(self) -> None:
        if self.is_open and self.group and self.first is not None and self.begun >= self.first:
            self.board.joined[self.rank] = self.group.number

    def falls(self, reason: Fall) -> Thread:
        self.board.falls[self.rank] = reason
        yield lambda: False


def parts(value: int) -> list[int]:
    """A value as two words, so that half of it can be there."""
    return [value >> 16, value & 0xFFFF]


def joined(words: list[int]) -> int:
    """The value again."""
    return words[0] << 16 | words[1]


# ---------------------------------------------------------------- the world


@dataclass
class Death:
    """The process that comes to ``place`` (None: any) for the ``count``-th time dies there."""

    place: str | None
    count: int


class World:
    """One schedule, from its seed. ``reason``: of the fall, if there was one."""

    def __init__(
        self,
        seed: int,
        rules: Rules | None = None,
        process: type[Process] = Process,
        mending: type[Mending] = Mending,
        area: type[Area] = Area,
    ) -> None:
        self.draws = random.Random(f"replay/{seed}")
        self.seed, self.rules, self.process = seed, rules or Rules(), process
        self.spec = Spec.drawn(self.draws)
        self.known = Undisturbed(self.spec)
        workers = self.spec.workers
        room = self.draws.choice([4, 8, 12]) if self.draws.random() < 0.1 else 1000
        self.areas = [area(self.spec.words, room) for _ in range(workers)]
        none = [-1] * workers
        falls, over = [0] * workers, [False] * workers
        self.board = Words(0, list(none), [0] * workers, list(none), over, falls)
        self.mending = mending(LIMIT_S)
        self.network: list[tuple[Group, int, int, int, int]] = []
        self.reason: Fall | None = None
        self.deaths = self.mends = self.steps = self.told = 0
        self.replaced = [0] * workers
        self.now = 0.0
        self.story: list[str] = []
        self._groups: dict[int, Group] = {}
        self._threads: list[list[Any]] = []
        self._reported: list[Process] = []
        self._dying: list[Process] = []
        self._plan = self._drawn_plan()
        self._dies_early = self.draws.random() < 0.1
        self._slow: Process | None = None
        self.ranks = [self.start(rank, False) for rank in range(workers)]
        self._spawn_agent()

    def _drawn_plan(self) -> list[Death]:
        draws, plan = self.draws, list[Death]()
        for number in range(draws.choice([0, 1, 1, 1, 2, 2, 2, 3, 3, 5, 8])):
            if draws.random() < 0.6:
                plan.append(Death(draws.choice(PLACES), draws.choice([1, 1, 2, 3, 5, 9])))
            else:
                plan.append(Death(None, draws.randint(1, 400 if number == 0 else 150)))
        return plan

    # ------------------------------------------------------------ threads

    def spawn(self, owner: Process | None, thread: Thread) -> None:
        self._threads.append([thread, owner, None])

    def start(self, rank: int, is_new: bool) -> Process:
        process = self.process(self, rank, is_new)
        for thread in (process.main(), process.watcher(), process.completer()):
            self.spawn(process, thread)
        process.main_thread = self._threads[-3]  # type: ignore[attr-defined]
        return process

    def group(self, number: int) -> Group:
        return self._groups.setdefault(number, Group(self, number))

    def note(self, *words: object) -> None:
        self.story.append(f"{self.steps:6d}  " + "  ".join(map(str, words)))

    def see_that(self, holds: bool, code: str, text: str) -> None:
        if not holds:
            raise Violation(code, text)

    def run(self) -> None:
        """Run the schedule; raises Violation."""
        try:
            while not self._is_over():
                self.steps += 1
                self.see_that(self.steps < STEPS_MAX, "wait", "no end")
                self._step()
            self._judge()
        except Violation as error:
            error.seed = self.seed
            raise

    def _is_over(self) -> bool:
        return self.reason is not None or all(process.has_left for process in self.ranks)

    def _step(self) -> None:
        if self._dying and self._dying[0].gone_at <= self.steps:
            self._gone(self._dying.pop(0))
        threads, draws = self._threads, self.draws
        if self.network and draws.random() < 0.3:
            self._deliver()
            return
        if draws.random() < 0.002:
            self._slow = draws.choice([None, *self.ranks])
        for _ in range(8):
            thread = threads[int(draws.random() * len(threads))]
            is_slow = thread[1] is not None and thread[1] is self._slow
            if is_slow and draws.random() < 0.95:
                continue
            if thread[2] is None or thread[2]():
                self._resume(thread)
                return
        ready = [thread for thread in threads if thread[2] is None or thread[2]()]
        if ready:
            self._resume(draws.choice(ready))
        elif self.network:
            self._deliver()
        elif not self._dying:
            self._stands_still()

    def _deliver(self) -> None:
        at = int(self.draws.random() * len(self.network))
        self.network[at], last = self.network[-1], self.network[at]
        self.network.pop()
        group, place, sender, receiver, given = last
        group.deliver(place, sender, receiver, given)

    def _resume(self, thread: list[Any]) -> None:
        run, owner, _ = thread
        try:
            stop = next(run)
        except StopIteration:
            self._threads.remove(thread)
            if owner is not None and owner.has_left:
                self._gone(owner)
            return
        thread[2] = stop if callable(stop) else None
        if owner is None:
            return
        if owner.is_alive and isinstance(stop, str) and self._plan and self._may_die():
            death = self._plan[0]
            if death.place is None or death.place == stop:
                death.count -= 1
                if death.count <= 0:
                    self._plan.pop(0)
                    self._dies(owner, stop)

    def _may_die(self) -> bool:
        """In most schedules each rank has a generation before the first death."""
        return self._dies_early or all(area.was_whole for area in self.areas)

    def _stands_still(self) -> None:
        """Nobody can go on: a fall must come in time."""
        self.now += LIMIT_S
        self._look()
        if self.reason is None:
            raise Violation("wait", "nobody can go on, and no fall comes")

    # ------------------------------------------------------------ deaths

    def _dies(self, process: Process, place: str) -> None:
        self.note("rank", process.rank, "dies:", place, "new" if process.is_new else "")
        self.deaths += 1
        process.is_alive = False
        self._threads.remove(process.main_thread)  # type: ignore[attr-defined]
        process.gone_at = self.steps + self.draws.choice([0, 0, 1, 10, 50])
        self._reported.append(process)
        if self.draws.random() < 0.5:
            rank = process.rank
            self.network = [x for x in self.network if rank != x[2]]
        self._dying.append(process)

    def _gone(self, process: Process) -> None:
        self._threads = [thread for thread in self._threads if thread[1] is not process]
        process.is_gone = True

    # ------------------------------------------------------------ the agent

    def _spawn_agent(self) -> None:
        self.spawn(None, self.agent())
        self.spawn(None, self.looks())

    def agent(self) -> Thread:
        while True:
            yield lambda: bool(self._reported)
            process = self._reported.pop(0)
            area, rank = self.areas[process.rank], process.rank
            place = self.rules.begin(area.generations(), area.logged(), self.board.done, rank)
            self.replaced[rank] += 1
            self._counts(process.rank)
            outcome = self.mending.died(process.rank, place, self.now)
            self._carry_out(outcome, process)
            yield "agent"

    def _counts(self, rank: int) -> None:
        self.mending.counts(rank)

    def _carry_out(self, outcome: object, process: Process | None = None) -> None:
        match outcome:
            case Decree(number):
                self.note("decree", number)
                self.see_that(number > self.board.number, "decree", "does not rise")
                self.board.number = number
                assert process is not None
                self.spawn(None, self.replace(process))
            case Mended():
                self.note("mended")
                self.mends += 1
                self._see_mended()
            case Fall():
                self.note("fall", outcome.name)
                self.told += 1
                self.reason = outcome

    def replace(self, process: Process) -> Thread:
        """Start the replacement once the process is gone."""
        yield lambda: process.is_gone
        self.ranks[process.rank] = self.start(process.rank, True)

    def looks(self) -> Thread:
        seen: object = None
        words = self.board
        while True:
            yield lambda: self.mending.is_under_way and self._seen() != seen
            seen = self._seen()
            self._look()
            assert words is self.board

    def _seen(self) -> object:
        words = self.board
        return words.number, *map(tuple, (words.published, words.joined, words.over, words.falls))

    def _look(self) -> None:
        words = self.board
        board = Board(words.number, words.published, words.done, words.over)
        self._carry_out(self.mending.look(board, words.joined, words.falls, self.now))

    # ------------------------------------------------------------ the oracle

    def _see_mended(self) -> None:
        for process in self.ranks:
            group = -1 if process.group is None else process.group.number
            is_back = process.has_left or self.board.over[process.rank]
            is_back |= group == self.board.number and process.begun >= (process.first or 0)
            text = f"rank {process.rank} is in group {group} of {self.board.number}"
            self.see_that(is_back or not process.is_alive, "mended", text)

    def _judge(self) -> None:
        if self.reason is None:
            return
        rank = self.draws.randrange(self.spec.workers)
        self._carry_out(self.mending.died(rank, Generation(0, 0), self.now))
        self._look()
        self.see_that(self.told == 1, "told", "a fall is told once")
        is_full = any(area.was_full for area in self.areas)
        expected = {
            Fall.NO_GENERATION: not all(area.was_whole for area in self.areas),
            Fall.TOO_NEW: is_full or not self.spec.has_fences,
            Fall.LOG_FULL: is_full,
            Fall.PEER_LOG: is_full or not self.spec.has_fences,
            Fall.DIES_AGAIN: max(self.replaced) > DEATHS_MAX,
        }
        text = f"{self.reason.name} though it could be mended"
        self.see_that(expected.get(self.reason, False), "fall", text)
