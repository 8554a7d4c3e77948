"""``python -m tests.jobs.facts``: prints what the process got at its start (test_forks.py)."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
from pathlib import Path
from typing import Any

MASKS = ("SigBlk", "SigIgn", "SigCgt")


def facts() -> dict[str, Any]:
    """The facts that a fork and a started program must share; ``drawn`` must differ."""
    main = sys.modules["__main__"]
    status = Path("/proc/self/status").read_text().splitlines()
    umask = os.umask(0)
    os.umask(umask)
    return {
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "path": sys.path,
        "main": [main.__name__, main.__file__, main.__package__],
        "directory": os.getcwd(),
        "environment": dict(os.environ),
        "shown": _entries("environ"),
        "command": _entries("cmdline"),
        "comm": Path("/proc/self/comm").read_text(),
        "parent": os.getppid(),
        "session": [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()],
        "fds": {fd: _of(fd) for fd in os.listdir("/proc/self/fd") if _of(fd)},
        "signals": [line for line in status if line.partition(":")[0] in MASKS],
        "handlers": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
        "limits": [resource.getrlimit(number) for number in range(resource.RLIM_NLIMITS)]
        if hasattr(resource, "RLIM_NLIMITS")
        else resource.getrlimit(resource.RLIMIT_NOFILE),
        "umask": umask,
        "threads": len(os.listdir("/proc/self/task")),
        "streams": [
            [stream.name, stream.encoding, stream.errors, stream.line_buffering]
            for stream in (sys.stdin, sys.stdout, sys.stderr)
        ],
        "drawn": random.random(),
    }


def _entries(name: str) -> list[str]:
    return sorted(filter(None, Path(f"/proc/self/{name}").read_text().split("\0")))


def _of(fd: str) -> str:
    """A descriptor's kind; a pipe or a socket without its number, and no descriptor of the
    listing."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}").partition(":")[0]
    except OSError:
        return ""


if __name__ == "__main__":
    print(json.dumps(facts()))
    sys.exit(int(sys.argv[1]))
