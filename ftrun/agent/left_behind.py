"""Processes that a worker leaves running after it ended well, such as a background upload.

They live on, as under torchrun, also when the job ends well. Then a process of its own goes on to
write their output (``main``), because a closed pipe would end them. If the job is stopped or fails,
they are ended like all other processes of the job (sweep.py), and named.

Not here: what other workers leave, which is ended with them (sweep.py).
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Iterable

from ftrun.agent.env_markers import OWNER_NAME
from ftrun.agent.logs import WorkerLog
from ftrun.agent.sweep import TRACKER
from ftrun.base import linux, own_process

RANK_NAME = "FTRUN_GROUP_RANK"
NAMED_MAX = 4
WORDS_MAX = 60
READ_BYTES = 1 << 16


class LeftBehind:
    """Knows which workers have ended well; those of a swept incarnation are forgotten."""

    def __init__(self) -> None:
        self._ranks: dict[str, set[str]] = {}

    def ended_well(self, incarnation: str, group_rank: int) -> None:
        self._ranks.setdefault(incarnation, set()).add(str(group_rank))

    def take(self, *incarnations: str) -> list[str]:
        """The processes that workers left running after their incarnations ended well, in words."""
        ranks = {x: self._ranks.pop(x) for x in incarnations if x in self._ranks}
        rows = linux.process_rows() if ranks else []
        return [words for row in rows if (words := _words(row.pid, ranks))]

    def take_all(self) -> list[str]:
        """The same of all incarnations that were not swept: their scripts have finished."""
        return self.take(*self._ranks)


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


def _words(pid: int, ranks: dict[str, set[str]]) -> str:
    """A process that one of these workers has started; "" for any other."""
    text = linux.process_environment(pid).decode(errors="replace")
    variables = dict(line.partition("=")[::2] for line in text.split("\0"))
    if variables.get(RANK_NAME) not in ranks.get(variables.get(OWNER_NAME, ""), ()):
        return ""
    command = linux.command_line(pid)
    # Python's own ends as soon as it finds that its users have ended, which may be in a moment.
    is_known = own_process.__name__ in command or TRACKER in command
    return f"{command[:WORDS_MAX]} (pid {pid})" if command and not is_known else ""
