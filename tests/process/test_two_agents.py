"""Two agents and a separate lighthouse: slots are assigned, and reassigned when an agent dies."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ftrun import clock
from tests.jobs import START_S, THIS_TREE, Job, popen

WAITS = """
import os, signal
print("slot", os.environ["REPLICA_GROUP_ID"], flush=True)
signal.pause()
"""


@pytest.fixture
def lighthouse(tmp_path: Path) -> Iterator[tuple[str, ...]]:
    """A running lighthouse; yields the options by which agents find it."""
    token = tmp_path / "token"
    with listening(tmp_path, token, "127.0.0.1:0") as address:
        yield ("--lighthouse", address, "--token-file", str(token))


@contextlib.contextmanager
def listening(tmp_path: Path, token: Path, bind: str) -> Iterator[str]:
    """A running lighthouse, and its address for agents."""
    with serving(tmp_path, token, bind) as (_, address):
        yield address


@contextlib.contextmanager
def serving(
    tmp_path: Path, token: Path, bind: str, program: Sequence[str] = ("-m", "ftrun")
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A lighthouse's process, which a test may end, and its address for agents."""
    command = [sys.executable, *program, "lighthouse", "--bind", bind]
    command += ["--token-file", str(token), "--state-dir", str(tmp_path / "state")]
    with popen(
        command,
        stdout=subprocess.PIPE,
        env={**os.environ, **THIS_TREE},
    ) as process:
        try:
            yield process, _address(process)
        finally:
            process.terminate()
            process.wait(60)


def _address(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    deadline, said = clock.now() + START_S, ""
    while (found := re.search(r"agents (\S+),", said)) is None:
        ready, _, _ = select.select([process.stdout], [], [], max(0, deadline - clock.now()))
        data = os.read(process.stdout.fileno(), 4096) if ready else b""
        assert data, f"no lighthouse: {said}"
        said += data.decode()
    return found[1]


@pytest.mark.slow
def test_a_dead_agents_slots_are_taken_by_the_other(
    tmp_path: Path, lighthouse: tuple[str, ...]
) -> None:
    options = (*lighthouse, "--replicas", "4", "--nodes", "2")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with Job(tmp_path / "a", WAITS, *options) as one, Job(tmp_path / "b", WAITS, *options) as two:
        first = set(one.expect(r"slot (\d)", 2))
        second = set(two.expect(r"slot (\d)", 2))
        assert first | second == {"0", "1", "2", "3"}
        pids = {slot: two.worker(int(slot)) for slot in second}
        one.signal(signal.SIGKILL)
        assert one.left() == []
        assert set(two.expect(r"slot (\d)", 4)) == {"0", "1", "2", "3"}
        assert {slot: two.worker(int(slot)) for slot in second} == pids
        two.signal(signal.SIGTERM)
        assert two.end() == 75


@pytest.mark.slow
def test_an_agent_with_another_token_is_refused(
    tmp_path: Path, lighthouse: tuple[str, ...]
) -> None:
    other = tmp_path / "other"
    other.write_text("b" * 64)
    other.chmod(0o600)
    with Job(tmp_path, WAITS, *lighthouse[:2], "--token-file", str(other)) as job:
        assert job.end() == 76
        assert "does not accept the token" in job.output
        assert job.left() == []


@pytest.mark.slow
def test_an_agent_that_can_say_hello_when_it_is_refused_hears_it_too(tmp_path: Path) -> None:
    """Its workers were ready before the lighthouse: the agent took the stream for accepted."""
    token, other = tmp_path / "token", tmp_path / "other"
    for path, letter in ((token, "a"), (other, "b")):
        path.write_text(letter * 64)
        path.chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    with Job(tmp_path, WAITS, "--lighthouse", address, "--token-file", str(other)) as job:
        job.expect("No lighthouse answers")
        for title in ("ftrun spawner", "ftrun stores"):
            job.expect_process(title)
        with listening(tmp_path, token, address):
            assert job.end() == 76
        assert "does not accept the token" in job.output


def test_status_asks_the_lighthouse_where_it_said_it_answers(
    tmp_path: Path, lighthouse: tuple[str, ...]
) -> None:
    """Its web server has any port, not the one after the agents' port."""
    with Job(tmp_path, WAITS, *lighthouse) as job:
        job.expect(r"slot 0")
        done = subprocess.run(
            [sys.executable, "-m", "ftrun", "status", "job", "--json"],
            env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")},
            cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert '"job_id": "job"' in done.stdout
        job.signal(signal.SIGTERM)
        assert job.end() == 75
