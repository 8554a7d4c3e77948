"""The state server inside a worker: an HTTP server on a thread, which donors offer states on.

Routes, all of which ask for the job's token (X1) and name the tag of the state (S4)::

    GET  /state/<tag>/header                       structure and leaves, JSON (header.py)
    GET  /state/<tag>/data?offset=<b>&length=<b>   whole chunks, each followed by its digest
    POST /state/<tag>/done                         this receiver wants nothing more

    401 no or a wrong token   404 no such route    409 the tag is not offered yet: ask again
    410 the tag is over here: ask another donor    400, 405, 416, 431 a malformed request

Not here: what is on offer and for how long (offer.py, and the Manager).
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
import weakref
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

import torch
import xxhash

from ftrun import clock
from ftrun.checkpoint import wire
from ftrun.checkpoint.format import Tree, pack
from ftrun.checkpoint.header import header_of
from ftrun.checkpoint.layout import CHUNK_BYTES, DIGEST_BYTES, Layout, pieces
from ftrun.checkpoint.offer import Offer
from ftrun.core.ids import Attempt, StateId, Tag
from ftrun.errors import PeerError, ProtocolError
from ftrun.protocol.auth import bearer_matches

CONNECTIONS_MAX = 256
OFFERS_MAX = 8
REQUEST_TIMEOUT_S = 10.0
IDLE_TIMEOUT_S = 60.0
STALL_TIMEOUT_S = 30.0
SWEEP_INTERVAL_S = 5.0
RECEIVER_CHARS_MAX = 64
TAG_PARTS = 3

_log = logging.getLogger(__name__)


class StateServer:
    """Serves the states that are on offer. Bound to a port of the system's choice."""

    def __init__(self, host: str, token: str) -> None:
        """Bind ``host`` (a numeric address) and serve.

        Raises:
            OSError: the address cannot be bound.
        """
        self._token = token
        self._lock = threading.Lock()
        self._offers: dict[Tag, Offer] = {}
        self._newest: Tag | None = None
        self._connections: set[socket.socket] = set()
        self._closed = False
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
        copied: Collection[int] = (),
    ) -> int:
        """Serve ``tree`` under ``tag`` from its own memory, until ``retire`` or ``withdraw``.

        Args:
            tag: under which receivers ask for it.
            state_id: what the tree is.
            tree: what ``format.validate`` accepts. Its plain values are taken now; its tensors
                must not change before ``retire``.
            expected: how many receivers will come: ``retire`` keeps a copy for those too that
                have not asked yet.
            copied: addresses (``data_ptr``) of tensors of the tree that may change before
                ``retire``: a copy of those is served.

        Returns:
            The number of bytes on offer.

        Raises:
            UserError: the tree holds what cannot be carried.
        """
        packed = pack(tree)
        layout = Layout([_still(leaf.data, copied) for leaf in packed.leaves])
        header = header_of(tag, state_id, packed).encode()
        offer = Offer(tag, state_id, header, layout, expected)
        with self._lock:
            self._newest = max(tag, self._newest or tag)
            old = [self._offers.pop(tag)] if tag in self._offers else []
            while len(self._offers) >= OFFERS_MAX:
                old.append(self._offers.pop(min(self._offers)))
            self._offers[tag] = offer
        for forgotten in old:
            forgotten.withdraw()
        return layout.nbytes

    def retire(self, tag: Tag, copy_bytes_max: int) -> int:
        """The offered tensors are about to change. To be called right before the optimizer runs.

        What receivers under way or expected still need is copied to host memory, at most
        ``copy_bytes_max`` of it, and served from there. Returns the number of bytes copied.
        """
        with self._lock:
            offer = self._offers.get(tag)
        return offer.retire(copy_bytes_max) if offer else 0

    def wait(self, tag: Tag, timeout_s: float) -> bool:
        """Wait until all receivers under way or expected are done; False if they are not."""
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
        self._listener.close()
        for offer in offers:
            offer.withdraw()
        self._thread.join(REQUEST_TIMEOUT_S)

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
            reader = wire.HeadReader(sock)
            while self._answer_one(sock, reader):
                pass
        except (OSError, PeerError) as why:
            _log.debug("a receiver's connection ended: %s", why)
        finally:
            with self._lock:
                self._connections.discard(sock)
            sock.close()

    def _answer_one(self, sock: socket.socket, reader: wire.HeadReader) -> bool:
        """Answer the next request; False if the connection shall end."""
        wire.wait_for(sock, select.POLLIN, clock.now() + IDLE_TIMEOUT_S)
        try:
            head = reader.read(clock.now() + REQUEST_TIMEOUT_S)
            if head is None:
                return False
            request = self._parse(head)
            answer = getattr(self, f"_answer_{request.route}")
        except _Refusal as why:
            _send(sock, why.status, str(why).encode())
            return False
        except ProtocolError as why:
            _send(sock, "400 Bad Request", str(why).encode())
            return False
        try:
            answer(sock, request)
        except _Refusal as why:
            _send(sock, why.status, str(why).encode())
        return True

    def _parse(self, head: wire.Head) -> _Request:
        if not bearer_matches(head.fields.get(wire.TOKEN_FIELD), self._token):
            raise _Refusal("401 Unauthorized", "this is not the job's token")
        method, _, rest = head.line.partition(" ")
        target, _, version = rest.rpartition(" ")
        if version != "HTTP/1.1" or head.content_length():
            raise _Refusal("400 Bad Request", "HTTP/1.1 without a body is spoken here")
        try:
            url = urlsplit(target)
        except ValueError as why:
            raise _Refusal("400 Bad Request", "that is not a path") from why
        prefix, tag_text, route = ([*url.path.split("/")[1:], "", "", ""])[:3]
        if prefix != "state" or ROUTES.get(route) is None or url.path.count("/") != TAG_PARTS:
            raise _Refusal("404 Not Found", "there is no such route")
        if ROUTES[route] != method:
            raise _Refusal("405 Method Not Allowed", f"ask for it with {ROUTES[route]}")
        receiver = head.fields.get(wire.RECEIVER_FIELD, "")
        if not 0 < len(receiver) <= RECEIVER_CHARS_MAX:
            raise _Refusal("400 Bad Request", f"{wire.RECEIVER_FIELD} is missing")
        lacks = head.fields.get(wire.LACKS_FIELD)
        return _Request(route, self._find(_parse_tag(tag_text)), receiver, url.query, lacks)

    def _find(self, tag: Tag) -> Offer:
        with self._lock:
            offer, newest = self._offers.get(tag), self._newest
        if offer:
            return offer
        here = f"the newest state here is of {newest}" if newest else "no state was offered here"
        if newest is None or tag > newest:
            raise _Refusal("409 Conflict", f"{tag} is not offered yet: {here}")
        raise _Refusal("410 Gone", f"{tag} is not offered any more: {here}")

    # ------------------------------------------------------------ routes

    def _answer_header(self, sock: socket.socket, request: _Request) -> None:
        offer = request.admitted()
        digest = xxhash.xxh3_64_hexdigest(offer.header)
        _send(sock, "200 OK", offer.header, {wire.DIGEST_FIELD: digest})

    def _answer_data(self, sock: socket.socket, request: _Request) -> None:
        offer = request.admitted()
        nbytes = offer.nbytes
        chunks = _parse_range(request.query, nbytes)
        if request.lacks is not None:
            offer.lacks(request.receiver, _parse_lacks(request.lacks, nbytes))
        with offer.gate.inside():
            if offer.views(chunks.start) is None:
                raise _Refusal("410 Gone", f"{offer.tag} is not offered any more")
        body = min(chunks.stop * CHUNK_BYTES, nbytes) - chunks.start * CHUNK_BYTES
        fields = {"content-length": body + len(chunks) * DIGEST_BYTES}
        head = wire.format_head("HTTP/1.1 200 OK", fields)
        wire.send_all(sock, head, clock.now() + STALL_TIMEOUT_S)
        for chunk in chunks:
            _send_chunk(sock, offer, chunk)
            offer.served(request.receiver, chunk)

    def _answer_done(self, sock: socket.socket, request: _Request) -> None:
        request.offer.finish(request.receiver)
        _send(sock, "200 OK", b"")

    def _close_in_child(self) -> None:
        # A data loader's process must not keep a dead donor's connections open.
        for sock in [self._listener, *self._connections]:
            sock.close()


ROUTES = {"header": "GET", "data": "GET", "done": "POST"}


@dataclass(frozen=True, slots=True)
class _Request:
    route: str
    offer: Offer
    receiver: str
    query: str
    lacks: str | None

    def admitted(self) -> Offer:
        """The offer, for a receiver that is under way or expected."""
        if not self.offer.admit(self.receiver):
            raise _Refusal("410 Gone", f"{self.offer.tag} is not offered any more")
        return self.offer


class _Refusal(PeerError):
    """A request that is answered with ``status``."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status


def _still(data: torch.Tensor | memoryview, copied: Collection[int]) -> torch.Tensor | memoryview:
    """The memory of a leaf, or what it holds now if it may change while it is served (S3)."""
    if isinstance(data, torch.Tensor) and data.data_ptr() in copied:
        return data.clone()
    return data


def _send_chunk(sock: socket.socket, offer: Offer, chunk: int) -> None:
    """Send a chunk and its digest; goes on from the copy if the offer retires on the way.

    Piece by piece: what has just been hashed is still in the cache when the kernel copies it.
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
    sock: socket.socket, status: str, body: bytes, fields: dict[str, str | int] | None = None
) -> None:
    head = wire.format_head(f"HTTP/1.1 {status}", {**(fields or {}), "content-length": len(body)})
    wire.send_all(sock, head + body, clock.now() + STALL_TIMEOUT_S)


def _parse_tag(text: str) -> Tag:
    parts = text.split(".")
    if len(parts) != TAG_PARTS or not all(p.isdecimal() and len(p) < 20 for p in parts):
        raise _Refusal("404 Not Found", "that is not a tag: quorum_id.attempt.step")
    quorum_id, number, step = map(int, parts)
    return Tag(Attempt(quorum_id, number), step)


def _parse_range(query: str, nbytes: int) -> range:
    """The chunks that ``offset`` and ``length`` of a query name."""
    try:
        fields = parse_qs(query, strict_parsing=True, max_num_fields=2)
        offset, length = int(fields["offset"][0]), int(fields["length"][0])
    except (KeyError, ValueError) as why:
        raise _Refusal("400 Bad Request", "offset and length, in bytes, are needed") from why
    stop = offset + length
    whole = offset % CHUNK_BYTES == 0 and (stop % CHUNK_BYTES == 0 or stop == nbytes)
    if not (whole and 0 <= offset < stop <= nbytes):
        raise _Refusal("416 Range Not Satisfiable", f"not whole chunks of {nbytes} bytes")
    return range(offset // CHUNK_BYTES, -(-stop // CHUNK_BYTES))


def _parse_lacks(text: str, nbytes: int) -> list[tuple[int, int]]:
    try:
        return wire.parse_ranges(text, -(-nbytes // CHUNK_BYTES))
    except ProtocolError as why:
        raise _Refusal("400 Bad Request", str(why)) from why


def _close_in_forked_children(server: StateServer) -> None:
    known = weakref.ref(server)

    def close() -> None:
        alive = known()
        if alive is not None:
            alive._close_in_child()

    os.register_at_fork(after_in_child=close)
