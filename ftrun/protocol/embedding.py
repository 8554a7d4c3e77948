"""How a parent passes an order to its lighthouse, and reads its address from ``address.json``.

An agent, or the keeper of a node, starts ``ftrun/lighthouse/__main__.py`` and passes it the read
end of a pipe. The first line in the pipe is the order with the token (never argv, never the
environment: X4). The pipe's end asks the child to stop. The child publishes its ports in
``STATE_DIR/address.json`` and dies with its parent (P1).

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

GOES_ON_WORDS = "training continues without it"
"""The child's last words, if it was asked to stop while nodes train on."""
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

    Attributes:
        log_dir: of the job, where ``events.jsonl`` is written too; "": nowhere.
        outlives: ``state_dir`` is needed after a crash of the machine, because it outlives the
            agent.
        tls: paths of a certificate, its key and a CA; empty: no TLS.
        for_nodes: agents of other nodes connect too, and ``state_dir`` is a register that several
            lighthouses share.
        once: it ends with its first job, and shares its state with no other lighthouse.
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
    """Write ``address.json`` atomically."""
    write_whole(state_dir / ADDRESS_FILE, json.dumps(asdict(address)) + "\n", mode=0o600)


def read_address(state_dir: Path) -> ServiceAddress:
    """The address of the lighthouse that runs on this state directory."""
    return ServiceAddress(**json.loads((state_dir / ADDRESS_FILE).read_text(encoding="utf-8")))


def withdraw_address(state_dir: Path) -> None:
    """Remove ``address.json``, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        (state_dir / ADDRESS_FILE).unlink()
