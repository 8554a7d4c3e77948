"""The Manager, which training scripts call: torchft's names and arguments, ftrun's protocol.

A script written for torchft runs unchanged (torchft/).

Not here: any decision (core/worker/machine.py), the flow of a step (step_flow.py), threads
(engine.py).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from enum import Enum
from operator import attrgetter
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp, Work

from ftrun.base.errors import UserError
from ftrun.core.ids import StateId, fresh_lineage
from ftrun.core.messages import LeaveReason, Roster
from ftrun.core.worker import events as e
from ftrun.process_groups.adapted import adapt, name_ranks, own_error
from ftrun.process_groups.built import FinishedWork
from ftrun.training import launcher_arguments, seats
from ftrun.training.context import stop_requested
from ftrun.training.event_loggers import COMMITS, ERRORS, QUORUMS
from ftrun.training.exchanged_tensors import AVERAGE_OF_INTEGERS
from ftrun.training.futures import BoundedFuture
from ftrun.training.healing import Healing, LoadFn, StateFn
from ftrun.training.leaving import Drained
from ftrun.training.lingering import Parted, linger
from ftrun.training.quantized_reductions import QuantizedReduction, quantized_kind
from ftrun.training.reductions import Batch, ManagedWork, Reduction
from ftrun.training.script_transport import own_transport
from ftrun.training.session import Session
from ftrun.training.step_errors import ExceptionWithTraceback
from ftrun.training.step_flow import Choices

__all__ = ["Drained", "Manager", "WorldSizeMode"]

log = logging.getLogger(__name__)

DEFAULT_TIMEOUT = timedelta(seconds=60)
DEFAULT_KEY = "default"
LATER_KEY = "set_state_dict_fns"


class WorldSizeMode(Enum):
    """How many replicas of the quorum contribute.

    DYNAMIC: every replica of the quorum contributes. FIXED_WITH_SPARES: ``min_replica_size``
    replicas contribute. The others are spares: they add zeros, and replace lost replicas.
    """

    DYNAMIC = 0
    FIXED_WITH_SPARES = 1


class Manager:
    """One worker's part in a job that survives the death of other workers, step by step.

    Args:
        pg: the process group across replica groups; ftrun builds one group per quorum with it. One
            of ftrun's, or a torchft wrapper of such a group (process_groups/adapted.py).
        load_state_dict, state_dict: the script's state, for healing; first called at the first
            ``start_quorum``. ``register_state_dict_fn`` adds more.
        min_replica_size: a step with fewer contributors is not committed. The launcher knows this
            number, and waits for more replicas instead of training with fewer.
        use_async_quorum: a newcomer heals during its first forward and backward pass and adds
            zeros; False: it heals before its forward pass and counts at once.
        timeout: deadline of an operation, and of a heal; default: 60 s. TORCHFT_TIMEOUT_SEC
            overrides it. If either is given, a step is given up if its results take longer than
            this time plus ``quorum_timeout``, and ``errored()`` returns the error.
        quorum_timeout: deadline of a quorum in ``start_quorum``. TORCHFT_QUORUM_TIMEOUT_SEC
            overrides it.
        connect_timeout: deadline for the workers of this replica group to connect, and of a vote.
            TORCHFT_CONNECT_TIMEOUT_SEC overrides it.
        world_size_mode: DYNAMIC, or FIXED_WITH_SPARES (``min_replica_size`` contributors).
        init_sync: False promises that all replicas start with equal weights.
        max_retries: consecutive steps that may fail before ``should_commit`` raises.
        repair: "reissue" keeps a step that a death interrupts; "discard" computes it again, which
            saves a buffer of the gradients' size.
        heal_in_place: a newcomer reads what its optimizer steps straight into its own memory while
            it computes its first pass, which does not count; False: into new memory, which costs a
            copy of the state and time.
        rank, world_size: must equal the launcher's values; others are refused.
        replica_id: the script's name of this replica group, in the records of event_loggers.py.
        lighthouse_addr: in a program that ftrun did not start: the lighthouse of its threads, each
            of which is a rank of a replica group (seats.py). Then ``replica_id``, ``rank`` and
            ``world_size`` identify the thread, and its group meets at ``store_addr``,
            ``store_port``.
        checkpoint_transport: an object of a script's own class transfers the states of heals. In
            place of an HTTPTransport or PGTransport, ftrun uses its own transfer, which is the
            default.
        port, hostname, heartbeat_interval, quorum_retries: no effect, and a warning says so. In a
            worker of ftrun the same holds for store_addr, store_port and lighthouse_addr.

    A ``timeout`` that a call states includes all of its phases. The timeouts above do not count
    time without a lighthouse: the agent asks the script to stop after ``--lighthouse-timeout``. A
    reduction that times out is retried if no ``timeout`` is given, or while a peer has announced a
    pause. The retries end when the peer comes, or when the launcher finds that it hangs
    (docs/HANGS.md).

    Raises:
        UserError: not started by ftrun and no lighthouse for threads, or an argument contradicts
            the launcher.
        ValueError: ``pg`` cannot be reconfigured.
        PeerError: the agent, or the lighthouse for threads, cannot be reached.
    """

    quorum_logger, commits_logger, errors_logger = QUORUMS, COMMITS, ERRORS  # torchft's names

    def __init__(
        self,
        pg: dist.ProcessGroup,
        load_state_dict: LoadFn | None = None,
        state_dict: StateFn | None = None,
        min_replica_size: int = 1,
        use_async_quorum: bool = True,
        timeout: timedelta | None = None,
        quorum_timeout: timedelta = DEFAULT_TIMEOUT,
        connect_timeout: timedelta = DEFAULT_TIMEOUT,
        rank: int | None = None,
        world_size: int | None = None,
        world_size_mode: WorldSizeMode = WorldSizeMode.DYNAMIC,
        store_addr: str | None = None,
        store_port: int | None = None,
        lighthouse_addr: str | None = None,
        replica_id: str | None = None,
        port: int | None = None,
        hostname: str | None = None,
        heartbeat_interval: timedelta | None = None,
        checkpoint_transport: Any | None = None,
        init_sync: bool = True,
        max_retries: int | None = None,
        quorum_retries: int = 0,
        *,
        repair: str = "reissue",
        heal_in_place: bool = True,
    ) -> None:
        factory = adapt(pg)
        if repair not in ("reissue", "discard"):
            raise UserError(f"repair={repair!r}: choose 'reissue' or 'discard'")
        if (load_state_dict is None) != (state_dict is None):
            raise UserError("give both load_state_dict and state_dict, or neither")
        spares = world_size_mode == WorldSizeMode.FIXED_WITH_SPARES
        stated_s = launcher_arguments.stated_seconds(launcher_arguments.TIMEOUT_SEC_ENV, timeout)
        self._timeout_s = DEFAULT_TIMEOUT.total_seconds() if stated_s is None else stated_s
        quorum_timeout_s = launcher_arguments.seconds_of(
            launcher_arguments.QUORUM_TIMEOUT_SEC_ENV, quorum_timeout
        )
        connect_timeout_s = launcher_arguments.seconds_of(
            launcher_arguments.CONNECT_TIMEOUT_SEC_ENV, connect_timeout
        )
        self._use_async_quorum = use_async_quorum  # torchft's name: scripts' own local SGD reads it
        self._batch: Batch | None = None
        self._error: ExceptionWithTraceback | None = None
        asked = seats.SeatAsked(
            lighthouse_addr=lighthouse_addr,
            replica_id=replica_id,
            rank=rank,
            world_size=world_size,
            store_addr=store_addr,
            store_port=store_port,
            min_replicas=min_replica_size,
            timeout_s=connect_timeout_s,
        )
        seat = seats.take(asked)
        with seats.given_back_on_error(seat):
            context = seat.context
            launcher_arguments.refuse_contradictions(context, rank, world_size)
            launcher_arguments.show_unused(
                seat,
                store_addr=store_addr,
                store_port=store_port,
                lighthouse_addr=lighthouse_addr,
                port=port,
                hostname=hostname,
                heartbeat_interval=heartbeat_interval,
                quorum_retries=quorum_retries,
            )
            launcher_arguments.show_unread(seat)
            name = replica_id or context.replica_id
            name_ranks(pg, name, context.group_rank, context.workers_per_replica)
            choices = Choices(
                name,
                min_replica_size,
                spares=spares,
                repairs=repair == "reissue",
                heals_first=not use_async_quorum,
                init_sync=init_sync,
                timeout_s=self._timeout_s,
                gives_up_s=None if stated_s is None else stated_s + quorum_timeout_s,
                quorum_timeout_s=quorum_timeout_s,
                connect_timeout_s=connect_timeout_s,
                max_retries=max_retries,
            )
            transport = own_transport(checkpoint_transport, self._timeout_s)
            healing = Healing(context, self.state_dict, self._timeout_s, heal_in_place, transport)
            if load_state_dict is not None and state_dict is not None:
                healing.register(DEFAULT_KEY, load_state_dict, state_dict)
            self._session = Session(seat, factory, choices, healing, own_error(pg))

    session: Session = property(  # type: ignore[assignment]  # in C: hooks read it in each step
        attrgetter("_session"),
        doc="The inner door, for ftrun's own DDP, optimizers, samplers and Join.",
    )

    # ------------------------------------------------------------ state

    def register_state_dict_fn(
        self,
        key: str,
        load_state_dict: LoadFn,
        state_dict: StateFn,
        state_dict_on_training_thread: bool = False,
    ) -> None:
        """Add state that heals with this replica, under a key.

        ``state_dict_on_training_thread``: call ``state_dict`` only in the training thread, between
        two steps; for states that must not be read during a forward pass (FSDP2).

        Raises:
            UserError: the key is taken; or, after the first step has begun, the state holds an
                object that cannot be sent (named by path).
        """
        self._session.healing.register(
            key, load_state_dict, state_dict, state_dict_on_training_thread
        )

    def watch_buffers(self, module: torch.nn.Module) -> None:
        """Serve the module's buffers to peers as they are between two forward passes.

        For modules without ftrun's DistributedDataParallel, which calls this itself.
        """
        self._session.healing.passes.watch(module)

    def set_state_dict_fns(self, load_state_dict: LoadFn, state_dict: StateFn) -> None:
        """torchft's older name for ``register_state_dict_fn``; adds to the constructor's state."""
        self.register_state_dict_fn(LATER_KEY, load_state_dict, state_dict)

    def allow_state_dict_read(self) -> None:
        """Allow peers to read the state again."""
        self._session.healing.allow_read(True)

    def disallow_state_dict_read(self) -> None:
        """Forbid peers to read the state, because it is being changed, until
        ``allow_state_dict_read``."""
        self._session.healing.allow_read(False)

    def state_dict(self) -> dict[str, Any]:
        """The Manager's own state, for the script's checkpoint."""
        state = self._session.machine.state
        batches = self._session.progress.batches
        return {"step": state.step, "batches_committed": batches, "lineage": state.lineage}

    def _manager_state_dict(self) -> dict[str, Any]:
        """torchft's name for all state that heals: the registered state, and the Manager's own."""
        return self._session.healing.tree()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from a checkpoint. Call it before the first step; ``lineage`` may be missing.

        The call has no effect inside a function that loads a state to heal with, because the
        Manager's own state heals by itself. It has none if this replica trains from that state
        already.
        """
        session = self._session
        if session.healing.is_loading:
            return
        step, lineage = int(state_dict["step"]), state_dict.get("lineage")
        state = session.machine.state
        if session.machine.begun and StateId(step, lineage or state.lineage) == state:
            return
        lineage = lineage or fresh_lineage(session.here.key.incarnation)
        session.progress.batches = int(state_dict["batches_committed"])
        session.engine.feed(e.StateReset(StateId(step, lineage)))

    # ------------------------------------------------------------ a step

    def start_quorum(
        self, allow_heal: bool = True, shrink_only: bool = False, timeout: timedelta | None = None
    ) -> None:
        """Begin a step: at once while the quorum stays in force, otherwise with the next quorum.

        ``allow_heal=False`` or ``shrink_only=True``: no replica joins at this step.

        Raises:
            TimeoutError: no quorum, or no state to heal from before the forward pass, within
                ``timeout`` (default: ``quorum_timeout``; at the first step at least the launcher's
                ``--join-timeout``).
            UserError: this Manager has left the job; or, at the first step, the registered state
                cannot be sent.
            Drained: this replica was asked to leave and has left.
        """
        timeout_s = timeout.total_seconds() if timeout else None
        self._session.begin(shrink_only or not allow_heal, timeout_s)

    @property
    def stop_requested(self) -> bool:
        """Whether this worker was asked to stop: ``Drained`` follows at the next boundary.

        A script may end its loop by itself instead. Same as ``ftrun.stop_requested()``.
        """
        return stop_requested()

    def wait_quorum(self) -> None:
        """Does nothing: ``start_quorum`` has already waited for the quorum of this step."""

    def allreduce(
        self,
        tensor: torch.Tensor,
        should_quantize: bool | str = False,
        reduce_op: Any = ReduceOp.AVG,
    ) -> Work:
        """Reduce ``tensor`` in place over the contributors. AVG divides by their number.

        Never raises because a peer fails, or because a tensor or an operation cannot be reduced:
        ``errored`` returns the error, and no replica commits the step.

        ``should_quantize``: send 8 bits for each value: "int8" (same as True) or "fp8". All
        replicas get the same result. process_groups/quantized.py bounds its error.

        Raises:
            UserError: ``should_quantize`` names no kind, or no step has begun.
            ValueError: an average of integers.
        """
        is_average = reduce_op == ReduceOp.AVG and isinstance(tensor, torch.Tensor)
        if is_average and not tensor.is_floating_point():
            raise ValueError(AVERAGE_OF_INTEGERS)
        session, batch = self._session, self._batch
        batched = batch is not None
        kind = quantized_kind(should_quantize) if should_quantize else ""
        try:
            if kind:
                reduction: Reduction = QuantizedReduction(tensor, reduce_op, kind, batched=batched)
            else:
                keep = session.choices.repairs
                reduction = Reduction(
                    tensor, reduce_op, keep=keep, batched=batched, copies=session.copies
                )
        except Exception as error:  # noqa: BLE001  # whatever torch raises about the tensor
            self._refuse(error)
            return FinishedWork(tensor)
        if batch is None:
            session.issue(reduction)
        else:
            batch.add(reduction)
        return ManagedWork(reduction, self.report_error, batch, session.healing.between_passes)

    def _refuse(self, error: Exception) -> None:
        """Refuse an operation that cannot be carried out: no replica commits the step."""
        self._session.require_step()
        self.report_error(error)
        self._session.engine.feed(e.OperationRefused(f"{type(error).__name__}: {error}"))

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Give the reductions of this block their results together, when the last one is done.

        If a replica dies before that, all of them are reduced again among the survivors, and no
        work is lost. (Without a batch results arrive one by one, and a step in which one has
        arrived cannot be repaired.) The reductions go out at once; wait for them after the block.

        Raises:
            UserError: a batch is open already, or no step has begun.
        """
        self._session.require_step()
        if self._batch is not None:
            raise UserError("a batch of reductions is open: end its block before the next one")
        self._batch = batch = Batch(self._session.issue)
        try:
            yield
        finally:
            self._batch = None
            batch.close()

    def should_commit(
        self, timeout: timedelta | None = None, *, forgoes: str = "", all_forgo: bool = False
    ) -> bool:
        """Whether the optimizer may step. The same answer on all ranks of a replica group (C1).

        ``forgoes``: the reason why this replica does not commit the step, though others may; it
        heals from them at its next step. ``all_forgo``: no replica commits it, for the same reason.

        Raises:
            RuntimeError: more than ``max_retries`` steps in a row were not committed.
            TimeoutError: the results did not come within ``timeout``.
            UserError: no step has begun, or a batch is open.
        """
        if self._batch is not None:
            raise UserError("should_commit() in a batch of reductions: end its block first")
        session, step = self._session, self._session.machine.position
        timeout_s = timeout.total_seconds() if timeout else None
        committed = session.flow.decide(timeout_s, forgoes, all_forgo=all_forgo)
        session.events.decided(step, committed, session.flow.errored())
        return committed

    # ------------------------------------------------------------ outside a step

    def peers(self, timeout: timedelta | None = None) -> Roster:
        """Before this replica's first step: the replicas that train, or all expected ones.

        Raises:
            TimeoutError: not all expected replicas are there within ``timeout`` (default: the
                launcher's ``--join-timeout``).
            Drained: this replica was asked to leave.
        """
        seats.refuse_in_threads(self._session.seat, "Manager.peers()")
        timeout_s = timeout.total_seconds() if timeout else self._session.here.quorum_timeout_s
        return self._session.exchanges.peers(timeout_s, counts_isolation=timeout is not None)

    def linger(self, timeout: timedelta = DEFAULT_TIMEOUT) -> bool:
        """At the script's end, wait for replicas that may have to heal again, and serve them.

        If the others train on from the state that this replica holds, they would wait for it too.
        Then it leaves the job at once (``session.ends_early``).

        Returns:
            True if all replicas have reached the end. False if one was still missing after
                ``timeout``
            (time without a lighthouse counts), if this replica was asked to stop, or if the others
                train
            on.
        """
        session, machine = self._session, self._session.machine
        seats.refuse_in_threads(session.seat, "Manager.linger()")
        replicas, limit_s = session.here.replicas, timeout.total_seconds()
        parts = session.engine, session.flow, session.exchanges
        parted = linger(*parts, replicas, limit_s, session.vote)
        if parted is Parted.EARLY:
            session.ends_early = True
            has_trained = machine.heal.has_committed
            session.close(LeaveReason.EARLY if has_trained else LeaveReason.LEFT)
            if not has_trained:
                raise UserError(
                    f"the script has ended at step {machine.state.step} without a step of its own, "
                    f"and the other replicas train on: replica {session.here.replica_id} has not "
                    "joined them. It restarts. Does the script end by itself if it finds the files "
                    "of its predecessor?"
                )
        return parted is Parted.TOGETHER

    # ------------------------------------------------------------ errors

    def report_error(self, e: Exception) -> None:
        """Forbid to commit the current step, because of ``e``."""
        self._session.flow.report_error(e)

    def errored(self) -> ExceptionWithTraceback | None:
        """The error of the current step; its ``original_exception`` is the exception that was
        raised."""
        error = self._session.flow.errored()
        if error is None or (self._error and self._error.original_exception is error):
            return None if error is None else self._error
        self._error = ExceptionWithTraceback(error)
        return self._error

    def wrap_future(
        self,
        fut: torch.futures.Future[Any],
        default: Any,
        timeout: timedelta | None = None,
    ) -> torch.futures.Future[Any]:
        """A future that yields ``default`` and reports the error if ``fut`` fails or times out.

        ``timeout``: default: the Manager's.
        """
        timeout_s = timeout.total_seconds() if timeout else self._timeout_s
        return BoundedFuture(fut, default, timeout_s, self.report_error).future

    # ------------------------------------------------------------ facts

    def current_step(self) -> int:
        """The current step, or the next one: the number of steps committed before it."""
        return self._session.machine.position

    def batches_committed(self) -> int:
        """The sum of contributors over all committed steps."""
        return self._session.progress.batches

    def participating_rank(self) -> int | None:
        """The rank among the contributors of this step; None for a spare or while healing."""
        return self._session.engine.in_flight.rank

    def num_participants(self) -> int:
        """The number of contributors to this step: the divisor of its averages."""
        return self._session.engine.in_flight.divisor

    def is_participating(self) -> bool:
        """Whether this replica's gradients count in this step."""
        return self._session.engine.in_flight.counts

    def contributors(self) -> tuple[str, ...]:
        """The ids of the replicas that contribute to this step, in order."""
        return self._session.engine.in_flight.contributors

    def is_healing(self) -> bool:
        """Whether this replica lacks its peers' state."""
        return self._session.machine.healing

    def log(self, **scalars: float) -> None:
        """Show scalars (``loss=0.3``) in ``ftrun status`` and the metrics, from the next commit on.

        Raises:
            UserError: more than 64 names.
        """
        self._session.progress.log(scalars)

    # ------------------------------------------------------------ the end

    def leave(self) -> None:
        """Leave the job between two steps. The others continue at once, without a loss."""
        self._session.close(LeaveReason.LEFT)

    def shutdown(self, wait: bool = True) -> None:
        """Leave because the script has finished. Also called at exit. Idempotent.

        After it the script may make another Manager: a newcomer that begins at step 0, or with the
        state of the replicas that train.
        """
        self._session.finish()
