"""gRPC's own lines are on the terminal only on request; a script's gRPC is left alone."""

from __future__ import annotations

import contextlib
import signal
import socket
import struct
import threading
from pathlib import Path

import pytest

from tests.jobs import Job, Lighthouse

OWN_LINE = "Got goaway [2]"
SETTINGS, PING, GOAWAY, INTERNAL_ERROR = 4, 6, 7, 2
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, body: bytes = b"") -> bytes:
    return struct.pack(">I", len(body))[1:] + bytes([kind, 0]) + struct.pack(">I", 0) + body


GREETING_AND_FAREWELL = frame(SETTINGS) + frame(GOAWAY, struct.pack(">II", 0, INTERNAL_ERROR))
"""As a gRPC server sends it that cancels all calls; gRPC's core logs a line of its own for that."""


class GoesAway:
    """Listens as a lighthouse does, and sends each client a GOAWAY."""

    def __init__(self) -> None:
        self.told = 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> GoesAway:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(60.0)
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with client, contextlib.suppress(OSError):
                    client.settimeout(60.0)
                    client.sendall(GREETING_AND_FAREWELL)
                    client.recv(65536)
                    self.told += 1


@pytest.fixture(autouse=True)
def unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GRPC_VERBOSITY", "GRPC_TRACE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("a" * 64)
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("verbosity", [None, pytest.param("INFO", marks=pytest.mark.slow)])
def test_an_agent_whose_lighthouse_goes_away_says_it_in_its_own_words(
    tmp_path: Path, token_file: Path, monkeypatch: pytest.MonkeyPatch, verbosity: str | None
) -> None:
    if verbosity is not None:
        monkeypatch.setenv("GRPC_VERBOSITY", verbosity)
    with GoesAway() as house:
        options = ("--lighthouse", house.address, "--token-file", str(token_file))
        with Job(tmp_path, "", *options, "--join-timeout", "2") as job:
            assert job.end() == 71
            assert house.told > 0
            assert (OWN_LINE in job.output) is (verbosity is not None)


@pytest.mark.parametrize(
    "wished",
    [
        {},
        {"GRPC_VERBOSITY": "INFO"},
        pytest.param({"GRPC_TRACE": "http"}, marks=pytest.mark.slow),
    ],
)
def test_a_lighthouse_is_as_silent_about_its_clients(
    tmp_path: Path, wished: dict[str, str]
) -> None:
    with Lighthouse(tmp_path, environment=wished, fresh=True) as house:
        host, _, port = house.address.rpartition(":")
        with socket.create_connection((host, int(port)), 60.0) as client:
            client.sendall(PREFACE + GREETING_AND_FAREWELL + frame(PING, b"answer !"))
            answer = b""
            while b"answer !" not in answer:  # then it has read what came before
                answer += client.recv(65536) or pytest.fail(f"hung up after {answer!r}")
        house.signal(signal.SIGTERM)
        house.end()
        assert "the lighthouse stops" in house.output
        assert (OWN_LINE in house.output) is bool(wished)


ASKS = """
import os, sys
names = {"GRPC_VERBOSITY", "GRPC_TRACE"} & set(os.environ)
print("grpc", {name: os.environ[name] for name in names}, "grpc" in sys.modules)
"""


@pytest.mark.parametrize(
    "wished", [{}, pytest.param({"GRPC_VERBOSITY": "ERROR"}, marks=pytest.mark.slow)]
)
def test_a_script_finds_the_environment_and_a_grpc_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wished: dict[str, str]
) -> None:
    for name, value in wished.items():
        monkeypatch.setenv(name, value)
    with Job(tmp_path, ASKS, fresh=True) as job:
        assert job.end() == 0
        assert f"grpc {wished} False" in job.log(0, 0)
