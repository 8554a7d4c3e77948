"""gRPC's own lines stay off the terminal, unless the user has asked gRPC for them.

The library writes to stderr by itself, past every logger of Python: that a peer goes away, for
instance, which ftrun says in its own words. Not here: what Python's part of gRPC logs
(lighthouse/main.py).
"""

from __future__ import annotations

import os

VERBOSITY = "GRPC_VERBOSITY"
WISHES = (VERBOSITY, "GRPC_TRACE")
"""What gRPC reads in the environment; whoever sets one of them wants to see its lines."""


def load_grpc_quietly() -> None:
    """Import gRPC for the first time in this process, so that its core is silent.

    The core reads its verbosity when it is loaded, and never again. So the environment is what it
    was when this returns, and no child inherits the change.
    """
    if any(name in os.environ for name in WISHES):
        return
    os.environ[VERBOSITY] = "NONE"
    try:
        import grpc  # noqa: F401
    finally:
        del os.environ[VERBOSITY]
