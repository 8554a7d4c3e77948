"""Keeps gRPC's own lines off the terminal, unless the user has requested them.

The library writes to stderr without Python's loggers, for instance that a peer has gone away, which
ftrun reports itself. Not here: the log of gRPC's Python part (lighthouse/main.py).
"""

from __future__ import annotations

import os

VERBOSITY = "GRPC_VERBOSITY"
WISHES = (VERBOSITY, "GRPC_TRACE")
"""The variables that gRPC reads. A user who sets one of them wants to see its lines."""


def load_grpc_quietly() -> None:
    """Import gRPC for the first time in this process, so that its core is silent.

    The core reads its verbosity only when it is loaded. So the environment is restored on return,
    and no child inherits the change.
    """
    if any(name in os.environ for name in WISHES):
        return
    os.environ[VERBOSITY] = "NONE"
    try:
        import grpc  # noqa: F401
    finally:
        del os.environ[VERBOSITY]
