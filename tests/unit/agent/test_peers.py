"""What the kernel tells of TCP connections, and what is sent of it."""

from __future__ import annotations

import asyncio
import socket

import pytest

from ftrun.agent import peers
from ftrun.agent.peers import Peers
from ftrun.core.agent.peer_watch import SILENT_S, Connection
from ftrun.core.messages import PeersSilent


@pytest.mark.parametrize(("family", "host"), [("AF_INET", "127.0.0.1"), ("AF_INET6", "::1")])
def test_an_open_connection_is_found(
    monkeypatch: pytest.MonkeyPatch, family: str, host: str
) -> None:
    monkeypatch.setattr(peers, "is_loopback", lambda _: False)
    with socket.socket(getattr(socket, family)) as server:
        try:
            server.bind((host, 0))
        except OSError:
            pytest.skip(f"this machine has no {family}")
        server.listen()
        with socket.create_connection(server.getsockname()[:2]) as client:
            accepted, _ = server.accept()
            with accepted:
                client.sendall(b"x")
                assert accepted.recv(1) == b"x"
                found = [x for x in peers.connections() if x.host == host]
    assert len(found) >= 2
    assert not any(x.is_repeating for x in found)
    assert min(x.silent_s for x in found) < 30.0


def test_connections_of_this_machine_with_itself_do_not_count() -> None:
    assert not [x for x in peers.connections() if x.host.startswith("127.")]


def test_a_change_is_told_and_told_again_to_another_lighthouse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = iter([[], [Connection("a", True, SILENT_S)], [Connection("a", True, 1.0)], []])

    def told_by_the_kernel() -> list[Connection]:
        try:
            return next(seen)
        except StopIteration:
            raise OSError("no more") from None

    monkeypatch.setattr(peers, "connections", told_by_the_kernel)
    sent: list[PeersSilent] = []
    told = Peers(sent.append)
    told.again()
    assert str(asyncio.run(told.run())) == "no more"
    told.again()
    assert sent == [PeersSilent(("a",)), PeersSilent()]
