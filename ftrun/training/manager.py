"""The Manager: what a training script calls. torchft's names and arguments, ftrun's protocol.

A script written for torchft runs as it is (torchft/).

Not here: any decision (core/worker/machine.py), the flow of a step (step_flow.py), threads
(engine.py).
"""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from enum import Enum
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp, Work

from ftrun.base.errors import PeerError, UserError
from ftrun.core.ids import SHARED_LINEAGE, StateId, fresh_lineage, later_lineage
from ftrun.core.messages import LeaveReason, Roster
from ftrun.core.worker import events as e
from ftrun.core.worker.machine import StepMachine
from ftrun.process_groups.adapted import adapt, name_ranks, own_error
from ftrun.process_groups.base import ProcessGroup
from ftrun.process_groups.built import FinishedWork
from ftrun.training import compiling, seats
from ftrun.training.batch import Batch
from ftrun.training.between_steps import BetweenSteps, Given
from ftrun.training.context import WorkerContext, stop_requested
from ftrun.training.engine import Engine
from ftrun.training.event_loggers import COMMITS, ERRORS, QUORUMS, EventLoggers
from ftrun.training.exchanged_tensors import AVERAGE_OF_INTEGERS
from ftrun.training.exchanges import Exchanges
from ftrun.training.futures import BoundedFuture
from ftrun.training.groups import Beside, Following
from ftrun.training.healing import Healing, LoadFn, StateFn
from ftrun.training.joining import Joining, Stepping
from ftrun.training.kept_inputs import KeptInputs
from ftrun.training.launcher_arguments import (
    CONNECT_TIMEOUT_SEC_ENV,
    QUORUM_TIMEOUT_SEC_ENV,
    TIMEOUT_SEC_ENV,
    refuse_contradictions,
    seconds_of,
    show_unread,
    show_unused,
    stated_seconds,
)
from ftrun.training.leaving import Drained, Leaving
from ftrun.training.lingering import Parted, linger
from ftrun.training.progress import WorkerProgress
from ftrun.training.quantized_reductions import QuantizedReduction, quantized_kind
from ftrun.training.reductions import ManagedWork, Reduction, Restore
from ftrun.training.resuming import Resuming
from ftrun.training.script_transport import own_transport
from ftrun.training.snapshots import Snapshots
from ftrun.training.step_errors import ExceptionWithTraceback
from ftrun.training.step_flow import StepFlow, StepLimits
from ftrun.training.vote import GroupVote

__all__ = ["Drained", "Manager", "WorldSizeMode"]

log = logging.getLogger(__name__)

DEFAULT_TIMEOUT = timedelta(seconds=60)
PARTING_S = 2.0
"""How long one that ends waits for members that have not got what it has exchanged last."""
DEFAULT_KEY = "default"
SAMPLER_KEY = "elastic_sampler"
LATER_KEY = "set_state_dict_fns"


class WorldSizeMode(Enum):
    """How many replicas of the quorum contribute.

    DYNAMIC: every replica of the quorum contributes.
    FIXED_WITH_SPARES: ``min_replica_size`` contribute; the others add zeros, and replace lost ones.
    """

    DYNAMIC = 0
    FIXED_WITH_SPARES = 1


class Sampled(Protocol):
    """What gives out the samples of a Manager's steps (elastic_sampler.py)."""

    def heal(self, state: dict[str, Any]) -> None:
        """Take the peers' position."""

    def state_dict(self) -> dict[str, Any]:
        """The position, for peers."""

    def weight(self) -> float:
        """The factor for what this worker adds to an average, by its samples."""

    def before_reduction(self) -> None:
        """Check, before a reduction, that its gradients are of the samples of this step."""

    def committed(self, contributors: tuple[str, ...]) -> None:
        """The step is committed, with these contributors."""


class Manager:
    """One worker's part in a job that survives the death of others, step by step.

    Args:
        pg: the process group across replica groups; ftrun builds one group per quorum with it.
            One of ftrun's, or a torchft wrapper of such a group (process_groups/adapted.py).
        load_state_dict, state_dict: the script's state, for healing; first called at the first
            ``start_quorum``. ``register_state_dict_fn`` adds more.
        min_replica_size: a step with fewer contributors is not committed. The launcher knows it,
            and waits for more replicas instead of training with fewer.
        use_async_quorum: a newcomer heals during its first forward and backward pass and adds
            zeros; False: it heals before its forward pass and counts at once.
        timeout: deadline of an operation, and of a heal, by default 60 s. TORCHFT_TIMEOUT_SEC
            counts more. If either is given, a step is given up, and ``errored()`` says so, once its
            results have been awaited for this time and ``quorum_timeout``.
        quorum_timeout: deadline of a quorum in ``start_quorum``; TORCHFT_QUORUM_TIMEOUT_SEC.
        connect_timeout: deadline for the workers of this replica group to connect, and of a vote;
            TORCHFT_CONNECT_TIMEOUT_SEC.
        world_size_mode: DYNAMIC, or FIXED_WITH_SPARES (``min_replica_size`` contributors).
        init_sync: False promises that all replicas start with equal weights.
        max_retries: steps in a row that may fail before ``should_commit`` raises.
        repair: "reissue" keeps a step that a death interrupts; "discard" computes it again and
            saves a gradient-sized buffer.
        heal_in_place: a newcomer reads what its optimizer steps straight into its own memory, while
            it computes its first pass, which does not count; False: into new memory, which costs a
            copy of the state and time.
        rank, world_size: as the launcher gives them; others are refused.
        replica_id: the script's name of this replica group, in the records of event_loggers.py.
        lighthouse_addr: in a program that ftrun did not start: the lighthouse of its threads, each
            of which is a rank of a replica group (seats.py). Then ``replica_id``, ``rank`` and
            ``world_size`` say which one, and the group meets at ``store_addr``, ``store_port``.
        checkpoint_transport: a script's own class carries the states of heals; ftrun's own transfer
            does in place of an HTTPTransport or PGTransport, and needs no choice.
        port, hostname, heartbeat_interval, quorum_retries: no effect, and a warning tells so; in a
            worker of ftrun's the same holds for store_addr, store_port and lighthouse_addr.

    A ``timeout`` that a call states holds in every phase. These here do not count the time in which
    no lighthouse answers: the agent asks the script to stop after ``--lighthouse-timeout``. A
    reduction that times out goes out again: without a ``timeout``, or while a peer has announced a
    pause, until the peer comes, or the launcher finds that it hangs (docs/HANGS.md).

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
        stated_s = stated_seconds(TIMEOUT_SEC_ENV, timeout)
        self._timeout_s = DEFAULT_TIMEOUT.total_seconds() if stated_s is None else stated_s
        quorum_timeout_s = seconds_of(QUORUM_TIMEOUT_SEC_ENV, quorum_timeout)
        connect_timeout_s = seconds_of(CONNECT_TIMEOUT_SEC_ENV, connect_timeout)
        self.use_async_quorum = use_async_quorum
        self._keeps_inputs = repair == "reissue"
        self._sampler: Sampled | None = None
        self._batch: Batch | None = None
        self._copies = KeptInputs()
        self._joining: Joining | None = None
        self._vote: GroupVote | None = None
        self._spares = spares
        self.optimizers: weakref.WeakSet[Stepping] = weakref.WeakSet()
        self._error: ExceptionWithTraceback | None = None
        self._pid = os.getpid()
        self.ends_early = False
        # Called before DDP reduces, for a script that knows no steps; False: it does not reduce.
        self.before_reduction: Callable[[], bool] = lambda: True
        self._pg = factory
        self._group_error = own_error(pg)
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
        self._seat = seats.take(asked)
        with seats.given_back_on_error(self._seat), ExitStack() as undo:
            self._context = context = self._seat.context
            refuse_contradictions(context, rank, world_size)
            show_unused(
                self._seat,
                store_addr=store_addr,
                store_port=store_port,
                lighthouse_addr=lighthouse_addr,
                port=port,
                hostname=hostname,
                heartbeat_interval=heartbeat_interval,
                quorum_retries=quorum_retries,
            )
            show_unread(self._seat)
            name = replica_id or context.replica_id
            name_ranks(pg, name, context.group_rank, context.workers_per_replica)
            transport = own_transport(checkpoint_transport, self._timeout_s)
            self._healing = Healing(
                context, self.state_dict, self._timeout_s, heal_in_place, transport
            )
            undo.callback(self._healing.close)
            if load_state_dict is not None and state_dict is not None:
                self.register_state_dict_fn(DEFAULT_KEY, load_state_dict, state_dict)
            lineage = fresh_lineage(context.key.incarnation) if init_sync else SHARED_LINEAGE
            self._before = self._seat.managers_before()
            self._machine = StepMachine(
                context.key,
                self._healing.endpoint,
                StateId(0, later_lineage(lineage, self._before)),
                workers_per_replica=context.workers_per_replica,
                repair=self._keeps_inputs,
                heal_first=not use_async_quorum,
                contributors_max=min_replica_size if spares else None,
                contributors_min=min_replica_size,
                tells_min=not self._seat.is_thread,
                operation_timeout_s=self._timeout_s,
                quorum_timeout_s=quorum_timeout_s,
                results_timeout_s=None if stated_s is None else stated_s + quorum_timeout_s,
                is_known_when_issued=factory.caller_waits,
            )
            self._progress = WorkerProgress(self._machine)
            limits = StepLimits(
                min_replica_size,
                self._timeout_s,
                quorum_timeout_s,
                # Peers may take long to their first step: the launcher knows how long the job
                # waits. They are all there when a script makes its second Manager.
                quorum_timeout_s
                if self._before
                else max(quorum_timeout_s, context.quorum_timeout_s),
                max_retries,
            )
            self._events = EventLoggers(context.job_id, name, context.group_rank)
            self._seat.claim()
            undo.callback(self._seat.release)
            if context.workers_per_replica > 1:
                self._vote = GroupVote(context, connect_timeout_s)
                undo.callback(self._vote.close)
            self._engine = Engine(context, factory, self._machine, self._healing, self._progress)
            undo.callback(self._engine.close, None)
            self._connect(limits)
            undo.pop_all()

    def _connect(self, limits: StepLimits) -> None:
        context = self._context
        self._seat.knows_place(self._engine.place)
        self._leaving = Leaving(
            self._machine, self._engine.feed, lambda: not self._healing.is_unread
        )
        self._resuming, self._snapshots = self._make_snapshots()
        self._flow = StepFlow(
            self._engine,
            self._machine,
            self._healing,
            self._progress,
            self._vote,
            limits,
            self._resuming,
            self._snapshots,
        )
        if self._group_error is not None:
            self._flow.group_errored = self._group_error
        self._exchanges = Exchanges(context, self._engine, self._leaving.if_pressed)
        self._between = BetweenSteps(self._machine, self._exchanges, self._timeout_s)
        self._engine.start()
        atexit.register(self.shutdown)
        self._seat.on_end(self._end)

    def _make_snapshots(self) -> tuple[Resuming | None, Snapshots | None]:
        context, engine = self._context, self._engine
        if not context.snapshot_dir:
            return None, None
        if self._before:
            log.warning(
                "replica %s: this is Manager %d of its script, and snapshots are of the first one "
                "only, because a job that is started again begins with that: none are taken now",
                context.replica_id,
                self._before + 1,
            )
            return None, None
        parts = engine, self._machine, self._healing, self._progress
        resuming = Resuming(context, *parts, self._vote)
        return resuming, Snapshots(
            context, self._machine, self._healing, self._progress, engine.in_flight, resuming
        )

    # ------------------------------------------------------------ state

    def register_state_dict_fn(
        self,
        key: str,
        load_state_dict: LoadFn,
        state_dict: StateFn,
        state_dict_on_training_thread: bool = False,
    ) -> None:
        """Add state that heals with this replica, under a key of its own.

        ``state_dict_on_training_thread``: ``state_dict`` is called by the thread that trains alone,
        between two steps; for states that must not be read beside a forward pass (FSDP2).

        Raises:
            UserError: the key is taken; or, after the first step has begun, the state holds what
                cannot be carried (named by path).
        """
        self._healing.register(key, load_state_dict, state_dict, state_dict_on_training_thread)

    def read_state_on_training_thread(self) -> None:
        """Call all state functions in the thread that trains, between two steps only.

        For state whose reading changes the model: FSDP2's ``state_dict`` reshards it.
        """
        self._healing.read_on_training_thread()

    def train_locally(self) -> None:
        """The replicas train by themselves between two steps (LocalSGD, DiLoCo).

        So that time is booked as training. A newcomer takes all of its state from one donor,
        because the states of two do not belong together.
        """
        self._machine.trains_between_steps = True
        self._healing.from_one_donor()

    def watch_buffers(self, module: torch.nn.Module) -> None:
        """Give peers that heal the module's buffers as they are between two forward passes.

        For modules without ftrun's DistributedDataParallel, which calls this by itself.
        """
        self._healing.passes.watch(module)

    def watch_optimizer(
        self, optimizer: torch.optim.Optimizer, wrapper: Stepping | None = None
    ) -> None:
        """Heal in place what ``optimizer`` steps; it must step committed steps only.

        For optimizers without ftrun's Optimizer, which calls this by itself, as ``wrapper``.
        """
        self._healing.watch_optimizer(optimizer)
        if wrapper is not None:
            self.optimizers.add(wrapper)

    def watch_sampler(self, sampler: Sampled, *, repairs: bool) -> None:
        """Let ``sampler`` weigh this worker's gradients, follow the commits, and heal.

        An ElasticSampler calls this by itself. ``repairs``: its batches allow to repair a step.

        Raises:
            UserError: there is one already; or a step would be repaired that must not be.
        """
        seats.refuse_in_threads(self._seat, "an ElasticSampler")
        if self._sampler is not None:
            raise UserError(
                "this Manager has an ElasticSampler already: only one dataset can be gone through "
                "once, the training set. Read others with plain loaders"
            )
        if self._keeps_inputs and not repairs:
            raise UserError(
                "a global batch must not shrink when a replica dies, so the step is computed "
                'again: make the Manager with repair="discard" (ftrun.manager() does so under '
                "--global-batch)"
            )
        self.register_state_dict_fn(SAMPLER_KEY, sampler.heal, sampler.state_dict)
        self._sampler = sampler
        self._engine.in_flight.weight = sampler.weight
        self._flow.committed = sampler.committed

    def set_state_dict_fns(self, load_state_dict: LoadFn, state_dict: StateFn) -> None:
        """torchft's older name for ``register_state_dict_fn``; beside the constructor's own."""
        self.register_state_dict_fn(LATER_KEY, load_state_dict, state_dict)

    def allow_state_dict_read(self) -> None:
        """Allow peers to read the state again."""
        self._healing.allow_read(True)

    def disallow_state_dict_read(self) -> None:
        """Forbid peers to read the state until ``allow_state_dict_read``: it is being changed."""
        self._healing.allow_read(False)

    def state_dict(self) -> dict[str, Any]:
        """The Manager's own state, for the script's checkpoint."""
        state = self._machine.state
        batches = self._progress.batches
        return {"step": state.step, "batches_committed": batches, "lineage": state.lineage}

    def _manager_state_dict(self) -> dict[str, Any]:
        """torchft's name for all that heals: the registered state, and the Manager's own."""
        return self._healing.tree()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint. Call it before the first step; ``lineage`` may be missing.

        It changes nothing in a function that loads a state to heal with, because the Manager's own
        state heals by itself; nor where the state is the one that this replica trains from.
        """
        if self._healing.is_loading:
            return
        state = self._machine.state
        known = state_dict.get("lineage") or state.lineage
        if self._machine.begun and (int(state_dict["step"]), known) == (state.step, state.lineage):
            return
        lineage = state_dict.get("lineage") or fresh_lineage(self._context.key.incarnation)
        self._progress.batches = int(state_dict["batches_committed"])
        self._engine.feed(e.StateReset(StateId(int(state_dict["step"]), lineage)))

    # ------------------------------------------------------------ a step

    def start_quorum(
        self, allow_heal: bool = True, shrink_only: bool = False, timeout: timedelta | None = None
    ) -> None:
        """Begin a step: at once while the quorum in force stays, else with the next quorum.

        ``allow_heal=False`` or ``shrink_only=True``: nobody joins at this step.

        Raises:
            TimeoutError: no quorum, or no state to heal from before the forward pass, within
                ``timeout`` (default ``quorum_timeout``, and at the first step no less than the
                launcher's ``--join-timeout``).
            UserError: this Manager has left the job; or, at the first step, the registered state
                cannot be carried.
            Drained: this replica was asked to leave and has left.
        """
        timeout_s = timeout.total_seconds() if timeout else None
        self._begin(shrink_only or not allow_heal, timeout_s)

    def begin_for_draw(self) -> None:
        """Begin a step because its batch is drawn now; ``start_quorum`` then goes on with it.

        Raises:
            TimeoutError, UserError, Drained: as ``start_quorum``.
        """
        self._begin(False, None, for_draw=True)

    def _begin(
        self, freeze_membership: bool, timeout_s: float | None, *, for_draw: bool = False
    ) -> None:
        self._engine.raise_fatal()
        if self._leaving.closed:
            raise UserError("this Manager has left the job: it begins no further step")
        if not self._machine.begun:
            if self._sampler is None:
                self._refuse_options_of_samplers()
            self._healing.begin()
            self._seat.trains(self._leaving.at_once)
        if not (freeze_membership or self._machine.in_step):
            self._seat.between_steps(self._join_is_agreed)
        self._healing.moves_on()
        begun = self._machine.begun
        if not self._flow.begin(freeze_membership, timeout_s, for_draw=for_draw):
            if self._snapshots is not None and not freeze_membership:
                self._snapshots.at_end()
            self._leaving.raise_drained()
        if self._machine.begun == begun:
            return  # begun already, because its batch was drawn
        self._between.step_begun()
        self._copies.step_begun()
        quorum = self._machine.in_force
        if quorum is not None:
            self._events.step_begins(quorum.attempt.quorum_id, self._machine.position)

    def catch_up(self) -> bool:
        """After a step that was lost here: take its result from peers that have committed it.

        Returns:
            False if that was interrupted: it is to be tried again.
        """
        self._engine.raise_fatal()
        return self._flow.catch_up()

    def keep_state(self) -> None:
        """Until the next step, peers that have lost the last one heal to what the state functions
        give now, and may need it before this replica goes on.

        For the training thread, between two steps. The functions give it until then, in any thread.
        """
        self._healing.keep_still()
        self._engine.feed(e.StateKept())

    @property
    def awaits_newcomers(self) -> bool:
        """Whether this replica prepares for others that are to join."""
        pending = self._machine.pending
        return pending is not None and bool(pending.quorum.newcomers)

    def _join_is_agreed(self) -> bool:
        pending = self._machine.pending
        return pending is not None and pending.promise is not None

    def _refuse_options_of_samplers(self) -> None:
        """No ElasticSampler was made before the first step: what it alone can keep is refused."""
        asked = self._context.options_of_samplers()
        if asked:
            raise UserError(
                f"{asked}: this script has made no ftrun.ElasticSampler before its first step, "
                "which alone can keep to it (docs/DATA.md)"
            )

    @property
    def stop_requested(self) -> bool:
        """Whether this worker was asked to stop: ``Drained`` follows at the next boundary.

        A script may end its loop by itself instead. As ``ftrun.stop_requested()``.
        """
        return stop_requested()

    def wait_quorum(self) -> None:
        """Do nothing: ``start_quorum`` has waited for the quorum of this step already."""

    def allreduce(
        self,
        tensor: torch.Tensor,
        should_quantize: bool | str = False,
        reduce_op: Any = ReduceOp.AVG,
    ) -> Work:
        """Reduce ``tensor`` in place over the contributors; AVG divides by their number.

        Never raises for a peer's failure, nor for a tensor or an operation that cannot be reduced:
        ``errored`` reports it, and no replica commits the step.

        ``should_quantize``: send 8 bits for each value: "int8" (True means this one) or "fp8". All
        replicas get the same result, whose error process_groups/quantized.py bounds.

        Raises:
            UserError: ``should_quantize`` names no kind, or no step is under way.
            ValueError: an average of integers.
        """
        is_average = reduce_op == ReduceOp.AVG and isinstance(tensor, torch.Tensor)
        if is_average and not tensor.is_floating_point():
            raise ValueError(AVERAGE_OF_INTEGERS)
        batch = self._batch
        batched = batch is not None
        kind = quantized_kind(should_quantize) if should_quantize else ""
        try:
            if kind:
                reduction: Reduction = QuantizedReduction(tensor, reduce_op, kind, batched=batched)
            else:
                reduction = Reduction(
                    tensor, reduce_op, keep=self._keeps_inputs, batched=batched, copies=self._copies
                )
        except Exception as error:  # noqa: BLE001  # whatever torch says of the tensor
            self._refuse(error)
            return FinishedWork(tensor)
        if batch is None:
            self._issue(reduction)
        else:
            batch.add(reduction)
        return ManagedWork(reduction, self.report_error, batch, self._healing.between_passes)

    def _refuse(self, error: Exception) -> None:
        """An operation of the step under way cannot be carried out: nobody commits the step."""
        self._require_step()
        self.report_error(error)
        self._engine.feed(e.OperationRefused(f"{type(error).__name__}: {error}"))

    @contextmanager
    def batch(self) -> Iterator[None]:
        """The reductions of this block get their results together, when the last one has its own.

        A death before that costs nothing: all of them are reduced again among the survivors.
        (Without a batch results come one by one, and a step in which one has come cannot be
        repaired.) They go out at once; wait for them after the block.

        Raises:
            UserError: a batch is open already, or no step is under way.
        """
        self._require_step()
        if self._batch is not None:
            raise UserError("a batch of reductions is open: end its block before the next one")
        self._batch = batch = Batch(self._issue)
        try:
            yield
        finally:
            self._batch = None
            batch.close()

    def allreduce_bucket(
        self,
        buffer: torch.Tensor,
        is_last: bool,
        restore: Restore | None,
        divided_by: int | None = None,
    ) -> torch.futures.Future[torch.Tensor]:
        """One of DDP's buckets, averaged in place; all complete together when the last one has.

        ``restore`` writes the local gradients, divided by its argument, into ``buffer`` again
        (in-step repair). ``divided_by``: the number by which they are divided now; None: the
        Manager divides. After the last bucket call ``await_buckets`` before any future's ``wait``.
        """
        self.before_reduction()
        keep = self._keeps_inputs
        joining = self.joining
        bucket = Reduction(
            buffer, ReduceOp.AVG, restore, divided_by, keep,
            batched=True, closes=is_last, awaited=True,
            counted=None if joining is None else joining.divisor,
        )  # fmt: skip
        return self._issue(bucket)

    @compiling.never
    def await_buckets(self) -> None:
        """Wait for all buckets that were issued; the repair deals with a failure."""
        self._engine.in_flight.await_batch()

    def _issue(self, reduction: Reduction) -> torch.futures.Future[torch.Tensor]:
        self._require_step()
        if self._sampler is not None:
            self._sampler.before_reduction()
        self._engine.issue(reduction)
        return reduction.future

    def _require_step(self) -> None:
        self._engine.raise_fatal()
        if not self._machine.in_step:
            raise UserError("an operation outside a step: call start_quorum() (zero_grad()) first")

    def should_commit(
        self, timeout: timedelta | None = None, *, forgoes: str = "", all_forgo: bool = False
    ) -> bool:
        """Whether the optimizer may step. The same answer on all ranks of a replica group (C1).

        ``forgoes``: the reason why this replica does not commit the step, though others may. It
        heals from them at its next one. ``all_forgo``: no replica commits it, for the same reason.

        Raises:
            RuntimeError: more than ``max_retries`` steps in a row were not committed.
            TimeoutError: the results did not come within ``timeout``.
            UserError: no step is under way, or a batch is open.
        """
        if self._batch is not None:
            raise UserError("should_commit() in a batch of reductions: end its block first")
        step = self._machine.position
        timeout_s = timeout.total_seconds() if timeout else None
        committed = self._flow.decide(timeout_s, forgoes, all_forgo=all_forgo)
        self._events.decided(step, committed, self._flow.errored())
        return committed

    def any_in_group(self, flag: bool) -> bool:
        """Whether ``flag`` is true on any rank of this replica group; all ranks must call it."""
        return flag if self._vote is None else self._vote.any(flag)

    @compiling.never
    def heal_after_backward(self) -> None:
        """Apply the peers' state now, if this replica heals, with the reduced gradients at hand.

        The script's code between ``backward()`` and ``step()`` may depend on the state: a
        GradScaler divides by its scale. ftrun's DDP calls this when a backward pass ends.
        """
        self._flow.heal_after_backward()

    # ------------------------------------------------------------ uneven data

    @property
    def joining(self) -> Joining | None:
        """The part of this worker in the Join that is open; None: none is."""
        joining = self._joining
        return joining if joining is not None and joining.is_active else None

    def announce(self, device: torch.device) -> None:
        """In a Join, announce this replica before the first bucket of the step; else do nothing."""
        joining = self.joining
        if joining is not None:
            joining.announce(device)

    def make_joining(self) -> tuple[Joining, Stepping]:
        """This worker's part in Joins, and the optimizer that followers step.

        Raises:
            UserError: the script is arranged in a way that a replica without data cannot follow.
        """
        seats.refuse_in_threads(self._seat, "a Join")
        problem = ""
        if self._sampler is not None:
            problem = "an ElasticSampler gives all replicas data to the end: leave the Join out"
        elif self._spares:
            problem = "spares (FIXED_WITH_SPARES) never count: make the Manager without them"
        elif self._context.workers_per_replica > 1:
            problem = "replicas of several workers are not supported: use one worker each"
        elif len(self.optimizers) != 1:
            problem = (
                f"it steps the one ftrun.Optimizer of this Manager, and there are "
                f"{len(self.optimizers)}: make one, for all parameters"
            )
        if problem:
            raise UserError(f"replica {self._context.replica_id}: no Join here. {problem}")
        if self._joining is None:
            self._joining = Joining(
                self._context.replica_id,
                self._context.replicas,
                self._issue,
                lambda: self._machine.begun,
            )
            self._flow.batches = self._joining.batches
        [optimizer] = self.optimizers
        return self._joining, optimizer

    # ------------------------------------------------------------ outside a step

    @property
    def here(self) -> WorkerContext:
        """The launcher's description of this worker."""
        return self._context

    @property
    def in_step(self) -> bool:
        """Whether a step is under way: from ``start_quorum`` to ``should_commit``."""
        return self._machine.in_step

    @property
    def pg(self) -> ProcessGroup:
        """The process group across replica groups; its collectives go to the quorum in force."""
        return self._pg

    @property
    def _use_async_quorum(self) -> bool:
        """torchft's name, which local SGD of scripts reads."""
        return self.use_async_quorum

    def exchange(self, site: str, what: str, body: bytes) -> list[Given] | None:
        """Give ``body`` to all members of the quorum, and get theirs; in the order of the slots.

        Returns:
            None after a step that was not committed, or if a member did not come to this place in
            time: ``errored`` says so.

        Raises:
            UserError: ``body`` has more than 16 MiB, or this replica is out of step.
        """
        self._engine.raise_fatal()
        try:
            return self._between.exchange(site, what, body, self._counts)
        except (PeerError, TimeoutError) as error:
            self.report_error(error)
            return None

    @property
    def _counts(self) -> bool:
        return self.is_participating() or not self._machine.begun

    @property
    def exchanges(self) -> Exchanges:
        """Values that replicas give each other outside the steps' reductions."""
        return self._exchanges

    def heal_unlike(self, key: str) -> None:
        """Let replicas differ in the state of this key, in number and shape of its tensors."""
        self._healing.heal_unlike(key)

    def heal_with_place(self) -> None:
        """From now on a state comes with the place at which its donors stand in the script."""
        self._healing.ask_place = self._exchanges.place_of_donors

    @property
    def healed_place(self) -> str:
        """The donors' place at the state that this worker has healed to last; "": the beginning."""
        return self._healing.place

    @property
    def resuming(self) -> Resuming | None:
        """The snapshot that this worker begins with; None: it has no directory for snapshots."""
        return self._resuming

    @property
    def snapshots(self) -> Snapshots | None:
        """The snapshots that this worker takes; None: it has no directory for them."""
        return self._snapshots

    def follow_quorums(self, groups: Beside) -> Following:
        """Let process groups of all replicas, which the script makes, follow the quorums too."""
        self._machine.sets_up_together = True
        self._engine.follow_quorums(groups)
        return Following(self._machine, self._engine.raise_fatal, self._leaving.if_pressed)

    @property
    def progress(self) -> WorkerProgress:
        """What this worker reports of itself."""
        return self._progress

    def peers(self, timeout: timedelta | None = None) -> Roster:
        """The replicas of the job before this one's first step: those that train, or all wanted.

        Raises:
            TimeoutError: not all wanted replicas are there within ``timeout`` (default: the
                launcher's ``--join-timeout``).
            Drained: this replica was asked to leave.
        """
        seats.refuse_in_threads(self._seat, "Manager.peers()")
        timeout_s = timeout.total_seconds() if timeout else self._context.quorum_timeout_s
        return self._exchanges.peers(timeout_s, counts_isolation=timeout is not None)

    def linger(self, timeout: timedelta = DEFAULT_TIMEOUT) -> bool:
        """At the script's end, wait for replicas that have to heal once more, and serve them.

        If the others train on from the state that this replica holds, they would wait for it as
        well: then it leaves the job at once, and ``ends_early`` is true.

        Returns:
            False if a replica was still missing after ``timeout``, which counts also while no
            lighthouse answers, or this one was asked to stop, or the others train on.
        """
        seats.refuse_in_threads(self._seat, "Manager.linger()")
        replicas = self._context.replicas
        limit_s = timeout.total_seconds()
        engine, machine, flow = self._engine, self._machine, self._flow
        parted = linger(engine, machine, flow, self._exchanges, replicas, limit_s, self._vote)
        if parted is Parted.EARLY:
            self.ends_early = True
            has_trained = machine.has_committed
            self._close(LeaveReason.EARLY if has_trained else LeaveReason.LEFT)
            if not has_trained:
                raise UserError(
                    f"the script has come to its end at step {machine.state.step} without a step "
                    "of its own, and the other replicas train on: replica "
                    f"{self._context.replica_id} has not joined them. It is started again. Does "
                    "the script end by itself where it finds what its predecessor has written?"
                )
        return parted is Parted.TOGETHER

    # ------------------------------------------------------------ errors

    def report_error(self, e: Exception) -> None:
        """Forbid to commit the step under way, because of ``e``."""
        self._flow.report_error(e)

    def errored(self) -> ExceptionWithTraceback | None:
        """The error of the step under way; its ``original_exception`` is what was raised."""
        error = self._flow.errored()
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
        """A future that yields ``default`` and reports the error if ``fut`` fails.

        It does the same if ``fut`` is not done within ``timeout`` (default: the Manager's).
        """
        timeout_s = timeout.total_seconds() if timeout else self._timeout_s
        return BoundedFuture(fut, default, timeout_s, self.report_error).future

    # ------------------------------------------------------------ facts

    def current_step(self) -> int:
        """The step under way, or the next one: how many have been committed before it."""
        return self._machine.position

    def batches_committed(self) -> int:
        """The sum of contributors over all committed steps."""
        return self._progress.batches

    def participating_rank(self) -> int | None:
        """The place among the contributors of this step; None for a spare or while healing."""
        return self._engine.in_flight.rank

    def num_participants(self) -> int:
        """How many contribute to this step: the divisor of its averages."""
        return self._engine.in_flight.divisor

    def is_participating(self) -> bool:
        """Whether this replica's gradients count in this step."""
        in_flight = self._engine.in_flight
        return in_flight.rank is not None and in_flight.weight() > 0.0

    def contributors(self) -> tuple[str, ...]:
        """The ids of the replicas that contribute to this step, in order."""
        return self._engine.in_flight.contributors

    def step_under_way(self) -> int | None:
        """The number of the step under way in this process, committed or not; None: there is none.

        Another number than ``current_step``: a step that is computed again has a new one.
        """
        return self._machine.begun if self._machine.in_step else None

    def is_healing(self) -> bool:
        """Whether this replica lacks its peers' state."""
        return self._machine.healing

    def log(self, **scalars: float) -> None:
        """Show scalars (``loss=0.3``) in ``ftrun status`` and the metrics, from the next commit on.

        Raises:
            UserError: more than 64 names.
        """
        self._progress.log(scalars)

    # ------------------------------------------------------------ the end

    def leave(self) -> None:
        """Leave the job, between two steps: the others go on at once, without a loss."""
        self._close(LeaveReason.LEFT)

    def shutdown(self, wait: bool = True) -> None:
        """Leave because the script has finished. Called at exit as well; idempotent.

        After it the script may make another Manager: a newcomer that begins at step 0, or with the
        state of those that train.
        """
        self._close(None if self._seat.has_failed() else LeaveReason.FINISHED)

    def _close(self, reason: LeaveReason | None) -> None:
        if os.getpid() != self._pid or self._leaving.closed:
            return  # a child that the script has forked must not close its parent's Manager
        self._leaving.closed = True
        atexit.unregister(self.shutdown)
        if reason is LeaveReason.FINISHED and not (stop_requested() or self._machine.isolated):
            self._exchanges.part(PARTING_S)
        self._engine.close(reason)
        self._exchanges.close()
        if self._snapshots is not None:
            self._snapshots.close()
        if self._vote is not None:
            self._vote.close()
        self._seat.release()

    def _end(self, error: Exception) -> None:
        """The agent has ended this Manager: the training thread's next call raises ``error``."""
        self._engine.die(error)
        self._close(None)
