"""Random schedules of a group that recovers without replicas, with deaths at every word.

Each thread of each process is a generator that stops at every word that it reads or writes. A
schedule chooses the thread that runs next, and where a process dies: in its own step, in the
recovery, or as a replacement. Memory, board and agent outlive the processes. In some schedules the
ranks are on several nodes with a board each; their agents exchange words, in order in each
direction and after any delay, and a node may be lost. The oracle is an undisturbed run (script.py).
A thread that waits stops at a condition, so that an endless wait is detected.

A planted bug (mutants.py) is other ``Rules``, or a subclass of a part.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ftrun.core.replay import settling
from ftrun.core.replay.afterwards import Apart
from ftrun.core.replay.falls import Fall
from ftrun.core.replay.mending import DEATHS_MAX, LIVING, REWINDS_MAX, Decree, Mended, Mending
from ftrun.core.replay.mirroring import Elsewhere, Mirror, RankWords
from ftrun.core.replay.pacing import is_due
from ftrun.core.replay.settling import Board, Generation
from tests.sim.replay.group import Group
from tests.sim.replay.memory import Area, Thread, Words
from tests.sim.replay.process import Process, Rules
from tests.sim.replay.script import Spec, Undisturbed
from tests.sim.violation import Violation

LIMIT_S = 60.0
STEPS_MAX = 200_000
PLACES = (
    *("announced", "generation begun", "word copied", "calls noted", "generation whole"),
    *("log closed", "log emptied", "log open", "log cut", "word logged", "entry logged"),
    "call counted",
    *("call begun", "call complete", "call through", "word changed", "over"),
    *("cut", "published", "first call read", "arrived", "connected", "issued again", "in force"),
    *("started", "word loaded", "from the log", "part read"),
)
"""Where a process can die, by name."""


def divided(draws: random.Random, workers: int) -> list[range]:
    """The number of ranks on each node, for two nodes or more."""
    cuts = sorted(draws.sample(range(1, workers), draws.randint(1, workers - 1)))
    return [range(*pair) for pair in zip([0, *cuts], [*cuts, workers], strict=True)]


@dataclass
class Death:
    """The process that reaches ``place`` (None: any) as the ``count``-th one dies there."""

    place: str | None
    count: int


class World:
    """One schedule, from its seed. ``reason``: the reason of the fall, if there was one.

    ``focus``: the threads that are always slow: those of this name, those of replacements, or the
    network. ``breaks``: in some schedules connections fail without a death; in a few a survivor
    never leaves its broken group. ``groups``: in some schedules there are several process groups,
    and calls before the copy of a state. ``nodes``: in some schedules there are several nodes, and
    the first one's agent leads. ``small``: in most schedules, logs get full.
    """

    def __init__(
        self,
        seed: int,
        rules: Rules | None = None,
        process: type[Process] = Process,
        mending: type[Mending] = Mending,
        area: type[Area] = Area,
        focus: str = "",
        breaks: bool = True,
        groups: bool = True,
        nodes: bool = True,
        mirror: type[Mirror] = Mirror,
        elsewhere: type[Elsewhere] = Elsewhere,
        small: bool = False,
    ) -> None:
        self.draws = random.Random(f"replay/{seed}")
        self.seed, self.rules, self.process = seed, rules or Rules(), process
        self.focus = focus
        others = random.Random(f"replay/{seed}/groups")
        self.spec = Spec.drawn(self.draws, others if groups else None)
        apart = random.Random(f"replay/{seed}/nodes")
        ranks = self.spec.workers
        self.nodes = divided(apart, ranks) if nodes and apart.random() < 0.4 else [range(ranks)]
        # When logs are lost, calls before the copy are made again: they must then be equal.
        self.spec = replace(self.spec, shows=len(self.nodes) == 1)
        self.is_serial = groups and others.random() < 0.3
        self.known = Undisturbed(self.spec, [0] * len(self.spec.steps))
        workers = self.spec.workers
        is_small = self.draws.random() < (0.8 if small else 0.1)
        some = [2, 4, 8, 1000] if small else [4, 6, 8, 1000]
        rooms = [self.draws.choice(some) if is_small else 1000 for _ in range(workers)]
        self.areas = [area(self.spec.words, room) for room in rooms]
        none = [-1] * workers
        falls, over = [0] * workers, [False] * workers
        done = [dict.fromkeys(self.spec.own(rank), 0) for rank in range(workers)]
        self.node_of = {rank: node for node, ranks in enumerate(self.nodes) for rank in ranks}
        full = [0] * workers
        self._blank = Words(0, list(none), done, list(none), over, falls, list(none), full)
        self.boards = [deepcopy(self._blank) for _ in self.nodes]
        self.elsewhere, self._mirror = elsewhere, mirror
        self.mirrors = [mirror(ranks) for ranks in self.nodes]
        self.busy = [False for _ in self.nodes]
        self.ways: dict[tuple[int, int], deque[Callable[[], Thread]]] = {}
        self.held: list[list[Callable[[], Thread]] | None] = [None for _ in self.nodes]
        self._node_dies_at = apart.choice([0, 0, 1, 300, 1000]) if len(self.nodes) > 1 else 0
        self.lost: list[int] = []
        self._untold: list[Process] = []
        self.mending = mending(LIMIT_S, len(self.nodes) > 1, hang_s=LIMIT_S)
        self.network: list[tuple[Group, tuple[int, int], int, int, int]] = []
        self.reason: Fall | None = None
        self.deaths = self.mends = self.steps = self.told = self.rewinds = self._left = 0
        self._replaced, self._rewound = [0] * workers, 0  # since all were together last
        self.now = 0.0
        self.story: list[str] = []
        self._groups: dict[int, Group] = {}
        self._threads: list[list[Any]] = []
        self._reported: list[Process] = []
        self._dying: list[Process] = []
        self.is_rare = self.draws.random() < 0.3
        self.due: set[int] = set()
        self._plan = self._drawn_plan()
        self._refusals, self.refused = self.draws.choice([0.0, 0.0, 0.0, 0.5]), False
        self._luck = random.Random(f"replay/{seed}/connections")
        self._breaks = self._luck.choice([0.0, 0.0, 0.1]) if breaks else 0.0
        self._dies_early = self.draws.random() < 0.1
        stays = random.Random(f"replay/{seed}/stays")
        self._stays_at = stays.choice([1, 1, 2, 3]) if stays.random() < 0.03 else -1
        self.has_stayed = False
        self._slow: object = None
        self._seen: object = None
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
        return self._groups.setdefault(number, Group(self, number, self.is_serial))

    @property
    def board(self) -> Words:
        """The board of the node that leads."""
        return self.boards[0]

    def announced(self, word: int) -> None:
        """Rank 0 has announced a step that begins with a generation. If the ranks wait for each
        other in each step, no rank may have reached it."""
        for node in range(1, len(self.nodes)):
            self.send(0, node, partial(self._due, node, word))
        if len(self.nodes) > 1:
            return  # the announcement may reach them too late
        steps = range(len(self.spec.steps) + 4)
        new = {x for x in steps if is_due(self.board.due, x)} - self.due
        if self.spec.has_fences:
            late = [one.at for one in self.ranks if one.is_alive and one.at >= min(new)]
            self.see_that(not late, "due", f"steps {new} are announced at {late}")
            self.due |= new

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
        """Whether the schedule is over. A fall may come when all have just left: it is carried out
        first."""
        is_told = self.mending.fallen is None
        return self.reason is not None or (is_told and self._left == self.spec.workers)

    def _step(self) -> None:
        if self._dying and self._dying[0].gone_at <= self.steps:
            self._gone(self._dying.pop(0))
        if self._node_dies_at and self._node_dies_at <= self.steps and self._may_die():
            self._lose_node(self.draws.randrange(1, len(self.nodes)))
        threads, draws = self._threads, self.draws
        if self.network and draws.random() < (0.01 if self.focus == "network" else 0.3):
            self._deliver()
            return
        if draws.random() < 0.004:
            self._slow = draws.choice([None, *self.ranks, *threads])
        for _ in range(8):
            thread = threads[int(draws.random() * len(threads))]
            if self._is_slow(thread) and draws.random() < 0.97:
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

    def _is_slow(self, thread: list[Any]) -> bool:
        run, owner, _ = thread
        name = run.__name__
        if owner is None:
            return bool(self.focus == name)
        is_in_focus = self.focus == name or (owner.is_new and self.focus == f"new {name}")
        return is_in_focus or self._slow is thread or self._slow is owner

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
                self._left += 1
                self._lose_messages(owner)
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
        """Whether deaths may begin: in most schedules, once each rank has a generation."""
        return self._dies_early or all(area.was_whole for area in self.areas)

    def _stands_still(self) -> None:
        """No thread can continue: a fall must come in time. The agent looks more often than
        here."""
        self._look()
        self.now += LIMIT_S * (LIVING if self.has_stayed else 1)
        self._look()
        if self.mending.fallen is None:
            raise Violation("wait", "nobody can go on, and no fall comes")

    # ------------------------------------------------------------ deaths

    def _dies(self, process: Process, place: str) -> None:
        self.note("rank", process.rank, "dies:", place, "new" if process.is_new else "")
        self.deaths += 1
        self._ends(process)
        self._untold.append(process)
        if process.node:
            self.send(process.node, 0, partial(self._died, process))
        else:
            self._report(process)
        if self.draws.random() < self._refusals:  # as of a script that is not deterministic
            rank = self.draws.randrange(self.spec.workers)
            self.boards[self.node_of[rank]].falls[rank] = Fall.OTHER_INPUT
            self.refused = True

    def _ends(self, process: Process) -> None:
        process.is_alive = False
        self._threads.remove(process.main_thread)  # type: ignore[attr-defined]
        process.gone_at = self.steps + self.draws.choice([0, 0, 1, 10, 50, 200])
        self._lose_messages(process)
        self._dying.append(process)

    def _lose_messages(self, process: Process) -> None:
        """Lose messages of a process that ends; some may still arrive."""
        if self.draws.random() < 0.5:
            self.network = [x for x in self.network if x[2] != process.rank]

    def _gone(self, process: Process) -> None:
        self._threads = [thread for thread in self._threads if thread[1] is not process]
        process.is_gone = True

    # ------------------------------------------------------------ the agent

    def _spawn_agent(self) -> None:
        self.spawn(None, self.agent())
        self.spawn(None, self.looks())
        for node in range(len(self.nodes)) if len(self.nodes) > 1 else ():
            self.spawn(None, self.tells(node))
            for way in ((0, node), (node, 0)) if node else ():
                self.ways[way] = deque()
                self.spawn(None, self.way(*way))

    def agent(self) -> Thread:
        while True:
            yield lambda: bool(self._reported) and not self.busy[0]
            process = self._reported.pop(0)
            rank = process.rank
            place = self.place(process)
            self._counts(process.rank)
            self.forget(rank)
            outcome = self.mending.died(process.rank, place, self.now)
            self._replaced[rank] += 1
            is_few = self._replaced[rank] <= DEATHS_MAX or not isinstance(outcome, Decree)
            self.see_that(is_few, "again", f"rank {rank} is replaced time after time")
            self._carry_out(outcome, process)
            yield "agent"

    def place(self, process: Process) -> Generation | Fall:
        """Where a replacement begins, as the leading agent knows it."""
        area, rank = self.areas[process.rank], process.rank
        if process.node in self.lost:
            return Fall.NODES
        found = area.generations()
        if len(self.nodes) == 1 or not found:
            return self.rules.begin(found, area.logged(), self.board.done, rank, self.board.full)
        return max(found, key=lambda known: known.number)

    def forget(self, rank: int, node: int = 0) -> None:
        """Reset what was true of the dead process only."""
        self.boards[node].over[rank] = False

    def _counts(self, rank: int) -> None:
        self.mending.counts(rank)

    def _carry_out(self, outcome: object, process: Process | None = None) -> None:
        match outcome:
            case Decree(number):
                self.note("decree", number)
                self.see_that(number > self.board.number, "decree", "does not rise")
                self.decree(0, number)
                lost = None if process is None else process.rank
                for node in range(1, len(self.nodes)):
                    self.send(0, node, partial(self._decreed, node, number, lost))
                if process is not None:
                    self.spawn(None, self.replace(process, self.rewinds))
            case Mended():
                self.note("mended")
                self.mends += 1
                self._replaced, self._rewound = [0] * self.spec.workers, 0
                self._see_mended()
            case Fall():
                self.note("fall", outcome.name)
                self.told += 1
                self._see_fall(outcome)
                self.spawn(None, self.rewind(outcome))

    def replace(self, process: Process, rewinds: int) -> Thread:
        """Start the replacement after the process has ended."""
        yield lambda: process.is_gone
        if process.node:
            self.send(0, process.node, partial(self._start, process.rank, rewinds))
            return
        if self.rewinds != rewinds or self.mending.fallen is not None:
            return  # all are replaced together
        self.ranks[process.rank] = self.start(process.rank, True)
        if self.draws.random() < 0.4:
            self._slow = self.draws.choice([self.ranks[process.rank], *self._threads[-3:]])

    def rewind(self, reason: Fall) -> Thread:
        """Kill all and restart them after they have ended, if that is possible."""
        for process in self.ranks:
            if process.is_alive and not process.has_left:
                self._ends(process)
        yield lambda: all(process.is_gone for process in self.ranks) and not self.busy[0]
        self._reported.clear()
        self._untold.clear()
        self.lost.clear()
        logs = [area.logged() for area in self.areas] if len(self.nodes) == 1 else None
        known = [area.generations() for area in self.areas]
        boundary = self.rules.common(known, logs)
        self._see_boundary(known, boundary)
        if any(process.has_left for process in self.ranks):
            boundary = None
        workers = self.spec.workers
        decree = self.mending.rewind(boundary, workers, self.now)
        if decree is None or boundary is None:
            self.reason = reason
            return
        self.note("all begin again at step", boundary)
        self.rewinds += 1
        self.refused = False  # a word from before does not count any more
        self._replaced, self._rewound = [0] * workers, self._rewound + 1
        is_few = self._rewound <= (REWINDS_MAX if len(self.nodes) > 1 else 1)
        self.see_that(is_few, "again", "all begin again time after time")
        self.clear(boundary)
        left = len(self.spec.steps) - boundary
        salts = [*self.known.salts[:boundary], *[self.rewinds] * left]
        self.known = Undisturbed(self.spec, salts)
        self.decree(0, decree.number)
        for node in range(1, len(self.nodes)):
            again = partial(self._begin_again, node, boundary, decree.number, self.rewinds)
            self.send(0, node, again)
        for rank in self.nodes[0]:
            self.ranks[rank] = self.start(rank, True)

    def stays(self, process: Process, number: int) -> bool:
        """Whether a living process never leaves its broken group."""
        if self.has_stayed or process.is_new or number != self._stays_at:
            return False
        self.note("rank", process.rank, "stays in its group")
        self.has_stayed = True
        return True

    def breaks(self) -> bool:
        """Whether a connection fails without a death."""
        return self.board.number > 0 and self._luck.random() < self._breaks

    def clear(self, boundary: int, node: int = 0) -> None:
        """Rewind a node's memory."""
        words, workers = self.boards[node], self.spec.workers
        for rank in self.nodes[node]:
            words.done[rank] = self.areas[rank].rewind(boundary, len(self.nodes) == 1)
        words.falls[:], words.over[:] = [0] * workers, [False] * workers
        words.full[:] = [0] * workers

    # ------------------------------------------------------------ between nodes

    def send(self, sender: int, receiver: int, work: Callable[[], Thread]) -> None:
        self.ways[sender, receiver].append(work)

    def way(self, sender: int, receiver: int) -> Thread:
        """A connection between two agents: messages are handled in order, one at a time."""
        queue = self.ways[sender, receiver]
        while True:
            yield lambda: bool(queue) and not self.busy[receiver]
            self.busy[receiver], mirror = True, self.mirrors[receiver]
            for stop in queue.popleft()():
                yield stop
                if mirror is not self.mirrors[receiver]:
                    break  # the node is lost
            else:
                self.busy[receiver] = False
            yield "carried out"

    def tells(self, node: int) -> Thread:
        """Send the words that others lack."""
        mirror = self.mirrors[node]
        while True:
            yield lambda: self._is_news(node) and not self.busy[node]
            if mirror is not self.mirrors[node]:
                return  # another process has its place
            self.busy[node] = True
            rows = []
            for rank in self.nodes[node]:
                row = yield from self._read(node, rank)
                rows.append(row)
            if mirror is self.mirrors[node]:
                self._send_words(node, node, mirror.number, mirror.news(rows))
                self.busy[node] = False
            yield "told"

    def _read(self, node: int, rank: int) -> Thread:
        words = self.boards[node]
        published = words.published[rank]
        yield "published read"
        done = dict(words.done[rank])
        row = replace(self._row(node, rank), published=published)
        yield "words read"
        return replace(row, groups=tuple(done), done=tuple(done.values()))

    def _send_words(self, own: int, node: int, number: int, rows: list[RankWords]) -> None:
        """Send the node's words, or relay words by the leading node."""
        for other in range(len(self.nodes)) if own == 0 else [0]:
            if other not in (own, node) and rows:
                self.send(own, other, partial(self._came, other, node, number, rows))

    def _row(self, node: int, rank: int) -> RankWords:
        words = self.boards[node]
        known = words.published[rank], words.joined[rank], words.over[rank]
        return RankWords(rank, *known, words.falls[rank], words.broken[rank])

    def _is_news(self, node: int) -> bool:
        sent = self.mirrors[node]._sent
        return any(sent.get(rank) != self._row(node, rank) for rank in self.nodes[node])

    def _came(self, node: int, source: int, number: int, rows: list[RankWords]) -> Thread:
        """Words of a node have arrived."""
        found = self.mirrors[node].came(number, rows)
        for row in found:
            yield from self.write(self.boards[node], row)
        if node == 0:
            self._send_words(0, source, number, found)

    def write(self, words: Words, row: RankWords) -> Thread:
        words.done[row.group_rank] = dict(zip(row.groups, row.done, strict=True))
        yield "done written"
        words.over[row.group_rank], words.falls[row.group_rank] = row.over, row.fall
        words.broken[row.group_rank], words.joined[row.group_rank] = row.broken, row.joined
        yield "words written"
        words.published[row.group_rank] = row.published
        yield "published written"

    def decree(self, node: int, number: int) -> None:
        """A decree takes effect on a node."""
        self.boards[node].number = number
        for row in self.mirrors[node].raised(number):
            for _ in self.write(self.boards[node], row):
                pass

    def _decreed(self, node: int, number: int, lost: int | None) -> Thread:
        held = self.held[node]
        if held is not None:
            held.append(partial(self._decreed, node, number, lost))
            return
        if lost is not None:
            self.forget(lost, node)
        self.decree(node, number)
        yield "decreed"

    def _start(self, rank: int, rewinds: int) -> Thread:
        held = self.held[self.node_of[rank]]
        if held is not None:
            held.append(partial(self._start, rank, rewinds))
        elif self.rewinds == rewinds and self.mending.fallen is None:
            self.ranks[rank] = self.start(rank, True)
        yield "replaced"

    def _begin_again(self, node: int, boundary: int, number: int, rewinds: int) -> Thread:
        """Restore the states of a step. This takes a while, and orders wait meanwhile."""
        self.held[node] = []
        self.spawn(None, self._restore(node, boundary, number, rewinds))
        yield "memory comes"

    def _restore(self, node: int, boundary: int, number: int, rewinds: int) -> Thread:
        mirror = self.mirrors[node]
        yield "memory comes"
        yield lambda: not self.busy[node] or mirror is not self.mirrors[node]
        if mirror is not self.mirrors[node] or self.rewinds != rewinds:
            return
        if self.mending.fallen is None:
            self.clear(boundary, node)
            self.decree(node, number)
            for rank in self.nodes[node]:
                self.ranks[rank] = self.start(rank, True)
        held, self.held[node] = self.held[node], None
        for work in held or ():
            yield from work()

    def _due(self, node: int, word: int) -> Thread:
        self.boards[node].due = word
        yield "due"

    def _died(self, process: Process) -> Thread:
        self._report(process)
        yield "died"

    def _report(self, process: Process) -> None:
        if process in self._untold:
            self._untold.remove(process)
            self._reported.append(process)

    def _lose_node(self, node: int) -> None:
        """Lose all that is on a node, including its states; other nodes have copies of those."""
        self._node_dies_at = 0
        if any(process.has_left for process in self.ranks):
            return
        self.note("node", node, "is lost")
        self.lost.append(node)
        for rank in self.nodes[node]:
            process = self.ranks[rank]
            if process.is_alive:
                self._ends(process)
            process.gone_at = 0
            self._gone(process)
            self._untold.append(process)
            self._report(process)
        self._dying = [process for process in self._dying if process.node != node]
        self.ways[node, 0].clear()
        self.ways[0, node].clear()
        self.boards[node] = deepcopy(self._blank)
        self.mirrors[node], self.busy[node] = self._mirror(self.nodes[node]), False
        self.held[node] = None
        self.spawn(None, self.tells(node))

    def looks(self) -> Thread:
        while True:
            yield (
                lambda: (
                    self.mending.is_under_way and self._words() != self._seen and not self.busy[0]
                )
            )
            self._seen = self._words()
            self._look()

    def _words(self) -> object:
        words = self.board
        each: tuple[list[Any], ...] = (
            words.published,
            words.joined,
            words.over,
            words.falls,
            words.broken,
        )
        return words.number, *(tuple(known) for known in each)

    def _look(self) -> None:
        words = self.board
        board = Board(words.number, words.published, words.done, words.over)
        steps = [process.at for process in self.ranks]
        if self.mending.is_watched:
            waits = [process.waits() for process in self.ranks]
            found = self.mending.look_after(board, steps, waits, self.now)
            self._carry_out(Fall.APART if isinstance(found, Apart) else None)
            return
        joined = words.joined, words.falls, self.now, words.broken
        self._carry_out(self.mending.look(board, *joined, steps))

    # ------------------------------------------------------------ the oracle

    def _see_mended(self) -> None:
        for process in self.ranks:
            group = -1 if process.group is None else process.group.number
            is_back = all(self.board.over) or process in self._reported  # its end is not known yet
            is_back |= process in self._untold
            is_back |= group == self.board.number and process.has_caught_up
            text = f"rank {process.rank} is in group {group} of {self.board.number}"
            self.see_that(is_back, "mended", text)

    def _see_boundary(self, known: list[list[Generation]], boundary: int | None) -> None:
        """All begin from what they have: at the newest step whose copies may still be written."""
        newest = settling.common(known)
        older = settling.common([[x for x in own if x.step != newest] for own in known])
        is_right = boundary in (newest, older) or not self.spec.has_fences
        self.see_that(is_right, "boundary", f"from {boundary}, and all have {newest} and {older}")

    def _see_fall(self, reason: Fall) -> None:
        is_full = any(area.was_full for area in self.areas)
        is_first = any(len(area.generations()) < 2 for area in self.areas) and self.spec.late > 0
        expected = {
            Fall.NO_GENERATION: not all(area.was_whole for area in self.areas),
            Fall.TOO_NEW: is_full or is_first or not self.spec.has_fences,
            Fall.LOG_FULL: is_full,
            Fall.PEER_LOG: is_full or not self.spec.has_fences,
            Fall.OTHER_INPUT: self.refused,
            Fall.DIES_AGAIN: max(self._replaced) > DEATHS_MAX,
            Fall.NODES: bool(self.lost),
            Fall.STAYS: self.has_stayed,
            Fall.INPUT: is_full
            or (len(self.nodes) > 1 and not (self.spec.has_fences and len(self.spec.splits) == 1)),
        }
        text = f"{reason.name} though it could be mended"
        self.see_that(expected.get(reason, False), "fall", text)

    def _judge(self) -> None:
        if self.reason is None:
            self.see_that(self.told == self.rewinds, "told", "a fall is told once")
            return
        rank = self.draws.randrange(self.spec.workers)
        self.told += self.mending.died(rank, Generation(0, 0), self.now) is not None
        self._look()
        self.see_that(self.told == self.rewinds + 1, "told", "a fall is told once")
