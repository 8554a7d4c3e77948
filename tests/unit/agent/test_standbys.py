"""The spawner's side of its standbys."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ftrun.agent.child import READY
from ftrun.agent.standbys import Standby, Standbys


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    own, theirs = socket.socketpair()
    own.setblocking(False)
    with theirs, own:
        yield own, theirs


@pytest.mark.parametrize("rehearses", [True, False])
@pytest.mark.parametrize("is_ready", [True, False])
def test_one_that_rehearses_gets_no_work(
    pair: tuple[socket.socket, socket.socket], rehearses: bool, is_ready: bool
) -> None:
    own, theirs = pair
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        pidfd = os.pidfd_open(process.pid)
        fds = os.dup(0), os.dup(0), os.dup(own.fileno())
        os.set_blocking(fds[2], False)
        standbys = Standbys()
        standbys.add(Standby("one", process.pid, pidfd, *fds, rehearses))
        if is_ready and rehearses:
            theirs.send(READY)
        given = standbys.give("one", {"op": "start"})
        if rehearses and not is_ready:
            assert given is None
            assert process.wait(10) == -signal.SIGKILL
            assert standbys.forget(process.pid) is not None
        else:
            assert given is not None
            assert b"start" in theirs.recv(100)
            for fd in given.fds()[:3]:
                os.close(fd)
            process.kill()
