"""Round trips of state trees, and the objects that are refused."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import enum
import json
import math
import random
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from ftrun.base.errors import ProtocolError, UserError
from ftrun.checkpoint.format import pack, unpack, validate
from ftrun.checkpoint.header import Header, decode_header, header_of
from ftrun.core.ids import Attempt, StateId, Tag
from tests.suite.properties import examples
from tests.unit.checkpoint.state_trees import same, trees

TAG = Tag(Attempt(1, 1), 3)


def round_trip(tree: Any) -> Any:
    packed = pack(tree)
    header = decode_header(header_of(TAG, StateId(3, "aa"), packed).encode())
    buffers = [_copied(leaf.data) for leaf in packed.leaves]
    return unpack(header.structure, header.specs, buffers)


def _copied(data: torch.Tensor | memoryview) -> torch.Tensor:
    raw = data.numpy().tobytes() if isinstance(data, torch.Tensor) else data.tobytes()
    return torch.tensor(list(raw), dtype=torch.uint8)


@settings(max_examples=examples(300))
@given(trees)
def test_a_tree_comes_back_bit_by_bit(tree: Any) -> None:
    assert same(round_trip(tree), tree)


def test_model_optimizer_and_scheduler_states_load_again() -> None:
    def build() -> tuple[Any, Any, Any]:
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # as documented
        optimizer = torch.optim.AdamW(model.parameters())
        return model, optimizer, torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2, 2])

    def states(parts: tuple[Any, Any, Any]) -> dict[str, Any]:
        return {str(i): part.state_dict() for i, part in enumerate(parts)}

    donor, receiver = build(), build()
    donor[0](torch.randn(2, 3, 5, 5)).sum().backward()
    donor[1].step()
    donor[2].step()
    healed = round_trip(states(donor))
    assert healed["0"]._metadata == donor[0].state_dict()._metadata
    assert healed["0"]["0.weight"].stride() == donor[0][0].weight.stride()
    for key, part in zip("012", receiver, strict=True):
        part.load_state_dict(healed[key])
    assert same(states(receiver), states(donor))


def test_states_of_random_generators_come_back() -> None:
    tree = {"py": random.getstate(), "np": np.random.get_state(), "torch": torch.get_rng_state()}
    assert same(round_trip(tree), tree)


def test_sets_deques_complex_numbers_and_spans_of_time_come_back() -> None:
    tree: dict[str, Any] = {
        "sets": [{1, "a", None, (2, 3)}, frozenset({2.5}), set(), {frozenset({1}), frozenset()}],
        "deques": [collections.deque([torch.ones(2), {"a": 1}], 5), collections.deque()],
        "complex": [1 + 2j, complex(math.nan, -math.inf)],
        "time": [datetime.timedelta(days=-1, microseconds=3)],
    }
    found = round_trip(tree)
    assert same(found["sets"], tree["sets"]) and same(found["time"], tree["time"])
    for one, wanted in zip(found["deques"], tree["deques"], strict=True):
        assert type(one) is collections.deque and one.maxlen == wanted.maxlen
        assert same(list(one), list(wanted))
    assert repr(found["complex"]) == repr(tree["complex"])
    words = [str(number) for number in range(100)]
    other = reversed(words)
    assert pack(set(words)) == pack(set(other))  # all donors write the same


def test_dense_tensors_are_not_copied() -> None:
    tensors = [torch.ones(3, 4), torch.ones(3, 4).T, torch.ones(2, 3, 4, 4).contiguous()]
    tensors.append(torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last))
    for tensor, leaf in zip(tensors, pack(tensors).leaves, strict=True):
        assert isinstance(leaf.data, torch.Tensor)
        assert leaf.data.data_ptr() == tensor.data_ptr()


def test_products_with_a_part_of_a_tensor_stay_the_same_bits() -> None:
    """Seen: rows of a singular value decomposition lie apart in memory, in the other order."""
    matrix = torch.randn(64, 17, generator=torch.Generator().manual_seed(0))
    rows = torch.linalg.svd(matrix, full_matrices=False).Vh[:4]
    [found] = round_trip([rows])
    assert rows.stride() == (1, 17) and found.stride() == (1, 4)
    assert torch.equal(matrix @ rows.T, matrix @ found.T)


class Colour(enum.IntEnum):
    RED = 1


class Permission(enum.Flag):
    READ = 1
    WRITE = 2


Pair = collections.namedtuple("Pair", "a b")


@dataclasses.dataclass(frozen=True)
class Stats:
    """A script's own record. Making one from bytes must not call it."""

    mean: torch.Tensor
    phase: Colour = Colour.RED
    history: list[Any] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        assert not reading, "a method of the script's class is called"


@dataclasses.dataclass(frozen=True)
class Closing(Stats):
    def __del__(self) -> None:
        pass


@dataclasses.dataclass
class Container(dict[str, int]):
    size: int = 1


class Loose(Pair):
    pass


class Basis:
    """What an optimizer keeps for a parameter. Making one from bytes must not call it."""

    both: Any
    inner: Any

    def __init__(self, **held: Any) -> None:
        assert not reading, "a method of the script's class is called"
        vars(self).update(held)

    @property
    def rank(self) -> int:
        return 0

    @rank.setter
    def rank(self, value: int) -> None:
        assert not reading, "a method of the script's class is called"


class Slotted:
    __slots__ = ("__dict__", "a")


class Ruled(Basis):
    def __getstate__(self) -> Any:
        return 0


class Callback(threading.local):
    pass


reading = False


def with_attribute(value: Any) -> Any:
    vars(value)["more"] = 1
    return value


def local_class() -> object:
    @dataclasses.dataclass
    class Local:
        a: int

    return Local(1)


def test_enums_named_tuples_dataclasses_and_defaultdicts_come_back() -> None:
    global reading
    tree: dict[str, Any] = {
        "phase": Colour.RED,
        "by phase": {Colour.RED: [1.5]},
        "phases": {Colour.RED, 7},
        "pairs": [Pair(1, {"w": torch.ones(2)}), Pair(Pair(1, 2), None)],
        "stats": Stats(torch.ones(3), history=[Permission.READ]),
        "losses": collections.defaultdict(list, {"a": [1], "b": []}),
        "moments": collections.defaultdict(collections.Counter, {0: collections.Counter("ab")}),
        "none": collections.defaultdict(None, {1: 2}),
    }
    reading = True
    found = round_trip(tree)
    reading = False
    stats, wanted = found.pop("stats"), tree.pop("stats")
    assert type(stats) is Stats and same(vars(stats), vars(wanted))
    assert same(found, tree)
    for key in ("losses", "moments", "none"):
        assert found[key].default_factory is tree[key].default_factory
    names = [leaf.spec.path for leaf in pack({"s": wanted, "p": tree["pairs"]}).leaves]
    assert names == [".s.mean", ".p[0].b.w"]


def test_plain_objects_come_back_and_one_object_stays_one() -> None:
    global reading
    inner = Basis(matrix=torch.ones(2, 3))
    basis = Basis(step=3, both=[torch.ones(1), None], inner=inner, rank=4)
    vars(basis).update(itself=basis)
    tree = {"a": basis, "b": [inner, Basis()], "c": {1: basis}}
    reading = True
    found = round_trip(tree)
    reading = False
    a = found["a"]
    assert type(a) is Basis and found["c"][1] is a and a.itself is a and found["b"][0] is a.inner
    assert [*vars(a)] == ["step", "both", "inner", "rank", "itself"] and vars(a)["rank"] == 4
    assert same(a.both, [torch.ones(1), None]) and same(a.inner.matrix, torch.ones(2, 3))
    assert vars(found["b"][1]) == {}
    plain = unpack(pack({"a": Basis(n=1), "b": []}).structure, [], [], is_plain=True)
    assert plain == {"a": {"n": 1}, "b": []}


def test_a_process_without_the_classes_gets_plain_values() -> None:
    packed = pack({"s": Stats(torch.ones(1)), "p": Pair(1, 2), "d": collections.defaultdict(int)})
    structure = json.loads(json.dumps(packed.structure).replace(__name__, "elsewhere"))
    specs = [leaf.spec for leaf in packed.leaves]
    buffers = [_copied(leaf.data) for leaf in packed.leaves]
    plain = unpack(structure, specs, buffers, is_plain=True)
    stats = {"mean": torch.ones(1), "phase": "RED", "history": []}
    assert same(plain, {"s": stats, "p": {"a": 1, "b": 2}, "d": {}})
    with pytest.raises(UserError, match=r"an? enum of the class elsewhere\.Colour, .* import it"):
        unpack(structure, specs, buffers)


@pytest.mark.parametrize(
    ("structure", "words"),
    [
        ({"enum": [f"{__name__}:Colour", "mro"]}, "'mro' of .*Colour, which is no member"),
        ({"enum": [f"{__name__}:Pair", "a"]}, "has none of that name"),
        ({"enum": ["nowhere:A", "a"]}, "has none of that name"),
        ({"dataclass": ["os:system", {"command": "true"}]}, "has none of that name"),
        ({"dataclass": [f"{__name__}:Stats.mean", {}]}, "has none of that name"),
        ({"dataclass": [f"{__name__}:Closing", {}]}, "has none of that name"),
        ({"namedtuple": ["builtins:tuple", {}]}, "has none of that name"),
        ({"object": ["threading:local", {}]}, "has none of that name"),
        ({"object": [f"{__name__}:Ruled", {}]}, "has none of that name"),
        ({"namedtuple": [f"{__name__}:Pair", {"a": 1}]}, "with the fields a, and here .* a, b"),
    ],
)
def test_a_class_that_is_not_here_is_named(structure: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        unpack(structure, [], [])


def test_a_class_by_name_imports_nothing() -> None:
    code = (
        "import sys, torch, ftrun.checkpoint.format as f\n"
        "before = set(sys.modules)\n"
        "for name in ('torch:_dynamo.x', 'torch._dynamo:config', 'this:s', 'torch:onnx.export'):\n"
        "    try: f.unpack({'dataclass': [name, {}]}, [], [])\n"
        "    except f.UserError: pass\n"
        "print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (print, "builtin_function_or_method"),
        (object(), "object"),
        (Permission.READ | Permission.WRITE, "Permission a combination of flags"),
        (with_attribute(Loose(1, 2)), "Loose with an attribute 'more' beside its fields"),
        (with_attribute(Stats(torch.ones(1))), "Stats with an attribute 'more'"),
        (local_class(), "Local whose class is not found under its name"),
        (Closing(torch.ones(1)), "Closing whose class has a __del__"),
        (Container(), "Container which is a container"),
        (Basis(lock=threading.Lock()), "lock"),
        (Ruled(), "Ruled"),
        (Slotted(), "Slotted"),
        (Callback(), "Callback"),
        (torch.nn.Linear(1, 1), "torch.nn.modules.linear.Linear"),
        (collections.defaultdict(lambda: 0), "defaultdict whose factory is <lambda>, none of bool"),
        (np.array([object()]), "numpy.ndarray"),
        (torch.ones(2).to_sparse(), "torch.Tensor of torch.sparse_coo on cpu"),
        (torch.ones(2, device="meta"), "torch.Tensor"),
        ({b"bytes"}, "a set with tensors, arrays or bytes"),
    ],
)
def test_what_does_not_fit_is_named(value: object, kind: str) -> None:
    with pytest.raises(UserError) as caught:
        validate({"model": {"extra": [0, {"fn": value}]}})
    assert "'model.extra[1].fn" in str(caught.value)
    assert kind in str(caught.value)


def test_a_tree_that_contains_itself_is_refused() -> None:
    tree: dict[str, Any] = {}
    tree["self"] = tree
    with pytest.raises(UserError, match="contain itself"):
        validate(tree)


def test_a_tensor_as_a_key_is_refused() -> None:
    with pytest.raises(UserError, match="keyed by a Tensor"):
        validate({"state": {torch.ones(1): 1}})


MALFORMED = [
    {"leaf": 5},
    {"leaf": -1},
    {"set": [[]]},
    {"frozenset": 3},
    {"deque": [[], -1]},
    {"deque": []},
    {"complex": "00"},
    {"timedelta": [1e999, 0, 0]},
    {"timedelta": [1]},
    {"leaf": True},
    {"pickle": "gASV"},
    {},
    {"int": 5},
    {"int": "0x" + "f" * (1 << 21)},
    {"float": "00"},
    {"dtype": "nn"},
    {"dtype": "os.system"},
    {"scalar": ["O", "00" * 8]},
    {"scalar": ["<f4", ""]},
    {"OrderedDict": {"tuple": []}},
    {"pairs": [[{"map": {}}, 1]]},
    {"Size": ["a"]},
    {"map": 3},
    {"defaultdict": {"map": {}}, "factory": "eval"},
    {"enum": ["a:b"]},
    {"enum": [3, "A"]},
    {"dataclass": ["a:b", []]},
    {"again": 0},
]


@pytest.mark.parametrize("structure", MALFORMED, ids=lambda s: str(s)[:30])
def test_a_malformed_structure_is_refused(structure: Any) -> None:
    with pytest.raises(ProtocolError):
        unpack(structure, [], [])


def header(**changes: Any) -> dict[str, Any]:
    tree = {"a": torch.ones(2, 3), "b": np.ones(2)}
    parts = json.loads(header_of(TAG, StateId(3, "aa"), pack(tree)).encode())
    return {**parts, **changes}


LEAF = ["tensor", "", ".a", "float32", [2, 3], 24, [], False, ""]


@pytest.mark.parametrize(
    "changes",
    [
        {"format": 2},
        {"chunk_bytes": 1},
        {"tag": 3},
        {"step": "3"},
        {"step": True},
        {"leaves": [LEAF]},
        {"leaves": [LEAF[:3], LEAF]},
        {"leaves": [LEAF, [*LEAF[:4], [2, 3], 25, [], False, ""]]},
        {"leaves": [LEAF, [*LEAF[:4], [-2, -3], 24, [], False, ""]]},
        {"leaves": [LEAF, [*LEAF[:4], [2, 3], 24, [0, 0], False, ""]]},
        {"leaves": [LEAF, ["pickle", *LEAF[1:]]]},
        {"leaves": [LEAF, [*LEAF[:3], "os", [2, 3], 24, [], False, ""]]},
        {"leaves": [LEAF, [*LEAF[:3], "int64", [3], 24, [], True, ""]]},
        {"leaves": [LEAF, ["ndarray", "", ".a", "O", [3], 24, [], False, ""]]},
        {"leaves": [LEAF, [*LEAF[:3], "uint8", [1 << 50], 1 << 50, [], False, ""]]},
    ],
    ids=lambda c: str(c)[:60],
)
def test_a_header_that_contradicts_itself_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        decode_header(json.dumps(header(**changes)).encode())


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b"[" * 100_000, b"3"])
def test_bytes_that_are_no_header_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_header(data)


def test_no_pickle_is_read_on_the_way() -> None:
    seen: list[str] = []
    watching = True

    def watch(event: str, _args: Any) -> None:
        if watching and event in ("pickle.find_class", "marshal.loads", "exec"):
            seen.append(event)

    sys.addaudithook(watch)
    tree = {
        "w": torch.ones(3),
        "a": np.ones(3),
        "x": [1, float("nan"), (2,)],
        "r": random.getstate(),
    }
    assert same(round_trip(tree), tree)
    watching = False
    assert seen == []  # X2


def test_a_header_round_trips() -> None:
    made = header_of(TAG, StateId(3, "aa"), pack({"a": torch.ones(2), "n": 1}))
    assert isinstance(made, Header)
    assert decode_header(made.encode()) == made


@pytest.mark.parametrize(
    "structure",
    [
        {"device": "?:x"},
        {"device": "cuda:99999999999999999999"},
        {"scalar": ["O", "00" * 8]},
        {"scalar": ["<f4,<i4", "00" * 8]},
        {"scalar": ["(99999,99999)f4", "00"]},
        {"scalar": ["<f4", ""]},
        {"dtype": "nn"},
        {"dtype": "_dynamo"},
        {"pairs": [[[], 0]]},
        {"leaf": 1 << 70},
    ],
)
def test_what_pack_never_writes_is_a_protocol_error(structure: Any) -> None:
    """Found by fuzzing: torch and numpy have errors of their own for some of these."""
    with pytest.raises(ProtocolError):
        unpack(structure, [], [])


def test_a_dtype_by_name_imports_nothing() -> None:
    """``getattr`` on torch imports an attribute that is missing."""
    code = (
        "import sys, ftrun.checkpoint.format as f\n"
        "before = set(sys.modules)\n"
        "for name in ('_dynamo', '_inductor', 'onnx', 'export'):\n"
        "    try: f.unpack({'dtype': name}, [], [])\n"
        "    except f.ProtocolError: pass\n"
        "print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
