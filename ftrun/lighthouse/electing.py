"""The node at which the nodes of torchrun's command meet, if an etcd is to say it.

All offer an address of their own in one register. Who gets it serves the meeting, and writes the
register for as long as its part of the job lasts; the others go to its address once they have seen
it write. Not here: the meeting (agent/team/), leadership (core/register/).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ftrun.base.errors import PeerError
from ftrun.core.register.events import Accepted, Answered, Refused, Value
from ftrun.lighthouse.register.contender import Contender
from ftrun.lighthouse.register.opening import open_store
from ftrun.lighthouse.register.store import Store, StoreError
from ftrun.lighthouse.settings import SILENCE_S


@asynccontextmanager
async def elected(place: str, own: str, limit_s: float) -> AsyncIterator[str]:
    """The address where the nodes meet; ``own``, which this process holds then, or another's.

    ``place``: as ``--state`` has it. ``limit_s``: how long etcd may take to answer.

    Raises:
        UserError: ``place`` has another form.
        PeerError: nobody was elected within ``limit_s``.
    """
    store = _Seen(open_store(place))
    offer = _Offer(store.found)
    contender = Contender(store, own, SILENCE_S, 0, offer, offer.say)
    contender.failed.add_done_callback(offer.failed)
    try:
        contender.start()
        try:
            address = await asyncio.wait_for(store.found, limit_s)
        except asyncio.TimeoutError:
            why = store.why or "other nodes take the register in turn"
            raise PeerError(f"{store.place} named no node within {limit_s:g} s: {why}") from None
        if address != own:
            await contender.stop()
        yield address
    finally:
        await contender.stop()


class _Seen:
    """A store, and what it has answered. ``found``: the address of a holder that writes."""

    def __init__(self, store: Store) -> None:
        self.place = store.place
        self.found: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.why = ""
        self._store = store
        self._first: tuple[str, int] | None = None

    async def read(self, *, with_journal: bool) -> Answered:
        try:
            answer = await self._store.read(with_journal=with_journal)
        except StoreError as error:
            self.why = str(error)
            raise
        value = answer.value
        if value is None or value.is_free:
            self._first = None
        elif self._first is None or self._first[0] != value.holder:
            self._first = value.holder, answer.version
        elif self._first[1] != answer.version and not self.found.done():
            self.found.set_result(value.address)
        return answer

    async def swap(self, version: int, value: Value) -> Accepted | Refused:
        return await self._store.swap(version, value)

    async def close(self) -> None:
        await self._store.close()


class _Offer:
    """The contender's calls. A meeting has no journal, and goes on where another one is elected."""

    def __init__(self, found: asyncio.Future[str]) -> None:
        self._found = found

    def leads(self, value: Value) -> None:
        if not self._found.done():
            self._found.set_result(value.address)

    def failed(self, failed: asyncio.Future[None]) -> None:
        error = None if failed.cancelled() else failed.exception()
        if error is not None and not self._found.done():
            self._found.set_exception(error)

    def release(self, output: object) -> None:
        """Nothing is written but the address."""

    def may_go_on(self) -> None:
        """Nothing waits."""

    def deposed(self, reason: str) -> None:
        """Nodes that come later meet elsewhere; those that are here train on."""

    def say(self, text: str) -> None:
        """Its words are of lighthouses."""
