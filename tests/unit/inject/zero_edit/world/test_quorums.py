"""The groups of two ranks follow quorums, and a death finds them at different places."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ftrun.base import clock
from ftrun.base.errors import PeerError
from ftrun.core.ids import NO_ATTEMPT, Attempt
from ftrun.core.quorum import Member, Quorum
from ftrun.core.worker.settling import Counted
from ftrun.inject.zero_edit.world.kept import Sent
from ftrun.inject.zero_edit.world.quorums import MADE_BEFORE, Quorums, _Build
from ftrun.inject.zero_edit.world.shell import Shell
from ftrun.process_groups.built import AbortSignal, BuiltGroup
from ftrun.process_groups.store import StoreClient
from tests.unit.inject.zero_edit.world.test_shell import DEADLINE_S, group, summed


class Standing:
    """Where a rank's Manager stands."""

    next_step = 1
    is_alone = heals_first = in_step = False

    def may_wait(self) -> None:
        """Nobody has asked it to leave."""

    def serve(self) -> None:
        """Nobody heals from it."""

    def release(self, groups: list[BuiltGroup]) -> None:
        """Shut groups down at once."""
        for built in groups:
            built.shutdown()


class Rank:
    """One rank of two with one group."""

    def __init__(self, rank: int, store: str) -> None:
        self.shell: Shell = group(rank, store)
        world: Any = self.shell.world
        world.following = Standing()
        self.world, self.quorums = world, Quorums(world, world._here)

    def is_given(self, value: float) -> None:
        """A rank that is gone now has given it the result of a sum."""
        work: Any = self.shell.allreduce([torch.zeros(1)])
        call = work.call
        with self.world.lock:
            call.take([torch.full((1,), value)], None)


Make = Callable[..., Quorum]


@pytest.fixture
def ranks() -> Iterator[tuple[list[Rank], Make]]:
    """Both, and what connects their groups for a quorum; ``step``: None for a switch."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    address = f"127.0.0.1:{store.port}"
    members = tuple(Member(str(rank), "a" * 16, (), "") for rank in range(2))
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda rank: Rank(rank, address), range(2)))

        def make(number: int, step: int | None, *incarnations: str) -> Quorum:
            each = zip(members, incarnations or ["a" * 16] * 2, strict=True)
            those = tuple(replace(member, incarnation=lives) for member, lives in each)
            quorum = Quorum(Attempt(number, 1), those, address, step)
            build = lambda rank: rank.quorums.build(  # noqa: E731
                quorum, f"quorum-{number}", DEADLINE_S, AbortSignal()
            )
            list(pool.map(build, found))
            return quorum

        yield found, make
        for rank in found:
            assert rank.shell.built is not None
            rank.shell.built.shutdown()


def test_a_death_finds_one_rank_behind_a_boundary_and_one_before_it(
    ranks: tuple[list[Rank], Make],
) -> None:
    """What the first one was given before the boundary, the other one is given, too."""
    (ahead, behind), make = ranks
    first = make(1, 0)
    ahead.quorums.use(first)
    behind.quorums.use(first)
    ahead.is_given(5.0)
    switch = make(2, None)
    ahead.quorums.use(switch)
    ahead.quorums.boundary(1)
    assert ahead.shell.next == 0
    for rank, attempts in ((ahead, (switch,)), (behind, (first, switch))):
        for quorum in attempts:
            rank.quorums.abort(quorum.attempt)
    after = make(3, 1)
    ahead.quorums.use(after)
    behind.quorums.use(after)
    assert summed(behind.shell, torch.zeros(1)).item() == 5.0
    assert ahead.shell.next == behind.shell.next == 0
    with ThreadPoolExecutor(2) as pool:
        sums = pool.map(lambda rank: summed(rank.shell, torch.ones(1)).item(), (ahead, behind))
        assert list(sums) == [2.0, 2.0]


def test_a_group_that_the_script_destroys_meanwhile_is_connected_for_its_peers(
    ranks: tuple[list[Rank], Make], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen at the end of a script: a builder thread ended with a KeyError, and its peers waited."""
    (one, other), make = ranks
    meet = one.quorums._meet

    def meets(*words: Any) -> Any:
        found = meet(*words)
        one.world.destroyed(one.shell)
        return found

    monkeypatch.setattr(one.quorums, "_meet", meets)
    switch, before = make(1, None), other.shell.built
    for rank in (one, other):
        rank.quorums.use(switch)
        rank.quorums.boundary(1)
    assert other.shell.built is not before
    assert one.shell.built is None and len(one.world._old) == 2
    one.shell.built = one.world._old.pop()


@pytest.mark.parametrize("is_in_step", [True, False])
def test_a_newcomer_that_its_peer_waits_for_in_a_step_meets_it_in_its_call(
    ranks: tuple[list[Rank], Make], *, is_in_step: bool
) -> None:
    """Seen with DINO: it went through the step alone, with a sum of its own. Between two steps its
    peer goes on without it, and is joined at the next one."""
    (new, old), make = ranks
    first = make(1, 0)
    for rank in ranks[0]:
        rank.quorums.use(first)
    old.is_given(5.0)  # while the one that is gone was there
    with ThreadPoolExecutor(1) as pool:
        built: Any = old.shell.built
        built.abort()
        held = pool.submit(summed, old.shell, torch.ones(1))
        new.world.is_walking, new.shell.next = True, 0
        old.world.following.in_step = is_in_step
        old.world.following.next_step = 2
        old.quorums.abort(first.attempt)
        second = make(2, 1, "b" * 16, "a" * 16)
        for rank in (old, new):
            rank.quorums.use(second)
        if not is_in_step:
            assert held.result(DEADLINE_S).item() == 2.0  # its own, twice
            new.quorums.boundary(1)
            assert new.world.is_walking
            old.quorums.boundary(2)
            new.quorums.boundary(2)
            return
        given = old.world.since(0, is_over=False)
        assert [len(x) for x in given] == [2, 0], given  # one result, and what both make now
        new.quorums.boundary(1)
        new.world.replay(0, given)
        assert summed(new.shell, torch.zeros(1)).item() == 5.0
        assert summed(new.shell, torch.full((1,), 3.0)).item() == 4.0
        assert held.result(DEADLINE_S).item() == 4.0


def late_group(rank: Rank) -> Shell:
    """A group that one rank has made in training."""
    first = rank.shell
    seats, cpu = tuple(first.seats), torch.device("cpu")
    late = Shell(rank.world, "1.1", seats, first.own, first.timeout, [cpu], "gloo", None)
    rank.world.add(late)
    return late


def test_who_joins_in_a_step_lacks_a_group_that_its_peers_have_made_in_training(
    ranks: tuple[list[Rank], Make],
) -> None:
    """Seen 1 of 28 times: the newcomer answered a broadcast of that group by itself, for which its
    peer waited after the step, and both stood still without a word."""
    (new, old), make = ranks
    first = make(1, 0)
    for rank in ranks[0]:
        rank.quorums.use(first)
    late_group(old).is_stopped = True  # the one that is gone had made it, too
    reasons = list[str]()
    old.world.asks, old.world.needs_replicas = reasons.append, True
    old.world.following.in_step = True
    second = replace(first, attempt=Attempt(2, 1), step=1)
    shell = new.shell
    position = Counted(shell.position(), shell.round, shell.base).encode()
    sent = Sent(True, NO_ATTEMPT, NO_ATTEMPT, 1, False, {shell.key: [position, False]})
    with closing(StoreClient(first.store, clock.now() + DEADLINE_S)) as client:
        client.set("ftrun/second/at/0", sent.encode())
    with pytest.raises(PeerError, match=MADE_BEFORE):
        old.quorums.build(second, "second", DEADLINE_S, AbortSignal())
    assert reasons == [old.world.why_again] != [""]


def test_so_it_does_if_it_makes_that_on_its_way(ranks: tuple[list[Rank], Make]) -> None:
    (new, _), make = ranks
    told = {1: Sent(False, NO_ATTEMPT, NO_ATTEMPT, 1, False, {"1.0": [], "1.1": []})}
    made = _Build(make(1, None), "", shells=dict(new.world.shells), told=told)
    late_group(new)
    new.quorums._are_known(made)
    assert new.world.why_again == MADE_BEFORE and "1.1" in new.world.made_before
