"""Network namespaces for a run: a hub with the lighthouse, and one for each agent.

A cut is a token bucket, at one end of a node's cable, that is too small for any packet. It drops
outgoing packets; incoming ones still arrive. Needs root and iproute2. Not here: when to cut
(faults.py).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import lru_cache

HUB_ADDRESS = "10.99.0.1"
NODE_ADDRESS = "10.99.0.{}"
"""A node's address: its index plus 10."""
LIGHTHOUSE = f"{HUB_ADDRESS}:29510"
NAMES_MAX = 8
LOST = ("root", "tbf", "rate", "1kbit", "burst", "1", "limit", "1")


class Network:
    """``nodes`` namespaces on a hub's bridge; their names contain ``mark``, which is unique to this
    run."""

    def __init__(self, mark: str, nodes: int) -> None:
        assert nodes <= NAMES_MAX
        self.hub = f"chaos-{mark}-hub"
        self.nodes = [f"chaos-{mark}-{index}" for index in range(nodes)]
        _ip("netns", "add", self.hub)
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    def inside(self, name: str) -> tuple[str, ...]:
        """The prefix of a command that runs in a namespace."""
        return ("ip", "netns", "exec", name)

    def cut(self, node: int, outward: bool, inward: bool) -> None:
        """Drop all packets from the node, or all packets to it."""
        if outward:
            self._lose(self.nodes[node], "eth0")
        if inward:
            self._lose(self.hub, f"port{node}")

    def mend(self, node: int) -> None:
        """End the cut: all packets arrive again."""
        for name, device in ((self.nodes[node], "eth0"), (self.hub, f"port{node}")):
            command = [*self.inside(name), "tc", "qdisc", "del", "dev", device, "root"]
            subprocess.run(command, capture_output=True, timeout=10, check=False)

    def close(self) -> None:
        """Remove the namespaces, and with them their devices."""
        for name in (*self.nodes, self.hub):
            command = ["ip", "netns", "del", name]
            subprocess.run(command, capture_output=True, timeout=10, check=False)

    def _lose(self, name: str, device: str) -> None:
        _run(*self.inside(name), "tc", "qdisc", "replace", "dev", device, *LOST)

    def _build(self) -> None:
        _in(self.hub, "link", "set", "lo", "up")
        _in(self.hub, "link", "add", "bridge0", "type", "bridge")
        _in(self.hub, "addr", "add", f"{HUB_ADDRESS}/24", "dev", "bridge0")
        _in(self.hub, "link", "set", "bridge0", "up")
        for index, name in enumerate(self.nodes):
            port = f"port{index}"
            _ip("netns", "add", name)
            peer = ("peer", "name", "eth0", "netns", name)
            _in(self.hub, "link", "add", port, "type", "veth", *peer)
            _in(self.hub, "link", "set", port, "master", "bridge0", "up")
            _in(name, "addr", "add", f"{NODE_ADDRESS.format(index + 10)}/24", "dev", "eth0")
            _in(name, "link", "set", "eth0", "up")
            _in(name, "link", "set", "lo", "up")


@lru_cache(maxsize=1)
def why_no_namespaces() -> str:
    """Why namespaces and cuts are not available here; empty if they are."""
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"there is no {tool} (iproute2)"
    try:
        network = Network(f"probe{os.getpid()}", 1)
    except (subprocess.CalledProcessError, OSError) as error:
        return f"network namespaces cannot be made here ({_words(error)})"
    try:
        network.cut(0, outward=True, inward=True)
        ping = [*network.inside(network.nodes[0]), "ip", "neigh"]
        subprocess.run(ping, capture_output=True, timeout=10, check=True)
    except (subprocess.SubprocessError, OSError) as error:
        return f"traffic cannot be dropped here ({_words(error)})"
    finally:
        network.close()
    return ""


def _words(error: Exception) -> str:
    said = getattr(error, "stderr", None)
    return said.decode(errors="replace").strip() if said else str(error)


def _ip(*words: str) -> None:
    _run("ip", *words)


def _in(namespace: str, *words: str) -> None:
    _run("ip", "-n", namespace, *words)


def _run(*words: str) -> None:
    subprocess.run(words, capture_output=True, timeout=10, check=True)
