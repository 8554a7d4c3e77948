"""pytest plugin of scripts/torchft_suite: runs torchft's own tests on ftrun's modules, and counts.

With TORCHFT_SUITE_TREE=ftrun, ``torchft`` and its submodules are ftrun's. Only torchft's tests and
their shared helpers are read from the installed package.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

TESTS = ("_test", "_bench", "_test_utils", "multiprocessing_dummy_context")


class _TestFiles(MetaPathFinder):
    """Finds torchft's test modules in the installed package, and nothing else."""

    def __init__(self, package: Path) -> None:
        self._package = package

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        is_shared = name.startswith("torchft._test.")
        if not is_shared and not (name.startswith("torchft.") and name.endswith(TESTS)):
            return None
        file = self._package.joinpath(*name.split(".")[1:])
        if file.is_dir():
            return importlib.util.spec_from_loader(name, loader=None, is_package=True)
        file = file.with_suffix(".py")
        return importlib.util.spec_from_file_location(name, file) if file.exists() else None


class _Here:
    """A worker's place, as far as the names need it."""

    replica_id, group_rank, restarts = "0", 0, 0


def pytest_configure(config: Any) -> None:
    if os.environ.get("TORCHFT_SUITE_TREE") != "ftrun":
        return
    found = importlib.util.find_spec("torchft")
    assert found is not None and found.origin is not None
    from ftrun.inject import torchft_names

    here: Any = _Here
    torchft_names.install("ftrun", here)
    sys.meta_path.insert(0, _TestFiles(Path(found.origin).parent))


_outcomes: dict[str, str] = {}


def pytest_runtest_logreport(report: Any) -> None:
    name = report.nodeid.rpartition("/")[2]
    if report.when == "call" or report.outcome != "passed":
        _outcomes[name] = report.outcome


def pytest_collectreport(report: Any) -> None:
    if report.failed:
        _outcomes[f"{Path(report.nodeid).name}::(import)"] = "failed"


def pytest_sessionfinish(session: Any) -> None:
    Path(os.environ["TORCHFT_SUITE_OUT"]).write_text(json.dumps(_outcomes))
