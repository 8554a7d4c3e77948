"""Processes that a worker leaves running after it exited with 0, such as a background upload.

They keep running, as under torchrun, even after the job has succeeded. In that case a separate
process (``main``) continues to write their output to the logs, because a closed pipe would end
them. If the job is stopped or fails, they are ended like all processes of the job (sweep.py), and a
line names them.

Not here: processes of other workers, which end with them (sweep.py).
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
    """Notes the workers that have exited with 0; a swept incarnation is forgotten."""

    def __init__(self) -> None:
        self._ranks: dict[str, set[str]] = {}

    def ended_well(self, incarnation: str, group_rank: int) -> None:
        self._ranks.setdefault(incarnation, set()).add(str(group_rank))

    def take(self, *incarnations: str) -> list[str]:
        """The processes that these incarnations' workers left running after they exited with 0, as
        text.
        """
        ranks = {x: self._ranks.pop(x) for x in incarnations if x in self._ranks}
        rows = linux.process_rows() if ranks else []
        return [words for row in rows if (words := _words(row.pid, ranks))]

    def take_all(self) -> list[str]:
        """The processes left by all incarnations that were not swept: their scripts have
        finished.
        """
        return self.take(*self._ranks)


def keep_writing(logs: Iterable[WorkerLog]) -> None:
    """Start a process that appends further output to the logs until every pipe is closed."""
    pipes = {fd: log.path.absolute() for log in logs for fd in log.give_pipes()}
    if not pipes:
        return
    with contextlib.suppress(OSError):  # if it fails, writers find their pipe closed
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
    """Started by ``keep_writing`` with pairs of a pipe and a file.

    Ends when all pipes have closed.
    """
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
    """A process that one of these workers has started, as text; "" for any other process."""
    text = linux.process_environment(pid).decode(errors="replace")
    variables = dict(line.partition("=")[::2] for line in text.split("\0"))
    if variables.get(RANK_NAME) not in ranks.get(variables.get(OWNER_NAME, ""), ()):
        return ""
    command = linux.command_line(pid)
    # Python's own helpers end as soon as they find that their users have, perhaps in a moment.
    is_known = own_process.__name__ in command or TRACKER in command
    return f"{command[:WORDS_MAX]} (pid {pid})" if command and not is_known else ""
