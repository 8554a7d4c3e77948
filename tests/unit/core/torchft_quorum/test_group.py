"""The rounds of one replica group: quorums and votes of all its ranks."""

from __future__ import annotations

from ftrun.core.torchft_quorum.group import (
    AskLighthouse,
    CallRefused,
    QuorumAnswer,
    QuorumAsked,
    ReplicaGroup,
    VoteAnswer,
)
from ftrun.core.torchft_quorum.records import QuorumMember, TorchftQuorum


def group(world_size: int = 2) -> ReplicaGroup:
    return ReplicaGroup("a", "http://h:1", "store:1", world_size)


def asked(rank: int, step: int = 5) -> QuorumAsked:
    return QuorumAsked(rank, step, f"meta{rank}", False, True, 0, f"h{rank}", 10.0)


def test_the_last_rank_makes_the_group_ask_and_all_get_the_answer() -> None:
    ranks = group()
    assert ranks.metadata(0) is None
    assert ranks.ask(1, asked(0)) == []
    (ask,) = ranks.ask(2, asked(1, step=6))
    member = QuorumMember("a", "http://h:1", "store:1", 6, 2, reconfigure_handles=("h0", "h1"))
    assert ask == AskLighthouse(member, 10.0)
    assert ranks.metadata(1) == "meta1"
    answers = ranks.answered(TorchftQuorum(3, (member,)))
    assert [x.call for x in answers if isinstance(x, QuorumAnswer)] == [1, 2]
    assert ranks.answered(TorchftQuorum(3, (member,))) == []


def test_a_failure_goes_to_all_ranks_at_once() -> None:
    ranks = group()
    ranks.ask(1, asked(0))
    ranks.ask(2, asked(1))
    assert ranks.failed("gone", is_timeout=True) == [
        CallRefused(1, "gone", True),
        CallRefused(2, "gone", True),
    ]


def test_a_quorum_without_the_group_is_an_error() -> None:
    ranks = group(1)
    ranks.ask(1, asked(0))
    (refused,) = ranks.answered(TorchftQuorum(3, (QuorumMember("b"),)))
    assert isinstance(refused, CallRefused) and "not in the quorum" in refused.reason


def test_a_rank_that_gave_up_does_not_count() -> None:
    ranks = group()
    ranks.ask(1, asked(0))
    ranks.ended(1)
    assert ranks.ask(2, asked(1)) == []
    assert len(ranks.ask(3, asked(0))) == 1
    ranks.vote(4, 0, True)
    ranks.ended(4)
    assert ranks.vote(5, 1, True) == []


def test_a_rank_that_asks_twice_counts_once() -> None:
    ranks = group()
    assert ranks.ask(1, asked(0)) == [] and ranks.ask(2, asked(0)) == []
    assert len(ranks.ask(3, asked(1))) == 1
    assert ranks.vote(4, 0, False) == [] and ranks.vote(5, 0, True) == []
    assert ranks.vote(6, 1, True) == [VoteAnswer(4, True), VoteAnswer(5, True), VoteAnswer(6, True)]


def test_one_vote_against_it_is_enough() -> None:
    ranks = group()
    assert ranks.vote(1, 1, True) == []
    assert ranks.vote(2, 0, False) == [VoteAnswer(1, False), VoteAnswer(2, False)]
    # The next step's votes are new ones.
    assert ranks.vote(3, 0, True) == []
    assert ranks.vote(4, 1, True) == [VoteAnswer(3, True), VoteAnswer(4, True)]


def test_a_rank_that_the_group_lacks_is_refused() -> None:
    ranks = group()
    (refused,) = ranks.ask(1, asked(2))
    assert isinstance(refused, CallRefused) and "no rank 2" in refused.reason
    (refused,) = ranks.vote(2, -1, True)
    assert isinstance(refused, CallRefused) and "no rank -1" in refused.reason
