"""How an agent's child process becomes its lighthouse: settings, token, and end.

Imports nothing heavy, because the child is tied to its parent before anything else is loaded. Not
here: what the agent passes to it (protocol/embedding.py), its restart (agent/embedded.py).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping

from ftrun.base import linux
from ftrun.protocol.embedding import ORDER_BYTES_MAX, ORDER_FD, Embedding


def take_embedding(environ: Mapping[str, str]) -> tuple[Embedding, int]:
    """The parent's order, and its pipe. The end of the pipe asks this process to stop.

    Raises:
        KeyError, ValueError, TypeError, OSError: this process was not started by an agent.
    """
    fd = int(environ[ORDER_FD])
    os.set_inheritable(fd, False)
    with os.fdopen(fd, "rb", closefd=False) as pipe:
        found = json.loads(pipe.readline(ORDER_BYTES_MAX))
    return Embedding(**{**found, "tls": tuple(found["tls"])}), fd


def tie_to_parent(parent_pid: int) -> None:
    """Die when the parent's thread that started this process ends; now if it has ended already.

    By SIGKILL: there is nothing to clean up (the journal is always whole), and nothing can delay
    it.
    """
    if not linux.die_with_parent(parent_pid):
        sys.exit(0)
