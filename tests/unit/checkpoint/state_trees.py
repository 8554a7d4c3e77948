"""State trees for tests: Hypothesis strategies, and equality bit by bit."""

from __future__ import annotations

import struct
from argparse import Namespace
from collections import Counter, OrderedDict
from datetime import timedelta, timezone
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.int8,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.float8_e4m3fn,
]

zones = st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).map(timezone)
keys = st.one_of(
    st.text(max_size=5),
    st.integers(),
    st.booleans(),
    st.none(),
    st.floats(allow_nan=False),
    st.tuples(st.text(max_size=2), st.integers()),
)
plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=1 << 62, max_value=1 << 5000),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.binary(max_size=20).map(bytearray),
    st.sampled_from(DTYPES),
    st.sampled_from([torch.device("cpu"), torch.device("cuda:1"), torch.device("meta")]),
    st.lists(st.integers(0, 9), max_size=3).map(torch.Size),
    st.text(max_size=9).map(PurePosixPath),
    st.timedeltas(),
    st.dates(),
    st.datetimes(timezones=st.none() | zones, allow_imaginary=True),
    st.times(timezones=st.none() | zones),
    zones,
    st.decimals(allow_nan=False),
    st.fractions(),
    st.uuids(),
    st.builds(range, st.integers(), st.integers(), st.integers(min_value=1)),
    st.slices(9),
)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Tensors of any dtype and shape: 0-dim, empty, transposed, strided, expanded."""
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    dtype = draw(st.sampled_from(DTYPES))
    seed = draw(st.integers(0, 99))
    generator = torch.Generator().manual_seed(seed)
    tensor = torch.randint(0, 2, shape, generator=generator, dtype=torch.uint8).to(dtype)
    form = draw(st.sampled_from(["plain", "flipped", "strided", "expanded", "conj", "param"]))
    if form == "flipped" and shape:
        return tensor.permute(*reversed(range(tensor.dim())))
    if form == "strided" and shape:
        return tensor[..., ::2]
    if form == "expanded":
        return tensor.unsqueeze(0).expand(3, *tensor.shape)
    if form == "conj" and dtype.is_complex:
        return tensor.conj()
    if form == "param" and dtype in (torch.float32, torch.bfloat16):
        return torch.nn.Parameter(tensor)
    return tensor


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    """numpy arrays and scalars."""
    dtype = draw(st.sampled_from(["<f4", ">f8", "<i8", "|b1", "<c16", "<U3", "<M8[s]", "|S2"]))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    array = np.arange(int(np.prod(shape))).reshape(shape).astype("i8").astype(dtype)
    form = draw(st.sampled_from(["plain", "transposed", "scalar", "readonly"]))
    if form == "transposed":
        return array.T
    if form == "scalar" and array.size:
        return array.reshape(-1)[-1]
    if form == "readonly":
        array.flags.writeable = False
    return array


trees = st.recursive(
    st.one_of(plain, tensors(), arrays()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=3),
        st.dictionaries(st.text(max_size=3), inner, max_size=3).map(OrderedDict),
        st.dictionaries(st.integers(), st.integers(0, 3), max_size=3).map(Counter),
        st.dictionaries(st.text(max_size=3), inner, max_size=2).map(lambda d: Namespace(**d)),
    ),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    """Equal in type, structure and every bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return _same_tensor(a, b)
    if isinstance(a, np.ndarray | np.generic):
        return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
    if isinstance(a, dict):
        pairs = zip(a.items(), b.items(), strict=False)
        return len(a) == len(b) and all(same(k, m) and same(v, w) for (k, v), (m, w) in pairs)
    if isinstance(a, Namespace):
        return same(vars(a), vars(b))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(v, w) for v, w in zip(a, b, strict=True))
    if isinstance(a, float):
        return struct.pack(">d", a) == struct.pack(">d", b)
    return bool(a == b)


def _same_tensor(a: torch.Tensor, b: torch.Tensor) -> bool:
    alike = a.dtype == b.dtype and a.shape == b.shape and a.requires_grad == b.requires_grad
    return alike and torch.equal(_bits(a), _bits(b))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    dense = (
        tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    )
    return dense.reshape(-1).view(torch.uint8)
