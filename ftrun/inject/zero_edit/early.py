"""What an open script does before it imports torch, where it is an interpreter of its own.

Its reads of variables count from its first line on. If it names one of ftrun's classes first, torch
is imported before the name is looked up, and with it all that watches the script (attaching.py).
In a fork torch is there already. Nothing here imports it otherwise.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import ftrun
from ftrun.inject.zero_edit.frames import is_script
from ftrun.inject.zero_edit.variables import Variables

EXPLICIT_NAMES = frozenset(
    {"CheckpointTransport", "DistributedDataParallel", "DistributedSampler", "GradScaler"}
    | {"HTTPTransport", "ManagedProcessGroup", "Manager", "Optimizer", "OptimizerWrapper"}
    | {"ProcessGroupGloo", "ProcessGroupNCCL", "PureDistributedDataParallel", "manager"}
    | {"ElasticLoader", "ElasticSampler", "replicate"}
)
"""Names of ``ftrun`` that only a script with a Manager uses."""


def watch(
    environment: Mapping[str, str], explicit: Mapping[str, str], *, are_several: bool
) -> Variables:
    """Watch an open script from now on; call it once.

    Args:
        environment, explicit: its variables, and those of the explicit form.
        are_several: a replica has several workers: then a script that has imported ftrun is
            explicit when it reads its rank.
    """
    variables = Variables(environment, explicit)
    if "torch" in sys.modules:
        return variables
    plain = vars(ftrun)["__getattr__"]

    def look_up(name: str) -> Any:
        if name not in EXPLICIT_NAMES:
            return plain(name)
        vars(ftrun)["__getattr__"] = plain
        importlib.import_module("torch")
        return vars(ftrun)["__getattr__"](name)  # attaching.py has put its own there

    def read() -> None:
        if has_imported_ftrun():
            importlib.import_module("torch")
            now = variables.before_read  # attaching.py has put its own there
            if now is not None and now is not read:
                now()

    vars(ftrun)["__getattr__"] = look_up
    if are_several:
        variables.before_read = read
    return variables


def has_imported_ftrun() -> bool:
    """Whether a module of the script has ftrun, or a module of it, among its names."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and is_script(file):
            for value in list(vars(module).values()):
                is_module = issubclass(type(value), ModuleType)  # asks the value for nothing
                if is_module and value.__name__.partition(".")[0] == ftrun.__name__:
                    return True
    return False
