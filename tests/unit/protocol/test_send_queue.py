"""A send queue keeps the order, has limits, and drains before it ends."""

from __future__ import annotations

import asyncio

import pytest

from ftrun.core.messages import Heartbeat, HeartbeatAck
from ftrun.protocol.codec import decode_batch, encode
from ftrun.protocol.send_queue import SendQueue


def test_what_has_piled_up_goes_in_one_batch_in_order() -> None:
    queue = SendQueue(3)
    messages = [Heartbeat(), HeartbeatAck(), Heartbeat(quiet=True)]
    assert [queue.put(encode(message)) for message in messages] == [True] * 3
    assert decode_batch(asyncio.run(queue.next_batch()) or b"") == messages
    assert queue.put(encode(Heartbeat())) and not queue.overflown.is_set()


def test_a_closed_queue_takes_no_more_and_still_drains() -> None:
    queue = SendQueue(3)
    queue.put(encode(Heartbeat()))
    queue.close()
    assert not queue.put(encode(Heartbeat()))
    assert decode_batch(asyncio.run(queue.next_batch()) or b"") == [Heartbeat()]
    assert asyncio.run(queue.next_batch()) is None


@pytest.mark.parametrize(("data", "count"), [(b"x", 10), (b"x" * 100, 10), (b"x" * 500, 2)])
def test_a_queue_overflows_by_messages_or_bytes_and_is_empty_then(data: bytes, count: int) -> None:
    queue = SendQueue(10, 1000)
    assert [queue.put(data) for _ in range(count)] == [True] * count
    assert not queue.put(data) and queue.overflown.is_set()
    assert not queue.put(b"")
    queue.close()
    assert asyncio.run(queue.next_batch()) is None


def test_a_put_and_a_close_wake_the_sender() -> None:
    async def main() -> None:
        queue = SendQueue(3)
        batch = asyncio.ensure_future(queue.next_batch())
        await asyncio.sleep(0)
        queue.put(encode(Heartbeat()))
        assert decode_batch(await batch or b"") == [Heartbeat()]
        batch = asyncio.ensure_future(queue.next_batch())
        await asyncio.sleep(0)
        queue.close()
        assert await batch is None

    asyncio.run(asyncio.wait_for(main(), 5))
