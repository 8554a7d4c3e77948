"""Process groups, meshes, messages between two ranks, objects. For four ranks."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import init_device_mesh

from tests.undisturbed.table import outcome, program, rank, run, size

LIMIT = timedelta(seconds=90)


def mine(*shape: int, dtype: Any = torch.float32) -> torch.Tensor:
    """A tensor of this rank's own."""
    return torch.full(shape or (2,), rank() + 2, dtype=dtype)


def total(group: Any) -> Any:
    """The sum over a group, if this rank is in it."""
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        return "not a member"
    tensor = mine()
    dist.all_reduce(tensor, group=group)
    return tensor


@program
def facts_of_the_world() -> Any:
    group = dist.group.WORLD
    return [
        dist.is_initialized(),
        dist.is_available(),
        dist.get_rank(),
        dist.get_world_size(),
        dist.get_backend(),
        dist.get_backend_config(),
        dist.get_process_group_ranks(group),
        dist.get_process_group_ranks(None),
        [outcome(lambda at=at: dist.get_group_rank(group, at)) for at in range(size() + 1)],  # type: ignore[misc]
        outcome(lambda: dist.get_global_rank(group, 1)),
        isinstance(group, dist.ProcessGroup),
        group.size(),
        group.rank(),
        group.name(),
        group.group_name,
        group.group_desc,
        group.bound_device_id,
        dist.get_node_local_rank(0),
        dist.is_torchelastic_launched(),
        distributed_c10d._get_pg_default_device(),
        distributed_c10d._get_object_coll_device(),
        distributed_c10d.get_pg_count(),
        distributed_c10d.get_default_backend_for_device("cpu"),
    ]


@program
def names_of_the_groups() -> Any:
    subset = dist.new_group([0, 2], group_desc="mine")
    whole = dist.new_group()
    found = [whole.group_name, whole.group_desc]
    if rank() in (0, 2):
        found += [subset.group_name, subset.group_desc, subset.size(), subset.rank()]
    return found


@program
def subsets() -> Any:
    found = []
    for ranks in ([0, 1], [1, 3], [3, 0], [2], list(range(size()))):
        group = dist.new_group(ranks)
        found.append([total(group), outcome(lambda: dist.get_rank(group))])  # noqa: B023
        found.append(outcome(lambda: dist.get_process_group_ranks(group)))  # noqa: B023
    return found


@program
def group_with_a_backend_and_timeouts() -> Any:
    long = dist.new_group(backend="gloo", timeout=timedelta(days=10_000))
    typed = dist.new_group([0, 1], backend=dist.Backend.GLOO, timeout=LIMIT)
    by_device = dist.new_group(backend="cpu:gloo")
    found = [total(long), total(typed), total(by_device)]
    found += [
        dist.get_backend(long),
        dist.get_backend(by_device),
        dist.get_backend_config(by_device),
    ]
    return [*found, outcome(lambda: dist.get_backend(typed))]


@program
def wrong_groups() -> Any:
    return [
        outcome(lambda: dist.new_group([0, 0])),
        outcome(lambda: dist.new_group([0, 9])),
        outcome(lambda: dist.new_group(list(range(9)))),
        outcome(lambda: dist.new_group(backend="nonsense")),
        outcome(lambda: dist.new_group(backend="nccl")),
        outcome(lambda: dist.new_group(timeout=5)),
        outcome(lambda: dist.all_reduce(mine(), group="default")),
    ]


@program
def subgroups() -> Any:
    own, groups = dist.new_subgroups(2)
    found = [total(own), len(groups), dist.get_process_group_ranks(own)]
    own, groups = dist.new_subgroups_by_enumeration([[0, 3], [1, 2]])
    return [*found, total(own), dist.get_rank(own), outcome(lambda: dist.new_subgroups(3))]


@program
def split_group() -> Any:
    return outcome(lambda: dist.split_group(split_ranks=[[0, 1], [2, 3]]))


@program
def a_group_destroyed_and_made_again() -> Any:
    found = []
    for _ in range(2):
        group = dist.new_group([0, 1, 2], timeout=LIMIT)
        found.append(total(group))
        if rank() < 3:
            dist.destroy_process_group(group)
            found.append(outcome(lambda: dist.all_reduce(mine(), group=group)))  # noqa: B023
    return found


@program
def collectives_of_a_subgroup() -> Any:
    group = dist.new_group([1, 3])
    if rank() not in (1, 3):
        return outcome(lambda: dist.broadcast(mine(), 1, group=group))
    given, parts, whole = mine(), [torch.zeros(2) for _ in range(2)], torch.zeros(4)
    dist.broadcast(given, 3, group=group)
    dist.all_gather(parts, mine(), group=group)
    dist.all_gather_into_tensor(whole, mine(), group=group)
    part = torch.zeros(2)
    dist.reduce_scatter_tensor(part, whole * (rank() + 1), group=group)
    first = mine()
    dist.reduce(first, group_dst=0, group=group)
    dist.barrier(group)
    objects: list[Any] = [None, None]
    dist.all_gather_object(objects, {"rank": rank()}, group=group)
    wrong = outcome(lambda: dist.broadcast(mine(), 0, group=group))
    return [given, parts, whole, part, first if rank() == 1 else None, objects, wrong]


@program
def ranks_of_a_group_in_another_order() -> Any:
    group = dist.new_group([2, 0, 1], use_local_synchronization=False)
    if rank() == 3:
        return None
    parts = [torch.zeros(2) for _ in range(3)]
    dist.all_gather(parts, mine(), group=group)
    return [parts, dist.get_rank(group), dist.get_process_group_ranks(group)]


@program
def a_group_by_its_members_alone() -> Any:
    ranks = [0, 1] if rank() < 2 else [2, 3]
    return total(dist.new_group(ranks, use_local_synchronization=True))


@program
def groups_used_at_once() -> Any:
    groups = [dist.new_group() for _ in range(3)]
    tensors = [mine() * number for number in range(3)]
    works = [
        dist.all_reduce(x, group=group, async_op=True)
        for x, group in zip(tensors, groups, strict=True)
    ]
    for work in reversed(works):
        work.wait()
    return tensors


@program
def send_and_receive() -> Any:
    if rank() == 0:
        dist.send(mine(), 1)
        dist.send(mine(3, dtype=torch.int64), dst=1, tag=7)
        return None
    if rank() == 1:
        first, second = torch.zeros(2), torch.zeros(3, dtype=torch.int64)
        found = dist.recv(first, 0)
        return [found, dist.recv(second, src=0, tag=7), first, second]
    return None


@program
def messages_by_tag_out_of_order() -> Any:
    if rank() == 2:
        works = [dist.isend(mine() * tag, 3, tag=tag) for tag in (1, 2)]
        return [work.wait() for work in works]
    if rank() == 3:
        tensors = [torch.zeros(2), torch.zeros(2)]
        works = [dist.irecv(x, 2, tag=tag) for x, tag in zip(tensors, (2, 1), strict=True)]
        return [[work.wait() for work in works], tensors]
    return None


@program
def receive_from_any() -> Any:
    dist.barrier()
    if rank() == 0:
        found = []
        for _ in range(size() - 1):
            tensor = torch.zeros(2)
            found.append((dist.recv(tensor), tensor.tolist()))
        return sorted(found)
    dist.send(mine(), 0)
    return None


@program
def ring() -> Any:
    tensor = torch.zeros(2)
    later, before = (rank() + 1) % size(), (rank() - 1) % size()
    work = dist.isend(mine(), later)
    dist.recv(tensor, before)
    work.wait()
    operations = [dist.P2POp(dist.isend, mine() * 2, later), dist.P2POp(dist.irecv, tensor, before)]
    works = dist.batch_isend_irecv(operations)
    return [[x.wait() for x in works], tensor]


@program
def messages_in_a_subgroup() -> Any:
    group = dist.new_group([1, 2])
    tensor = torch.zeros(2)
    if rank() == 1:
        dist.send(mine(), 2, group=group)
        dist.recv(tensor, group_src=1, group=group)
    elif rank() == 2:
        dist.recv(tensor, 1, group=group)
        dist.send(tensor * 10, group_dst=0, group=group)
    return tensor


@program
def pipeline_of_stages() -> Any:
    x = torch.ones(2) if rank() == 0 else torch.zeros(2)
    if rank() > 0:
        dist.recv(x, rank() - 1)
    x = x * 2 + rank()
    if rank() < size() - 1:
        dist.send(x, rank() + 1)
    return x


@program
def objects_of_all() -> Any:
    found: list[Any] = [None] * size()
    dist.all_gather_object(found, {"rank": rank(), "text": "x" * rank()})
    return found


@program
def objects_broadcast() -> Any:
    found = ["run", {"seed": 7}] if rank() == 1 else [None, None]
    dist.broadcast_object_list(found, 1)
    return found


@program
def objects_gathered() -> Any:
    found: Any = [None] * size() if rank() == 2 else None
    dist.gather_object((rank(), [1.5] * rank()), found, 2)
    return found


@program
def objects_scattered() -> Any:
    output: list[Any] = [None]
    given = [{"part": place} for place in range(size())] if rank() == 0 else [None] * size()
    dist.scatter_object_list(output, given, 0)
    return [output, outcome(lambda: dist.scatter_object_list([], given, 0))]


@program
def objects_sent() -> Any:
    found: list[Any] = [None, None]
    if rank() == 0:
        dist.send_object_list([1, "two"], 3)
    elif rank() == 3:
        source = dist.recv_object_list(found, 0)
        return [found, source]
    return None


@program
def object_that_cannot_travel() -> Any:
    return outcome(lambda: dist.all_gather_object([None] * size(), lambda: 1), has_words=False)


@program
def mesh_of_two_dimensions() -> Any:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    found = [mesh.get_coordinate(), mesh.shape, mesh.mesh, mesh.size(), mesh.ndim]
    for name in ("dp", "tp"):
        found += [total(mesh[name].get_group()), mesh[name].get_local_rank(), mesh[name].size()]
    return found


@program
def mesh_flattened() -> Any:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    flat = mesh["a", "b"]._flatten("ab")
    return [total(flat.get_group()), flat.get_local_rank(), mesh["ab"].size(), repr(flat)]


@program
def mesh_of_some_ranks() -> Any:
    from torch.distributed.device_mesh import DeviceMesh

    mesh = DeviceMesh("cpu", [1, 3])
    inside = mesh.get_coordinate()
    return [inside, total(mesh.get_group()) if inside is not None else None]


@program
def mesh_from_a_group() -> Any:
    from torch.distributed.device_mesh import DeviceMesh

    mesh = DeviceMesh.from_group(dist.group.WORLD, "cpu")
    return [mesh.size(), total(mesh.get_group()), mesh.get_local_rank()]


@program
def wrong_meshes() -> Any:
    return [
        outcome(lambda: init_device_mesh("cpu", (3, 2))),
        outcome(lambda: init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "a"))),
        outcome(lambda: init_device_mesh("cpu", (4,), mesh_dim_names=("a",))["b"]),
    ]


@program
def functional_collectives() -> Any:
    import torch.distributed._functional_collectives as functional

    group = dist.group.WORLD
    return [
        functional.all_reduce(mine(), "sum", group),
        functional.all_gather_tensor(mine(), 0, group),
        functional.reduce_scatter_tensor(torch.ones(8) * rank(), "sum", 0, group),
        functional.all_to_all_single(torch.arange(4) + 10 * rank(), None, None, group),
        functional.broadcast(mine(), 1, group),
        functional.all_reduce_coalesced([mine(), mine(3)], "max", group),
        functional.all_gather_into_tensor_coalesced([mine(1), mine(2)], group),
        functional.reduce_scatter_tensor_coalesced([mine(4), mine(8)], "sum", [0, 0], group),
        functional.permute_tensor(mine(), [1, 2, 3, 0], group),
    ]


@program
def functional_collectives_with_gradients() -> Any:
    import torch.distributed._functional_collectives as functional
    import torch.distributed.nn.functional as through

    group = dist.group.WORLD
    x = mine().requires_grad_()
    (functional.all_gather_tensor_autograd(x, 0, group) * torch.arange(8.0)).sum().backward()
    y = mine().requires_grad_()
    (through.all_reduce(y) * (rank() + 1)).sum().backward()
    z = mine().requires_grad_()
    torch.stack(through.all_gather(z)).mul(rank() + 1).sum().backward()
    return [x.grad, y.grad, z.grad]


@program
def functional_collective_by_mesh() -> Any:
    import torch.distributed._functional_collectives as functional

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("x", "y"))
    return [
        functional.all_reduce(mine(), "sum", (mesh, 0)),
        functional.all_reduce(mine(), "avg", (mesh, 1)),
    ]


@program
def collectives_counted() -> Any:
    from torch.distributed.tensor.debug import CommDebugMode

    mode = CommDebugMode()
    with mode:
        dist.all_reduce(mine())
        dist.broadcast(mine(), 0)
        parts = [torch.zeros(2) for _ in range(size())]
        dist.all_gather(parts, mine())
    return [mode.get_total_counts(), sorted(map(str, mode.get_comm_counts().items()))]


@program
def collectives_profiled() -> Any:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dist.all_reduce(mine())
    names = {event.key for event in profile.key_averages()}
    return sorted(name for name in names if name.startswith(("c10d::", "gloo:")))


@program
def distributed_tensors() -> Any:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (4,))
    tensor = distribute_tensor(torch.randn(8, 8), mesh, [Shard(0)])
    product = tensor @ tensor.redistribute(mesh, [Replicate()])
    return [product.full_tensor().sum(), tensor.to_local().shape, product.placements]


@program
def distributed_tensors_made_on_the_mesh() -> Any:
    from torch.distributed import tensor as tensors

    mesh = init_device_mesh("cpu", (2, 2))
    torch.manual_seed(1)
    made = tensors.rand(4, 4, device_mesh=mesh, placements=[tensors.Shard(0), tensors.Shard(1)])
    norm = made.norm().full_tensor()
    return [made.to_local().shape, made.full_tensor().shape, norm > 0, made.sum().full_tensor() > 0]


@program
def tensor_parallel() -> Any:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(model, init_device_mesh("cpu", (4,)), plan)
    loss = model(torch.ones(2, 8)).pow(2).mean()
    loss.backward()
    return [loss, [parameter.grad.full_tensor().sum() for parameter in model.parameters()]]


@program
def compiled_with_collectives() -> Any:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y)
        whole = torch.zeros(2 * size())
        dist.all_gather_into_tensor(whole, y)
        return whole.sum()

    return torch.compile(function, backend="aot_eager", fullgraph=True)(mine())


@program
def compiled_with_a_subgroup() -> Any:
    import torch.distributed._functional_collectives as functional

    group, _ = dist.new_subgroups(2)

    def function(x: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(x + 1, "sum", group) * 2

    return torch.compile(function, backend="aot_eager", fullgraph=True)(mine())


@program
def checkpoint_saved_and_loaded() -> Any:
    import os
    import tempfile

    import torch.distributed.checkpoint as dcp

    directory = [tempfile.mkdtemp()] if rank() == 0 else [None]
    dist.broadcast_object_list(directory, 0)
    path = os.path.join(str(directory[0]), "checkpoint")
    model = nn.Linear(3, 2)
    dcp.save({"model": model.state_dict(), "step": 3}, checkpoint_id=path)
    other = nn.Linear(3, 2)
    state = {"model": other.state_dict(), "step": 0}
    dcp.load(state, checkpoint_id=path)
    return [
        torch.equal(state["model"]["weight"], model.weight),
        state["step"],
        sorted(os.listdir(path)),
    ]


@program
def checkpoint_of_sharded_tensors() -> Any:
    import os
    import tempfile

    import torch.distributed.checkpoint as dcp
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    directory = [tempfile.mkdtemp()] if rank() == 0 else [None]
    dist.broadcast_object_list(directory, 0)
    mesh = init_device_mesh("cpu", (4,))
    dcp.save(
        {"x": distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])}, checkpoint_id=directory[0]
    )
    state = {"x": distribute_tensor(torch.zeros(8), mesh, [Replicate()])}
    dcp.load(state, checkpoint_id=directory[0])
    names = sorted(x for x in os.listdir(str(directory[0])))
    return [state["x"].full_tensor(), names]


@program
def samplers() -> Any:
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    sampler: Any = DistributedSampler(TensorDataset(torch.arange(10.0)), seed=3)
    found = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        loader = DataLoader(sampler.dataset, 2, sampler=sampler)
        found.append([batch.tolist() for (batch,) in loader])
    return [found, len(sampler)]


@program
def averages_of_a_model() -> Any:
    from torch.distributed.algorithms.model_averaging import averagers, utils

    model = nn.Linear(2, 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(rank())
    utils.average_parameters(iter(model.parameters()), dist.group.WORLD)
    averager = averagers.PeriodicModelAverager(period=1, warmup_steps=0)
    averager.average_parameters(model.parameters())
    return list(model.parameters())


@program
def timeouts_set() -> Any:
    return [outcome(lambda: distributed_c10d._set_pg_timeout(timedelta(seconds=50))), total(None)]


@program
def group_in_a_with_statement_and_as_a_key() -> Any:
    group = dist.new_group()
    known = {group: "mine", dist.group.WORLD: "world"}
    found = [known[group], known[dist.group.WORLD], group == dist.group.WORLD]
    return [*found, distributed_c10d._resolve_process_group(group.group_name) is group]


if __name__ == "__main__":
    run(timeout=LIMIT)
