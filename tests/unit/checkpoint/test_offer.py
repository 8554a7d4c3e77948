"""An offer's life: live, retired, copied, freed; and the server in a forked child."""

from __future__ import annotations

import os
import socket
import threading

import pytest
import torch

from ftrun.checkpoint import offer as offers
from ftrun.checkpoint.gate import Gate
from ftrun.checkpoint.layout import CHUNK_BYTES, Layout
from ftrun.checkpoint.offer import Offer
from ftrun.checkpoint.serve import StateServer
from ftrun.core.ids import Attempt, StateId, Tag

TAG = Tag(Attempt(8, 1), 10)
WAIT_S = 20


def make(*tensors: torch.Tensor | memoryview, expected: int = 0) -> Offer:
    return Offer(TAG, StateId(10, "aa"), b"{}", Layout(list(tensors)), expected)


def contents(offer: Offer, chunk: int) -> bytes | None:
    with offer.gate.inside():
        views = offer.views(chunk)
        return None if views is None else b"".join(views)


def test_a_copy_of_many_small_pieces_is_exact() -> None:
    pieces = [torch.full((n,), n % 251, dtype=torch.uint8) for n in (1, 7, 0, 300, 5)]
    pieces.append(torch.randint(0, 256, (2 * CHUNK_BYTES + 17,), dtype=torch.uint8))
    offer = make(*pieces, memoryview(b"read-only"), expected=1)
    before = [contents(offer, chunk) for chunk in range(3)]
    assert offer.retire(1 << 30) == offer.nbytes
    for piece in pieces:
        piece.zero_()
    assert [contents(offer, chunk) for chunk in range(3)] == before


def test_what_was_served_is_not_copied_again() -> None:
    offer = make(torch.ones(4 * CHUNK_BYTES, dtype=torch.uint8))
    assert offer.admit("r")
    for chunk in (0, 1):
        offer.served("r", chunk)
    assert offer.retire(1 << 30) == 2 * CHUNK_BYTES
    assert contents(offer, 0) is None
    assert contents(offer, 3) == b"\x01" * CHUNK_BYTES


def test_a_limited_copy_goes_on_from_where_the_receiver_is() -> None:
    offer = make(torch.ones(4 * CHUNK_BYTES, dtype=torch.uint8))
    offer.admit("r")
    for chunk in (0, 1):
        offer.served("r", chunk)
    offer.retire(CHUNK_BYTES)
    found = [contents(offer, chunk) is not None for chunk in range(4)]
    assert found == [False, False, True, False]


def test_a_state_without_a_tensor_is_there_for_a_receiver_that_is_late() -> None:
    offer = make(expected=1)
    assert offer.retire(1 << 30) == 0
    assert offer.admit("late")
    offer.finish("late")
    assert not offer.admit("one more")


def test_a_copy_is_freed_when_the_last_receiver_is_done() -> None:
    offer = make(torch.ones(9, dtype=torch.uint8), expected=2)
    offer.admit("a")
    assert not offer.wait(0.0)
    offer.retire(1 << 30)
    offer.finish("a")
    assert contents(offer, 0) is not None
    assert offer.admit("b")
    offer.finish("b")
    assert offer.wait(0.0)
    assert contents(offer, 0) is None
    assert not offer.admit("a")


def test_a_copy_that_nobody_asks_for_is_freed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    offer = make(torch.ones(9, dtype=torch.uint8), expected=1)
    offer.retire(1 << 30)
    offer.release_if_done()
    assert contents(offer, 0) is not None
    monkeypatch.setattr(offers, "COPY_IDLE_S", -1.0)
    offer.release_if_done()
    assert contents(offer, 0) is None


def test_a_gate_closes_only_once_everybody_is_out() -> None:
    gate, closed, leave = Gate(), threading.Event(), threading.Event()
    entered = threading.Event()

    def stay() -> None:
        with gate.inside():
            entered.set()
            leave.wait(WAIT_S)
            assert not closed.is_set()

    def close() -> None:
        with gate.closed():
            closed.set()

    threads = [threading.Thread(target=stay), threading.Thread(target=close)]
    threads[0].start()
    assert entered.wait(WAIT_S)
    threads[1].start()
    leave.set()
    assert closed.wait(WAIT_S)
    for thread in threads:
        thread.join(WAIT_S)


def test_a_forked_child_keeps_no_connection_of_the_server_open() -> None:
    server = StateServer("127.0.0.1", "5" * 64)
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port)), WAIT_S) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        answer = sock.makefile("rb")
        assert answer.readline().startswith(b"HTTP/1.1 401")
        go, ready = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(ready[1], b"1")
            os.read(go[0], 1)
            os._exit(0)
        assert os.read(ready[0], 1) == b"1"
        server.close()
        answer.read()  # Ends only when no process holds the other end.
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)), WAIT_S)
        os.write(go[1], b"1")
        assert os.waitpid(pid, 0)[1] == 0
        for fd in (*go, *ready):
            os.close(fd)


def test_what_came_from_other_donors_is_not_copied() -> None:
    offer = make(torch.ones(8 * CHUNK_BYTES, dtype=torch.uint8))
    assert offer.admit("r")
    offer.served("r", 1)
    offer.lacks("r", [(6, 8), (3, 4), (7, 8)])
    offer.lacks("r", [(0, 8)])  # reported before that, on another stream
    assert offer.retire(1 << 30) == 3 * CHUNK_BYTES
    assert [contents(offer, c) is not None for c in range(8)] == [c in (3, 6, 7) for c in range(8)]


def test_what_a_receiver_not_seen_yet_will_lack_is_copied_whole() -> None:
    offer = make(torch.ones(4 * CHUNK_BYTES, dtype=torch.uint8), expected=2)
    assert offer.admit("r")
    offer.lacks("r", [(3, 4)])
    assert offer.retire(1 << 30) == 4 * CHUNK_BYTES


def test_only_a_receiver_that_will_be_done_by_then_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, waits = [100.0], list[float]()
    monkeypatch.setattr(offers.clock, "now", lambda: now[0])  # type: ignore[attr-defined]
    monkeypatch.setattr(offers, "COPY_BYTES_PER_S", CHUNK_BYTES)  # a second for each chunk
    monkeypatch.setattr(Offer, "wait", lambda _, timeout_s: waits.append(timeout_s))
    for chunks_per_s, lacking in ((2, 4), (0.5, 4), (2, 0)):
        offer = make(torch.ones(64 * CHUNK_BYTES, dtype=torch.uint8))
        offer.admit("r")
        offer.lacks("r", [(0, 32)])  # continued from the chunks that had come before
        now[0] += (32 - lacking) / chunks_per_s
        offer.lacks("r", [(0, lacking)])
        assert offer.retire(1 << 30) == lacking * CHUNK_BYTES
    assert waits == [4.0, 0.0]
