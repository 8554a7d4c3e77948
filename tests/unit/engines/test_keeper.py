"""How a node waits for the lighthouse of its job, and what it does without. Jobs: tests/engines."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from ftrun.base import linux, own_process
from ftrun.base.errors import ExitCode
from ftrun.config.layers import gather
from ftrun.config.settings import resolve
from ftrun.engines import keeper as keeping
from ftrun.engines.keeper import Keeper
from ftrun.protocol.embedding import ServiceAddress, publish_address
from tests.unit.engines.test_place import PLACE

WAIT_S = 60.0


def keeper(meeting: Path, script: str = "train.py", join_timeout_s: float = 0.3) -> Keeper:
    """That of the second node."""
    stated = gather({"replicas": "2"}, {}, None)
    settings = replace(resolve([script], stated), join_timeout_s=join_timeout_s)
    return Keeper(PLACE, settings, os.environ, [script], meeting, "10.0.0.1", _none)


def _none(directory: Path, host: str) -> None:
    raise AssertionError("only the first node makes certificates")


def run(one: Keeper) -> int:
    async def bounded() -> int:
        return await asyncio.wait_for(one.run(), WAIT_S)

    return asyncio.run(bounded())


def test_a_lighthouse_that_does_not_come_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "WAIT_SHOWN_S", 0.0)
    assert run(keeper(tmp_path)) == ExitCode.LIGHTHOUSE_UNREACHABLE
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith("ftrun: n1 waits for the lighthouse of this job, on n0")
    assert "has not come up in 0.3 s (--join-timeout)" in last
    assert str(tmp_path) in last


def test_a_node_that_is_to_stop_waits_no_more(tmp_path: Path) -> None:
    one = keeper(tmp_path, join_timeout_s=2 * WAIT_S)

    async def asked() -> int:
        running = asyncio.ensure_future(one.run())
        await asyncio.sleep(0)  # its handlers are there
        os.kill(os.getpid(), signal.SIGTERM)
        return await asyncio.wait_for(running, WAIT_S)

    assert asyncio.run(asked()) == ExitCode.PREEMPTED


def test_the_agent_is_an_ordinary_one_that_is_told_where_the_lighthouse_is(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("agent.pem", "agent.key", "ca.pem"):
        (tmp_path / name).touch()
    publish_address(tmp_path, ServiceAddress("10.0.0.2:7", "10.0.0.2:8"))
    assert (tmp_path / "address.json").stat().st_mode & 0o777 == 0o600
    one = keeper(tmp_path, str(tmp_path / "is_missing.py"))
    assert run(one) == ExitCode.USAGE
    assert "ca.pem" in capfd.readouterr().err  # which is empty: so it was told


def test_a_killed_agent_has_a_successor_when_all_of_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    publish_address(tmp_path, ServiceAddress("10.0.0.2:7", "10.0.0.2:8"))
    left = tmp_path / "left"
    script = f"""
        echo $FTRUN_AGENT_ID >&2
        if [ -e {left} ]; then kill -0 $(cat {left}) && exit 3; exit 9; fi
        sleep 1 & echo $! > {left}; kill -9 $$
    """
    command = ["sh", "-c", script]
    monkeypatch.setattr(own_process, "command", lambda *_, **__: command)
    linux.become_subreaper()
    try:
        assert run(keeper(tmp_path)) == 9
    finally:
        linux._prctl(linux.PR_SET_CHILD_SUBREAPER, 0)
    said = capfd.readouterr().err
    assert said.count("n1-7.0.0\n") == 2
    assert "died: SIGKILL. It is started again" in said
