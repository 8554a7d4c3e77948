"""Quantised collectives between ranks: their bound, equal results on all, aborts."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import AllreduceOptions, ReduceOp, ReduceScatterOptions

from ftrun.process_groups.built import QuantizedWork
from ftrun.process_groups.codec import CODECS, ROW_VALUES, rows_of, write_rows
from ftrun.process_groups.quantized import allreduce_quantized
from ftrun.process_groups.quantized_messages import PIECE_VALUES
from ftrun.torchft import collectives
from tests.suite.properties import examples
from tests.unit.process_groups.quantized_groups import Groups, groups

SUM_BOUND = {"int8": 126, "fp8": 7}


@pytest.fixture(scope="module", params=[2, 3, 4])
def some(request: pytest.FixtureRequest) -> Iterator[Groups]:
    with groups(request.param) as made:
        yield made


def inputs(seed: int, rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    numbers = torch.Generator().manual_seed(seed * 1000 + rank)
    values = torch.randn(shape, generator=numbers) * 10.0 ** (seed % 7 - 3)
    return values.to(dtype)


def bound_of_sum(tensors: list[torch.Tensor], kind: str) -> torch.Tensor:
    """The documented bound, for each value of the sum."""
    rows = [rows_of(t, len(tensors)).double().abs().amax(1, keepdim=True) for t in tensors]
    total = sum(rows, torch.zeros_like(rows[0])).expand(-1, ROW_VALUES) / SUM_BOUND[kind]
    found = torch.zeros(tensors[0].shape, dtype=torch.float64)
    write_rows(total, found)
    return found


@settings(max_examples=examples(20))
@given(seed=st.integers(0, 10**6), count=st.integers(1, 3000), kind=st.sampled_from(list(CODECS)))
def test_an_all_reduce_is_within_its_bound_and_equal_on_all(
    some: Groups, seed: int, count: int, kind: str
) -> None:
    size = len(some.ranks)
    tensors = [inputs(seed, rank, count) for rank in range(size)]
    exact = torch.stack(tensors).double().sum(0)
    bound = bound_of_sum(tensors, kind)

    def reduce(rank: int, group: Any) -> torch.Tensor:
        out = tensors[rank].clone()
        allreduce_quantized([out], ReduceOp.SUM, group, CODECS[kind]).wait()
        return out

    results = some.each(reduce)
    assert all(torch.equal(result, results[0]) for result in results)
    assert ((results[0].double() - exact).abs() <= bound * 1.0001).all()


def test_several_tensors_and_their_mean(some: Groups) -> None:
    size = len(some.ranks)

    def reduce(rank: int, group: Any) -> list[torch.Tensor]:
        options = AllreduceOptions()
        options.reduceOp = ReduceOp.AVG  # type: ignore[assignment]
        given = [inputs(3, rank, 5, 7), inputs(4, rank, 1), inputs(5, rank, 300).view(10, 30).t()]
        assert collectives.allreduce_quantized(given, options, group).wait()
        return given

    results = some.each(reduce)
    for number, shape in ((3, (5, 7)), (4, (1,)), (5, (300,))):
        mean = torch.stack([inputs(number, r, *shape) for r in range(size)]).mean(0)
        mine = [result[number - 3] for result in results]
        mean = mean.view(10, 30).t() if number == 5 else mean
        assert all(torch.equal(one, mine[0]) for one in mine)
        torch.testing.assert_close(mine[0], mean, rtol=0, atol=10.0 ** (number % 7 - 3) * 4 / 100)


def test_a_reduce_scatter_gives_each_rank_its_part(some: Groups) -> None:
    size = len(some.ranks)
    shapes = [(5, 6), (7,)]

    def reduce(rank: int, group: Any) -> torch.Tensor:
        given = [inputs(n, rank, *shape) for n, shape in enumerate(shapes)]
        out, padded = collectives.allocate_reduce_scatter_output(given, size)
        assert padded == collectives.get_padded_sizes(given, size)
        options = ReduceScatterOptions()
        options.reduceOp = ReduceOp.SUM  # type: ignore[assignment]
        assert collectives.reduce_scatter_quantized(out, given, options, group).wait()
        return out

    results = some.each(reduce)
    padded = collectives.get_padded_sizes([torch.ones(shape) for shape in shapes], size)
    for rank, result in enumerate(results):
        at = 0
        for n, (shape, whole) in enumerate(zip(shapes, padded, strict=True)):
            total = torch.zeros(whole)
            exact = sum(inputs(n, r, *shape) for r in range(size))
            total[: shape[0]] = torch.as_tensor(exact).view(shape[0], *whole[1:])
            part = total.reshape(size, -1)[rank]
            scale = 10.0 ** (n % 7 - 3) * size * 4 / 100
            torch.testing.assert_close(result[at : at + part.numel()], part, rtol=0, atol=scale)
            at += part.numel()


def test_what_cannot_be_quantised_is_refused(some: Groups) -> None:
    group = some.ranks[0]
    with pytest.raises(NotImplementedError, match="only AVG and SUM"):
        collectives.allreduce_quantized([torch.ones(3)], ReduceOp.MAX, group)
    with pytest.raises(ValueError, match="int64"):
        collectives.allreduce_quantized([torch.ones(3).long()], ReduceOp.SUM, group)
    with pytest.raises(ValueError, match="one device and one dtype"):
        collectives.allreduce_quantized([torch.ones(3), torch.ones(3).half()], ReduceOp.SUM, group)
    with pytest.raises(ValueError, match="the output has 3 values"):
        collectives.reduce_scatter_quantized(
            torch.ones(3), [torch.ones(8 * len(some.ranks))], ReduceOp.SUM, group
        )


def test_in_the_background_between_other_collectives(some: Groups) -> None:
    """Messages of one all-reduce never meet those of another, nor other collectives."""
    size, codec = len(some.ranks), CODECS["int8"]

    def reduce(rank: int, group: Any) -> list[torch.Tensor]:
        built = group.current()
        works: list[tuple[QuantizedWork, torch.Tensor]] = []
        for number in range(40):
            time.sleep(0.001 * ((number * (rank + 1)) % 3))  # each rank has a pace of its own
            tensor = inputs(number, rank, 1 + number * 37)
            works.append((built.allreduce_quantized(tensor, 1.0, codec), tensor))
            plain = torch.full((10,), float(rank))
            built.allreduce([plain]).wait()
            assert plain[0] == size * (size - 1) / 2
        found = []
        for work, tensor in works:
            assert work.wait() and work.is_completed()
            out = torch.empty_like(tensor)
            work.write(codec, out)
            found.append(out)
        return found

    results = some.each(reduce)
    for number in range(40):
        tensors = [inputs(number, rank, 1 + number * 37) for rank in range(size)]
        mine = [result[number] for result in results]
        assert all(torch.equal(one, mine[0]) for one in mine)
        error = (mine[0].double() - torch.stack(tensors).double().sum(0)).abs()
        assert (error <= bound_of_sum(tensors, "int8") * 1.0001).all()


def test_an_abort_ends_one_that_waits_for_a_peer() -> None:
    with groups(2) as pair:
        built = pair.ranks[0].current()
        works = [built.allreduce_quantized(torch.ones(1000), 1.0, CODECS["int8"]) for _ in range(3)]
        assert not works[0].is_completed()  # its peer never comes
        built.abort()
        for work in works:
            with pytest.raises(RuntimeError, match="quantised"):
                work.wait()
        late = built.allreduce_quantized(torch.ones(3), 1.0, CODECS["int8"])
        assert late.is_completed()
        with pytest.raises(Exception, match="aborted"):
            late.wait()


def test_the_thread_ends_with_its_group() -> None:
    def threads() -> list[str]:
        return [t.name for t in threading.enumerate() if t.name == "ftrun-quantized"]

    before = len(threads())
    with groups(2) as pair:
        built = pair.ranks[0].current()
        work = built.allreduce_quantized(torch.ones(1000), 1.0, CODECS["int8"])
        assert len(threads()) == before + 1
    assert work.is_completed() and len(threads()) == before


def test_a_broken_connection_is_an_error_of_the_work() -> None:
    with groups(2) as pair:
        pair.ranks[1].current().abort()
        built, codec = pair.ranks[0].current(), CODECS["int8"]
        for _ in range(100):  # the end of a connection may be noticed at the first, or later
            with pytest.raises(RuntimeError, match="a quantised all-reduce: "):
                built.allreduce_quantized(torch.ones(1000), 1.0, codec).wait()


@pytest.mark.parametrize("shape", [(3 * PIECE_VALUES + 1000,), (1500, 1000)], ids=["flat", "wide"])
def test_a_large_tensor_goes_in_pieces(some: Groups, shape: tuple[int, ...]) -> None:
    codec = CODECS["int8"]
    tensors = [inputs(3, rank, *shape) for rank in range(len(some.ranks))]

    def reduce(rank: int, group: Any) -> torch.Tensor:
        out = tensors[rank].clone()
        work = group.current().allreduce_quantized(out, 1.0, codec)
        assert work.wait() and len(work.sums) == -(-out.numel() // PIECE_VALUES)
        work.write(codec, out)
        return out

    results = some.each(reduce)
    assert all(torch.equal(result, results[0]) for result in results)
    largest = sum(float(tensor.abs().max()) for tensor in tensors)
    exact = torch.stack(tensors).double().sum(0)
    assert (results[0].double() - exact).abs().max() <= largest / 126
