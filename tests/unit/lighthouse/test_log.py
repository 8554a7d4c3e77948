"""X4: the log of a lighthouse shows no token, not even of a call that is damaged on its way.

Both were found by fuzzing: aiohttp and gRPC log the bytes that they cannot read.
"""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

from ftrun.protocol.auth import bearer, new_token
from tests.fuzz.lighthouses import record
from tests.unit.lighthouse.lighthouse_process import LighthouseProcess


def send(address: str, data: bytes) -> None:
    """Send ``data``, and wait until the server ends the connection or falls silent."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), 2.0) as sock, contextlib.suppress(OSError):
        sock.sendall(data)
        while sock.recv(4096):
            pass


@pytest.mark.parametrize("damage", [b"\xfe", b"\x00", b"\xf2 \r"])
def test_damaged_heads_are_not_logged(tmp_path: Path, damage: bytes) -> None:
    with LighthouseProcess(tmp_path, new_token()) as lighthouse:
        token = lighthouse.token
        head = f"GET /status HTTP/1.1\r\nHost: localhost\r\nAuthorization: {bearer(token)}\r\n\r\n"
        send(lighthouse.http, head.encode().replace(b"Bearer", b"Bea" + damage + b"er"))
        send(lighthouse.http, head.encode().replace(b"Authorization", b"Author" + damage))
        stream = record(lighthouse.grpc, token, "node")
        assert token.encode() in stream
        at = stream.index(b"Bearer") + 3
        damaged = bytearray(stream)
        damaged[at : at + 1] = damage[:1]
        send(lighthouse.grpc, bytes(damaged))
        assert lighthouse.status()["lighthouse"]
        lighthouse.end()
        for start in range(0, len(token) - 8):
            assert token[start : start + 8] not in lighthouse.log
        assert "Traceback" not in lighthouse.log
