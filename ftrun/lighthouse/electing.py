"""Elects the node at which the nodes of torchrun's command meet, through etcd.

Each node proposes its own address in one register. The node that wins serves the meeting, and keeps
writing to the register as long as its part of the job lasts. The others connect to its address once
they have seen it write. Not here: the meeting (agent/team/), leadership (core/register/).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ftrun.base.errors import PeerError
from ftrun.core.register.events import Value
from ftrun.lighthouse.register.contender import Contender, Leader
from ftrun.lighthouse.register.opening import open_store
from ftrun.lighthouse.settings import SILENCE_S


@asynccontextmanager
async def elected(place: str, own: str, limit_s: float) -> AsyncIterator[str]:
    """The address where the nodes meet: ``own`` if this process has won, otherwise another node's.

    ``place``: in the form of ``--state``. ``limit_s``: how long etcd may take to answer.

    Raises:
        UserError: ``place`` has another form.
        PeerError: no node was elected within ``limit_s``.
    """
    store, meeting = open_store(place), _Meeting()
    contender = Contender(store, own, SILENCE_S, 0, meeting)
    contender.failed.add_done_callback(meeting.failed)
    try:
        contender.start()
        try:
            address = await asyncio.wait_for(meeting.found, limit_s)
        except asyncio.TimeoutError:
            why = contender.why_away or "other nodes take the register in turn"
            raise PeerError(f"{store.place} named no node within {limit_s:g} s: {why}") from None
        if address != own:
            await contender.stop()
        yield address
    finally:
        await contender.stop()


class _Meeting(Leader):
    """``found``: the address of a holder that writes.

    A meeting has no journal. If another node is elected later, new nodes meet there; the nodes that
    are here train on.
    """

    def __init__(self) -> None:
        self.found: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def leads(self, value: Value) -> None:
        if not self.found.done():
            self.found.set_result(value.address)

    follows = leads

    def failed(self, failed: asyncio.Future[None]) -> None:
        error = None if failed.cancelled() else failed.exception()
        if error is not None and not self.found.done():
            self.found.set_exception(error)

    def say(self, text: str) -> None:
        pass
