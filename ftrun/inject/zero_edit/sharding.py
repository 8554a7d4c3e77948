"""FSDP2 of an unmodified script: shards within the replica, averages across the replicas.

As under torchrun, the script sees one world: ranks and meshes cover all workers, and the script
splits its data among all of them. But a model that the script shards over that world is sharded
over the workers of its replica only, so that a replica holds the whole model and can fail alone.
``ftrun.replicate`` averages each shard's gradients across the replicas. The result is the same
average. A mesh with the two dimensions (replicate, shard) is handled in the same way, whatever its
sizes.

Not here: averages (training/sharded.py), steps (loop.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from ftrun.inject.zero_edit.frames import call_site
from ftrun.inject.zero_edit.patches import Patches, around_everywhere
from ftrun.inject.zero_edit.refusals import refuse

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.models import Models

MODULE = "torch.distributed.fsdp._fully_shard._fully_shard"
NAME = "fully_shard"
DATA_DIMENSIONS_MAX = 2


def install(models: Models) -> None:
    """Patch ``fully_shard`` permanently to shard within the replica (see ``models.makes_ddp``)."""

    def fully_shard(plain: Any, model: Any, *args: Any, mesh: Any = None, **kwargs: Any) -> Any:
        if not models.makes_ddp():
            return plain(model, *args, mesh=mesh, **kwargs)
        _check(mesh, kwargs)
        return shard(models, plain, model, *args, mesh=models.mesh(mesh), **kwargs)

    def set_factor(plain: Any, part: Any, factor: float) -> None:
        # The script's factor divides a sum over all workers. Here the sum covers one replica, and
        # the replicas' sums are averaged.
        plain(part, factor / models.script.here.replicas if models.shards_within else factor)

    def patch(module: Any) -> None:
        around_everywhere(module, NAME, fully_shard)
        Patches().around(module.FSDPModule, "set_gradient_divide_factor", set_factor)

    Patches().when_imported(MODULE, patch)


def shard(models: Models, plain: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
    """Call torch's function ``plain``, which shards a model or a list of parts, and note these."""
    made = plain(model, *args, **kwargs)
    for part in model if isinstance(model, (list, tuple)) else [model]:
        models.add_sharded(part)
    return made


def refuse_all(patches: Patches) -> None:
    """Refuse ``fully_shard`` if a replica has one worker: there is nothing to shard over."""

    def fully_shard(*_: Any, **__: Any) -> Any:
        refuse(
            f"{call_site()}: fully_shard shards over the workers of a replica, and each has one "
            "here. Give --workers-per-replica 2 or more, or leave --inject out, so that all "
            "workers are one world"
        )

    patches.when_imported(MODULE, lambda module: around_everywhere(module, NAME, fully_shard))


def _check(mesh: Any, kwargs: dict[str, Any]) -> None:
    """Refuse any parallelism other than data parallelism over all workers."""
    if not dist.is_initialized():
        return  # torch makes the group, or raises its own error
    size = dist.get_world_size()
    if mesh is not None and (mesh.size() != size or mesh.ndim > DATA_DIMENSIONS_MAX):
        refuse(
            f"{call_site()}: fully_shard over a mesh of {mesh.size()} of {size} ranks in "
            f"{mesh.ndim} dimensions: ftrun heals FSDP2 over all workers, with or without a "
            "dimension that replicates, and no other parallelism beside it"
        )
    if kwargs.get("dp_mesh_dims") is not None:
        refuse(
            f"{call_site()}: fully_shard(dp_mesh_dims=…): ftrun heals FSDP2 alone, and no other "
            "parallelism beside it"
        )
