"""The directory in which a job's nodes meet, and what is in it.

- ``lighthouse.N``: the address that node N has reserved for a lighthouse. Only the first nodes do.
- ``lighthouses``: the addresses that count, in the order of the nodes. The first node writes them,
  once, so all nodes know the same ones.
- The token, the certificates, and the register of the lighthouses (lighthouse/register/).

No other try of a job has the same directory (place.py), so nothing in it is an old one's.
Not here: who waits for what (keeper.py).
"""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

from ftrun.base.addresses import join_address

CONTENDERS = 3
"""The nodes that run a lighthouse: one leads, the others stand by."""
ADDRESSES = "lighthouses"
ADDRESS = "lighthouse."


class Meeting:
    """One node's part. ``host``: the address at which other nodes reach this one."""

    def __init__(self, directory: Path, node: int, host: str) -> None:
        self.directory = directory
        self.host = host
        self.address = ""
        self._own = directory / f"{ADDRESS}{node}"
        self._reserved: socket.socket | None = None

    def reserve(self) -> None:
        """Reserve an address for a lighthouse of this node, and show it.

        The socket is bound and does not listen. So the lighthouse can bind the same port, each time
        that it is started, and no connection of another process gets it.
        """
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        self._reserved = reserved = socket.socket(family)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((self.host, 0))
        self.address = join_address(self.host, reserved.getsockname()[1])
        _write(self._own, self.address)

    def reserved(self) -> dict[int, str]:
        """What the nodes have reserved so far."""
        return {n: (self.directory / f"{ADDRESS}{n}").read_text() for n in self._nodes()}

    def _nodes(self) -> list[int]:
        """Those that have reserved an address, and have not left."""
        names = os.listdir(self.directory)  # asks a file server again
        found = [name.removeprefix(ADDRESS) for name in names if name.startswith(ADDRESS)]
        return sorted(int(number) for number in found if number.isdecimal())

    def settle(self, addresses: tuple[str, ...]) -> None:
        """Write the addresses that count."""
        _write(self.directory / ADDRESSES, ",".join(addresses))

    def settled(self) -> tuple[str, ...]:
        """The addresses that count; none: they are not known yet."""
        if ADDRESSES not in os.listdir(self.directory):
            return ()
        return tuple((self.directory / ADDRESSES).read_text().split(","))

    def leave(self) -> None:
        """This node's lighthouse has ended. The last one takes the directory away."""
        if self._reserved is None:
            return
        self._reserved.close()
        self._own.unlink(missing_ok=True)
        if self.directory.exists() and not self._nodes():
            shutil.rmtree(self.directory, ignore_errors=True)  # its credentials let nobody in


def _write(path: Path, text: str) -> None:
    """No reader ever sees a part of it."""
    draft = path.with_name(f".{path.name}")
    draft.touch(mode=0o600)
    draft.write_text(text)
    draft.replace(path)
