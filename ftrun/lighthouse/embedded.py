"""How an agent's child process becomes its lighthouse: settings, token, and its end.

Imports nothing heavy: the child is tied to its parent before anything else is loaded. Not here:
what the agent passes to it (protocol/embedding.py), its restart (agent/embedded.py).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ftrun.base import linux
from ftrun.protocol.embedding import (
    BIND,
    FOR_NODES,
    HTTP,
    LOG_DIR,
    ONCE,
    OUTLIVES,
    STATE_DIR,
    TLS,
    TOKEN_FD,
)

TOKEN_BYTES_MAX = 4096


@dataclass(frozen=True)
class Embedding:
    """The settings that the agent passed to its lighthouse."""

    state_dir: Path
    bind: str
    http: str
    token: str = field(repr=False)
    log_dir: Path | None = None
    stop_fd: int = -1
    """A pipe whose end means that this process is to stop."""
    outlives: bool = True
    """The state is of use after a crash of the machine: it is not of the agent's life alone."""
    tls: tuple[Path, ...] = ()
    """A certificate, its key and a CA; none: no TLS."""
    for_nodes: bool = False
    """Agents of other nodes come too; ``state_dir`` is a register that several share."""
    once: bool = False
    """It ends with its first job, and shares its state with nobody."""


def take_embedding(environ: Mapping[str, str]) -> Embedding:
    """Read the environment, and the token from its pipe, which stays open (``stop_fd``).

    Raises:
        KeyError, ValueError, OSError: this process was not started by an agent.
    """
    fd = int(environ[TOKEN_FD])
    os.set_inheritable(fd, False)
    with os.fdopen(fd, "rb", closefd=False) as pipe:
        token = pipe.readline(TOKEN_BYTES_MAX).decode("ascii").strip()
    log_dir = Path(environ[LOG_DIR]) if environ.get(LOG_DIR) else None
    state_dir, outlives = Path(environ[STATE_DIR]), bool(environ.get(OUTLIVES, "1"))
    tls = tuple(map(Path, filter(None, environ.get(TLS, "").split(os.pathsep))))
    return Embedding(
        state_dir, environ[BIND], environ[HTTP], token, log_dir, fd, outlives, tls,
        bool(environ.get(FOR_NODES)), bool(environ.get(ONCE)),
    )  # fmt: skip


def tie_to_parent(parent_pid: int) -> None:
    """Die when the parent's thread that started this process ends; end now if it has.

    SIGKILL: nothing needs tidying (the journal is whole at any moment), and nothing can delay it.
    """
    if not linux.die_with_parent(parent_pid):
        sys.exit(0)
