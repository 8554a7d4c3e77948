"""torchft.torchcomms: a group over a torchcomms communicator, which ftrun does not offer.

It can be imported without torchcomms, and raises an error when it is constructed.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from ftrun.base.errors import UserError
from ftrun.process_groups.reconfigurable import ReconfigurableGroup

__all__ = ["ProcessGroupTorchComms"]

DEFAULT_TIMEOUT = timedelta(seconds=60)


class ProcessGroupTorchComms(ReconfigurableGroup):
    """Collectives of torchcomms: can be imported, but not constructed.

    Raises:
        UserError: a TorchComm replaces its only connections when it is reconfigured.
    """

    def __init__(self, comm: Any, timeout: timedelta = DEFAULT_TIMEOUT) -> None:
        raise UserError(
            f"{type(self).__name__}: ftrun connects with the next replicas while the present group "
            "is in use, and a TorchComm replaces its only connections in reconfigure(). Nothing "
            "was connected; use ProcessGroupNCCL on CUDA devices and ProcessGroupGloo elsewhere"
        )
