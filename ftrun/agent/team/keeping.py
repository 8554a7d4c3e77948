"""The states in the memory of a group's node: those of its own ranks, and copies of others'.

Its workers write the states of its own ranks. This module holds them while they are copied, and
until the states of a newer step are on all nodes. Each node serves its states to holders of the
job's token::

     GET /generations/<incarnation>/<rank>/<step>    the notes of the rank's set-up, then its state

Not here: which step, and which node copies from which (core/replay/copying.py), the lead's part
(copies.py), the memory itself (snapshots/group_memory.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, astuple
from functools import partial
from itertools import chain
from pathlib import Path

from ftrun.agent.fleet import Fleet
from ftrun.base import clock
from ftrun.base.errors import PeerError, UserError
from ftrun.checkpoint import wire
from ftrun.checkpoint.line import ProvenLink
from ftrun.checkpoint.listening import STALL_TIMEOUT_S, ProvenServer, Refusal
from ftrun.checkpoint.proof import heal_key
from ftrun.config.settings import RunSettings
from ftrun.core.messages import KeepRanks, RankKept, RanksKept, RankSource
from ftrun.core.replay.settling import Mark
from ftrun.snapshots.area import Area, Copy, Held
from ftrun.snapshots.board import Word
from ftrun.snapshots.group_memory import GroupMemory
from ftrun.snapshots.memory import SharedMemory

FIELD = "x-ftrun-generation"
FETCH_TIMEOUT_S = 600.0
LOOK_S = 0.02
AT_ONCE = 4
"""How many states a node that replaces a lost one reads at a time."""
NOTES_BYTES_MAX = 128 << 20
PIECE_BYTES = 4 << 20


class Keeping:
    """The states of one incarnation at a time.

    Runs in the event loop's thread; slow work in threads.

    ``tell``: called with a report of the states. ``notes``: the directory of the workers' notes of
    their set-up.
    """

    def __init__(
        self,
        fleet: Fleet,
        settings: RunSettings,
        token: str,
        host: str,
        notes: Path,
        tell: Callable[[RanksKept], None],
    ) -> None:
        self._fleet = fleet
        self._settings = settings
        self._key = heal_key(token)
        self._notes = notes
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._incarnation = ""
        self._memory: GroupMemory | None = None
        self._copies: dict[int, tuple[Area, bytes]] = {}
        self._pins: dict[int, list[Held]] = {}
        self._links: set[ProvenLink] = set()
        self._rewinds = 0
        self._background = ThreadPoolExecutor(1, "ftrun-copy")
        self._restoring = ThreadPoolExecutor(AT_ONCE, "ftrun-restore")
        self._server = _Server(host, token, tls=bool(settings.tls))
        self._server.find = self._find

    def close(self) -> None:
        """Stop serving, and release everything."""
        self._end_links()
        self._background.shutdown(cancel_futures=True)
        self._restoring.shutdown(cancel_futures=True)
        self._server.close()
        self._forget()

    def let_go(self) -> None:
        """Release everything of an incarnation that is over."""
        self._of("")

    def report(self, incarnation: str, copied: int | None = None, reason: str = "") -> None:
        """Report the states of an incarnation, if there are any."""
        memory = self._of(incarnation)
        if memory is None:
            return
        board = memory.board
        own = [
            RankKept(rank, *_known(memory.area(rank)), fall=board.read(rank, Word.FALL))
            for rank in memory.here
        ]
        others = [RankKept(rank, *_known(x), True) for rank, (x, _) in self._copies.items()]
        at = self._server.address, self._server.certificate, self._settings.topology
        ranks = (*own, *others)
        self._tell(RanksKept(incarnation, ranks, *at, copied, reason, board.look().number))

    # ------------------------------------------------------------ copies of another node's states

    async def keep(self, order: KeepRanks) -> None:
        """Hold the states of a step, copy others', and report the result."""
        memory = self._of(order.incarnation)
        if memory is None:
            return
        number, held = self._rewinds, None
        while self._is_to_come(memory, order.step) and self._rewinds == number:
            await asyncio.sleep(LOOK_S)
        if memory is self._memory:
            held = memory.hold(order.step)
        reason = "" if held else f"the states of step {order.step} are not in its memory"
        if held:
            work = self._loop.run_in_executor(self._background, self._copy, memory, order)
            try:
                await work
            except (PeerError, UserError, OSError, ValueError) as error:
                reason = str(error) or type(error).__name__
        if memory is not self._memory or self._rewinds != number:
            _release(held or ())  # all resume from another step meanwhile
            return
        if held and not reason:
            _release(self._pins.pop(order.step, ()))
            self._pins[order.step] = held
        else:
            _release(held or ())
        for step in self._pins.keys() - {order.step, order.pinned}:
            _release(self._pins.pop(step))
        self.report(order.incarnation, None if reason else order.step, reason)

    def _is_to_come(self, memory: GroupMemory, step: int) -> bool:
        if self._of(self._incarnation) is not memory:  # it may have ended, and its memory too
            return False
        known = [_steps(memory.area(rank)) for rank in memory.here]
        return any(step not in x for x in known) and all(
            not x or x[-1] < step for x in known if step not in x
        )

    def _copy(self, memory: GroupMemory, order: KeepRanks) -> None:
        for source in order.sources:
            rank = source.group_rank
            if rank not in self._copies:
                file = SharedMemory()
                file.reserve(2 * memory.nbytes)  # of addresses, as for an own rank
                area = Area(file, memory.nbytes)
                area.clear()
                self._copies[rank] = area, b""
            area = self._copies[rank][0]
            if order.step not in _steps(area):
                self._copies[rank] = area, self._fetch(order.incarnation, source, order.step, area)

    # ------------------------------------------------------------ all begin again

    async def rewind(self, incarnation: str, step: int, sources: Sequence[RankSource]) -> None:
        """Fetch the states that this node lacks, and drop all that is later than ``step``.

        Raises:
            PeerError, UserError, OSError: a state cannot be read, or is not what was sent.
        """
        memory = self._of(incarnation)
        if memory is None:
            raise UserError("there is no memory for it")
        self._rewinds += 1
        self._end_links()
        drop = self._loop.run_in_executor(self._background, self._drop_later, step)

        def restore(source: RankSource) -> None:
            rank = source.group_rank
            notes = self._fetch(incarnation, source, step, memory.area(rank))
            (self._notes / f"set-up-{rank}").write_bytes(notes)

        work = [self._loop.run_in_executor(self._restoring, restore, x) for x in sources]
        await asyncio.gather(drop, *work)

    def drop_later(self, incarnation: str, step: int) -> None:
        """Like ``rewind``, for a node that lacks no state."""
        if self._of(incarnation) is not None:
            self._rewinds += 1
            self._end_links()
            self._background.submit(self._drop_later, step).result()

    def pin(self, incarnation: str, step: int) -> None:
        """Hold the states of the step at which all resume."""
        memory = self._of(incarnation)
        held = None if memory is None or step in self._pins else memory.hold(step)
        if held is not None:
            self._pins[step] = held

    def _drop_later(self, step: int) -> None:
        for rank, (area, _) in list(self._copies.items()):
            if step in _steps(area):
                area.rewind(step)
            else:
                del self._copies[rank]
        for known in [x for x in self._pins if x > step]:
            _release(self._pins.pop(known))

    # ------------------------------------------------------------ reading, and being read

    def _fetch(self, incarnation: str, source: RankSource, step: int, area: Area) -> bytes:
        """Fetch a state from another node into ``area``. Returns the notes of its rank."""
        deadline = clock.now() + FETCH_TIMEOUT_S
        link = ProvenLink(source.address, self._key, deadline, source.certificate or None)
        self._links.add(link)
        try:
            head = link.ask("GET", f"/generations/{incarnation}/{source.group_rank}/{step}")
            known = json.loads(head.fields.get(FIELD, "{}"))
            size, mark = int(known.pop("notes")), known.pop("mark", None)
            if size > NOTES_BYTES_MAX:
                raise PeerError(f"{source.node} sends {size} bytes of notes")
            notes = bytearray(size)
            _read(link, memoryview(notes))
            fill = partial(_read, link)
            area.receive(Copy(**known), fill, Mark(**mark) if mark else None)
            return bytes(notes)
        except (KeyError, TypeError, ValueError) as error:
            raise PeerError(f"{source.node} sends no state that can be read") from error
        finally:
            self._links.discard(link)
            link.close()

    def _find(self, incarnation: str, rank: int, step: int) -> tuple[Held, bytes] | None:
        """Find a state to serve. Runs in the server's threads."""
        memory = self._memory
        if memory is None or incarnation != self._incarnation:
            return None
        if rank in memory.here:
            notes = b""
            with contextlib.suppress(OSError):
                notes = (self._notes / f"set-up-{rank}").read_bytes()
            held = memory.area(rank).hold(step)
        else:
            area, notes = self._copies.get(rank, (None, b""))
            held = None if area is None else area.hold(step)
        return None if held is None else (held, notes)

    def _of(self, incarnation: str) -> GroupMemory | None:
        """The memory of an incarnation. Another incarnation's is released, once that is over."""
        if self._fleet.memory.of(self._incarnation) is not self._memory:
            self._forget()
        memory = self._fleet.memory.of(incarnation)
        if memory is not None and memory is not self._memory:
            self._forget()
            self._incarnation, self._memory = incarnation, memory
        return memory

    def _forget(self) -> None:
        for held in self._pins.values():
            _release(held)
        self._pins.clear()
        self._copies.clear()
        self._memory = None

    def _end_links(self) -> None:
        for link in list(self._links):
            link.end()


class _Server(ProvenServer):
    """Serves states to other nodes.

    ``find``: returns a rank's state at a step, which the server releases, and the rank's notes.
    """

    find: Callable[[str, int, int], tuple[Held, bytes] | None] = lambda *_: None

    def answer(self, pipe: wire.Pipe, head: wire.Head) -> None:
        """See ProvenServer."""
        method, _, rest = head.line.partition(" ")
        parts = rest.removesuffix(" HTTP/1.1").split("/")
        is_known = method == "GET" and len(parts) == 5 and parts[:2] == ["", "generations"]
        if not is_known or not all(x.isdecimal() and len(x) < 19 for x in parts[3:]):
            raise Refusal("404 Not Found", "there is no such route")
        found = self.find(parts[2], int(parts[3]), int(parts[4]))
        if found is None:
            raise Refusal("410 Gone", "that state is not here any more")
        held, notes = found
        try:
            mark = asdict(held.mark) if held.mark else None
            known = json.dumps(asdict(held.copy()) | {"notes": len(notes), "mark": mark})
            fields: dict[str, str | int] = {
                FIELD: known,
                "content-length": len(notes) + len(held.data),
            }
            top = wire.format_head("HTTP/1.1 200 OK", fields)
            for data in (memoryview(top), memoryview(notes), held.data):
                for at in range(0, len(data), PIECE_BYTES):
                    piece = data[at : at + PIECE_BYTES]
                    wire.send_all(pipe, piece, clock.now() + STALL_TIMEOUT_S)
        finally:
            held.release()


def _read(link: ProvenLink, into: memoryview) -> None:
    for at in range(0, len(into), PIECE_BYTES):
        link.read(into[at : at + PIECE_BYTES])


def _steps(area: Area) -> tuple[int, ...]:
    return tuple(sorted({known.step for known in area.generations()}))


def _known(area: Area) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The fields of a ``RankKept``."""
    marks = {x.step: x.mark for x in area.generations()}
    numbers = (astuple(x) if (x := marks[step]) else (0, 0, 0) for step in sorted(marks))
    return tuple(sorted(marks)), tuple(chain.from_iterable(numbers))


def _release(held: Iterable[Held]) -> None:
    for one in held:
        one.release()
