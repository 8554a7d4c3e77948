"""The public names and parameters of a package, as lines: ``python -m tests.unit.torchft.names``.

Run without ftrun's hook, where torchft-nightly 2026.10.26 is installed, it prints names.txt.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

MODULES = (
    "checkpointing",
    "checkpointing._rwlock",
    "checkpointing.http_transport",
    "checkpointing.pg_transport",
    "checkpointing.transport",
    "collectives",
    "coordination",
    "data",
    "ddp",
    "futures",
    "http",
    "local_sgd",
    "manager",
    "multiprocessing",
    "optim",
    "otel",
    "parameter_server",
    "process_group",
    "quantization",
    "torchcomms",
    "torchx",
    "utils",
    "work",
)


def lines(package: str, name: str) -> Iterator[str]:
    """``module name(parameter, …)`` for each public function, class and method of one module."""
    module = importlib.import_module(f"{package}.{name}" if name else package)
    shown = name or "."
    exported = getattr(module, "__all__", ())
    for key, value in sorted(vars(module).items()):
        own = getattr(value, "__module__", "") == module.__name__
        if key.startswith("_") or isinstance(value, ModuleType) or not (own or key in exported):
            continue
        if inspect.isclass(value):
            yield f"{shown} {key}{_parameters(value.__init__)}"
            for method in sorted(vars(value)):
                if not method.startswith("_") and callable(getattr(value, method)):
                    yield f"{shown} {key}.{method}{_parameters(getattr(value, method))}"
        elif callable(value):
            yield f"{shown} {key}{_parameters(value)}"
        elif isinstance(value, str):
            yield f"{shown} {key} = {value}"


def _parameters(function: Any) -> str:
    try:
        found = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # of a compiled class
        return "(...)"
    named = [p.name for p in found if p.name not in ("self", "cls")]
    return f"({', '.join(named)})"


if __name__ == "__main__":
    for each in ("", *MODULES):
        try:
            print(*lines("torchft", each), sep="\n")
        except ImportError as error:  # a backend that is not installed
            print(f"# {each}: {error}")
