"""Batches, and the quorums that a stream's ends remember."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.base.errors import ProtocolError
from ftrun.core.ids import Attempt, StateId, WorkerKey
from ftrun.core.messages import (
    Heartbeat,
    NewQuorum,
    Notice,
    PendingQuorum,
    Report,
    ToWorkers,
    WorkerMessage,
)
from ftrun.core.quorum import Endpoint, Member, Quorum
from ftrun.protocol import ftrun_pb2
from ftrun.protocol.codec import decode_batch, encode
from ftrun.protocol.limits import BATCH_BYTES_MAX
from ftrun.protocol.quorums import KEPT, QuorumMemory, restore, shorten
from ftrun.protocol.streams import StreamCodec, take_batch, varint

KEY = WorkerKey("0", "i0", 0)


def quorum(seq: int, members: dict[int, str], heal: frozenset[int] = frozenset()) -> Quorum:
    """Members by number and incarnation; ``heal`` of them are newcomers."""
    records = tuple(
        Member(str(i), members[i], (Endpoint("10.0.0.1", f"10.0.0.1:{i}"),), "10.0.0.1:9")
        for i in sorted(members)
    )
    newcomers = tuple(str(i) for i in sorted(members) if i in heal)
    state = StateId(seq, "ab")
    return Quorum(Attempt(1 << 32 | seq, 1), records, "s", seq, state, newcomers)


def large(seq: int, without: int = 0) -> Quorum:
    return quorum(seq, {i: f"i{i}" for i in range(100) if i != without})


def report(of: Quorum) -> WorkerMessage:
    return WorkerMessage(KEY, Report(StateId(1, "ab"), Endpoint("h", "h:1"), in_force=of))


def carry(sender: StreamCodec, receiver: StreamCodec, message: object) -> int:
    """Send it over the stream; returns the number of bytes."""
    data = sender.encode(message)
    assert receiver.decode(take_batch(deque([data]))) == [message]
    return len(data)


def test_a_batch_holds_what_fits_in_order() -> None:
    notices = [Notice("lost", (), f"{i}" * (BATCH_BYTES_MAX // 40)) for i in range(30)]
    envelopes = deque(encode(notice) for notice in notices)
    batches = []
    while envelopes:
        batches.append(take_batch(envelopes))
    assert len(batches) > 1
    assert all(len(batch) < BATCH_BYTES_MAX + 1000 for batch in batches)
    assert [message for batch in batches for message in decode_batch(batch)] == notices


def test_what_is_too_long_for_a_batch_goes_alone() -> None:
    long = encode(Heartbeat()) * (BATCH_BYTES_MAX // 2)
    envelopes = deque([long, encode(Heartbeat())])
    assert len(take_batch(envelopes)) > BATCH_BYTES_MAX
    assert decode_batch(take_batch(envelopes)) == [Heartbeat()]


@pytest.mark.parametrize("data", [b"\x0a", b"\x0a\x00", b"\xff" * 9, b"\x0a\x02\xff\xff"])
def test_what_is_no_batch_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_batch(data)


def test_each_quorum_goes_in_full_once() -> None:
    lighthouse, agent = StreamCodec(), StreamCodec()
    full = carry(lighthouse, agent, ToWorkers((), NewQuorum(large(1))))
    assert full > 4000
    assert carry(lighthouse, agent, ToWorkers((), NewQuorum(large(2, without=5)))) < 150
    # The lighthouse has sent the agent's workers their quorum, so it knows that quorum.
    for seq, without in ((2, 5), (1, 0)):
        assert carry(agent, lighthouse, report(large(seq, without))) < 200
    said = report(large(2, 5)).message
    assert isinstance(said, Report)
    both = replace(said, pending=PendingQuorum(large(3)))
    assert carry(agent, lighthouse, WorkerMessage(KEY, both)) < 400
    assert carry(agent, lighthouse, WorkerMessage(KEY, both)) < 200


def test_a_new_stream_begins_with_nothing() -> None:
    agent, lighthouse = StreamCodec(), StreamCodec()
    assert carry(agent, lighthouse, report(large(1))) > 4000
    assert carry(agent, lighthouse, report(large(1))) < 200
    assert carry(lighthouse, agent, ToWorkers((), NewQuorum(large(2, 7)))) < 150
    assert carry(agent, StreamCodec(), Heartbeat()) < 10
    with pytest.raises(ProtocolError, match="not known here"):
        carry(agent, StreamCodec(), report(large(1)))


def test_who_confirms_a_switch_tells_its_step() -> None:
    """A quorum gets its step and its state when the switch is confirmed; the members stay."""
    lighthouse, agent = StreamCodec(), StreamCodec()
    prepared = replace(large(1), step=None, state=None)
    carry(lighthouse, agent, ToWorkers((), NewQuorum(prepared)))
    assert carry(agent, lighthouse, report(large(1))) < 200


def test_what_could_not_be_sent_was_never_told() -> None:
    sender, receiver = StreamCodec(), StreamCodec()
    bad = WorkerMessage(WorkerKey("x" * 200, "i", 0), report(large(1)).message)
    with pytest.raises(ProtocolError):
        sender.encode(bad)
    carry(sender, receiver, report(large(1)))


def test_a_short_quorum_is_not_told_on() -> None:
    short = shorten(large(2, 5), large(1))
    assert short.base == large(1).attempt
    with pytest.raises(ProtocolError, match="not whole"):
        StreamCodec().encode(report(short))


def test_memory_is_bounded_and_both_ends_forget_the_same() -> None:
    sender, receiver = StreamCodec(), StreamCodec()
    for seq in [*range(1, 3 * KEPT), 1, 2 * KEPT + 1]:
        carry(sender, receiver, report(large(seq, without=seq)))
    for memory in (sender.memory, receiver.memory):
        assert max(len(memory._sent), len(memory._received)) == KEPT
    assert list(sender.memory._sent) == list(receiver.memory._received)


def test_a_base_is_named_only_while_the_other_end_has_it() -> None:
    """One end may be far ahead of the other: a named quorum must still be known there."""
    ahead, behind = StreamCodec(), StreamCodec()
    on_the_way = deque(
        ahead.encode(ToWorkers((), NewQuorum(large(seq, without=seq)))) for seq in range(1, KEPT)
    )
    behind.decode(take_batch(deque([on_the_way.popleft()])))
    answer = behind.encode(report(large(1, 1)))
    assert ahead.decode(take_batch(deque([answer]))) == [report(large(1, 1))]


members = st.dictionaries(st.integers(0, 12), st.sampled_from("ab"), max_size=12)
heals = st.frozensets(st.integers(0, 12), max_size=3)


@given(members, heals, members, heals, st.booleans())
def test_shortened_and_restored_it_is_the_same(
    old: dict[int, str],
    old_heal: frozenset[int],
    new: dict[int, str],
    heal: frozenset[int],
    same_name: bool,
) -> None:
    base, after = quorum(1, old, old_heal), quorum(1 if same_name else 2, new, heal)
    short = shorten(after, base)
    assert (restore(short, base) if short.base is not None else short) == after


def test_with_nothing_to_build_on_it_is_told_whole() -> None:
    assert QuorumMemory().base_for(large(1)) is None
    assert shorten(large(1), None) == large(1)


@given(st.integers(0, 1 << 62))
def test_varint_is_protobufs(value: int) -> None:
    assert varint(1 << 3) + varint(value) == (
        ftrun_pb2.Built(attempt=None).SerializeToString() + _field_one(value)
    )


def _field_one(value: int) -> bytes:
    """``optional`` so that zero is written too."""
    data = ftrun_pb2.JournalState(switch_step=value).SerializeToString()
    return varint(1 << 3) + data[1:]
