"""A worker's state server and an agent's Unix socket, each in a child process (hosts.py), fed with
damaged bytes. Not here: lighthouses (lighthouses.py).
"""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from random import Random

import psutil

from ftrun.core import messages as m
from ftrun.core.ids import WorkerKey
from ftrun.protocol.auth import bearer, new_token
from ftrun.protocol.frames import encode_frame
from tests.fuzz.feeding import ANSWER_S, Server, exchange, words
from tests.fuzz.mutations import mutate

HOSTED = ("state server, HTTP", "agent, Unix socket")


class HostedBytes(Server):
    """A worker's state server, or an agent's socket, in a child process (hosts.py).

    ``address``: HOST:PORT, or the socket's path. ``token``: the job's.
    """

    def __init__(self, directory: Path, kind: str, known: bool) -> None:
        super().__init__(f"{kind}, {words(known)}")
        self._known = known
        self._kind = kind
        self.token, self._directory = new_token(), directory
        self._shown = self.token if known else new_token()
        self._process: subprocess.Popen[str] | None = None
        self.address = ""
        self._corpus: list[bytes] = []

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
        self.address = self._process.stdout.readline().strip()
        assert self.address, self._process.communicate()[1]
        self._corpus = self._right_ones(self._shown)

    def _right_ones(self, token: str) -> list[bytes]:
        if self._kind == HOSTED[0]:
            return [
                f"GET /state/8.1.10/{rest}authorization: {bearer(token)}\r\n"
                "x-ftrun-receiver: r1\r\n\r\n".encode()
                for rest in (
                    "header HTTP/1.1\r\n",
                    "data?offset=0&length=4000 HTTP/1.1\r\n",
                    "data?offset=0&length=4000 HTTP/1.1\r\nx-ftrun-lacks: 0-1\r\n",
                )
            ]
        hello = m.WorkerHello(WorkerKey("0", "aa", 0), psutil.Process().pid, token)
        word = m.Progress(3, 3, "step")
        return [encode_frame(hello) + encode_frame(word) for _ in range(2)]

    def stop(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()

    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def one(self, rng: Random) -> bool:
        return self._ask(mutate(rng, self._corpus), self._known)

    def _ask(self, data: bytes, known: bool) -> bool:
        with self._connect() as sock:
            answer = exchange(sock, data)
        accepted = answer.startswith(b"HTTP/1.1 200 ") or b"step" in answer
        assert known or not accepted, f"it answered without the token: {answer[:200]!r}"
        return accepted

    def _connect(self) -> socket.socket:
        if self._kind == HOSTED[0]:
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
        if not self._ask(self._right_ones(self.token)[0], True):
            return "it does not answer who comes rightly"
        self._process.kill()
        said = self._process.communicate()[1]
        return f"it says: {said[-2000:]}" if "Traceback" in said else ""
