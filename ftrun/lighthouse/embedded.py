"""How an agent's child process becomes its lighthouse: settings, token, and its end.

The agent starts ``python -m ftrun.lighthouse`` with what ``child_environment`` says in addition to
its own environment, and passes the read end of a pipe that holds the token (never argv: X4). The
child publishes its ports in ``STATE_DIR/address.json`` and dies with its agent (P1).

Imports nothing heavy: the child is tied to its parent before anything else is loaded. Not here:
restarting it (the agent).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

STATE_DIR = "FTRUN_LIGHTHOUSE_STATE_DIR"
BIND = "FTRUN_LIGHTHOUSE_BIND"
HTTP = "FTRUN_LIGHTHOUSE_HTTP"
TOKEN_FD = "FTRUN_LIGHTHOUSE_TOKEN_FD"
PARENT_PID = "FTRUN_LIGHTHOUSE_PARENT_PID"

TOKEN_BYTES_MAX = 4096
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Embedding:
    """What the agent told its lighthouse."""

    state_dir: Path
    bind: str
    http: str
    token: str = field(repr=False)


def child_environment(
    state_dir: Path,
    token_fd: int,
    *,
    parent_pid: int,
    bind: str = "127.0.0.1:0",
    http: str = "127.0.0.1:0",
) -> dict[str, str]:
    """What the agent adds to the environment of ``python -m ftrun.lighthouse``."""
    return {
        STATE_DIR: str(state_dir),
        BIND: bind,
        HTTP: http,
        TOKEN_FD: str(token_fd),
        PARENT_PID: str(parent_pid),
    }


def take_embedding(environ: Mapping[str, str]) -> Embedding:
    """Read the environment and the token's pipe; the descriptor is closed.

    Raises:
        KeyError, ValueError, OSError: this process was not started by an agent.
    """
    fd = int(environ[TOKEN_FD])
    with os.fdopen(fd, "rb") as pipe:
        token = pipe.read(TOKEN_BYTES_MAX).decode("ascii").strip()
    return Embedding(Path(environ[STATE_DIR]), environ[BIND], environ[HTTP], token)


def tie_to_parent(parent_pid: int) -> None:
    """Die when the parent's thread that started this process ends; end now if it has.

    SIGKILL: nothing needs tidying (the journal is whole at any moment), and nothing can delay it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        sys.exit(0)
    # Ctrl-C in the terminal is for the agent, which ends this process when it is its time.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
