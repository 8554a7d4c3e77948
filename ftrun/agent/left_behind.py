"""What a worker that has ended well leaves running, such as a background upload.

It lives on, as under torchrun, also when the job ends well: then a process of its own goes on to
write its output (``main``), because a closed pipe would end it. If the job is stopped or fails, it
is ended like all other processes of the job (sweep.py), and named.

Not here: what other workers leave, which is ended with them (sweep.py).
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Iterable

from ftrun import linux, own_process
from ftrun.agent import sweep
from ftrun.agent.logs import WorkerLog

RANK_NAME = "FTRUN_GROUP_RANK"
NAMED_MAX = 4
WORDS_MAX = 60
READ_BYTES = 1 << 16


class LeftBehind:
    """Knows which workers have ended well; those of a swept incarnation are forgotten."""

    def __init__(self) -> None:
        self._ranks: dict[str, set[int]] = {}

    def ended_well(self, incarnation: str, group_rank: int) -> None:
        """A worker has ended with 0."""
        self._ranks.setdefault(incarnation, set()).add(group_rank)

    def take(self, incarnation: str) -> list[str]:
        """What the workers of an incarnation that ended well have left running, in words."""
        ranks = {str(rank).encode() for rank in self._ranks.pop(incarnation, ())}
        rows = sweep.owned_processes(incarnation) if ranks else []
        found = ((row.pid, _rank_of(row.pid), linux.command_line(row.pid)) for row in rows)
        return [
            f"{command[:WORDS_MAX]} (pid {pid})"
            for pid, rank, command in found
            if rank in ranks and command and own_process.__name__ not in command
        ]

    def take_all(self) -> list[str]:
        """The same of all incarnations that were not swept: their scripts have finished."""
        return [words for incarnation in list(self._ranks) for words in self.take(incarnation)]


def listed(processes: list[str]) -> str:
    """The first of them, and the number of the others."""
    more = len(processes) - NAMED_MAX
    return ", ".join(processes[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def keep_writing(logs: Iterable[WorkerLog]) -> None:
    """Have a process append to the logs what still comes, until nobody holds the pipes."""
    pipes = {fd: log.path.absolute() for log in logs for fd in log.give_pipes()}
    if not pipes:
        return
    with contextlib.suppress(OSError):  # then what writes there finds the pipe closed
        own_process.start(
            __name__,
            [word for fd, path in pipes.items() for word in (str(fd), str(path))],
            pass_fds=list(pipes),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ).returncode = 0  # it outlives this process, so it is not waited for
    for fd in pipes:
        os.close(fd)


def main() -> None:
    """Started by ``keep_writing`` with pairs of a pipe and a file; ends when all pipes have."""
    words = sys.argv[1:]
    linux.title_process("ftrun output of what is left")
    files = {int(fd): path for fd, path in zip(words[::2], words[1::2], strict=True)}
    poll = select.poll()
    for fd in files:
        poll.register(fd, select.POLLIN)
    while files:
        for fd, _ in poll.poll():
            data = os.read(fd, READ_BYTES)
            if data:
                with contextlib.suppress(OSError), open(files[fd], "ab") as file:
                    file.write(data)
            else:
                poll.unregister(fd)
                del files[fd]


def _rank_of(pid: int) -> bytes:
    prefix = f"{RANK_NAME}=".encode()
    variables = linux.process_environment(pid).split(b"\0")
    return next((x.removeprefix(prefix) for x in variables if x.startswith(prefix)), b"")
