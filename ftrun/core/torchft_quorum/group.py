"""The rounds of one replica group: all its ranks ask for a quorum, all its ranks vote.

A *round* has one call of each rank. When the last rank of a quorum's round has called, the group
asks its lighthouse, with that call's step and wishes, as in torchft. The answer, or the failure,
goes to all calls of the round. When the last rank of a vote's round has called, the round ends with
the conjunction. A call whose client has gone does not count any more, so no rank acts on a vote
that another has given up.

Not here: sockets, the lighthouse's client (compat/torchft_wire/), what a quorum means to a rank
(results.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

from ftrun.core.torchft_quorum.records import QuorumMember, TorchftQuorum
from ftrun.core.torchft_quorum.results import QuorumResult, rank_quorum

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class QuorumAsked:
    """A rank asks for a quorum and waits at most ``timeout_s``."""

    group_rank: int
    step: int
    checkpoint_metadata: str
    shrink_only: bool
    init_sync: bool
    commit_failures: int
    reconfigure_handle: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class AskLighthouse:
    """Ask the lighthouse for a quorum, in the name of the group."""

    member: QuorumMember
    timeout_s: float


@dataclass(frozen=True, slots=True)
class QuorumAnswer:
    """The answer to a rank's call."""

    call: int
    result: QuorumResult


@dataclass(frozen=True, slots=True)
class VoteAnswer:
    """The outcome of a vote, for one rank's call."""

    call: int
    should_commit: bool


@dataclass(frozen=True, slots=True)
class CallRefused:
    """This call ends with an error. ``is_timeout``: the lighthouse did not answer in time."""

    call: int
    reason: str
    is_timeout: bool = False


GroupInstruction: TypeAlias = AskLighthouse | QuorumAnswer | VoteAnswer | CallRefused


@dataclass(slots=True)
class _Round(Generic[T]):
    """The calls of a round: by rank, the last call's number and its content.

    A rank that calls twice counts once, with its last call; both calls get the answer.
    """

    calls: dict[int, tuple[int, T]] = field(default_factory=dict)

    def add(self, call: int, rank: int, value: T) -> None:
        self.calls[call] = (rank, value)

    def leave(self, call: int) -> None:
        self.calls.pop(call, None)

    def is_full(self, world_size: int) -> bool:
        return len({rank for rank, _ in self.calls.values()}) >= world_size

    def take(self) -> dict[int, tuple[int, T]]:
        taken, self.calls = self.calls, {}
        return taken


class ReplicaGroup:
    """One replica group's rounds.

    ``address``: of the group's manager; ``store_address``: of its store; ``world_size``: the number
    of its ranks.
    """

    def __init__(self, replica_id: str, address: str, store_address: str, world_size: int) -> None:
        self.replica_id = replica_id
        self._address = address
        self._store_address = store_address
        self._world_size = world_size
        self._asked: _Round[QuorumAsked] = _Round()
        self._waiting: _Round[QuorumAsked] = _Round()
        self._votes: _Round[bool] = _Round()
        self._metadata: dict[int, str] = {}
        self._handles: dict[int, str] = {}

    def ask(self, call: int, asked: QuorumAsked) -> list[GroupInstruction]:
        if not self._has(asked.group_rank):
            return [CallRefused(call, self._no_rank(asked.group_rank))]
        self._metadata[asked.group_rank] = asked.checkpoint_metadata
        self._handles[asked.group_rank] = asked.reconfigure_handle
        self._asked.add(call, asked.group_rank, asked)
        if not self._asked.is_full(self._world_size):
            return []
        for number, (rank, value) in self._asked.take().items():
            self._waiting.add(number, rank, value)
        return [AskLighthouse(self._member(asked), asked.timeout_s)]

    def answered(self, quorum: TorchftQuorum) -> list[GroupInstruction]:
        found: list[GroupInstruction] = []
        for call, (rank, asked) in self._waiting.take().items():
            result = rank_quorum(quorum, self.replica_id, rank, asked.init_sync)
            if result is None:
                reason = f"replica {self.replica_id} is not in the quorum that the lighthouse sent"
                found.append(CallRefused(call, reason))
            else:
                found.append(QuorumAnswer(call, result))
        return found

    def failed(self, reason: str, is_timeout: bool) -> list[GroupInstruction]:
        """The lighthouse did not answer, or answered with an error: every rank of the round
        receives it.
        """
        return [CallRefused(call, reason, is_timeout) for call in self._waiting.take()]

    def vote(self, call: int, group_rank: int, should_commit: bool) -> list[GroupInstruction]:
        if not self._has(group_rank):
            return [CallRefused(call, self._no_rank(group_rank))]
        self._votes.add(call, group_rank, should_commit)
        if not self._votes.is_full(self._world_size):
            return []
        votes = self._votes.take()
        outcome = all(dict(votes.values()).values())
        return [VoteAnswer(number, outcome) for number in votes]

    def ended(self, call: int) -> None:
        """The call's client does not wait any more."""
        for round_ in (self._asked, self._waiting, self._votes):
            round_.leave(call)

    def metadata(self, group_rank: int) -> str | None:
        """The checkpoint's metadata that the rank has sent last; None: it never asked."""
        return self._metadata.get(group_rank)

    def _member(self, asked: QuorumAsked) -> QuorumMember:
        return QuorumMember(
            replica_id=self.replica_id,
            address=self._address,
            store_address=self._store_address,
            step=asked.step,
            world_size=self._world_size,
            shrink_only=asked.shrink_only,
            commit_failures=asked.commit_failures,
            reconfigure_handles=tuple(self._handles[rank] for rank in range(self._world_size)),
        )

    def _has(self, rank: int) -> bool:
        return 0 <= rank < self._world_size

    def _no_rank(self, rank: int) -> str:
        return f"replica {self.replica_id} has {self._world_size} ranks, and no rank {rank}"
