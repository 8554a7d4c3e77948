"""The lead's gRPC server for its hands: one stream each, with the token, and TLS if it is given.

A node that may become a lead runs this server from its start. While it leads no group, hands that
connect are asked to try again.

Not here: streams (protocol/serving.py), the effect of a hand's message (lead.py).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import cache, partial
from typing import Any, get_args

import grpc

from ftrun.core.messages import FromHand, HandHello
from ftrun.protocol import rpc
from ftrun.protocol.serving import FLUSH_TIMEOUT_S, Host, Session, StreamServer
from ftrun.protocol.streams import StreamCodec
from ftrun.protocol.tls import TlsFiles


class Door(StreamServer):
    """Serves at one address. ``streams``: those of the hands that have sent their hello.

    ``listener``: the lead on this node; None: it leads no group now. ``token``: of the team.
    """

    what = "lead"
    first = (HandHello,)
    taken = frozenset(get_args(FromHand))
    elsewhere = (
        "this is where the nodes of one group meet (--nnodes). It is no lighthouse, which "
        "`ftrun lighthouse` starts"
    )

    ping_s = 0.5
    """While all train nothing is sent to a hand. Without pings its kernel's silence would not be
    seen.
    """

    def __init__(self, token: str, tls: TlsFiles) -> None:
        self.listener: Host | None = None
        self._count = 0
        self.streams: dict[str, Session] = {}
        self._are_gone = asyncio.Event()
        # Read once: the files of a certificate for one life are not kept.
        credentials = cache(partial(tls.server_credentials, grpc)) if tls else None
        super().__init__(token, self._attach, credentials)

    async def start(self, host: str, port: int = 0) -> int:
        """Listen. Returns the port. Port 0: any.

        Raises:
            RuntimeError: the port is taken.
        """
        bound = self._port.bind(host, port)
        await self._port.start()
        return bound

    async def stop(self) -> None:
        """Send what is queued, and end."""
        await self.dismiss()
        await super().stop()

    async def dismiss(self) -> None:
        """Send what is queued, and end all streams: this node leads no group now."""
        self.listener = None
        for stream in self.streams.values():
            stream.close("it was sent away")
        if self.streams:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._are_gone.wait(), FLUSH_TIMEOUT_S)

    async def _attach(self, requests: AsyncIterator[bytes], context: Any) -> None:
        listener, codec = self.listener, StreamCodec()
        if listener is None:
            return rpc.end_call(context, grpc.StatusCode.UNAVAILABLE, "it leads no group yet")
        opening = await self.opened(requests, context, codec)
        if not opening:
            return None
        self._count += 1
        name = f"hand-{self._count}"
        stream = self.streams[name] = Session(name, codec)
        self._are_gone.clear()
        try:
            await self.serve(listener, stream, opening, requests, context)
        finally:
            del self.streams[name]
            if not self.streams:
                self._are_gone.set()
