"""An unmodified script in one replica group: its workers are replaced in the middle of a step.

DistributedDataParallel, FSDP2 and tensor parallel stay torch's own, with all that they compute.
ftrun stands behind the process groups (world/replayed.py), and looks at where the script is. What
fails here is never the script's failure: then a lost worker costs what it costs without memory
snapshots.

Not here: what is kept (memory.py), when a lost worker can be replaced alone (core/replay/).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook

from ftrun.core.replay.falls import Fall
from ftrun.inject import torch_private
from ftrun.inject.zero_edit import _install_rooms, sharding, told
from ftrun.inject.zero_edit.attaching import STEPS_ALONE
from ftrun.inject.zero_edit.frames import Spot, call_site, module_frames
from ftrun.inject.zero_edit.loaders import LoaderIterator
from ftrun.inject.zero_edit.loop import Loop
from ftrun.inject.zero_edit.memory import Layouts, Memory
from ftrun.inject.zero_edit.models import Models
from ftrun.inject.zero_edit.patches import Patches, around_everywhere
from ftrun.inject.zero_edit.values.kinds import has_its_rank
from ftrun.inject.zero_edit.world.calls import Call
from ftrun.inject.zero_edit.world.kept import Kept
from ftrun.inject.zero_edit.world.opening import SHELLED, Opening, names_of
from ftrun.inject.zero_edit.world.replayed import CannotFollow, ReplayedWorld
from ftrun.inject.zero_edit.world.shell import Shell
from ftrun.snapshots import group_memory
from ftrun.training import compiling, context
from ftrun.training.context import WorkerContext

TENSOR_PARALLEL = "torch.distributed.tensor.parallel.api", "parallelize_module"
FRAMEWORKS = (
    ("torch.distributed.pipelining.schedules", "PipelineScheduleSingle.__init__", Fall.PIPELINE),
    ("torch.distributed.pipelining.schedules", "PipelineScheduleMulti.__init__", Fall.PIPELINE),
    ("deepspeed.runtime.engine", "DeepSpeedEngine.__init__", Fall.DEEPSPEED),
    ("megatron.core.parallel_state", "initialize_model_parallel", Fall.MEGATRON),
)
"""What a script may call that ftrun cannot follow: the module, the name there, the reason."""


def install(here: WorkerContext) -> Loop | None:
    """Patch torch; call it once, before the script has any name of it. None: there is no memory, or
    ftrun itself has failed, and its group runs as without."""
    try:
        group = group_memory.GroupMemory.open(os.environ[group_memory.VARIABLE].split()[0])
    except (KeyError, OSError, ValueError):
        return None
    if torch_private.missing():
        return None
    patches = Patches()
    try:
        return _install(here, group, patches)
    except Exception as error:  # noqa: BLE001  # a fault of ftrun's is none of the script's
        patches.undo()
        told.say(f"no memory snapshots: ftrun itself failed ({type(error).__name__}: {error})")
        return None


def _install(here: WorkerContext, group: group_memory.GroupMemory, patches: Patches) -> Loop:
    has_its_rank()
    memory = Memory(here, group)
    loop = _Loop(memory)
    memory.script = script = loop.script
    assert script.predecessor is not None, "of what memory keeps"
    memory.predecessor = script.predecessor
    script.stepping.on_unfit = partial(memory.world.falls, Fall.SCRIPT)
    script.models.install(patches)
    models = _Models(loop, memory)
    models.install(patches)
    memory.predecessor.install(patches)
    register_optimizer_step_post_hook(compiling.never(trained_by_hand(script.models, memory.world)))
    for module, name, reason in FRAMEWORKS:
        patches.when_imported(module, partial(_watch, patches, memory.world, name, reason))

    def leave() -> None:
        patches.undo()
        script.repeated.ends()
        script.models.leave()
        memory.world.falls(Fall.SCRIPT)

    path = Path(here.socket_path).parent / f"set-up-{here.group_rank}"
    _install_rooms(loop, _Opening(script, leave, path), patches)
    context.before_claim(leave)
    return loop


def trained_by_hand(models: Models, world: ReplayedWorld) -> Callable[..., None]:
    """For each step of an optimizer: nobody can be replaced alone where no model is known."""
    steps = 0

    def stepped(*_: Any) -> None:
        nonlocal steps
        if world.is_open and not models.wrapped:
            steps += 1
            if steps == STEPS_ALONE:
                world.falls(Fall.NO_MODEL)

    return stepped


def _watch(patches: Patches, world: ReplayedWorld, name: str, reason: Fall, module: Any) -> None:
    """Nobody can be replaced alone once a script has called this function of a framework."""

    def call(plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        world.falls(reason)
        return plain(*args, **kwargs)

    owner, _, method = name.rpartition(".")
    patches.around(getattr(module, owner) if owner else module, method, call)


class _Loop(Loop):
    """A loop that never fails the script."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self._has_passed = False  # forward, since the last step
        super().__init__(memory.here, memory)

    def _guarded(self, call: Callable[..., Any], otherwise: Any, *args: Any) -> Any:
        world = self.memory.world
        if world.fell is not None and not world.is_apart:
            return otherwise
        try:
            return call(*args)
        except CannotFollow:
            raise
        except Exception as error:  # noqa: BLE001  # the script must not see it
            world.falls(Fall.SCRIPT, f"{type(error).__name__}: {error}")
            return otherwise

    def before_draw(self, iterator: LoaderIterator) -> None:
        self._guarded(super().before_draw, None, iterator)

    def before_turn(self, spot: Spot) -> None:
        self._guarded(super().before_turn, None, spot)

    def before_evaluation(self) -> None:
        self._guarded(super().before_evaluation, None)

    def before_forward(self) -> bool:
        self._has_passed = True
        return bool(self._guarded(super().before_forward, True))

    def commit(self) -> bool:
        if self.memory.world.fell is None:
            self._guarded(super().commit, True)
        elif self._has_passed:
            self.memory.counts()
        self._has_passed = False
        self.memory.join()
        return True

    def raised(self, error: BaseException) -> None:
        """The script's own failure."""

    def ends(self) -> None:
        if self.script.drafts.is_forked:
            return  # a process that the script has forked comes to the end, too
        self._guarded(super().ends, None)
        if self.memory.world.is_open:  # else no other worker needs this one
            self.memory.world.ends()


class _Models:
    """torch's DistributedDataParallel, FSDP2 and tensor parallel, as they are; it looks at them."""

    def __init__(self, loop: Loop, memory: Memory) -> None:
        self._models, self._memory = loop.script.models, memory
        self._models.is_averaged = True  # by torch
        self._orders: WeakKeyDictionary[Any, list[torch.Tensor]] = WeakKeyDictionary()
        self._made: list[Any] = []
        self._passes: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._known: dict[int, list[list[int]]] = {}
        self._first: dict[Any, bool] = {}  # of a static graph, without a pass so far
        memory.layouts, memory.alike.wrapped = self._layouts, self._made

    def install(self, patches: Patches) -> None:
        patches.around(DistributedDataParallel, "__init__", self._make)
        patches.around(DistributedDataParallel, "_ddp_init_helper", self._make_reducer)
        patches.around(DistributedDataParallel, "forward", self._forward)
        shard = partial(sharding.shard, self._models)
        for module, name in ((sharding.MODULE, sharding.NAME), TENSOR_PARALLEL):
            call = partial(around_everywhere, name=name, ours=shard)
            patches.when_imported(module, call)

    # ------------------------------------------------------------ DistributedDataParallel

    def _make(self, plain: Any, made: Any, *args: Any, **kwargs: Any) -> None:
        with self._memory.world.ours():
            plain(made, *args, **kwargs)
        if made in self._orders:
            is_later = self._their_layout() is not None
            made._has_rebuilt_buckets |= is_later
            self._made.append(made)
            self._models.add(made.module, around=made)
            if made.static_graph:
                self._first[made] = is_later
                self._memory.world.is_alone = self._is_of_first_pass

    def _their_layout(self) -> list[list[int]] | None:
        number, theirs = len(self._made), self._memory.their_layouts
        return theirs[number] if number < len(theirs) else None

    def _make_reducer(
        self,
        plain: Any,
        made: Any,
        parameters: list[torch.Tensor],
        expect_sparse_gradient: list[bool],
        names: dict[int, str],
        static_graph: bool,
    ) -> None:
        """A replacement's buckets are at once those that its predecessor had in the end."""
        self._orders[made] = parameters
        layout = self._their_layout()
        if layout is None:
            plain(made, parameters, expect_sparse_gradient, names, static_graph)
            return
        order = [index for bucket in layout for index in bucket]
        plain(
            made,
            [parameters[x] for x in order],
            [expect_sparse_gradient[x] for x in order],
            {now: names[before] for now, before in enumerate(order) if before in names},
            static_graph,
        )
        if static_graph:
            made.reducer._set_static_graph()
        made.reducer._push_all_rebuilt_params()
        made.reducer._rebuild_buckets()
        if self._layout(made) != layout:
            self._memory.world.falls(Fall.OTHER_CALL, "other buckets of gradients")

    def _is_of_first_pass(self, call: Call) -> bool:
        """Whether a call is one that a replacement answers by itself.

        In the first pass of a static graph all tell each other which parameters they use. That of a
        replacement is a later one of its predecessor's, which had no such call. Where each uses
        all, it knows the answer.
        """
        for made, is_later in self._first.items():
            if call.kind.name != "allreduce" or not made._static_graph_delay_allreduce_enqueued:
                continue
            used = call.outputs[0]
            if (used.dtype, used.numel()) == (torch.int32, len(self._orders[made])):
                del self._first[made]
                if not bool(used.all()):
                    why = "static_graph=True, and this worker does not use all parameters"
                    self._memory.world.falls(Fall.SCRIPT, why)
                return is_later
        return False

    def _layout(self, made: Any) -> list[list[int]]:
        numbers = {id(x): index for index, x in enumerate(self._orders[made])}
        buckets = made.reducer._get_zeros_like_grad_buckets()
        return [[numbers[id(x)] for x in bucket.parameters()] for bucket in buckets]

    def _layouts(self) -> Layouts | None:
        found: Layouts = []
        for number, made in enumerate(self._made):
            rebuilds = made.static_graph or not made.find_unused_parameters
            if rebuilds and not made._has_rebuilt_buckets and self._passes.get(made, 0):
                return None
            if made._has_rebuilt_buckets and number not in self._known:
                self._known[number] = self._layout(made)
            found.append(self._known.get(number))
        return found

    @compiling.only_inside
    def _forward(self, plain: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        self._begins(model, args, kwargs)
        return plain(model, *args, **kwargs)

    @compiling.never
    def _begins(self, model: Any, *inputs: Any) -> None:
        if model in self._orders and self._models.trains(model, model.module):
            self._memory.alike.is_averaged = model.require_backward_grad_sync
            self._models.begins_pass(inputs)
            if model.require_backward_grad_sync:
                self._passes[model] = 1


class _Opening(Opening):
    """The script's groups, of all workers of this one replica group.

    Args:
        path: of the notes of its set-up.
    """

    def __init__(self, script: Any, leaves: Callable[[], None], path: Path) -> None:
        super().__init__(script, leaves)
        self._path = path

    def _check(self, size: int, rank: int) -> bool:
        is_whole = size in (-1, self._size) and rank in (-1, self._mates.rank)
        if not is_whole:
            self._world.falls(  # type: ignore[attr-defined]
                Fall.SCRIPT, f"the world of {size} that {call_site()} makes is not all of the group"
            )
        return is_whole

    def _open(self, _limit: timedelta) -> None:
        world: Any = self._world
        if world.is_open:
            return
        here = self._here
        module_frames(())  # the first look takes milliseconds, and is no part of a copy's price
        world.members = tuple(range(here.replicas))
        self._store = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        self._prefix = f"ftrun/{here.job_id}/{here.key.incarnation}/group"
        world.is_walking = world.is_newcomer
        world.kept = Kept(self._path, is_successor=world.is_newcomer)
        world.is_open = True
        world.opens(self._store, self._prefix)

    def add(self, shell: Shell) -> None:
        """Make a group that is not the script's."""
        self._open(shell.timeout)
        self._connect(shell)

    def _is_shelled(self, backend: Any) -> bool:
        names = names_of(backend)
        has_gpu = torch.cuda.is_available()
        is_gloo = names <= {"gloo"} or (names == {"undefined"} and not has_gpu)
        is_known = is_gloo or (self._here.device == "cuda" and has_gpu and names <= SHELLED)
        if self._world.is_open and not is_known:
            self._world.falls(Fall.DEVICE)  # type: ignore[attr-defined]
        return self._world.is_open and is_known
