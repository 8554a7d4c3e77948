"""``ftrun lighthouse --torchft-bind``, fed over gRPC: the only port that demands no token.

Not here: its readers as functions (torchft_targets.py).
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import grpc
import grpc.aio

from ftrun.compat.torchft_wire import torchft_pb2 as wire
from tests.fuzz.feeding import ANSWER_S, TOGETHER, Server
from tests.fuzz.mutations import mutate
from tests.fuzz.torchft_targets import requests

JOIN_S = 0.2
READY = re.compile(r"TORCHFT_LIGHTHOUSE=http://(\S+) ")
ACCEPTED = (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED)
REFUSED = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNIMPLEMENTED,
)
METHODS = ("Quorum", "Quorum", "Heartbeat", "Kill")


class TorchftLighthouse(Server):
    """Requests that are damaged, or whole and senseless; in rooms of their own now and then."""

    def __init__(self, directory: Path) -> None:
        super().__init__("torchft's lighthouse, gRPC messages, no token needed")
        self._directory = directory / "torchft"
        self._process: subprocess.Popen[str] | None = None
        self._address = ""
        self._reader: threading.Thread | None = None

    def start(self) -> None:
        self._directory.mkdir()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ftrun", "lighthouse", "--bind", "127.0.0.1:0",
             "--state", str(self._directory), "--token-file", str(self._directory / "token"),
             "--torchft-bind", "127.0.0.1:0", "--torchft-heartbeat-timeout", "1"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ},
        )  # fmt: skip
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if found := READY.search(line):
                self._address = found[1]
                break
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()

    def _read_log(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            if "Traceback" in line or "contradicts itself" in line:
                self.wrong.append(f"it says: {line}")

    def stop(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        self._process.kill()
        self._process.wait(ANSWER_S)
        assert self._reader is not None
        self._reader.join(ANSWER_S)
        self._process.stdout.close()

    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def is_well(self) -> str:
        """A healthy client of a room without fed inputs gets its quorum."""
        with grpc.insecure_channel(self._address) as channel:
            join = channel.unary_unary("/torchft.LighthouseService/Quorum")  # type: ignore[call-arg]
            member = wire.QuorumMember(replica_id="well")
            request = wire.LighthouseQuorumRequest(requester=member).SerializeToString()
            answer = join(request, timeout=ANSWER_S, metadata=(("room-id", "own"),))
        found = wire.LighthouseQuorumResponse.FromString(answer).quorum
        names = [x.replica_id for x in found.participants]
        return "" if names == ["well"] else f"its quorum is {names}"

    def feed(self, numbers: Iterable[int], seed: int) -> tuple[int, int]:
        return asyncio.run(self._feed(deque(numbers), seed))

    async def _feed(self, queue: deque[int], seed: int) -> tuple[int, int]:
        counts = [0, 0]

        async def work() -> None:
            async with grpc.aio.insecure_channel(self._address) as channel:
                while queue:
                    number = queue.popleft()
                    code = await self._one(channel, Random(f"{seed}/{number}"))
                    if code not in (*ACCEPTED, *REFUSED):
                        self.wrong.append(f"input {seed}/{number}: {code}")
                    counts[0 if code in ACCEPTED else 1] += 1

        await asyncio.gather(*(work() for _ in range(TOGETHER)))
        return counts[0], counts[1]

    async def _one(self, channel: Any, rng: Random) -> grpc.StatusCode:
        data = mutate(rng, requests()) if rng.random() < 0.8 else rng.choice(requests())
        service = "ManagerService" if (method := rng.choice(METHODS)) == "Kill" else ""
        call = channel.unary_unary(f"/torchft.{service or 'LighthouseService'}/{method}")
        room = rng.choice(("", "", "a", "b" * 600, str(rng.randrange(100))))
        metadata = (("room-id", room),) if room else ()
        try:
            await call(data, timeout=JOIN_S, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            return error.code()
        return grpc.StatusCode.OK
