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

The first request of a connection has no proof, because the challenge comes with the 401 that
answers it (proof.py). If the next request has no valid proof either, the connection is closed.

Not here: how requests are parsed (requests.py), TLS (tls.py), what is on offer and for how long
(offer.py, and the Manager).
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
import weakref
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import xxhash

from ftrun.base import clock
from ftrun.base.errors import PeerError, ProtocolError
from ftrun.checkpoint import wire
from ftrun.checkpoint.donor import REFUSAL_BYTES_MAX
from ftrun.checkpoint.format import Tree, pack
from ftrun.checkpoint.header import header_of
from ftrun.checkpoint.layout import CHUNK_BYTES, DIGEST_BYTES, Layout, pieces
from ftrun.checkpoint.leaves import Leaf, leaf_of
from ftrun.checkpoint.offer import Offer
from ftrun.checkpoint.proof import (
    CHALLENGE_FIELD,
    PROOF_FIELD,
    Proofs,
    challenge_field,
    heal_key,
    new_challenge,
)
from ftrun.checkpoint.requests import Refusal, Request, parse_request
from ftrun.core.ids import StateId, Tag
from ftrun.core.worker.comparison import Question
from ftrun.core.worker.exchange import ExchangeQuestion

if TYPE_CHECKING:
    from ftrun.checkpoint.tls import ServerIdentity

CONNECTIONS_MAX = 256
OFFERS_MAX = 8
OWN_COPIED_MAX = 1 << 20
"""A leaf of which each replica has its own is copied up to this size, because it may change."""
REQUEST_TIMEOUT_S = 10.0
IDLE_TIMEOUT_S = 60.0
STALL_TIMEOUT_S = 30.0
SWEEP_INTERVAL_S = 5.0
ANSWER_TIMEOUT_S = 1.0
CANNOT_SERVE = "500 Internal Server Error"

LookUp = Callable[[Question, float], "bytes | None"]
Exchanged = Callable[[ExchangeQuestion, float], "bytes | None"]

_log = logging.getLogger(__name__)


class StateServer:
    """Serves the states that are on offer, on a port that the kernel chooses.

    Attributes:
        address: ``host:port``.
        certificate: the fingerprint by which receivers know this server; empty without TLS.
        look_up: answers questions about operations; may wait for the seconds it is given.
        exchanged: the same for questions about exchanges.
        has_one_step: receivers of another step than the one on offer are refused at once, where
            they would otherwise be asked to come again: a script decides what is on offer.
    """

    def __init__(self, host: str, token: str, *, tls: bool = False) -> None:
        """Bind ``host`` (a numeric address) and serve receivers that know ``token``.

        Raises:
            OSError: the address cannot be bound.
        """
        self._key = heal_key(token)
        self._identity = _new_identity() if tls else None
        self.certificate = self._identity.fingerprint if self._identity else ""
        self._lock = threading.Lock()
        self._offers: dict[Tag, Offer] = {}
        self._newest: Tag | None = None
        self._refusal: tuple[Tag, str] | None = None
        self._connections: set[socket.socket] = set()
        self._closed = False
        self.look_up: LookUp | None = None
        self.exchanged: Exchanged | None = None
        self.has_one_step = False
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=CONNECTIONS_MAX)
        self._listener.settimeout(SWEEP_INTERVAL_S)
        port = self._listener.getsockname()[1]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._thread = threading.Thread(target=self._accept, name="ftrun-state", daemon=True)
        self._thread.start()
        _close_in_forked_children(self)

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
            expected: how many receivers will come; ``retire`` keeps a copy also for those that
                have not sent a request yet.
            copied: by address (``data_ptr``) tensors of the tree that may change before
                ``retire``, and what the server copies now in their place: mostly they themselves.
                Those of donors may differ.
            unlike: beginnings of the paths of leaves that may differ between donors, and of which
                small ones may change before ``retire``.
            kept: it is kept between two steps, for receivers that catch up; it is not offered yet
                to any other.

        Returns:
            The number of bytes on offer.

        Raises:
            UserError: the tree holds an object that cannot be carried.
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
        """Answer all who ask for ``tag`` that it cannot be served here, and why."""
        self.withdraw(tag)
        with self._lock:
            self._newest = max(tag, self._newest or tag)
            self._refusal = (
                tag,
                reason.encode("utf-8", "replace")[:REFUSAL_BYTES_MAX].decode("utf-8", "ignore"),
            )

    def retire(self, tag: Tag, copy_bytes_max: int) -> int:
        """Copy what receivers still need. To be called right before the optimizer runs.

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
        """Serve nothing under ``tag`` any more."""
        with self._lock:
            offer = self._offers.pop(tag, None)
        if offer:
            offer.withdraw()

    def close(self) -> None:
        """Close the port and every connection; end every offer."""
        with self._lock:
            self._closed = True
            connections, offers = list(self._connections), list(self._offers.values())
            self._offers.clear()
        for sock in [self._listener, *connections]:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for offer in offers:
            offer.withdraw()
        # First the thread: it would accept for whoever opens the number of a closed descriptor.
        self._thread.join(REQUEST_TIMEOUT_S)
        self._listener.close()

    # ------------------------------------------------------------ connections

    def _accept(self) -> None:
        while not self._closed:
            try:
                sock, _ = self._listener.accept()
            except TimeoutError:
                self._release_copies()
                continue
            except OSError:
                return
            sock.setblocking(False)
            with self._lock:
                if self._closed or len(self._connections) >= CONNECTIONS_MAX:
                    sock.close()
                    continue
                self._connections.add(sock)
            threading.Thread(
                target=self._serve, args=(sock,), name="ftrun-state-conn", daemon=True
            ).start()

    def _release_copies(self) -> None:
        with self._lock:
            offers = list(self._offers.values())
        for offer in offers:
            offer.release_if_done()

    def _serve(self, sock: socket.socket) -> None:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pipe: wire.Pipe = sock
            if self._identity is not None:
                pipe = self._identity.accept(sock, clock.now() + REQUEST_TIMEOUT_S)
            connection = _Connection(pipe, wire.HeadReader(pipe))
            while self._answer_one(connection):
                pass
        except (OSError, PeerError) as why:
            _log.debug("a receiver's connection ended: %s", why)
        finally:
            with self._lock:
                self._connections.discard(sock)
            sock.close()

    def _answer_one(self, to: _Connection) -> bool:
        """Answer the next request; False if the connection must end."""
        try:
            head = to.reader.read(clock.now() + IDLE_TIMEOUT_S, REQUEST_TIMEOUT_S)
            if head is None:
                return False
            if to.proofs is None or not to.proofs.holds_next(head.line, head.fields):
                return self._ask_for_proof(to, head)
            request = parse_request(head)
            if isinstance(request, Question):
                self._answer_question(to.pipe, request)
                return True
            if isinstance(request, ExchangeQuestion):
                self._answer_exchange(to.pipe, request)
                return True
            offer = self._find(request)
        except Refusal as why:
            _send(to.pipe, why.status, str(why).encode())
            return False
        except ProtocolError as why:
            _send(to.pipe, "400 Bad Request", str(why).encode())
            return False
        try:
            getattr(self, f"_answer_{request.route}")(to.pipe, request, offer)
        except Refusal as why:
            _send(to.pipe, why.status, str(why).encode())
        return True

    def _ask_for_proof(self, to: _Connection, head: wire.Head) -> bool:
        """Refuse a request without a valid proof; False if its connection must end."""
        challenge = new_challenge()
        is_first = to.proofs is None and PROOF_FIELD not in head.fields
        to.proofs = Proofs(self._key, challenge, self.certificate)
        text = b"this does not prove the job's token"
        _send(to.pipe, "401 Unauthorized", text, {CHALLENGE_FIELD: challenge_field(challenge)})
        return is_first

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

    def _answer_question(self, pipe: wire.Pipe, question: Question) -> None:
        answer = self.look_up(question, ANSWER_TIMEOUT_S) if self.look_up is not None else None
        if answer is None:
            _send(pipe, "409 Conflict", b"that operation is not known here yet")
        else:
            _send(pipe, "200 OK", answer)

    def _answer_exchange(self, pipe: wire.Pipe, question: ExchangeQuestion) -> None:
        answer = self.exchanged(question, ANSWER_TIMEOUT_S) if self.exchanged is not None else None
        if answer is None:
            _send(pipe, "409 Conflict", b"that exchange is not known here yet")
        else:
            digest = xxhash.xxh3_64_hexdigest(answer)
            _send(pipe, "200 OK", answer, {wire.DIGEST_FIELD: digest})

    def _answer_header(self, pipe: wire.Pipe, request: Request, offer: Offer) -> None:
        _admit(request, offer)
        digest = xxhash.xxh3_64_hexdigest(offer.header)
        _send(pipe, "200 OK", offer.header, {wire.DIGEST_FIELD: digest})

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
        _send(pipe, "200 OK", b"")

    def _close_in_child(self) -> None:
        # A data loader's process must not keep a dead donor's connections open.
        for sock in [self._listener, *self._connections]:
            sock.close()


@dataclass(slots=True)
class _Connection:
    """A receiver's connection. ``proofs``: None until the first 401."""

    pipe: wire.Pipe
    reader: wire.HeadReader
    proofs: Proofs | None = None


def _new_identity() -> ServerIdentity:
    from ftrun.checkpoint.tls import ServerIdentity  # Only now: see there.

    return ServerIdentity()


def _admit(request: Request, offer: Offer) -> None:
    """Register an active or expected receiver; refuse any other."""
    if not offer.admit(request.receiver):
        raise Refusal("410 Gone", f"{offer.tag} is not offered any more")


def _is_own(leaf: Leaf, copied: Mapping[int, torch.Tensor], unlike: tuple[str, ...]) -> bool:
    """Whether each replica has bytes of its own here."""
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


def _send(
    sock: wire.Pipe, status: str, body: bytes, fields: dict[str, str | int] | None = None
) -> None:
    head = wire.format_head(f"HTTP/1.1 {status}", {**(fields or {}), "content-length": len(body)})
    wire.send_all(sock, head + body, clock.now() + STALL_TIMEOUT_S)


def _close_in_forked_children(server: StateServer) -> None:
    known = weakref.ref(server)

    def close() -> None:
        alive = known()
        if alive is not None:
            alive._close_in_child()

    os.register_at_fork(after_in_child=close)
