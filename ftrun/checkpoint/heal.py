"""Fetches a state from all its donors at once: striped, verified, all or nothing.

Each donor sends its header. The first header decides which state is fetched. Donors whose header
differs (other bytes under the same state id: S1 is violated somewhere) are left out and reported;
they are used only when all donors that match the first header are gone. One or two streams per
donor take chunks of the state, read them straight into the memory of the new tree's tensors, and
verify them while they are in the processor's cache (S3).

Not here: which replicas are donors (the quorum names them), the use of the state (Manager).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ftrun.base import clock
from ftrun.base.errors import FtrunError, PeerError, ProtocolError
from ftrun.base.words import first_of
from ftrun.checkpoint.destination import Arrivals, Destination, Overwrite, Overwritten
from ftrun.checkpoint.donor import DonorLink
from ftrun.checkpoint.format import Tree, leaves_of, unpack, without_parts
from ftrun.checkpoint.header import Header, decode_header
from ftrun.checkpoint.layout import OWN_SAMPLE, chunk_hasher, pieces
from ftrun.checkpoint.leaves import Leaf, LeafSpec
from ftrun.checkpoint.line import DonorRefused
from ftrun.checkpoint.proof import heal_key
from ftrun.checkpoint.stripes import Stripe
from ftrun.core.ids import StateId, Tag
from ftrun.protocol.auth import new_token

STREAMS_ALONE = 2
STRIKES_MAX = 3
RETRY_FIRST_S = 0.005
RETRY_MAX_S = 0.1
CANCEL_LOOK_S = 0.02
JOIN_TIMEOUT_S = 10.0
DONE_GRACE_S = 0.05
NAMED_MAX = 5

_log = logging.getLogger(__name__)


class NoneServes(PeerError):
    """All donors have answered that they cannot serve their state; the text has the reasons."""


@dataclass(frozen=True, slots=True)
class FetchedState:
    """A complete state.

    Attributes:
        donors: addresses that delivered; if all chunks had arrived before, those with the same
            state.
        left_out: donors that did not deliver, and why not.
        unlike: the donors in ``left_out`` whose state differs.
        overwritten: the leaves that were written straight into the receiver's own memory.
    """

    state_id: StateId
    tree: Tree
    nbytes: int
    duration_s: float
    donors: tuple[str, ...]
    left_out: dict[str, str]
    unlike: dict[str, str] = field(default_factory=dict)
    overwritten: tuple[Overwritten, ...] = ()


def fetch(
    donors: Sequence[str],
    tag: Tag,
    token: str,
    timeout_s: float,
    mine: Tree | None = None,
    cancel: threading.Event | None = None,
    *,
    expected: StateId | None = None,
    overwrite: Overwrite | None = None,
    arrivals: Arrivals | None = None,
    streams_per_donor: int | None = None,
    certificates: Mapping[str, str] | None = None,
    catches_up: bool = False,
    unlike: Collection[str] = (),
) -> FetchedState:
    """Fetch the state that ``donors`` offer under ``tag``.

    Args:
        donors: ``host:port`` of their state servers.
        tag: of the quorum's attempt and step; a donor that has not reached it is asked again.
        token: the job's. It is not sent; requests prove that the receiver knows it.
        timeout_s: of the whole fetch.
        mine: this process's own tree, for the meshes of DTensors and the devices of tensors.
        cancel: when set, the fetch ends with PeerError.
        expected: the state id that the quorum names; a donor with another is left out.
        overwrite: read into the memory of ``mine``'s tensors if they fit, on these terms.
        arrivals: chunks of an earlier fetch, to continue from; the chunks of this one are added.
        streams_per_donor: connections to each; default: two to a single donor, otherwise one.
        certificates: by address, the fingerprint of the certificate that each donor must show: all
            connections use TLS. Default: none does.
        catches_up: also accept a state that a donor keeps between two steps.
        unlike: paths of parts in which donors may differ.

    Raises:
        UserError: a DTensor is sharded differently from the one in ``mine``; names its key.
        NoneServes: each donor has answered that it cannot serve its state.
        PeerError: no donor could deliver before the deadline. Nothing was applied. Its cause is the
            answer of a donor that refused for good, if one did.
    """
    key, deadline = heal_key(token), clock.now() + timeout_s
    order = _Order(tag, key, deadline, cancel, expected, overwrite, certificates, catches_up)
    order.unlike = unlike
    order.arrivals = arrivals or Arrivals()
    order.streams = streams_per_donor or (STREAMS_ALONE if len(donors) == 1 else 1)
    order.mine = leaves_of(mine) if mine is not None else None
    started, why_not, remaining = clock.now(), dict[str, str](), list(donors)
    refused: DonorRefused | None = None
    cannot = dict[str, str]()
    while remaining:
        transfer = _Transfer(order)
        transfer.run(remaining)
        why_not = {**why_not, **transfer.lost, **transfer.left_out}
        if transfer.complete:
            return transfer.result(clock.now() - started, why_not)
        if transfer.refusal:
            raise transfer.refusal
        refused = transfer.refused or refused
        cannot |= transfer.cannot
        remaining = list(transfer.left_out) if not order.over() else []
    if donors and cannot.keys() >= set(donors):
        raise NoneServes("; ".join(dict.fromkeys(cannot.values())))
    raise PeerError(_failure(order, donors, why_not)) from refused


def _failure(order: _Order, donors: Sequence[str], why_not: dict[str, str]) -> str:
    if order.cancelled():
        return f"fetching the state of {order.tag} was cancelled. Nothing was applied"
    each = "; ".join(f"{d}: {why_not.get(d) or 'no answer'}" for d in donors) or "there are none"
    return f"no donor could deliver the state of {order.tag} in time ({each}). Nothing was applied"


@dataclass(slots=True)
class _Order:
    """The terms of one fetch."""

    tag: Tag
    key: bytes
    deadline: float
    cancel: threading.Event | None
    expected: StateId | None
    overwrite: Overwrite | None
    certificates: Mapping[str, str] | None
    catches_up: bool
    unlike: Collection[str] = ()
    arrivals: Arrivals = field(default_factory=Arrivals)
    streams: int = 1
    mine: tuple[Leaf, ...] | None = None
    receiver: str = field(default_factory=lambda: new_token()[:16])

    def cancelled(self) -> bool:
        return self.cancel is not None and self.cancel.is_set()

    def over(self) -> bool:
        return self.cancelled() or clock.now() >= self.deadline

    def link(self, address: str) -> DonorLink:
        # A donor that has announced no certificate is refused, like one that shows another
        # certificate.
        shown = None if self.certificates is None else self.certificates.get(address, "")
        terms = (self.tag, self.key, self.receiver, self.deadline, shown)
        return DonorLink(address, *terms, catches_up=self.catches_up)


class _Transfer:
    """One attempt: a fetch from the donors that agree with the first one that answers."""

    def __init__(self, order: _Order) -> None:
        self.lost: dict[str, str] = {}
        self.left_out: dict[str, str] = {}
        self.refusal: FtrunError | None = None
        self.refused: DonorRefused | None = None
        self.cannot: dict[str, str] = {}
        self._order = order
        self._destination: Destination | None = None
        self._delivered: set[str] = set()
        self._agreed: set[str] = set()
        self._links: set[DonorLink] = set()
        self._meeting: set[DonorLink] = set()
        self._threads: list[threading.Thread] = []
        self._working = 0
        self._ended = threading.Event()
        self._changed = threading.Condition()

    @property
    def complete(self) -> bool:
        """Whether every byte has arrived and is verified."""
        return self._destination is not None and self._destination.stripes.complete

    def run(self, donors: Sequence[str]) -> None:
        """Fetch until complete, out of donors, out of time or cancelled.

        Afterwards no thread touches the destination any more.
        """
        for address in donors:
            self._start(self._meet, address)
        with self._changed:
            while self._under_way():
                remaining_s = self._order.deadline - clock.now()
                look_s = CANCEL_LOOK_S if self._order.cancel is not None else remaining_s
                self._changed.wait(max(0.0, min(look_s, remaining_s)))
        self._end()

    def _under_way(self) -> bool:
        going = self._working > 0 and self.refusal is None
        return going and not self.complete and not self._order.over()

    def result(self, duration_s: float, left_out: dict[str, str]) -> FetchedState:
        to = self._destination
        assert to is not None
        tree = unpack(to.header.structure, to.header.specs, to.buffers, self._order.mine or ())
        donors = tuple(sorted(self._delivered or self._agreed))
        return FetchedState(
            to.header.state_id,
            tree,
            to.header.nbytes,
            duration_s,
            donors,
            {donor: why for donor, why in left_out.items() if why},
            {donor: why for donor, why in self.left_out.items() if why},
            to.overwritten,
        )

    def _end(self) -> None:
        with self._changed:
            self._ended.set()
            if self._destination is not None:
                self._destination.stripes.end()
            # If complete, the streams that fetched still report ``done``; the others are cut.
            unwanted = list(self._meeting if self.complete else self._links)
            threads = list(self._threads)
        for link in unwanted:
            link.end()
        deadline = clock.now() + (DONE_GRACE_S if self.complete else JOIN_TIMEOUT_S)
        for thread in threads:
            thread.join(max(0.0, deadline - clock.now()))

    # ------------------------------------------------------------ on the donors' threads

    def _start(self, work: Callable[[DonorLink], None], address: str) -> None:
        with self._changed:
            self._working += 1
            thread = threading.Thread(
                target=self._work, args=(work, address), name=f"ftrun-heal-{address}", daemon=True
            )
            thread.start()  # under the lock: a thread in the list may be joined
            self._threads.append(thread)

    def _work(self, work: Callable[[DonorLink], None], address: str) -> None:
        link = self._order.link(address)
        with self._changed:
            self._links.add(link)
            if self._ended.is_set():
                link.end()
        try:
            work(link)
        except (PeerError, OSError) as why:
            self.lost[address] = str(why) or type(why).__name__
            if isinstance(why, DonorRefused) and not why.ask_again:
                self.refused = why
                if why.cannot_serve:
                    self.cannot[address] = why.text
            _log.debug("donor %s is out: %s", address, why)
        except FtrunError as why:
            self.refusal = why
        finally:
            link.close()
            with self._changed:
                self._working -= 1
                self._changed.notify_all()

    def _meet(self, link: DonorLink) -> None:
        """Get a donor's header. Fetch from it if it holds what the first donor holds."""
        self._meeting.add(link)
        raw = self._ask_header(link)
        self._meeting.discard(link)
        to = self._agree(link.address, raw)
        if to is None:
            link.done()
            return
        for _ in range(self._order.streams - 1):
            self._start(self._fetch_with_retries, link.address)
        self._fetch_with_retries(link)

    def _ask_header(self, link: DonorLink) -> bytes:
        pause_s, refusal = RETRY_FIRST_S, None
        while True:
            try:
                return link.header()
            except DonorRefused as why:
                refusal = why
                if why.ask_again:
                    self._ended.wait(pause_s)
                if not why.ask_again or self._is_over():
                    raise
            except (PeerError, OSError):
                if refusal is not None and self._is_over():
                    raise refusal from None  # the link was cut: the earlier refusal counts
                raise
            pause_s = min(2 * pause_s, RETRY_MAX_S)

    def _is_over(self) -> bool:
        return self._ended.is_set() or self._order.over()

    def _agree(self, address: str, raw: bytes) -> Destination | None:
        with self._changed:
            if self._destination is None:
                self._destination = self._prepare(raw)
            to = self._destination
            if raw != to.raw:
                other, unlike = decode_header(raw), self._order.unlike
                self.left_out[address] = _disagreement(to.header, other, unlike)
                return None
            self._agreed.add(address)
            return to

    def _prepare(self, raw: bytes) -> Destination:
        header, order = decode_header(raw), self._order
        if header.tag != order.tag.path():
            raise ProtocolError(f"asked for the state of {order.tag}, got that of {header.tag}")
        if order.expected is not None and header.state_id != order.expected:
            raise PeerError(f"it holds {header.state_id}, and the quorum names {order.expected}")
        return order.arrivals.open(order.tag, header, raw, order.mine or (), order.overwrite)

    def _fetch_with_retries(self, link: DonorLink) -> None:
        """Take stripes until none is left. A broken connection is retried a few times."""
        to = self._destination
        assert to is not None
        strikes = 0
        while stripe := to.stripes.claim(link.address, link.cut):
            try:
                self._fetch_stripe(link, stripe, to)
                continue
            except (DonorRefused, ProtocolError):
                raise  # a retry would not help: the donor is out
            except (PeerError, OSError):
                strikes += 1
                if strikes >= STRIKES_MAX or self._ended.is_set():
                    raise
                link.close()
            finally:
                to.stripes.give_back(stripe)
        if to.stripes.complete:
            with self._changed:
                self._changed.notify_all()
            link.done()

    def _fetch_stripe(self, link: DonorLink, stripe: Stripe, to: Destination) -> None:
        first, last = stripe.next, stripe.stop - 1
        start, stop = to.layout.span(first)[0], to.layout.span(last)[1]
        link.request(start, stop, to.stripes.lacking())
        while stripe.next < stripe.stop:
            chunk = stripe.next
            hasher = chunk_hasher(to.seed, chunk)
            for piece in pieces(to.layout.views(*to.layout.span(chunk))):
                link.read(piece)
                hasher.update(piece)
            if link.read_digest() != hasher.digest():
                raise ProtocolError(f"chunk {chunk} came corrupt or crossed from {link.address}")
            self._delivered.add(link.address)
            to.stripes.arrived(stripe)
        if stripe.next <= last:
            # Another stream took over the rest, but it is still on its way on this connection.
            link.close()


def _disagreement(first: Header, other: Header, unlike: Collection[str]) -> str:
    """How a donor differs from the first one; "" if they differ only in what is each one's own."""
    if first.state_id != other.state_id:
        return f"it holds {other.state_id}, another donor {first.state_id}"
    each = ours, theirs = _held(first), _held(other)
    odd = [path for path in {**ours, **theirs} if ours.get(path) != theirs.get(path)]
    named = first_of([path.removeprefix(".") for path in odd], NAMED_MAX)
    if first.specs == other.specs:
        plain, others = (without_parts(x.structure, unlike) for x in (first, other))
        if odd or plain != others:
            return f"its {named or 'plain values'} differ from another donor's"
    if all(held[path][1] == OWN_SAMPLE for path in odd for held in each if path in held):
        return ""
    return f"not all donors hold {named}, in one kind and shape"


def _held(header: Header) -> dict[str, tuple[LeafSpec, int]]:
    leaves = zip(header.specs, header.samples, strict=True)
    return {spec.path: (spec, fingerprint) for spec, fingerprint in leaves}
