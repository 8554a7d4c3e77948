"""Questions to peers' state servers, and the encoding of the answers about exchanges.

Not here: whom to ask, and for what (exchanges.py, comparing.py); the connection itself
(checkpoint/donor.py).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from ftrun.base import clock
from ftrun.base.errors import PeerError, ProtocolError
from ftrun.checkpoint.donor import DonorLink
from ftrun.checkpoint.line import DonorRefused
from ftrun.checkpoint.proof import heal_key
from ftrun.core.ids import NO_ATTEMPT, Tag
from ftrun.core.quorum import Endpoint
from ftrun.core.worker.asking import AskPeer
from ftrun.core.worker.exchange import Contribution
from ftrun.training.context import WorkerContext

log = logging.getLogger(__name__)

QUESTION_TIMEOUT_S = 10.0
"""Longer than a peer holds a question before it answers that it has no answer yet."""
EXCHANGE_BYTES_MAX = 512 << 20
"""The limit of all contributions to one exchange."""
T = TypeVar("T")


class Links:
    """Connections to peers' state servers. For one thread."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._key = heal_key(context.token)
        self._links: dict[str, DonorLink] = {}

    def answer(
        self,
        endpoint: Endpoint,
        path: str,
        bytes_max: int,
        timeout_s: float,
        decode: Callable[[bytes], T],
    ) -> T:
        """A peer's answer to the question of this path. A connection that fails is dropped.

        Raises:
            DonorRefused: the peer does not know the answer yet, or refuses.
            PeerError, OSError: the peer was not reached, or its answer cannot be read.
        """
        link = self._link(endpoint)
        try:
            return decode(link.answer(path, bytes_max, clock.now() + timeout_s))
        except DonorRefused:
            raise
        except (PeerError, OSError):
            del self._links[endpoint.heal]
            link.close()
            raise

    def ask(
        self, ask: AskPeer, *, refuses: bool = False, timeout_s: float = QUESTION_TIMEOUT_S
    ) -> tuple[list[Contribution] | None, bool]:
        """Send one question about an exchange. Returns the answer, and whether the peer was
        reached.

        Raises:
            PeerError: with ``refuses``, the peer refuses for good.
        """
        where = ask.endpoint, ask.question.path(), EXCHANGE_BYTES_MAX
        try:
            return self.answer(*where, timeout_s, decode), True
        except DonorRefused as refusal:
            if refuses and not refusal.ask_again:
                raise PeerError(f"replica {ask.replica_id} refuses: {refusal}") from refusal
            return None, True
        except (PeerError, OSError) as error:
            log.debug("replica %s does not answer: %s", ask.replica_id, error)
            return None, False

    def has(self, endpoint: Endpoint) -> bool:
        """Whether there is a connection to this peer."""
        return endpoint.heal in self._links

    def __len__(self) -> int:
        return len(self._links)

    def close(self) -> None:
        """Close all connections."""
        for link in self._links.values():
            link.end()
            link.close()
        self._links.clear()

    def _link(self, endpoint: Endpoint) -> DonorLink:
        link = self._links.get(endpoint.heal)
        if link is None:
            shown = endpoint.heal_certificate if self._context.heal_tls else None
            receiver = self._context.key.incarnation
            tag = Tag(NO_ATTEMPT, 0)  # a link's tag matters for states only
            link = DonorLink(endpoint.heal, tag, self._key, receiver, 0.0, shown)
            self._links[endpoint.heal] = link
        return link


def encode(found: Sequence[Contribution]) -> bytes:
    """Encode an answer: a line of JSON about the contributions, then their bodies."""
    head = [[c.replica_id, c.site, c.what, c.counts, len(c.body)] for c in found]
    return json.dumps(head).encode() + b"\n" + b"".join(c.body for c in found)


def decode(data: bytes) -> list[Contribution]:
    """The contributions in an answer.

    Raises:
        ProtocolError: ``data`` is no answer.
    """
    line, _, rest = data.partition(b"\n")
    found, at = [], 0
    try:
        for replica_id, site, what, counts, size in json.loads(line):
            is_known = all(isinstance(text, str) for text in (replica_id, site, what))
            is_known = is_known and type(counts) is bool
            if not (is_known and type(size) is int and 0 <= size <= len(rest) - at):
                raise ValueError("of the wrong type")
            found.append(Contribution(replica_id, site, what, rest[at : at + size], counts))
            at += size
    except (ValueError, TypeError, RecursionError) as error:
        raise ProtocolError(f"a peer sent an exchange that cannot be read: {error}") from error
    return found
