"""The script's state as it heals: gathered for peers, fetched from them, given to the script.

Not here: bytes on the wire (checkpoint/), when and from whom (core/step.py, membership).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from ftrun.checkpoint.format import validate
from ftrun.checkpoint.heal import FetchedState, fetch
from ftrun.checkpoint.serve import StateServer
from ftrun.core.ids import StateId, Tag
from ftrun.core.messages import Endpoint, Quorum
from ftrun.core.step_events import Event, HealFailed, StateLoaded
from ftrun.errors import PeerError, UserError
from ftrun.training.context import WorkerContext

log = logging.getLogger(__name__)

LoadFn = Callable[[Any], None]
StateFn = Callable[[], Any]
COPY_BYTES_MAX = 64 << 30
USER, OWN = "user", "torchft"


class Healing:
    """State functions by key, the server that peers heal from, and the fetch under way."""

    def __init__(self, context: WorkerContext, own_state: StateFn, timeout_s: float) -> None:
        self.fetched: FetchedState | None = None
        self._context = context
        self._own_state = own_state
        self._timeout_s = timeout_s
        self._functions: dict[str, tuple[LoadFn, StateFn]] = {}
        self._buffers: list[torch.Tensor] = []
        self._readable = True
        self._waiting_offer: tuple[Tag, StateId, int] | None = None
        self._cancel = threading.Event()
        self._offered: Tag | None = None
        self._lock = threading.RLock()  # what is offered, what was fetched
        self._server = StateServer(context.host, context.token)

    @property
    def endpoint(self) -> Endpoint:
        """Where this worker's peers reach it."""
        return Endpoint(self._context.host, self._server.address)

    def register(self, key: str, load: LoadFn, state: StateFn) -> None:
        """Add what travels under ``key``.

        Raises:
            UserError: the key is taken, or its state cannot be carried (the path is named).
        """
        if key in self._functions:
            raise UserError(f"state functions for {key!r} are registered twice: use another key")
        validate({key: state()})
        self._functions[key] = (load, state)

    def watch_buffers(self, module: torch.nn.Module) -> None:
        """Its forward pass changes its buffers: peers get what they held when they were offered."""
        for part in module.modules():
            for name, buffer in part._buffers.items():
                if buffer is not None and name not in part._non_persistent_buffers_set:
                    self._buffers.append(buffer)

    def tree(self) -> dict[str, Any]:
        """All state as one tree."""
        user = {key: state() for key, (_, state) in self._functions.items()}
        return {USER: user, OWN: self._own_state()}

    def apply(self) -> FetchedState:
        """Give the fetched state to the script's functions. In the main thread."""
        fetched = self.fetched
        assert fetched is not None, "applies a state that has not arrived"
        self.fetched = None
        user = fetched.tree[USER]
        missing = sorted(self._functions.keys() - user.keys())
        if missing:
            raise UserError(
                f"the replicas that this one heals from have no state for {', '.join(missing)}: "
                "register the same keys in all replicas, before the first step"
            )
        for key, (load, _) in self._functions.items():
            load(user[key])
        return fetched

    def offer(self, tag: Tag, state: StateId, receivers: int) -> None:
        """Serve the live state under ``tag``; later, if the script forbids to read it now."""
        with self._lock:
            if not self._readable:
                self._waiting_offer = (tag, state, receivers)
                return
            self._offered = tag
            buffers = {buffer.data_ptr() for buffer in self._buffers}
            self._server.offer(tag, state, self.tree(), receivers, copied=buffers)

    def retire(self, tag: Tag) -> None:
        """The script's state is about to change: receivers go on from a copy."""
        with self._lock:
            self._waiting_offer = self._offered = None
            self._server.retire(tag, COPY_BYTES_MAX)

    def allow_read(self, allowed: bool) -> None:
        """Whether the state may be read from other threads now. Waits for one who reads."""
        with self._lock:
            self._readable = allowed
            if not allowed and self._offered is not None:
                self.retire(self._offered)
            waiting, self._waiting_offer = self._waiting_offer, None
            if allowed and waiting is not None:
                self.offer(*waiting)

    def load(
        self,
        tag: Tag,
        quorum: Quorum,
        feed: Callable[[Event], None],
        die: Callable[[Exception], None],
    ) -> None:
        """Fetch the state for ``tag`` in the background; StateLoaded or HealFailed follows."""
        with self._lock:
            self._cancel.set()
            self._cancel = cancel = threading.Event()
        thread = threading.Thread(
            target=self._load, args=(tag, quorum, cancel, feed, die), name="ftrun-heal", daemon=True
        )
        thread.start()

    def close(self) -> None:
        """Stop serving and fetching."""
        self._cancel.set()
        self._server.close()

    def _load(
        self,
        tag: Tag,
        quorum: Quorum,
        cancel: threading.Event,
        feed: Callable[[Event], None],
        die: Callable[[Exception], None],
    ) -> None:
        try:
            fetched = fetch(
                list(self._donors(quorum)),
                tag,
                self._context.token,
                self._timeout_s,
                mine=self.tree(),
                cancel=cancel,
                expected=quorum.state,
            )
        except PeerError as error:
            if not cancel.is_set():
                log.warning("heal for %s failed: %s", tag, error)
            feed(HealFailed(tag, str(error)[:500]))
            return
        except Exception as error:  # noqa: BLE001
            # Unlike shapes, or whatever the script's own functions raise: the script must hear it.
            die(error)
            return
        names = self._donors(quorum)
        with self._lock:
            if cancel.is_set():
                return  # another one is being fetched, and must not be overwritten
            self.fetched = replace(fetched, donors=tuple(names[d] for d in fetched.donors))
        feed(StateLoaded(tag, fetched.state_id))

    def _donors(self, quorum: Quorum) -> dict[str, str]:
        """Address → replica_id of those who hold the state, for this worker's group_rank."""
        rank = self._context.group_rank
        members = (q for q in quorum.members if q.replica_id in quorum.donors)
        return {member.endpoints[rank].heal: member.replica_id for member in members}
