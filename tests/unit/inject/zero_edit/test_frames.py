"""The script's frames, where it stands in them, and copies of their variables."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ftrun.inject.zero_edit import frames
from ftrun.inject.zero_edit.frames import (
    call_site,
    is_script,
    script_frames,
    stack,
    variables_of,
)


def test_whose_code_it_is() -> None:
    assert is_script(__file__)
    assert not is_script(frames.__file__)
    assert not is_script(pytest.__file__)
    assert not is_script("<frozen runpy>")
    assert is_script("/opt/env/lib/python3/site-packages/transformers/trainer.py")
    assert not is_script("/opt/env/lib/python3/site-packages/torch/nn/modules/module.py")


def test_the_stack() -> None:
    found = script_frames()
    assert found[0].f_code.co_name == "test_the_stack"
    assert call_site() == f"{Path(__file__).name}:{sys._getframe().f_lineno}"


def test_a_dict_that_the_script_has_got_is_not_emptied() -> None:
    value = 3
    found = locals()
    variables_of(sys._getframe())
    assert found["value"] == value


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python has no columns before 3.11")
def test_two_calls_in_one_line_are_two_places() -> None:
    def where() -> tuple[Any, ...]:
        return stack()

    first, second = where(), where()
    again = [where() for _ in range(2)]
    assert first != second
    assert first[0] == second[0]
    assert (first[1].name, first[1].line) == (second[1].name, second[1].line)
    assert again[0] == again[1]


def test_a_call_s_result_is_thrown_away_or_not() -> None:
    found: list[bool] = []

    class Draws:
        def __iter__(self) -> Iterator[int]:
            return self

        def __next__(self) -> int:
            found.append(frames.drops_result(sys._getframe(1)))
            return 1

    it = Draws()
    next(it)
    kept = next(it)
    print(next(it), kept)
    [next(it)]
    for _ in it:
        break
    _ = [next(it) for _ in range(1)]
    next(iter(it))
    assert found == [True, False, False, False, False, False, True]
    code = compile("next(it)", "/x/site-packages/tool.py", "exec")
    exec(code, {"it": it})
    assert not found[-1]
