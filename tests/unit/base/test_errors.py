"""The table of exit codes: the code, the documentation and the words agree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ftrun
from ftrun.base import errors
from ftrun.base.errors import EXIT_REASONS, ExitCode, exit_kind, naming

DOCUMENT = Path(__file__).parents[3] / "docs" / "EXIT_CODES.md"


def test_the_document_has_each_code_with_its_kind_and_its_text() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| (.+) \|$", DOCUMENT.read_text(), re.MULTILINE)
    table = [(str(code.value), *EXIT_REASONS[code]) for code in ExitCode]
    assert rows == table


def test_a_scripts_own_code_is_told_from_one_of_ftruns() -> None:
    assert exit_kind(73, is_of_script=False) == "will_not_help"
    assert exit_kind(73, is_of_script=True) == "script"
    assert exit_kind(139, is_of_script=True) == "signal"
    assert exit_kind(130, is_of_script=False) == "interrupted"
    assert exit_kind(42, is_of_script=False) == "script"


def test_an_error_of_writing_has_the_name_of_its_file() -> None:
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"), naming("/dev/full"):
        Path("/dev/full").write_text("x")


def test_programs_find_each_error_in_ftrun_errors() -> None:
    kinds = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type)}
    ours = {name for name, kind in kinds.items() if issubclass(kind, errors.FtrunError)}
    assert set(ftrun.errors.__all__) == ours | {"ExitCode"}
    assert ftrun.errors.UserError is errors.UserError
