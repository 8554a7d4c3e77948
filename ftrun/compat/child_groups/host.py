"""The process that hosts groups for another one: it has torch imported, and forks a child for each.

A child serves one group and one socket. It ends when its owner closes that socket or is gone. The
host is then also asked to kill it, in case it hangs. The host runs one thread, so that a fork is
safe, and never uses a GPU, so that a child may. It ends with its owner.

Not here: the owner's side (group.py).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import threading
from datetime import timedelta
from typing import Any

import torch

from ftrun.base import linux
from ftrun.compat.child_groups import messages
from ftrun.compat.child_groups.memory import MappedBlocks
from ftrun.process_groups.base import ProcessGroup
from ftrun.process_groups.gloo import ProcessGroupGloo
from ftrun.process_groups.nccl import ProcessGroupNCCL

BACKENDS: dict[str, type[ProcessGroup]] = {"gloo": ProcessGroupGloo, "nccl": ProcessGroupNCCL}
LOOK_S = 1.0


def main() -> None:
    """Serve the owner at the other end of the descriptor in ``argv`` until it is gone."""
    owner = socket.socket(fileno=int(sys.argv[1]))
    children: dict[int, int] = {}
    messages.send(owner, {"ready": os.getpid()})
    while True:
        select.select([owner], [], [], LOOK_S)
        for number, pid in list(children.items()):
            if os.waitpid(pid, os.WNOHANG)[0]:
                del children[number]
        if not select.select([owner], [], [], 0)[0]:
            continue
        got = messages.receive(owner)
        if got is None:
            break
        message, fds = got
        if "fork" in message:
            children[message["fork"]] = _fork(owner, fds[0])
        elif message.get("kill") in children:
            pid = children.pop(message["kill"])
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    for pid in children.values():
        os.kill(pid, signal.SIGKILL)
    os._exit(0)  # there is nothing to flush


def _fork(owner: socket.socket, fd: int) -> int:
    host = os.getpid()
    pid = os.fork()
    if pid:
        os.close(fd)
        return pid
    try:
        owner.close()
        if linux.die_with_parent(host):
            _Child(socket.socket(fileno=fd)).serve()
    finally:
        os._exit(0)
    return 0


class _Child:
    """One group, and its pending collectives."""

    def __init__(self, owner: socket.socket) -> None:
        self._owner = owner
        self._sending = threading.Lock()
        self._built: Any = None
        self._blocks = MappedBlocks()
        self._device: int | None = None

    def serve(self) -> None:
        """Carry out messages until the owner is gone."""
        messages.send(self._owner, {"pid": os.getpid()})
        while (got := messages.receive(self._owner)) is not None:
            message, fds = got
            try:
                if "build" in message:
                    self._build(message["build"])
                elif "run" in message:
                    self._run(message, fds)
            finally:
                for fd in fds:
                    os.close(fd)

    def _build(self, place: dict[str, Any]) -> None:
        try:
            self._device = place["device"]
            if self._device is not None:
                torch.cuda.set_device(self._device)
            group = BACKENDS[place["backend"]](timedelta(seconds=place["timeout_s"]))
            self._built = group.build(
                place["store"],
                place["prefix"],
                place["rank"],
                place["world_size"],
                place["host"],
                place["build_s"],
            )
        except Exception as error:  # noqa: BLE001  # the owner raises it
            self._send({"failed": -1, "error": str(error)})
        else:
            self._send({"done": -1})

    def _run(self, message: dict[str, Any], fds: list[int]) -> None:
        number = message["run"]
        try:
            arguments = messages.unpack(message["arguments"], fds, self._blocks)
            work = getattr(self._built, message["name"])(*arguments)
        except Exception as error:  # noqa: BLE001
            self._send({"failed": number, "error": str(error)})
            return
        # One thread each, because a Work of send or recv has no future.
        threading.Thread(target=self._wait, args=(number, work, arguments), daemon=True).start()

    def _wait(self, number: int, work: Any, arguments: Any) -> None:
        try:
            work.wait()
            if self._device is not None:  # the owner reads the result at once
                torch.cuda.synchronize(self._device)
        except Exception as error:  # noqa: BLE001
            self._send({"failed": number, "error": str(error)})
        else:
            self._send({"done": number})

    def _send(self, message: dict[str, Any]) -> None:
        with self._sending, contextlib.suppress(OSError):  # the owner is gone: so is this process
            messages.send(self._owner, message)
