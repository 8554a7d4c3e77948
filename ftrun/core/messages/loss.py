"""The record of a lost replica, which several messages carry."""

from __future__ import annotations

from dataclasses import dataclass

from ftrun.core.ids import OfIncarnation

USAGE_CODE = 2
"""The exit code of a script with wrong arguments, by custom and by argparse."""


@dataclass(frozen=True, slots=True)
class Loss(OfIncarnation):
    """A lost replica, and the cause as text for people.

    ``killed``: it was asked to end and had to be killed, so it may not have saved everything.
    """

    cause: str
    killed: bool = False
