"""A receiver's requests to one donor.

Not here: the connection and its proofs (line.py), which chunks to request (heal.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import xxhash

from ftrun.base import clock
from ftrun.base.errors import PeerError, ProtocolError
from ftrun.checkpoint import wire
from ftrun.checkpoint.header import HEADER_BYTES_MAX
from ftrun.checkpoint.layout import DIGEST_BYTES
from ftrun.checkpoint.line import ProvenLink
from ftrun.core.ids import Tag

DONE_TIMEOUT_S = 1.0


class DonorLink(ProvenLink):
    """One connection to a donor's state server."""

    def __init__(
        self,
        address: str,
        tag: Tag,
        key: bytes,
        receiver: str,
        deadline: float,
        certificate: str | None = None,
        *,
        catches_up: bool = False,
    ) -> None:
        """A link that is not connected yet. Other arguments: see ProvenLink.

        ``catches_up``: also accept a state that is kept between two steps.
        """
        super().__init__(address, key, deadline, certificate)
        self._base = f"/state/{tag.path()}"
        self._fields[wire.RECEIVER_FIELD] = receiver
        if catches_up:
            self._fields[wire.CATCHES_UP_FIELD] = "1"

    def header(self) -> bytes:
        """The donor's header, checked against its digest.

        Raises:
            DonorRefused: the donor does not offer the tag (yet, or any more), or has another token.
            PeerError: the donor is silent or violates the protocol.
        """
        return self._body(self._ask("GET", "header"), HEADER_BYTES_MAX, "the state header")

    def request(self, start: int, stop: int, lacking: Sequence[tuple[int, int]]) -> None:
        """Request the bytes ``[start, stop)``: whole chunks, each followed by its digest.

        ``lacking``: the chunks that have not arrived from any donor.
        """
        lacks = wire.format_ranges(lacking)
        fields = {} if lacks is None else {wire.LACKS_FIELD: lacks}
        self._ask("GET", f"data?offset={start}&length={stop - start}", fields)

    def answer(self, path: str, bytes_max: int, deadline: float) -> bytes:
        """The peer's answer to the question of this path, checked against its digest.

        Raises:
            DonorRefused: the peer does not know the answer yet, or has another token.
            PeerError: the peer is silent or violates the protocol.
        """
        self._deadline = deadline
        return self._body(self.ask("GET", path), bytes_max, "an answer")

    def _body(self, head: wire.Head, bytes_max: int, what: str) -> bytes:
        """The body of an answer, which comes with its digest."""
        body = bytearray(self.length(head, bytes_max))
        self.read(memoryview(body))
        if xxhash.xxh3_64_hexdigest(body) != head.fields.get(wire.DIGEST_FIELD):
            self.close()
            raise ProtocolError(f"{what} came corrupt from {self.address}")
        return bytes(body)

    def read_digest(self) -> bytes:
        """The digest that follows a chunk."""
        digest = bytearray(DIGEST_BYTES)
        self.read(memoryview(digest))
        return bytes(digest)

    def done(self) -> None:
        """Report to the donor that this receiver is done. If that fails, the donor notices
        later."""
        with contextlib.suppress(PeerError, OSError):
            self._deadline = clock.now() + DONE_TIMEOUT_S
            self._ask("POST", "done")

    def _ask(self, method: str, target: str, more: Mapping[str, str] | None = None) -> wire.Head:
        return self.ask(method, f"{self._base}/{target}", more)
