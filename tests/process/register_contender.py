"""One process of tests/process/test_register_chaos.py: contends, and notes its actions.

``python -m tests.process.register_contender STATE SILENCE_S LOG``. While it leads it journals a
chain and answers between the records. Lines of LOG: what, version or time, epoch, name, count.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import TextIO

from ftrun.base import clock
from ftrun.core.register.events import Accepted, Answered, Record, Refused, Value
from ftrun.lighthouse.register import contender, kubernetes
from ftrun.lighthouse.register.contender import Contender, Leader
from ftrun.lighthouse.register.opening import open_store
from ftrun.lighthouse.register.store import Store

WORK_S = 0.005
ACKS_PER_RECORD = 3


class Looks:
    """The contender's clock; ``at``: when it last read the clock and found itself the leader."""

    at = 0.0

    def now(self) -> float:
        self.at = clock.now()
        return self.at


LOOKS = Looks()


class NotingStore:
    """Notes each write, and its answer at once: one may be lost, also by the process's end."""

    def __init__(self, store: Store, out: TextIO) -> None:
        self.place = store.place
        self._store = store
        self._out = out

    async def read(self, *, with_journal: bool) -> Answered:
        return await self._store.read(with_journal=with_journal)

    async def swap(self, version: int, value: Value) -> Accepted | Refused:
        count = int(value.journal) if value.journal is not None else -1
        self._out.write(f"asked {count}\n")
        answer = await self._store.swap(version, value)
        if isinstance(answer, Accepted):
            name = value.holder.replace(" ", "_")
            self._out.write(f"write {answer.version} {value.epoch} {name} {count}\n")
        else:
            self._out.write(f"refused {count}\n")
        return answer

    async def close(self) -> None:
        await self._store.close()


class Leads(Leader):
    """The leader: a chain of records, and answers that each follow from one."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self.contender: Contender | None = None
        self._epoch = self._count = 0
        self._is_leading = False
        self._turn = 0

    def leads(self, value: Value) -> None:
        self._epoch, self._count = value.epoch, int(value.journal or b"0")
        self._is_leading = True

    def release(self, output: object) -> None:
        # Stopped after it read the clock, it sends this late: agents refuse a lower epoch.
        self._out.write(f"sent {LOOKS.at} {self._epoch} {output}\n")

    def deposed(self, reason: str) -> None:
        self._is_leading = False
        self._out.write("deposed\n")

    def work(self) -> None:
        """Decide something, if the leadership permits it now."""
        now, own = clock.now(), self.contender
        assert own is not None
        if not self._is_leading or not own.may_decide:
            return
        self._turn += 1
        if self._turn % ACKS_PER_RECORD:
            self._out.write(f"ack {now} {self._epoch}\n")
        else:
            self._count += 1
            record = Record(self._epoch, str(self._count).encode())
            own.hand_in((record, self._count))


async def contend(state: str, silence_s: float, log: Path) -> None:
    stopping = asyncio.Event()
    kubernetes.MOUNT = Path(os.environ.get("MOUNT", kubernetes.MOUNT))
    contender.clock = LOOKS  # type: ignore[attr-defined,assignment]
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    with open(log, "a", buffering=1) as out:
        leads = Leads(out)
        store = NotingStore(open_store(state), out)
        leads.contender = Contender(store, "nowhere:1", silence_s, 0, leads)
        leads.contender.start()
        while not stopping.is_set():
            leads.work()
            await asyncio.sleep(WORK_S)
        await leads.contender.stop()


if __name__ == "__main__":
    asyncio.run(contend(sys.argv[1], float(sys.argv[2]), Path(sys.argv[3])))
