"""torchft's lighthouse in ours: its options, its file, its words. Real torchft: tests/torchft."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from ftrun.base.errors import ExitCode, UserError
from ftrun.compat.torchft_wire.service import FILE, RoomsFile, TorchftService
from ftrun.core.torchft_quorum.records import QuorumSettings, RoomRecord, RoomsRecord
from ftrun.lighthouse.settings import ServiceSettings, TorchftSettings
from tests.unit.compat.torchft_wire.test_quorum_server import Client

TIMEOUT_S = 60.0
FIRST_ID = 1000


def test_the_file_is_whole_or_kept_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = RoomsFile(tmp_path / FILE)
    assert file.load() is None
    record = RoomsRecord({"x": RoomRecord(5, ("a", "b"))}, 3)
    file.write(record)
    assert file.load() == record
    whole = (tmp_path / FILE).read_bytes()
    for number in range(0, len(whole), 5):
        (tmp_path / FILE).write_bytes(whole[:number] + b"\xff" + whole[number + 1 :])
        assert file.load() is None
        assert "far above" in caplog.text
        assert os.listdir(tmp_path) == [f"{FILE}.corrupt-1"]
        (tmp_path / f"{FILE}.corrupt-1").unlink()
        caplog.clear()


def lives(
    tmp_path: Path, *tests: Callable[[TorchftService, Client], Coroutine[Any, Any, None]]
) -> None:
    """One life after the other of a lighthouse on the same directory."""

    async def main() -> None:
        for test in tests:
            settings = TorchftSettings(("127.0.0.1:0",), QuorumSettings(1, 30.0, 30.0))
            service = TorchftService(settings, tmp_path, FIRST_ID)
            await service.start()
            client = Client(int(service.addresses[0].rpartition(":")[2]))
            await test(service, client)
            await client.channel.close()  # type: ignore[call-arg]
            await service.stop()

    asyncio.run(asyncio.wait_for(main(), 5 * TIMEOUT_S))


def test_ids_go_on_after_a_restart_and_after_the_loss_of_the_file(tmp_path: Path) -> None:
    async def first(service: TorchftService, client: Client) -> None:
        assert (await client.quorum("a")).quorum.quorum_id == FIRST_ID + 1

    async def second(service: TorchftService, client: Client) -> None:
        (room,) = service.status()["rooms"]
        assert (room["quorum_id"], room["members"], room["age_s"]) == (FIRST_ID + 1, 1, None)
        assert (await client.quorum("a")).quorum.quorum_id == FIRST_ID + 1
        failed = await client.quorum("a", commit_failures=1)
        assert failed.quorum.quorum_id == FIRST_ID + 2
        (tmp_path / FILE).write_bytes(b"noise")

    async def third(service: TorchftService, client: Client) -> None:
        assert not service.status()["rooms"]
        assert (await client.quorum("b")).quorum.quorum_id == FIRST_ID + 1

    lives(tmp_path, first, second, third)


def test_a_file_that_cannot_be_written_ends_it(tmp_path: Path) -> None:
    async def test(service: TorchftService, client: Client) -> None:
        (tmp_path / FILE).unlink(missing_ok=True)
        (tmp_path / FILE).mkdir()  # nothing can take its place
        with pytest.raises(Exception, match=r"Timeout expired|Deadline Exceeded"):
            await client.quorum("a", 1.0)
        assert isinstance(service.failed.exception(), OSError)

    lives(tmp_path, test)


def settings_with(tmp_path: Path, *binds: str, **facts: Any) -> ServiceSettings:
    plain = facts.pop("insecure_plaintext", False)
    return ServiceSettings(
        tmp_path, "t" * 64, "127.0.0.1:0", insecure_plaintext=plain,
        torchft=TorchftSettings(binds, QuorumSettings(**facts)),
    )  # fmt: skip


def test_addresses_and_rooms(tmp_path: Path) -> None:
    assert TorchftSettings().addresses() == []
    found = TorchftSettings(("127.0.0.1:5", "job-b=[::1]:6")).addresses()
    assert found == [("default", "127.0.0.1", 5), ("job-b", "::1", 6)]
    settings_with(tmp_path, "127.0.0.1:0").check()
    settings_with(tmp_path, "0.0.0.0:0", insecure_plaintext=True).check()


@pytest.mark.parametrize(
    ("bind", "facts", "words"),
    [
        ("nowhere", {}, "--torchft-bind 'nowhere' is not HOST:PORT"),
        ("=127.0.0.1:1", {}, "a room has a name"),
        ("0.0.0.0:1", {}, "has no token and no TLS"),
        ("127.0.0.1:1", {"min_replicas": 0}, "--torchft-min-replicas is 0"),
        ("127.0.0.1:1", {"join_timeout_s": 0.0}, "--torchft-join-timeout is 0"),
        ("127.0.0.1:1", {"heartbeat_timeout_s": float("nan")}, "--torchft-heartbeat-timeout"),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path, bind: str, facts: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=r"lighthouse|and must be|HOST:PORT|a room") as caught:
        settings_with(tmp_path, bind, **facts).check()
    assert words in str(caught.value)


def test_options_without_an_address_are_refused(tmp_path: Path) -> None:
    settings_with(tmp_path).check()
    with pytest.raises(UserError, match="no effect without --torchft-bind"):
        settings_with(tmp_path, min_replicas=2).check()


def test_an_open_port_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        with caplog.at_level(logging.WARNING):
            service = TorchftService(TorchftSettings(("0.0.0.0:0",)), tmp_path, 0)
        await service.stop()

    asyncio.run(main())
    assert "without a token" in caplog.text


def command(tmp_path: Path, bind: str) -> list[str]:
    return [
        sys.executable, "-m", "ftrun", "lighthouse", "--bind", "127.0.0.1:0",
        "--state", str(tmp_path / "state"), "--token-file", str(tmp_path / "token"),
        "--torchft-bind", bind,
    ]  # fmt: skip


def test_the_command_refuses_a_taken_port_and_says_what_it_serves(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = subprocess.run(
            command(tmp_path, address), capture_output=True, text=True, timeout=TIMEOUT_S
        )
    assert done.returncode == ExitCode.USAGE
    assert f"--torchft-bind {address}: address already in use" in done.stderr
    assert "The lighthouse was not started" in done.stderr
    served = subprocess.Popen(
        command(tmp_path, "127.0.0.1:0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert served.stdout is not None
    lines = [served.stdout.readline() for _ in range(2)]
    served.send_signal(signal.SIGTERM)
    rest, _ = served.communicate(timeout=TIMEOUT_S)
    assert served.returncode == ExitCode.OK, rest
    assert "lighthouse ready" in lines[0]
    assert "TORCHFT_LIGHTHOUSE=http://127.0.0.1:" in lines[1] and "no token" in lines[1]
