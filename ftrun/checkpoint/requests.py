"""The requests that a state server accepts, parsed from the head of an HTTP request.

Not here: whether the sender knows the token (proof.py), the answers (serve.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import parse_qs, urlsplit

from ftrun.base.errors import ProtocolError
from ftrun.checkpoint import wire
from ftrun.checkpoint.layout import CHUNK_BYTES
from ftrun.checkpoint.listening import Refusal
from ftrun.core.ids import Attempt, Tag
from ftrun.core.worker.comparison import Question
from ftrun.core.worker.exchange import ExchangeQuestion

ROUTES = {"header": "GET", "data": "GET", "done": "POST"}
RECEIVER_CHARS_MAX = 64
PeerQuestion: TypeAlias = Question | ExchangeQuestion
"""A question to a worker about an operation of a step, or an exchange."""
TAG_PARTS = 3


@dataclass(frozen=True, slots=True)
class Request:
    """A well-formed request. The state that it names may be on offer or not."""

    route: str
    tag: Tag
    receiver: str
    query: str
    lacks: str | None
    catches_up: bool

    def chunks(self, nbytes: int) -> range:
        """The chunks that ``offset`` and ``length`` name, of a state of ``nbytes``.

        Raises:
            Refusal: they name no chunks, or parts of chunks.
        """
        try:
            fields = parse_qs(self.query, strict_parsing=True, max_num_fields=2)
            offset, length = int(fields["offset"][0]), int(fields["length"][0])
        except (KeyError, ValueError) as why:
            raise Refusal("400 Bad Request", "offset and length, in bytes, are needed") from why
        stop = offset + length
        whole = offset % CHUNK_BYTES == 0 and (stop % CHUNK_BYTES == 0 or stop == nbytes)
        if not (whole and 0 <= offset < stop <= nbytes):
            raise Refusal("416 Range Not Satisfiable", f"not whole chunks of {nbytes} bytes")
        return range(offset // CHUNK_BYTES, -(-stop // CHUNK_BYTES))

    def lacking(self, nbytes: int) -> list[tuple[int, int]] | None:
        """The chunks that the receiver lacks, of a state of ``nbytes``; None if it sent no list.

        Raises:
            Refusal: the list is malformed.
        """
        if self.lacks is None:
            return None
        try:
            return wire.parse_ranges(self.lacks, -(-nbytes // CHUNK_BYTES))
        except ProtocolError as why:
            raise Refusal("400 Bad Request", str(why)) from why


def parse_request(head: wire.Head) -> Request | PeerQuestion:
    """The request with this head and no body: it asks for a state, an operation or an exchange.

    Raises:
        Refusal: there is no such route, or the request is malformed.
        ProtocolError: its Content-Length is no number.
    """
    method, _, rest = head.line.partition(" ")
    target, _, version = rest.rpartition(" ")
    if version != "HTTP/1.1" or head.content_length():
        raise Refusal("400 Bad Request", "HTTP/1.1 without a body is spoken here")
    try:
        url = urlsplit(target)
    except ValueError as why:
        raise Refusal("400 Bad Request", "that is not a path") from why
    if url.path.startswith("/operations/"):
        return _parse_question(method, url.path, url.query)
    if url.path.startswith("/exchanges/"):
        return _parse_exchange(method, url.path)
    prefix, tag_text, route = ([*url.path.split("/")[1:], "", "", ""])[:3]
    if prefix != "state" or ROUTES.get(route) is None or url.path.count("/") != TAG_PARTS:
        raise Refusal("404 Not Found", "there is no such route")
    if ROUTES[route] != method:
        raise Refusal("405 Method Not Allowed", f"ask for it with {ROUTES[route]}")
    receiver = head.fields.get(wire.RECEIVER_FIELD, "")
    if not 0 < len(receiver) <= RECEIVER_CHARS_MAX:
        raise Refusal("400 Bad Request", f"{wire.RECEIVER_FIELD} is missing")
    lacks = head.fields.get(wire.LACKS_FIELD)
    catches_up = wire.CATCHES_UP_FIELD in head.fields
    return Request(route, _parse_tag(tag_text), receiver, url.query, lacks, catches_up)


def _parse_question(method: str, path: str, query: str) -> Question:
    _, tag_text, *numbers = path.split("/")[1:]
    is_known = len(numbers) == 2 and all(n.isdecimal() and len(n) < 10 for n in numbers)
    if not is_known or query not in ("cleared=0", "cleared=1"):
        raise Refusal("404 Not Found", "that is no operation: tag/repeat/index?cleared=0 or 1")
    if method != "GET":
        raise Refusal("405 Method Not Allowed", "ask for it with GET")
    repeat, index = map(int, numbers)
    return Question(_parse_tag(tag_text), repeat, index, (), cleared=query == "cleared=1")


def _parse_exchange(method: str, path: str) -> ExchangeQuestion:
    if method != "GET":
        raise Refusal("405 Method Not Allowed", "ask for it with GET")
    try:
        return ExchangeQuestion.parse(path)
    except ValueError as why:
        raise Refusal("404 Not Found", str(why)) from why


def _parse_tag(text: str) -> Tag:
    parts = text.split(".")
    if len(parts) != TAG_PARTS or not all(p.isdecimal() and len(p) < 20 for p in parts):
        raise Refusal("404 Not Found", "that is not a tag: quorum_id.attempt.step")
    quorum_id, number, step = map(int, parts)
    return Tag(Attempt(quorum_id, number), step)
