"""Values of Python's own types in a state: each comes back; what is malformed is refused."""

from __future__ import annotations

import argparse
import pathlib
import types
import uuid
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
import torch

from ftrun.base.errors import ProtocolError, UserError
from ftrun.checkpoint import format
from ftrun.checkpoint.format import pack, unpack
from tests.unit.checkpoint.test_format import round_trip

EAST = timezone(timedelta(hours=2), "EAST")
VALUES: list[Any] = [
    pathlib.Path("/checkpoints/20"),
    pathlib.PurePosixPath("a/../b"),
    pathlib.PureWindowsPath("c:/a"),
    datetime(2026, 11, 26, 4, 5, 6, 7, fold=1),
    datetime(2026, 11, 26, tzinfo=timezone.utc),
    datetime(2026, 11, 26, tzinfo=EAST),
    date(2026, 11, 26),
    time(1, 2, 3, 4),
    time(1, tzinfo=EAST),
    timedelta(-1, 2, 3),
    timezone.utc,
    EAST,
    Decimal("1.10"),
    Decimal("-Infinity"),
    Fraction(1 << 70, 3),
    uuid.UUID(int=7),
    range(1, 1 << 80, 2),
    slice(None, 3),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_comes_back(value: object) -> None:
    found = round_trip({"best": value})["best"]
    assert type(found) is type(value)
    assert repr(found) == repr(value)
    assert pack(value).leaves == ()


@pytest.mark.parametrize("kind", [types.SimpleNamespace, argparse.Namespace])
def test_a_namespace_comes_back_with_what_it_holds(kind: Any) -> None:
    held = kind(weights=torch.arange(3.0), out=pathlib.Path("out"), more=kind(lr=0.5))
    found: Any = round_trip(held)
    assert type(found) is kind and type(found.more) is kind
    assert torch.equal(found.weights, torch.arange(3.0))
    assert found.out == pathlib.Path("out") and found.more.lr == 0.5


def test_values_are_keys_and_members_of_sets_too() -> None:
    tree = {pathlib.Path("a"): 1, "days": {date(2026, 1, 1), date(2026, 1, 2)}}
    assert round_trip(tree) == tree


class Zone(tzinfo):
    """A zone of the script's own."""

    def utcoffset(self, when: datetime | None) -> timedelta:
        return timedelta(0)

    def dst(self, when: datetime | None) -> timedelta:
        return timedelta(0)

    def tzname(self, when: datetime | None) -> str:
        return "zone"


class Folder(pathlib.PurePosixPath):
    """May hold more than its base class."""


@pytest.mark.parametrize(
    "value",
    [datetime(2026, 1, 1, tzinfo=Zone()), Folder("a"), Zone()],
    ids=["when", "path", "zone"],
)
def test_what_is_of_a_class_of_the_scripts_own_is_refused_by_its_key(value: object) -> None:
    with pytest.raises(UserError, match=r"state_dict key 'best'"):
        pack({"best": value})


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_is_refused_by_its_key(layout: torch.layout) -> None:
    nested = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=layout)
    with pytest.raises(UserError, match=r"key 'batch\.rows' holds a nested torch"):
        pack({"batch": {"rows": nested}})


def test_a_tensor_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(format, "leaf_of", fails)
    with pytest.raises(UserError, match=r"'a\[1\]' cannot be read: .*allocate memory"):
        pack({"a": [1, torch.ones(1)]})


@pytest.mark.parametrize(
    "structure",
    [
        {"path": ["Path", "a"]},
        {"path": ["PosixPath", 3]},
        {"path": "PosixPath"},
        {"date": [2026, 1]},
        {"date": [2026, 13, 1]},
        {"datetime": [2026, 1, 1, 0, 0, 0, 0, 0]},
        {"datetime": [2026, 1, 1, 0, 0, 0, 0, 0, {"date": [1, 1, 1]}]},
        {"time": [1, 2, 3, 4, 5, 0, None]},
        {"timezone": [9, 0, 0]},
        {"timezone": [0, 0, 0, 1]},
        {"Decimal": "one"},
        {"Fraction": ["0x1", "0x0"]},
        {"Fraction": ["0x1"]},
        {"UUID": 7},
        {"range": ["0x0", "0x1", "0x0"]},
        {"slice": [1, 2, 3, 4]},
        {"SimpleNamespace": [1]},
        {"Namespace": 1},
    ],
    ids=str,
)
def test_what_pack_never_writes_is_refused(structure: Any) -> None:
    with pytest.raises(ProtocolError, match="malformed"):
        unpack(structure, [], [])
