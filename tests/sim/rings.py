"""Process groups and control groups as objects: they build, reduce, vote, break and hang.

A ring's reduction takes a contribution of every member: each member's n-th with the n-th of the
others. Every member completes by itself. When a member dies in the middle, some have the result,
some get an error, and some wait forever (until they are aborted). Sums are real sums with their
contributors and tags, so that C3 and C4 are checked and not assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ftrun.core import messages as m
from ftrun.core.data.spans import Spans
from ftrun.core.ids import Attempt, Tag, WorkerKey
from ftrun.core.quorum import Quorum
from ftrun.core.worker import events as e
from ftrun.core.worker.comparison import USUAL, Shape
from tests.sim.actor import BUILD_TIMEOUT_S
from tests.sim.violation import require

if TYPE_CHECKING:
    from tests.sim.worker import Worker
    from tests.sim.world import World


@dataclass(frozen=True, slots=True)
class Contribution:
    """One member's part in one reduction. ``base``: the content it was computed from.

    ``drawn``: the samples it was computed from. ``refused``: see refusals.py.

    ``counts`` is False for zeros: a healing rank, a spare.
    """

    key: WorkerKey
    tag: Tag
    index: int
    base: int
    value: int
    counts: bool
    shape: Shape = USUAL
    drawn: Spans = ()
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """The sum of a reduction, with its contributions."""

    attempt: Attempt
    parts: tuple[Contribution, ...]

    @property
    def total(self) -> int:
        """The sum of all contributions that count."""
        return sum(part.value for part in self.parts if part.counts)


class Reduction:
    """One operation of a worker's step. ``final``: the result handed out, and its divisor."""

    def __init__(
        self,
        batched: bool,
        closes: bool,
        base: int,
        value: int,
        shape: Shape,
        drawn: Spans = (),
        refused: str = "",
    ) -> None:
        self.refused = refused
        self.shape = shape
        self.drawn = drawn
        self.batched = batched
        self.closes = closes
        self.base = base
        self.value = value
        self.buffer: Result | None = None
        self.final: tuple[Result, int] | None = None
        self.released = False


@dataclass(slots=True)
class _Round:
    parts: dict[int, Contribution] = field(default_factory=dict)
    waiting: dict[int, int] = field(default_factory=dict)  # rank → the worker's index
    result: Result | None = None
    hurt: bool = False  # a member left before it had the result: others may lack its bytes


class End:
    """One member's end of a ring."""

    def __init__(self, ring: Ring, worker: Worker, rank: int) -> None:
        self.ring = ring
        self.worker = worker
        self.rank = rank
        self.built = False
        self.gone = False
        self.broken = False
        self.launched = 0

    @property
    def size(self) -> int:
        """The number of members."""
        return self.ring.size


class Ring:
    """The process group of one attempt and group_rank."""

    def __init__(self, world: World, attempt: Attempt, size: int) -> None:
        self.world = world
        self.attempt = attempt
        self.size = size
        self.ends: dict[int, End] = {}
        self._reductions: dict[int, _Round] = {}

    def join(self, worker: Worker, rank: int, store_lives: bool) -> End:
        """Begin to build; Built or BuildFailed follows, unless the end leaves first."""
        world, rng = self.world, self.world.rng
        end = self.ends[rank] = End(self, worker, rank)
        if not store_lives:
            world.at(rng.uniform(0.0, 0.2), worker, self._fail_build, end, "the store is gone")
            return end
        world.at(BUILD_TIMEOUT_S, worker, self._fail_build, end, "timeout")
        if len(self.ends) == self.size and not any(other.gone for other in self.ends.values()):
            at_all = world.faults.strikes(world, "build_failure_at_all")
            for other in self.ends.values():
                delay_s = rng.uniform(0.002, 0.05)
                if at_all or world.faults.strikes(world, "build_failure"):
                    world.at(delay_s, other.worker, self._fail_build, other, "build failure")
                else:
                    world.at(delay_s, other.worker, self._finish_build, other)
        return end

    def vanish(self, end: End) -> None:
        """The end's machine is gone: its peers wait for bytes, without an error."""
        end.gone = True
        for reduction in self._reductions.values():
            reduction.hurt |= reduction.waiting.pop(end.rank, None) is not None

    def leave(self, end: End) -> None:
        """The end aborts, shuts down or dies: its peers may notice, or hang."""
        if end.gone:
            return
        end.gone = True
        world, rng = self.world, self.world.rng
        for peer in self.ends.values():
            if peer.gone or peer.broken:
                continue
            peer.broken = True
            if not peer.built and rng.random() < 0.5:
                delay_s = rng.uniform(0.001, 0.1)
                world.at(delay_s, peer.worker, self._fail_build, peer, "a peer left")
            for number, reduction in self._reductions.items():
                if peer.rank in reduction.waiting and reduction.result is None:
                    self._fail_or_hang(peer, number)
        for reduction in self._reductions.values():
            index = reduction.waiting.pop(end.rank, None)
            reduction.hurt |= index is not None
            if index is not None and end.worker.alive:
                failed = e.OperationFailed(self.attempt, index, "aborted")
                world.at(rng.uniform(0.0, 0.003), end.worker, end.worker.feed, failed)

    def launch(self, end: End, index: int, part: Contribution) -> None:
        """Issue this end's next reduction."""
        number = end.launched
        end.launched += 1
        if part.refused:
            delay_s = self.world.rng.uniform(0.0002, 0.01)
            self.world.at(delay_s, end.worker, self._refuse, end, index)
            return
        reduction = self._reductions.setdefault(number, _Round())
        for other in reduction.parts.values():
            text = f"{part.key} has {part.shape} where {other.key} has {other.shape}"
            require(part.shape.is_like(other.shape), "C7", text)
        reduction.parts[end.rank] = part
        reduction.waiting[end.rank] = index
        if end.broken:
            self._fail_or_hang(end, number)
        elif len(reduction.parts) == self.size:
            parts = tuple(reduction.parts[rank] for rank in range(self.size))
            reduction.result = Result(self.attempt, parts)
            for rank in sorted(reduction.waiting):
                delay_s = self.world.rng.uniform(0.001, 0.01)
                peer = self.ends[rank]
                self.world.at(delay_s, peer.worker, self._complete, peer, number)

    def _refuse(self, end: End, index: int) -> None:
        """The group finds that it cannot do this at all; none of it was sent."""
        if not end.gone:
            is_known = None if self._knows_nothing else not end.broken
            self._fails(end, index, "refused", is_known)

    @property
    def _knows_nothing(self) -> bool:
        return self.world.refusals.how == "unknown"

    def _fails(self, end: End, index: int, reason: str, refused: bool | None) -> None:
        end.worker.fails(self.attempt, index, refused, is_refused=reason == "refused")
        end.worker.feed(e.OperationFailed(self.attempt, index, reason, refused))

    def _cut_for_s(self, end: End) -> float:
        """How long this end receives nothing from a peer on another machine."""
        world = self.world
        if world.links_cut_until <= world.now:
            return 0.0
        own = end.worker.agent.host
        hosts = (peer.worker.agent.host for peer in self.ends.values())
        until = [max(own.deaf_until, host.mute_until) for host in hosts if host is not own]
        return max(0.0, max(until, default=0.0) - world.now)

    def _finish_build(self, end: End) -> None:
        if end.gone or end.built:
            return
        cut_s = self._cut_for_s(end)
        if cut_s > 0.0:
            self.world.at(cut_s, end.worker, self._finish_build, end)
            return
        if end.broken and self.world.rng.random() < 0.5:
            return  # it hangs until the timeout or the push
        end.built = True
        end.worker.feed(m.Built(self.attempt))

    def _fail_build(self, end: End, reason: str) -> None:
        if not end.gone and not end.built:
            self.leave(end)
            end.worker.feed(m.BuildFailed(self.attempt, reason))

    def _complete(self, end: End, number: int) -> None:
        reduction = self._reductions[number]
        if end.gone or end.rank not in reduction.waiting:
            return
        world = self.world
        cut_s = self._cut_for_s(end)
        if cut_s > 0.0:
            then = self._complete if world.rng.random() < 0.5 else self._fail
            world.at(cut_s, end.worker, then, end, number)
        elif world.faults.strikes(world, "reduction_error"):
            self._fail(end, number)
        elif reduction.hurt and world.rng.random() < 0.5:
            self._fail_or_hang(end, number)
        else:
            assert reduction.result is not None
            end.worker.completed(self.attempt, reduction.waiting.pop(end.rank), reduction.result)

    def _fail_or_hang(self, end: End, number: int) -> None:
        if self.world.rng.random() < 0.6:
            delay_s = self.world.rng.uniform(0.001, 0.1)
            self.world.at(delay_s, end.worker, self._fail, end, number)

    def _fail(self, end: End, number: int) -> None:
        index = self._reductions[number].waiting.pop(end.rank, None)
        if index is not None and not end.gone:
            self._fails(end, index, "the ring broke", None if self._knows_nothing else False)


class Ballot:
    """The control group of one replica group: one MIN all-reduce per vote."""

    def __init__(self, world: World, size: int) -> None:
        self._world = world
        self._size = size
        self._votes: list[dict[int, tuple[Worker, Tag | None, bool]]] = []
        self._cast: dict[int, int] = {}

    @staticmethod
    def outcome(votes: Mapping[int, tuple[Worker, Tag | None, bool]]) -> bool:
        """The smallest of all flags."""
        return all(flag for _, _, flag in votes.values())

    def vote(self, worker: Worker, tag: Tag | None, flag: bool) -> None:
        """``worker.outcome`` follows, unless a rank dies before it has voted."""
        rank = worker.key.group_rank
        number = self._cast.get(rank, 0)
        self._cast[rank] = number + 1
        if number == len(self._votes):
            self._votes.append({})
        votes = self._votes[number]
        votes[rank] = (worker, tag, flag)
        if len(votes) < self._size:
            return
        tags = {t for _, t, _ in votes.values()}
        outcome = self.outcome(votes) if len(tags) == 1 else None
        for _, (voter, _, _) in sorted(votes.items()):
            delay_s = self._world.rng.uniform(0.0002, 0.003)
            self._world.at(delay_s, voter, voter.vote_decided, outcome)


class Rings:
    """All process groups of the world, by their meeting place and tag."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rings: dict[tuple[str, Attempt, int], Ring] = {}
        self._ballots: dict[str, Ballot] = {}

    def join(self, worker: Worker, quorum: Quorum) -> End:
        """``worker`` builds the process group of ``quorum``."""
        key = worker.key
        rank = quorum.index(key.replica_id, key.incarnation)
        assert rank is not None, "builds a quorum that it is not in"
        name = (quorum.store, quorum.attempt, key.group_rank)
        ring = self._rings.get(name)
        if ring is None:
            size = len(quorum.members)
            ring = self._rings[name] = Ring(self._world, quorum.attempt, size)
        assert ring.size == len(quorum.members), f"Q1: {quorum.attempt} has two sizes"
        return ring.join(worker, rank, self._store_lives(quorum.store))

    def ballot(self, incarnation: str) -> Ballot:
        """The control group of an incarnation."""
        return self._ballots.setdefault(incarnation, Ballot(self._world, self._world.job.workers))

    def _store_lives(self, store: str) -> bool:
        agents = [host.agent for host in self._world.hosts]
        return any(agent is not None and agent.alive and agent.store == store for agent in agents)
