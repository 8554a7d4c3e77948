"""The last value of each broadcast of the script, by its place there: it stands in for the root.

A root that is away cannot give a value, and a newcomer that passes over a loop has nobody to ask:
its peers have left the line at which it was given (passing.py).

Not here: broadcasts themselves (world.py, objects.py).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping

GIVEN_MAX, GIVEN_BYTES_MAX = 64, 1 << 20
SENT_EACH_MAX, SENT_BYTES_MAX = 64 << 10, 256 << 10
"""A newcomer gets so many bytes of them."""


class LastGiven:
    """The last values of one replica's broadcasts."""

    def __init__(self) -> None:
        self._given: dict[str, bytes] = {}

    def keep(self, site: str, body: bytes) -> None:
        """Keep the value that the root has given, unless there are too many or it is too large."""
        if len(body) <= GIVEN_BYTES_MAX and (site in self._given or len(self._given) < GIVEN_MAX):
            self._given[site] = body

    def at(self, site: str) -> bytes:
        """The last value at ``site``; b"" if none is kept."""
        return self._given.get(site, b"")

    def encoded(self) -> dict[str, str]:
        """The values for a newcomer, as JSON has them; in any thread."""
        found, left = {}, SENT_BYTES_MAX
        for site, body in list(self._given.items()):
            if len(body) <= min(left, SENT_EACH_MAX):
                left -= len(body)
                found[site] = base64.b64encode(body).decode()
        return found

    def take(self, encoded: Mapping[str, str]) -> None:
        """Keep what a peer has."""
        for site, text in encoded.items():
            self.keep(site, base64.b64decode(text))
