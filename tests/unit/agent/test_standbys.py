"""The spawner's side of its standbys."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from ftrun.agent import fleet
from ftrun.agent.child import READY
from ftrun.agent.fleet import Fleet
from ftrun.agent.standbys import Standby, Standbys
from ftrun.core.agent import events as e


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


def test_none_is_started_where_it_would_not_fit_into_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Free memory is what the machine and the control group leave beside the scripts."""
    told, started, ended = list[str](), list[str](), list[e.Event]()

    class Short(Fleet):
        def __init__(self) -> None:
            as_any: Any = self
            as_any._loop = SimpleNamespace(call_soon=lambda call, *args: call(*args))
            as_any._output = SimpleNamespace(terminal=SimpleNamespace(event_line=told.append))
            as_any._spawner = SimpleNamespace(start_standby=lambda name, _: started.append(name))
            as_any._emit, as_any._lacks_room = ended.append, False
            as_any._settings = as_any._machine = None

    monkeypatch.setattr(fleet, "threads_per_worker", lambda *_: 1)
    known = Short()
    for name, free in (("a", fleet.STANDBY_BYTES - 1), ("b", -5), ("c", fleet.STANDBY_BYTES)):
        monkeypatch.setattr(fleet, "free_bytes", partial(_given, free))
        known.start_standby(name)
    assert started == ["c"] and len(told) == 1
    assert ended == [e.StandbyExited(x, 0, lacks_room=True) for x in "ab"]


def _given(free: int, **_: float) -> int:
    return free
