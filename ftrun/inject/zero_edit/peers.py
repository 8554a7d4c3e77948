"""The place of a replica's peers: before it has joined them, and when it has healed from them.

Not here: how a replica is set to a place (moving.py), what a place is (place.py), how it is
requested (training/exchanges.py).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch.distributed as dist

from ftrun.inject.zero_edit import around
from ftrun.inject.zero_edit.frames import script_frames, stack
from ftrun.inject.zero_edit.loaders import LoaderIterator
from ftrun.inject.zero_edit.noting import headed_elsewhere, made_elsewhere
from ftrun.inject.zero_edit.place import Place, digest

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.script import Script


class Peers:
    """The peers of one replica. For the main thread.

    Attributes:
        elsewhere: the place where they wait for this replica in a step that has begun; None: they
            do not wait, or this replica has reached the place.
        have_gone_back: no peer trained, so all replicas resume from a saved state.
    """

    def __init__(self, script: Script) -> None:
        self._script, self._here, self._mates = script, script.here, script.mates
        self._at: Place | None = None
        self.elsewhere: Place | None = None
        self.have_gone_back = False

    @property
    def are_looked_for(self) -> bool:
        """Whether ``look`` was called. Their place is empty if none of them trains."""
        return self._at is not None

    @property
    def can_be_found(self) -> bool:
        """Whether this worker can find out, without its mates, if the peers train."""
        is_ready = dist.is_available() and dist.is_initialized()
        return is_ready and (self.are_looked_for or not self._mates.are_several)

    @property
    def place(self) -> Place:
        """The place where they wait, or were at the last ``look``; empty: none trains."""
        return self.elsewhere or self._at or Place()

    @property
    def entry(self) -> str:
        """A digest of the stack of their loop's first draw; "": none trains."""
        if self._at is None:
            self.look()
        return digest(self.place.entry) if self.place.entry else ""

    def look(self) -> None:
        """Request their place; mates use the answer that their lead has received."""
        if self.elsewhere is not None:
            return
        if (begins_at := self._script.begins_at) is not None:
            self._at = begins_at
            return
        limit_s, exchanges = self._here.quorum_timeout_s, self._script.manager().session.exchanges
        text = exchanges.peek_place(limit_s) if self._mates.is_lead else None
        if self._mates.are_several:
            text = self._mates.from_lead(exchanges, (text or "").encode(), limit_s).decode() or None
        self.have_gone_back = text is None
        self._at = self._of_snapshot() if text is None else Place.decode(text)

    def are_here(self, iterator: LoaderIterator | None) -> bool:
        """Whether the peers are in the loop that this newcomer is about to begin.

        ``iterator``: the newcomer's, about to draw its first batch; None: a loop without a loader.
        """
        if digest(stack()) != self.entry:
            return False
        place = self.now()  # they may have moved since
        is_other = iterator is not None and iterator.is_other_than(place.loaders)
        return not (is_other or self._have_left(place))

    def have_gone(self) -> bool:
        """Whether the peers have moved on meanwhile: to another loop, or to another turn of a loop
        that cannot be set. This newcomer has loaded their state and begun a step with them."""
        place = self.loaded()
        self.elsewhere = place if place is not None and self._have_left(place) else None
        return self.elsewhere is not None

    def _have_left(self, place: Place) -> bool:
        is_left = bool(place.entry) and digest(place.entry) != digest(stack())
        return is_left or bool(self.unlike_loops(place))

    def unlike_loops(self, place: Place) -> list[around.Loop]:
        """The loops around this newcomer that are not where the peers' are at ``place``, and come
        there by turns alone: such that cannot be set, or one whose turn makes the loader, or says
        what an inner loop goes over."""
        loops = self._script.counters.unlike_loops(place)
        to_turn = None if loops else made_elsewhere(place) or headed_elsewhere(place)
        return loops if to_turn is None else around.to_turn(script_frames(), *to_turn)

    def now(self) -> Place:
        self.look()
        return self.place

    def loaded(self) -> Place | None:
        """The place of the loaded state: the snapshot's or the donors'."""
        manager = self._script.manager()
        if manager.session.resuming is not None and manager.session.resuming.position:
            return self._of_snapshot()
        text = manager.session.healing.place
        return Place.decode(text) if text else None

    def _of_snapshot(self) -> Place:
        """The place of the snapshot from which the job resumes; empty: there is none.

        All replicas start there, so they repeat the collectives between the place and its step.
        """
        resuming = self._script.manager().session.resuming
        found = None if resuming is None else resuming.find_place()
        if found is None or not found[0]:
            return Place()
        text, replicas = found
        return replace(Place.decode(text).among(replicas, self._here.replicas), calls=())
