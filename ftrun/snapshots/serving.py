"""The process that writes snapshots for all workers of a node's agent.

The spawner forks it. It imports torch when the first worker connects, and outlives every worker.
Each connection has its own thread, and its own memory that both processes map.

Not here: the orders (writer.py, groups.py), a worker's connection (process.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftrun.snapshots.process import AGREE, DROP, FILL

if TYPE_CHECKING:
    from ftrun.snapshots.writer import Writing

NAME = "snapshots.sock"
"""The socket's name in the agent's directory."""
TITLE = "ftrun snapshots"
NICE = 5
LINE_BYTES_MAX = 256 << 20


def main(where: Path) -> None:
    """Serve until this process is ended."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    listening = listen(where)
    first = listening.accept()[0]
    import torch

    torch.set_num_threads(1)
    os.nice(NICE)  # Only now: its start is short, and a snapshot may be due by then.
    _begin(first)
    serve(listening)


def listen(where: Path) -> socket.socket:
    """Listen at this path. Replaces the socket of an earlier process that has ended."""
    listening, own = socket.socket(socket.AF_UNIX), where.with_suffix(f".{os.getpid()}")
    listening.bind(str(own))
    listening.listen()
    own.rename(where)
    return listening


def serve(listening: socket.socket) -> None:
    """Serve all connections until the socket is closed."""
    with contextlib.suppress(OSError):
        while True:
            _begin(listening.accept()[0])


def _begin(connected: socket.socket) -> None:
    threading.Thread(target=_serve, args=(connected,), name="ftrun-writer", daemon=True).start()


def _serve(connected: socket.socket) -> None:
    """Carry out the orders of one connection, until it is closed."""
    from ftrun.snapshots.memory import SharedMemory
    from ftrun.snapshots.writer import Writing

    with connected, contextlib.suppress(OSError):
        _, fds, *_ = socket.recv_fds(connected, 1, 1)
        writing = Writing(SharedMemory(fds[0]) if fds else None)
        try:
            _send(connected, {"ready": True})
            with connected.makefile("rb") as orders:
                while line := orders.readline(LINE_BYTES_MAX):
                    _send(connected, _answer(line, writing))
        finally:
            writing.close()


def _answer(line: bytes, writing: Writing) -> dict[str, Any]:
    from ftrun.snapshots.groups import Refused

    try:
        kind, fields = json.loads(line)
        return _carry_out(kind, fields, writing)
    except Exception as error:  # noqa: BLE001
        # The edge of this process: an error of torch or of the disk becomes the answer.
        return {"error": _words(error), "is_final": isinstance(error, Refused)}


def _carry_out(kind: str, fields: dict[str, Any], writing: Writing) -> dict[str, Any]:
    from ftrun.snapshots import directory, groups, writer

    if kind == FILL:
        return groups.fill(groups.Filling(**fields))
    if kind == AGREE:
        directory.agree(Path(fields["path"]), fields["step"])
        return {}
    if kind == DROP:
        writing.drop()
        return {}
    of_group = "place" in fields
    return writing.obey(kind, groups.Order(**fields) if of_group else writer.Order(**fields))


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror} ({error.filename})" if error.filename else error.strerror
    return (str(error) or type(error).__name__).splitlines()[0][:400]


def _send(connected: socket.socket, answer: dict[str, Any]) -> None:
    connected.sendall(json.dumps(answer).encode() + b"\n")
