"""Whether all go on after a mend: schedules of ranks that compute, wait and are stopped, and bugs.

Each rank makes the calls of one program; a call ends at a rank once all members have begun it, and
a broadcast once the first member has. In
some schedules one rank makes a call too many or too few, so that the calls of a group cannot meet.
In some the group is one of several replicas.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import settings

from ftrun.core.replay import afterwards, mending
from ftrun.core.replay.afterwards import STEPS, Afterwards, Apart, Stand, Waits
from ftrun.core.replay.mending import Decree, Mended, Mending
from ftrun.core.replay.settling import Board, Generation

SCHEDULES, LIMIT_S, TICK_S = 100, 20.0, 0.5
SAYS_S, APART_S = 3.0, mending.APART_S
"""It is said and looked at so late at most."""
KINDS = ("allreduce", "barrier", "broadcast")
Program = list[tuple[int, str]]


@dataclass
class Rank:
    """``at``: its place in its program; ``works_s``: so long it computes before its next call."""

    program: Program
    members: Mapping[int, Sequence[int]]
    at: int = 0
    works_s: float = 0.0
    stopped_s: float = 0.0
    is_in: bool = False
    said_at: float = 0.0
    said: Waits | None = None

    def begun(self, group: int) -> list[str]:
        until = self.at + self.is_in
        return [kind for of, kind in self.program[:until] if of == group]

    def done(self) -> dict[int, int]:
        made = self.program[: self.at]
        return {group: sum(of == group for of, _ in made) for group in self.members}


@dataclass
class World:
    """``shift``: of the program of one rank, from ``wrong_from`` on; 0: none is wrong.

    ``replicas``: that train together. ``moved_at``: when a rank has begun or ended a call;
    ``stopped_at``: when one was stopped.
    """

    rng: random.Random
    shift: int
    replicas: int = 1
    now: float = 100.0
    moved_at: float = 100.0
    stopped_at: float = 100.0

    def __post_init__(self) -> None:
        ranks = self.rng.randint(2, 4)
        groups: dict[int, Sequence[int]] = {7: range(ranks)}
        if ranks > 2 and self.rng.random() < 0.5:
            groups[9] = range(2)
        self.calls = self.rng.randint(1, 4)  # of a step
        step = [(self.rng.choice([*groups]), self.rng.choice(KINDS)) for _ in range(self.calls)]
        step[0] = 7, step[0][1]
        whole = step * (STEPS + 1)
        self.ranks = []
        for rank in range(ranks):
            own = {group: members for group, members in groups.items() if rank in members}
            self.ranks.append(Rank([x for x in whole if x[0] in own], own))
        if self.shift:
            other = self.rng.choice(self.ranks)
            at = self.rng.randrange(self.calls if len(groups) == 1 else 1)
            wrong = other.program[:at] + other.program[at + 1 :]
            other.program = wrong if self.shift < 0 else [(7, "gather"), *other.program]
        self.mending = Mending(60.0, replicas=self.replicas, rejoin_s=9.0, hang_s=LIMIT_S)
        assert self.mending.died(0, Generation(1, 0), self.now) == Decree(1)
        none = [0] * ranks
        board, joined = Board(1, none, [{}] * ranks, [False] * ranks), [1] * ranks
        found = self.mending.look(board, joined, none, self.now, (), self.steps())
        assert isinstance(found, Mended)

    def steps(self) -> list[int]:
        return [(STEPS + 1) * x.at // len(x.program) for x in self.ranks]

    def tick(self) -> Stand | None:
        self.now += TICK_S
        for rank in self.ranks:
            if rank.stopped_s > 0:
                rank.stopped_s -= TICK_S
                self.stopped_at = self.now
                continue
            if self.rng.random() < 0.004:
                rank.stopped_s = self.rng.choice((2.0, 10.0, 3 * LIMIT_S))
            self._goes_on(rank)
            if self.now - rank.said_at >= 1.0:
                group, kind = rank.program[rank.at] if rank.is_in else (0, "")
                number = rank.done()[group] if rank.is_in else -1
                rank.said, rank.said_at = Waits(group, number, kind, 0, 0.0), self.now
        is_over = [rank.at == len(rank.program) for rank in self.ranks]
        done = [rank.done() for rank in self.ranks]
        said = [
            None if x.said is None else replace(x.said, age_s=self.now - x.said_at)
            for x in self.ranks
        ]
        board = Board(1, [], done, is_over)
        return self.mending.look_after(board, self.steps(), said, self.now)

    def play(self) -> list[Stand | None]:
        """Until all have gone on, or nothing has moved for so long that nothing will."""
        found = []
        while self.mending.is_watched and self.now - self.moved_at < 20 * LIMIT_S:
            found.append(self.tick())
        return found

    def _goes_on(self, rank: Rank) -> None:
        if rank.at == len(rank.program):
            return
        if not rank.is_in:
            rank.works_s -= TICK_S
            rank.is_in = rank.works_s <= 0
            self.moved_at = self.now if rank.is_in else self.moved_at
            return
        group, _ = rank.program[rank.at]
        number = rank.done()[group]
        members = rank.members[group]
        needed = members[:1] if rank.program[rank.at][1] == "broadcast" else members
        peers = [rank.begun(group), *(self.ranks[member].begun(group) for member in needed)]
        kinds = {own[number] if number < len(own) else None for own in peers}
        if len(kinds) == 1 and self.rng.random() < 0.7:
            rank.at, rank.is_in, self.moved_at = rank.at + 1, False, self.now
            rank.works_s = self.rng.choice((0.0, 0.5, 5.0, 3 * LIMIT_S))


def play(seed: int) -> None:
    """One schedule.

    Raises:
        AssertionError: a group is given up that goes on, or one that cannot is not.
    """
    rng = random.Random(seed)
    world = World(rng, rng.choice((0, 0, -1, 1)), rng.choice((1, 1, 2)))
    found = world.play()
    stands = [x for x in found if x is not None and not isinstance(x, Apart)]
    is_one, is_over = world.replicas == 1, not world.mending.is_watched
    assert len(stands) <= is_one, "people are told once"
    gave_up = any(isinstance(x, Apart) for x in found)
    has_gone_on = min(world.steps()) >= 2
    assert not (gave_up and not world.shift), "one that lives is given up"
    assert gave_up or is_over or stands or not is_one, "nobody is told"
    assert gave_up or has_gone_on == is_over, "not all have gone on"
    limit_s = LIMIT_S if is_one else APART_S
    is_late = gave_up and world.now - max(world.moved_at, world.stopped_at) > limit_s + SAYS_S
    assert not is_late, "it is found late"


def test_no_schedule_is_judged_wrongly() -> None:
    for seed in range(settings().max_examples):
        play(seed)


PLANTED: dict[str, tuple[object, str, object]] = {
    "what a stopped worker has said counts": (Waits, "is_fresh", True),
    "nobody is told": (afterwards, "Stand", lambda *_: None),
    "it is over after a call": (afterwards, "STEPS", 0),
    "of several replicas it is found as late": (mending, "APART_S", LIMIT_S),
    "of several replicas nobody looks": (
        Mending,
        "is_watched",
        property(lambda self: self._after is not None and self.replicas == 1),
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_bugs_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*PLANTED[name])
    with pytest.raises(AssertionError):
        for seed in range(SCHEDULES):
            play(seed)


def test_calls_that_cannot_meet_are_given_up_in_most_schedules() -> None:
    """In the others a rank of another group waits, which is told."""
    apart, schedules = 0, settings().max_examples
    for seed in range(schedules):
        world = World(random.Random(seed), 1)
        apart += any(isinstance(x, Apart) for x in world.play())
    assert apart > schedules / 2


def test_some_members_are_not_enough() -> None:
    """The third one may come to the call that both wait for."""
    watch, done = Afterwards([3] * 3, 20.0, 20.0), [{7: 5}] * 3
    calls = Waits(7, 5, "barrier", 0, 0.5), Waits(7, 6, "barrier", 0, 0.5), None
    for now in (1.0, 21.0):
        found = watch.look(Board(1, [1] * 3, done, [False] * 3), [3] * 3, calls, now)
    assert type(found) is Stand


def look(watch: Afterwards, now: float, *calls: Waits | None, done: int = 5) -> Stand | None:
    board = Board(1, [1, 1], [{7: done}, {7: 5}], [False, False])
    return watch.look(board, [3, 3], calls, now)


def test_one_call_of_unlike_sizes() -> None:
    watch = Afterwards([3, 3], 20.0, 20.0)
    calls = Waits(7, 5, "broadcast", 8, 0.5), Waits(7, 5, "broadcast", 64, 0.5)
    assert look(watch, 1.0, *calls) is None
    assert look(watch, 11.0, *calls, done=4) is None, "one has moved"
    assert look(watch, 31.0, *calls, done=4) == Apart(30.0, calls, 7)
    assert watch.is_over


def test_all_in_one_call_are_told_and_waited_for() -> None:
    watch = Afterwards([3, 3], 20.0, 20.0)
    calls = Waits(7, 5, "barrier", 0, 0.5), Waits(7, 5, "barrier", 0, 0.5)
    assert look(watch, 1.0, *calls) is None
    assert look(watch, 21.0, *calls) == Stand(20.0, calls)
    assert look(watch, 61.0, *calls) is None
    assert not watch.is_over


def test_whoever_computes_is_no_reason_for_words() -> None:
    watch = Afterwards([3, 3], 20.0, 20.0)
    assert look(watch, 1.0, None, Waits(0, -1, "", 0, 0.5)) is None
    assert look(watch, 90.0, None, Waits(0, -1, "", 0, 0.5)) is None
