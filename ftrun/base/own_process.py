"""ftrun's own processes beside the workers: interpreters that the job does not disturb.

Such a process takes no module from the current or the script's directory, whatever files are there.
From its first instruction on it ignores the signals that are meant for the job, because a scheduler
sends them to all processes at once. Its parent ends it, by a pipe, a pidfd or SIGKILL. A process
that forks has a single thread, even if sitecustomize or a debugger starts others.

Not here: what each process does, workers (agent/child.py).
"""

from __future__ import annotations

import errno
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from ftrun.base.errors import UserError

FOR_THE_JOB = frozenset(
    {
        signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1,
        signal.SIGUSR2,
    }
)  # fmt: skip
"""Signals that only the agent and the scripts act on."""
UNFIT_EXIT = 2
_ROOT = str(Path(__file__).resolve().parents[2])
# ``-c`` and ``-m`` put the current directory in front. ``-P`` would stay in ``sys.flags``, which
# workers inherit, and Python 3.10 lacks it.
CLEAN_PATH = "import sys; sys.path[:] = filter(None, sys.path)\n"
_SITE = "import site; site.execsitecustomize = site.execusercustomize = lambda: None; site.main()\n"
_BEGIN = """\
try:
    import ftrun
except ImportError:
    sys.path.append(sys.argv[1])
from ftrun.base.own_process import begin
begin()
"""


def start(
    module: str,
    words: Sequence[str] = (),
    *,
    acts_on_signals: bool = False,
    forks: bool = False,
    is_tied: bool = False,
    **how: Any,
) -> subprocess.Popen[Any]:
    """Start a Python process that calls ``main`` of ``module`` with ``words`` in ``sys.argv``.

    Args:
        acts_on_signals: it is an agent, or belongs to one process of the user.
        forks: it must have only one thread.
        is_tied: the kernel kills it when the thread that starts it ends, also after a SIGKILL.
        how: for ``subprocess.Popen``.

    Raises:
        OSError: the system refused.
    """
    if is_tied:
        from ftrun.base import linux

        how["preexec_fn"] = partial(linux.die_with_parent, os.getpid())
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, () if acts_on_signals else FOR_THE_JOB)
    try:
        # Blocked signals stay pending during the start, until ``begin`` ignores them.
        return subprocess.Popen(command(module, words, acts_on_signals, forks), **how)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def not_started(error: OSError) -> UserError:
    """The error of a run whose first process cannot be started."""
    is_limit = error.errno in (errno.EMFILE, errno.ENFILE, errno.EAGAIN)
    remedy = " Raise the limits of this shell: ulimit -n (files), ulimit -u (processes)."
    text = f"No process can be started ({error.strerror}). Nothing was started."
    return UserError(text + remedy if is_limit else text)


def command(
    module: str, words: Sequence[str], acts_on_signals: bool = False, forks: bool = False
) -> list[str]:
    """The command line of such a process."""
    kind = "acts" if acts_on_signals else "forks" if forks else "serves"
    return [sys.executable, "-c", CLEAN_PATH + _BEGIN, _ROOT, kind, module, *words]


def begin() -> None:
    """Set this process up as ``start`` has asked, run it, and exit."""
    from ftrun.base import linux  # here, because a run imports this module first of all

    _, kind, module, *words = sys.argv[1:]
    if kind != "acts":
        for number in FOR_THE_JOB:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_THE_JOB)
    threads = linux.thread_count()
    if kind == "forks" and threads > 1:
        if is_bare():
            _refuse(threads)
        # By the C library, because a debugger would inject itself again.
        program = CLEAN_PATH + _SITE + _BEGIN
        linux.replace_process([sys.executable, "-S", "-c", program, *sys.argv[1:]])
    sys.argv = ["ftrun", *words]
    sys.exit(importlib.import_module(module).main())


def is_bare() -> bool:
    """Whether sitecustomize and usercustomize were left out because they start threads."""
    return bool(sys.flags.no_site)


def _refuse(threads: int) -> NoReturn:
    """Exit, because a fork would copy the locks that other threads hold."""
    files = [path.name for entry in sys.path for path in Path(entry).glob("*.pth") if _acts(path)]
    print(
        f"{sys.executable} has {threads} threads before ftrun begins, also without "
        f"sitecustomize, and a process that forks must have one. Python runs lines of these files "
        f"at its start: {', '.join(sorted(files)) or 'none is found'}",
        file=sys.stderr,
    )
    sys.exit(UNFIT_EXIT)


def _acts(path: Path) -> bool:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return False
    return any(line.startswith(("import ", "import\t")) for line in lines)
