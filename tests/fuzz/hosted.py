"""A worker's state server and an agent's Unix socket, each in a child process (hosts.py), fed with
damaged bytes.

Most requests to a state server are damaged first and proved then, as an attacker with the token
would do it: a damaged proof alone would hide all code behind it.

Not here: lighthouses (lighthouses.py).
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import psutil

from ftrun.base.errors import ProtocolError
from ftrun.checkpoint.proof import PROOF_FIELD, Proofs, heal_key, read_challenge
from ftrun.checkpoint.wire import parse_head
from ftrun.core import messages as m
from ftrun.core.activity import Activity
from ftrun.core.ids import WorkerKey
from ftrun.protocol.auth import new_token
from ftrun.protocol.frames import encode_frame
from tests.fuzz.feeding import ANSWER_S, Server, exchange, words
from tests.fuzz.mutations import mutate

STATES = ("state server, HTTP", "state server, TLS")
HOSTED = (*STATES, "agent, Unix socket")
UNASKED = 0.1
"""The share of inputs that are sent before the server's challenge."""
DAMAGED_PROOFS = 0.2
REQUESTS = [
    f"GET /state/8.1.10/{rest}x-ftrun-receiver: r1\r\n\r\n".encode()
    for rest in (
        "header HTTP/1.1\r\n",
        "data?offset=0&length=4000 HTTP/1.1\r\n",
        "data?offset=0&length=4000 HTTP/1.1\r\nx-ftrun-lacks: 0-1\r\n",
    )
]


class HostedBytes(Server):
    """A worker's state server, or an agent's socket, in a child process (hosts.py).

    ``address``: HOST:PORT, or the socket's path. ``token``: the job's. ``certificate``: the
    fingerprint of the certificate of a server with TLS.
    """

    def __init__(self, directory: Path, kind: str, known: bool) -> None:
        super().__init__(f"{kind}, {words(known)}")
        self._known = known
        self._kind = kind
        self.token, self._directory = new_token(), directory
        self._shown = self.token if known else new_token()
        self._process: subprocess.Popen[str] | None = None
        self.address = self.certificate = ""
        self._hellos: list[bytes] = []

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.fuzz.hosts", self._kind, str(self._directory)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, text=True,
            cwd=Path(__file__).parents[2],
        )  # fmt: skip
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(self.token + "\n")
        self._process.stdin.flush()
        self.address, _, self.certificate = self._process.stdout.readline().strip().partition(" ")
        assert self.address, self._process.communicate()[1]
        self._hellos = [_tls_hello()] if self.certificate else REQUESTS

    def stop(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()

    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def one(self, rng: Random) -> bool:
        if self._kind in STATES:
            accepted = self._one_request(rng)
        else:
            accepted = b"step" in self._exchange(mutate(rng, _words(self._shown)))
        assert self._known or not accepted, "it answered without the token"
        return accepted

    def _one_request(self, rng: Random) -> bool:
        if rng.random() < UNASKED:
            answer = self._exchange(mutate(rng, self._hellos))
        elif rng.random() < DAMAGED_PROOFS:
            request = rng.choice(REQUESTS)
            answer = self._ask(self._shown, lambda proofs: mutate(rng, [_proved(proofs, request)]))
        else:
            request = mutate(rng, REQUESTS)
            answer = self._ask(self._shown, lambda proofs: _proved(proofs, request))
        return answer.startswith(b"HTTP/1.1 200 ")

    def _exchange(self, data: bytes) -> bytes:
        with self._connect() as sock:
            return exchange(sock, data)

    def _ask(self, token: str, request: Callable[[Proofs], bytes]) -> bytes:
        """A state server's answer to a request that was made for its challenge."""
        with self._connect() as plain, self._wrapped(plain) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
            refusal = b""
            while not refusal.endswith(b"token"):
                refusal += sock.recv(4096) or b"token"
            challenge = read_challenge(parse_head(refusal.partition(b"\r\n\r\n")[0]).fields)
            proofs = Proofs(heal_key(token), challenge, self.certificate)
            return exchange(sock, request(proofs))

    def _wrapped(self, sock: socket.socket) -> socket.socket:
        return _TLS.wrap_socket(sock) if self.certificate else sock

    def _connect(self) -> socket.socket:
        if self._kind in STATES:
            host, port = self.address.split(":")
            return socket.create_connection((host, int(port)), ANSWER_S)
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(ANSWER_S)
        sock.connect(self.address)
        return sock

    def is_well(self) -> str:
        assert self._process is not None
        if self._process.poll() is not None:
            return f"it ended: {self._process.communicate()[1][-2000:]}"
        if not self._answers_rightly():
            return "it does not answer who comes rightly"
        self._process.kill()
        said = self._process.communicate()[1]
        return f"it says: {said[-2000:]}" if "Traceback" in said else ""

    def _answers_rightly(self) -> bool:
        if self._kind in STATES:
            answer = self._ask(self.token, lambda proofs: _proved(proofs, REQUESTS[0]))
            return answer.startswith(b"HTTP/1.1 200 ")
        return b"step" in self._exchange(_words(self.token)[0])


def _words(token: str) -> list[bytes]:
    """A worker's messages to its agent."""
    hello = m.WorkerHello(WorkerKey("0", "aa", 0), psutil.Process().pid, token)
    return [encode_frame(hello) + encode_frame(m.Progress(3, 3, Activity.STEP))]


def _proved(proofs: Proofs, data: bytes) -> bytes:
    """A request with a proof of its content; unchanged if it cannot be read."""
    said, end, rest = data.partition(b"\r\n\r\n")
    try:
        head = parse_head(said)
    except ProtocolError:
        return data
    proof = proofs.next(head.line, head.fields)
    return said + f"\r\n{PROOF_FIELD}: {proof}".encode() + end + rest


def _any_server() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


_TLS = _any_server()


def _tls_hello() -> bytes:
    """The first message of TLS."""
    outgoing = ssl.MemoryBIO()
    session = _TLS.wrap_bio(ssl.MemoryBIO(), outgoing)
    with contextlib.suppress(ssl.SSLWantReadError):
        session.do_handshake()
    return outgoing.read()
