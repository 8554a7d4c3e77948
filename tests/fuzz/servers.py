"""Whole servers, fed with damaged bytes over real sockets: they must live, answer, and stay small.

A lighthouse is a process of its own, started as an agent starts it. Each kind of feeding is one
``Server``: gRPC messages within a stream, the bytes of a stream itself (HTTP/2), HTTP, and the
same without the token, of which nothing may be accepted. A worker's state server and an agent's
Unix socket live in a child of this process (hosts.py). Not here: readers as functions (targets.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import grpc
import grpc.aio
import psutil

from ftrun.core import messages as m
from ftrun.core.ids import StateId, WorkerKey
from ftrun.errors import ProtocolError
from ftrun.protocol.auth import bearer, new_token
from ftrun.protocol.codec import encode
from ftrun.protocol.frames import encode_frame
from ftrun.protocol.rpc import ATTACH, CHANNEL_OPTIONS
from ftrun.protocol.streams import take_batch
from ftrun.status.client import fetch_status
from tests.fuzz.mutations import mutate, sample
from tests.unit.lighthouse.lighthouse_process import LighthouseProcess

SPEC = m.JobSpec("job", 2, 1, 1, 5.0, 60.0, 120.0)
ANSWER_S = 10.0
SILENCE_S = 0.05
TRIES = 100
TOGETHER = 16
"""So many inputs are on their way at once."""
LOG_LINES_MAX = 30
FINDINGS_MAX = 100
REFUSALS = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}


class Server:
    """A process and one way to feed it. ``feed`` counts what was accepted and refused."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.wrong: list[str] = []

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the process."""

    def stop(self) -> None:
        """End it."""

    def pid(self) -> int:
        """The process that is fed."""
        raise NotImplementedError

    def one(self, rng: Random) -> bool:
        """Feed one input; True if it was accepted."""
        raise NotImplementedError

    def is_well(self) -> str:
        """What is wrong with it now; empty: it serves whoever comes rightly."""
        raise NotImplementedError

    def feed(self, numbers: Iterable[int], seed: int) -> tuple[int, int]:
        """Feed the inputs of these numbers; returns how many were accepted and refused."""

        def feed_one(number: int) -> bool | None:
            if len(self.wrong) > FINDINGS_MAX:
                return None
            try:
                return self.one(Random(f"{seed}/{number}"))
            except (OSError, AssertionError) as error:
                self.wrong.append(f"input {seed}/{number}: {error!r}")
                return None

        with ThreadPoolExecutor(TOGETHER) as pool:
            found = list(pool.map(feed_one, numbers))
        return found.count(True), found.count(False)

    def rss(self) -> int:
        """Its resident memory; none if it has ended."""
        try:
            return int(psutil.Process(self.pid()).memory_info().rss)
        except psutil.NoSuchProcess:
            return 0

    def findings(self) -> list[str]:
        """What was not as declared."""
        why = self.is_well()
        return [*self.wrong, *([why] if why else [])]


def servers(directory: Path) -> list[Server]:
    """All of them; files go below ``directory``."""
    return [
        *(LighthouseMessages(directory, known) for known in (True, False)),
        *(LighthouseBytes(directory, known) for known in (True, False)),
        *(LighthouseHttp(directory, known) for known in (True, False)),
        *(HostedBytes(directory, kind, known) for kind in HOSTED for known in (True, False)),
    ]


def _words(known: bool) -> str:
    return "with the token" if known else "without"


# ---------------------------------------------------------------- a lighthouse


class _OfLighthouse(Server):
    """A lighthouse in its own process."""

    def __init__(self, directory: Path, kind: str, known: bool) -> None:
        super().__init__(f"{kind}, {_words(known)}")
        self._known = known
        self._lighthouse = LighthouseProcess(directory / str(abs(hash(self.name))), new_token())
        self._token = self._lighthouse.token if known else new_token()
        self._reader: threading.Thread | None = None

    def start(self) -> None:
        self._lighthouse.state_dir.mkdir()
        self._lighthouse.start()
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()

    def _read_log(self) -> None:
        """It says a line for each agent; a full pipe would stop it."""
        process = self._lighthouse.process
        assert process is not None and process.stdout is not None
        left = 0
        for line in process.stdout:
            if b"Traceback" in line or b"contradicts itself" in line:
                left = LOG_LINES_MAX
                self.wrong.append("it says:\n")
            if left > 0:
                left -= 1
                self.wrong[-1] += line.decode(errors="replace")

    def stop(self) -> None:
        process = self._lighthouse.process
        assert process is not None and process.stdout is not None
        process.kill()
        process.wait(ANSWER_S)
        assert self._reader is not None
        self._reader.join(ANSWER_S)
        process.stdout.close()
        self._lighthouse.process = None

    def pid(self) -> int:
        assert self._lighthouse.process is not None
        return self._lighthouse.process.pid

    def is_well(self) -> str:
        process = self._lighthouse.process
        assert process is not None
        if process.poll() is not None:
            return f"it ended with {process.returncode}"
        status = fetch_status(self._lighthouse.http, self._lighthouse.token)
        return "" if "lighthouse" in status else f"its status is {status}"


class LighthouseMessages(_OfLighthouse):
    """gRPC messages: damaged batches, and whole ones that make no sense, in streams one by one."""

    def __init__(self, directory: Path, known: bool) -> None:
        super().__init__(directory, "lighthouse, gRPC messages", known)
        self._hello = encode(m.Hello("node", SPEC, 8, "h", "s"))
        self._corpus: list[bytes] = []

    def start(self) -> None:
        super().start()
        rng = Random(3)
        while len(self._corpus) < 60:
            with contextlib.suppress(ProtocolError):
                message = sample(rng.choice(_SAID), rng)
                self._corpus.append(take_batch(deque([self._hello, encode(message)])))

    def feed(self, numbers: Iterable[int], seed: int) -> tuple[int, int]:
        return asyncio.run(self._feed(list(numbers), seed))

    async def _feed(self, numbers: list[int], seed: int) -> tuple[int, int]:
        counts = [0, 0]
        queue = deque(numbers)

        async def work() -> None:
            async with grpc.aio.insecure_channel(self._lighthouse.grpc, CHANNEL_OPTIONS) as channel:
                while queue:
                    number = queue.popleft()
                    try:
                        taken = await self._one(channel, Random(f"{seed}/{number}"))
                        counts[0 if taken else 1] += 1
                    except AssertionError as error:
                        self.wrong.append(f"input {seed}/{number}: {error!r}")
                        if len(self.wrong) > TOGETHER:
                            return

        await asyncio.gather(*(work() for _ in range(TOGETHER)))
        return counts[0], counts[1]

    async def _one(self, channel: Any, rng: Random) -> bool:
        """One stream; it is accepted if the lighthouse says something, and goes on to the end."""
        metadata = (("authorization", bearer(self._token)),)
        call = channel.stream_stream(ATTACH)(metadata=metadata)
        heard = False
        try:
            for data in self._inputs(rng):
                await call.write(data)
            await call.done_writing()
            while await asyncio.wait_for(call.read(), ANSWER_S) is not grpc.aio.EOF:
                heard = True
        except grpc.aio.AioRpcError as error:
            # The client library's own word for a stream that was cut while it wrote.
            cut = "Internal error from Core" in (error.details() or "")
            assert cut or error.code() in REFUSALS, f"{error.code()}: {error.details()}"
            return False
        except asyncio.InvalidStateError:
            return False  # The stream was cut while we wrote.
        except asyncio.TimeoutError:
            raise AssertionError("no answer") from None
        finally:
            call.cancel()
        assert self._known or not heard, "it answered without the token"
        return heard

    def _inputs(self, rng: Random) -> list[bytes]:
        if rng.random() < 0.5:
            return [mutate(rng, self._corpus)]
        hello = m.Hello(rng.choice(("node", "other")), SPEC, rng.choice((0, 1, 8)), "h", "s")
        found = [hello if rng.random() < 0.9 else sample(m.Hello, rng)]
        for _ in range(rng.randrange(4)):
            found.append(sample(rng.choice(_SAID), rng))
        envelopes = []
        for message in found:
            with contextlib.suppress(ProtocolError):
                envelopes.append(encode(message))
        if not envelopes:
            return [b""]
        return [take_batch(deque(envelopes)) for _ in range(rng.choice((1, 1, 2)))]


_SAID = (
    m.WorkerMessage, m.WorkerMessage, m.Heartbeat, m.ReplicaStarted, m.ReplicaStarted,
    m.ReplicaLost, m.ReplicaFinished, m.DrainReplicas, m.Goodbye, m.HeartbeatAck, m.Hello,
)  # fmt: skip


class _OverSockets(_OfLighthouse):
    """Bytes over a connection each; what comes back is read to its end."""

    def address(self) -> str:
        """Where the bytes go."""
        raise NotImplementedError

    def corpus(self) -> list[bytes]:
        """Right ones."""
        raise NotImplementedError

    def one(self, rng: Random) -> bool:
        with _connected(self.address()) as sock:
            answer = _listen(sock, mutate(rng, self.corpus()))
        return self.is_accepted(answer)

    def is_accepted(self, answer: bytes) -> bool:
        """Whether the answer is more than a refusal."""
        raise NotImplementedError


class LighthouseBytes(_OverSockets):
    """The bytes of real gRPC connections, recorded, then flipped, cut, doubled and reordered."""

    def __init__(self, directory: Path, known: bool) -> None:
        super().__init__(directory, "lighthouse, HTTP/2 bytes", known)
        self._recorded: list[bytes] = []

    def start(self) -> None:
        super().start()
        self._recorded = [
            record(self._lighthouse.grpc, self._token, name) for name in ("node", "b")
        ]

    def address(self) -> str:
        return self._lighthouse.grpc

    def corpus(self) -> list[bytes]:
        return self._recorded

    def is_accepted(self, answer: bytes) -> bool:
        # Its Welcome, or the slots: the only frames that carry our batches.
        accepted = b"\x0a" in answer and _data_frame(answer)
        assert self._known or not accepted, f"it answered without the token: {answer[:200]!r}"
        return accepted


class LighthouseHttp(_OverSockets):
    """Requests for every route."""

    def __init__(self, directory: Path, known: bool) -> None:
        super().__init__(directory, "lighthouse, HTTP", known)

    def address(self) -> str:
        return self._lighthouse.http

    def corpus(self) -> list[bytes]:
        return [
            f"GET {path} HTTP/1.1\r\nHost: {self._lighthouse.http}\r\n"
            f"Authorization: {bearer(self._token)}\r\nConnection: close\r\n\r\n".encode()
            for path in ("/status", "/metrics", "/openapi.json")
        ]

    def is_accepted(self, answer: bytes) -> bool:
        accepted = answer.startswith(b"HTTP/1.1 200 ") and b'{"ok": true}' not in answer
        server_error = answer.startswith(b"HTTP/1.1 5")
        assert not server_error, f"it answers {answer[:200]!r}"
        assert self._known or not accepted, f"it answered without the token: {answer[:200]!r}"
        return accepted


def record(address: str, token: str, agent_id: str) -> bytes:
    """What an agent's connection sends, byte for byte, seen by a proxy."""
    host, port = address.split(":")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        seen = bytearray()

        def pump() -> None:
            agent, _ = listener.accept()
            with agent, socket.create_connection((host, int(port)), ANSWER_S) as lighthouse:
                back = threading.Thread(target=_copy, args=(lighthouse, agent, bytearray()))
                back.start()
                _copy(agent, lighthouse, seen)
                back.join(ANSWER_S)

        proxy = threading.Thread(target=pump)
        proxy.start()
        asyncio.run(_attach(f"127.0.0.1:{listener.getsockname()[1]}", token, agent_id))
        proxy.join(ANSWER_S)
    return bytes(seen)


async def _attach(address: str, token: str, agent_id: str) -> None:
    key = WorkerKey("0", "aa", 0)
    words = [
        m.Hello(agent_id, SPEC, 8, "h", "s"),
        m.ReplicaStarted("0", "aa", 0),
        m.WorkerMessage(key, m.Report(StateId(0, "ab"), m.Endpoint("h", "h:1"))),
        m.Heartbeat(),
    ]
    async with grpc.aio.insecure_channel(address, CHANNEL_OPTIONS) as channel:
        opened: Any = channel
        call = opened.stream_stream(ATTACH)(metadata=(("authorization", bearer(token)),))
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            for word in words:
                await call.write(take_batch(deque([encode(word)])))
            await call.done_writing()
            while await asyncio.wait_for(call.read(), ANSWER_S) is not grpc.aio.EOF:
                pass


def _copy(source: socket.socket, sink: socket.socket, seen: bytearray) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            seen += data
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def _data_frame(answer: bytes) -> bool:
    """True if there is an HTTP/2 DATA frame with something in it."""
    at = 0
    while at + 9 <= len(answer):
        length, kind = int.from_bytes(answer[at : at + 3], "big"), answer[at + 3]
        if kind == 0 and length > 5:
            return True
        at += 9 + length
    return False


def _connected(address: str) -> socket.socket:
    """A connection; a server that gives its port to the next one is tried again, as agents do."""
    host, port = address.split(":")
    for _ in range(TRIES):
        with contextlib.suppress(ConnectionError):
            return socket.create_connection((host, int(port)), ANSWER_S)
        time.sleep(SILENCE_S)
    return socket.create_connection((host, int(port)), ANSWER_S)


def _listen(sock: socket.socket, data: bytes) -> bytes:
    """Send all, and hear what comes before it falls silent: a server of these ends at our end."""
    answer = bytearray()
    with contextlib.suppress(ConnectionError, TimeoutError):
        sock.sendall(data)
        sock.settimeout(SILENCE_S)
        while found := sock.recv(65536):
            answer += found
    return bytes(answer)


def _exchange(sock: socket.socket, data: bytes) -> bytes:
    """Send all, say that this is all, and read to the end."""
    answer = bytearray()
    sock.settimeout(ANSWER_S)
    try:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        while found := sock.recv(65536):
            answer += found
    except TimeoutError:
        raise AssertionError("no answer") from None
    except OSError:
        pass  # It has ended the connection before we had.
    return bytes(answer)


# ---------------------------------------------------------------- servers of agents and workers

HOSTED = ("state server, HTTP", "agent, Unix socket")


class HostedBytes(Server):
    """A worker's state server, or an agent's socket, in a child process (hosts.py).

    ``address``: HOST:PORT, or the socket's path. ``token``: the job's.
    """

    def __init__(self, directory: Path, kind: str, known: bool) -> None:
        super().__init__(f"{kind}, {_words(known)}")
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
                f"{method} /state/8.1.10/{route} HTTP/1.1\r\nauthorization: {bearer(token)}\r\n"
                "x-ftrun-receiver: r1\r\n\r\n".encode()
                for method, route in (("GET", "header"), ("GET", "data?offset=0&length=4000"))
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
            answer = _exchange(sock, data)
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
