"""The service as a process: ports, state directory, token, signals, bad agents."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from rich.console import Console

from ftrun.base.errors import ExitCode
from ftrun.core import messages as m
from ftrun.protocol import rpc
from ftrun.protocol.auth import new_token
from ftrun.protocol.codec import encode
from ftrun.protocol.rpc import Connected, Disconnected, LighthouseConnection
from ftrun.protocol.streams import take_batch
from ftrun.tools.status.view import render
from tests.unit.lighthouse.lighthouse_process import LighthouseProcess
from tests.unit.lighthouse.scripted_agent import ScriptedAgent

SPEC = m.JobSpec("job", 2, 1, 1, 5.0, 10.0, 60.0)
DEADLINE_S = 60.0


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 5 * DEADLINE_S))


def refused(state_dir: Path, grpc: str, http: str) -> str:
    """Start a lighthouse that must not start; returns its output."""
    lighthouse = LighthouseProcess(state_dir, new_token())
    lighthouse.grpc, lighthouse.http = grpc, http
    lighthouse.spawn()
    assert not lighthouse.wait_for("lighthouse ready")
    assert lighthouse.process is not None
    assert lighthouse.process.wait(DEADLINE_S) == ExitCode.USAGE
    lighthouse.end()
    assert len(lighthouse.log.splitlines()) == 1, lighthouse.log
    return lighthouse.log


def test_ports_and_directories_that_are_taken_are_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    free = "127.0.0.1:0"
    with (
        LighthouseProcess(tmp_path / "a", new_token()) as first,
        socket.create_server(("127.0.0.1", 0)) as taken,
    ):
        http = f"127.0.0.1:{taken.getsockname()[1]}"
        assert f"--bind {first.grpc}" in refused(tmp_path / "b", first.grpc, free)
        assert f"--http {http}" in refused(tmp_path / "b", free, http)
        assert "no TLS" in refused(tmp_path / "b", "192.0.2.1:0", free)
        assert "another lighthouse" in refused(tmp_path / "a", free, free)
        assert "--state-dir" in refused(tmp_path / "file" / "c", free, free)
        # The lighthouse that already ran is unaffected.
        assert first.status()["phase"] == "takeover"
    assert not (tmp_path / "b" / "journal").exists()


def test_it_stops_cleanly_and_says_where_it_is_only_while_it_is(tmp_path: Path) -> None:
    with LighthouseProcess(tmp_path, new_token()) as lighthouse:
        assert (tmp_path / "address.json").exists()
        assert lighthouse.end(signal.SIGTERM) == 0
        assert not (tmp_path / "address.json").exists()
        assert (tmp_path / "journal").exists()
        assert "Traceback" not in lighthouse.log


def test_the_token_is_nowhere_to_be_seen(tmp_path: Path) -> None:
    """X4: not in argv, environment, files, log or status."""

    async def main() -> None:
        token = new_token()
        with LighthouseProcess(tmp_path, token) as lighthouse:
            assert lighthouse.process is not None
            agent = ScriptedAgent("node-a", SPEC, [lighthouse.grpc], token)
            await agent.until(lambda: agent.trains(members=2))
            process = Path("/proc") / str(lighthouse.process.pid)
            seen = [(process / name).read_bytes() for name in ("cmdline", "environ")]
            seen.append(str(await asyncio.to_thread(lighthouse.status)).encode())
            await agent.close()
            lighthouse.end(signal.SIGTERM)
            seen += [path.read_bytes() for path in tmp_path.iterdir()]  # no draft is under way now
            assert "attached" in lighthouse.log
            for text in (*seen, lighthouse.log.encode()):
                assert token.encode() not in text

    run(main())


def test_the_status_of_a_job_can_be_shown(tmp_path: Path) -> None:
    async def main() -> None:
        with LighthouseProcess(tmp_path, new_token()) as lighthouse:
            agent = ScriptedAgent("node-a", SPEC, [lighthouse.grpc], lighthouse.token)
            await agent.until(lambda: agent.trains(members=2))
            agent.kill("1")
            await agent.until(lambda: any(getattr(x, "kind", "") == "lost" for x in agent.received))
            status = await asyncio.to_thread(lighthouse.status)
            assert status["lighthouse"]["epoch"] == status["epoch"] > 0
            assert status["replicas"][1]["last_event"]["kind"] == "lost"
            assert status["events"][-1]["replicas"]
            with open(os.devnull, "w") as null:
                console = Console(width=150, record=True, file=null)
                console.print(render(status))
            assert "killed by SIGKILL" in console.export_text()
            await agent.close()

    run(main())


def test_the_second_stream_of_an_agent_replaces_the_first(tmp_path: Path) -> None:
    async def main() -> None:
        with LighthouseProcess(tmp_path, new_token()) as lighthouse:
            agent = ScriptedAgent("node-a", SPEC, [lighthouse.grpc], lighthouse.token)
            await agent.until(lambda: m.Welcome in map(type, agent.received))
            events: asyncio.Queue[Any] = asyncio.Queue()
            second = LighthouseConnection([lighthouse.grpc], lighthouse.token, events.put_nowait)
            task = asyncio.ensure_future(second.run())
            assert isinstance(await events.get(), Connected)
            second.send(m.Hello("node-a", SPEC, 8, "127.0.0.1", "s"))
            assert isinstance(await events.get(), m.Welcome)
            await agent.until(lambda: Disconnected in map(type, agent.received))
            ending = next(x for x in agent.received if isinstance(x, Disconnected))
            assert "another stream" in ending.reason
            second.close()
            agent.connection.close()
            await task
            await agent.close()

    run(main())


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([m.Heartbeat()], "not a Hello"),
        ([m.Hello("x", SPEC, 8, "h", "s"), m.HeartbeatAck()], "not for a lighthouse"),
        ([m.Hello("x", SPEC, 8, "h", "s"), m.Hello("x", SPEC, 8, "h", "s")], "Hello comes first"),
    ],
)
def test_an_agent_that_breaks_the_protocol_is_cut_and_told(
    tmp_path: Path, words: list[Any], why: str
) -> None:
    async def main() -> None:
        with LighthouseProcess(tmp_path, new_token()) as lighthouse:
            events: asyncio.Queue[Any] = asyncio.Queue()
            bad = LighthouseConnection([lighthouse.grpc], lighthouse.token, events.put_nowait)
            task = asyncio.ensure_future(bad.run())
            assert isinstance(await events.get(), Connected)
            for word in words:
                bad.send(word)
            while not isinstance(event := await events.get(), Disconnected):
                pass
            assert why in event.reason
            bad.close()
            await task
            assert (await asyncio.to_thread(lighthouse.status))["lighthouse"][
                "agents_attached"
            ] == 0

    run(main())


def test_a_journal_that_cannot_be_written_stops_it(tmp_path: Path) -> None:
    """Nothing is sent that is not on disk; training continues, and a restart takes over."""

    async def main() -> None:
        with LighthouseProcess(tmp_path, new_token()) as lighthouse:
            agent = ScriptedAgent("node-a", SPEC, [lighthouse.grpc], lighthouse.token)
            (tmp_path / "journal").unlink(missing_ok=True)
            (tmp_path / "journal").mkdir()  # nothing can take its place
            await agent.until(lambda: Disconnected in map(type, agent.received))
            assert m.NewQuorum not in [
                type(x.message) for x in agent.received if isinstance(x, m.ToWorkers)
            ]
            assert lighthouse.process is not None
            code = await asyncio.to_thread(lighthouse.process.wait, DEADLINE_S)
            assert code == ExitCode.LIGHTHOUSE_UNREACHABLE
            agent.connection.close()
            await agent.close()
            lighthouse.end()
            assert "journal cannot be written" in lighthouse.log

    run(main())


AGENT = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from tests.unit.lighthouse.scripted_agent import ScriptedAgent
from tests.unit.lighthouse.test_service import SPEC

async def main():
    agent = ScriptedAgent("node-a", SPEC, [sys.argv[2]], sys.stdin.read())
    await agent.until(lambda: agent.trains(members=2))
    print("trains", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_an_agent_that_is_killed_is_lost_at_once(tmp_path: Path) -> None:
    """The kernel closes its stream; nobody waits for heartbeats to run out."""
    with LighthouseProcess(tmp_path, new_token()) as lighthouse:
        here = str(Path(__file__).parents[3])
        agent = subprocess.Popen(
            [sys.executable, "-c", AGENT, here, lighthouse.grpc],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert agent.stdin is not None and agent.stdout is not None
        agent.stdin.write(lighthouse.token.encode())
        agent.stdin.close()
        assert agent.stdout.readline() == b"trains\n"
        agent.kill()
        assert lighthouse.wait_for("agent node-a detached")
        assert "no heartbeat" not in lighthouse.log
        assert lighthouse.status()["replicas"][0]["phase"] == "absent"
        agent.wait(DEADLINE_S)
        agent.stdout.close()


@pytest.mark.slow
def test_an_agent_that_does_not_drain_is_cut(tmp_path: Path) -> None:
    """It sends and never reads: the answers pile up, in the stream's window and then in ours."""

    async def main() -> None:
        with LighthouseProcess(tmp_path, new_token()) as lighthouse:
            metadata = (("authorization", f"Bearer {lighthouse.token}"),)
            fixed_window = [("grpc.http2.bdp_probe", 0)]
            async with grpc.aio.insecure_channel(lighthouse.grpc, fixed_window) as channel:
                opened: Any = channel
                call = opened.stream_stream(rpc.ATTACH)(metadata=metadata)
                hello = encode(m.Hello("deaf", SPEC, 8, "h", "s"))
                await call.write(take_batch(deque([hello])))
                beat = take_batch(deque([encode(m.Heartbeat())]))
                attached = 1
                while attached:
                    for _ in range(10_000):
                        await call.write(beat)
                    status = await asyncio.to_thread(lighthouse.status)
                    attached = status["lighthouse"]["agents_attached"]
                with pytest.raises(grpc.aio.AioRpcError, match="drain"):
                    while await call.read():
                        pass

    run(main())
