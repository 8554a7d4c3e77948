"""The inner interface of a Manager, used by ftrun's own classes and by unmodified scripts.

``manager.session`` returns it, for ftrun's DDP, optimizers, samplers and Join. It holds the parts
of a worker, from its seat to its step flow. Each part is used by its name (``session.healing``).
The methods here need several parts at once.

Not here: torchft's names and arguments (manager.py), any decision (core/worker/machine.py), the
flow of a step (step_flow.py), threads (engine.py).
"""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

import torch
from torch.distributed import ReduceOp

from ftrun.base.errors import PeerError, UserError
from ftrun.core.ids import SHARED_LINEAGE, StateId, fresh_lineage, later_lineage
from ftrun.core.messages import LeaveReason, Mark
from ftrun.core.worker import events as e
from ftrun.core.worker.exchange import Contribution
from ftrun.core.worker.machine import StepMachine
from ftrun.process_groups.base import ProcessGroup
from ftrun.training import compiling, seats
from ftrun.training.context import stop_requested
from ftrun.training.engine import Engine
from ftrun.training.event_loggers import EventLoggers
from ftrun.training.exchanges import Exchanges
from ftrun.training.groups import Beside, Following
from ftrun.training.healing import Healing
from ftrun.training.joining import Joining
from ftrun.training.kept_inputs import KeptInputs
from ftrun.training.leaving import Leaving
from ftrun.training.optim import OptimizerWrapper
from ftrun.training.progress import WorkerProgress
from ftrun.training.reductions import Reduction, Restore
from ftrun.training.resuming import Resuming
from ftrun.training.seats import Seat
from ftrun.training.snapshots import Snapshots
from ftrun.training.step_flow import Choices, StepFlow
from ftrun.training.vote import GroupVote

if TYPE_CHECKING:
    from ftrun.training.elastic_sampler import ElasticSampler

log = logging.getLogger(__name__)

PARTING_S = 2.0
"""How long a worker that ends waits for members that have not received its last exchanged
values."""
SAMPLER_KEY = "elastic_sampler"


class Session:
    """One worker's part in the job, from the connection to its end.

    Args:
        seat: where the Manager belongs.
        pg: the process group across replica groups.
        choices: how it trains.
        healing: states for peers and from them; closed with this session.
        own_error: returns why ``pg`` has failed by itself; None: ``pg`` cannot report that.

    Attributes:
        seat, choices, healing: as given.
        here: the launcher's description of this worker.
        pg: its collectives use the quorum in force.
        machine, engine, flow, progress, exchanges, leaving: of this worker.
        vote: of the workers of this replica group; None: it has one worker.
        keeper: of this worker; None: no process could take its place.
        resuming, snapshots: None: there is no directory for snapshots.
        events: the loggers of torchft's names.
        copies: of the inputs of this step's reductions.
        optimizers: the optimizers that step in committed steps only.
        before_reduction: called before DDP reduces, for a script that has no explicit steps; False:
            DDP does not reduce.
        ends_early: this replica has left because the others train on without it.
    """

    def __init__(
        self,
        seat: Seat,
        pg: ProcessGroup,
        choices: Choices,
        healing: Healing,
        own_error: Callable[[], Exception | None] | None,
    ) -> None:
        self.seat, self.pg, self.choices, self.healing = seat, pg, choices, healing
        self.here = context = seat.context
        self.copies = KeptInputs()
        self.optimizers: weakref.WeakSet[OptimizerWrapper] = weakref.WeakSet()
        self.before_reduction: Callable[[], bool] = lambda: True
        self.ends_early = False
        self.vote: GroupVote | None = None
        self._pid = os.getpid()
        with ExitStack() as undo:
            undo.callback(healing.close)
            own = context.key.incarnation
            lineage = fresh_lineage(own) if choices.init_sync else SHARED_LINEAGE
            self._before = seat.managers_before()
            self.keeper = keeper = seat.keeper()
            self.machine = StepMachine(
                context.key,
                healing.endpoint,
                StateId(0, later_lineage(lineage, self._before)),
                workers_per_replica=context.workers_per_replica,
                is_kept=keeper is not None,
                repair=choices.repairs,
                heal_first=choices.heals_first,
                contributors_max=choices.min_replica_size if choices.spares else None,
                contributors_min=choices.min_replica_size,
                tells_min=not seat.is_thread,
                operation_timeout_s=choices.timeout_s,
                quorum_timeout_s=choices.quorum_timeout_s,
                results_timeout_s=choices.gives_up_s,
                is_known_when_issued=pg.caller_waits,
            )
            self.progress = WorkerProgress(self.machine)
            self.events = EventLoggers(context.job_id, choices.name, context.group_rank)
            seat.claim()
            undo.callback(seat.release)
            if context.workers_per_replica > 1 or keeper is not None:
                limit_s = choices.connect_timeout_s
                group = None if keeper is None else keeper.vote_group(limit_s)
                self.vote = GroupVote(context, limit_s, group)
                undo.callback(self.vote.close)
            self.engine = Engine(context, pg, self.machine, healing, self.progress, keeper)
            undo.callback(self.engine.close, None)
            self._connect(own_error)
            if keeper is not None:
                keeper.connect(self)
            undo.pop_all()

    def _connect(self, own_error: Callable[[], Exception | None] | None) -> None:
        engine, machine, choices = self.engine, self.machine, self.choices
        self.seat.knows_place(engine.place)
        self.leaving = Leaving(machine, engine.feed, lambda: not self.healing.is_unread)
        self.resuming, self.snapshots = self._make_snapshots()
        # Peers may take long to their first step: the launcher states how long the job waits. They
        # are all there when a script makes its second Manager.
        first_s = 0.0 if self._before else self.here.quorum_timeout_s
        resumes = self.resuming, self.snapshots
        self.flow = StepFlow(engine, self.vote, choices, first_s, *resumes, own_error, self.keeper)
        self.exchanges = Exchanges(self.here, engine, self.leaving.if_pressed)
        engine.start()
        atexit.register(self.finish)
        self.seat.on_end(self._end)

    def _make_snapshots(self) -> tuple[Resuming | None, Snapshots | None]:
        context, engine = self.here, self.engine
        left = None if self._before else self.seat.left(engine)
        if not context.snapshot_dir:
            return left, None
        if self._before:
            log.warning(
                "replica %s: this is Manager %d of its script, and snapshots are of the first one "
                "only, because a job that restarts begins with that. None are taken now",
                context.replica_id,
                self._before + 1,
            )
            return None, None
        resuming = left or Resuming(engine, self.vote)
        return resuming, Snapshots(engine, resuming)

    # ------------------------------------------------------------ a step

    def begin(
        self,
        freeze_membership: bool = False,
        timeout_s: float | None = None,
        *,
        for_draw: bool = False,
    ) -> None:
        """Begin a step, as ``start_quorum`` does. ``for_draw``: because its batch is drawn now.

        A later ``start_quorum`` then continues with this step.
        """
        self.engine.raise_fatal()
        if self.leaving.closed:
            raise UserError("this Manager has left the job: it begins no further step")
        if not self.machine.begun:
            if self.engine.in_flight.sampled is None:
                self._refuse_options_of_samplers()
            self.healing.begin()
            self.seat.trains(self.leaving.at_once)
        if not (freeze_membership or self.machine.in_step):
            self.seat.between_steps(self._join_is_agreed)
        self.healing.moves_on()
        begun = self.machine.begun
        if not self.flow.begin(freeze_membership, timeout_s, for_draw=for_draw):
            if self.snapshots is not None and not freeze_membership:
                self.snapshots.at_end()
            self.leaving.raise_drained()
        if self.machine.begun == begun:
            return  # begun already, because its batch was drawn
        self.exchanges.step_begun(self.machine.position)
        self.copies.step_begun()
        quorum = self.machine.in_force
        if quorum is not None:
            self.events.step_begins(quorum.attempt.quorum_id, self.machine.position)

    def _join_is_agreed(self) -> bool:
        pending = self.machine.pending
        return pending is not None and pending.promise is not None

    def _refuse_options_of_samplers(self) -> None:
        """Refuse options that only an ElasticSampler can keep, if the script has made none."""
        asked = self.here.options_of_samplers()
        if asked:
            raise UserError(
                f"{asked}: this script has made no ftrun.ElasticSampler before its first step, "
                "which alone can keep to it (docs/DATA.md)"
            )

    def step_under_way(self) -> int | None:
        """The number of the current step in this process, committed or not; None: there is none.

        Unlike ``current_step``, it is different for each try of a step.
        """
        return self.machine.begun if self.machine.in_step else None

    def catch_up(self, joins: Callable[[], bool]) -> bool:
        """After a step that was lost here: take its result from peers that have committed it.

        ``joins``: see ``StepFlow.catch_up``.

        Returns:
            False if that was interrupted: try again.
        """
        self.engine.raise_fatal()
        return self.flow.catch_up(joins)

    @property
    def others_heal(self) -> bool:
        """Whether other replicas heal in the quorum in force."""
        quorum = self.machine.in_force
        own = self.here.key.replica_id
        return quorum is not None and any(x != own for x in quorum.newcomers)

    def show_end(self, parameters: str, is_late: bool) -> None:
        """The script has ended: publish its parameters for comparison with the peers' (core
        Mark)."""
        self.engine.note_progress(at_once=True)
        state = self.machine.state
        self.machine.ended_with = Mark(state.step, state.lineage, "", parameters, "", is_late)

    def keep_state(self) -> None:
        """Let peers that have lost the last step heal from the current state.

        This holds until the next step. Peers may need the state before this replica continues. For
        the training thread, between two steps. Until the next step, the state functions must return
        the same state, in any thread.
        """
        self.healing.keep_still()
        self.engine.feed(e.StateKept())

    @property
    def awaits_newcomers(self) -> bool:
        """Whether others may join at the next boundary."""
        return self.machine.quorums.awaits_newcomers

    @property
    def others_join(self) -> bool:
        """Whether others can join at the next boundary: the groups are ready."""
        pending = self.machine.pending
        is_ready = self.machine.in_force is not None if pending is None else pending.built
        return is_ready and self.machine.quorums.awaits_newcomers

    def require_step(self) -> None:
        """Raise a UserError if no step has begun."""
        self.engine.raise_fatal()
        if not self.machine.in_step:
            raise UserError("an operation outside a step: call start_quorum() (zero_grad()) first")

    def issue(self, reduction: Reduction) -> torch.futures.Future[torch.Tensor]:
        """Reduce among the contributors of the current step."""
        self.require_step()
        sampled = self.engine.in_flight.sampled
        if sampled is not None:
            sampled.before_reduction()
        self.engine.issue(reduction)
        return reduction.future

    def allreduce_bucket(
        self,
        buffer: torch.Tensor,
        is_last: bool,
        restore: Restore | None,
        divided_by: int | None = None,
    ) -> torch.futures.Future[torch.Tensor]:
        """Average one of DDP's buckets in place. All buckets complete together.



        ``restore`` writes the local gradients, divided by its argument, into ``buffer`` again
        (in-step repair). ``divided_by``: the number by which they are divided now; None: the
        Manager divides. After the last bucket call ``await_buckets`` before any future's ``wait``.
        Call ``before_reduction`` first.
        """
        keep = self.choices.repairs
        joining = self.joining
        bucket = Reduction(
            buffer, ReduceOp.AVG, restore, divided_by, keep,
            batched=True, closes=is_last, awaited=True,
            counted=None if joining is None else joining.divisor,
        )  # fmt: skip
        return self.issue(bucket)

    @compiling.never
    def await_buckets(self) -> None:
        """Wait for all buckets that were issued. The repair handles a failure."""
        self.engine.in_flight.await_batch()

    def any_in_group(self, flag: bool) -> bool:
        """Whether ``flag`` is true on any rank of this replica group. All ranks must call it."""
        return flag if self.vote is None else self.vote.any(flag)

    @compiling.never
    def heal_after_backward(self) -> None:
        """If this replica heals, apply the peers' state now that the gradients are reduced.

        The script's code between ``backward()`` and ``step()`` may depend on the state: a
        GradScaler divides by its scale. ftrun's DDP calls this when a backward pass ends.
        """
        self.flow.heal_after_backward()

    # ------------------------------------------------------------ who takes part

    def watch_optimizer(
        self, optimizer: torch.optim.Optimizer, wrapper: OptimizerWrapper | None = None
    ) -> None:
        """Heal in place the tensors that ``optimizer`` steps. It must step committed steps only.

        For optimizers without ftrun's Optimizer, which calls this itself, as ``wrapper``.
        """
        self.healing.watch_optimizer(optimizer)
        if wrapper is not None:
            self.optimizers.add(wrapper)

    def watch_sampler(self, sampler: ElasticSampler, *, repairs: bool) -> None:
        """Let ``sampler`` weigh this worker's gradients, follow the commits, and heal.

        An ElasticSampler calls this itself. ``repairs``: a step may be repaired with its batches.

        Raises:
            UserError: there is one already; or a step would be repaired that must not be.
        """
        seats.refuse_in_threads(self.seat, "an ElasticSampler")
        if self.engine.in_flight.sampled is not None:
            raise UserError(
                "this Manager has an ElasticSampler already: only one dataset can be gone through "
                "once, the training set. Read others with plain loaders"
            )
        if self.choices.repairs and not repairs:
            raise UserError(
                "a global batch must not shrink when a replica dies, so the step is computed "
                'again: make the Manager with repair="discard" (ftrun.manager() does so under '
                "--global-batch)"
            )
        self._is_not_kept("has an ElasticSampler")
        self.healing.register(SAMPLER_KEY, sampler.heal, sampler.state_dict)
        self.engine.in_flight.sampled = sampler

    @property
    def joining(self) -> Joining | None:
        """This worker's part in the open Join; None: none is open."""
        joining = self.flow.joining
        return joining if joining is not None and joining.is_active else None

    def make_joining(self) -> tuple[Joining, OptimizerWrapper]:
        """This worker's part in Joins, and the optimizer that followers step.

        Raises:
            UserError: a replica without data cannot follow this script's arrangement.
        """
        seats.refuse_in_threads(self.seat, "a Join")
        problem = ""
        if self.engine.in_flight.sampled is not None:
            problem = "an ElasticSampler gives all replicas data to the end: leave the Join out"
        elif self.choices.spares:
            problem = "spares (FIXED_WITH_SPARES) never count: make the Manager without them"
        elif self.here.workers_per_replica > 1:
            problem = "replicas of several workers are not supported: use one worker each"
        elif len(self.optimizers) != 1:
            problem = (
                f"it steps the one ftrun.Optimizer of this Manager, and there are "
                f"{len(self.optimizers)}: make one, for all parameters"
            )
        if problem:
            raise UserError(f"replica {self.here.replica_id}: no Join here. {problem}")
        if self.flow.joining is None:
            here = self.here
            self._is_not_kept("opens a Join")
            self.flow.joining = Joining(here.replica_id, here.replicas, self.issue, self.machine)
        [optimizer] = self.optimizers
        return self.flow.joining, optimizer

    def train_locally(self) -> None:
        """The replicas train independently between two steps (LocalSGD, DiLoCo).

        That time is accounted as training. A newcomer takes all of its state from one donor,
        because parts of two donors' states do not fit together.
        """
        self._is_not_kept("trains between its steps (LocalSGD, DiLoCo)")
        self.machine.trains_between_steps = True
        self.healing.from_one_donor()

    # ------------------------------------------------------------ outside a step

    def exchange(self, site: str, what: str, body: bytes) -> tuple[Contribution, ...] | None:
        """Send ``body`` to all members of the quorum, and receive theirs, in slot order.

        Returns:
            None after a step that was not committed, or if a member did not come to this place in
                time:
            ``errored`` returns the error.

        Raises:
            UserError: ``body`` has more than 16 MiB, or this replica is out of step.
        """
        self.engine.raise_fatal()
        self._is_not_kept("exchanges values with the other replicas")
        try:
            timeout_s, counts = self.choices.timeout_s, self.engine.in_flight.counts
            return self.exchanges.exchange(site, what, body, timeout_s, counts=counts)
        except (PeerError, TimeoutError) as error:
            self.flow.report_error(error)
            return None

    def _is_not_kept(self, what: str) -> None:
        if self.keeper is not None:
            self.keeper.lacks(f"the script {what}")

    def heal_with_place(self) -> None:
        """From now on a state comes with its donors' place in the script."""
        self.healing.ask_place = self.exchanges.place_of_donors

    def follow_quorums(self, groups: Beside) -> Following:
        """Let more process groups of all replicas, which the script makes, follow the quorums."""
        self.machine.sets_up_together = True
        release = self.engine.follow_quorums(groups)
        serve = self.healing.serve_in_call
        return Following(
            self.machine, self.engine.raise_fatal, self.leaving.if_pressed, release, serve
        )

    # ------------------------------------------------------------ the end

    def finish(self) -> None:
        """Leave because the script has ended or failed. Also called at the process's end."""
        self.close(None if self.seat.has_failed() else LeaveReason.FINISHED)

    def close(self, reason: LeaveReason | None) -> None:
        """Leave the job; None: because the script fails. Idempotent."""
        if os.getpid() != self._pid or self.leaving.closed:
            return  # a child that the script has forked must not close its parent's Manager
        if reason is LeaveReason.FINISHED and self.keeper is not None and not stop_requested():
            self.keeper.ends()
        self.leaving.closed = True
        atexit.unregister(self.finish)
        if reason is LeaveReason.FINISHED and not (stop_requested() or self.machine.isolated):
            self.exchanges.part(PARTING_S)
        self.engine.close(reason)
        self.exchanges.close()
        if self.snapshots is not None:
            self.snapshots.close()
        if self.vote is not None:
            self.vote.close()
        self.seat.release()

    def _end(self, error: Exception) -> None:
        """The agent has ended this Manager: the training thread's next call raises ``error``."""
        self.engine.die(error)
        self.close(None)
