"""A real etcd for a test: one member on loopback, in a directory of its own.

Not here: clusters of several members.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest

START_S = 60.0
BINARY = shutil.which("etcd")
needs_etcd = pytest.mark.skipif(BINARY is None, reason="there is no etcd here (etcd-server)")


class Etcd:
    """``address``: for clients. ``process``: to stop and kill it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        with (
            socket.create_server(("127.0.0.1", 0)) as one,
            socket.create_server(("127.0.0.1", 0)) as two,
        ):
            self.address = f"127.0.0.1:{one.getsockname()[1]}"
            self._peers = f"127.0.0.1:{two.getsockname()[1]}"
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        assert BINARY is not None
        urls = {
            "--listen-client-urls": self.address,
            "--advertise-client-urls": self.address,
            "--listen-peer-urls": self._peers,
            "--initial-advertise-peer-urls": self._peers,
        }
        words = [word for name, at in urls.items() for word in (name, f"http://{at}")]
        words += ["--initial-cluster", f"default=http://{self._peers}", "--log-level", "warn"]
        with open(self._directory / "etcd.log", "ab") as log:
            process = subprocess.Popen(
                [BINARY, "--data-dir", str(self._directory / "data"), "--logger", "zap", *words],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_S
        while not self._answers():
            assert process.poll() is None, "etcd has ended"
            assert time.monotonic() < deadline, f"etcd takes no connections within {START_S:g} s"
            time.sleep(0.02)
        return process

    def _answers(self) -> bool:
        """Whether it takes writes: its member has been elected."""
        connection = HTTPConnection(self.address, timeout=1.0)
        with contextlib.closing(connection), contextlib.suppress(OSError, HTTPException):
            connection.request("GET", "/health")
            return b'"true"' in connection.getresponse().read()
        return False

    def stop(self) -> None:
        """SIGSTOP; all its threads stand when this returns."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def go_on(self) -> None:
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """As a power cut would."""
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        """Start it again on its data."""
        self.process = self._start()


@contextlib.contextmanager
def running_etcd(directory: Path) -> Iterator[Etcd]:
    """An etcd that ends with the block."""
    directory.mkdir(exist_ok=True)
    etcd = Etcd(directory)
    try:
        yield etcd
    finally:
        etcd.kill()
