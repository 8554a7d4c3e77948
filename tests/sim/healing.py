"""Offers of a state and fetches from them, as in checkpoint/ and training/healing.py.

An offer is live until it is retired; then a copy is kept for receivers that have not come yet. A
fetch asks donors until one has the tag, reads for a while, and moves to another donor if one dies.
A cancelled fetch delivers nothing. A fetch in place overwrites the receiver's own state as it
reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ftrun.core.data.plan import DataPosition
from ftrun.core.ids import StateId, Tag
from ftrun.core.quorum import Quorum
from ftrun.core.worker import events as e
from tests.sim.actor import OPERATION_TIMEOUT_S

if TYPE_CHECKING:
    from tests.sim.worker import Worker


@dataclass(slots=True)
class Offer:
    """A state under its tag. ``copy``: its content when it was retired.

    ``kept``: the offer is made between two steps. ``is_refused``: the donor reports that it cannot
    serve it.
    """

    donor: Worker
    tag: Tag
    state: StateId
    receivers: int
    kept: bool = False
    finished: set[int] = field(default_factory=set)
    retired: bool = False
    copy: int | None = None
    is_refused: bool = False
    position: DataPosition = field(init=False)

    def __post_init__(self) -> None:
        self.position = self.donor.position

    @property
    def content(self) -> int | None:
        """The content that a receiver reads now; None: it is not offered, or no longer."""
        if self.is_refused:
            return None
        return self.copy if self.retired else self.donor.content

    def retire(self) -> None:
        """Copy what receivers need, because the donor's state is about to change."""
        if not self.retired:
            if len(self.finished) < self.receivers:
                self.copy = self.donor.content
            self.retired = True


@dataclass(frozen=True, slots=True)
class Fetched:
    """The fetched state. ``place``: the donors' place in the script; "": the script does not
    ask."""

    tag: Tag
    state: StateId
    content: int
    donor: str
    position: DataPosition
    place: str = ""


class Fetch:
    """A transfer in progress."""

    def __init__(
        self, worker: Worker, tag: Tag, quorum: Quorum, in_place: bool, catches_up: bool
    ) -> None:
        rank = worker.key.group_rank
        self.worker = worker
        self.number = worker.world.next_number()
        self.tag = tag
        self.quorum = quorum
        self._in_place = in_place
        self._catches_up = catches_up
        self.donors = [
            member.endpoints[rank].heal
            for member in quorum.members
            if member.replica_id in quorum.donors
        ]
        self._cancelled = False
        self._world = worker.world
        self._deadline = worker.world.now + OPERATION_TIMEOUT_S
        self._pause_s = 0.005
        self._world.at(self._world.rng.uniform(0.001, 0.01), worker, self._ask)

    def cancel(self) -> None:
        """Cancel it, because another fetch replaces it."""
        self._cancelled = True

    def _ask(self) -> None:
        if self._cancelled:
            return
        world = self._world
        donors = [world.endpoints[address] for address in self.donors]
        living = [donor for donor in donors if donor.alive]
        heard = [donor for donor in living if self._hears(donor)]
        known = [donor.offers[self.tag] for donor in heard if self.tag in donor.offers]
        mine = [offer for offer in known if self._catches_up or not offer.kept]
        offers = [offer for offer in mine if offer.content is not None]
        if not living:
            self._fail("all donors are gone")
        elif sum(offer.is_refused for offer in known) == len(donors):
            if self.worker.machine._awaits_state(self.tag):
                world.invariants.refused(self.worker.key)
            self.worker.feed(e.HealFailed(self.tag, "no donor can serve", is_refused=True))
        elif world.now >= self._deadline:
            self._fail("no donor could deliver in time")
        elif not offers:
            self._pause_s = min(2 * self._pause_s, 0.1)
            world.at(self._pause_s, self.worker, self._ask)
        else:
            self._read(world.rng.choice(offers))

    def _hears(self, donor: Worker) -> bool:
        own, its, now = self.worker.agent.host, donor.agent.host, self._world.now
        return own is its or self._world.calm or max(own.deaf_until, its.mute_until) <= now

    def _read(self, offer: Offer) -> None:
        wanted = self.quorum.state
        if wanted is not None and offer.state != wanted:
            self._fail(f"the donor holds {offer.state}, not {wanted}")
            return
        if self._in_place and not self._overwrite():
            return
        world, rng = self._world, self._world.rng
        duration_s = rng.uniform(0.005, 0.05) if rng.random() < 0.7 else rng.uniform(0.05, 0.6)
        world.at(duration_s, self.worker, self._finish, offer, offer.content)

    def _overwrite(self) -> bool:
        self.worker.feed(e.OverwriteBegun(self.tag))
        if not self.worker.machine.may_overwrite(self.tag):
            return False
        self.worker.content = self.worker.mix(self.worker.content, self.tag.step)
        return True

    def _finish(self, offer: Offer, first_half: int) -> None:
        world, worker = self._world, self.worker
        if self._cancelled:
            return
        if world.faults.strikes(world, "heal_error"):
            self._fail("what came does not match its digest")  # S3
            return
        is_lost = not offer.donor.alive or not self._hears(offer.donor)
        if is_lost and world.rng.random() < 0.8:
            self._ask()
            return
        content = offer.content
        if content is None:
            self._ask()
            return
        place = self._place()
        if place is None:
            if world.now >= self._deadline:
                self._fail("the donors do not tell where they stand")
            else:
                world.at(0.02, worker, self._finish, offer, first_half)
            return
        offer.finished.add(self.number)
        whole = content if content == first_half else worker.mix(content, first_half)
        donor = offer.donor.key.replica_id
        worker.fetched = Fetched(self.tag, offer.state, whole, donor, offer.position, place)
        worker.feed(e.StateLoaded(self.tag, offer.state))

    def _place(self) -> str | None:
        """A donor's place in the script; None: no donor reports one now."""
        if not self._world.has_places or self.tag.step == 0:
            return ""
        donors = [self._world.endpoints[address] for address in self.donors]
        heard = [donor for donor in donors if donor.alive and self._hears(donor)]
        places = [donor.exchanges.places.at(self.tag.step) for donor in heard]
        return next((place for place in places if place is not None), None)

    def _fail(self, reason: str) -> None:
        self.worker.feed(e.HealFailed(self.tag, reason))
