"""A real etcd for a test: one member or several on loopback, in a separate directory."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest

from tests.jobs.process import free_port

STARTS_MAX = 4
START_S = 60.0
BINARY = shutil.which("etcd")
LEADS = b"\netcd_server_is_leader 1"
needs_etcd = pytest.mark.skipif(BINARY is None, reason="there is no etcd here (etcd-server)")


class Ended(AssertionError):
    """The member has ended by itself."""


class Etcd:
    """One member.

    ``address``: for clients. ``peers``: the cluster's members by name, this one first.
    ``process``: to stop and kill it. ``certs``: a directory of certificates, as written by
    ``ftrun certs``: its clients need one.
    """

    def __init__(self, directory: Path, peers: dict[str, str], certs: Path | None = None) -> None:
        self._directory = directory
        self._peers = peers
        self._certs = certs
        self.address, self._status = (f"127.0.0.1:{free_port()}" for _ in range(2))
        self.process = self._begin()

    def _begin(self) -> subprocess.Popen[bytes]:
        assert BINARY is not None
        name, peer = next(iter(self._peers.items()))
        scheme = "https" if self._certs else "http"
        values = {
            "--name": name,
            "--data-dir": str(self._directory / "data"),
            "--listen-client-urls": f"{scheme}://{self.address}",
            "--advertise-client-urls": f"{scheme}://{self.address}",
            "--listen-metrics-urls": f"http://{self._status}",
            "--listen-peer-urls": f"http://{peer}",
            "--initial-advertise-peer-urls": f"http://{peer}",
            "--initial-cluster": ",".join(f"{x}=http://{at}" for x, at in self._peers.items()),
            "--log-level": "warn",
            "--logger": "zap",
        }
        words = [word for pair in values.items() for word in pair]
        if self._certs is not None:
            files = {"--cert-file": "lighthouse.pem", "--key-file": "lighthouse.key"}
            for option, file in {**files, "--trusted-ca-file": "ca.pem"}.items():
                words += [option, str(self._certs / file)]
            words.append("--client-cert-auth")
        with open(self._directory / "etcd.log", "ab") as log:
            return subprocess.Popen(
                [BINARY, *words], stdout=log, stderr=log, start_new_session=True
            )

    def await_it(self) -> Etcd:
        """Wait until it accepts writes."""
        deadline = time.monotonic() + START_S
        while b'"true"' not in self._ask("/health"):
            if self.process.poll() is not None:
                raise Ended("etcd has ended")
            assert time.monotonic() < deadline, f"etcd takes no writes within {START_S:g} s"
            time.sleep(0.02)
        return self

    @property
    def leads(self) -> bool:
        """Whether the other members follow this one."""
        return LEADS in self._ask("/metrics")

    def _ask(self, path: str) -> bytes:
        connection = HTTPConnection(self._status, timeout=1.0)
        with contextlib.closing(connection), contextlib.suppress(OSError, HTTPException):
            connection.request("GET", path)
            return connection.getresponse().read()
        return b""

    def stop(self) -> None:
        """SIGSTOP; all its threads are stopped when this returns."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def go_on(self) -> None:
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it, like a power failure."""
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        """Restart it with its data."""
        self.process = self._begin()
        self.await_it()


@contextlib.contextmanager
def running_etcd(directory: Path, certs: Path | None = None) -> Iterator[Etcd]:
    """An etcd of one member that ends with the block."""
    with running_etcds(directory, 1, certs) as (etcd,):
        yield etcd


@contextlib.contextmanager
def running_etcds(directory: Path, count: int, certs: Path | None = None) -> Iterator[list[Etcd]]:
    """An etcd of several members that end with the block."""
    with ExitStack() as stack:
        yield _started(stack, directory, count, certs)


def _started(stack: ExitStack, directory: Path, count: int, certs: Path | None) -> list[Etcd]:
    """Another program may take a free port before etcd does: then retry with other ports."""
    for attempt in range(STARTS_MAX):
        peers = {f"m{number}": f"127.0.0.1:{free_port()}" for number in range(count)}
        members = []
        for name, at in peers.items():
            own = directory / f"{name}-{attempt}"
            own.mkdir(parents=True)
            member = Etcd(own, {name: at, **peers}, certs)
            stack.callback(member.kill)
            members.append(member)
        try:
            return [member.await_it() for member in members]
        except Ended:
            for member in members:
                member.kill()
    raise Ended(f"etcd has ended at each of {STARTS_MAX} starts: {directory}")
