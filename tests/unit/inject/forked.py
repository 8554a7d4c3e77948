"""Scripts in forks that become workers, as a spawner's forks do, and the agent they report to.

The parent imports torch once, for as many scripts as a test has.
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

from ftrun.core.messages import WorkerHello
from ftrun.errors import PeerError
from ftrun.protocol.frames import FrameSocket

DEADLINE_S = 60.0

PARENT = """
import json, os, sys
from ftrun.core.ids import WorkerKey
from ftrun.inject.bootstrap import WorkerTask, prepare, run
from ftrun.config.script import TargetKind
from ftrun.training.context import WorkerContext
facts = json.loads(sys.argv[1])
if facts["torch"]:
    import numpy.random
    import random
    import torch
for name in facts["preload"]:
    __import__(name)
for turn, target in enumerate(facts["targets"]):
    pid = os.fork()
    if pid == 0:
        here = WorkerContext(
            job_id="job", key=WorkerKey("0", f"{turn:016x}", 0), replicas=facts["replicas"],
            min_replicas=1, workers_per_replica=1, host="127.0.0.1",
            socket_path=facts["socket"], token="a" * 64,
        )
        arguments = ("--x", "1"), {"FLAG": "on"}
        prepare(facts["threads"])
        more = {"inject": facts["inject"], "explicit_environment": facts["explicit"]}
        run(WorkerTask(here, target, TargetKind(facts["kind"]), *arguments, **more))
    _, status = os.waitpid(pid, 0)
    print("status", os.waitstatus_to_exitcode(status), flush=True)
"""


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
    return subprocess.run(
        [sys.executable, "-c", PARENT, json.dumps(facts)],
        capture_output=True, text=True, timeout=300, cwd=tmp_path, check=True,
        env={
            **os.environ, "PYTHONPATH": str(Path(__file__).parents[3]),
            "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", **facts["environment"],
        },
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
