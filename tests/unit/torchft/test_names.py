"""Every public name of torchft is here, and takes the arguments that torchft's takes."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from torch.distributed import distributed_c10d

from ftrun.base.errors import UserError
from tests.unit.torchft.names import MODULES, lines

STORED = Path(__file__).with_name("names.txt")
VERSION = "2026.10.26"
REFUSED = {
    "otel TeeLogExporter": "ftrun brings no exporter of OpenTelemetry",
    "otel main": "an example inside torchft",
}


def _stored(name: str) -> list[tuple[str, list[str]]]:
    """Each name of a module with its parameters, as torchft has them."""
    found = []
    for line in STORED.read_text().splitlines():
        module, _, rest = line.partition(" ")
        if module == (name or ".") and not any(line.startswith(known) for known in REFUSED):
            key, _, parameters = rest.rstrip(")").partition("(")
            found.append((key, [p for p in parameters.split(", ") if p]))
    return found


@pytest.mark.parametrize("name", ["", *MODULES], ids=lambda name: name or "torchft")
def test_each_name_is_here_and_takes_the_same_arguments(name: str) -> None:
    wanted = _stored(name)
    module = importlib.import_module(f"ftrun.torchft.{name}".rstrip("."))
    for key, parameters in wanted:
        owner, _, method = key.partition(".")
        assert hasattr(module, owner), f"{name}.{key} is missing"
        target = getattr(module, owner)
        if method:
            assert hasattr(target, method), f"{name}.{key} is missing"
            target = getattr(target, method)
        _takes(target, key, parameters)


def _takes(target: object, key: str, parameters: list[str]) -> None:
    if "args" in parameters:  # torchft's own signature says nothing
        return
    try:
        own = list(inspect.signature(target).parameters.values())  # type: ignore[arg-type]
    except (TypeError, ValueError):  # of a compiled class
        return
    own = [p for p in own if p.name not in ("self", "cls")]
    wanted = [p for p in parameters if p != "kwargs"]
    if any(p.kind is p.VAR_KEYWORD for p in own) and any(p.kind is p.VAR_POSITIONAL for p in own):
        return
    names = [p.name for p in own]
    assert names[: len(wanted)] == wanted, f"{key}: {names}, torchft has {wanted}"
    more = [p for p in own[len(wanted) :] if p.default is p.empty]
    assert all(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in more), f"{key} wants {more}"


def test_what_ftrun_lacks_can_be_imported_and_says_what_to_do_instead() -> None:
    comms = importlib.import_module("ftrun.torchft.torchcomms")
    quantization = importlib.import_module("ftrun.torchft.quantization")
    calls: dict[str, Callable[[], object]] = {
        "use ProcessGroupNCCL": lambda: comms.ProcessGroupTorchComms(object()),
        r"should_quantize=\"fp8\"": lambda: quantization.fused_quantize_into_fp8([], 2),
        r"fused_dequantize_from_fp8": lambda: quantization.fused_dequantize_from_fp8([], None, 2),
        r"fused_reduce_fp8": lambda: quantization.fused_reduce_fp8([], None, 2, 0),
        "ftrun --replicas 3": lambda: importlib.import_module("ftrun.torchft.torchx").hsdp(
            "a", replicas=3
        ),
        "ftrun lighthouse --torchft-bind": lambda: importlib.import_module(
            "ftrun.torchft._torchft"
        ).lighthouse_main(),
    }
    for words, call in calls.items():
        with pytest.raises(UserError, match=words):
            call()


def test_the_stored_names_are_those_of_the_package() -> None:
    try:
        installed = version("torchft-nightly")
    except PackageNotFoundError:
        pytest.skip("torchft-nightly is not installed")
    if installed != VERSION:
        pytest.skip(f"torchft-nightly is {installed}")
    command = [sys.executable, "-W", "ignore", "-m", "tests.unit.torchft.names"]
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    stored = STORED.read_text().splitlines()
    lacks_a_library = [line for line in out.splitlines() if line.startswith("# ")]
    modules = {line[2:].partition(":")[0] for line in lacks_a_library}
    if hasattr(
        distributed_c10d, "ReconfigureOptions"
    ):  # torch 2.14: torchft's is torch's own, without names
        stored = [s for s in stored if not s.startswith("process_group ReconfigureOptions(")]
    kept = [s for s in stored if s.split(" ")[0] not in modules and not s.startswith("# ")]
    assert [x for x in out.splitlines() if not x.startswith("# ")] == kept


def test_the_lister_sees_functions_classes_and_methods() -> None:
    found = list(lines("ftrun.torchft", "futures"))
    assert "futures future_wait(fut, timeout)" in found
