"""Which collectives are complete after a death: a table, and groups of ranks that die at random.

The random part plays ranks that go through the same calls, each in four phases, with deaths at any
moment and survivors that settle and go on. Ranks are replaced too, by others that go on from an
older position and a log. Planted bugs show that it finds what it is for.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings

from ftrun.core.ids import NO_ATTEMPT, Attempt
from ftrun.core.worker.settling import (
    Alike,
    Counted,
    Position,
    Settled,
    count_alike,
    live_from,
    settle,
)

Settle = Callable[[Mapping[int, Position]], Settled]
Live = Callable[[Mapping[int, Position]], int | None]


def at(begun: int, since: int = 0, **numbers: set[int]) -> Position:
    return Position(begun, since, **{name: frozenset(x) for name, x in numbers.items()})


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        ({0: at(3, 3), 1: at(3, 3)}, Settled()),
        ({0: at(1), 1: at(1)}, Settled(again=(0,))),
        ({0: at(1, kept={0}), 1: at(1)}, Settled({0: (0, (1,))})),
        ({0: at(0), 1: at(1), 2: at(1, kept={0})}, Settled({0: (2, (0, 1))})),  # a gift for 0
        ({0: at(1, second={0}), 1: at(1, known={0})}, Settled(stands=frozenset({0}))),
        ({0: at(1, second={0}), 1: at(1)}, Settled(again=(0,))),
        ({0: at(1, second={0}), 1: at(1, second={0})}, Settled(again=(0,))),
        ({0: at(1, bare={0}), 1: at(1)}, Settled(impossible=(0,))),
        ({0: at(1), 1: at(1, known={0})}, Settled(impossible=(0,))),  # it breaks the second phase
        ({0: at(4, 2, kept={3}), 1: at(3, 1, kept={1})}, Settled({3: (0, (1,))}, again=(2,))),
        ({0: at(2, kept={0, 1}), 1: at(2, kept={0})}, Settled({1: (0, (1,))})),
        ({0: at(2, 2), 1: at(1, kept={0})}, Settled()),  # 1 is complete everywhere
    ],
)
def test_what_becomes_of_a_call(positions: dict[int, Position], expected: Settled) -> None:
    assert settle(positions) == expected
    told = {rank: Position.decode(position.encode()) for rank, position in positions.items()}
    assert settle(told) == expected


@pytest.mark.parametrize(
    ("positions", "joined", "expected"),
    [
        ({0: at(0, -1, kept={-1}), 1: at(-1, -1), 2: at(0)}, {2}, Settled({-1: (0, (1,))})),
        (
            {0: at(1, -1, kept={-1}), 1: at(-1, -1), 2: at(1)},
            {2},
            Settled({-1: (0, (1,))}, again=(0,)),
        ),
        ({0: at(0, -1), 1: at(0)}, {1}, Settled(impossible=(-1,))),
        ({0: at(0, -1), 1: at(0, -1)}, set(), Settled(again=(-1,))),
        ({0: at(2), 1: at(2, 1, kept={1})}, {0, 1}, Settled({1: (1, (0,))})),
    ],
)
def test_calls_before_ranks_have_joined(
    positions: dict[int, Position], joined: set[int], expected: Settled
) -> None:
    assert settle(positions, joined) == expected


def test_all_count_since_the_last_boundary_at_which_ranks_have_joined() -> None:
    before, since = Attempt(1, 1), Attempt(2, 1)
    told = {
        0: Counted(at(1, -2, kept={-2}), since, 7),
        1: Counted(at(6, 5, kept={5}, known={4}, second={3}, bare={2}), before, None),
        2: Counted(at(1), since, None),
    }
    told = {rank: Counted.decode(counted.encode()) for rank, counted in told.items()}
    behind = at(-1, -2, kept={-2}, known={-3}, second={-4}, bare={-5})
    positions = {0: at(1, -2, kept={-2}), 1: behind, 2: at(1)}
    assert count_alike(told) == Alike(positions, frozenset({2}), since, 7)
    del told[0]  # nobody is left that knows
    assert count_alike(told) == Alike({1: at(0), 2: at(1)}, frozenset({2}), since, None)


def told(*positions: Position, since: Attempt = NO_ATTEMPT) -> dict[int, Counted]:
    return {rank: Counted(position, since, None) for rank, position in enumerate(positions)}


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ({}, {}),
        ({"a": told(at(3, 3), at(3, 3))}, {"a": 3}),  # they wait for something else
        ({"a": told(at(3, 2), at(3, 2)), "b": told(at(1), at(1))}, {"a": 2, "b": 0}),
        ({"a": told(at(3, 2, kept={2}), at(3, 2))}, {"a": 3}),
        ({"a": told(at(3, 2, kept={2}), at(2, 2))}, None),  # 1 has not begun what is complete
        ({"a": told(at(2, kept={1}), at(2, kept={1}))}, None),  # 1 is complete, and 0 is not
        ({"a": told(at(1)), "b": told(at(2, kept={1}), at(2))}, None),
        ({"a": {**told(at(1), at(1)), 2: Counted(at(4), Attempt(2, 1), None)}}, None),
        ({"a": {**told(at(5)), 1: Counted(at(1), Attempt(2, 1), 5)}}, {"a": 0}),  # counted alike
    ],
)
def test_from_where_newcomers_are_live(
    groups: dict[str, dict[int, Counted]], expected: dict[str, int] | None
) -> None:
    assert live_from({0: 7, 1: 7}, groups) == expected


def test_survivors_that_are_not_at_one_step_are_joined_at_the_next_one() -> None:
    assert live_from({0: 7, 1: 6}, {}) is None


# ---------------------------------------------------------------- ranks that die


@dataclass
class Rank:
    """One rank: how many calls it has begun, and what it knows of each."""

    begun: int = 0
    since: int = 0
    results: dict[int, frozenset[int]] = field(default_factory=dict)  # whose inputs each has
    kept: set[int] = field(default_factory=set)
    known: set[int] = field(default_factory=set)
    bare: set[int] = field(default_factory=set)
    second: set[int] = field(default_factory=set)
    gifts: dict[int, frozenset[int]] = field(default_factory=dict)
    halves: dict[int, frozenset[int]] = field(default_factory=dict)  # gifts in the second phase
    waits: dict[int, frozenset[int]] = field(default_factory=dict)  # those that it has come to
    log: dict[int, frozenset[int]] = field(default_factory=dict)
    passed: set[int] = field(default_factory=set)  # second phases, in the log too
    then: tuple[int, int, dict[int, frozenset[int]], set[int], set[int], set[int]] = (
        0, 0, {}, set(), set(), set(),
    )  # fmt: skip

    def position(self, bug: str = "") -> Position:
        recent = {number for number in self.kept if number >= self.since}
        second = self.second | self.waits.keys()
        parts = (frozenset(recent), frozenset(self.known), frozenset(second), frozenset(self.bare))
        found = Position(self.begun, self.since, *parts)
        twos = {number for number in self.gifts if number % 3 == 1}
        kept, halves = self.gifts.keys() - twos, set(self.halves)
        bare = set() if bug == "gives what is right for it alone" else {*filter(is_by_rank, kept)}
        kept = kept - bare
        match bug:
            case "tells of no log":
                return found
            case "takes a half for the whole":
                return found.holding(kept, twos | halves, (), bare)
            case "has begun none":
                return replace(found.holding(kept, twos, halves, bare), begun=self.begun)
        return found.holding(kept, twos, halves, bare)

    def is_left(self) -> None:
        """A generation is made here."""
        known = dict(self.results), set(self.kept), set(self.known), set(self.bare)
        self.then = self.begun, self.since, *known

    def successor(self, bug: str = "") -> Rank:
        """The one that takes its place."""
        begun, since, results, kept, known, bare = self.then
        log = {number: x for number, x in self.log.items() if number >= begun}
        if bug == "logs what is under way":
            log |= {
                number: frozenset({0}) for number in range(begun, self.begun) if number not in log
            }
        is_half = {number for number in log if number % 3 == 1 and number not in self.passed}
        gifts = {number: x for number, x in log.items() if number not in is_half}
        halves = {number: log[number] for number in is_half}
        those = set(kept), set(known), set(bare)
        made = Rank(begun, since, dict(results), *those, set(), gifts, halves)
        made.log, made.passed, made.then = dict(self.log), set(self.passed), self.then
        return made


def is_by_rank(number: int) -> bool:
    """Whether it gives each rank another result, for which the script waits later."""
    return number % 15 == 5


class Fell(Exception):
    """A call cannot be settled, by rule: all begin again."""


class Group:
    """Ranks that make the same calls, by their numbers in turn: a small one that all must come to,
    one with a second phase, and a broadcast, which its root has completed at once. Some of the
    latter are scatters."""

    def __init__(self, count: int, rng: random.Random, bug: str = "") -> None:
        self.bug = bug
        self.ranks = {rank: Rank() for rank in range(count)}
        self.rng = rng
        self.inputs: dict[int, frozenset[int]] = {}  # of a call that is complete somewhere
        self.issued: dict[int, set[int]] = {}  # on the connections that there are now, by call
        self.size = count

    def step(self) -> None:
        """One rank goes on by one phase, if it can."""
        number_of = {rank: self._under_way(rank) for rank in self.ranks}
        rank = self.rng.choice(sorted(self.ranks))
        mine, number = self.ranks[rank], number_of[rank]
        if number is None:
            number = mine.begun
            if self.rng.random() < 0.3:
                mine.is_left()
            mine.begun += 1
            if number in mine.halves:
                mine.waits[number] = mine.halves.pop(number)
            elif number in mine.gifts:
                self._complete(rank, number, mine.gifts.pop(number), is_over=True)
            else:
                self.issued.setdefault(number, set()).add(rank)
            return
        if number in mine.waits:
            return
        if number in mine.second:
            if all(number in other.second | other.known for other in self.ranks.values()):
                self._ends(mine, number)
            return
        needed = self.ranks if number % 3 < 2 else {self._root(number): ()}
        if self.issued.get(number, set()) >= set(needed):
            self._complete(rank, number, self.inputs.setdefault(number, frozenset(needed)))

    def _root(self, number: int) -> int:
        root = number % self.size
        return root if root in self.ranks else min(self.ranks)

    def _under_way(self, rank: int) -> int | None:
        mine = self.ranks[rank]
        number = mine.begun - 1
        is_over = number < mine.since or number in mine.kept | mine.known | mine.bare
        return None if number < 0 or is_over else number

    def _ends(self, mine: Rank, number: int) -> None:
        """The second phase is over."""
        mine.second.discard(number)
        mine.known.add(number)
        mine.passed.add(number)
        self._passed(mine, number)

    def _complete(
        self, rank: int, number: int, inputs: frozenset[int], *, is_over: bool = False
    ) -> None:
        mine = self.ranks[rank]
        assert number not in mine.results or number in mine.second, "made twice"
        if is_by_rank(number):
            assert not is_over or -1 - rank in inputs, "another rank's part"
            inputs |= {-1 - rank}
        mine.results[number] = mine.log[number] = inputs
        if number % 3 == 1 and is_over:
            self._ends(mine, number)
            return
        if number % 3 == 1:
            mine.second.add(number)
            return
        plants = self.bug == "gives what is right for it alone"
        (mine.bare if is_by_rank(number) and not plants else mine.kept).add(number)
        if number % 3 == 0:
            self._passed(mine, number)

    def _passed(self, mine: Rank, number: int) -> None:
        """All have come to this call: all before it are complete everywhere."""
        mine.since = number
        mine.kept = {x for x in mine.kept if x >= number}
        mine.known = {x for x in mine.known if x >= number}
        mine.bare = {x for x in mine.bare if x >= number}

    def die(self, rank: int, decide: Settle) -> None:
        """A rank is gone; the others settle."""
        del self.ranks[rank]
        self.settle(decide)

    def is_joined(self, rank: int, live: Live) -> bool:
        """A newcomer is in the place of a rank that is gone, if it can join where the others are:
        it is given what one of them was given before that."""
        first = live({of: mine.position() for of, mine in self.ranks.items()})
        self.settle(settle)
        if first is None:
            return False
        donor = self.ranks[self.rng.choice(sorted(self.ranks))]
        given = {number: donor.results[number] for number in range(donor.begun) if number < first}
        assert len(given) == first, "its donor has not made all of them"
        self.ranks[rank] = Rank(first, first, given)
        return True

    def replace(self, rank: int, decide: Settle) -> None:
        """A rank is gone, and another one takes its place; all settle when that has repeated some
        of its calls."""
        mine = self.ranks[rank] = self.ranks[rank].successor(self.bug)
        for _ in range(self.rng.randrange(6)):
            if self._under_way(rank) is None and (mine.begun in mine.gifts):
                number = mine.begun
                mine.begun += 1
                self._complete(rank, number, mine.gifts.pop(number), is_over=True)
        if self._under_way(rank) is None and mine.begun in mine.halves and self.rng.random() < 0.5:
            mine.waits[mine.begun] = mine.halves.pop(mine.begun)
            mine.begun += 1
        self.settle(decide)

    def settle(self, decide: Settle) -> None:
        told = {rank: mine.position(self.bug) for rank, mine in self.ranks.items()}
        settled = decide(told)
        assert all(map(is_by_rank, settled.impossible))
        if settled.impossible:
            raise Fell
        for number in settled.again:
            self.inputs.pop(number, None)
        self.issued = {
            number: {rank for rank, mine in self.ranks.items() if mine.begun > number}
            for number in settled.again
        }
        for rank, mine in self.ranks.items():
            for number in settled.again:
                mine.second.discard(number)
                mine.waits.pop(number, None)
                mine.halves.pop(number, None)
                mine.gifts.pop(number, None)
                mine.results.pop(number, None)
            for number in sorted(settled.stands):
                if number in mine.waits:
                    mine.results[number] = mine.waits.pop(number)
                    self._ends(mine, number)
                elif number in mine.halves:
                    mine.gifts[number] = mine.halves.pop(number)
                    mine.passed.add(number)
                elif number in mine.second:
                    self._ends(mine, number)
            for number, (server, lacking) in sorted(settled.gives.items()):
                if rank not in lacking:
                    continue
                server_has = self.ranks[server]
                result = {**server_has.gifts, **server_has.results}[number]
                if number < mine.begun:
                    self._complete(rank, number, result, is_over=is_by_rank(number))
                else:
                    mine.gifts[number] = result


def play(seed: int, decide: Settle = settle, *, bug: str = "", replaces: bool = False) -> str:
    """One schedule; what went wrong, or ""."""
    rng = random.Random(seed)
    group = Group(rng.choice([2, 3, 4]), rng, bug)
    deaths = sorted(rng.randrange(60 + 90 * replaces) for _ in range(len(group.ranks) - 1))
    try:
        for moment in range(240):
            if deaths and moment == deaths[0] and len(group.ranks) > 1:
                deaths.pop(0)
                lose = group.replace if replaces and rng.random() < 0.8 else group.die
                lose(rng.choice(sorted(group.ranks)), decide)
            group.step()
    except Fell:
        return ""
    except (AssertionError, KeyError) as error:
        return f"seed {seed}: {error!r}"
    return judged(group, seed)


def judged(group: Group, seed: int) -> str:
    """What is wrong at the end of a schedule, or ""."""
    ranks = list(group.ranks.values())
    for number in range(min(rank.begun for rank in ranks) - 1):
        found = {rank.results.get(number) for rank in ranks}
        if len(found) > 1 and not is_by_rank(number):
            return f"seed {seed}: call {number} has other results at two ranks: {found}"
    if min(rank.begun for rank in ranks) < 4:
        return f"seed {seed}: they stand still"
    return ""


def test_a_successor_goes_on_where_the_lost_rank_was() -> None:
    schedules = 20 * settings().max_examples
    assert [text for seed in range(schedules) if (text := play(seed, replaces=True))] == []


@pytest.mark.parametrize(
    "bug",
    [
        "tells of no log",
        "takes a half for the whole",
        "has begun none",
        "logs what is under way",
        "gives what is right for it alone",
    ],
)
def test_planted_bugs_of_a_successor_are_found(bug: str) -> None:
    assert any(play(seed, bug=bug, replaces=True) for seed in range(2000))


def _live(positions: Mapping[int, Position]) -> int | None:
    told = {rank: Counted(position, NO_ATTEMPT, None) for rank, position in positions.items()}
    found = live_from(dict.fromkeys(told, 0), {"a": told})
    return None if found is None else found["a"]


def _live_without_those_behind(positions: Mapping[int, Position]) -> int | None:
    settled = settle(positions)
    return min(settled.again, default=max(position.begun for position in positions.values()))


def _live_after_what_is_begun(positions: Mapping[int, Position]) -> int | None:
    return max(position.begun for position in positions.values())


def _live_where_the_slowest_is(positions: Mapping[int, Position]) -> int | None:
    return min(position.begun for position in positions.values())


def join(seed: int, live: Live = _live) -> str:
    """One schedule in which a rank dies, and another one joins in its place where the others are;
    what went wrong, "", or "later" if it has to wait for the next step."""
    rng = random.Random(seed)
    group = Group(rng.choice([2, 3, 4]), rng)
    is_joined = False
    try:
        for _ in range(rng.randrange(60)):
            group.step()
        dead = rng.choice(sorted(group.ranks))
        del group.ranks[dead]
        is_joined = group.is_joined(dead, live)
        for _ in range(180):
            group.step()
    except Fell:
        return "later"
    except (AssertionError, KeyError) as error:
        return f"seed {seed}: {error!r}"
    return judged(group, seed) or ("" if is_joined else "later")


def test_a_newcomer_meets_its_peers_in_the_first_call_that_is_not_complete() -> None:
    found = [join(seed) for seed in range(20 * settings().max_examples)]
    assert {*found} == {"", "later"}
    assert found.count("") > len(found) // 2


@pytest.mark.parametrize(
    "bug",
    [_live_without_those_behind, _live_after_what_is_begun, _live_where_the_slowest_is],
)
def test_planted_bugs_of_where_newcomers_join_are_found(bug: Live) -> None:
    assert any(join(seed, bug) not in ("", "later") for seed in range(1000))


def test_survivors_have_the_same_results() -> None:
    schedules = 10 * settings().max_examples
    assert [text for seed in range(schedules) if (text := play(seed, settle))] == []


def _gives_to_nobody_new(positions: Mapping[int, Position]) -> Settled:
    """A rank that has not come to the call is no rank that lacks it."""
    settled = settle(positions)
    gives = {
        number: (server, tuple(r for r in lacking if positions[r].begun > number))
        for number, (server, lacking) in settled.gives.items()
    }
    return replace(settled, gives=gives)


def _makes_all_again(positions: Mapping[int, Position]) -> Settled:
    """What one rank has completed is made again by the others."""
    settled = settle(positions)
    return replace(settled, gives={}, again=tuple(sorted({*settled.again, *settled.gives})))


def _second_phase_is_enough(positions: Mapping[int, Position]) -> Settled:
    """Who is in the second phase takes it for passed."""
    settled = settle(positions)
    own = {x for x in settled.again if any(x in p.second for p in positions.values())}
    again = tuple(x for x in settled.again if x not in own)
    return replace(settled, stands=settled.stands | own, again=again)


def _forgets_the_second_phase(positions: Mapping[int, Position]) -> Settled:
    """A result that all have is made again, because one has not seen the second phase end."""
    settled = settle(positions)
    again = tuple(sorted({*settled.again, *settled.stands}))
    return replace(settled, stands=frozenset(), again=again)


def _only_the_lowest_counts(positions: Mapping[int, Position]) -> Settled:
    """Where the lowest rank is, all are."""
    return settle(
        {min(positions): positions[min(positions)], max(positions): positions[max(positions)]}
    )


@pytest.mark.parametrize(
    "bug",
    [
        _gives_to_nobody_new,
        _makes_all_again,
        _second_phase_is_enough,
        _forgets_the_second_phase,
        _only_the_lowest_counts,
    ],
)
def test_planted_bugs_are_found(bug: Settle) -> None:
    assert any(play(seed, bug) for seed in range(1000))
