"""Reads of variables that differ between the forms."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from ftrun.inject.zero_edit.variables import Variables

OPEN = {"RANK": "3", "WORLD_SIZE": "4", "FTRUN_SAME": "x"}
EXPLICIT = {"RANK": "0", "FTRUN_SAME": "x"}


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> Iterator[Variables]:
    for name in (*OPEN, "MASTER_X"):
        monkeypatch.delenv(name, raising=False)
    os.environ.update(OPEN)
    made = Variables(OPEN, EXPLICIT)
    yield made
    made.stop_watching()
    for name in OPEN:
        os.environ.pop(name, None)


def test_a_read_of_a_variable_that_differs_is_noted(variables: Variables) -> None:
    assert "RANK" in os.environ
    assert os.environ["FTRUN_SAME"] == "x"
    assert variables.read_at == ""
    assert os.environ.get("WORLD_SIZE") == "4"
    assert variables.read_at.startswith("WORLD_SIZE at test_variables.py:")
    os.environ["RANK"]
    assert variables.read_at.startswith("WORLD_SIZE")  # the first one


def test_a_copy_of_all_is_a_read(variables: Variables) -> None:
    assert dict(os.environ)["RANK"] == "3"
    assert " at test_variables.py:" in variables.read_at


def test_a_library_that_reads_is_not_the_script(variables: Variables) -> None:
    import shutil

    code = compile("def read(e): return e['RANK']", shutil.__file__, "exec")
    names: dict[str, object] = {}
    exec(code, names)
    assert names["read"](os.environ) == "3"  # type: ignore[operator]
    assert variables.read_at == ""


def test_the_explicit_form_has_its_own_values(variables: Variables) -> None:
    variables.become_explicit()
    assert os.environ["RANK"] == "0"
    assert os.getenv("WORLD_SIZE") is None
    assert os.environ["FTRUN_SAME"] == "x"
    os.environ["RANK"] = "5"
    assert os.environb[b"RANK"] == b"5"
    assert type(os.environ._data) is dict  # type: ignore[attr-defined]
