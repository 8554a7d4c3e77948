"""``python -m tests.fuzz.hosts KIND DIR``: one server of a worker or an agent, without the rest.

The token comes on stdin; the address and a certificate's fingerprint go to stdout. Errors of a
thread or a callback are printed to stderr, as in a job; the feeder checks stderr.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from ftrun.agent.workers import WorkerServer
from ftrun.core.ids import WorkerKey


class Echo:
    """An agent's callbacks: any worker is known, and its messages are sent back."""

    server: WorkerServer

    def worker_known(self, key: WorkerKey, pid: int) -> bool:
        """Accept each worker that has the token."""
        return True

    def worker_attached(self, key: WorkerKey) -> None:
        """Do nothing."""

    def worker_disconnected(self, key: WorkerKey) -> None:
        """Do nothing: no caller waits for it here."""

    def worker_message(self, key: WorkerKey, message: Any) -> None:
        """Send the message back."""
        self.server.send_to(key, message)


def serve_states(token: str, tls: bool) -> None:
    """Offer one state until killed."""
    import torch

    from ftrun.checkpoint.serve import StateServer
    from ftrun.core.ids import Attempt, StateId, Tag

    server = StateServer("127.0.0.1", token, tls=tls)
    server.offer(Tag(Attempt(8, 1), 10), StateId(10, "ab"), {"w": torch.ones(1000)})
    print(server.address, server.certificate, flush=True)
    sys.stdin.read()


async def serve_workers(token: str, directory: Path) -> None:
    """Listen until killed."""
    echo = Echo()
    place = directory / str(os.getpid())
    place.mkdir()
    echo.server = WorkerServer(echo, token, place)
    await echo.server.start()
    print(echo.server.path, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def main() -> None:
    """Serve the kind that the command line names."""
    kind, directory = sys.argv[1:]
    token = sys.stdin.readline().strip()
    if kind.startswith("state"):
        serve_states(token, kind.endswith("TLS"))
    else:
        asyncio.run(serve_workers(token, Path(directory)))


if __name__ == "__main__":
    main()
