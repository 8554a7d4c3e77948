"""A lighthouse in a separate process, fed over gRPC, HTTP/2 and HTTP.

With the token, valid input must be accepted and damaged input refused. Without it, all input must
be refused. Not here: servers of agents and workers (hosted.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import grpc
import grpc.aio

from ftrun.base.errors import ProtocolError
from ftrun.core import messages as m
from ftrun.core.ids import StateId, WorkerKey
from ftrun.core.quorum import Endpoint
from ftrun.protocol.auth import bearer, new_token
from ftrun.protocol.codec import encode
from ftrun.protocol.rpc import ATTACH, CHANNEL_OPTIONS
from ftrun.protocol.streams import take_batch
from ftrun.tools.status.client import fetch_status
from tests.fuzz.feeding import ANSWER_S, TOGETHER, Server, connected, listen, words
from tests.fuzz.mutations import mutate, sample
from tests.unit.lighthouse.lighthouse_process import LighthouseProcess

SPEC = m.JobSpec("job", 2, 1, 1, 5.0, 60.0, 120.0)
LOG_LINES_MAX = 30
REFUSALS = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}


class _OfLighthouse(Server):
    """A lighthouse in a separate process."""

    def __init__(self, directory: Path, kind: str, known: bool) -> None:
        super().__init__(f"{kind}, {words(known)}")
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
        """Drain the log: it has a line for each agent, and a full pipe would block the
        lighthouse."""
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
    """gRPC messages: damaged batches, and whole ones without sense, each in one stream."""

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
        """Feed one stream; it is accepted if the lighthouse sends a message and the stream ends in
        order."""
        metadata = (("authorization", bearer(self._token)),)
        call = channel.stream_stream(ATTACH)(metadata=metadata)
        heard = False
        try:
            for data in self._inputs(rng):
                await call.write(data)
            await call.done_writing()
            while await asyncio.wait_for(call.read(), ANSWER_S) is not grpc.aio.EOF:  # type: ignore[attr-defined]
                heard = True
        except grpc.aio.AioRpcError as error:
            # The client library's own error for a stream that was cut during a write.
            cut = "Internal error from Core" in (error.details() or "")
            if not cut and error.code() not in REFUSALS:
                raise AssertionError(f"{error.code()}: {error.details()}") from error
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
        found += [sample(rng.choice(_SAID), rng) for _ in range(rng.randrange(4))]
        envelopes = []
        for message in found:
            with contextlib.suppress(ProtocolError):
                envelopes.append(encode(message))
        if not envelopes:
            return [b""]
        return [take_batch(deque(envelopes)) for _ in range(rng.choice((1, 1, 2)))]


_SAID = (
    m.WorkerMessage, m.WorkerMessage, m.Heartbeat, m.ReplicaStarted, m.ReplicaStarted,
    m.ReplicaLost, m.ReplicaFinished, m.AgentLeaving, m.Goodbye, m.HeartbeatAck, m.Hello,
)  # fmt: skip


class _OverSockets(_OfLighthouse):
    """Bytes over one connection for each input; the answer is read to its end."""

    def address(self) -> str:
        """The address that the bytes go to."""
        raise NotImplementedError

    def corpus(self) -> list[bytes]:
        """Valid inputs."""
        raise NotImplementedError

    def one(self, rng: Random) -> bool:
        with connected(self.address()) as sock:
            answer = listen(sock, mutate(rng, self.corpus()))
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
        # its Welcome, or the slots: the only frames with ftrun's batches
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
    """The bytes that an agent's connection sends, seen by a proxy."""
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
        m.WorkerMessage(key, m.Report(StateId(0, "ab"), Endpoint("h", "h:1"))),
        m.Heartbeat(),
    ]
    async with grpc.aio.insecure_channel(address, CHANNEL_OPTIONS) as channel:
        opened: Any = channel
        call = opened.stream_stream(ATTACH)(metadata=(("authorization", bearer(token)),))
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            for word in words:
                await call.write(take_batch(deque([encode(word)])))
            await call.done_writing()
            while await asyncio.wait_for(call.read(), ANSWER_S) is not grpc.aio.EOF:  # type: ignore[attr-defined]
                pass


def _copy(source: socket.socket, sink: socket.socket, seen: bytearray) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            seen += data
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def _data_frame(answer: bytes) -> bool:
    """True if there is an HTTP/2 DATA frame that is not empty."""
    at = 0
    while at + 9 <= len(answer):
        length, kind = int.from_bytes(answer[at : at + 3], "big"), answer[at + 3]
        if kind == 0 and length > 5:
            return True
        at += 9 + length
    return False
