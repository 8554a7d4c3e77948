"""A newcomer's way through an IterableDataset, whose batches must be read to be passed over.

A peer that trains waits for a newcomer from the moment at which it joins. So it reads before that,
until it is near to where its peers are; they go on meanwhile, and it looks again where they are.

Not here: passing over batches (loaders.py), joining (loop.py).
"""

from __future__ import annotations

from collections.abc import Callable

from ftrun.inject.zero_edit import told
from ftrun.inject.zero_edit.loaders import LoaderIterator, follow
from ftrun.inject.zero_edit.noting import matched
from ftrun.inject.zero_edit.place import Place

NEAR = 32
"""Batches that are left to be read when it has joined."""
ROUNDS_MAX = 16
"""A newcomer that reads twice as fast as its peers train needs five for 1,000 batches."""


def come_near(
    iterator: LoaderIterator | None, find: Callable[[], Place], *, who: str, tells: bool
) -> None:
    """Read up to the peers' place, but for ``NEAR`` batches, before they wait for this replica.

    Args:
        iterator: the one that is about to give its first batch; None: there is nothing to read.
        find: gives the present place of the peers.
        who: the name of this replica, for people.
        tells: print a notice; one worker of a replica does.
    """
    if iterator is None or not iterator.must_read:
        return
    for index in range(ROUNDS_MAX):
        found, _ = matched(find().loaders, iterator)
        places = [x for x, like in found if like is iterator]
        left = places[0].drawn - iterator.cursor.drawn if places else 0
        if left <= NEAR:
            return
        if tells and not index:
            told.say(
                f"{who} reads {left} batches of the loader at {iterator.spot} to come to its "
                "peers' place, because an IterableDataset has no indices. They train on meanwhile"
            )
        follow([(iterator, iterator.go_to(None, places[0].drawn))])
