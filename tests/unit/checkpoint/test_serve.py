"""The state server's routes, refusals and limits, over real sockets."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from ftrun.base.errors import Bug, UserError
from ftrun.checkpoint import listening
from ftrun.checkpoint.layout import CHUNK_BYTES, DIGEST_BYTES
from ftrun.checkpoint.requests import ROUTES
from ftrun.checkpoint.serve import StateServer
from ftrun.core.ids import Attempt, StateId, Tag
from tests.unit.checkpoint.asking import Caller

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
    """Send a proved request on a connection of its own; empty fields are left out."""
    sent = {"x_ftrun_receiver": "r1", **fields}
    with Caller(server.address, TOKEN) as caller:
        answer = caller.ask(target, method, **{k: v for k, v in sent.items() if v})
    return answer.status, answer.body


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
WRONG_PROOFS: dict[str, Callable[[str], str]] = {
    "none": lambda _: "",
    "no scheme": lambda right: right.split()[1],
    "empty": lambda _: "FtrunMac ",
    "truncated": lambda right: right[:-1],
    "longer": lambda right: right + "0",
    "upper case": lambda right: "FtrunMac " + right.split()[1].upper(),
    "another bit": lambda right: right[:-1] + ("1" if right[-1] == "0" else "0"),
    "the token": lambda _: f"Bearer {TOKEN}",
    "the token as a proof": lambda _: f"FtrunMac {TOKEN}",
}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("kind", WRONG_PROOFS)
def test_every_route_refuses_other_proofs(server: StateServer, route: str, kind: str) -> None:
    server.offer(TAG, STATE_ID, {"w": torch.ones(2)})
    method, target = ROUTES[route], path(ROUTE_TARGETS[route])
    with Caller(server.address, TOKEN) as caller:
        right = caller.head(method, target, {"x-ftrun-receiver": "r1"}).decode()
        proof = re.findall(r"authorization: (.*)\r\n", right)[0]
        answer = caller.send(right.replace(proof, WRONG_PROOFS[kind](proof)).encode())
        assert answer.status == 401  # X1
        assert TAG.path().encode() not in answer.body
        assert caller.is_ended()
    assert ask(server, target, method)[0] == 200


@pytest.mark.parametrize("token", ["4" * 64, TOKEN[:-1], TOKEN + "5", ""])
def test_every_route_refuses_proofs_of_other_tokens(server: StateServer, token: str) -> None:
    server.offer(TAG, STATE_ID, {"w": torch.ones(2)})
    for route, method in ROUTES.items():
        with Caller(server.address, token) as caller:
            refused = caller.ask(path(ROUTE_TARGETS[route]), method, x_ftrun_receiver="r1")
            assert refused.status == 401  # X1
            assert caller.is_ended()


def test_a_first_request_may_prove_nothing_but_must_not_pretend(server: StateServer) -> None:
    server.offer(TAG, STATE_ID, {"w": torch.ones(2)})
    for given in (f"Bearer {TOKEN}", "FtrunMac " + "0" * 64, ""):
        with Caller(server.address, TOKEN) as caller:
            head = f"GET {path('header')} HTTP/1.1\r\nauthorization: {given}\r\n\r\n"
            assert caller.send(head.encode()).status == 401
            assert caller.is_ended()


def test_each_connection_has_a_challenge_of_its_own(server: StateServer) -> None:
    found = set()
    for _ in range(50):
        with Caller(server.address, TOKEN) as caller:
            found.add(caller.send(b"GET / HTTP/1.1\r\n\r\n").fields["www-authenticate"])
    assert len(found) == 50


def test_a_request_is_worth_something_once_and_on_its_connection_only(server: StateServer) -> None:
    server.offer(TAG, STATE_ID, {"w": torch.ones(2)})
    target = path(ROUTE_TARGETS["data"])
    with Caller(server.address, TOKEN) as caller, Caller(server.address, TOKEN) as other:
        recorded = caller.head("GET", target, {"x-ftrun-receiver": "r1"})
        assert caller.send(recorded).status == 200
        other.head("GET", target, {})
        assert other.send(recorded).status == 401
        assert caller.ask(target, x_ftrun_receiver="r1").status == 200
        assert caller.send(recorded).status == 401
        assert caller.is_ended()
    successor = StateServer("127.0.0.1", TOKEN)
    successor.offer(TAG, STATE_ID, {"w": torch.ones(2)})
    with Caller(successor.address, TOKEN) as caller:
        caller.head("GET", target, {})
        assert caller.send(recorded).status == 401
    successor.close()


ALTERATIONS: dict[str, tuple[str, str]] = {
    "method": ("GET ", "POST "),
    "tag": ("/state/8.1.10/", "/state/8.2.11/"),
    "route": ("/data?offset=0&length=8", "/header"),
    "query": ("length=8", "length=0"),
    "no query": ("?offset=0&length=8", ""),
    "receiver": ("x-ftrun-receiver: r1", "x-ftrun-receiver: r2"),
    "no receiver": ("x-ftrun-receiver: r1\r\n", ""),
    "lacks": ("x-ftrun-lacks: 0-1", "x-ftrun-lacks: 0-0"),
    "no lacks": ("x-ftrun-lacks: 0-1\r\n", ""),
    "one more field": ("x-ftrun-lacks: 0-1\r\n", "x-ftrun-lacks: 0-1\r\nx-more: 1\r\n"),
    "joined": ("r1\r\nx-ftrun-lacks: 0-1", "r1x-ftrun-lacks: 0-1"),
}


@pytest.mark.parametrize("what", ALTERATIONS)
def test_a_request_that_was_altered_on_its_way_is_refused(server: StateServer, what: str) -> None:
    for tag in (TAG, LATER):
        server.offer(tag, STATE_ID, {"w": torch.ones(2)})
    before, after = ALTERATIONS[what]
    target = path(ROUTE_TARGETS["data"])
    fields = {"x-ftrun-receiver": "r1", "x-ftrun-lacks": "0-1"}
    with Caller(server.address, TOKEN) as caller:
        assert caller.send(caller.head("GET", target, fields)).status == 200
        request = caller.head("GET", target, fields).decode()
        assert before in request
        assert caller.send(request.replace(before, after).encode()).status == 401
        assert caller.is_ended()


def test_nothing_is_served_without_a_token() -> None:
    with pytest.raises(Bug, match="without a token"):
        StateServer("127.0.0.1", "")


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


def test_a_state_kept_between_two_steps_is_for_those_that_catch_up(server: StateServer) -> None:
    server.offer(TAG, STATE_ID, {"w": torch.ones(2)}, kept=True)
    status, text = ask(server, path("header"))
    assert status == 409 and b"not offered yet" in text
    assert ask(server, path("header"), x_ftrun_catches_up="1")[0] == 200
    server.offer(TAG, STATE_ID, {"w": torch.ones(2)})  # the donor's next step has begun
    assert ask(server, path("header"))[0] == 200


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
        b"GET / HTTP/1.1\r\nx-ftrun-lacks: 0-1\r\nX-ftrun-lacks: 0-0\r\n\r\n",
    ],
    ids=["long", "tls", "fields", "colon", "twice"],
)
def test_what_is_no_request_is_answered_400_and_closed(server: StateServer, sent: bytes) -> None:
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port)), WAIT_S) as sock:
        sock.sendall(sent)
        answer = sock.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("length", ["-1", "x", "9" * 19, "1"])
def test_a_length_that_cannot_be_is_refused(server: StateServer, length: str) -> None:
    assert ask(server, path("header"), content_length=length)[0] == 400


def test_a_hello_of_tls_is_refused_at_once(server: StateServer) -> None:
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port)), WAIT_S) as sock:
        sock.sendall(b"\x16\x03\x01\x02\x00\x01")  # A TLS client sends more only after an answer.
        assert sock.makefile("rb").read().startswith(b"HTTP/1.1 400 ")


def test_connections_are_bounded(server: StateServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "CONNECTIONS_MAX", 2)
    server.offer(TAG, STATE_ID, {"w": torch.ones(2)})
    host, port = server.address.split(":")
    request = f"GET {path('header')} HTTP/1.1\r\n\r\n".encode()
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
    with Caller(server.address, TOKEN) as caller:
        target = path(f"data?offset=0&length={nbytes}")
        request = caller.head("GET", target, {"x-ftrun-receiver": "r1"})
        caller.sock.sendall(request)
        reader = caller.sock.makefile("rb")
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
