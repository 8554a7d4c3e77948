"""A message put together from parts is the message that the codec would have made."""

from __future__ import annotations

from collections import deque

import pytest

from ftrun.base.errors import ProtocolError
from ftrun.core.ids import Attempt, StateId
from ftrun.core.messages import (
    AskReport,
    Cancel,
    HeartbeatAck,
    Interrupt,
    NewQuorum,
    Prepare,
    RunningReplica,
    ToWorkers,
)
from ftrun.core.quorum import Endpoint, Member, Quorum
from ftrun.protocol.broadcast import Broadcast
from ftrun.protocol.codec import decode, encode
from ftrun.protocol.limits import COUNT_MAX
from ftrun.protocol.quorums import QuorumMemory
from ftrun.protocol.streams import StreamCodec, take_batch

INTERRUPT = Interrupt(Attempt(1 << 32, 1))


def targets(count: int) -> tuple[RunningReplica, ...]:
    return tuple(RunningReplica(str(i), f"incarnation{i}") for i in range(count))


def test_every_agent_gets_its_own_targets_and_the_same_message() -> None:
    broadcast, memory = Broadcast(), QuorumMemory()
    for count in (0, 1, 3, 500):
        for message in (INTERRUPT, Cancel(INTERRUPT.attempt), AskReport(), INTERRUPT):
            whole = ToWorkers(targets(count), message)
            assert decode(broadcast.encode(whole, memory)) == whole
    ack = HeartbeatAck()
    assert broadcast.encode(ack, memory) == broadcast.encode(ack, memory) == encode(ack)


def test_a_quorum_is_told_to_each_by_what_he_knows() -> None:
    broadcast = Broadcast()
    old, shrunk, grown = quorum(1, range(9)), quorum(2, range(8)), quorum(3, range(9))
    senders = [StreamCodec() for _ in range(3)]
    receivers = [StreamCodec() for _ in range(3)]
    sizes = {}
    for message, reached in ((NewQuorum(old), 1), (NewQuorum(shrunk), 2), (Prepare(grown), 3)):
        for index in range(reached):  # the last one has come since
            whole = ToWorkers(targets(2), message)
            data = broadcast.encode(whole, senders[index].memory)
            assert receivers[index].decode(take_batch(deque([data]))) == [whole]
            sizes[message.quorum.attempt, index] = len(data)
    assert sizes[shrunk.attempt, 0] < sizes[shrunk.attempt, 1] / 3
    assert sizes[grown.attempt, 0] == sizes[grown.attempt, 1] < sizes[grown.attempt, 2] / 3


def quorum(seq: int, ids: range) -> Quorum:
    members = tuple(
        Member(str(i), f"incarnation{i}", (Endpoint("10.0.0.1", "10.0.0.1:1"),), "s") for i in ids
    )
    return Quorum(Attempt(1 << 32 | seq, 1), members, "s", 3, StateId(3, "aa"))


def test_limits_are_those_of_the_codec() -> None:
    broadcast, memory = Broadcast(), QuorumMemory()
    long_id = (RunningReplica("x" * 200, "i"),)
    for targets_ in ((RunningReplica("0", "i"),) * (COUNT_MAX + 1), long_id):
        with pytest.raises(ProtocolError):
            broadcast.encode(ToWorkers(targets_, AskReport()), memory)
    huge = (RunningReplica("x" * 128, "i" * 128),) * 40_000
    with pytest.raises(ProtocolError, match="over"):
        broadcast.encode(ToWorkers(huge, AskReport()), memory)
