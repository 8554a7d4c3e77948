"""A message put together from parts is the message that the codec would have made."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.core.ids import Attempt
from ftrun.core.messages import (
    AskReport,
    Cancel,
    HeartbeatAck,
    Interrupt,
    Loss,
    RunningReplica,
    ToWorkers,
)
from ftrun.errors import ProtocolError
from ftrun.protocol import ftrun_pb2
from ftrun.protocol.broadcast import Broadcast, varint
from ftrun.protocol.codec import decode, encode
from ftrun.protocol.limits import COUNT_MAX

INTERRUPT = Interrupt(Attempt(1 << 32, 1), (Loss("0", "aa", "SIGKILL"),))


def targets(count: int) -> tuple[RunningReplica, ...]:
    return tuple(RunningReplica(str(i), f"incarnation{i}") for i in range(count))


def test_every_agent_gets_its_own_targets_and_the_same_message() -> None:
    broadcast = Broadcast()
    for count in (0, 1, 3, 500):
        for message in (INTERRUPT, Cancel(INTERRUPT.attempt), AskReport(), INTERRUPT):
            whole = ToWorkers(targets(count), message)
            assert decode(broadcast.encode(whole)) == whole
    ack = HeartbeatAck()
    assert broadcast.encode(ack) == broadcast.encode(ack) == encode(ack)


def test_limits_are_those_of_the_codec() -> None:
    broadcast = Broadcast()
    long_id = (RunningReplica("x" * 200, "i"),)
    for targets_ in ((RunningReplica("0", "i"),) * (COUNT_MAX + 1), long_id):
        with pytest.raises(ProtocolError):
            broadcast.encode(ToWorkers(targets_, AskReport()))
    huge = (RunningReplica("x" * 128, "i" * 128),) * 40_000
    with pytest.raises(ProtocolError, match="over"):
        broadcast.encode(ToWorkers(huge, AskReport()))


@given(st.integers(0, 1 << 62))
def test_varint_is_protobufs(value: int) -> None:
    assert varint(1 << 3) + varint(value) == (
        ftrun_pb2.Built(attempt=None).SerializeToString() + _field_one(value)
    )


def _field_one(value: int) -> bytes:
    """``optional`` so that zero is written too."""
    data = ftrun_pb2.JournalState(switch_step=value).SerializeToString()
    return varint(1 << 3) + data[1:]
