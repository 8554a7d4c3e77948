"""This process as one of several lighthouses: waits until it leads, and is the shell's journal.

Not here: which process leads (core/register/), the stores (register/), a leader's work (shell.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ftrun.base.errors import ProtocolError
from ftrun.core.ids import EPOCH_MAX
from ftrun.core.lighthouse.events import Instruction, Journal, JournalState
from ftrun.core.register.events import Record, Value
from ftrun.lighthouse.register.contender import Contender, Leader
from ftrun.lighthouse.register.store import Store
from ftrun.protocol.records import RecordCodec

REQUEST_S = 5.0
TEXT = b"This lighthouse stands by: another one leads.\n"
STANDS_BY = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\n"
    b"X-Content-Type-Options: nosniff\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(TEXT), TEXT)
)

log = logging.getLogger(__name__)
_CODEC = RecordCodec(JournalState)


class Candidacy(Contender, Leader):
    """From standing by to the end of one leadership. A further leadership is another candidacy.

    ``ended``: done when another process leads; an exception if this one cannot continue. ``go_on``:
    called when ``may_decide`` may have become true.
    """

    def __init__(self, store: Store, address: str, silence_s: float, epoch_floor: int) -> None:
        super().__init__(store, address, silence_s, epoch_floor, self)
        loop = asyncio.get_running_loop()
        self.go_on: Callable[[], None] = lambda: None
        self.ended: asyncio.Future[None] = loop.create_future()
        self._led: asyncio.Future[JournalState] = loop.create_future()
        self._send_on: Callable[[Instruction], None] | None = None
        self.failed.add_done_callback(self._has_failed)

    async def until_it_leads(self, stopping: asyncio.Event) -> JournalState | None:
        """Wait until this process leads. Returns the job's record, or None if it was asked to stop.

        Raises:
            Exception: it cannot continue.
        """
        self.start()
        stopped = asyncio.ensure_future(stopping.wait())
        try:
            ends: list[asyncio.Future[Any]] = [stopped, self._led, self.ended]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
        if self.ended.done():
            self.ended.result()
        return self._led.result() if self._led.done() and not stopping.is_set() else None

    async def stop(self) -> None:
        await super().stop()
        self.ended.cancel()
        self.failed.cancel()

    def decided(
        self, instructions: Sequence[Instruction], carry_out: Callable[[Instruction], None]
    ) -> None:
        """Carry out each instruction once the records before it are in the register."""
        self._send_on = carry_out
        self.hand_in(
            [
                Record(x.record.epoch, _CODEC.encode(x.record)) if isinstance(x, Journal) else x
                for x in instructions
            ]
        )

    # ------------------------------------------------------------ from the contender

    def leads(self, value: Value) -> None:
        """This process leads, under the value's epoch, which follows its journal's."""
        self._led.set_result(replace(_decoded(value), epoch=value.epoch - 1))

    def release(self, output: object) -> None:
        assert self._send_on is not None
        self._send_on(output)  # type: ignore[arg-type]  # what decided has passed on

    def may_go_on(self) -> None:
        self.go_on()

    def deposed(self, reason: str) -> None:
        log.warning(
            "this lighthouse leads no more: the lighthouse is %s. All that it had not written is "
            "dropped; its agents go to the other one, and it stands by.",
            reason,
        )
        if not self.ended.done():
            self.ended.set_result(None)

    def _has_failed(self, failed: asyncio.Future[None]) -> None:
        error = None if failed.cancelled() else failed.exception()
        if error is not None and not self.ended.done():
            self.ended.set_exception(error)


def _decoded(value: Value) -> JournalState:
    """Decode the journal; an empty one if it is lost. Then agents' reports rebuild the state."""
    if not value.journal:
        return JournalState()
    try:
        state = _CODEC.decode(value.journal)
        if state.epoch >= EPOCH_MAX:
            raise ProtocolError(f"its epoch {state.epoch} is the last one there is, or beyond")
    except ProtocolError as error:
        log.warning(
            "the journal in the register is corrupt (%s): quorum and epoch are rebuilt from what "
            "the agents report.",
            error,
        )
        return JournalState()
    return state


async def stands_by(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer any request for the status, with or without a token: this process stands by."""
    with contextlib.suppress(OSError, EOFError, ValueError, asyncio.TimeoutError):
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), REQUEST_S)
        writer.write(STANDS_BY)
        await asyncio.wait_for(writer.drain(), REQUEST_S)
    writer.close()
