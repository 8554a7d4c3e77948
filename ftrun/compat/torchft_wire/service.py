"""torchft's lighthouse inside ``ftrun lighthouse``: its ports, its file of quorum ids.

torchft's protocol has no token and no TLS. So its lighthouse has separate ports, is off by default,
and has no access to ftrun's jobs. Not here: quorums (core/torchft_quorum/), gRPC
(quorum_server.py), the checks of the options (lighthouse/settings.py).
"""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

from ftrun.base import clock
from ftrun.base.addresses import is_loopback, join_address
from ftrun.base.errors import ProtocolError
from ftrun.compat.torchft_wire.quorum_server import QuorumServer
from ftrun.core.torchft_quorum.machine import TorchftRooms
from ftrun.core.torchft_quorum.records import RoomsRecord
from ftrun.core.torchft_quorum.status import TorchftStatus, torchft_status
from ftrun.lighthouse.sealed_file import SealedFile
from ftrun.lighthouse.server import bind_port
from ftrun.lighthouse.settings import TORCHFT_BIND, TorchftSettings

MAGIC = b"ftrun torchft 1\n"
FILE = "torchft_rooms"
FILE_BYTES_MAX = 256 * 1024 * 1024

log = logging.getLogger(__name__)


class RoomsFile:
    """The last quorum of each room, on disk."""

    def __init__(self, path: Path) -> None:
        self._file = SealedFile(path, MAGIC, "file of torchft's quorums", FILE_BYTES_MAX)

    def load(self) -> RoomsRecord | None:
        """The last record; None: there is none, or it is corrupt and was set aside.

        Raises:
            UserError: the file exists but cannot be read.
        """
        try:
            payload = self._file.read()
            return None if payload is None else RoomsRecord.of(json.loads(payload))
        except (ProtocolError, ValueError, RecursionError) as error:
            log.warning(
                "%s is corrupt (%s). It is kept as %s; torchft's quorum ids continue far above any "
                "that it can have held, so its replicas build new groups.",
                self._file.path,
                error,
                self._file.keep_aside(),
            )
            return None

    def write(self, record: RoomsRecord) -> None:
        """Write the record; it is durably on disk when this returns.

        Raises:
            OSError: it could not be written; the old one stays.
        """
        self._file.write(json.dumps(record.document()).encode())


class TorchftService:
    """The rooms, their file and their ports. ``failed``: set to the error that ends it all.

    ``first_id``: the first quorum id, if there is no file.
    """

    def __init__(self, settings: TorchftSettings, state_dir: Path, first_id: int) -> None:
        file = RoomsFile(state_dir / FILE)
        record = file.load() or RoomsRecord(floor=first_id)
        self._rooms = TorchftRooms(settings.quorum, record, clock.now())
        self._server = QuorumServer(self._rooms, file.write)
        self.addresses: list[str] = []
        for room, host, port in settings.addresses():
            port = bind_port(self._server.add_port(room), host, port, TORCHFT_BIND)
            self.addresses.append(join_address(host, port))
            if not is_loopback(host):
                log.warning(
                    "torchft's clients reach %s without a token and without TLS: keep strangers "
                    "away from this port, because whoever reaches it can join a quorum, and a "
                    "replica that does is trusted by its peers (SECURITY.md)",
                    self.addresses[-1],
                )

    @property
    def failed(self) -> asyncio.Future[None]:
        """Set when the rooms' file cannot be written, or by a bug."""
        return self._server.failed

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        """End their calls and release the ports."""
        await self._server.stop()

    def status(self) -> TorchftStatus:
        return torchft_status(self.addresses, self._rooms.rooms, clock.now())
