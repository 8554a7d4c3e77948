"""The errors that ftrun raises, for programs that catch them: ``except ftrun.errors.UserError``.

Not here: what each means, and the exit codes (base/errors.py), which all of ftrun imports.
"""

from __future__ import annotations

from ftrun.base.errors import (
    Bug,
    ExitCode,
    FtrunError,
    LaunchError,
    PeerError,
    ProtocolError,
    UserError,
)

__all__ = [
    "Bug",
    "ExitCode",
    "FtrunError",
    "LaunchError",
    "PeerError",
    "ProtocolError",
    "UserError",
]
