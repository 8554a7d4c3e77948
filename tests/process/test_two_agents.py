"""Two agents and a separate lighthouse: slots are assigned, and reassigned when an agent dies."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.jobs import Job, Lighthouse, ask

WAITS = """
import os, signal
print("slot", os.environ["REPLICA_GROUP_ID"], flush=True)
signal.pause()
"""

SAVES = """
import os, signal, time
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
print("up", flush=True)
while not asked:
    time.sleep(0.02)
print("saves", flush=True)
while not os.path.exists("saved"):
    time.sleep(0.02)
"""


@pytest.fixture
def lighthouse(tmp_path: Path) -> Iterator[tuple[str, ...]]:
    """A running lighthouse; yields the options by which agents find it."""
    with Lighthouse(tmp_path) as house:
        yield house.found_by


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
        with Lighthouse(tmp_path, bind=address):
            assert job.end() == 76
        assert "does not accept the token" in job.output


def test_status_asks_the_lighthouse_where_it_said_it_answers(
    tmp_path: Path, lighthouse: tuple[str, ...]
) -> None:
    """Its web server has any port, not the one after the agents' port."""
    with Job(tmp_path, WAITS, *lighthouse) as job:
        job.expect(r"slot 0")
        done = ask(tmp_path, "status", "job", "--json")
        assert done.returncode == 0, done.stderr
        assert '"job_id": "job"' in done.stdout
        job.signal(signal.SIGTERM)
        assert job.end() == 75


@pytest.mark.parametrize("insists", [False, True])
def test_a_lighthouse_that_is_asked_to_stop_is_the_last_to_go(
    tmp_path: Path, insists: bool
) -> None:
    with (
        Lighthouse(tmp_path) as house,
        Job(tmp_path, SAVES, *house.found_by, "--grace", "300") as job,
    ):
        job.expect("up")
        job.signal(signal.SIGTERM)
        job.expect("saves")
        house.signal(signal.SIGTERM)
        house.expect("waits for the agents that leave")
        if insists:
            house.signal(signal.SIGTERM)
            assert house.end() == 0
        (tmp_path / "saved").touch()
        assert job.end() == 75
        if not insists:
            assert house.end() == 0
            assert house.output.index("detached") < house.output.index("the lighthouse stops")
