"""A real lighthouse process, started as an agent starts its own."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ftrun.protocol.embedding import ORDER_FD, PARENT_PID, Embedding
from ftrun.tools.status.client import fetch_status
from tests.jobs import free_port

DEADLINE_S = 60.0


class LighthouseProcess:
    """``python -m ftrun.lighthouse`` on one state directory; may be killed and started again."""

    def __init__(self, state_dir: Path, token: str) -> None:
        self.state_dir = state_dir
        self.token = token
        self.log = ""
        self.grpc, self.http = (f"127.0.0.1:{free_port()}" for _ in range(2))
        self.process: subprocess.Popen[bytes] | None = None
        self._write_end = -1

    def start(self) -> None:
        """Start it on the ports it had before, and wait until it is ready."""
        self.spawn()
        assert self.wait_for("lighthouse ready"), self.log
        facts = json.loads((self.state_dir / "address.json").read_text())
        assert self.process is not None
        assert facts["pid"] == self.process.pid
        self.grpc, self.http = facts["grpc"], facts["http"]

    def spawn(self, parent_pid: int | None = None) -> None:
        """Start it and do not wait."""
        self.log = ""
        read_end, write_end = os.pipe()
        parent = os.getpid() if parent_pid is None else parent_pid
        environment = {ORDER_FD: str(read_end), PARENT_PID: str(parent)}
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "ftrun.lighthouse"],
            env={**os.environ, **environment},
            pass_fds=(read_end,),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        os.close(read_end)
        embedding = Embedding(str(self.state_dir), self.token, self.grpc, self.http)
        os.write(write_end, embedding.order())
        self._write_end = write_end

    def wait_for(self, words: str, count: int = 1) -> bool:
        """Read the output until ``words`` came as often as asked; False if it ends before."""
        assert self.process is not None and self.process.stdout is not None
        deadline = time.monotonic() + DEADLINE_S
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while self.log.count(words) < count:
                assert selector.select(deadline - time.monotonic()), f"silent: {self.log}"
                data = os.read(self.process.stdout.fileno(), 65536)
                if not data:
                    return False
                self.log += data.decode()
        return True

    def status(self) -> Any:
        """The status that ``/status`` serves."""
        return fetch_status(self.http, self.token, timeout_s=DEADLINE_S)

    def end(self, number: int = signal.SIGKILL) -> int:
        """Signal it and reap it; returns the exit status."""
        assert self.process is not None and self.process.stdout is not None
        self.process.send_signal(number)
        rest, _ = self.process.communicate(timeout=DEADLINE_S)
        self.log += rest.decode()
        os.close(self._write_end)
        code = self.process.returncode
        self.process = None
        return code

    def __enter__(self) -> LighthouseProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.end()
