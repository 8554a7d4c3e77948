"""The table of exit codes: the code, the documentation and the words agree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ftrun.errors import EXIT_REASONS, ExitCode, exit_kind, naming

DOCUMENT = Path(__file__).parents[2] / "docs" / "EXIT_CODES.md"


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
