"""torchft's ``CheckpointTransport`` and ``HTTPTransport``, on top of the state server.

For scripts that carry checkpoints between replicas themselves. Not here: the heals of ftrun's
Manager, which need none of this (training/).
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import timedelta
from typing import Generic, TypeVar

from ftrun import clock
from ftrun.addresses import own_host
from ftrun.checkpoint.heal import fetch
from ftrun.checkpoint.serve import StateServer
from ftrun.core.ids import NO_ATTEMPT, SHARED_LINEAGE, StateId, Tag
from ftrun.errors import PeerError, UserError
from ftrun.protocol.auth import new_token

T = TypeVar("T")

COPY_BYTES_MAX = 1 << 62


class CheckpointTransport(ABC, Generic[T]):
    """Carries a checkpoint from one replica to others, step by step."""

    @abstractmethod
    def metadata(self) -> str:
        """The address and token that receivers need to reach this sender."""

    @abstractmethod
    def send_checkpoint(
        self, dst_ranks: Sequence[int], step: int, state_dict: T, timeout: timedelta
    ) -> None:
        """Offer ``state_dict`` to the replicas ``dst_ranks``; returns before they have it."""

    def disallow_checkpoint(self) -> None:
        """To be called before the optimizer's step, which changes the state."""

    @abstractmethod
    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: timedelta) -> T:
        """The checkpoint of ``step`` from the replica whose ``metadata()`` is given."""

    def shutdown(self, wait: bool = True) -> None:
        """Free all that the transport holds. ``wait``: let active receivers finish first."""


class HTTPTransport(CheckpointTransport[T]):
    """Serves the live tensors of a checkpoint over HTTP; receivers pull them in stripes.

    ``metadata`` is ``host:port/token``: only replicas that have it can fetch the checkpoint. They
    do not send the token (proof.py); the checkpoint itself travels in plaintext.

    Args:
        timeout: how long ``shutdown`` waits for receivers at most.
        num_chunks: connections that a receiver opens at once; 0 leaves it to ftrun.
        host: the numeric address to bind; None: that of the interface that leads to the network.
    """

    def __init__(self, timeout: timedelta, num_chunks: int, host: str | None = None) -> None:
        self._timeout_s = timeout.total_seconds()
        self._streams = num_chunks or None
        self._token = new_token()
        self._server = StateServer(host or own_host(), self._token)
        self._server.has_one_step = True
        self._state: T | None = None
        self._lock = threading.Lock()
        self._offered: Tag | None = None

    def address(self) -> str:
        """``host:port`` of the server."""
        return self._server.address

    def metadata(self) -> str:
        """See CheckpointTransport."""
        return f"{self._server.address}/{self._token}"

    def send_checkpoint(
        self, dst_ranks: Sequence[int], step: int, state_dict: T, timeout: timedelta
    ) -> None:
        """See CheckpointTransport.

        Raises:
            UserError: ``state_dict`` holds an object that cannot be carried.
        """
        self._offer(step, state_dict, len(dst_ranks))

    def allow_checkpoint(self, step: int) -> None:
        """Serve the state that was last given to ``send_checkpoint`` as that of ``step``."""
        self._offer(step, self._state, 0)

    def _offer(self, step: int, state: T | None, receivers: int) -> None:
        tag = tag_of(step)
        with self._lock:
            self._server.offer(tag, StateId(step, SHARED_LINEAGE), state, receivers)
            if self._offered is not None and self._offered != tag:
                self._server.withdraw(self._offered)
            self._offered, self._state = tag, state

    def disallow_checkpoint(self) -> None:
        """See CheckpointTransport. Active receivers continue from a copy; nobody waits for them."""
        with self._lock:
            tag, self._state = self._offered, None
        if tag is not None:
            self._server.retire(tag, COPY_BYTES_MAX)

    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: timedelta) -> T:
        """See CheckpointTransport.

        Raises:
            PeerError: the checkpoint was not complete before the timeout.
        """
        address, slash, token = metadata.rpartition("/")
        if not (slash and token):
            raise UserError(f"{metadata!r} is not what HTTPTransport.metadata() returns")
        seconds = timeout.total_seconds()
        deadline = clock.now() + seconds
        try:
            fetched = fetch(
                [address], tag_of(step), token, seconds, streams_per_donor=self._streams
            )
        except PeerError as error:
            if clock.now() < deadline:
                raise
            raise PeerError(
                f"the checkpoint of step {step} timed out after {seconds:g} s: {error}"
            ) from error
        state: T = fetched.tree
        return state

    def shutdown(self, wait: bool = True) -> None:
        """See CheckpointTransport. Waits for receivers until the timeout at most."""
        with self._lock:
            tag, self._offered = self._offered, None
        if wait and tag is not None:
            self._server.wait(tag, self._timeout_s)
        self._server.close()


def tag_of(step: int) -> Tag:
    """The tag of the checkpoint of ``step``, of a transport that a script uses by itself."""
    return Tag(NO_ATTEMPT, step)
