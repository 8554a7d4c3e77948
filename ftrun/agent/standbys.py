"""The spawner's side of its standbys: forked processes that wait, each on a socket.

Not here: the standby's side (child.py), how many there are (core/agent/standby.py).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ftrun.agent.channel import encode


@dataclass(frozen=True, slots=True)
class Standby:
    """One standby. ``part_fd``: this end of its socket, which never blocks.

    ``rehearses``: it must finish a rehearsal before it can get an assignment.
    """

    name: str
    pid: int
    pidfd: int
    out_fd: int
    err_fd: int
    part_fd: int
    rehearses: bool = False

    def fds(self) -> tuple[int, ...]:
        return (self.pidfd, self.out_fd, self.err_fd, self.part_fd)


class Standbys:
    """The standbys that wait, by name."""

    def __init__(self) -> None:
        self._waiting: dict[str, Standby] = {}

    def add(self, standby: Standby) -> None:
        self._waiting[standby.name] = standby

    def give(self, name: str, assignment: dict[str, Any]) -> Standby | None:
        """Send a standby its assignment, and remove it from this table: it is a worker now.

        Returns:
            None if no standby has that name or it cannot receive; fork a worker instead.
        """
        standby = self._waiting.get(name)
        if standby is None:
            return None
        data = encode(assignment)
        try:
            is_ready = not standby.rehearses or bool(os.read(standby.part_fd, 1))
            is_sent = is_ready and os.write(standby.part_fd, data) == len(data)
        except OSError:  # It has died and is not reaped yet, does not read, or still rehearses.
            is_sent = False
        if not is_sent:
            signal.pidfd_send_signal(standby.pidfd, signal.SIGKILL)
            return None
        del self._waiting[name]
        os.close(standby.part_fd)
        return standby

    def forget(self, pid: int) -> Standby | None:
        """Remove the standby with this pid, which has ended, and close its descriptors."""
        for standby in self._waiting.values():
            if standby.pid == pid:
                del self._waiting[standby.name]
                for fd in standby.fds():
                    os.close(fd)
                return standby
        return None

    def fds(self) -> Iterator[int]:
        """The descriptors that a fork must close."""
        for standby in self._waiting.values():
            yield from standby.fds()
