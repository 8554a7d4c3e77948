"""Results of the script's collectives that are kept: for a rank's successor, and for survivors.

Before the first step, each rank notes the results that it received, by the line of the call and the
count of calls at that line. Its successor gets the same results at these lines: a seed, the run's
directory, the number of samples. Each line is counted separately, so ranks may take different
branches (``if rank == 0:``).

Not here: the reader (world.py).
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import torch

from ftrun.core.ids import Attempt
from ftrun.inject.zero_edit.values.journal import Journal, read
from ftrun.inject.zero_edit.world.kinds import nbytes
from ftrun.training.exchanged_tensors import to_bytes

EACH_BYTES_MAX, BYTES_MAX = 16 << 20, 64 << 20
GIVEN_MAX, GIVEN_BYTES_MAX = 64, 1 << 20
GIVEN_EACH_MAX, GIVEN_SENT_MAX = 64 << 10, 256 << 10
"""Limits, in bytes, of the last broadcast values that a newcomer gets: of one, and of all."""


class Kept:
    """One rank's results during set-up, in a file of its slot on this node.

    Args:
        path: of the file.
        is_successor: read the predecessor's file; otherwise begin a new one.
    """

    def __init__(self, path: Path, *, is_successor: bool) -> None:
        self._numbers: Counter[tuple[str, str]] = Counter()
        loses = "a worker that replaces this one will lack the results of the set-up's collectives"
        self._journal = Journal(path, loses, BYTES_MAX)
        self._known = dict(read(path)) if is_successor else {}
        self.is_found = is_successor and path.exists()
        if not is_successor:
            self._journal.begin()

    def add(self, group: str, site: str, given: Sequence[torch.Tensor | bytes]) -> None:
        """Note the result of a call at a line."""
        name = self._next(group, site)
        if sum(len(x) if isinstance(x, bytes) else nbytes(x) for x in given) <= EACH_BYTES_MAX:
            self._journal.add(name, [x if isinstance(x, bytes) else to_bytes(x) for x in given])

    def take(self, group: str, site: str) -> list[bytes] | None:
        """The predecessor's result at this line, at the same count of calls; None: unknown."""
        return self._known.get(self._next(group, site))

    def unknown(self, site: str, what: str) -> str:
        """A notice that a newcomer continues with its own value at a line."""
        why = "" if self.is_found else ": its predecessor was on another node, or left no notes"
        return (
            f"{site}: this restarted replica continues with its own value, because it does not "
            f"know what {what} returned there{why}"
        )

    def _next(self, group: str, site: str) -> str:
        number = self._numbers[group, site]
        self._numbers[group, site] += 1
        return f"{group} {site} {number}"


class Given:
    """The last value of each broadcast, by its place, to use while the root is away.

    At some broadcasts each rank already has the value before it receives it: for example, the state
    of a generator from which all ranks draw alike. Then the rank's own next value is used, because
    the last one would be outdated.
    """

    def __init__(self) -> None:
        self._given: dict[str, list[bytes]] = {}
        self._foreseen: set[str] = set()

    def keep(
        self, place: str, bodies: Sequence[bytes], before: Sequence[bytes] | None = None
    ) -> None:
        """Keep a broadcast value, unless it is too large or there are too many.

        ``before``: the value that this rank had before the broadcast; None: not known.
        """
        last = self._given.get(place)
        if before is not None and list(before) != list(bodies):
            self._foreseen.discard(place)
        elif before is not None and last is not None and last != list(bodies):
            self._foreseen.add(place)  # a new value; an unchanged one would prove nothing
        if sum(map(len, bodies)) <= GIVEN_BYTES_MAX and (
            place in self._given or len(self._given) < GIVEN_MAX
        ):
            self._given[place] = list(bodies)

    def foresees(self, place: str) -> bool:
        """Whether this rank has the values of ``place`` before they are broadcast."""
        return place in self._foreseen

    def at(self, place: str) -> list[bytes] | None:
        """The last value at ``place``."""
        return self._given.get(place)

    def encoded(self) -> dict[str, list[str]]:
        """The values for a newcomer, as JSON has them. May run in any thread."""
        found, left = {}, GIVEN_SENT_MAX
        for place, bodies in list(self._given.items()):
            texts = texts_of(bodies, min(left, GIVEN_EACH_MAX))
            if texts is not None:
                left -= sum(map(len, bodies))
                found[place] = texts
        return found

    def take(self, encoded: Mapping[str, Sequence[str]]) -> None:
        """Keep the values of a peer."""
        for place, texts in encoded.items():
            self.keep(place, bodies_of(texts))


def texts_of(bodies: Sequence[bytes], limit: int) -> list[str] | None:
    """The result of one call as JSON has it; None: it has more than ``limit`` bytes."""
    if sum(map(len, bodies)) > limit:
        return None
    return [base64.b64encode(x).decode() for x in bodies]


def bodies_of(texts: Sequence[str]) -> list[bytes]:
    return [base64.b64decode(x) for x in texts]


@dataclass(frozen=True, slots=True)
class Sent:
    """A rank's position, as it sends it to the others.

    Attributes:
        is_walking: it has not joined yet.
        posted: the previous attempt for which it has sent its position.
        met: the last attempt for which it has received all others' positions.
        next_step: the first step that it has not begun; ``in_step``: the one before is under way.
        groups: for each of its groups its position in it, and whether the group changes.
    """

    is_walking: bool
    posted: Attempt
    met: Attempt
    next_step: int
    in_step: bool
    groups: dict[str, list[Any]]

    def encode(self) -> bytes:
        """As JSON."""
        return json.dumps(astuple(self)).encode()

    @staticmethod
    def decode(text: bytes) -> Sent:
        is_walking, posted, met, *known = json.loads(text)
        return Sent(is_walking, Attempt(*posted), Attempt(*met), *known)
