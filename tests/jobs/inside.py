"""A fork that runs in another process's namespaces, like a command of ``nsenter``.

Only a child can be in another pid namespace. So the requested process stays outside: it ends as the
child inside ends, and stops and continues with it. Not here: who requests it (forks.py).
"""

from __future__ import annotations

import os
import signal
from typing import NoReturn

from ftrun.base import linux

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWPID, CLONE_NEWNET = 0x20000, 0x4000000, 0x20000000, 0x40000000


def fork_inside(target: int) -> int:
    """Fork; the child is in the namespaces of the process ``target``. Returns like ``os.fork``.

    Raises:
        OSError: the system's refusal, or there is no such process.
    """
    pidfd = os.pidfd_open(target)
    _enter(pidfd, CLONE_NEWPID)
    child = os.fork()
    if child == 0:
        _enter(pidfd, CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWNET)
    os.close(pidfd)
    return child


def stand_for(child: int) -> NoReturn:
    """Represent a child inside to other processes: stop, continue and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    while True:
        _, status = os.waitpid(child, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            os.kill(os.getpid(), signal.SIGSTOP)
            os.kill(child, signal.SIGCONT)
        elif os.WIFEXITED(status):
            os._exit(os.WEXITSTATUS(status))
        else:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), os.WTERMSIG(status))


def _enter(pidfd: int, spaces: int) -> None:
    if linux.libc().setns(pidfd, spaces) != 0:
        raise OSError(f"namespaces {spaces:#x} cannot be entered")
