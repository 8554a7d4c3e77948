"""The script's DistributedDataParallel: torch's own class, with methods patched by ftrun.

The class itself is not replaced. So types, subclasses, copies and pickled files are the same as
without ftrun, also in modules that have already imported the class. The patched methods handle the
objects that the script constructs. A copy behaves as torch's own: it may be kept, and heals as a
module beside the models, but it cannot be trained.

Not here: how gradients are reduced (training/ddp.py), which modules there are (models.py).
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from ftrun.base.errors import UserError
from ftrun.inject.zero_edit.frames import call_site
from ftrun.inject.zero_edit.models import Models
from ftrun.inject.zero_edit.refusals import Refused, refuse
from ftrun.training import compiling
from ftrun.training.ddp import DistributedDataParallel

_SIGNATURE = inspect.signature(TorchDDP.__init__)
_OWN_GROUP = ("process_group", "device_mesh")
_torchs_init: Any = TorchDDP.__init__
_torchs_forward: Any = TorchDDP.forward
_torchs_state: Any = TorchDDP.__getstate__


class Wrapping:
    """Adds each module that the script wraps to ``models``."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._alone: weakref.WeakSet[TorchDDP] = weakref.WeakSet()  # the last pass was of no step

    def install(self) -> None:
        """Patch torch's class permanently (see ``models.makes_ddp``)."""
        methods: dict[str, tuple[Any, Any]] = {
            "forward": (self._forward, self._forward_of_a_copy),
            "_ddp_init_helper": (DistributedDataParallel._ddp_init_helper, None),
            "_distributed_broadcast_coalesced": (self._broadcast, None),
            "register_comm_hook": (_refuses_hook, None),
            "join": (_refuses_join, None),
            "join_hook": (_refuses_join, None),  # torch's generic Join asks for it
            "__getstate__": (_state, None),
        }
        for name, (ours, of_a_copy) in methods.items():
            setattr(TorchDDP, name, _either(getattr(TorchDDP, name), ours, of_a_copy))
        TorchDDP.__init__ = self._maker()  # type: ignore[method-assign]

    def _maker(self) -> Callable[..., None]:
        @functools.wraps(_torchs_init)
        def __init__(made: Any, *args: Any, **kwargs: Any) -> None:
            if isinstance(made, DistributedDataParallel) or not self._models.makes_ddp():
                _torchs_init(made, *args, **kwargs)
            else:
                self._make(made, args, kwargs)

        return __init__

    def _make(self, made: TorchDDP, args: Any, kwargs: Any) -> None:
        """Construct a DistributedDataParallel that ftrun carries, with torch's arguments."""
        models = self._models
        given = dict(_SIGNATURE.bind(made, *args, **kwargs).arguments)
        given.pop("self")
        module = given.pop("module")
        for name in _OWN_GROUP:
            _check_group(given.get(name))
        given_group, given_mesh = (given.pop(name, None) for name in _OWN_GROUP)
        _check_layers(module)
        within = models.mates.group
        if models.mates.are_several and within is None:
            refuse(f"{call_site()}: DistributedDataParallel before init_process_group")
        c10d: Any = torch.distributed.distributed_c10d
        across = c10d._get_default_group() if torch.distributed.is_initialized() else None
        wished: Any = given_group or (given_mesh.get_group() if given_mesh is not None else across)
        init: Any = DistributedDataParallel.__init__
        try:
            with models.world.ours():
                init(made, models.script.manager(), module, within=within, across=across, **given)
        except Refused:
            raise
        except UserError as error:  # refused, because the script might catch it and go on
            refuse(f"{call_site()}: {error}")
        made.process_group = wished
        models.add(module, around=made)

    @compiling.only_inside
    def _forward(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the model; in training the first pass after a commit begins a step."""
        if self._begins(model, args, kwargs):
            return DistributedDataParallel.forward(model, *args, **kwargs)
        return model.module(*args, **kwargs)

    @compiling.never
    def _begins(self, model: Any, *inputs: Any) -> bool:
        """Whether this pass belongs to a step, or evaluates.

        torch begins a pass with a broadcast of buffers. Here it comes before the step begins. A
        rank that evaluates alone then waits in the broadcast, outside any step, for its peers.
        """
        script, is_due = self._models.script, model.require_forward_param_sync
        if not self._models.trains(model, model.module):
            return True
        if script.ending.goes_again:
            model.require_forward_param_sync = False  # the peers have made that broadcast already
            script.loop.before_forward()
            return True
        if model.modules_buffers and model._check_sync_bufs_pre_fwd():
            model._sync_buffers()
            model.require_forward_param_sync = False
        is_of_step = self._models.begins_pass(inputs)
        if not is_of_step:
            model.require_forward_param_sync = is_due  # torch's own pass does not follow
            self._alone.add(model)
        elif model in self._alone:
            self._alone.discard(model)
            DistributedDataParallel.forget_uses(model)
        return is_of_step

    @compiling.only_inside
    def _forward_of_a_copy(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a copy, or a model from a file. Training one is refused: it would not heal."""
        if self._models.wrapped and model.training and torch.is_grad_enabled():
            refuse(
                f"{call_site()}: this script trains a copy of a DistributedDataParallel, or one "
                "from a file, which ftrun cannot heal step by step. Wrap its module again"
            )
        return _torchs_forward(model, *args, **kwargs)

    @compiling.never
    def _broadcast(self, *args: Any, **kwargs: Any) -> None:
        with self._models.world.ours():
            DistributedDataParallel._distributed_broadcast_coalesced(*args, **kwargs)


def _either(plain: Any, ours: Callable[..., Any], of_a_copy: Callable[..., Any] | None) -> Any:
    """A method: ``ours`` for a DDP that ftrun carries; else ``of_a_copy``, or the plain one."""
    otherwise = of_a_copy or plain

    @functools.wraps(plain)
    def method(model: Any, *args: Any, **kwargs: Any) -> Any:
        kinds = type(model).__mro__  # isinstance() is slower for a class with abstract methods
        is_carried = "_across" in model.__dict__ and DistributedDataParallel not in kinds
        return (ours if is_carried else otherwise)(model, *args, **kwargs)

    return compiling.only_inside(method)


def _refuses(why: str) -> Callable[..., None]:
    def method(_model: Any, *_args: Any, **_kwargs: Any) -> None:
        refuse(f"{call_site()}: {why}")

    return method


_refuses_hook = _refuses(
    "a communication hook replaces the reduction of the gradients, which ftrun repairs when a "
    "replica dies. Leave register_comm_hook out"
)
_refuses_join = _refuses(
    "join() reduces for replicas that have no data left, which ftrun does not carry. Let a "
    "DistributedSampler give all replicas as many batches"
)


def _state(model: Any) -> dict[str, Any]:
    """The state for a copy or a file, without the parts that belong to this process."""
    state: dict[str, Any] = _torchs_state(model)
    return {name: x for name, x in state.items() if name not in ("_across", "_buckets")}


def _check_group(group: Any) -> None:
    """Refuse a process group or a mesh that does not cover all ranks."""
    if group is None or group.size() == torch.distributed.get_world_size():
        return
    refuse(
        f"{call_site()}: DistributedDataParallel over {group.size()} ranks: ftrun reduces over all "
        "replicas. Leave process_group and device_mesh out"
    )


def _check_layers(module: nn.Module) -> None:
    for name, part in module.named_modules():
        if isinstance(part, nn.SyncBatchNorm):
            refuse(
                f"{call_site()}: the layer {name or type(part).__name__} is a SyncBatchNorm, which "
                "reduces inside the forward pass: ftrun cannot heal it step by step. Use BatchNorm"
            )
