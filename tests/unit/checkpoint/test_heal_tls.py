"""Heals over TLS: no eavesdropper can read them, and only the announced donor can answer.

Not here: complete states and bad networks, which test_heal.py tests with TLS and without.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch

from ftrun.base import clock
from ftrun.base.errors import PeerError
from ftrun.checkpoint import line, listening, tls
from ftrun.checkpoint.heal import FetchedState, fetch
from ftrun.checkpoint.serve import StateServer
from ftrun.core.ids import Attempt, StateId, Tag
from ftrun.tools.certs import write_certificates
from tests.unit.checkpoint.asking import Caller
from tests.unit.checkpoint.proxy import Proxy, Tap
from tests.unit.checkpoint.state_trees import same

TOKEN = "5a" * 32
TAG = Tag(Attempt(8, 1), 10)
STATE_ID = StateId(10, "abcd")
TIMEOUT_S = 60.0
AT_ONCE_S = TIMEOUT_S / 4
HEADER = f"/state/{TAG.path()}/header"
TREE: dict[str, Any] = {"weights_of_ours": torch.arange(3 << 20, dtype=torch.int32), "rate": 0.25}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def donor(stack: ExitStack, is_tls: bool = True) -> StateServer:
    server = StateServer("127.0.0.1", TOKEN, tls=is_tls)
    stack.callback(server.close)
    server.offer(TAG, STATE_ID, TREE)
    return server


def network(stack: ExitStack, address: str, tap: Tap) -> str:
    proxy = Proxy(address, answers=tap.answers, requests=tap.requests)
    stack.callback(proxy.close)
    return proxy.address


def heal(address: str, certificate: str | None) -> FetchedState:
    shown = None if certificate is None else {address: certificate}
    return fetch([address], TAG, TOKEN, TIMEOUT_S, certificates=shown)


def refused(address: str, certificate: str | None) -> str:
    """The error text of a heal that fails."""
    began = clock.now()
    with pytest.raises(PeerError, match="Nothing was applied") as caught:
        heal(address, certificate)
    assert clock.now() - began < AT_ONCE_S  # Otherwise it would be asked for TIMEOUT_S.
    return str(caught.value)


# ---------------------------------------------------------------- eavesdroppers


@pytest.mark.parametrize("is_tls", [False, True])
def test_who_listens_reads_the_state_without_tls_only(stack: ExitStack, is_tls: bool) -> None:
    tap, server = Tap(), donor(stack, is_tls)
    address = network(stack, server.address, tap)
    assert same(heal(address, server.certificate if is_tls else None).tree, TREE)
    part = TREE["weights_of_ours"][1000:1004].numpy().tobytes()
    for words in (part, b"weights_of_ours", b"HTTP/1.1", TAG.path().encode()):
        assert (words in tap.heard) != is_tls, words


def test_the_certificate_is_made_anew_and_nothing_of_it_is_left_open(stack: ExitStack) -> None:
    donor(stack).close()  # Descriptors that stay open are open now.
    before = sorted(os.listdir("/proc/self/fd"))
    found = {tls.ServerIdentity().fingerprint for _ in range(5)}
    assert len(found) == 5
    assert all(re.fullmatch("[0-9a-f]{64}", fingerprint) for fingerprint in found)
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_only_tls_1_3_is_spoken(stack: ExitStack) -> None:
    server = donor(stack)
    with Caller(server.address, TOKEN, server.certificate) as caller:
        assert isinstance(caller.sock, ssl.SSLSocket)
        assert caller.sock.version() == "TLSv1.3"
        assert caller.ask(HEADER, x_ftrun_receiver="r1").status == 200
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    host, port = server.address.split(":")
    with (
        socket.create_connection((host, int(port)), TIMEOUT_S) as sock,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        context.wrap_socket(sock)


# ---------------------------------------------------------------- false donors


def test_a_donor_with_another_certificate_is_asked_for_nothing(stack: ExitStack) -> None:
    tap, server, other = Tap(), donor(stack), donor(stack)
    address = network(stack, server.address, tap)
    assert "shows another certificate" in refused(address, other.certificate)
    with Caller(server.address, TOKEN, server.certificate) as caller:
        assert caller.ask(HEADER, x_ftrun_receiver="r1").status == 200


@pytest.mark.parametrize("announced", ["", "ab", "AB" * 32, "ab" * 33, "ab" * 31 + "é", "xy" * 32])
def test_a_donor_that_announces_no_certificate_is_asked_for_nothing(
    stack: ExitStack, announced: str
) -> None:
    tap = Tap()
    assert "announced no certificate" in refused(
        network(stack, donor(stack).address, tap), announced
    )
    assert not tap.asked


def test_a_donor_without_tls_is_refused_at_once(stack: ExitStack) -> None:
    tap, server = Tap(), donor(stack, is_tls=False)
    text = refused(network(stack, server.address, tap), "ab" * 32)
    assert "does not speak TLS" in text
    assert b"/state/" not in tap.heard


def test_a_donor_with_tls_refuses_who_speaks_none(stack: ExitStack) -> None:
    server = donor(stack)
    assert server.address in refused(server.address, None)
    assert same(heal(server.address, server.certificate).tree, TREE)


class Relay:
    """A man in the middle with a certificate of his own, who forwards everything.

    Requests come one at a time, so one thread for each connection is enough.
    """

    def __init__(self, directory: Path, donor: StateServer) -> None:
        write_certificates(directory, ("127.0.0.1",))
        self._shown = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._shown.load_cert_chain(directory / "lighthouse.pem", directory / "lighthouse.key")
        pem = (directory / "lighthouse.pem").read_text()
        self.certificate = sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()
        self._donor = donor
        self.passed = bytearray()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(TIMEOUT_S)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._relay(self._listener.accept()[0])

    def _relay(self, inner: socket.socket) -> None:
        inner.settimeout(TIMEOUT_S)
        with (
            contextlib.suppress(OSError),
            self._shown.wrap_socket(inner, server_side=True) as receiver,
            Caller(self._donor.address, "", self._donor.certificate) as outer,
        ):
            while data := receiver.recv(1 << 16):
                self.passed += data
                outer.sock.sendall(data)
                answer = http.client.HTTPResponse(outer.sock)
                answer.begin()
                fields = "".join(f"{n}: {v}\r\n" for n, v in answer.getheaders())
                head = f"HTTP/1.1 {answer.status} x\r\n{fields}\r\n".encode()
                receiver.sendall(head + answer.read())


def test_who_relays_under_a_certificate_of_his_own_is_found_out(
    stack: ExitStack, tmp_path: Path
) -> None:
    server = donor(stack)
    relay = Relay(tmp_path, server)
    stack.callback(relay.close)
    assert "shows another certificate" in refused(relay.address, server.certificate)
    assert not relay.passed


def test_a_proof_for_one_certificate_is_none_for_another(stack: ExitStack, tmp_path: Path) -> None:
    """Even a receiver that accepts the relay's certificate gives him no valid proof."""
    server = donor(stack)
    relay = Relay(tmp_path, server)
    stack.callback(relay.close)
    assert "HTTP 401" in refused(relay.address, relay.certificate)
    assert b"FtrunMac" in relay.passed  # So the request was relayed, and the donor refused it.
    with Caller(server.address, TOKEN, server.certificate, relay.certificate) as caller:
        assert caller.ask(HEADER, x_ftrun_receiver="r1").status == 401


# ---------------------------------------------------------------- silence and nonsense


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00", b"\xff" * 40_000],
    ids=["nothing", "http", "hello", "noise"],
)
def test_who_shakes_no_hands_costs_one_connection(
    stack: ExitStack, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "REQUEST_TIMEOUT_S", 0.2)
    server = donor(stack)
    host, port = server.address.split(":")
    with (
        socket.create_connection((host, int(port)), TIMEOUT_S) as sock,
        contextlib.suppress(ConnectionError),
    ):
        sock.sendall(sent)
        while sock.recv(1 << 16):
            pass
    monkeypatch.undo()
    assert same(heal(server.address, server.certificate).tree, TREE)


def test_a_donor_that_says_nothing_is_given_up(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:

    monkeypatch.setattr(line, "CONNECT_TIMEOUT_S", 0.2)
    silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    address = f"127.0.0.1:{silent.getsockname()[1]}"
    assert "before the deadline" in refused(address, "ab" * 32)


def test_a_donor_that_hangs_up_is_said_to(stack: ExitStack) -> None:
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

    def hang_up() -> None:
        sock, _ = listener.accept()
        sock.recv(1 << 16)
        sock.close()

    thread = threading.Thread(target=hang_up, daemon=True)
    thread.start()
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    assert "instead of speaking TLS" in refused(address, "ab" * 32)
    thread.join(TIMEOUT_S)


def test_a_head_longer_than_a_read_is_read_whole(stack: ExitStack) -> None:
    """TLS has taken all bytes from the socket by then: a wait for the socket would never end."""
    server = donor(stack)
    with Caller(server.address, TOKEN, server.certificate) as caller:
        fields = {"x_ftrun_receiver": "r1", "x_more": "y" * 9000}
        assert caller.ask(HEADER, **fields).status == 200
        assert caller.ask(HEADER, **fields).status == 200
