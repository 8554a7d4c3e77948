"""A worker without torch: what ftrun adds to torch comes with the script's own import of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ftrun.core.messages import AnotherForm, NoManager
from tests.unit.inject.forked import listening, run_each

FORMS: dict[str, Any] = {
    "inject": "auto", "replicas": 2, "torch": False, "environment": {"RANK": "5"},
    "explicit": {"RANK": "0", "FLAG": "on"},
}  # fmt: skip

SOURCES = {
    "without torch": """
import builtins, os, sys
import ftrun
ftrun.stop_requested, ftrun.heartbeat, ftrun.paused
print("torch" in sys.modules, range is builtins.range)
""",
    "explicit from its first line": """
import builtins, sys
from itertools import count
from ftrun import Manager
import os
print(os.environ["RANK"], "torch" in sys.modules)
print(range is builtins.range, enumerate is builtins.enumerate, isinstance(count, type))
""",
    "explicit too late": """
import builtins, os, sys
from itertools import count
print(os.environ["RANK"], "torch" in sys.modules)
import torch
print(range is builtins.range, enumerate is builtins.enumerate, isinstance(count, type))
import ftrun
ftrun.Manager
""",
    "a module of ftrun that imports torch": """
import sys
from ftrun.training.manager import Manager
import torchft
print(Manager.__name__, torchft.Manager.__name__)
""",
}


def test_an_interpreter_of_its_own_is_attached_when_it_imports_torch(tmp_path: Path) -> None:
    with listening(tmp_path) as (path, received):
        lines = run_each(tmp_path, SOURCES, socket=path, **FORMS)
    assert lines["without torch"] == ["False True", "status 0"]
    assert lines["explicit from its first line"] == ["0 True", "True True True", "status 0"]
    assert lines["explicit too late"] == ["5 False", "True True True", "status 1"]
    assert lines["a module of ftrun that imports torch"] == ["Manager Manager", "status 0"]
    messages = {index: message for index, message in received if index in (0, 2)}
    assert messages[0] == NoManager(has_stepped=False)
    late = messages[2]
    assert isinstance(late, AnotherForm) and late.form == "explicit"
    assert "ftrun.Manager comes after the script has read RANK at script_2.py:4" in late.reason
