"""Random lives of one group whose memory corrupts parameters, with the real supervisor.

Workers of one shard hold the same parameters. Each step adds an average over them, to which every
parameter of the replica contributes, so one that is corrupted spoils all. The oracle knows what an
undisturbed run has after each step, and who was altered.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ftrun.base.errors import ExitCode
from ftrun.core import messages as m
from ftrun.core.agent import events as e
from ftrun.core.agent.replacing import Replacing
from ftrun.core.agent.restarts import RestartRules
from ftrun.core.agent.settings import SupervisorSettings
from ftrun.core.agent.supervisor import Supervisor
from ftrun.core.failure_kinds import HEAL, REPORT, STOP
from ftrun.core.replay.alike import NEVER, Unlike, unlike
from ftrun.core.replay.settling import Board, Generation, Mark, common
from tests.sim.violation import Violation

KEPT = 3
GONE, STARTS = -2, -1
STEPS, QUIET, TICKS_MAX = 60, 12, 3000
LARGE = (1 << 61) - 1
Known = list[list[Generation]]


@dataclass(frozen=True)
class Rules:
    """What a planted bug replaces."""

    unlike: Callable[[Known], Unlike | None] = unlike
    common: Callable[[Known], int | None] = common
    waits: bool = True
    replacing: type[Replacing] = Replacing


def _gradient(shard: int, row: Sequence[int]) -> int:
    return hash((shard, *row)) % LARGE


@dataclass
class World:
    """One schedule. ``resumed``, ``again``, ``told``, ``stopped``: how often it came to that."""

    seed: int
    rules: Rules = field(default_factory=Rules)
    resumed: int = 0
    again: int = 0
    told: int = 0
    stopped: bool = False
    looks: bool = False
    story: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.draws = draws = random.Random(self.seed)
        self.shards, copies = draws.choice(((1, 2), (1, 3), (1, 5), (2, 2), (2, 3)))
        self.ranks = range(self.shards * copies)
        self.action = draws.choice((HEAL, HEAL, HEAL, STOP, REPORT))
        self.every = draws.randint(1, 4)
        self.apart_from = draws.choice((None, None, None, 0, 20))  # from this step the script does
        rules = RestartRules(10_000, repeats=True)
        settings: dict[str, Any] = {
            "replicas": 1,
            "has_memory_snapshots": True,
            "hang_timeout_s": 0,
        }
        self.core = Supervisor(
            SupervisorSettings(
                "a", len(self.ranks), rules, 9.0, 1e9, 1e9, on_corruption=self.action, **settings
            ),
            0.0,
        )
        self.core._replacing.__class__ = self.rules.replacing
        self.now, self.incarnation = 0.0, ""
        self.altered = dict[int, int]()  # by rank, since which step
        self.spoilt = STEPS  # since which step all are, and alike
        self.odd_before = set[int]()
        self.feed(e.SpawnerReady())
        self.feed(m.AssignSlots(("0",)))

    # ------------------------------------------------------------ the group

    def begin(self, incarnation: str) -> None:
        """All workers start, with nothing in memory."""
        if self.incarnation:
            lost = self.rules.common(self.memory())
            self.require(not lost, f"all begin again, although all have step {lost}")
        self.incarnation, self.number, self.step, self.count = incarnation, 0, 0, 0
        self.holds = {rank: rank % self.shards + 1 for rank in self.ranks}
        self.known: dict[int, list[tuple[Generation, int]]] = {rank: [] for rank in self.ranks}
        self.averages: list[list[list[int]]] = []
        self.joined = dict.fromkeys(self.ranks, 0)
        self.dead, self.may_differ = set[int](), False
        self.altered.clear()
        self.spoilt = STEPS

    def memory(self) -> Known:
        return [[x for x, _ in self.known[rank]] for rank in self.ranks]

    def alter(self, rank: int) -> None:
        self.story.append(f"step {self.step}: {rank} is altered")
        self.altered.setdefault(rank, self.step)
        self.holds[rank] = (self.holds[rank] + self.draws.randint(1, 1 << 40)) % LARGE

    def train(self) -> None:
        """One step of all workers."""
        rows = [
            [self.holds[first + shard] for shard in range(self.shards)]
            for first in self.ranks[:: self.shards]
        ]
        sums = [[_gradient(shard, row) for row in rows] for shard in range(self.shards)]
        self.averages.append(sums)
        for rank in self.ranks:
            self.holds[rank] = self.applied(rank, self.holds[rank], self.step)
        self.step += 1

    def applied(self, rank: int, held: int, step: int) -> int:
        sums = self.averages[step][rank % self.shards]
        mean = sums[0] if len(set(sums)) == 1 else sum(sums) % LARGE
        own = rank if self.apart_from is not None and step >= self.apart_from else 0
        return (held * 3 + mean + own) % LARGE

    def copy(self, rank: int) -> None:
        """A generation of this rank, unless a difference is not settled."""
        if self.rules.waits and not self.may_differ and self.rules.unlike(self.memory()):
            return
        if any(x.step == self.step for x, _ in self.known[rank]):
            return
        self.count += 1
        mark = None if self.may_differ else Mark(rank % self.shards + 1, self.holds[rank], 1)
        made = Generation(self.count, self.step, mark=mark)
        self.known[rank] = [*self.known[rank], (made, self.holds[rank])][-KEPT:]

    def look(self) -> None:
        """The agent compares what is in memory."""
        found = None if self.may_differ or self.dead else self.rules.unlike(self.memory())
        if found is not None:
            self.story.append(f"step {self.step}: {found}")
            is_right = self.apart_from is not None or {*found.odd} <= self.altered.keys()
            self.require(is_right, "one is named that was not altered")
            self.feed(e.WorkersUnlike(self.incarnation, found))

    # ------------------------------------------------------------ the supervisor

    def feed(self, event: e.Event) -> None:
        for instruction in self.core.handle(event, self.now):
            self.carry_out(instruction)
        self.core.check()

    def carry_out(self, instruction: e.Instruction) -> None:
        match instruction:
            case e.StartReplica():
                self.begin(instruction.incarnation)
            case e.SignalWorker(key):
                self.kills(key.group_rank)
            case e.SignalReplica():
                self.dead |= {rank for rank in self.ranks if self.joined[rank] != GONE}
            case e.MakeDecree(_, _, number):
                self.number = number
            case e.ReplaceWorker(key):
                self.replaces(key.group_rank)
            case e.RewindMemory(_, _, number, boundary):
                self.rewinds(number, boundary)
            case e.LetDiffer():
                self.lets_differ()
            case e.LookAtBoard():
                self.looks = True
            case e.EndAgent(exit_code):
                self.stopped = True
                self.require(exit_code == ExitCode.CORRUPTED, f"it ends with {exit_code}")
                self.require(self.action == STOP, "nobody asked for that")
            case _:
                pass

    def mates(self, rank: int) -> range:
        return range(rank % self.shards, len(self.ranks), self.shards)

    def odd(self, rank: int) -> set[int]:
        """Its mates that were altered."""
        return {x for x in self.mates(rank) if x in self.altered}

    def kills(self, rank: int) -> None:
        """One is killed for a difference."""
        self.require(self.action != REPORT, "one is killed, and nobody asked for that")
        mates, odd = self.mates(rank), self.odd(rank)
        if self.apart_from is None:
            self.require(bool(odd), f"{rank} is killed, and nobody of its mates was altered")
            is_known = 2 * len(odd) < len(mates)
            self.require(rank in odd or not is_known, f"{rank} is killed, and was not altered")
        self.again += bool(self.odd_before) and self.odd_before != odd
        self.odd_before = odd
        self.dead.add(rank)

    def rewinds(self, number: int, boundary: int) -> None:
        """All resume from a step."""
        self.story.append(f"all resume from {boundary}")
        self.number, self.step, self.resumed = number, boundary, self.resumed + 1
        del self.averages[boundary:]
        for rank in self.ranks:
            self.known[rank] = [x for x in self.known[rank] if x[0].step <= boundary]
            self.holds[rank] = next(y for x, y in self.known[rank] if x.step == boundary)
            self.joined[rank] = STARTS
        self.altered.clear()
        self.spoilt = STEPS if boundary <= self.spoilt else self.spoilt
        self.check_states("all resume from a step that is spoilt")

    def replaces(self, rank: int) -> None:
        """A replacement repeats what followed its newest generation, from the log."""
        self.dead.discard(rank)
        self.joined[rank] = STARTS
        made, held = self.known[rank][-1]
        for step in range(made.step, self.step):
            held = self.applied(rank, held, step)
        self.holds[rank] = held
        if made.step <= self.altered.get(rank, NEVER):  # nobody will see that it was altered
            since = self.altered.pop(rank)
            self.spoilt = min(self.spoilt, since if since < self.step else STEPS)

    def lets_differ(self) -> None:
        self.told += 1
        self.may_differ = True
        is_theirs = self.action == REPORT or self.apart_from is not None
        has_none = not any(x.step for x, _ in self.known[0][:-1])
        again = {*self.altered} & self.odd_before
        is_unknown = any(2 * len(self.odd(rank)) >= len(self.mates(rank)) for rank in self.altered)
        is_right = is_theirs or has_none or again or is_unknown
        self.require(bool(is_right), "it is taken for the script's doing")

    def ends(self, rank: int) -> None:
        """A process that was killed, or has died, is gone."""
        self.dead.discard(rank)
        self.joined[rank] = GONE
        known = self.known[rank]
        kept = e.Kept(known[-1][0], known[-1][0].step, self.step) if known else None
        self.feed(e.WorkerExited(self.incarnation, rank, 1000 + rank, -9, kept=kept))

    def board(self) -> e.BoardSeen:
        none = [0] * len(self.ranks)
        joined = tuple(self.joined[rank] for rank in self.ranks)
        done = [{1: self.step} for _ in self.ranks]
        words = Board(self.number, [max(0, x) for x in joined], done, [False] * len(none))
        steps = (self.step,) * len(none)
        boundary = self.rules.common(self.memory())
        return e.BoardSeen(
            self.incarnation, words, joined, tuple(none), boundary, tuple(none), steps=steps,
            calls=(None,) * len(none), lost=tuple(none),
        )  # fmt: skip

    # ------------------------------------------------------------ the schedule

    def run(self) -> None:
        """Run the schedule; raises Violation."""
        for _ in range(TICKS_MAX):
            if self.stopped or self.step >= STEPS:
                break
            self.tick()
        else:
            raise self.fails("it never ends")
        if not self.stopped:
            self.check_end()

    def tick(self) -> None:
        draws, self.now = self.draws, self.now + 0.001
        due = self.core.next_deadline()
        is_down = all(x == GONE for x in self.joined.values())
        if due is not None and (due <= self.now or (is_down and not self.looks)):
            self.now = max(self.now, due)
            self.feed(e.TimerFired())
        if self.looks and not self.dead:
            self.looks = False
            self.feed(self.board())
        elif self.dead:
            self.ends(draws.choice(sorted(self.dead)))
        elif any(x < 0 for x in self.joined.values()):
            self.mends()
        else:
            self.trains()

    def mends(self) -> None:
        """Replacements join, or die first, or memory is altered again."""
        waiting = [rank for rank in self.ranks if self.joined[rank] == STARTS]
        if not waiting:
            return
        rank, fault = self.draws.choice(waiting), self.draws.random()
        is_quiet = self.step > STEPS - QUIET
        if fault < 0.03 and not is_quiet:
            self.story.append(f"{rank} dies before it has joined")
            self.ends(rank)
        elif fault < 0.06 and not is_quiet:
            self.alter(rank)
        else:
            for one in waiting:
                self.joined[one] = self.number
            for one in self.ranks:
                self.joined[one] = max(self.joined[one], self.number)
            self.feed(self.board())

    def trains(self) -> None:
        draws, is_quiet = self.draws, self.step > STEPS - QUIET
        if not self.step % self.every or self.step == STEPS - 1:
            ranks = [*self.ranks]
            draws.shuffle(ranks)
            for rank in ranks:
                self.copy(rank)
        if draws.random() < 0.5 or is_quiet:
            self.look()
        if self.dead:
            return
        fault = 1.0 if is_quiet or not self.step else draws.random()
        if fault < 0.04:
            self.alter(draws.choice(self.ranks))
        elif fault < 0.08:
            self.story.append("a worker dies")
            return self.ends(draws.choice(self.ranks))
        self.train()
        return None

    def check_end(self) -> None:
        if self.action == HEAL and not self.told:
            self.check_states("it does not end as an undisturbed run")
        if self.action != HEAL:
            self.require(not self.resumed, "all have resumed, and nobody asked for that")
            self.require(bool(self.told or not self.altered), "one is altered, and nobody says so")

    def check_states(self, text: str) -> None:
        if self.apart_from is None and self.spoilt == STEPS:
            self.require(self.holds == undisturbed_of(self, self.step), text)

    def require(self, holds: bool, text: str) -> None:
        if not holds:
            raise self.fails(text)

    def fails(self, text: str) -> Violation:
        return Violation("E9", "\n".join([*self.story[-30:], f"seed {self.seed}: {text}"]))


def undisturbed_of(world: World, step: int) -> dict[int, int]:
    """What each worker of an undisturbed run holds."""
    held = {rank: rank % world.shards + 1 for rank in world.ranks}
    for _ in range(step):
        row = [held[shard] for shard in range(world.shards)]
        means = [_gradient(shard, row) for shard in range(world.shards)]
        held = {rank: (held[rank] * 3 + means[rank % world.shards]) % LARGE for rank in held}
    return held
