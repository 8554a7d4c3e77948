"""Runs one leadership machine against its store, for a process that wants to lead.

It sends one request at a time, in the event loop. It also detects if the holder is a process of
this machine that has ended: then there is no need to wait for a silence. Not here: any decision
(core/register/), a leader's work (lighthouse/shell.py).
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import socket
from collections.abc import Sequence

from ftrun.base import clock
from ftrun.base.errors import assert_never
from ftrun.base.linux import boot_id, process_row
from ftrun.base.timer import DeadlineTimer
from ftrun.core.register import events as e
from ftrun.core.register.leadership import Leadership, Settings
from ftrun.lighthouse.register.store import Store, StoreError

STOP_S = 1.0
"""How long the end waits for the register to be released. Otherwise others wait for the silence."""
NAME = re.compile(r"(?P<host>.*) pid (?P<pid>\d+) \[(?P<life>[^\]]*)\.(?P<start>\d+)\.\w+\]")

log = logging.getLogger(__name__)


class Leader:
    """A contender's callbacks. Each returns at once."""

    def leads(self, value: e.Value) -> None:
        """This process leads, with this value's journal and epoch."""

    def follows(self, value: e.Value) -> None:
        """Another process leads, and has just written this value."""

    def release(self, output: object) -> None:
        """This output may be sent now."""

    def may_go_on(self) -> None:
        """``may_decide`` may have become true."""

    def deposed(self, reason: str) -> None:
        """Another process leads. Nothing may be sent any more."""

    def say(self, text: str) -> None:
        log.warning(text)


class Contender:
    """One process's part in one register. ``address``: where agents connect once it leads.

    ``writes``: the number of records written, in ``write_s`` seconds. ``why_away``: why the last
    request to the store was not answered.
    """

    def __init__(
        self, store: Store, address: str, silence_s: float, epoch_floor: int, leader: Leader
    ) -> None:
        self.name = process_name()
        self.why_away = ""
        self._store = store
        self._leader = leader
        self._machine = Leadership(Settings(self.name, address, silence_s, epoch_floor))
        self._timer = DeadlineTimer(lambda: self._feed(e.TimerFired()), 0.001)
        self._request: asyncio.Task[None] | None = None
        self._over = asyncio.Event()
        self._ended = ""
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.writes = 0
        self.write_s = 0.0

    def start(self) -> None:
        self._feed(e.TimerFired())

    @property
    def may_decide(self) -> bool:
        """Whether an event may be handled now: leadership is proven, and no output is held back."""
        return self._machine.may_decide(clock.now())

    @property
    def watched_s(self) -> float:
        """How long this process saw the former holder write nothing before it took over."""
        return self._machine.watched_s

    def hand_in(self, outputs: Sequence[object]) -> None:
        """The leader has handled an event: release each output when it is safe."""
        self._feed(e.Decided(tuple(outputs)))

    async def stop(self) -> None:
        """Release the register if it is ours; bounded by ``STOP_S``."""
        if not self.failed.done():
            self._feed(e.Stopped())
            try:
                await asyncio.wait_for(self._over.wait(), STOP_S)
            except asyncio.TimeoutError:
                log.info("the register could not be given back in %g s", STOP_S)
        self._timer.close()
        if self._request is not None:
            self._request.cancel()
            await asyncio.gather(self._request, return_exceptions=True)
        await self._store.close()

    def _feed(self, event: e.Event) -> None:
        if self.failed.done():
            return
        try:
            for instruction in self._machine.handle(event, clock.now()):
                self._carry_out(instruction)
            self._timer.set(self._machine.next_deadline())
            self._leader.may_go_on()
        except Exception as error:  # noqa: BLE001 - the shell's edge: the service ends with it.
            self.failed.set_exception(error)

    def _carry_out(self, instruction: e.Instruction) -> None:
        match instruction:
            case e.Read() | e.Swap():
                self._request = asyncio.ensure_future(self._ask(instruction))
            case e.Lead(value):
                self._leader.leads(value)
            case e.Follow(value):
                self._leader.follows(value)
            case e.Release(output):
                self._leader.release(output)
            case e.Depose(reason):
                self._leader.deposed(reason)
            case e.Say(text):
                self._leader.say(f"{text} ({self._store.place})")
            case e.GivenBack():
                self._over.set()
            case _:
                assert_never(instruction)

    async def _ask(self, request: e.Read | e.Swap) -> None:
        answer: e.Event
        try:
            if isinstance(request, e.Read):
                answer = await self._store.read(with_journal=request.with_journal)
            else:
                began = clock.now()
                answer = await self._store.swap(request.version, request.value)
                if request.value.journal is not None:
                    self.writes += 1
                    self.write_s += clock.now() - began
        except StoreError as error:
            self.why_away = str(error)
            answer = e.Failed(self.why_away)
        except Exception as error:  # noqa: BLE001 - a bug ends the service, and not this task only.
            if not self.failed.done():
                self.failed.set_exception(error)
            return
        self._feed(answer)
        value = answer.value if isinstance(answer, e.Answered) else None
        if value is not None and not value.is_free:
            self._look_at(value.holder)

    def _look_at(self, holder: str) -> None:
        if holder not in (self.name, self._ended) and has_ended(holder):
            self._ended = holder
            log.info("%s has ended: its silence is not waited for", holder)
            self._feed(e.HolderEnded(holder))


def process_name() -> str:
    """A name for this process's lifetime that is unique forever."""
    row = process_row(os.getpid())
    start = row.start_ticks if row is not None else 0
    return f"{socket.gethostname()} pid {os.getpid()} [{_life()}.{start}.{secrets.token_hex(4)}]"


def has_ended(holder: str) -> bool:
    """Whether the process of this name was on this machine, in this pid namespace, and has
    ended."""
    found = NAME.fullmatch(holder)
    if found is None or not boot_id() or found["life"] != _life():
        return False
    row = process_row(int(found["pid"]))
    return row is None or row.is_zombie or row.start_ticks != int(found["start"])


def _life() -> str:
    """This boot of this machine, and the pid namespace."""
    return f"{boot_id()[:8]}.{os.stat('/proc/self/ns/pid').st_ino}"
