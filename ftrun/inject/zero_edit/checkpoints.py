"""``torch.distributed.checkpoint`` of an unmodified script: one replica writes for all.

Every replica holds the whole state, so the lowest one that is there writes, by its own workers
alone, and all go on when it has written. A checkpoint of all ranks would lack what a replica that
is away was to write. Each replica reads by itself. A state with tensors that are sharded over ranks
of several replicas is no whole state anywhere, so there all write, as torch does.

``async_save`` writes before it returns. Not here: ``torch.save`` (files.py).
"""

from __future__ import annotations

import concurrent.futures
import functools
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from ftrun.inject.zero_edit import told
from ftrun.inject.zero_edit.frames import call_site
from ftrun.inject.zero_edit.patches import Patches, around_everywhere
from ftrun.inject.zero_edit.refusals import refuse
from ftrun.inject.zero_edit.world.shell import Shell

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.script import Script

SAVER = "torch.distributed.checkpoint.state_dict_saver"
LOADER = "torch.distributed.checkpoint.state_dict_loader"
_OF_ASYNC = ("async_checkpointer_type", "async_stager")


class Checkpoints:
    """Saves and loads within one replica."""

    def __init__(self, script: Script) -> None:
        self._mates, self._world, self._drafts = script.mates, script.world, script.drafts
        self._at_fall = script.at_fall

    def install(self, patches: Patches) -> None:
        """Patch torch's functions, when the script imports them."""
        patches.when_imported(SAVER, self._patch_saver)
        patches.when_imported(LOADER, self._patch_loader)

    def _patch_saver(self, module: Any) -> None:
        save = functools.partial(self._save, module.save)
        if hasattr(module, "async_save"):
            self._replace(module, "async_save", functools.partial(self._save_at_once, save))
        self._replace(module, "save", save)

    def _patch_loader(self, module: Any) -> None:
        plain = module.load

        def load(state_dict: Any, *args: Any, **kwargs: Any) -> Any:
            return _quietly(plain, state_dict, *args, **{**kwargs, **self._within()})

        self._replace(module, "load", load)

    def _replace(self, module: Any, name: str, ours: Callable[..., Any]) -> None:
        """Let ``ours`` stand in where a checkpoint is of all ranks."""

        def stand_in(plain: Any, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
            return (ours if _is_of_the_world(kwargs) else plain)(state_dict, *args, **kwargs)

        around_everywhere(module, name, stand_in)

    def _save_at_once(
        self, save: Callable[..., Any], state: Any, *args: Any, **kwargs: Any
    ) -> concurrent.futures.Future[Any]:
        if kwargs.get("async_stager") is not None:
            refuse(
                f"{call_site()}: async_save with async_stager, which ftrun cannot use, because it "
                "saves synchronously. Leave async_stager out"
            )
        for name in _OF_ASYNC:
            kwargs.pop(name, None)
        if self._mates.rank == 0:
            told.once(f"{call_site()}: async_save is synchronous here: it returns after writing")
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()
        done.set_result(save(state, *args, **kwargs))
        return done

    def _save(self, plain: Callable[..., Any], given: Any, *args: Any, **kwargs: Any) -> Any:
        if self._drafts.drops():
            self._drafts.tell_dropped(Path(f"the checkpoint of {call_site()}"))
            return None
        state = _state_of(given)
        if any(not self._mates.owns(ranks) for ranks in _sharded_over(state)):
            return self._save_together(plain, state, *args, **kwargs)
        made = None
        while True:
            writes = self._world.lowest // self._mates.size
            if writes == self._mates.rank // self._mates.size:
                made = _quietly(plain, state, *args, **{**kwargs, **self._within()})
            dist.barrier()
            if self._world.lowest // self._mates.size == writes:
                return made  # else who was to write has died meanwhile

    def _save_together(self, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        from torch.distributed.checkpoint.api import CheckpointException  # no Exception

        since = self._world.count
        try:
            made = plain(*args, **kwargs)
        except (Exception, CheckpointException):
            self._see_that_all_are_there(since)  # else that is why it has failed
            raise
        self._see_that_all_are_there(since)
        return made

    def _see_that_all_are_there(self, since: int) -> None:
        if not self._world.is_whole:
            self._at_fall.gives_up(
                f"{call_site()}: a checkpoint of tensors that are sharded over ranks, and one of "
                "these is away",
                since,
            )

    def _within(self) -> dict[str, Any]:
        """The arguments that keep torch to this replica."""
        if self._mates.are_several:
            return {"process_group": self._mates.group}
        return {"no_dist": True}


def _is_of_the_world(kwargs: dict[str, Any]) -> bool:
    """Whether a checkpoint is meant to be of all ranks, and these are ours."""
    if kwargs.get("no_dist") or not dist.is_initialized():
        return False
    group = kwargs.get("process_group")
    if group is None:
        group = distributed_c10d._get_default_group()
    return isinstance(group, Shell) and group.size() == dist.get_world_size()


def _state_of(given: Any) -> Any:
    """What is to be saved; objects that have a state are asked for it once."""
    from torch.distributed.checkpoint.stateful import Stateful

    if not isinstance(given, dict):
        return given
    return {k: v.state_dict() if isinstance(v, Stateful) else v for k, v in given.items()}


def _sharded_over(state: Any) -> Iterator[list[int]]:
    """The ranks of each mesh over which a tensor is sharded."""
    from torch.distributed.tensor import DTensor
    from torch.utils import _pytree

    for value in _pytree.tree_leaves(state):
        if isinstance(value, DTensor):
            yield value.device_mesh.mesh.flatten().tolist()


def _quietly(plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Without torch's warning that a checkpoint without a process group is of one process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*single process.*")
        return plain(*args, **kwargs)
