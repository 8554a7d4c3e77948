"""This process as one of several lighthouses: it waits until it leads, and is the shell's journal.

Not here: who leads (core/register/), the stores (register/), what a leader does (shell.py).
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
from ftrun.lighthouse.register.contender import Contender
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


class Candidacy:
    """From standing by to the end of one leadership; a further one is another candidacy.

    ``ended``: done when another process leads; an exception if this one cannot go on.
    ``may_go_on``: called when ``may_decide`` may have become true.
    """

    def __init__(self, store: Store, address: str, silence_s: float, epoch_floor: int) -> None:
        loop = asyncio.get_running_loop()
        self.may_go_on: Callable[[], None] = _nothing
        self.ended: asyncio.Future[None] = loop.create_future()
        self._led: asyncio.Future[JournalState] = loop.create_future()
        self._carry_out: Callable[[Instruction], None] | None = None
        self._contender = Contender(store, address, silence_s, epoch_floor, _Part(self))
        self._contender.failed.add_done_callback(self._failed)

    async def leads(self, stopping: asyncio.Event) -> JournalState | None:
        """Wait until this process leads; returns the job's record, or None: it is to stop.

        Raises:
            Exception: it cannot go on.
        """
        self._contender.start()
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
        await self._contender.stop()
        self.ended.cancel()
        self._contender.failed.cancel()

    # ------------------------------------------------------------ the shell's journal

    @property
    def may_decide(self) -> bool:
        """Whether an event may be handled now: leadership is proven, and nothing is held."""
        return self._contender.may_decide

    @property
    def watched_s(self) -> float:
        """How long this process stood by while the former lighthouse was silent; 0: it was not."""
        return self._contender.watched_s

    @property
    def writes(self) -> int:
        """Records written so far."""
        return self._contender.writes

    @property
    def write_s(self) -> float:
        """The time that this took."""
        return self._contender.write_s

    def decided(
        self, instructions: Sequence[Instruction], carry_out: Callable[[Instruction], None]
    ) -> None:
        """Carry out each instruction once the records before it are in the register."""
        self._carry_out = carry_out
        self._contender.decided(
            [
                Record(x.record.epoch, _CODEC.encode(x.record)) if isinstance(x, Journal) else x
                for x in instructions
            ]
        )

    # ------------------------------------------------------------ from the contender

    def begin(self, value: Value) -> None:
        """This process leads, under the value's epoch: the next one after its journal's."""
        self._led.set_result(replace(_decoded(value), epoch=value.epoch - 1))

    def release(self, instruction: object) -> None:
        """An instruction of ``decided`` may be carried out."""
        assert self._carry_out is not None
        self._carry_out(instruction)  # type: ignore[arg-type]  # what decided has passed on

    def end(self) -> None:
        """Another process leads."""
        if not self.ended.done():
            self.ended.set_result(None)

    def _failed(self, failed: asyncio.Future[None]) -> None:
        error = None if failed.cancelled() else failed.exception()
        if error is not None and not self.ended.done():
            self.ended.set_exception(error)


class _Part:
    """The contender's calls, in the words of a candidacy."""

    def __init__(self, candidacy: Candidacy) -> None:
        self._candidacy = candidacy

    def leads(self, value: Value) -> None:
        self._candidacy.begin(value)

    def release(self, output: object) -> None:
        self._candidacy.release(output)

    def may_go_on(self) -> None:
        self._candidacy.may_go_on()

    def deposed(self, reason: str) -> None:
        log.warning(
            "this lighthouse leads no more: the lighthouse is %s. All that it had not written is "
            "dropped; its agents go to the other one, and it stands by.",
            reason,
        )
        self._candidacy.end()


def _decoded(value: Value) -> JournalState:
    """The journal; an empty one if it is lost: then the state is rebuilt from agents' reports."""
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
    """Answer any request for the status, with or without a token: it is not here."""
    with contextlib.suppress(OSError, EOFError, ValueError, asyncio.TimeoutError):
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), REQUEST_S)
        writer.write(STANDS_BY)
        await asyncio.wait_for(writer.drain(), REQUEST_S)
    writer.close()


def _nothing() -> None:
    """Before there is a shell."""
