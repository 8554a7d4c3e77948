"""The agent's end of this node's process that writes and reads snapshots (snapshots/serving.py).

Not here: the orders (group_disk.py, team/), the process's own end (snapshots/process.py).
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from ftrun.base import clock
from ftrun.base.errors import PeerError, UserError
from ftrun.snapshots.process import LOOK_S, START_TIMEOUT_S
from ftrun.snapshots.serving import NAME


class WriterLink:
    """One connection, opened on demand, for one order at a time, in the event loop's thread."""

    def __init__(self, runtime_dir: Path) -> None:
        self._where = runtime_dir / NAME
        self._lock = asyncio.Lock()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, kind: str, order: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """Send an order, and return the answer.

        Raises:
            PeerError: it could not be carried out now.
            UserError: it can never be carried out.
        """
        async with self._lock:
            try:
                reader, writer = await self._connected()
                writer.write(json.dumps([kind, order]).encode() + b"\n")
                answer = json.loads(await asyncio.wait_for(reader.readline(), limit_s))
            except (OSError, ValueError, asyncio.TimeoutError) as error:
                self.close()
                how = "was given up" if isinstance(error, asyncio.TimeoutError) else "has ended"
                raise PeerError(f"the process that writes it {how}") from error
            except asyncio.CancelledError:
                self.close()  # its answer would be taken for the next order's
                raise
        if "error" in answer:
            kind_of = UserError if answer.get("is_final") else PeerError
            raise kind_of(str(answer["error"]))
        found: dict[str, Any] = answer
        return found

    async def connect(self) -> None:
        """Connect ahead of time, so that the process loads torch.

        Raises:
            PeerError: the process does not start.
        """
        async with self._lock:
            await self._connected()

    def close(self) -> None:
        """Cancel the order in progress, and close the connection."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        deadline = clock.now() + START_TIMEOUT_S
        while self._streams is None:
            try:
                reader, writer = await asyncio.open_unix_connection(str(self._where))
                writer.write(b"\n")
                if await asyncio.wait_for(reader.readline(), START_TIMEOUT_S):
                    self._streams = reader, writer
            except (OSError, asyncio.TimeoutError) as error:
                if clock.now() > deadline:
                    raise PeerError(f"there is no process that writes: {error}") from error
                await asyncio.sleep(LOOK_S)
        return self._streams
