"""8-bit rows: the bounds that the documents state, and values that have no number."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ftrun.process_groups.codec import CODECS, ROW_BYTES, ROW_VALUES, rows_of, write_rows

KINDS = list(CODECS)


def random_rows(seed: int, rows: int, exponent: int, spread: int) -> torch.Tensor:
    """Rows of magnitudes around 10**exponent; within a row they differ by 10**spread."""
    numbers = torch.Generator().manual_seed(seed)
    values = torch.randn((rows, ROW_VALUES), generator=numbers, dtype=torch.float64)
    sizes = 10.0 ** (torch.rand((rows, ROW_VALUES), generator=numbers) * -spread)
    return (values * sizes * 10.0**exponent).to(torch.float32)


@pytest.mark.parametrize("kind", KINDS)
@given(
    seed=st.integers(0, 2**31),
    rows=st.integers(1, 5),
    exponent=st.integers(-30, 30),
    spread=st.integers(0, 6),
)
def test_each_value_is_within_its_bound(
    kind: str, seed: int, rows: int, exponent: int, spread: int
) -> None:
    codec, values = CODECS[kind], random_rows(seed, rows, exponent, spread)
    encoded = codec.encode(values)
    assert encoded.shape == (rows, ROW_BYTES) and encoded.dtype == torch.uint8
    exact = values.double()
    error = (codec.decode(encoded).double() - exact).abs()
    largest = exact.abs().amax(dim=1, keepdim=True)
    bound = largest / 254 if kind == "int8" else torch.maximum(exact.abs() / 16, largest / 2**18)
    assert (error <= bound * 1.00001).all()  # float32 rounds as well


@pytest.mark.parametrize("kind", KINDS)
def test_the_largest_magnitude_and_zero_come_back_exactly(kind: str) -> None:
    values = torch.zeros((3, ROW_VALUES))
    values[0, 0], values[1, 5] = 3.5, -(2.0**100)
    assert torch.equal(CODECS[kind].decode(CODECS[kind].encode(values)), values)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "value", [float("inf"), float("-inf"), float("nan")], ids=["inf", "-inf", "nan"]
)
def test_a_row_that_is_not_finite_comes_out_as_nan(kind: str, value: float) -> None:
    values = torch.ones((2, ROW_VALUES))
    values[1, 7] = value
    out = CODECS[kind].decode(CODECS[kind].encode(values))
    assert torch.equal(out[0], values[0]) and out[1].isnan().all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_of_the_smallest_values_becomes_zero(kind: str) -> None:
    values = torch.full((1, ROW_VALUES), 1e-39)
    assert CODECS[kind].decode(CODECS[kind].encode(values)).abs().max() <= 1e-37


@given(
    shape=st.lists(st.integers(0, 9), max_size=3),
    parts=st.integers(1, 5),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64]),
)
def test_rows_go_back_to_where_they_came_from(
    shape: list[int], parts: int, dtype: torch.dtype
) -> None:
    tensor = torch.randn(shape).to(dtype)
    rows = rows_of(tensor, parts)
    assert rows.shape[0] % parts == 0 and rows.shape[1] == ROW_VALUES
    back = torch.zeros_like(tensor)
    write_rows(rows, back)
    assert torch.equal(back, tensor.to(torch.float32).to(dtype))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("is_dense", [True, False], ids=["dense", "transposed"])
def test_decoding_to_where_it_belongs(kind: str, dtype: torch.dtype, is_dense: bool) -> None:
    codec, wide = CODECS[kind], torch.randn((130, 8100)).to(dtype)  # more than a block, and a tail
    tensor = wide if is_dense else wide.t()
    encoded = codec.encode(rows_of(tensor, 3))
    expected, found = torch.zeros_like(tensor), torch.zeros_like(tensor)
    write_rows(codec.decode(encoded), expected)
    codec.write(encoded, found)
    assert torch.equal(found, expected)
    total = codec.decode(encoded)
    codec.add(encoded, total)
    assert torch.equal(total, codec.decode(encoded) * 2)


def test_more_rows_than_a_block() -> None:
    values = random_rows(1, 4096 * 2 + 3, 0, 0)
    codec = CODECS["int8"]
    one_by_one = torch.cat([codec.encode(row) for row in values.split(1)])
    assert torch.equal(codec.encode(values), one_by_one)
