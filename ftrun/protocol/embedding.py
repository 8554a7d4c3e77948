"""How a lighthouse and its parent find each other: an order through a pipe, ``address.json``.

An agent, or the keeper of a node, starts ``ftrun/lighthouse/__main__.py`` and passes it the read
end of a pipe. A line of it is the order with the token (never argv, never the environment: X4), and
its end is the order to stop. The child publishes its ports in ``STATE_DIR/address.json`` and dies
with its parent (P1).

Imports nothing heavy, because the child is tied to its parent before it loads anything else. Not
here: starting and restarting the child (agent/embedded.py), its start (lighthouse/embedded.py).
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ftrun.base.files import write_whole

ORDER_FD = "FTRUN_LIGHTHOUSE_ORDER_FD"
PARENT_PID = "FTRUN_LIGHTHOUSE_PARENT_PID"
ORDER_BYTES_MAX = 64 * 1024

GOES_ON_WORDS = "training goes on without it"
"""What the child says last, if it was asked to stop and nodes train on."""
ADDRESS_FILE = "address.json"
ANY_PORT = "127.0.0.1:0"


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    """Where a lighthouse listens: ``host:port`` for agents, ``host:port`` for people."""

    grpc: str
    http: str
    pid: int = 0


@dataclass(frozen=True, slots=True)
class Embedding:
    """What a parent passes to its lighthouse.

    ``log_dir``: of the job, where ``events.jsonl`` is written too; "": nowhere. ``outlives``:
    ``state_dir`` is of use after a crash of the machine: it is not of the agent's life alone.
    ``tls``: paths of a certificate, its key and a CA; none: no TLS. ``for_nodes``: agents of other
    nodes come too, and ``state_dir`` is a register that several lighthouses share. ``once``: it
    ends with its first job, and shares with nobody.
    """

    state_dir: str
    token: str = field(repr=False)
    bind: str = ANY_PORT
    http: str = ANY_PORT
    log_dir: str = ""
    outlives: bool = True
    tls: tuple[str, ...] = ()
    for_nodes: bool = False
    once: bool = False

    @property
    def contends(self) -> bool:
        """Whether it is one of several lighthouses, of which one leads."""
        return self.for_nodes and not self.once

    def order(self) -> bytes:
        """The line to write into the child's pipe."""
        return json.dumps(asdict(self)).encode() + b"\n"


def publish_address(state_dir: Path, address: ServiceAddress) -> None:
    """Write ``address.json``; no reader ever sees a part of it."""
    write_whole(state_dir / ADDRESS_FILE, json.dumps(asdict(address)) + "\n", mode=0o600)


def read_address(state_dir: Path) -> ServiceAddress:
    """The address of the lighthouse that runs on this state directory."""
    return ServiceAddress(**json.loads((state_dir / ADDRESS_FILE).read_text(encoding="utf-8")))


def withdraw_address(state_dir: Path) -> None:
    """Remove ``address.json``, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        (state_dir / ADDRESS_FILE).unlink()
