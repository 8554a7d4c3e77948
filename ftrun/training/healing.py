"""The script's state as it heals: gathered for peers, fetched from them, given to the script.

A newcomer reads parameters and optimizer state straight into their own memory, while it computes a
pass whose results are discarded. That saves a copy of the state and the time to touch its pages.
This is done only for tensors that a managed optimizer steps, because nothing else writes to those.
They are checked after all state was given to the script. If something else has written to them,
this worker reads into new memory from then on.

An offer of the live state is delayed while the script forbids reads, and while the main thread may
be in a forward pass.

Not here: bytes on the wire (checkpoint/), when to heal and from whom (core/worker/machine.py,
core/lighthouse/).
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Protocol
from weakref import WeakSet

import torch

from ftrun.base.errors import PeerError, UserError
from ftrun.checkpoint.compare import explain
from ftrun.checkpoint.destination import Arrivals, Overwrite
from ftrun.checkpoint.format import leaves_of, validate
from ftrun.checkpoint.heal import FetchedState, NoneServes, fetch
from ftrun.checkpoint.leaves import Leaf, local_of
from ftrun.checkpoint.requests import PeerQuestion
from ftrun.checkpoint.serve import StateServer
from ftrun.core.ids import Tag
from ftrun.core.messages import HealProgress
from ftrun.core.quorum import Endpoint, Quorum
from ftrun.core.worker.events import Event, HealFailed, LoadState, OfferState, StateLoaded
from ftrun.core.worker.machine import StepMachine
from ftrun.training.context import WorkerContext
from ftrun.training.passes import Passes
from ftrun.training.script_transport import ScriptTransport, donor, receivers

log = logging.getLogger(__name__)

JOIN_TIMEOUT_S = 30.0
REASON_CHARS_MAX = 2000

LoadFn = Callable[[Any], None]
StateFn = Callable[[], Any]
COPY_BYTES_MAX = 64 << 30
USER, OWN, TRANSPORT, PASSED = "user", "torchft", "transport", "passed"

AskPlace = Callable[[Quorum, int, Callable[[], bool], float], str]
"""Asks the donors of a quorum for their place at a step: (quorum, step, is_over, timeout_s)."""


class StateUnread(UserError):
    """A state function of the script has raised; the text names its key."""


class Worker(Protocol):
    """The worker that owns the state: its engine. From any thread."""

    machine: StepMachine

    def feed(self, event: Event) -> None:
        """Process a StateLoaded or HealFailed."""

    def die(self, error: Exception) -> None:
        """End the worker: one of the script's functions has raised this in another thread."""

    def may_overwrite(self, tag: Tag) -> bool:
        """Whether the script's own memory may be overwritten now."""

    def look_up(self, question: PeerQuestion, timeout_s: float) -> bytes | None:
        """The answer to a peer's question; None: not known yet."""


class Healing:
    """State functions by key, the server that peers heal from, and the current fetch.

    ``serves_between_steps``: only the training thread may call the script's state functions.
    """

    def __init__(
        self,
        context: WorkerContext,
        own_state: StateFn,
        timeout_s: float,
        in_place: bool = True,
        transport: ScriptTransport | None = None,
    ) -> None:
        self.fetched: FetchedState | None = None
        self.ask_place: AskPlace | None = None
        """Asks the donors for their place in the script; None: states come without a place."""
        self.place = ""
        """The donors' place for the state that was applied last."""
        self._unlike: set[str] = set()  # paths
        self._fetched_place = ""
        self.is_loading = False
        self.applying = threading.Lock()
        """Held while a state is applied, so that no other fetch begins to overwrite it."""
        self._in_place = in_place and transport is None
        self._transport = transport
        self._one_donor = False
        self.serves_between_steps = False
        self._is_still = False  # the script does not change what is served
        self._training_thread = threading.get_ident()
        self._seen: dict[
            str, Any
        ] = {}  # the last state read in the training thread, if only it may read
        self._optimizers: WeakSet[torch.optim.Optimizer] = WeakSet()
        self._arrivals = Arrivals()
        self._fetching: threading.Thread | None = None
        self._context = context
        self._own_state = own_state
        self._timeout_s = timeout_s
        self._functions: dict[str, tuple[LoadFn, StateFn]] = {}
        self._has_begun = False
        self.passes = Passes(keeps=context.min_replicas == context.replicas > 1)
        self._readable = True
        self.is_unread = False
        """The script does not hold the state that it has claimed (resuming.py): no offer yet."""
        self._in_forward = False  # True if the main thread may be in a forward pass
        self._offer: OfferState | None = None
        self._offer_waits = False
        self._cancel = threading.Event()
        self._lock = threading.RLock()  # guards the offer and ``fetched``
        self._server = StateServer(context.host, context.token, tls=context.heal_tls)

    @property
    def endpoint(self) -> Endpoint:
        """The addresses at which peers reach this worker."""
        return Endpoint(self._context.host, self._server.address, self._server.certificate)

    def connect(self, worker: Worker) -> None:
        """Connect with the engine. Called once, before any other thread uses this object."""
        self._worker = worker
        self._server.look_up = worker.look_up

    def register(
        self, key: str, load: LoadFn, state: StateFn, on_training_thread: bool = False
    ) -> None:
        """Add the state functions of ``key``.

        ``on_training_thread``: call ``state`` only in the training thread, between two steps.

        The functions are not called before the first step, because many scripts make the Manager
        before the model that the functions use.

        Raises:
            UserError: the key is taken; or, after the first step has begun, the state cannot be
                sent.
        """
        if key in self._functions:
            raise UserError(f"state functions for {key!r} are registered twice: use another key")
        if self._has_begun and self._transport is None:
            validate({key: state()})
        self._functions[key] = (load, state)
        self.serves_between_steps = self.serves_between_steps or on_training_thread

    def read_on_training_thread(self) -> None:
        """Call all state functions only in the training thread, because they change what a pass
        computes."""
        self.serves_between_steps = True

    def from_one_donor(self) -> None:
        """Heal from one donor alone, because parts of two donors' states do not fit together."""
        self._one_donor = True

    def begin(self) -> None:
        """Check, at the first step, that all registered state can be sent.

        Raises:
            UserError: some cannot; key and path are named.
        """
        if self._has_begun:
            return
        self._training_thread = threading.get_ident()
        self._seen = {key: state() for key, (_, state) in self._functions.items()}
        if self._transport is None:
            validate(self._seen)
        if not self.serves_between_steps:
            self._seen = {}
        self._has_begun = True

    def watch_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Heal the tensors of ``optimizer`` in place. It alone may write to them, in committed
        steps."""
        self._optimizers.add(optimizer)

    def heal_unlike(self, key: str) -> None:
        """Do not compare the state of this key: replicas may differ in it."""
        self._unlike.add(f".{USER}.{key}")

    def keys(self) -> tuple[str, ...]:
        return tuple(self._functions)

    def tree(self) -> dict[str, Any]:
        """All state as one tree. Outside the training thread, the last one read if only that may
        read."""
        user = dict(self._seen) if self._is_elsewhere else self._read()
        return {USER: user, OWN: self._own_state()}

    def _read(self) -> dict[str, Any]:
        """The state that the script's functions return.

        Raises:
            StateUnread: one of them has raised.
        """
        user = {}
        for key, (_, state) in self._functions.items():
            try:
                user[key] = state()
            except Exception as error:
                raise StateUnread(
                    f"the script's state function of key {key!r} raised {type(error).__name__}: "
                    f"{error}"
                ) from error
        return user

    def _comparable(self) -> dict[str, Any]:
        tree = self.tree()
        user = {key: x for key, x in tree[USER].items() if f".{USER}.{key}" not in self._unlike}
        return {**tree, USER: user}

    def apply(self) -> str | None:
        """Give the fetched state to the script's functions. In the main thread.

        Returns:
            The reason why the script does not hold that state now; None if it does.
        """
        fetched = self.fetched
        assert fetched is not None, "applies a state that has not arrived"
        self.fetched, self.place = None, self._fetched_place
        self._arrivals = Arrivals()
        user = fetched.tree[USER]
        missing = sorted(self._functions.keys() - user.keys())
        if missing:
            raise UserError(
                f"the replicas that this one heals from have no state for {', '.join(missing)}: "
                "register the same keys in all replicas, before the first step"
            )
        self.is_loading = True
        try:
            for key, (load, state) in self._functions.items():
                try:
                    load(user[key])
                except Exception as error:
                    explain(error, key, state, user[key], fetched.donors)
                    raise
        finally:
            self.is_loading = False
        if self._is_still:
            self._see()
        if PASSED in fetched.tree and bool(fetched.tree[PASSED]):
            self.passes.heal_after(leaves_of(user))
        spoiled = [leaf.path for leaf in fetched.overwritten if not leaf.is_whole]
        if not spoiled:
            return None
        self._in_place = False
        named = spoiled[0].removeprefix(f".{USER}.")
        return (
            f"{named} was written to while its state arrived, by something else than its optimizer "
            "(a script that does so in its forward pass?): it is read into new memory from now on"
        )

    def succeed(self, state: FetchedState, place: str) -> None:
        """Apply the state of a lost worker that this process replaces; ``place``: where that
        stood."""
        self.fetched, self._fetched_place = state, place
        self.apply()

    def offer(self, order: OfferState) -> None:
        """Serve the live state until ``retire``, as soon as it may be read."""
        with self._lock:
            self._offer, self._offer_waits = order, True
        if not self._in_forward:
            self._serve()

    def retire(self, tag: Tag) -> None:
        """End an offer, because the script's state is about to change. Receivers get a copy."""
        with self._lock:
            self._offer, self._offer_waits = None, False
            try:
                self._server.retire(tag, COPY_BYTES_MAX)
                if self._transport is not None:
                    self._transport.end()
            except Exception as error:  # noqa: BLE001  # no memory, or the script's transport
                self._refuse(tag, error)

    def forward_may_run(self) -> None:
        """From now on the main thread may be in a forward pass, which changes buffers (S3)."""
        self._in_forward = True

    def step_ends(self) -> None:
        """In the training thread: the passes of the step are over, and it is not decided yet."""
        self.passes.over(lambda: leaves_of({**self._read()}))

    def forward_over(self, may_resume: bool = False) -> None:
        """In the main thread, which is in no forward pass now: serve an offer that waits.

        ``may_resume``: a forward pass may follow, because backward passes with activation
        checkpointing compute parts of the forward pass again.
        """
        self._in_forward = False
        if self._offer_waits:
            self._serve()
        self._in_forward = may_resume

    @contextlib.contextmanager
    def between_passes(self) -> Iterator[None]:
        """In the training thread, while it waits for a result: it is in no forward pass.

        The result may depend on a newcomer that heals first, so an offer must not wait for the
        result.
        """
        before = self._in_forward
        self.forward_over()
        try:
            yield
        finally:
            self._in_forward = before

    def serve_in_call(self) -> None:
        """In any thread that waits in a collective of the script's: a newcomer may have to heal
        before it can make that call."""
        if self._offer_waits and threading.get_ident() == self._training_thread:
            with self.between_passes():
                pass

    def quorum_stands(self) -> None:
        """In the training thread, before its forward pass: serve an offer that only it may read."""
        if self.serves_between_steps and self._offer_waits:
            self._serve()

    def keep_still(self) -> None:
        """In the training thread, between two steps: any thread may serve the state from now on.

        This holds until the next step; at the script's end there is none. The training thread may
        now wait for peers that have to heal first, and could not serve them itself.
        """
        if self.serves_between_steps:
            self._see()
        self.forward_over()

    def moves_on(self) -> None:
        """In the training thread, before a step: the script's state changes again."""
        self._is_still = False

    def _see(self) -> None:
        self._is_still = False
        try:
            self._seen = self._read()
            self._is_still = True
        except StateUnread as error:
            log.warning("%s between two steps", error)

    @property
    def _is_elsewhere(self) -> bool:
        """Whether this thread may not call the script's state functions."""
        return self.serves_between_steps and threading.get_ident() != self._training_thread

    def allow_read(self, allowed: bool) -> None:
        """Allow or forbid reads of the script's state, which is in no forward pass at this call.

        With False, returns only when no thread reads any more.
        """
        with self._lock:
            self._readable = allowed
            if allowed:
                self._serve()
            elif self._offer is not None and not self._offer_waits:
                self.retire(self._offer.tag)

    def _serve(self) -> None:
        """Serve a waiting offer if it may be read. An error affects only its receivers."""
        with self._lock:
            order = self._offer
            try:
                self._serve_if_readable()
            except Exception as error:  # noqa: BLE001  # whatever the script's own functions raise
                assert order is not None, "serves nothing"
                self._refuse(order.tag, error)

    def _refuse(self, tag: Tag, error: Exception) -> None:
        """Refuse to serve a state. This replica trains on: it may be the last that holds the job's
        state."""
        what = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        reason = f"Replica {self._context.replica_id} cannot give its state to others: {what}"
        self._server.refuse(tag, reason)
        log.error("%s. It trains on, and refuses those that want to heal from it", reason)
        log.debug("the error in serving:", exc_info=error)

    def _serve_if_readable(self) -> None:
        order = self._offer
        if order is None or not self._offer_waits or not self._readable or self.is_unread:
            return
        if self._is_elsewhere and not self._is_still:
            return  # see quorum_stands
        self._offer_waits = False
        tree = self.tree()
        if self.serves_between_steps:
            self._seen = tree[USER]
        passed = torch.tensor([self.passes.has_passed()], dtype=torch.uint8)
        copied = {**self.passes.stills(), passed.data_ptr(): passed}
        if self._transport is not None:
            tree = self._send(self._transport, order.tag.step, tree)
        else:
            tree[PASSED] = passed
        terms = (order.receivers, copied, self._unlike)
        self._server.offer(order.tag, order.state, tree, *terms, kept=order.kept)

    def _send(self, transport: ScriptTransport, step: int, tree: dict[str, Any]) -> dict[str, Any]:
        """Let the script's transport send ``tree``. Returns what ftrun serves instead."""
        quorum, key = self._worker.machine.in_force, self._context.key
        if quorum is not None:
            transport.send(receivers(quorum, key.replica_id), step, tree)
        return {USER: {}, OWN: tree[OWN], TRANSPORT: transport.metadata()}

    def load(self, order: LoadState) -> None:
        """Fetch a state in the background. StateLoaded or HealFailed follows."""
        endpoints = self._donors(order.quorum)
        if self._transport is not None or self._one_donor:
            key = self._context.key
            rank = order.quorum.index(key.replica_id, key.incarnation)
            assert rank is not None, "heals in a quorum that it is not in"
            own = donor(order.quorum, rank)
            others = {} if self._transport is not None else endpoints
            endpoints = {own: endpoints[own], **others}
        donors = {endpoint.heal: donor for donor, endpoint in endpoints.items()}
        shown = {endpoint.heal: endpoint.heal_certificate for endpoint in endpoints.values()}
        fetching = _Fetch(order, donors, shown if self._context.heal_tls else None)
        with self._lock:
            self._cancel.set()
            self._cancel = fetching.cancel
            self.fetched = None
            before = self._fetching
            self._fetching = thread = threading.Thread(
                target=self._load, args=(fetching, before), name="ftrun-heal", daemon=True
            )
        thread.start()

    def progress(self) -> HealProgress | None:
        """How much of a state has arrived that is not applied yet; None: no heal is in progress.

        From any thread, and without the lock, because ``retire`` may hold it while it copies.
        """
        fetching, to = self._fetching, self._arrivals.destination
        if self.fetched is None and (fetching is None or not fetching.is_alive()):
            return None
        return HealProgress(0) if to is None else HealProgress(to.arrived_bytes, to.layout.nbytes)

    def close(self) -> None:
        self._cancel.set()
        self._server.close()
        if self._transport is not None:
            self._transport.close()

    def _load(self, order: _Fetch, before: threading.Thread | None) -> None:
        if before is not None:
            before.join(JOIN_TIMEOUT_S)  # both threads may write to the same memory
        try:
            fetched = self._fetch(order)
            if self._transport is not None:
                fetched = self._receive(self._transport, order, fetched)
            place = self._ask_place(order)
        except PeerError as error:
            if not order.cancel.is_set():
                log.warning("heal for %s failed: %s", order.tag, error)
            is_refused = isinstance(error, NoneServes)
            self._worker.feed(HealFailed(order.tag, str(error)[:REASON_CHARS_MAX], is_refused))
            return
        except Exception as error:  # noqa: BLE001
            # The state cannot be rebuilt here, or one of the script's functions has raised.
            self._worker.die(error)
            return
        with self._lock:
            if order.cancel.is_set():
                return  # another state is being fetched, which this one must not replace
            donors = tuple(order.donors[d] for d in fetched.donors)
            for address, why in fetched.unlike.items():
                log.warning("healed without replica %s: %s", order.donors[address], why)
            self.fetched = replace(fetched, donors=donors)
            self._fetched_place = place
        self._worker.feed(StateLoaded(order.tag, fetched.state_id))

    def _fetch(self, order: _Fetch) -> FetchedState:
        """Fetch from all donors at once, or from the first one that can serve its state.

        Raises:
            PeerError: as ``fetch``.
        """
        mine = self._comparable() if self._transport is None else None
        refusals = []
        for donors in [[x] for x in order.donors] if self._one_donor else [[*order.donors]]:
            try:
                return fetch(
                    donors,
                    order.tag,
                    self._context.token,
                    self._timeout_s,
                    mine=mine,
                    cancel=order.cancel,
                    expected=order.load.quorum.state,
                    overwrite=self._overwrite(order),
                    arrivals=self._arrivals,
                    certificates=order.certificates,
                    catches_up=order.load.catches_up,
                    unlike=self._unlike,
                )
            except NoneServes as error:
                refusals.append(str(error))
        raise NoneServes("; ".join(refusals))

    def _ask_place(self, order: _Fetch) -> str:
        """The donors' place, if the script has one; "" at step 0, where all stand at the beginning.

        A replica that only catches up keeps its own place. Its donors may wait for it before their
        next step, as in an evaluation, and so before they could answer.

        Raises:
            PeerError: they do not answer.
        """
        if self.ask_place is None or order.tag.step == 0 or order.load.catches_up:
            return ""
        return self.ask_place(
            order.load.quorum, order.tag.step, order.cancel.is_set, self._timeout_s
        )

    def _receive(
        self, transport: ScriptTransport, order: _Fetch, small: FetchedState
    ) -> FetchedState:
        """Receive the state from the donor's transport; ``small`` has its address.

        Raises:
            PeerError: it could not be received.
        """
        [replica_id] = order.donors.values()
        rank = [m.replica_id for m in order.load.quorum.members].index(replica_id)
        metadata = small.tree.get(TRANSPORT)
        if not isinstance(metadata, str):
            raise PeerError(f"replica {replica_id} has no checkpoint_transport, and this one has")
        tree = transport.receive(rank, metadata, order.tag.step)
        return replace(small, tree={**tree, OWN: small.tree[OWN]})

    def _overwrite(self, order: _Fetch) -> Overwrite | None:
        """Which of the script's memory may be overwritten, and when; None: none."""
        if not (self._in_place and order.load.in_place and self._readable):
            return None
        own = set(self._stepped_memory())

        def allows(leaf: Leaf) -> bool:
            data = leaf.data
            return isinstance(data, torch.Tensor) and (data.data_ptr(), data.numel()) in own

        def begins() -> bool:
            with self.applying:
                return not order.cancel.is_set() and self._worker.may_overwrite(order.tag)

        return Overwrite(allows, begins)

    def _stepped_memory(self) -> Iterator[tuple[int, int]]:
        """Address and length in bytes of each tensor that the optimizers step."""
        for optimizer in tuple(self._optimizers):
            batched = [list(state.values()) for state in optimizer.state.values()]
            stepped = [p for group in optimizer.param_groups for p in group["params"]]
            for tensor in [*(p for p in stepped if p.requires_grad), *chain.from_iterable(batched)]:
                if isinstance(tensor, torch.Tensor):
                    local = local_of(tensor).detach()
                    yield local.data_ptr(), local.nbytes

    def _donors(self, quorum: Quorum) -> dict[str, Endpoint]:
        """The donors' endpoints for this worker's group_rank, by replica_id."""
        rank = self._context.group_rank
        members = (q for q in quorum.members if q.replica_id in quorum.donors)
        return {member.replica_id: member.endpoints[rank] for member in members}


@dataclass(frozen=True, slots=True)
class _Fetch:
    """One order to load a state.

    ``donors``: replica_id by address. ``certificates``: the certificate that each must present;
    None: no TLS.
    """

    load: LoadState
    donors: dict[str, str]
    certificates: dict[str, str] | None
    cancel: threading.Event = field(default_factory=threading.Event)

    @property
    def tag(self) -> Tag:
        return self.load.tag
