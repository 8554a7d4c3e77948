"""Sends the questions by which replicas compare the operations of a step.

A question goes to the peer's state server, which holds it for a while until it has an answer. If it
has none, the question is sent again as long as its step is the current one. Connections are kept.

Not here: the questions, and the meaning of an answer (core/worker/comparison.py).
"""

from __future__ import annotations

import json
import logging
import queue
import threading
from collections.abc import Callable

from ftrun.base.errors import PeerError, ProtocolError
from ftrun.checkpoint.line import DonorRefused
from ftrun.core.quorum import Member
from ftrun.core.worker.comparison import Entry, Question, Shape
from ftrun.core.worker.events import Event, OperationAnswered
from ftrun.training.context import WorkerContext
from ftrun.training.questions import Links

log = logging.getLogger(__name__)

ASKERS_MAX = 8
RETRY_S = 0.05
ANSWER_TIMEOUT_S = 60.0
OPERATION_BYTES_MAX = 16384
SIZES_MAX = 256
_Order = tuple[Question, Member]


def encode(entry: Entry) -> bytes:
    shape = entry.shape
    fields = None if shape is None else [shape.op, shape.dtype, list(shape.sizes)]
    return json.dumps([fields, entry.changed, entry.cleared, entry.over]).encode()


def decode(body: bytes) -> Entry:
    """Decode an answer.

    Raises:
        ProtocolError: ``body`` is no answer.
    """
    try:
        fields, *marks = json.loads(body)
        shape = None if fields is None else _shape(*fields)
    except (ValueError, TypeError, RecursionError) as error:
        raise ProtocolError(f"a peer sent an operation that cannot be read: {error}") from error
    if len(marks) != 3 or not all(isinstance(mark, bool) for mark in marks):
        raise ProtocolError("a peer sent an operation without its marks")
    return Entry(shape, *marks)


def _shape(op: object, dtype: object, sizes: object) -> Shape:
    if not (isinstance(op, str) and isinstance(dtype, str) and isinstance(sizes, list)):
        raise ValueError("of the wrong type")
    if len(sizes) > SIZES_MAX or not all(type(size) is int and size >= 0 for size in sizes):
        raise ValueError("no sizes")
    return Shape(op, dtype, tuple(sizes))


class Comparing:
    """Asks peers for their operations, in threads that end at ``close``.

    Args:
        context: of the worker that asks.
        feed: called with each peer's OperationAnswered.
        is_current: whether an answer to a question is still useful.
        takes: whether an answer settles the question; if not, that peer is asked again.
    """

    def __init__(
        self,
        context: WorkerContext,
        feed: Callable[[Event], None],
        is_current: Callable[[Question], bool],
        takes: Callable[[Entry], bool],
    ) -> None:
        self._context = context
        self._feed = feed
        self._is_current, self._takes = is_current, takes
        self._orders: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._askers: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def ask(self, question: Question) -> None:
        """Send ``question`` to all members that it names. Returns at once."""
        wanted = min(ASKERS_MAX, len(question.members))
        with self._lock:
            if self._closed.is_set():
                return
            while len(self._askers) < wanted:
                asker = threading.Thread(target=self._run, name="ftrun-compare", daemon=True)
                self._askers.append(asker)
                asker.start()
        for member in question.members:
            self._orders.put((question, member))

    def close(self) -> None:
        """Stop asking."""
        with self._lock:
            self._closed.set()
            for _ in self._askers:
                self._orders.put(None)

    def _run(self) -> None:
        links = Links(self._context)
        while (order := self._orders.get()) is not None:
            question, member = order
            if self._closed.is_set() or not self._is_current(question):
                continue
            entry = self._ask_once(question, member, links)
            if entry is not None:
                self._feed(OperationAnswered(question, member.replica_id, entry))
            else:
                self._orders.put(order)
        links.close()

    def _ask_once(self, question: Question, member: Member, links: Links) -> Entry | None:
        endpoint = member.endpoints[self._context.group_rank]
        is_new = not links.has(endpoint)
        if is_new and len(links) > len(question.members):
            links.close()  # some belong to former members
        where = endpoint, question.path(), OPERATION_BYTES_MAX, ANSWER_TIMEOUT_S
        try:
            entry = links.answer(*where, decode)
            if self._takes(entry):
                return entry
            self._closed.wait(RETRY_S)
        except DonorRefused as refusal:
            if not refusal.ask_again:
                log.warning("replica %s sends no operation: %s", member.replica_id, refusal)
                self._closed.wait(RETRY_S)
        except (PeerError, OSError) as error:
            log.debug("replica %s sends no operation: %s", member.replica_id, error)
            if is_new:  # otherwise the peer closed the connection while it was idle
                self._closed.wait(RETRY_S)
        return None
