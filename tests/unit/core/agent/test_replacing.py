"""Schedules of deaths in a group whose workers are replaced one by one, and planted bugs.

What is said when is in tests/transcripts/supervisor/replaced.txt.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from ftrun.core.agent import events as e
from ftrun.core.agent.replacing import Replacing
from ftrun.core.agent.restarts import RestartRules
from ftrun.core.agent.settings import SupervisorSettings
from ftrun.core.agent.slot_state import SlotPhase, SlotState
from ftrun.core.agent.supervisor import Supervisor
from ftrun.core.messages import AssignSlots, ReplicaStarted
from ftrun.core.replay.falls import Fall
from ftrun.core.replay.settling import Board, Generation

SCHEDULES = 200
WORKERS, RESTARTS_MAX, STEPS = 3, 4, 60
END_S = 400.0


@dataclass
class Process:
    """One process of a rank."""

    pid: int
    is_dying: bool = False


@dataclass
class Node:
    """A supervisor with one group, its processes, and its board.

    ``counted``: restarts, by a count of its own: the first death of an episode, each further one of
    a rank that is replaced in it, and a restart of the group that no such death has paid for.
    """

    rng: random.Random
    spans: bool = False
    waits: bool = False
    now: float = 0.0
    incarnation: str = ""
    number: int = 0
    pids: int = 0
    counted: int = 0
    owes: bool = False
    told: set[int] = field(default_factory=set)
    episode: set[int] = field(default_factory=set)
    has_ended: bool = False
    boundary: int | None = None
    rewinds: int = 0
    processes: dict[int, Process] = field(default_factory=dict)
    published: list[int] = field(default_factory=list)
    joined: list[int] = field(default_factory=list)
    falls: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        rules = RestartRules(RESTARTS_MAX)
        own = SupervisorSettings(
            "a", WORKERS, rules, 10.0, 60.0, 30.0, has_memory_snapshots=True, spans=self.spans
        )
        self.core = Supervisor(own, 0.0)
        self.on(e.SpawnerReady())
        self.on(AssignSlots(("0",)))

    @property
    def slot(self) -> SlotState:
        return next(iter(self.core.slots))

    def on(self, event: e.Event) -> None:
        before, looks = self.number, False
        slots = list(self.core.slots)
        was_running = bool(slots) and slots[0].phase is SlotPhase.RUNNING
        was_running = was_running and slots[0].ending is None  # it does not end all by itself
        is_watched = bool(slots) and bool(slots[0].replaced)
        for instruction in self.core.handle(event, self.now):
            match instruction:
                case e.StartReplica(_, incarnation):
                    assert not self.processes, "a group is started while some of it runs"
                    self._begin(incarnation)
                case e.ReplaceWorker(key):
                    assert key.group_rank not in self.processes, "two processes of one rank"
                    self._start(key.group_rank)
                case e.SendToLighthouse(ReplicaStarted(_, incarnation)):
                    self.episode = set()
                case e.MakeDecree(_, _, number):
                    assert number == self.number + 1, "decrees are not in a row"
                    self.number = number
                case e.RewindMemory(_, _, number, boundary):
                    assert not self.waits, "all begin again though a node is missing"
                    assert not self.processes, "memory is rewound while somebody may write it"
                    assert (number, boundary) == (self.number + 1, self.boundary)
                    self.number, self.falls = number, [0] * WORKERS
                    self.rewinds += 1
                    self.episode = set(range(WORKERS))
                    self.counted += self.owes
                    self.owes = False
                case e.SignalReplica() | e.AskToStop():
                    for process in self.processes.values():
                        process.is_dying = True
                case e.LookAtBoard():
                    looks = True
                case e.EndAgent():
                    self.has_ended = True
                case _:
                    pass
        self.core.check()
        if isinstance(event, e.BoardSeen) and any(event.falls) and is_watched:
            is_running = self.slot.phase is SlotPhase.RUNNING and self.slot.ending is None
            is_new = self.number > before or event.incarnation != self.incarnation
            assert is_new or not is_running, "a fall that nobody sees"
        rank = self._dead(event)
        if rank is not None and was_running:
            is_new = rank in self.episode or not self.episode
            if self.number > before:
                self.counted += is_new
                self.episode.add(rank)
            else:
                self.owes = is_new
        if isinstance(event, e.WorkerDying) and self.slot.ending is None:
            is_over = self.slot.phase is not SlotPhase.RUNNING
            assert is_over or self.number == before + 1, "a death that the survivors are not told"
        if looks:
            self.on(self._board())

    def die(self, rank: int, place: Generation | Fall, *, is_seen: bool) -> None:
        """It dies; ``is_seen``: before its process is gone."""
        process = self.processes[rank]
        process.is_dying = True
        if is_seen:
            self.on(e.WorkerDying(self._end(rank, place)))
        else:
            self.gone(rank, place)

    def gone(self, rank: int, place: Generation | Fall = Fall.LOG_FULL) -> None:
        end = self._end(rank, place)
        del self.processes[rank]
        self.on(end)

    def publish(self) -> None:
        """Each process does what it can at the newest decree."""
        for rank, process in self.processes.items():
            if not process.is_dying:
                self.published[rank] = self.number
        if all(x == self.number for x in self.published):
            for rank, process in self.processes.items():
                if not process.is_dying:
                    self.joined[rank] = self.number

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        fired = 0
        while (due := self.core.next_deadline()) is not None and due <= end:
            fired += 1
            assert fired < 50_000, "the timer fires for ever"
            self.now = max(self.now, due)
            self.on(e.TimerFired())
        self.now = end

    def _dead(self, event: e.Event) -> int | None:
        """The rank of which this event is the first word of its death."""
        end = event.end if isinstance(event, e.WorkerDying) else event
        if not isinstance(end, e.WorkerExited) or end.pid in self.told:
            return None
        self.told.add(end.pid)
        return end.group_rank

    def _begin(self, incarnation: str) -> None:
        self.counted += self.owes
        self.owes, self.episode = False, set()
        self.incarnation, self.number = incarnation, 0
        self.published, self.joined, self.falls = ([0] * WORKERS for _ in range(3))
        for rank in range(WORKERS):
            self._start(rank)

    def _start(self, rank: int) -> None:
        self.pids += 1
        self.processes[rank] = Process(self.pids)

    def _end(self, rank: int, place: Generation | Fall) -> e.WorkerExited:
        kept = e.Kept(place, 7)
        return e.WorkerExited(self.incarnation, rank, self.processes[rank].pid, -9, kept=kept)

    def _board(self) -> e.BoardSeen:
        done = [{0: 5}] * WORKERS
        board = Board(self.number, list(self.published), done, [False] * WORKERS)
        words = tuple(self.joined), tuple(self.falls)
        more = (0,) * WORKERS, (None,) * WORKERS
        return e.BoardSeen(
            self.incarnation, board, *words, self.boundary, (), self.waits, "", *more
        )


def play(seed: int, *, spans: bool = False) -> Node:
    """One schedule, and then quiet: all that is to end ends, and all that can go on does.

    ``spans``: the group is on several nodes, and one may be missing for a while.

    Raises:
        AssertionError: a rule is broken.
    """
    rng = random.Random(seed)
    node = Node(rng, spans)
    never_falls = rng.random() < 0.4
    node.boundary = rng.choice((None, 4))
    for _ in range(STEPS):
        if node.has_ended:
            return node
        live = [rank for rank, process in node.processes.items() if not process.is_dying]
        dying = [rank for rank, process in node.processes.items() if process.is_dying]
        what = rng.random()
        if what < 0.15 and live:
            falls = not never_falls and rng.random() < 0.2
            place = Fall.LOG_FULL if falls else Fall.NODES if spans else Generation(7, 0)
            node.die(rng.choice(live), place, is_seen=rng.random() < 0.6)
        elif what < 0.4 and dying:
            node.gone(rng.choice(dying))
        elif what < 0.45 and not never_falls and live:
            node.falls[rng.choice(live)] = Fall.OTHER_INPUT
        elif spans and what < 0.5:
            node.waits = rng.random() < 0.5
        elif what < 0.7:
            node.publish()
        else:
            node.pass_time(rng.choice((0.005, 0.02, 0.5)))
    node.waits = False
    node.core.handle(e.LighthouseSent(node.now), node.now)
    for _ in range(8):
        for rank in [rank for rank, process in node.processes.items() if process.is_dying]:
            node.gone(rank)
        node.pass_time(2.0)
        node.publish()
    node.core.handle(e.LighthouseSent(node.now), node.now)
    node.pass_time(31.0)
    if node.has_ended:
        return node
    slot = node.slot
    assert slot.phase is SlotPhase.RUNNING, slot.phase
    assert not slot.replaced, "a replacement that nobody waits for"
    assert sorted(node.processes) == list(range(WORKERS)), "a rank without a process"
    assert node.joined == [node.number] * WORKERS, "a rank that is not in the group"
    assert slot.budget.spent == node.counted <= RESTARTS_MAX, "a wrong number of restarts"
    assert slot.restarts == node.counted, "another number is shown"
    return node


def test_no_schedule_breaks_a_rule() -> None:
    nodes = [play(seed) for seed in range(SCHEDULES)]
    assert any(node.number >= 3 and not node.has_ended for node in nodes)
    assert any(node.has_ended for node in nodes)
    assert any(node.rewinds and not node.has_ended for node in nodes)


def test_no_schedule_of_a_group_on_several_nodes_breaks_a_rule() -> None:
    nodes = [play(seed, spans=True) for seed in range(SCHEDULES)]
    assert any(node.rewinds > 1 and not node.has_ended for node in nodes)
    assert any(node.has_ended for node in nodes)


def _starts_before_it_is_gone(replacing: type[Replacing]) -> Callable[..., object]:
    takes = replacing.takes

    def broken(self: Replacing, slot: SlotState, end: e.WorkerExited) -> bool:
        done = takes(self, slot, end)
        if done and self.waits_for_end(slot, end.group_rank):
            self.gone(slot, end.group_rank)
        return done

    return broken


def _tells_the_first_death_only(replacing: type[Replacing]) -> Callable[..., object]:
    takes = replacing.takes

    def broken(self: Replacing, slot: SlotState, end: e.WorkerExited) -> bool:
        is_first, known = not slot.replaced, len(self._out._out)
        done = takes(self, slot, end)
        if done and not is_first:
            kept = [x for x in self._out._out[known:] if not isinstance(x, e.MakeDecree)]
            self._out._out[known:] = kept
        return done

    return broken


def _is_free(replacing: type[Replacing]) -> Callable[..., object]:
    takes = replacing.takes

    def broken(self: Replacing, slot: SlotState, end: e.WorkerExited) -> bool:
        spent, done = slot.budget.spent, takes(self, slot, end)
        slot.budget.spent = spent if done else slot.budget.spent
        return done

    return broken


def _looks_once(replacing: type[Replacing]) -> Callable[..., object]:
    seen = replacing.seen

    def broken(self: Replacing, event: e.BoardSeen) -> None:
        seen(self, event)
        for slot in self._slots:
            slot.look_at = None

    return broken


def _overlooks_a_fall(replacing: type[Replacing]) -> Callable[..., object]:
    seen = replacing.seen

    def broken(self: Replacing, event: e.BoardSeen) -> None:
        seen(self, replace(event, falls=(0,) * WORKERS))

    return broken


def _forgets_the_end(_: type[Replacing]) -> Callable[..., object]:
    return lambda self, slot, rank: False


def _forgets_to_replace(_: type[Replacing]) -> Callable[..., object]:
    return lambda self, slot, rank: setattr(slot.replaced[rank], "is_gone", True)


def _begins_again_at_once(replacing: type[Replacing]) -> Callable[..., object]:
    end_all = replacing._end_all

    def broken(self: Replacing, slot: SlotState, ranks: set[int]) -> None:
        end_all(self, slot, ranks)
        slot.ending = set()
        self._out.add(e.LookAtBoard(slot.replica_id, slot.incarnation))

    return broken


def _pays_twice(replacing: type[Replacing]) -> Callable[..., object]:
    begin_again = replacing._begin_again

    def broken(self: Replacing, slot: SlotState, event: e.BoardSeen) -> None:
        slot.verdict = None
        begin_again(self, slot, event)

    return broken


def _counts_each_process(replacing: type[Replacing]) -> Callable[..., object]:
    replace_one = replacing._replace

    def broken(self: Replacing, slot: SlotState, rank: int) -> None:
        slot.restarts += 1
        replace_one(self, slot, rank)

    return broken


def _replaces_for_ever(_: type[Replacing]) -> Callable[..., object]:
    return lambda self, slot, event, after_s: None


PLANTED = {
    "starts before the dead process is gone": ("takes", _starts_before_it_is_gone),
    "tells the first death only": ("takes", _tells_the_first_death_only),
    "costs nothing of the budget": ("takes", _is_free),
    "looks at the board once": ("seen", _looks_once),
    "overlooks a fall": ("seen", _overlooks_a_fall),
    "takes the end for a new failure": ("waits_for_end", _forgets_the_end),
    "starts no replacement": ("gone", _forgets_to_replace),
    "begins again while processes live": ("_end_all", _begins_again_at_once),
    "books a fall twice": ("_begin_again", _pays_twice),
    "shows each process as a restart": ("_replace", _counts_each_process),
    "does not note that all go on": ("_mended", _replaces_for_ever),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_bugs_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attribute, plant = PLANTED[name]
    monkeypatch.setattr(Replacing, attribute, plant(Replacing))
    with pytest.raises(AssertionError):
        for seed in range(SCHEDULES):
            play(seed)
