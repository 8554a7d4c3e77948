"""DTensors, as FSDP2 has them, carried shard by shard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor._ops._math_ops import _NormPartial

from ftrun.base.errors import ProtocolError, UserError
from ftrun.checkpoint import meshes
from ftrun.checkpoint.format import pack, unpack
from ftrun.checkpoint.leaves import clone_of, in_place


@pytest.fixture(scope="module")
def mesh() -> Iterator[DeviceMesh]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def carried(donor: Any, mine: Any) -> Any:
    packed = pack(donor)
    specs = [leaf.spec for leaf in packed.leaves]
    data: list[Any] = [leaf.data for leaf in packed.leaves]
    return unpack(packed.structure, specs, [each.clone() for each in data], pack(mine).leaves)


def test_a_shard_comes_back_on_the_receivers_own_mesh(mesh: DeviceMesh) -> None:
    donor = distribute_tensor(torch.randn(6, 4), mesh, [Shard(0)])
    mine = distribute_tensor(torch.zeros(6, 4), mesh, [Shard(0)])
    healed = carried({"w": donor}, {"w": mine})["w"]
    assert isinstance(healed, DTensor)
    assert healed.device_mesh is mine.device_mesh
    assert torch.equal(healed.to_local(), donor.to_local())
    assert (healed.placements, healed.shape) == (donor.placements, donor.shape)


def test_moments_that_a_fresh_optimizer_lacks_take_their_parameters_mesh(mesh: DeviceMesh) -> None:
    def build() -> tuple[torch.nn.Parameter, torch.optim.Optimizer]:
        parameter = torch.nn.Parameter(distribute_tensor(torch.ones(4, 2), mesh, [Shard(0)]))
        return parameter, torch.optim.Adam([parameter])

    def state(parameter: torch.nn.Parameter, adam: torch.optim.Optimizer) -> dict[str, Any]:
        return {"model": {"w": parameter.detach()}, "optimizer": adam.state_dict()}

    donor, mine = build(), build()
    donor[0].sum().backward()
    donor[1].step()
    healed = carried(state(*donor), state(*mine))
    mine[1].load_state_dict(healed["optimizer"])
    moments = mine[1].state[mine[0]]["exp_avg"]
    assert torch.equal(moments.to_local(), donor[1].state[donor[0]]["exp_avg"].to_local())


@pytest.mark.parametrize("mine", ["plain", "replicated"])
def test_another_sharding_is_refused_with_its_key(mesh: DeviceMesh, mine: str) -> None:
    donor = {"w": distribute_tensor(torch.ones(4, 2), mesh, [Shard(0)])}
    here = torch.ones(4, 2)
    own = here if mine == "plain" else distribute_tensor(here, mesh, [Replicate()])
    with pytest.raises(UserError, match="'w' is a DTensor"):
        carried(donor, {"w": own})


def test_a_shard_is_written_in_place(mesh: DeviceMesh) -> None:
    mine = distribute_tensor(torch.zeros(6, 4), mesh, [Shard(0)])
    [leaf] = pack({"w": mine}).leaves
    memory = in_place(leaf, leaf.spec)
    assert memory is not None
    assert memory.data_ptr() == mine.to_local().data_ptr()


def test_a_receiver_that_holds_nothing_makes_the_mesh(mesh: DeviceMesh) -> None:
    """As torchft's transports do; it has no process groups, since only the local part came."""
    for placement in (Shard(1), Replicate(), Partial("sum")):
        donor = DTensor.from_local(torch.randn(4, 6), mesh, [placement], run_check=False)
        healed = carried({"w": donor}, {})["w"]
        assert healed._spec == donor._spec
        assert torch.equal(healed.to_local(), donor.to_local())


@pytest.mark.parametrize(
    "text",
    ["", "[]", '[["odd"],[2],[1],"cpu",[1],null,null]', '[[],[2],[1],"cpu",[9,9,99999],null,null]'],
    ids=["no text", "nothing", "a placement", "a mesh"],
)
def test_what_describes_no_mesh_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError, match="a DTensor cannot be made"):
        meshes.rebuild(text, torch.ones(2))


def test_one_of_another_shape_takes_the_mesh_of_what_is_here(mesh: DeviceMesh) -> None:
    """As a norm that a replacement has not computed yet: collectives go on with it."""
    mine = {"w": distribute_tensor(torch.zeros(6, 4), mesh, [Shard(0)])}
    for placement in (Shard(1), Replicate(), Partial("sum"), _NormPartial(2.0)):
        donor = DTensor.from_local(torch.randn(3, 5), mesh, [placement], run_check=False)
        healed = carried({"norm": donor}, mine)["norm"]
        assert healed.device_mesh is mesh
        assert healed._spec == donor._spec
        assert torch.equal(healed.full_tensor(), donor.full_tensor())


def test_summands_are_no_part_of_a_whole(mesh: DeviceMesh) -> None:
    shard, summand = (
        DTensor.from_local(torch.ones(4), mesh, [placement], run_check=False)
        for placement in (Shard(0), Partial("sum"))
    )
    assert meshes.chunk_of(shard) == (0,)
    assert meshes.chunk_of(summand) is None


def test_a_copy_of_a_shard_makes_no_rule_of_dtensors(mesh: DeviceMesh) -> None:
    sharded: Any = distribute_tensor(torch.arange(6.0).view(3, 2), mesh, [Shard(0)])
    dispatcher: Any = DTensor
    propagator, made = dispatcher._op_dispatcher.sharding_propagator, list[Any]()
    propagator.propagate_op_sharding_non_cached = made.append
    try:
        copy: Any = clone_of(sharded)
    finally:
        del propagator.propagate_op_sharding_non_cached
    assert not made
    assert (copy.placements, copy.device_mesh, copy.requires_grad) == ((Shard(0),), mesh, False)
    assert copy._local_tensor.data_ptr() != sharded._local_tensor.data_ptr()
    assert torch.equal(copy.to_local(), sharded.to_local())


def test_the_text_of_a_shard_follows_what_its_ranks_begin_at(mesh: DeviceMesh) -> None:
    sharded = distribute_tensor(torch.zeros(4, 2), mesh, [Shard(0)])
    other = distribute_tensor(torch.zeros(4, 3), mesh, [Shard(0)])
    before = meshes.describe(sharded)
    assert meshes.describe(sharded) == before != meshes.describe(other)
    meshes.count_from(1)
    try:
        assert meshes.describe(sharded) != before
    finally:
        meshes.count_from(0)
    assert meshes.describe(sharded) == before
