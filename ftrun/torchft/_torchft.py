"""The classes of torchft's compiled module, under its name.

Not here: the classes themselves (coordination.py), ftrun's lighthouse (lighthouse/).
"""

from __future__ import annotations

from typing import NoReturn

from ftrun.base.errors import UserError
from ftrun.core.torchft_quorum.results import QuorumResult
from ftrun.torchft.coordination import (
    LighthouseClient,
    LighthouseServer,
    ManagerClient,
    ManagerServer,
    Quorum,
    QuorumMember,
    Timestamp,
)

__all__ = [
    "LighthouseClient",
    "LighthouseServer",
    "ManagerClient",
    "ManagerServer",
    "Quorum",
    "QuorumMember",
    "QuorumResult",
    "Timestamp",
    "lighthouse_main",
]


def lighthouse_main() -> NoReturn:
    """torchft's command ``torchft_lighthouse``, whose options ftrun's command does not have.

    Raises:
        UserError: always; it names ftrun's command.
    """
    raise UserError(
        "torchft_lighthouse: under ftrun no lighthouse need be started. For torchft's own replicas "
        "run: ftrun lighthouse --torchft-bind HOST:29510 --torchft-min-replicas N, which serves "
        "them by torchft's protocol. In a program: torchft.coordination.LighthouseServer"
    )
