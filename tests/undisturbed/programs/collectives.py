"""Each collective, with its kinds of arguments and of results. For three ranks."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from tests.undisturbed.table import outcome, program, rank, run, size


def mine(*shape: int, dtype: Any = torch.float32) -> torch.Tensor:
    """A tensor of this rank's own."""
    return torch.full(shape or (4,), rank() + 2, dtype=dtype)


def reduced(op: Any, dtype: Any = torch.int64) -> torch.Tensor:
    """The all-reduce of each rank's own tensor."""
    tensor = torch.arange(4).add(rank() + 1).to(dtype)
    dist.all_reduce(tensor, op)
    return tensor


@program
def all_reduce_sum() -> Any:
    return reduced(ReduceOp.SUM, torch.float32)


@program
def all_reduce_min_max() -> Any:
    return [reduced(op, torch.float32) for op in (ReduceOp.MIN, ReduceOp.MAX)]


@program
def all_reduce_product() -> Any:
    return reduced(ReduceOp.PRODUCT, torch.float64)


@program
def all_reduce_bits() -> Any:
    return [reduced(op) for op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)]


@program
def all_reduce_bits_of_floats() -> Any:
    return outcome(lambda: reduced(ReduceOp.BAND, torch.float32))


@program
def all_reduce_average() -> Any:
    kinds = (torch.float32, torch.int64)
    return [outcome(lambda kind=kind: reduced(ReduceOp.AVG, kind)) for kind in kinds]  # type: ignore[misc]


@program
def all_reduce_premul_sum() -> Any:
    return outcome(lambda: reduced(torch.distributed._make_nccl_premul_sum(2.0), torch.float32))


@program
def all_reduce_integers() -> Any:
    kinds = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
    return [outcome(lambda kind=kind: reduced(ReduceOp.SUM, kind)) for kind in kinds]  # type: ignore[misc]


@program
def all_reduce_floats() -> Any:
    kinds = (torch.float16, torch.bfloat16, torch.float64)
    return [outcome(lambda kind=kind: reduced(ReduceOp.SUM, kind)) for kind in kinds]  # type: ignore[misc]


@program
def all_reduce_complex() -> Any:
    tensor = torch.complex(mine(2), mine(2) * 3)
    dist.all_reduce(tensor)
    return [tensor, outcome(lambda: reduced(ReduceOp.MAX, torch.complex64))]


@program
def all_reduce_bool() -> Any:
    tensor = torch.tensor([rank() == 0, True, False])
    return [outcome(lambda: dist.all_reduce(tensor)), tensor]


@program
def all_reduce_of_a_scalar_and_of_nothing() -> Any:
    scalar, nothing = torch.tensor(float(rank())), torch.zeros(0)
    dist.all_reduce(scalar)
    return [scalar, outcome(lambda: dist.all_reduce(nothing)), nothing]


@program
def all_reduce_of_a_view() -> Any:
    whole = torch.zeros(4, 4)
    row, column = whole[1], whole[:, 2]
    row.fill_(rank() + 1)
    dist.all_reduce(row)
    return [whole, outcome(lambda: dist.all_reduce(column))]


@program
def all_reduce_large() -> Any:
    tensor = torch.arange(1 << 18, dtype=torch.float32).remainder(97) + rank()
    dist.all_reduce(tensor)
    return [tensor.sum().item(), tensor[-3:]]


@program
def all_reduce_with_a_gradient() -> Any:
    tensor = torch.ones(2, requires_grad=True)
    found = outcome(lambda: dist.all_reduce(tensor))
    with torch.no_grad():
        dist.all_reduce(tensor)
    return [found, tensor]


@program
def all_reduce_async() -> Any:
    tensors = [mine(5) * number for number in range(4)]
    works = [dist.all_reduce(x, async_op=True) for x in tensors]
    for work in works:
        work.wait()
    return [*tensors, [x.is_completed() for x in works], [isinstance(x, dist.Work) for x in works]]


@program
def all_reduce_waits_backwards() -> Any:
    tensors = [mine(3) * number for number in range(3)]
    works = [dist.all_reduce(x, async_op=True) for x in tensors]
    return [*[x.wait() for x in reversed(works)], *tensors]


@program
def all_reduce_future_then() -> Any:
    tensor = mine()
    work = dist.all_reduce(tensor, async_op=True)
    chained = work.get_future().then(lambda future: [x * 2 for x in future.value()])
    found = chained.wait()
    work.wait()
    return [found, tensor]


@program
def futures_of_several_collected() -> Any:
    tensors = [mine(2) + number for number in range(3)]
    works = [dist.all_reduce(x, async_op=True) for x in tensors]
    found = torch.futures.wait_all([work.get_future() for work in works])
    return [len(found), [type(x).__name__ for x in found], *tensors]


@program
def work_facts() -> Any:
    work = dist.all_reduce(mine(), async_op=True)
    waited = work.wait(timedelta(seconds=60))
    return [
        waited,
        work.is_completed(),
        outcome(work.is_success),
        outcome(work.exception),
        outcome(work.result),
    ]


@program
def all_reduce_returns() -> Any:
    return [dist.all_reduce(mine()), dist.barrier(), dist.broadcast(mine(), 0)]


@program
def all_reduce_coalesced() -> Any:
    tensors = [mine(), mine(2, 2)]
    dist.all_reduce_coalesced(tensors)
    work = dist.all_reduce_coalesced(tensors, async_op=True)
    return [type(work).__name__, outcome(work.wait), *tensors]


@program
def reduce() -> Any:
    found = []
    for root in range(size()):
        tensor = mine()
        dist.reduce(tensor, root, ReduceOp.MAX if root else ReduceOp.SUM)
        found.append(tensor if rank() == root else None)
    return found


@program
def broadcast() -> Any:
    found = []
    for root in range(size()):
        tensor = mine(2, 3)
        dist.broadcast(tensor, root)
        found.append(tensor)
    kinds = (torch.int8, torch.bool, torch.bfloat16, torch.complex64, torch.float64)
    for kind in kinds:
        tensor = torch.tensor([rank() % 2, 1]).to(kind)
        dist.broadcast(tensor, src=1)
        found.append(tensor)
    return found


@program
def broadcast_async() -> Any:
    tensor = mine()
    work = dist.broadcast(tensor, 1, async_op=True)
    found = work.get_future().wait()
    work.wait()
    return [found, tensor]


@program
def all_gather() -> Any:
    parts = [torch.zeros(2, 2) for _ in range(size())]
    dist.all_gather(parts, mine(2, 2))
    kinds = (torch.int32, torch.bool, torch.float16, torch.complex128)
    found = []
    for kind in kinds:
        typed = [torch.zeros(2, dtype=kind) for _ in range(size())]
        dist.all_gather(typed, torch.tensor([rank(), 1]).to(kind))
        found.append(typed)
    return [parts, found]


@program
def all_gather_async() -> Any:
    parts = [torch.zeros(2) for _ in range(size())]
    work = dist.all_gather(parts, mine(2), async_op=True)
    found = work.get_future().wait()
    return [work.wait(), parts, found]


@program
def all_gather_of_unlike_sizes() -> Any:
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(size())]
    dist.all_gather(sizes, torch.tensor([rank() + 1]))
    longest = int(max(sizes))
    padded = torch.zeros(longest)
    padded[: rank() + 1] = rank() + 1
    parts = [torch.zeros(longest) for _ in range(size())]
    dist.all_gather(parts, padded)
    return [x[: int(length)] for x, length in zip(parts, sizes, strict=True)]


@program
def all_gather_into_tensor() -> Any:
    stacked, joined = torch.zeros(size(), 2), torch.zeros(size() * 2)
    dist.all_gather_into_tensor(stacked, mine(2))
    work = dist.all_gather_into_tensor(joined, mine(2), async_op=True)
    work.wait()
    return [stacked, joined]


@program
def all_gather_coalesced() -> Any:
    outputs = [[torch.zeros(2), torch.zeros(3)] for _ in range(size())]
    said = outcome(lambda: dist.all_gather_coalesced(outputs, [mine(2), mine(3)]))
    return [said, outputs]


@program
def gather() -> Any:
    found: list[Any] = []
    for root in range(size()):
        parts = [torch.zeros(2) for _ in range(size())] if rank() == root else None
        dist.gather(mine(2), parts, root)
        found.append(parts)
    return found


@program
def gather_by_branches() -> Any:
    if rank() == 0:
        parts = [torch.zeros(2) for _ in range(size())]
        dist.gather(mine(2), parts)
        return parts
    dist.gather(mine(2))
    return None


@program
def scatter() -> Any:
    found = []
    for root in range(size()):
        output = torch.zeros(2)
        parts = [mine(2) * place for place in range(size())] if rank() == root else None
        dist.scatter(output, parts, root)
        found.append(output)
    return found


@program
def scatter_async() -> Any:
    output = torch.zeros(2, dtype=torch.int32)
    parts = [mine(2, dtype=torch.int32) * place for place in range(size())]
    work = dist.scatter(output, parts if rank() == 1 else None, src=1, async_op=True)
    work.wait()
    return output


@program
def reduce_scatter() -> Any:
    output, top = torch.zeros(2), torch.zeros(2, dtype=torch.int64)
    dist.reduce_scatter(output, [mine(2) * place for place in range(size())])
    inputs = [mine(2, dtype=torch.int64) * place for place in range(size())]
    said = outcome(lambda: dist.reduce_scatter(top, inputs, ReduceOp.MAX))
    return [output, said, top, inputs]


@program
def reduce_scatter_tensor() -> Any:
    output, given = torch.zeros(2), torch.arange(2.0 * size()) * (rank() + 1)
    dist.reduce_scatter_tensor(output, given)
    rows = torch.zeros(1, 2)
    work = dist.reduce_scatter_tensor(rows, given.view(size(), 2), async_op=True)
    work.wait()
    return [output, rows, given]


@program
def reduce_scatter_large() -> Any:
    torch.manual_seed(rank())
    found = []
    for count in (70_000, 131_073):
        for is_async, operation in itertools.product((False, True), (ReduceOp.SUM, ReduceOp.AVG)):
            output, given = torch.zeros(count), torch.randn(count * size())
            work = dist.reduce_scatter_tensor(output, given, operation, async_op=is_async)
            if work is not None:
                work.wait()
            found.append([x.view(torch.int32).sum() for x in (output, given)])
    return found


@program
def reduce_scatter_average() -> Any:
    output = torch.zeros(2)
    given = torch.ones(2 * size())
    return outcome(lambda: dist.reduce_scatter_tensor(output, given, ReduceOp.AVG))


@program
def all_to_all() -> Any:
    outputs = [torch.zeros(2) for _ in range(size())]
    dist.all_to_all(outputs, [mine(2) * 10 + place for place in range(size())])
    return outputs


@program
def all_to_all_of_unlike_sizes() -> Any:
    outputs = [torch.zeros(rank() + 1) for _ in range(size())]
    inputs = [mine(place + 1) for place in range(size())]
    return [outcome(lambda: dist.all_to_all(outputs, inputs)), outputs]


@program
def all_to_all_single() -> Any:
    output = torch.zeros(size(), dtype=torch.int64)
    dist.all_to_all_single(output, torch.arange(size()) + 10 * rank())
    later = torch.zeros(size(), 2)
    work = dist.all_to_all_single(later, mine(size(), 2), async_op=True)
    work.wait()
    return [output, later]


@program
def all_to_all_single_uneven() -> Any:
    given = [place + 1 for place in range(size())]
    got = [rank() + 1] * size()
    output = torch.zeros(sum(got))
    dist.all_to_all_single(output, torch.arange(float(sum(given))) + 100 * rank(), got, given)
    return output


@program
def barriers() -> Any:
    dist.barrier()
    work = dist.barrier(async_op=True)
    work.wait()
    return [work.is_completed(), dist.monitored_barrier(timeout=timedelta(seconds=60))]


@program
def monitored_barrier_of_all_ranks() -> Any:
    return dist.monitored_barrier(timeout=timedelta(seconds=60), wait_all_ranks=True)


@program
def rank_0_first() -> Any:
    found = ["before"]
    if rank() != 0:
        dist.barrier()
    found.append("prepared")
    if rank() == 0:
        dist.barrier()
    dist.barrier()
    return found


@program
def coalescing_manager() -> Any:
    tensors = [mine(), mine(2)]

    def both() -> None:
        with dist._coalescing_manager(group=None, async_ops=False):
            for tensor in tensors:
                dist.all_reduce(tensor)

    return [outcome(both), tensors]


@program
def coalescing_manager_async() -> Any:
    tensors = [mine(), mine(2)]

    def both() -> None:
        with dist._coalescing_manager(async_ops=True) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor)
        manager.wait()

    return [outcome(both), tensors]


@program
def coalesced_gathers() -> Any:
    outputs, inputs = [torch.zeros(2 * size()), torch.zeros(size())], [mine(2), mine(1)]

    def both() -> None:
        with dist._coalescing_manager():
            for output, tensor in zip(outputs, inputs, strict=True):
                dist.all_gather_into_tensor(output, tensor)

    return [outcome(both), outputs]


@program
def wrong_arguments() -> Any:
    parts = [torch.zeros(2) for _ in range(size())]
    calls: list[Any] = [
        lambda: dist.all_reduce("text"),
        lambda: dist.all_reduce([mine()]),
        lambda: dist.all_reduce(mine(), "sum"),
        lambda: dist.broadcast(mine(), size()),
        lambda: dist.broadcast(mine(), -1),
        lambda: dist.broadcast(mine()),
        lambda: dist.reduce(mine(), size() + 3),
        lambda: dist.all_gather(parts[:-1], mine(2)),
        lambda: dist.all_gather(parts, mine(2, dtype=torch.int32)),
        lambda: dist.all_gather(parts, mine(3)),
        lambda: dist.all_gather_into_tensor(torch.zeros(1), mine(2)),
        lambda: dist.all_gather_into_tensor(torch.zeros(2 * size(), dtype=torch.int64), mine(2)),
    ]
    return [outcome(call) for call in calls]


@program
def wrong_arguments_by_rank() -> Any:
    parts = [torch.zeros(2) for _ in range(size())]
    output = torch.zeros(2)
    calls: list[Any] = [
        lambda: dist.gather(mine(2), parts if rank() else None, 0),
        lambda: dist.gather(mine(2), parts[:1], rank()),
        lambda: dist.scatter(output, None, rank()),
        lambda: dist.scatter(output, parts[:1], rank()),
        lambda: dist.scatter(output, parts, (rank() + 1) % size()),
        lambda: dist.reduce_scatter(output, parts[:1]),
        lambda: dist.reduce_scatter_tensor(output, torch.zeros(1)),
        lambda: dist.all_to_all(parts[:1], parts),
        lambda: dist.all_to_all_single(torch.zeros(1), torch.zeros(size()), None, None),
        lambda: dist.all_to_all_single(output, torch.zeros(4), [1], [4]),
        lambda: dist.send(mine(), rank()),
        lambda: dist.isend("text", 0),  # type: ignore[arg-type]
    ]
    return [outcome(call, has_words=False) for call in calls]


@program
def sparse_tensor() -> Any:
    index = torch.tensor([[rank(), 2], [0, 1]])
    tensor = torch.sparse_coo_tensor(index, torch.tensor([1.0, rank() + 1.0]), (4, 2))

    def reduced_one() -> Any:
        dist.all_reduce(tensor)
        return tensor.to_dense()

    return outcome(reduced_one)


@program
def meta_tensor() -> Any:
    from torch._subclasses import FakeTensorMode

    meta = torch.empty(2, device="meta")
    with FakeTensorMode():
        fake = torch.ones(3)
        said = outcome(lambda: dist.all_reduce(fake))
    return [outcome(lambda: dist.all_reduce(meta)), said, dist.get_rank()]


@program
def parameters_and_subclasses() -> Any:
    parameter = torch.nn.Parameter(mine(2))
    with torch.no_grad():
        dist.broadcast(parameter, 0)
        dist.all_reduce(parameter.data)
    return parameter


@program
def in_place_many_times() -> Any:
    tensor = torch.ones(3)
    for _ in range(50):
        dist.all_reduce(tensor)
        tensor /= size()
    return tensor


@program
def metric_average() -> Any:
    total = torch.tensor([0.1 * (rank() + 1), rank() + 1.0], dtype=torch.float64)
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


if __name__ == "__main__":
    run(timeout=timedelta(seconds=25))
