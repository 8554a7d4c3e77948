"""The limits of what is read, kept and given of a script's values. Each bounds time or memory.

The script is read at each noted draw, in 0.15 to 0.3 ms. What is beyond a limit does not heal; what
has changed there is named where that is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

Key = TypeVar("Key")
Found = TypeVar("Found")

DEEP = 3
"""Objects in objects, and collections in collections. Scripts' own are two or three deep; from
there on it is mostly a library's graph, which leads everywhere."""
DICTS_DEEP = 2
"""Dicts in dicts whose values are read one by one, of an object's attribute one less. A deeper one
is one value, which a newcomer gets as a whole if it lacks the dict."""
ITEMS = 64
"""In one collection that is searched for values and objects; a larger one is data."""
VISITS = 512
"""Objects and collections that are looked into at one draw, for each frame: some 2 us each."""
VALUES = 512
"""Values, and as many containers, of one frame: all are compared at each draw."""
TRACKED = 4_096
"""Names, types and collections that are remembered from draw to draw: scripts make these without
end, and memory must not grow with them."""
TEXT_CHARS = 1_024
"""A longer text is a file's content, not a name or a note."""
TUPLE = 16
"""Parts of a tuple that is one value."""
LIST = 10_000
"""Values in a list, and in all containers that a newcomer gets: only new ones are copied."""
TABLE = 1_000
"""Values in a deque, set or dict, all of which are copied at each draw; numbers in a tensor that
travels as text."""
CONTAINERS_BYTES = 256 << 10
"""Of all containers, as JSON: a newcomer gets them in one message, a successor in one file."""
TENSORS = 10_000
"""Tensors in one dict or list: all are looked at when a peer heals."""
ARRAY_BYTES = 16 << 20
"""A larger array has no version, and is not read to find out whether it has changed."""


class Remembered(dict[Key, Found]):
    """What was found of each type, or name, that was met; of some it is ``known`` before."""

    def __init__(self, find: Callable[[Key], Found], known: Mapping[Key, Found]) -> None:
        super().__init__(known)
        self._find = find

    def __missing__(self, key: Key) -> Found:
        found = self._find(key)
        if len(self) < TRACKED:
            self[key] = found
        return found


def remembered(find: Callable[[Key], Found]) -> Callable[[Key], Found]:
    """Let a function remember what it has found."""
    known: Remembered[Key, Found] = Remembered(find, {})
    return known.__getitem__
