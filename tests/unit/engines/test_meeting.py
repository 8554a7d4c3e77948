"""Where a job's nodes meet: addresses, which of them count, and the end."""

from __future__ import annotations

import socket
from pathlib import Path

from ftrun.engines.meeting import Meeting

HERE = "127.0.0.1"


def test_a_reserved_address_is_for_a_lighthouse_and_for_nobody_else(tmp_path: Path) -> None:
    one = Meeting(tmp_path, 0, HERE)
    one.reserve()
    port = int(one.address.rpartition(":")[2])
    for _ in range(2):  # it may be started again
        socket.create_server((HERE, port)).close()
    with socket.socket() as another:
        another.bind((HERE, 0))
        assert another.getsockname()[1] != port
    one.leave()


def test_what_counts_is_what_the_first_node_has_settled(tmp_path: Path) -> None:
    meetings = [Meeting(tmp_path, node, HERE) for node in (0, 1)]
    assert meetings[1].settled() == ()
    for one in meetings:
        one.reserve()
    (tmp_path / "lighthouse.pem").touch()
    found = {node: one.address for node, one in enumerate(meetings)}
    assert meetings[0].reserved() == found
    meetings[0].settle(tuple(found.values()))
    assert meetings[1].settled() == tuple(found.values())
    assert {path.stat().st_mode & 0o77 for path in tmp_path.glob("lighthouse*[0-9s]")} == {0}
    for one in meetings:
        one.leave()


def test_the_last_one_takes_the_directory_away(tmp_path: Path) -> None:
    meetings = [Meeting(tmp_path / "there", node, HERE) for node in range(4)]
    (tmp_path / "there").mkdir()
    for one in meetings[:3]:
        one.reserve()
    for one in (meetings[0], meetings[3], meetings[2]):  # the last one has no lighthouse
        one.leave()
        assert (tmp_path / "there").exists()
    meetings[1].leave()
    assert not (tmp_path / "there").exists()
