"""Limits on reading, keeping and sending a script's values. Each bounds time or memory.

The script is read at each noted draw, in 0.15 to 0.3 ms. A value beyond a limit does not heal. If
it is known to have changed, the line of the join names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

Key = TypeVar("Key")
Found = TypeVar("Found")

DEEP = 3
"""How deep objects and collections may be nested. A script's own nest two or three deep; deeper
ones are usually a library's graph, which leads everywhere."""
DICTS_DEEP = 2
"""How deep dicts may be nested whose values are read one by one; one less in an object's attribute.
A deeper dict is one value, which a newcomer gets as a whole if it lacks the dict."""
ITEMS = 64
"""Items of a collection that is searched for values and objects; a larger one is data."""
VISITS = 512
"""Objects and collections that are visited at one draw, per frame; each takes some 2 us."""
VALUES = 512
"""Values of one frame, and as many containers, because all are compared at each draw."""
TRACKED = 4_096
"""Names, types and collections that are remembered between draws. A script may make any number of
them, and memory must not grow with that."""
TEXT_CHARS = 1_024
"""Characters of a text; a longer one is a file's content, not a name or a note."""
TUPLE = 16
"""Items of a tuple that counts as one value."""
LIST = 10_000
"""Values in a list, and in all containers that a newcomer gets. Only new ones are copied."""
TABLE = 1_000
"""Values in a deque, set or dict, because all are copied at each draw; numbers in a tensor that is
sent as text."""
CONTAINERS_BYTES = 256 << 10
"""All containers as JSON, because a newcomer gets them in one message, a successor in one file."""
TENSORS = 10_000
"""Tensors in one dict or list, because all are checked when a peer heals."""
ARRAY_BYTES = 16 << 20
"""Bytes of an array. It has no version counter, so all of it is read to see if it has changed."""


class Remembered(dict[Key, Found]):
    """A cache of ``find`` by type or name, up to ``TRACKED`` keys. ``known``: initial entries."""

    def __init__(self, find: Callable[[Key], Found], known: Mapping[Key, Found]) -> None:
        super().__init__(known)
        self._find = find

    def __missing__(self, key: Key) -> Found:
        found = self._find(key)
        if len(self) < TRACKED:
            self[key] = found
        return found


def remembered(find: Callable[[Key], Found]) -> Callable[[Key], Found]:
    """A decorator that caches the results of a function (``Remembered``)."""
    known: Remembered[Key, Found] = Remembered(find, {})
    return known.__getitem__
