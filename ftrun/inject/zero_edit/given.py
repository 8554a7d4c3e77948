"""The last value of each broadcast of the script, by its place there: it stands in for the root.

A root that is away cannot give a value, and a newcomer that passes over a loop has nobody to ask:
its peers have left the line at which it was given (passing.py).

Not here: broadcasts themselves (world.py, objects.py).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping

from ftrun.inject.zero_edit.frames import stack
from ftrun.inject.zero_edit.place import digest

GIVEN_MAX, GIVEN_BYTES_MAX = 64, 1 << 20
SENT_EACH_MAX, SENT_BYTES_MAX = 64 << 10, 256 << 10
"""A newcomer gets so many bytes of them."""


def place_of(what: str) -> str:
    """A name of the broadcast ``what`` that the script makes now: by all lines of its stack, since
    a function of its own may broadcast for several."""
    return f"{digest(stack())} {what}"


class LastGiven:
    """The last values of one replica's broadcasts.

    Attributes:
        is_still: what is given now does not count (passing.py).
    """

    def __init__(self) -> None:
        self.is_still = False
        self._given: dict[str, bytes] = {}

    def keep(self, place: str, body: bytes) -> None:
        """Keep the value that the root has given, unless there are too many or it is too large."""
        if self.is_still:
            return
        if len(body) <= GIVEN_BYTES_MAX and (place in self._given or len(self._given) < GIVEN_MAX):
            self._given[place] = body

    def at(self, place: str) -> bytes:
        """The last value at ``place``; b"" if none is kept."""
        return self._given.get(place, b"")

    def encoded(self) -> dict[str, str]:
        """The values for a newcomer, as JSON has them; in any thread."""
        found, left = {}, SENT_BYTES_MAX
        for place, body in list(self._given.items()):
            if len(body) <= min(left, SENT_EACH_MAX):
                left -= len(body)
                found[place] = base64.b64encode(body).decode()
        return found

    def take(self, encoded: Mapping[str, str]) -> None:
        """Keep what a peer has."""
        for place, text in encoded.items():
            self.keep(place, base64.b64decode(text))
