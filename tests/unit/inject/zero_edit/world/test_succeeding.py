"""One of two ranks is lost in the middle of its calls, and another process goes on in its place."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ftrun.core.ids import Attempt
from ftrun.core.quorum import Member, Quorum
from ftrun.core.worker.settling import settle
from ftrun.inject.zero_edit.world import succeeding
from ftrun.inject.zero_edit.world.calls import KEPT_BYTES_MAX, Call
from ftrun.inject.zero_edit.world.shell import Shell
from ftrun.process_groups.built import AbortSignal
from ftrun.snapshots.area import Area, Entry
from ftrun.snapshots.group_memory import GroupMemory
from tests.unit.inject.zero_edit.world.test_quorums import Rank
from tests.unit.inject.zero_edit.world.test_shell import DEADLINE_S, summed

LARGE = KEPT_BYTES_MAX // 4 + 1
CALLS = 2


class Keeper:
    """Logs as a worker's keeper does (in_place.py). ``loses_end``: it dies in a second phase."""

    def __init__(self, area: Area) -> None:
        self.area, self.count, self.loses_end = area, 0, False

    def logs(self, call: Call, *, is_half: bool = False) -> None:
        if call.is_logged and not call.is_two:
            return
        if not (self.loses_end and call.is_logged):
            tensors = succeeding.to_log(call, is_half=is_half)
            self.area.log(0, CALLS, self.count, 1, tensors, 1)
            self.count += 1
        call.is_logged = True

    def waits(self, call: Call) -> None:
        """It is live."""

    cannot = differs = waits

    def entries(self, since: int) -> list[Entry]:
        found = [self.area.find(CALLS, number) for number in range(since, self.count)]
        return [entry for entry in found if entry is not None]


class Job:
    """Two ranks, of which number 1 is kept."""

    def __init__(self, store: str, area: Area) -> None:
        self.pool = ThreadPoolExecutor(4)
        self.store = store
        self.members = tuple(Member(str(rank), "a" * 16, (), "") for rank in range(2))
        self.ranks = list(self.pool.map(lambda rank: Rank(rank, store), range(2)))
        self.keeper = Keeper(area)
        for rank in self.ranks:
            rank.world.keeper = self.keeper if rank is self.ranks[1] else Keeper(area)
        self.ranks[0].world.keeper.logs = lambda *_, **__: None
        self.quorum = self.use(1)

    def use(self, number: int) -> Quorum:
        """Both build an attempt, and use it."""
        quorum = Quorum(Attempt(1, number), self.members, self.store, 1)
        build = lambda rank: rank.quorums.build(  # noqa: E731
            quorum, f"quorum-{number}", DEADLINE_S, AbortSignal()
        )
        list(self.pool.map(build, self.ranks))
        for rank in self.ranks:
            rank.quorums.use(quorum)
        return quorum

    def sums(self, size: int) -> list[Future[torch.Tensor]]:
        """Both add up ones."""
        return [self.pool.submit(summed, rank.shell, torch.ones(size)) for rank in self.ranks]

    def is_lost(self, head: Any, bodies: list[bytes], since: int) -> Rank:
        """The connections of rank 1 are gone; returns its successor, which is behind."""
        lost = self.ranks[1]
        assert lost.shell.built is not None
        lost.shell.built.shutdown()
        made = self.ranks[1] = Rank.__new__(Rank)
        made.shell = unconnected(lost.shell)
        made.world = made.shell.world
        made.world.following, made.world.keeper = lost.world.following, self.keeper
        made.quorums = type(lost.quorums)(made.world, made.world._here)
        assert succeeding.go_on(made.world, head, bodies, self.keeper.entries(since))
        made.quorums.succeed(self.quorum, self.quorum.attempt)
        return made


def unconnected(like: Shell) -> Shell:
    """The group of another process with the same seat."""
    old: Any = like.world
    world = type(old)(old._here, old.rank, pytest.fail)
    world.is_open, world.in_set_up, world.is_walking = True, False, True
    limit, label = like.timeout, like.label
    made = Shell(world, like.key, like.seats, like.own, limit, like.devices, label, None)
    world.add(made)
    return made


@pytest.fixture
def job() -> Iterator[Job]:
    memory = GroupMemory.make(1, 64 << 20, range(1), has_results=True)
    area = memory.results(0)
    area.lay_out_logs()
    area.open_log(0, 0)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    found = Job(f"127.0.0.1:{store.port}", area)
    yield found
    for rank in found.ranks:
        if rank.shell.built is not None:
            rank.shell.built.shutdown()
    found.pool.shutdown()
    memory.close()


def test_it_makes_the_logged_calls_alone_and_meets_its_peer_in_the_next_one(job: Job) -> None:
    assert [x.result()[0].item() for x in job.sums(1)] == [2.0, 2.0]
    assert succeeding.is_settled(job.ranks[1].world)
    head, bodies = succeeding.left_of(job.ranks[1].world)
    since = job.keeper.count
    for size in (2, LARGE):
        assert [x.result()[-1].item() for x in job.sums(size)] == [2.0, 2.0]
    waiting = job.pool.submit(summed, job.ranks[0].shell, torch.ones(3))
    made = job.is_lost(head, bodies, since)
    assert succeeding.has_more(made.world)
    for size in (2, LARGE):
        assert summed(made.shell, torch.ones(size))[-1].item() == 2.0
    assert not succeeding.has_more(made.world)
    meets = job.pool.submit(summed, made.shell, torch.ones(3))
    job.use(2)
    assert waiting.result(DEADLINE_S).tolist() == meets.result(DEADLINE_S).tolist() == [2.0] * 3
    assert [x.result(DEADLINE_S)[0].item() for x in job.sums(1)] == [2.0, 2.0]


def test_what_only_the_lost_one_had_goes_from_its_log_to_its_peer(job: Job) -> None:
    assert [x.result()[0].item() for x in job.sums(1)] == [2.0, 2.0]
    head, bodies = succeeding.left_of(job.ranks[1].world)
    since = job.keeper.count
    work: Any = job.ranks[1].shell.allreduce([torch.zeros(1)])
    with job.ranks[1].world.lock:
        work.call.take([torch.full((1,), 5.0)], None)
    made = job.is_lost(head, bodies, since)
    job.use(2)  # before it has come to that call
    assert summed(job.ranks[0].shell, torch.zeros(1)).item() == 5.0
    assert summed(made.shell, torch.zeros(1)).item() == 5.0
    assert [x.result(DEADLINE_S)[0].item() for x in job.sums(1)] == [2.0, 2.0]


def test_what_is_right_at_the_lost_one_alone_goes_to_nobody_else(job: Job) -> None:
    """Its successor has it, and the peer can neither have that nor make the call alone."""
    assert [x.result()[0].item() for x in job.sums(1)] == [2.0, 2.0]
    head, bodies = succeeding.left_of(job.ranks[1].world)
    since, options = job.keeper.count, dist.ScatterOptions()
    work: Any = job.ranks[1].shell.scatter([torch.zeros(1)], [], options)
    with job.ranks[1].world.lock:
        work.call.write([torch.full((1,), 5.0)])
        work.call.ended(work.call.native, None)
    shell = job.is_lost(head, bodies, since).shell
    assert shell.position().bare == {1} and shell.position().begun == 2
    assert settle({0: job.ranks[0].shell.position(), 1: shell.position()}).impossible == (1,)
    again: Any = shell.scatter([own := torch.zeros(1)], [], options)
    assert again.wait() and own.item() == 5.0
    assert shell.position().bare == {1}


@pytest.mark.parametrize("is_known", [False, True])
def test_a_second_phase_that_the_lost_one_has_not_seen_end(job: Job, is_known: bool) -> None:
    """Its result stands if the peer has passed the phase; else both make the call again."""
    assert [x.result()[0].item() for x in job.sums(1)] == [2.0, 2.0]
    head, bodies = succeeding.left_of(job.ranks[1].world)
    since, job.keeper.loses_end = job.keeper.count, True
    if is_known:
        assert [x.result()[-1].item() for x in job.sums(LARGE)] == [2.0, 2.0]
        waiting = job.pool.submit(torch.ones, 1)
    else:
        peer, own = (rank.shell for rank in job.ranks)
        waiting = job.pool.submit(summed, peer, torch.ones(LARGE))
        work: Any = own.allreduce([torch.ones(LARGE)])
        work.call.native.wait()  # so its peer has begun it
        job.keeper.logs(work.call, is_half=True)
    made = job.is_lost(head, bodies, since)
    meets = job.pool.submit(summed, made.shell, torch.ones(LARGE))
    job.use(2)
    assert meets.result(DEADLINE_S)[-1].item() == 2.0
    waiting.result(DEADLINE_S)
    assert [x.result(DEADLINE_S)[0].item() for x in job.sums(1)] == [2.0, 2.0]


def test_other_groups_than_before_are_no_succession(job: Job) -> None:
    world = job.ranks[1].world
    head, bodies = succeeding.left_of(world)
    assert not succeeding.go_on(world, {**head, "another": head["1.0"]}, bodies, [])
