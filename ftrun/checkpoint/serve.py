"""The state server inside a worker: an HTTP server on a thread, which donors offer states on.

Every route requires a proof of the job's token (X1) and names the tag of the state (S4)::

    GET  /state/<tag>/header                       structure and leaves, JSON (header.py)
    GET  /state/<tag>/data?offset=<b>&length=<b>   whole chunks, each followed by its digest
    POST /state/<tag>/done                         this receiver is done
    GET  /operations/<tag>/<repeat>/<index>?cleared=<0 or 1>
                                                   one operation of a step (training/comparing.py)
    GET  /exchanges/<quorum_id>.<attempt>/<name>…  what is kept of an exchange
                                                   (core/worker/exchange.py: ExchangeQuestion)

    401 no or a wrong proof   404 no such route    409 not there yet: ask again
    410 the tag is over here: ask another donor    400, 405, 416 a malformed request
    500 this donor cannot serve its state, and why: ask another one

Not here: connections and proofs (listening.py), how requests are parsed (requests.py), what is on
offer and for how long (offer.py, and the Manager).
"""

from __future__ import annotations

import select
from collections.abc import Callable, Collection, Mapping

import torch
import xxhash

from ftrun.base import clock
from ftrun.base.errors import PeerError
from ftrun.checkpoint import wire
from ftrun.checkpoint.format import Tree, pack
from ftrun.checkpoint.header import header_of
from ftrun.checkpoint.layout import CHUNK_BYTES, DIGEST_BYTES, Layout, pieces
from ftrun.checkpoint.leaves import Leaf, leaf_of
from ftrun.checkpoint.line import REFUSAL_BYTES_MAX
from ftrun.checkpoint.listening import STALL_TIMEOUT_S, ProvenServer, Refusal, send
from ftrun.checkpoint.offer import Offer
from ftrun.checkpoint.requests import PeerQuestion, Request, parse_request
from ftrun.core.ids import StateId, Tag

OFFERS_MAX = 8
OWN_COPIED_MAX = 1 << 20
"""A leaf that may differ between replicas is copied up to this size, because it may change."""
ANSWER_TIMEOUT_S = 1.0
CANNOT_SERVE = "500 Internal Server Error"

LookUp = Callable[[PeerQuestion, float], "bytes | None"]


class StateServer(ProvenServer):
    """Serves the states that are on offer.

    Attributes:
        look_up: answers peers' questions; may wait for the given number of seconds.
        has_one_step: receivers of another step than the one on offer are refused at once instead of
            being asked to retry, because a script decides what is on offer.
    """

    def __init__(self, host: str, token: str, *, tls: bool = False) -> None:
        """See ProvenServer."""
        self._offers: dict[Tag, Offer] = {}
        self._newest: Tag | None = None
        self._refusal: tuple[Tag, str] | None = None
        self.look_up: LookUp | None = None
        self.has_one_step = False
        super().__init__(host, token, tls=tls)  # requests may come from here on

    def offer(
        self,
        tag: Tag,
        state_id: StateId,
        tree: Tree,
        expected: int = 0,
        copied: Mapping[int, torch.Tensor] | None = None,
        unlike: Collection[str] = (),
        *,
        kept: bool = False,
    ) -> int:
        """Serve ``tree`` under ``tag`` from its own memory, until ``retire`` or ``withdraw``.

        Args:
            tag: the name of the offer, for receivers.
            state_id: of the tree.
            tree: one that ``format.validate`` accepts. Its plain values are read now; its tensors
                must not change before ``retire``.
            expected: how many receivers will come; ``retire`` also keeps a copy for those that have
                not sent a request yet.
            copied: tensors of the tree that may change before ``retire``, by address
                (``data_ptr``), and what the server copies now in their place: usually the same
                tensor. They may differ between donors.
            unlike: prefixes of the paths of leaves that may differ between donors. Small ones among
                them may change before ``retire``.
            kept: it is kept between two steps, for receivers that catch up, and is not offered to
                others yet.

        Returns:
            The number of bytes on offer.

        Raises:
            UserError: the tree holds an object that cannot be sent.
        """
        packed, copied = pack(tree), copied or {}
        beginnings = tuple(unlike)
        own = {i for i, x in enumerate(packed.leaves) if _is_own(x, copied, beginnings)}
        small = {i for i in own if packed.leaves[i].spec.nbytes <= OWN_COPIED_MAX}
        layout = Layout([_still(x.data, copied, i in small) for i, x in enumerate(packed.leaves)])
        header = header_of(tag, state_id, packed, own).encode()
        offer = Offer(tag, state_id, header, layout, expected, kept=kept)
        with self._lock:
            self._newest = max(tag, self._newest or tag)
            old = [self._offers.pop(tag)] if tag in self._offers else []
            while len(self._offers) >= OFFERS_MAX:
                old.append(self._offers.pop(min(self._offers)))
            self._offers[tag] = offer
        for forgotten in old:
            forgotten.withdraw()
        return layout.nbytes

    def refuse(self, tag: Tag, reason: str) -> None:
        """Answer requests for ``tag`` with the reason why it cannot be served here."""
        self.withdraw(tag)
        with self._lock:
            self._newest = max(tag, self._newest or tag)
            self._refusal = (
                tag,
                reason.encode("utf-8", "replace")[:REFUSAL_BYTES_MAX].decode("utf-8", "ignore"),
            )

    def retire(self, tag: Tag, copy_bytes_max: int) -> int:
        """Copy what receivers still need. Call it right before the optimizer runs.

        The chunks that active or expected receivers lack are copied to host memory, at most
        ``copy_bytes_max`` bytes, and served from there. Returns the number of bytes copied.
        """
        with self._lock:
            offer = self._offers.get(tag)
        return offer.retire(copy_bytes_max) if offer else 0

    def wait(self, tag: Tag, timeout_s: float) -> bool:
        """Wait until all active and expected receivers are done; False at the timeout."""
        with self._lock:
            offer = self._offers.get(tag)
        return offer.wait(timeout_s) if offer else True

    def withdraw(self, tag: Tag) -> None:
        """Stop serving ``tag``."""
        with self._lock:
            offer = self._offers.pop(tag, None)
        if offer:
            offer.withdraw()

    def close(self) -> None:
        """Close the port and every connection; end every offer."""
        with self._lock:
            offers = list(self._offers.values())
            self._offers.clear()
        super().close()
        for offer in offers:
            offer.withdraw()

    # ------------------------------------------------------------ requests

    def sweep(self) -> None:
        """See ProvenServer."""
        with self._lock:
            offers = list(self._offers.values())
        for offer in offers:
            offer.release_if_done()

    def answer(self, pipe: wire.Pipe, head: wire.Head) -> None:
        """See ProvenServer."""
        request = parse_request(head)
        if not isinstance(request, Request):
            self._answer_question(pipe, request)
            return
        offer = self._find(request)
        try:
            getattr(self, f"_answer_{request.route}")(pipe, request, offer)
        except Refusal as why:  # the connection stays open
            send(pipe, why.status, str(why).encode())

    def _find(self, request: Request) -> Offer:
        tag = request.tag
        with self._lock:
            offer, newest, refusal = self._offers.get(tag), self._newest, self._refusal
        if offer and offer.kept and not request.catches_up:
            raise Refusal("409 Conflict", f"{tag} is not offered yet: a step has not begun here")
        if offer:
            return offer
        if refusal is not None and refusal[0] == tag:
            raise Refusal(CANNOT_SERVE, refusal[1])
        other = self._offers.get(newest) if newest and self.has_one_step else None
        if other is not None and not other.is_retired:
            raise Refusal("400 Bad Request", f"serving {other.tag.step} but got step={tag.step}")
        here = f"the newest state here is of {newest}" if newest else "no state was offered here"
        if newest is None or tag > newest:
            raise Refusal("409 Conflict", f"{tag} is not offered yet: {here}")
        raise Refusal("410 Gone", f"{tag} is not offered any more: {here}")

    # ------------------------------------------------------------ routes

    def _answer_question(self, pipe: wire.Pipe, question: PeerQuestion) -> None:
        answer = self.look_up(question, ANSWER_TIMEOUT_S) if self.look_up is not None else None
        if answer is None:
            send(pipe, "409 Conflict", b"the answer is not known here yet")
        else:
            _send_with_digest(pipe, answer)

    def _answer_header(self, pipe: wire.Pipe, request: Request, offer: Offer) -> None:
        _admit(request, offer)
        _send_with_digest(pipe, offer.header)

    def _answer_data(self, pipe: wire.Pipe, request: Request, offer: Offer) -> None:
        _admit(request, offer)
        nbytes = offer.nbytes
        chunks, lacking = request.chunks(nbytes), request.lacking(nbytes)
        if lacking is not None:
            offer.lacks(request.receiver, lacking)
        with offer.gate.inside():
            if offer.views(chunks.start) is None:
                raise Refusal("410 Gone", f"{offer.tag} is not offered any more")
        body = min(chunks.stop * CHUNK_BYTES, nbytes) - chunks.start * CHUNK_BYTES
        fields = {"content-length": body + len(chunks) * DIGEST_BYTES}
        head = wire.format_head("HTTP/1.1 200 OK", fields)
        wire.send_all(pipe, head, clock.now() + STALL_TIMEOUT_S)
        for chunk in chunks:
            _send_chunk(pipe, offer, chunk)
            offer.served(request.receiver, chunk)

    def _answer_done(self, pipe: wire.Pipe, request: Request, offer: Offer) -> None:
        offer.finish(request.receiver)
        send(pipe, "200 OK", b"")


def _send_with_digest(pipe: wire.Pipe, body: bytes) -> None:
    send(pipe, "200 OK", body, {wire.DIGEST_FIELD: xxhash.xxh3_64_hexdigest(body)})


def _admit(request: Request, offer: Offer) -> None:
    """Register an active or expected receiver; refuse any other."""
    if not offer.admit(request.receiver):
        raise Refusal("410 Gone", f"{offer.tag} is not offered any more")


def _is_own(leaf: Leaf, copied: Mapping[int, torch.Tensor], unlike: tuple[str, ...]) -> bool:
    """Whether each replica may have different bytes here."""
    return _is_copied(leaf.data, copied) or leaf.spec.path.startswith(unlike)


def _is_copied(data: torch.Tensor | memoryview, copied: Mapping[int, torch.Tensor]) -> bool:
    return isinstance(data, torch.Tensor) and data.data_ptr() in copied


def _still(
    data: torch.Tensor | memoryview, copied: Mapping[int, torch.Tensor], is_small: bool
) -> torch.Tensor | memoryview:
    """The memory of a leaf; a copy if the leaf may change while it is served (S3)."""
    if isinstance(data, torch.Tensor) and (still := copied.get(data.data_ptr())) is not None:
        leaf = leaf_of(still, "", "")
        assert leaf is not None and isinstance(leaf.data, torch.Tensor), "a tensor is a leaf"
        return leaf.data.clone()
    if not is_small:
        return data
    return data.clone() if isinstance(data, torch.Tensor) else memoryview(bytes(data))


def _send_chunk(sock: wire.Pipe, offer: Offer, chunk: int) -> None:
    """Send a chunk and its digest; continues from the copy if the offer retires meanwhile.

    Piece by piece: a piece just hashed is still in the cache when the kernel copies it.
    """
    hasher, generation = offer.hasher(chunk), -1
    sent = hashed = 0
    pending: list[memoryview] = []
    while generation < 0 or pending:
        with offer.gate.inside():
            if generation != offer.generation:
                views = offer.views(chunk)
                if views is None:
                    raise PeerError(f"{offer.tag} ended while a receiver was under way")
                pending = pieces(wire.advance(views, sent))
                generation = offer.generation
            piece = pending[0]
            if hashed < sent + piece.nbytes:
                hasher.update(piece[hashed - sent :])
                hashed = sent + piece.nbytes
            count = wire.send_now(sock, [piece])
        sent += count
        if count == piece.nbytes:
            del pending[0]
            continue
        pending[0] = piece[count:]
        wire.wait_for(sock, select.POLLOUT, clock.now() + STALL_TIMEOUT_S)
    wire.send_all(sock, hasher.digest(), clock.now() + STALL_TIMEOUT_S)
