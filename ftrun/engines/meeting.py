"""The directory in which a job's nodes meet, and its content.

- ``lighthouse.N``: the address that node N has reserved for a lighthouse. Only the first nodes do.
- ``lighthouses``: the addresses that count, in the order of the nodes. The first node writes them,
  once, so all nodes read the same ones.
- The token, the certificates, and the register of the lighthouses (lighthouse/register/).

No other try of a job has the same directory (place.py), so it contains no stale files. Not here:
which node waits for what (keeper.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
from pathlib import Path

from ftrun.base.addresses import join_address, split_address
from ftrun.base.files import write_whole

CONTENDERS = 3
"""The number of nodes that run a lighthouse: one leads, the others stand by."""
ADDRESSES = "lighthouses"
ADDRESS = "lighthouse."
ANSWER_S = 3.0


class Meeting:
    """One node's part. ``host``: the address at which other nodes reach this one."""

    def __init__(self, directory: Path, node: int, host: str) -> None:
        self.directory = directory
        self.host = host
        self.address = ""
        self.first_is_lost = False
        self._own = directory / f"{ADDRESS}{node}"
        self._reserved: socket.socket | None = None

    def reserve(self) -> None:
        """Reserve an address for a lighthouse of this node, and publish it.

        The socket is bound but does not listen. So the lighthouse can bind the same port at each
        start, and no other process can take it.
        """
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        self._reserved = reserved = socket.socket(family)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((self.host, 0))
        self.address = join_address(self.host, reserved.getsockname()[1])
        write_whole(self._own, self.address, mode=0o600)

    def reserved(self) -> dict[int, str]:
        """The addresses that the nodes have reserved so far."""
        names = os.listdir(self.directory)  # refreshes the file server's cache
        found = [name.removeprefix(ADDRESS) for name in names if name.startswith(ADDRESS)]
        addresses = {}
        for node in sorted(int(number) for number in found if number.isdecimal()):
            with contextlib.suppress(FileNotFoundError):  # it is leaving right now
                addresses[node] = (self.directory / f"{ADDRESS}{node}").read_text()
        return addresses

    def settle(self, addresses: tuple[str, ...]) -> None:
        """Write the addresses that count."""
        write_whole(self.directory / ADDRESSES, ",".join(addresses), mode=0o600)

    def settled(self) -> tuple[str, ...]:
        """The addresses that count; empty: they are not known yet."""
        if ADDRESSES not in os.listdir(self.directory):
            return ()
        return tuple((self.directory / ADDRESSES).read_text().split(","))

    async def leave(self) -> bool:
        """Called when this node's lighthouse has ended. Returns True on the last such node only.

        That node removes the directory. Lost nodes leave their files behind, so it then also knows
        whether the first node was lost (``first_is_lost``).
        """
        if self._reserved is None:
            return False
        self._reserved.close()
        self._own.unlink(missing_ok=True)
        over = self.directory.with_name(f"{self.directory.name}.over")
        try:
            others = self.reserved().values()
            if others and not self.settled():
                return False  # they wait for the first node, and report so
            if any(await asyncio.gather(*map(answers, others))):
                return False
            self.directory.rename(over)
        except FileNotFoundError:  # another node was the last
            return False
        self.first_is_lost = (over / f"{ADDRESS}0").exists()
        shutil.rmtree(over, ignore_errors=True)  # its credentials are useless now
        return True


async def answers(address: str) -> bool | None:
    """Whether something listens at an address; None: no answer, so its machine is lost."""
    host, port = split_address(address)
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), ANSWER_S)
    except ConnectionRefusedError:
        return False
    except (OSError, asyncio.TimeoutError):
        return None
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True
