"""Scripts in forks that become workers, as a spawner's forks do, and the agent they report to.

The parent (parent.py) has torch, and forks all scripts of a test one after the other.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ftrun.agent.launch import SINGLE_THREADED
from ftrun.base.errors import PeerError
from ftrun.core.messages import WorkerHello
from ftrun.protocol.frames import FrameSocket
from tests.jobs import THIS_TREE
from tests.jobs.forks import run

DEADLINE_S = 60.0


def fork_and_run(tmp_path: Path, source: str, **changes: Any) -> subprocess.CompletedProcess[str]:
    """Run one script in a fork; ``changes`` replace what the parent process is given.

    ``torch=False``: it is an interpreter without torch. ``environment``: the parent's own.
    """
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(source))
    facts = {
        "targets": [str(script)], "kind": "file", "socket": str(tmp_path / "none"), "threads": 1,
        "replicas": 1, "preload": [], "torch": True, "inject": "explicit", "explicit": {},
        "environment": {}, **changes,
    }  # fmt: skip
    return (run if facts["torch"] else subprocess.run)(
        [sys.executable, "-m", "tests.unit.inject.parent", json.dumps(facts)],
        capture_output=True, text=True, timeout=300, cwd=tmp_path, check=True,
        env={**os.environ, **THIS_TREE, **SINGLE_THREADED, **facts["environment"]},
    )  # fmt: skip


def run_each(tmp_path: Path, sources: Mapping[str, str], **changes: Any) -> dict[str, list[str]]:
    """Run scripts one after the other; the lines of each, with its exit status as the last."""
    targets = []
    for index, source in enumerate(sources.values()):
        targets.append(str(tmp_path / f"script_{index}.py"))
        Path(targets[-1]).write_text(source)
    done = fork_and_run(tmp_path, "", targets=targets, **changes)
    parts = re.findall(r"(.*?status -?\d+\n)", done.stdout, re.DOTALL)
    return {name: part.splitlines() for name, part in zip(sources, parts, strict=True)}


@contextlib.contextmanager
def listening(tmp_path: Path) -> Iterator[tuple[str, list[tuple[int, Any]]]]:
    """An agent: its socket's path, and the messages that it receives, each with its fork."""
    received: list[tuple[int, Any]] = []
    path = str(tmp_path / "agent.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        agent = threading.Thread(target=_listen, args=(listener, received))
        agent.start()
        try:
            yield path, received
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            agent.join()


def _listen(listener: socket.socket, received: list[tuple[int, Any]]) -> None:
    """Receive one message per connection, until the listener is shut down."""
    with contextlib.suppress(OSError):
        while True:
            accepted, _ = listener.accept()
            frames = FrameSocket(accepted)
            with contextlib.suppress(PeerError):
                hello = frames.receive(DEADLINE_S)
                assert isinstance(hello, WorkerHello) and hello.token == "a" * 64
                received.append((int(hello.key.incarnation, 16), frames.receive(DEADLINE_S)))
            frames.close()
