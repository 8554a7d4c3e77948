"""Heals by a script's own ``CheckpointTransport``: the donor sends, the newcomer receives.

Each newcomer has one donor, because a transport sends to named ranks. The address for a receiver
(``metadata``) travels with the Manager's own state by ftrun's transfer. As with torchft, a donor's
optimizer waits until its transport has sent.

Not here: who heals from whom (core/), ftrun's own transfer (checkpoint/), torchft's two transports,
which ftrun's transfer replaces.
"""

from __future__ import annotations

import logging
import threading
from datetime import timedelta
from typing import Any

from ftrun.base.errors import PeerError, UserError
from ftrun.checkpoint.transport import CheckpointTransport, HTTPTransport
from ftrun.core.quorum import Quorum
from ftrun.training.group_transport import PGTransport

log = logging.getLogger(__name__)

OURS = (HTTPTransport, PGTransport)


def own_transport(given: Any, timeout_s: float) -> ScriptTransport | None:
    """The transport to use for heals; None: ftrun's own transfer.

    Raises:
        UserError: ``given`` lacks a method of CheckpointTransport.
    """
    if given is None or type(given) in OURS:
        return None
    for name in ("metadata", "send_checkpoint", "recv_checkpoint", "disallow_checkpoint"):
        if not callable(getattr(given, name, None)):
            raise UserError(
                f"Manager(checkpoint_transport={type(given).__name__}): it has no {name}(); derive "
                "it from CheckpointTransport"
            )
    return ScriptTransport(given, timeout_s)


class ScriptTransport:
    """A script's transport, one send at a time.

    Args:
        transport: the script's object.
        timeout_s: deadline of a send and of a receive.
    """

    def __init__(self, transport: CheckpointTransport[Any], timeout_s: float) -> None:
        self._transport = transport
        self._timeout_s = timeout_s
        self._sending: threading.Thread | None = None

    def metadata(self) -> str:
        """The address of this transport, for a receiver."""
        return str(self._transport.metadata())

    def send(self, ranks: list[int], step: int, tree: Any) -> None:
        """Send ``tree`` to these replica_ranks, in the background."""
        if not ranks:
            return
        self._sending = threading.Thread(
            target=self._send, args=(ranks, step, tree), name="ftrun-send", daemon=True
        )
        self._sending.start()

    def _send(self, ranks: list[int], step: int, tree: Any) -> None:
        try:
            self._transport.send_checkpoint(ranks, step, tree, timedelta(seconds=self._timeout_s))
        except Exception as error:  # noqa: BLE001  # of the script's own transport
            log.warning("the checkpoint_transport could not send to %s: %s", ranks, error)

    def end(self) -> None:
        """Wait until everything is sent, because the state is about to change."""
        sending, self._sending = self._sending, None
        if sending is not None:
            sending.join(self._timeout_s)
            if sending.is_alive():
                log.warning("the checkpoint_transport has not sent within %g s", self._timeout_s)
        self._transport.disallow_checkpoint()

    def receive(self, rank: int, metadata: str, step: int) -> Any:
        """The state that the donor of replica_rank ``rank`` sends.

        Raises:
            PeerError: the script's transport raised, for example because its peer has died.
        """
        timeout = timedelta(seconds=self._timeout_s)
        try:
            return self._transport.recv_checkpoint(rank, metadata, step, timeout)
        except Exception as error:  # raised by the script's own transport
            raise PeerError(f"the checkpoint_transport: {type(error).__name__}: {error}") from error

    def close(self) -> None:
        self._transport.shutdown(wait=False)


def receivers(quorum: Quorum, own_id: str) -> list[int]:
    """The replica_ranks that heal from ``own_id``: newcomers are spread evenly over all donors."""
    if own_id not in quorum.donors:
        return []
    return [rank for rank in _newcomers(quorum) if donor(quorum, rank) == own_id]


def donor(quorum: Quorum, rank: int) -> str:
    """The donor of the newcomer of this replica_rank."""
    return quorum.donors[_newcomers(quorum).index(rank) % len(quorum.donors)]


def _newcomers(quorum: Quorum) -> list[int]:
    return [r for r, m in enumerate(quorum.members) if m.replica_id in quorum.newcomers]
