"""A text under an attribute belongs to that attribute: it stands directly below it, alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOUSE = ("ftrun", "tests", "scripts", "examples")
WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _is_text(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def stray_texts(source: str) -> Iterator[int]:
    """The line of each string statement that is no docstring and under no assignment."""
    for node in ast.walk(ast.parse(source)):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            statements = block if isinstance(block, list) else []
            for at, statement in enumerate(statements):
                if not _is_text(statement):
                    continue
                above = statements[at - 1] if at else None
                if above is None:
                    is_in_place = name == "body" and isinstance(node, WITH_DOCSTRING)
                else:
                    is_near = above.end_lineno == statement.lineno - 1
                    is_in_place = isinstance(above, ast.Assign | ast.AnnAssign) and is_near
                if not is_in_place:
                    yield statement.lineno


def test_each_text_stands_under_what_it_describes() -> None:
    stray = [
        f"{path.relative_to(ROOT)}:{line}"
        for part in HOUSE
        for path in sorted((ROOT / part).rglob("*.py"))
        for line in stray_texts(path.read_text())
    ]
    assert not stray, "texts that are no docstring and under no attribute:\n" + "\n".join(stray)


def test_two_texts_in_a_row_are_found() -> None:
    texts = ('"""Of a module."""', "A = 1", '"""Of A."""', '"""Of B."""', "B = 2", "", '"""Far."""')
    source = "\n".join((*texts, "if A:", '    """Of nothing."""'))
    assert list(stray_texts(source)) == [4, 7, 9]
