"""The state server's routes, refusals and limits, over real sockets."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from ftrun.checkpoint import serve
from ftrun.checkpoint.layout import CHUNK_BYTES, DIGEST_BYTES
from ftrun.checkpoint.serve import StateServer
from ftrun.core.ids import Attempt, StateId, Tag
from ftrun.errors import UserError

TOKEN = "5" * 64
TAG = Tag(Attempt(8, 1), 10)
LATER = Tag(Attempt(8, 2), 11)
STATE_ID = StateId(10, "abcd")
WAIT_S = 20


@pytest.fixture
def server() -> Iterator[StateServer]:
    made = StateServer("127.0.0.1", TOKEN)
    yield made
    made.close()


def ask(server: StateServer, target: str, method: str = "GET", **fields: str) -> tuple[int, bytes]:
    host, port = server.address.split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=WAIT_S)
    sent = {"authorization": f"Bearer {TOKEN}", "x-ftrun-receiver": "r1"}
    sent.update({name.replace("_", "-"): value for name, value in fields.items()})
    connection.request(method, target, headers={k: v for k, v in sent.items() if v})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


def path(route: str, tag: Tag = TAG) -> str:
    return f"/state/{tag.path()}/{route}"


def test_header_and_data_are_served_from_live_memory(server: StateServer) -> None:
    weights = torch.arange(CHUNK_BYTES, dtype=torch.int32)
    nbytes = server.offer(TAG, STATE_ID, {"w": weights, "lr": 0.1})
    status, body = ask(server, path("header"))
    assert (status, json.loads(body)["structure"]["map"]["lr"]) == (200, 0.1)
    assert nbytes == weights.nbytes
    status, data = ask(server, path(f"data?offset={CHUNK_BYTES}&length={CHUNK_BYTES}"))
    assert status == 200
    assert len(data) == CHUNK_BYTES + DIGEST_BYTES
    expected = weights.numpy().tobytes()[CHUNK_BYTES : 2 * CHUNK_BYTES]
    assert data[:CHUNK_BYTES] == expected


ROUTE_TARGETS = {"header": "header", "data": "data?offset=0&length=8", "done": "done"}


@pytest.mark.parametrize("route", serve.ROUTES)
@pytest.mark.parametrize(
    "given", ["", "Bearer ", "Bearer " + "4" * 64, f"Bearer {TOKEN[:-1]}", TOKEN, f"Basic {TOKEN}"]
)
def test_every_route_refuses_other_tokens(server: StateServer, route: str, given: str) -> None:
    server.offer(TAG, STATE_ID, {"w": torch.ones(2)})
    method = serve.ROUTES[route]
    status, body = ask(server, path(ROUTE_TARGETS[route]), method, authorization=given)
    assert status == 401  # X1
    assert TAG.path().encode() not in body
    assert ask(server, path(ROUTE_TARGETS[route]), method)[0] == 200


@pytest.mark.parametrize(
    ("target", "method", "status"),
    [
        ("/", "GET", 404),
        ("/state/8.1.10", "GET", 404),
        ("/state/8.1.10/weights", "GET", 404),
        ("/state/8.1.10/header/more", "GET", 404),
        ("/state/8.1.x/header", "GET", 404),
        ("/state/8.1.99999999999999999999/header", "GET", 404),
        ("/state/8.1.10/header", "POST", 405),
        ("/state/8.1.10/done", "GET", 405),
        ("//[", "GET", 400),
        ("/state/8.1.10/data", "GET", 400),
        ("/state/8.1.10/data?offset=0", "GET", 400),
        ("/state/8.1.10/data?offset=0&length=x", "GET", 400),
        ("/state/8.1.10/data?offset=0&length=9", "GET", 416),
        ("/state/8.1.10/data?offset=0&length=0", "GET", 416),
        ("/state/8.1.10/data?offset=-8&length=8", "GET", 416),
        ("/state/8.1.10/data?offset=1&length=7", "GET", 416),
        ("/state/8.1.10/data?offset=0&length=4", "GET", 416),
    ],
)
def test_malformed_requests_are_refused(
    server: StateServer, target: str, method: str, status: int
) -> None:
    server.offer(TAG, STATE_ID, {"w": torch.ones(2)})
    assert ask(server, target, method)[0] == status
    assert ask(server, path("header"))[0] == 200


@pytest.mark.parametrize("lacks", ["x", "0", "0-3", "1-0", "-1-2", "0-1;1-2", ",", "0-1," * 300])
def test_a_malformed_list_of_what_is_lacking_is_refused(server: StateServer, lacks: str) -> None:
    server.offer(TAG, STATE_ID, {"w": torch.ones(CHUNK_BYTES // 2)})  # two chunks
    target = path(f"data?offset=0&length={CHUNK_BYTES}")
    assert ask(server, target, x_ftrun_lacks=lacks)[0] == 400
    assert ask(server, target, x_ftrun_lacks="1-2,0-1")[0] == 200


def test_what_a_receiver_says_it_has_is_not_copied_for_it(server: StateServer) -> None:
    server.offer(TAG, STATE_ID, {"w": torch.ones(CHUNK_BYTES)})  # four chunks
    assert ask(server, path(f"data?offset=0&length={CHUNK_BYTES}"), x_ftrun_lacks="3-4")[0] == 200
    assert server.retire(TAG, 1 << 30) == CHUNK_BYTES


def test_a_request_without_a_receiver_is_refused(server: StateServer) -> None:
    server.offer(TAG, STATE_ID, {"w": torch.ones(2)})
    assert ask(server, path("header"), x_ftrun_receiver="")[0] == 400
    assert ask(server, path("header"), x_ftrun_receiver="r" * 65)[0] == 400


def test_only_the_offered_tag_is_served(server: StateServer) -> None:
    assert ask(server, path("header"))[0] == 409
    server.offer(TAG, STATE_ID, {"w": torch.ones(2)})
    status, text = ask(server, path("header", LATER))
    assert status == 409  # S4: asked again later
    assert b"not offered yet" in text
    server.offer(LATER, STATE_ID, {"w": torch.ones(2)})
    server.withdraw(TAG)
    assert ask(server, path("header"))[0] == 410
    assert ask(server, path("header", LATER))[0] == 200


def test_a_state_that_cannot_be_carried_is_not_offered(server: StateServer) -> None:
    with pytest.raises(UserError, match="'fn'"):
        server.offer(TAG, STATE_ID, {"fn": print})
    assert ask(server, path("header"))[0] == 409


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nx: " + b"y" * (17 << 10),
        b"\x16\x03\x01\xfc\x00\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 40 + b"\r\n",
        b"GET / HTTP/1.1\r\nno field\r\n\r\n",
        b"GET / HTTP/1.1\r\ncontent-length: -1\r\nauthorization: Bearer "
        + TOKEN.encode()
        + b"\r\n\r\n",
    ],
    ids=["long", "tls", "fields", "colon", "length"],
)
def test_what_is_no_request_is_answered_400_and_closed(server: StateServer, sent: bytes) -> None:
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port)), WAIT_S) as sock:
        sock.sendall(sent)
        answer = sock.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 400 ")


def test_connections_are_bounded(server: StateServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "CONNECTIONS_MAX", 2)
    server.offer(TAG, STATE_ID, {"w": torch.ones(2)})
    host, port = server.address.split(":")
    request = (
        f"GET {path('header')} HTTP/1.1\r\nauthorization: Bearer {TOKEN}\r\n"
        "x-ftrun-receiver: r\r\n\r\n"
    ).encode()
    held = [socket.create_connection((host, int(port)), WAIT_S) for _ in range(2)]
    for sock in held:
        sock.sendall(request)
        assert sock.recv(8) == b"HTTP/1.1"
    with socket.create_connection((host, int(port)), WAIT_S) as third:
        assert third.recv(8) == b""
    for sock in held:
        sock.close()


def test_close_ends_threads_and_connections() -> None:
    before = set(threading.enumerate())
    server = StateServer("127.0.0.1", TOKEN)
    server.offer(TAG, STATE_ID, {"w": torch.ones(2)})
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port)), WAIT_S) as sock:
        sock.sendall(b"GET /")
        assert ask(server, path("header"))[0] == 200  # So the first connection is accepted too.
        mine = [t for t in threading.enumerate() if t not in before]
        server.close()
        assert sock.recv(1) == b""
    for thread in mine:
        thread.join(WAIT_S)
    assert not any(thread.is_alive() for thread in mine)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), WAIT_S)


def data_of(server: StateServer, receiver: str, nbytes: int) -> Any:
    return ask(server, path(f"data?offset=0&length={nbytes}"), x_ftrun_receiver=receiver)


def test_retire_keeps_a_copy_for_receivers_under_way_only(server: StateServer) -> None:
    weights = torch.ones(1000)
    server.offer(TAG, STATE_ID, {"w": weights})
    assert ask(server, path("header"))[0] == 200
    assert server.retire(TAG, 1 << 20) == weights.nbytes
    weights.zero_()
    status, data = data_of(server, "r1", 4000)
    assert (status, data[:4000]) == (200, torch.ones(1000).numpy().tobytes())
    assert ask(server, path("header"), x_ftrun_receiver="late")[0] == 410
    assert ask(server, path("done"), "POST")[0] == 200
    assert data_of(server, "r1", 4000)[0] == 410


def test_retire_keeps_a_copy_for_those_expected(server: StateServer) -> None:
    server.offer(TAG, STATE_ID, {"w": torch.ones(1000)}, expected=1)
    assert server.retire(TAG, 1 << 20) == 4000
    assert ask(server, path("header"), x_ftrun_receiver="one")[0] == 200
    assert ask(server, path("header"), x_ftrun_receiver="two")[0] == 410
    assert data_of(server, "one", 4000)[0] == 200


def test_retire_copies_nothing_when_nobody_is_left(server: StateServer) -> None:
    server.offer(TAG, STATE_ID, {"w": torch.ones(1000)}, expected=1)
    ask(server, path("header"))
    ask(server, path("done"), "POST")
    assert server.retire(TAG, 1 << 20) == 0
    assert server.retire(LATER, 1 << 20) == 0
    assert ask(server, path("header"))[0] == 410


def test_retire_copies_no_more_than_its_limit(server: StateServer) -> None:
    weights = torch.ones(3 * CHUNK_BYTES, dtype=torch.uint8)
    server.offer(TAG, STATE_ID, {"w": weights}, expected=1)
    assert server.retire(TAG, 2 * CHUNK_BYTES + 5) == 2 * CHUNK_BYTES
    assert data_of(server, "r1", CHUNK_BYTES)[0] == 200
    last = path(f"data?offset={2 * CHUNK_BYTES}&length={CHUNK_BYTES}")
    assert ask(server, last)[0] == 410


def test_retire_does_not_wait_for_a_receiver_that_does_not_read(server: StateServer) -> None:
    nbytes = 64 << 20
    weights = torch.ones(nbytes, dtype=torch.uint8)
    server.offer(TAG, STATE_ID, {"w": weights})
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port)), WAIT_S) as sock:
        sock.sendall(
            f"GET {path(f'data?offset=0&length={nbytes}')} HTTP/1.1\r\n"
            f"authorization: Bearer {TOKEN}\r\nx-ftrun-receiver: r1\r\n\r\n".encode()
        )
        reader = sock.makefile("rb")
        assert reader.readline() == b"HTTP/1.1 200 OK\r\n"
        retired = threading.Thread(target=server.retire, args=(TAG, 1 << 30))
        retired.start()
        retired.join(WAIT_S)
        assert not retired.is_alive()
        weights.zero_()  # the optimizer's step
        while reader.readline() != b"\r\n":
            pass
        body = reader.read(nbytes + DIGEST_BYTES * (nbytes // CHUNK_BYTES))
    step = CHUNK_BYTES + DIGEST_BYTES
    parts = {body[i : i + CHUNK_BYTES] for i in range(0, len(body), step)}
    assert parts == {b"\x01" * CHUNK_BYTES}
