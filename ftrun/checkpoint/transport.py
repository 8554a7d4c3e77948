"""torchft's ``CheckpointTransport`` and ``HTTPTransport``, on top of the state server.

For scripts that transfer checkpoints between replicas themselves. Not here: the heals of ftrun's
Manager, which do not use this (training/).
"""

from __future__ import annotations

import io
import threading
import urllib.error
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import timedelta
from email.message import Message
from typing import Generic, TypeVar

from ftrun.base import clock
from ftrun.base.addresses import own_host
from ftrun.base.errors import PeerError, UserError
from ftrun.checkpoint.heal import fetch
from ftrun.checkpoint.line import DonorRefused
from ftrun.checkpoint.serve import StateServer
from ftrun.core.ids import NO_ATTEMPT, SHARED_LINEAGE, StateId, Tag
from ftrun.protocol.auth import new_token

T = TypeVar("T")

COPY_BYTES_MAX = 1 << 62
SCHEME, PATH = "http://", "/checkpoint/"


class CheckpointTransport(ABC, Generic[T]):
    """Transfers a checkpoint from one replica to others, step by step."""

    @abstractmethod
    def metadata(self) -> str:
        """The address and token that receivers need to reach this sender."""

    @abstractmethod
    def send_checkpoint(
        self, dst_ranks: Sequence[int], step: int, state_dict: T, timeout: timedelta
    ) -> None:
        """Offer ``state_dict`` to the replicas ``dst_ranks``. Returns before they have it."""

    def disallow_checkpoint(self) -> None:
        """Call it before the optimizer's step, which changes the state."""

    @abstractmethod
    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: timedelta) -> T:
        """The checkpoint of ``step`` from the replica whose ``metadata()`` is given."""

    def shutdown(self, wait: bool = True) -> None:
        """Free all that the transport holds. ``wait``: let active receivers finish first."""


class NotReceived(PeerError, urllib.error.URLError):
    """A checkpoint did not arrive. It is also urllib's error, because torchft's users catch
    that."""


class ReceiverRefused(PeerError, urllib.error.HTTPError):
    """The sender answered, and will not serve this checkpoint. ``code``: the answer's status."""


class HTTPTransport(CheckpointTransport[T]):
    """Serves the live tensors of a checkpoint over HTTP; receivers fetch them in stripes.

    ``metadata`` is ``http://HOST:PORT/checkpoint/token``. Only replicas that have it can fetch the
    checkpoint, with ``recv_checkpoint``; other HTTP clients cannot. They do not send the token
    (proof.py); the checkpoint itself is sent in plaintext.

    Args:
        timeout: how long ``shutdown`` waits for receivers at most.
        num_chunks: connections that a receiver opens at once; 0: ftrun decides.
        host: the numeric address to bind; None: the address of the interface to the network.
    """

    def __init__(self, timeout: timedelta, num_chunks: int, host: str | None = None) -> None:
        self._timeout_s = timeout.total_seconds()
        self._streams = num_chunks or None
        self._token = new_token()
        self._server = StateServer(host or own_host(), self._token)
        self._server.has_one_step = True
        self._given: tuple[T] | None = None
        self._lock = threading.Lock()
        self._offered: Tag | None = None
        self._is_retired = False

    def address(self) -> str:
        """``http://HOST:PORT/checkpoint/``, as with torchft."""
        return f"{SCHEME}{self._server.address}{PATH}"

    def metadata(self) -> str:
        return f"{self.address()}{self._token}"

    def send_checkpoint(
        self, dst_ranks: Sequence[int], step: int, state_dict: T, timeout: timedelta
    ) -> None:
        """See CheckpointTransport.

        Raises:
            UserError: ``state_dict`` holds an object that cannot be carried.
        """
        self._given = None  # a state that cannot be sent must not leave an old one to allow
        self._offer(step, state_dict, len(dst_ranks))
        self._given = (state_dict,)

    def allow_checkpoint(self, step: int) -> None:
        """Serve the last state given to ``send_checkpoint`` as the state of ``step``.

        Its tensors are served as they are now, even after ``disallow_checkpoint``.

        Raises:
            UserError: no state was given, or the last one could not be sent.
        """
        if self._given is None:
            raise UserError(
                f"HTTPTransport.allow_checkpoint({step}): there is no state to serve, because "
                "send_checkpoint was not called or failed. Nothing is served under this step; "
                "call send_checkpoint"
            )
        if self._offered != tag_of(step) or self._is_retired:
            self._offer(step, self._given[0], 0)

    def _offer(self, step: int, state: T, receivers: int) -> None:
        tag = tag_of(step)
        with self._lock:
            self._server.offer(tag, StateId(step, SHARED_LINEAGE), state, receivers)
            if self._offered is not None and self._offered != tag:
                self._server.withdraw(self._offered)
            self._offered, self._is_retired = tag, False

    def disallow_checkpoint(self) -> None:
        """See CheckpointTransport. Active receivers continue from a copy; this does not wait for
        them."""
        with self._lock:
            tag, self._is_retired = self._offered, True
        if tag is not None:
            self._server.retire(tag, COPY_BYTES_MAX)

    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: timedelta) -> T:
        """See CheckpointTransport.

        Raises:
            ReceiverRefused: the sender serves another step, or the token is another one.
            NotReceived: the checkpoint was not complete before the timeout. Both are PeerErrors.
        """
        address, _, token = metadata.removeprefix(SCHEME).partition(PATH)
        if not (token and metadata.startswith(SCHEME)):
            raise UserError(f"{metadata!r} is not what HTTPTransport.metadata() returns")
        seconds = timeout.total_seconds()
        deadline = clock.now() + seconds
        try:
            fetched = fetch(
                [address], tag_of(step), token, seconds, streams_per_donor=self._streams
            )
        except PeerError as error:
            refused = error.__cause__
            if isinstance(refused, DonorRefused):
                raise ReceiverRefused(
                    f"{SCHEME}{address}{PATH}{step}",
                    refused.status,
                    f"the checkpoint of step {step} is refused: {refused.text}",
                    Message(),
                    io.BytesIO(),
                ) from error
            late = clock.now() >= deadline
            why = f"timed out after {seconds:g} s" if late else "could not be fetched"
            raise NotReceived(f"the checkpoint of step {step} {why}: {error}") from error
        state: T = fetched.tree
        return state

    def shutdown(self, wait: bool = True) -> None:
        """See CheckpointTransport. Waits for receivers until the timeout at most."""
        with self._lock:
            tag, self._offered, self._given = self._offered, None, None
        if wait and tag is not None:
            self._server.wait(tag, self._timeout_s)
        self._server.close()


def tag_of(step: int) -> Tag:
    """The tag of a checkpoint of ``step``, for a transport that a script uses itself."""
    return Tag(NO_ATTEMPT, step)
