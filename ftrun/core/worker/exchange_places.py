"""A replica's place in its script: shown to peers that heal, and asked of donors. Pure.

A place is a text that the shell makes. A replica shows it with the step at which it was there. A
newcomer asks a donor for the place at the step whose state it has healed to. One donor's answer is
enough, because all donors have the same place at that step.

Not here: the content of a place (inject/zero_edit/place.py); sockets and waiting
(training/exchanges.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ftrun.core.ids import WorkerKey, replica_order
from ftrun.core.messages import Roster
from ftrun.core.worker import asking, exchange

PLACES_KEPT = 2


class ShownPlaces:
    """The places of this worker's last ``PLACES_KEPT`` steps."""

    def __init__(self) -> None:
        self._places: dict[int, Callable[[], str]] = {}

    def show(self, step: int, encode: Callable[[], str]) -> None:
        """Show the script's place at ``step``. ``encode`` is called when a peer asks."""
        places = self._places
        places[step] = encode
        if len(places) > PLACES_KEPT:
            del places[min(places)]

    def forget(self, step: int) -> None:
        """This try of ``step`` has failed: the script tries it again, perhaps from another
        place.
        """
        self._places.pop(step, None)

    def at(self, step: int) -> str | None:
        """The place at ``step``, or the latest one for ``SET_UP``; None: it is not shown."""
        if step == exchange.SET_UP and self._places:
            step = max(self._places)
        encode = self._places.get(step)
        return None if encode is None else encode()


def place_of(
    places: ShownPlaces, key: WorkerKey, question: exchange.ExchangeQuestion, *, is_set_up: bool
) -> list[exchange.Contribution] | None:
    """A worker's answer to a peer that asks for its place; None: not yet.

    A worker that has reached its first boundary, but has not healed, has no place. It answers an
    empty list to a peer that asks for its present place.
    """
    step = question.name.step
    place = places.at(step)
    if place is None:
        return [] if step == exchange.SET_UP and is_set_up else None
    return [exchange.Contribution(key.replica_id, "", "place", place.encode())]


class AskingDonors:
    """Asks the donors of the quorum in force for their place at a step, until one answers.

    It stops when no quorum is in force any more, because the next quorum has other donors.

    Args:
        key: this worker's.
        step: the step whose place is asked for.

    Attributes:
        found: the place; None: no donor has answered with one.
    """

    def __init__(self, key: WorkerKey, step: int) -> None:
        self._key = key
        self._name = exchange.ExchangeName(step, 0, exchange.Kind.PLACE)
        self._tried: set[str] = set()
        self.found: str | None = None

    def next(self, known: asking.Known) -> asking.NextMove | None:
        """The next move; None: it is over."""
        quorum = known.quorum
        if quorum is None or self.found is not None:
            return None
        donors = [x for x in quorum.members if x.replica_id in quorum.donors]
        left = [x for x in donors if x.replica_id not in self._tried]
        if not left:
            self._tried.clear()
            return asking.AwaitChange(", ".join(x.replica_id for x in donors))
        question = exchange.ExchangeQuestion(self._name, of=left[0].replica_id)
        endpoint = left[0].endpoints[self._key.group_rank]
        return asking.AskPeer(left[0].replica_id, endpoint, question)

    def answered(self, ask: asking.AskPeer, found: Sequence[exchange.Contribution]) -> None:
        if found:
            self.found = found[0].body.decode()
        else:
            self.failed(ask)

    def failed(self, ask: asking.AskPeer) -> None:
        """A donor has not reached that step yet, or was not reached."""
        self._tried.add(ask.replica_id)


class PeekingAtPlace:
    """Before this worker's first step: asks the replicas that train for their present place.

    Attributes:
        found: the place; None: no replica trains, or those that do have not healed yet.
    """

    def __init__(self, key: WorkerKey) -> None:
        self._key = key
        self._roster: Roster | None = None
        self._tried: set[str] = set()
        self._without: set[str] = set()
        self._is_over = False
        self.found: str | None = None

    def next(self, known: asking.Known) -> asking.NextMove | None:
        """The next move; None: it is over."""
        roster = known.roster
        if self._is_over:
            return None
        if roster is None:
            return asking.AskLighthouse()
        if roster is not self._roster:
            self._roster = roster
            self._tried, self._without = set(), set()
        others = [x for x in roster.entries if x.replica_id != self._key.replica_id]
        none_has = bool(others) and all(x.replica_id in self._without for x in others)
        if not roster.has_begun or none_has:
            self._is_over = True
            return None
        left = [x for x in others if x.replica_id not in self._tried | self._without]
        if not left:
            self._roster = None  # they may have been restarted meanwhile
            return asking.AskLighthouse(anew=True)
        entry = min(left, key=lambda x: replica_order(x.replica_id))
        question = exchange.ExchangeQuestion(
            exchange.ExchangeName(exchange.SET_UP, 0, exchange.Kind.PLACE), of=entry.replica_id
        )
        return asking.AskPeer(entry.replica_id, entry.endpoints[self._key.group_rank], question)

    def answered(self, ask: asking.AskPeer, found: Sequence[exchange.Contribution]) -> None:
        if found:
            self.found, self._is_over = found[0].body.decode(), True
        else:
            self._without.add(ask.replica_id)

    def failed(self, ask: asking.AskPeer) -> None:
        """A peer shows no place, or was not reached."""
        self._tried.add(ask.replica_id)
