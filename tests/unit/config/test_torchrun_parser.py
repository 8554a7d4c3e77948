"""torchrun's own parser against the table of options and docs/TORCHRUN_REFERENCE.md.

A torch whose torchrun has another flag, default or choice fails here.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from ftrun.config.options import OPTIONS, TORCHRUN_NAMES, Option
from ftrun.config.settings import RunSettings
from ftrun.config.torchrun import NUMA_BINDINGS, START_METHODS
from tests.unit.run_settings import resolved, stated

DOC = Path(__file__).parents[3] / "docs" / "TORCHRUN_REFERENCE.md"


def parser() -> argparse.ArgumentParser:
    from torch.distributed.run import get_args_parser

    return get_args_parser()


def torchruns_actions() -> list[argparse.Action]:
    skipped = {"help", "training_script", "training_script_args"}
    return [action for action in parser()._actions if action.dest not in skipped]


def dashed(action: argparse.Action) -> set[str]:
    """Its flags in ftrun's spelling."""
    words = action.option_strings
    return {word.replace("_", "-") if word.startswith("--") else word for word in words}


def option_of(action: argparse.Action) -> Option:
    found = [option for option in OPTIONS if dashed(action) & set(option.flags)]
    assert len(found) == 1, f"{len(found)} options are {dashed(action)}"
    return found[0]


def row_of(action: argparse.Action) -> str:
    """Its row in the table of docs/TORCHRUN_REFERENCE.md, or nothing."""
    flag = re.escape(max(dashed(action), key=len))
    row = re.search(rf"^\| `-[^|]*(?<![a-z-]){flag}[` ].*|^\| `{flag}[` ].*", DOC.read_text(), re.M)
    return row.group(0) if row else ""


@pytest.mark.parametrize("action", torchruns_actions(), ids=lambda action: str(action.dest))
def test_every_flag_of_torchrun_is_an_option_and_in_the_table(action: argparse.Action) -> None:
    """A new torch with a new flag fails here."""
    option = option_of(action)
    assert dashed(action) <= set(option.flags)
    assert row_of(action), f"docs/TORCHRUN_REFERENCE.md has no row for {dashed(action)}"
    assert option.name in TORCHRUN_NAMES
    variable = getattr(action, "env", None) or f"PET_{action.dest.upper()}"
    has_variable = type(action).__name__ in ("env", "check_env")
    assert (variable in option.variables()) == has_variable, "its PET_ variable"


NOTHING_GIVEN = {
    "nnodes": "1:1", "nproc_per_node": "1", "rdzv_backend": "static", "rdzv_id": "none",
    "rdzv_endpoint": "", "rdzv_conf": "", "node_rank": 0, "master_addr": "127.0.0.1",
    "monitor_interval": 0.1, "start_method": "spawn", "duplicate_stdout_filters": [],
    "duplicate_stderr_filters": [], "max_restarts": 0, "standalone": False,
}  # fmt: skip
"""torchrun's defaults where ftrun has none, because it does the same or needs nothing."""


@pytest.mark.parametrize("action", torchruns_actions(), ids=lambda action: str(action.dest))
def test_a_default_is_torchruns_or_the_table_states_it(action: argparse.Action) -> None:
    option = option_of(action)
    is_same = option.default == action.default
    if option.default in (None, ""):
        is_same = is_same or NOTHING_GIVEN.get(action.dest, "?") == action.default
    assert is_same or "default" in row_of(action), f"torchrun's default is {action.default!r}"


def test_choices_are_torchruns() -> None:
    found = {action.dest: action.choices for action in torchruns_actions() if action.choices}
    assert {name: tuple(choices) for name, choices in found.items()} == {
        "start_method": START_METHODS,
        "numa_binding": NUMA_BINDINGS,
    }


def test_every_option_that_is_said_to_be_torchruns_is() -> None:
    theirs = {action.dest for action in torchruns_actions()}
    names = {"grace_s": "shutdown_timeout"}
    of_old = {"use_env"}
    assert {names.get(name, name) for name in TORCHRUN_NAMES} - of_old <= theirs


def test_settings_without_flags_are_torchruns_defaults() -> None:
    found: RunSettings = resolved(nproc_per_node="1")
    for action in torchruns_actions():
        if action.dest in ("redirects", "tee", "role", "local_ranks_filter", "numa_binding"):
            assert str(getattr(found, action.dest)) == str(action.default), action.dest
    assert stated()["max_restarts"].value is None
