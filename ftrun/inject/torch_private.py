"""The private names of torch that ftrun uses, which a new version of torch may remove.

A script is carried only if the installed torch has those in ``NEEDED``, because a missing name
would be an error in the middle of training. ``tests/unit/inject/test_torch_private.py`` compares
both tables with ftrun's source and with torch's, and the methods of the script's groups with those
that torch calls. Read it before supporting a new version of torch.

Not here: the use of each name, which is documented where it is used.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

_C10D = "torch.distributed.distributed_c10d"
_GROUP = "torch._C._distributed_c10d.ProcessGroup"
_DDP = "torch.nn.parallel.distributed.DistributedDataParallel"

NEEDED: Mapping[str, tuple[str, ...]] = {
    "torch": ("_foreach_mul_",),
    "torch.Tensor": ("_version",),
    "torch._C": ("_len_torch_dispatch_stack",),
    "torch._C.Future": ("_set_unwrap_func",),
    "torch._C._autograd": ("_profiler_enabled",),
    "torch._C._distributed_c10d": (
        "_broadcast_coalesced",
        "_create_work_from_future",
    ),
    "torch._C._distributed_c10d.Reducer": (
        "_get_zeros_like_grad_buckets",
        "_push_all_rebuilt_params",
        "_rebuild_buckets",
        "_set_static_graph",
    ),
    "torch.autograd": ("_unsafe_preserve_version_counter",),
    "torch.autograd.Variable": ("_execution_engine",),
    _C10D: (
        "_get_default_group",
        "_new_process_group_helper",
        "_object_to_tensor",
        "_tensor_to_object",
        "_world",
    ),
    _GROUP: ("_get_backend", "_register_backend", "_set_default_backend"),
    "torch._C._distributed_c10d.ProcessGroupGloo": ("_Options", "_set_default_timeout"),
    "torch._C._distributed_c10d.ProcessGroupGloo._Options": ("_devices", "_threads", "_timeout"),
    _DDP: (
        "_build_debug_param_to_name_mapping",
        "_build_params_for_reducer",
        "_check_sync_bufs_pre_fwd",
        "_ddp_init_helper",
        "_distributed_broadcast_coalesced",
        "_sync_buffers",
    ),
    "torch.distributed.utils": ("_sync_module_states", "_verify_param_shape_across_processes"),
    "torch.distributed.rendezvous": ("_rendezvous_handlers",),
    "torch.optim.Optimizer": ("_patch_step_function",),
    "torch.utils.data._utils.fetch": ("_MapDatasetFetcher",),
}
"""By owner, the names without which ftrun cannot carry a script."""

OTHERWISE: Mapping[str, tuple[str, ...]] = {
    "torch._C._dynamo.eval_frame": ("_FrameAction", "_FrameExecStrategy"),
    "torch.amp.GradScaler": ("_per_optimizer_states",),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
    "torch.distributed.elastic.multiprocessing.api.LogsSpecs": (
        "_local_ranks_filter",
        "_redirects",
        "_tee",
    ),
    "torch.distributed.fsdp.FSDPModule": ("_get_fsdp_state",),
    "torch.distributed.fsdp._fully_shard._fsdp_state.FSDPState": (
        "_fsdp_param_group",  # torch < 2.13
        "_fsdp_param_groups",
    ),
    "torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup": (
        "_post_forward_indices",
    ),
    "torch.distributed.rendezvous": ("_create_c10d_store", "_torchelastic_use_agent_store"),
    "torch.distributed._serialization": ("_streaming_load", "_streaming_save"),
    "torch.distributed.tensor.DTensor": ("_local_tensor", "_spec"),
    "torch.distributed.tensor._dtensor_spec": ("DTensorSpec", "TensorMeta"),
    "torch.distributed.tensor._ops._math_ops": ("_NormPartial",),
    "torch.nn.Module": ("_buffers", "_non_persistent_buffers_set"),
    _DDP: (
        "_comm_hooks",
        "_has_rebuilt_buckets",
        "_module_parameters",
        "_static_graph_delay_allreduce_enqueued",
    ),
    "torch.optim.lr_scheduler.LRScheduler": ("_is_initial",),
    "torch.utils": ("_pytree",),
    "torch.utils.data.dataloader._BaseDataLoaderIter": ("_num_yielded", "_sampler_iter"),
    "torch.utils.data.dataloader._MultiProcessingDataLoaderIter": ("_rcvd_idx", "_send_idx"),
    "torch.compiler": ("_torchdynamo_disable",),  # of functions
}
"""By owner, the names of objects, which cannot be checked on a class, and names that only one
command needs or for which ftrun has a substitute."""


def missing() -> list[str]:
    """The needed names that this torch lacks, among its imported modules."""
    found = []
    for owner, names in NEEDED.items():
        holder = _imported(owner)
        found += [
            f"{owner}.{name}" for name in names if holder is not None and not hasattr(holder, name)
        ]
    return found


def _imported(owner: str) -> object | None:
    """The module or the class of a name; None: its module is not imported."""
    module, _, rest = owner, "", ""
    while module not in sys.modules:
        module, _, last = module.rpartition(".")
        if not module:
            return None
        rest = f"{last}.{rest}".rstrip(".")
    holder: object = sys.modules[module]
    for name in filter(None, rest.split(".")):
        if not hasattr(holder, name):
            return None
        holder = getattr(holder, name)
    return holder
