"""Of each torch that is supported: it has the names that ftrun uses, and ftrun's groups have the
methods that it calls."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from torch.distributed import distributed_c10d

import ftrun
from ftrun.inject import torch_private
from ftrun.inject.torch_private import NEEDED, OTHERWISE
from ftrun.inject.zero_edit.world.shell import Shell

PACKAGE = Path(ftrun.__file__).parent
OTHERS = frozenset(
    {
        *("_current_frames", "_data", "_exit", "_fields", "_getframe"),  # Python's
        *("_inst", "_member_map_", "_name_sequence", "_slotnames", "_zap", "_NormalAccessor"),
        *("_distributed_c10d", "_dynamo", "_autograd", "_C"),  # on the way to a name
        *("_first_loop_iter", "_logger_connector", "_results"),  # Lightning's, if it has them
        *("_Metadata", "_ResultMetric", "_Sync"),
    }
)
"""Private names that ftrun uses and that are not torch's to change."""
LEFT_TO_TORCH = frozenset(
    {
        *("getRank", "getSize", "rank", "size"),  # of the numbers with which a group is made
        *("getGroupDesc", "getGroupName", "setGroupDesc", "setGroupName"),  # as _set_group_name
        *("mergeRemoteGroup", "splitGroup", "new_group", "perform_nocolor_split"),
        "comm_split_count",
        *("_start_coalescing", "_end_coalescing"),  # Gloo has none
        *("_register_backend", "_set_default_backend"),  # of a group that torch makes
    }
)
"""What torch calls on groups and a script's group does not define itself."""


def trees() -> Iterator[ast.Module]:
    for path in PACKAGE.rglob("*.py"):
        if not path.name.endswith(("_pb2.py", "_pb2_grpc.py")) and path.name != "torch_private.py":
            yield ast.parse(path.read_text())


def own_names() -> set[str]:
    """What ftrun's code itself defines."""
    found = set()
    for tree in trees():
        for node in ast.walk(tree):
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    found.add(name)
                case ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                    found.add(name)
                case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                    found.add(name)
    return found


def used_names() -> set[str]:
    """Private names of others in ftrun's code: attributes, and words for getattr and its like."""
    found = set()
    for tree in trees():
        for node in ast.walk(tree):
            match node:
                case ast.Attribute(attr=name):
                    found.add(name)
                case ast.Call(
                    func=ast.Name(id="getattr" | "hasattr" | "setattr"),
                    args=[_, ast.Constant(value=str(name)), *_],
                ):
                    found.add(name)
                case ast.ImportFrom(module=str(module), names=names) if module.startswith("torch."):
                    is_private = "._" in module and "._C" not in module
                    found.update(x.name for x in names if is_private or x.name.startswith("_"))
    return found


def tabled(*tables: Mapping[str, tuple[str, ...]]) -> set[str]:
    return {name for table in tables for names in table.values() for name in names}


def test_the_tables_have_what_the_source_uses() -> None:
    used, listed = used_names(), tabled(NEEDED, OTHERWISE)
    private = {name for name in used if re.match("_[^_]", name)}
    assert private - own_names() - OTHERS <= listed, "a private name of torch's is in no table"
    assert listed <= used, "a table has a name that ftrun does not use"


def test_this_torch_has_them() -> None:
    for owner in (*NEEDED, *OTHERWISE):
        resolved(owner)
    assert torch_private.missing() == []


def resolved(owner: str) -> object:
    """A module or a class; importing what is on the way."""
    parts = owner.split(".")
    for end in range(len(parts), 0, -1):
        try:
            holder: object = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for part in parts[end:]:
            holder = getattr(holder, part)
        return holder
    raise AssertionError(owner)


@pytest.mark.parametrize("owner", OTHERWISE)
def test_a_class_sets_the_names_of_its_objects(owner: str) -> None:
    holder = resolved(owner)
    for name in OTHERWISE[owner]:
        if hasattr(holder, name):
            continue
        source = inspect.getsource(holder) if name != "_torchdynamo_disable" else ""  # type: ignore[arg-type]
        if not source:
            from torch._dynamo import decorators, eval_frame

            source = inspect.getsource(eval_frame) + inspect.getsource(decorators)
        of_either = {"_fsdp_param_groups": "_fsdp_param_groups?"}  # without the s before torch 2.13
        assert re.search(rf"\b{of_either.get(name, name)}\b", source) or name == "_fsdp_param_group"


def test_a_name_that_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(distributed_c10d, "_world")
    monkeypatch.delattr(torch._C, "_len_torch_dispatch_stack")
    assert torch_private.missing() == [
        "torch._C._len_torch_dispatch_stack",
        "torch.distributed.distributed_c10d._world",
    ]


def defined() -> set[str]:
    """The methods that a script's group has of its own."""
    mro = Shell.__mro__[: Shell.__mro__.index(torch.distributed.ProcessGroup)]
    return {name for kind in mro for name in vars(kind)}


def test_a_script_s_group_has_each_method_that_torch_overrides() -> None:
    """By the header that comes with torch: its C++ calls these of a group that Python defines."""
    path = Path(torch.__file__).parent / "include/torch/csrc/distributed/c10d/PyProcessGroup.hpp"
    text = path.read_text()
    overrides = re.findall(
        r"OVERRIDE\(\s*(?:[^,]*,\s*)??(?:/[^/]*/\s*)?ProcessGroup,[^\n]*\n\s*(\w+)", text
    )
    assert {"allreduce", "barrier", "send", "getSize"} <= set(overrides)
    assert set(overrides) - defined() - LEFT_TO_TORCH == set()


def test_a_script_s_group_has_each_method_that_torch_s_python_calls() -> None:
    groups = {"group", "pg", "process_group", "default_pg", "split_from", "parent_backend"}
    called = {
        node.func.attr
        for node in ast.walk(ast.parse(inspect.getsource(distributed_c10d)))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in groups
    }
    assert {"allreduce", "reduce", "recv_anysource"} <= called
    assert called - defined() - LEFT_TO_TORCH == set()
