"""How a lighthouse and its parent find each other: environment, token pipe, ``address.json``.

An agent, or the keeper of a node, starts ``ftrun/lighthouse/__main__.py`` with
``child_environment`` added to its own environment, and passes the read end of a pipe. A line of it
is the token (never argv: X4), and its end is the order to stop. The child publishes its ports in
``STATE_DIR/address.json`` and dies with its parent (P1).

Imports nothing heavy, because the child is tied to its parent before it loads anything else. Not
here: starting and restarting the child (agent/embedded.py), its start (lighthouse/embedded.py).
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from ftrun.base.files import write_whole

STATE_DIR = "FTRUN_LIGHTHOUSE_STATE_DIR"
BIND = "FTRUN_LIGHTHOUSE_BIND"
HTTP = "FTRUN_LIGHTHOUSE_HTTP"
LOG_DIR = "FTRUN_LIGHTHOUSE_LOG_DIR"
TOKEN_FD = "FTRUN_LIGHTHOUSE_TOKEN_FD"
OUTLIVES = "FTRUN_LIGHTHOUSE_OUTLIVES"
TLS = "FTRUN_LIGHTHOUSE_TLS"
FOR_NODES = "FTRUN_LIGHTHOUSE_FOR_NODES"
ONCE = "FTRUN_LIGHTHOUSE_ONCE"
PARENT_PID = "FTRUN_LIGHTHOUSE_PARENT_PID"

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


def child_environment(
    state_dir: Path,
    token_fd: int,
    *,
    parent_pid: int,
    bind: str = ANY_PORT,
    http: str = ANY_PORT,
    log_dir: Path | None = None,
    outlives: bool = True,
    tls: tuple[str, ...] = (),
    for_nodes: bool = False,
    once: bool = False,
) -> dict[str, str]:
    """Variables that the agent adds to the environment of its lighthouse.

    ``log_dir``: of the job, where ``events.jsonl`` is written too. ``outlives``: ``state_dir`` is
    of use after a crash of the machine. ``tls``: paths of a certificate, its key and a CA; none:
    no TLS. ``for_nodes``: agents of other nodes come too, and ``state_dir`` is a register that
    several lighthouses share. ``once``: it ends with its first job, and shares with nobody.
    """
    return {
        OUTLIVES: "1" if outlives else "",
        TLS: os.pathsep.join(tls),
        FOR_NODES: "1" if for_nodes else "",
        ONCE: "1" if once else "",
        LOG_DIR: "" if log_dir is None else str(log_dir.absolute()),
        STATE_DIR: str(state_dir),
        BIND: bind,
        HTTP: http,
        TOKEN_FD: str(token_fd),
        PARENT_PID: str(parent_pid),
    }


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
