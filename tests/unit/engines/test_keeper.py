"""How a node waits for the lighthouse of its job, and what it does without. Jobs: tests/engines."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftrun.base import linux, own_process
from ftrun.base.errors import ExitCode
from ftrun.config.layers import gather
from ftrun.config.settings import resolve
from ftrun.core import messages as m
from ftrun.engines import keeper as keeping
from ftrun.engines.keeper import Keeper
from ftrun.engines.meeting import Meeting
from ftrun.protocol.rpc import Connected, LighthouseConnection
from tests.unit.engines.test_place import PLACE

WAIT_S = 60.0
HERE = "127.0.0.1"


def keeper(
    meeting: Path, script: str = "train.py", join_timeout_s: float = 0.3, node: int = 1
) -> Keeper:
    """That of the second node."""
    stated = gather({"replicas": "2"}, {}, None)
    settings = replace(resolve([script], stated), join_timeout_s=join_timeout_s)
    place = replace(PLACE, node=node, nodes=("n0", "n1", "n2", "n3"))
    there = Meeting(meeting, node, HERE)
    return Keeper(place, settings, os.environ, [script], there, _none)


def _none(directory: Path, hosts: tuple[str, ...]) -> None:
    raise AssertionError("only the first node makes certificates")


def run(one: Keeper) -> int:
    async def bounded() -> int:
        return await asyncio.wait_for(one.run(), WAIT_S)

    return asyncio.run(bounded())


def test_a_lighthouse_that_does_not_come_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "WAIT_SHOWN_S", 0.0)
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    assert run(keeper(meeting)) == ExitCode.LIGHTHOUSE_UNREACHABLE
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith("ftrun: n1 waits for the lighthouse of this job, on n0")
    assert "has not come up in 0.3 s (--join-timeout)" in last
    assert str(meeting) in last
    assert not meeting.exists()


def test_a_node_that_is_to_stop_waits_no_more(tmp_path: Path) -> None:
    one = keeper(tmp_path / "one", join_timeout_s=2 * WAIT_S)
    (tmp_path / "one").mkdir()

    async def asked() -> int:
        running = asyncio.ensure_future(one.run())
        await asyncio.sleep(0)  # its handlers are there
        os.kill(os.getpid(), signal.SIGTERM)
        return await asyncio.wait_for(running, WAIT_S)

    assert asyncio.run(asked()) == ExitCode.PREEMPTED


def test_the_agent_is_an_ordinary_one_that_is_told_where_the_lighthouses_are(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("agent.pem", "agent.key", "ca.pem"):
        (tmp_path / name).touch()
    Meeting(tmp_path, 0, HERE).settle(("10.0.0.2:7", "10.0.0.3:7"))
    assert (tmp_path / "lighthouses").stat().st_mode & 0o777 == 0o600
    script = tmp_path / "is_missing.py"
    assert run(keeper(tmp_path, str(script), node=3)) == ExitCode.USAGE  # no contender
    assert "ca.pem" in capfd.readouterr().err  # which is empty: so it was told


def test_a_node_that_comes_too_late_has_no_lighthouse(tmp_path: Path) -> None:
    """All nodes know the same ones, and this one is not among them."""
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    Meeting(meeting, 0, HERE).settle(("10.0.0.2:7",))
    assert run(keeper(meeting, "is_missing.py")) == ExitCode.USAGE
    assert not list(tmp_path.glob("**/lighthouse.n1.log"))


def test_the_last_lighthouse_says_that_others_train_on_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(keeping, "GATHER_S", 0.0)
    drained = tmp_path / "drained"
    script = f"while [ ! -e {drained} ]; do sleep 0.05; done; exit {ExitCode.PREEMPTED}"
    real = own_process.command

    def command(module: str, *words: Any, **options: Any) -> list[str]:
        return ["sh", "-c", script] if module == "ftrun.cli" else real(module, *words, **options)

    monkeypatch.setattr(own_process, "command", command)
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    one = keeper(meeting, node=0, join_timeout_s=WAIT_S)
    one._certify = lambda *_: None
    spec = m.JobSpec("job", 2, 1, 1, 10.0, 5.0, 20.0)

    async def main() -> int:
        def on_event(event: object) -> None:
            if isinstance(event, Connected):
                other.send(m.Hello("n3", spec, 1, HERE, f"{HERE}:1"))
            elif isinstance(event, m.Welcome):
                drained.touch()

        running = asyncio.ensure_future(one.run())
        while not (addresses := Meeting(meeting, 3, HERE).settled()):
            await asyncio.sleep(0.05)
        token = (meeting / "token").read_text().strip()
        other = LighthouseConnection(addresses, token, on_event)
        trains_on = asyncio.ensure_future(other.run())
        try:
            return await running
        finally:
            other.close()
            await trains_on

    assert asyncio.run(asyncio.wait_for(main(), WAIT_S)) == ExitCode.PREEMPTED
    said = capfd.readouterr().err
    assert "n0 has left, and with it the last lighthouse of this job. The others train on" in said
    assert "leave one of n0, n1, n2 in it" in said


def test_a_killed_agent_has_a_successor_when_all_of_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    Meeting(tmp_path, 0, HERE).settle(("10.0.0.2:7",))
    left = tmp_path / "left"
    script = f"""
        echo "$FTRUN_AGENT_ID $(cat /proc/self/fd/$FTRUN_FROM_KEEPER)" >&2
        if [ -e {left} ]; then kill -0 $(cat {left}) && exit 3; exit 9; fi
        sleep 1 & echo $! > {left}; kill -9 $$
    """
    command = ["sh", "-c", script]
    monkeypatch.setattr(own_process, "command", lambda *_, **__: command)
    others = linux.descendants(linux.process_rows(), [os.getpid()])  # the template of tests' jobs
    real = linux.descendants
    monkeypatch.setattr(linux, "descendants", lambda rows, of: real(rows, of) - others)
    linux.become_subreaper()
    try:
        assert run(keeper(tmp_path, node=3)) == 9
    finally:
        linux._prctl(linux.PR_SET_CHILD_SUBREAPER, 0)
    said = capfd.readouterr().err
    assert said.count("n3-7.0.0") == 2, "the first one is told later"
    assert "died: SIGKILL. It restarts" in said
