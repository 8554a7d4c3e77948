"""The headers of the script's ``for`` loops: what a loop goes over is handed to ``follow`` first.

The script's files are compiled with ``for x in follow(range(9)):`` where they have ``for x in
range(9):``, also in comprehensions. Lines and columns are the file's, and so are tracebacks,
coverage and what debuggers show. No name of Python's stands for anything else, and nothing of this
is written to ``__pycache__``.

Left alone: what the script itself compiles (``exec``, a notebook), what a tool compiles for it
(``-m pdb``: the main file), and functions that a decorator compiles from their bytecode.

Not here: what ``follow`` does (counting.py).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import Any

from ftrun.inject.zero_edit.counting import RANGES, follow
from ftrun.inject.zero_edit.frames import is_loop_package, is_script

NAME = "__ftrun_follow__"
"""Of ``follow`` in the script's modules."""
PACKAGE_FILES = ("/transformers/trainer", "/loops/", "/accelerate/data_loader")
"""Those of a loop's package that have a loop around training steps: others are many."""
_DISPLAYS = (ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.ListComp, ast.SetComp)


def install(*, is_on: bool) -> None:
    """Follow the loops of the script's files that are compiled from now on, or none any more."""
    RANGES.is_on = is_on
    loader: Any = SourceFileLoader
    plain = loader.get_code
    if plain.__module__ == __name__ or not is_on:
        return

    def get_code(self: Any, name: str) -> CodeType | None:
        path = self.get_filename(name)
        code = compiled(self.get_data(path), path) if _is_followed(path) else None
        return code or plain(self, name)

    loader.get_code = get_code


def compiled(source: bytes, path: str) -> CodeType | None:
    """The code of a file of the script's; None: it has no loop to follow, or an error, of which
    Python tells if it compiles the file itself."""
    if not RANGES.is_on or b"for" not in source:
        return None
    try:
        tree = ast.parse(source, path)
        loops = list(_loops(tree))
        for loop in loops:
            name = ast.copy_location(ast.Name(NAME, ast.Load()), loop.iter)
            loop.iter = ast.copy_location(ast.Call(name, [loop.iter], []), loop.iter)
        if loops:
            _import_follow(tree)
        return compile(tree, path, "exec", dont_inherit=True) if loops else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _is_followed(path: str) -> bool:
    is_many = is_loop_package(path) and not any(part in path for part in PACKAGE_FILES)
    return is_script(path) and not is_many


def _loops(tree: ast.AST) -> Iterator[Any]:
    """The loops whose iterators cannot be known beforehand."""
    left = [tree]
    while left:
        node = left.pop()
        if any("jit" in ast.unparse(x) for x in getattr(node, "decorator_list", ())):
            continue
        left.extend(ast.iter_child_nodes(node))
        if not isinstance(node, ast.For | ast.comprehension) or getattr(node, "is_async", False):
            continue
        if not isinstance(node.iter, _DISPLAYS):
            yield node


def _import_follow(tree: ast.Module) -> None:
    """Before the first statement that may run one: ``__future__`` and a docstring stay first."""
    at = 0
    while at + 1 < len(tree.body) and _is_first(tree.body[at], at):
        at += 1
    alias = ast.copy_location(ast.alias(follow.__name__, NAME), tree.body[at])
    line = ast.ImportFrom(follow.__module__, [alias], 0)
    tree.body.insert(at, ast.copy_location(line, tree.body[at]))


def _is_first(statement: ast.stmt, at: int) -> bool:
    if isinstance(statement, ast.ImportFrom):
        return statement.module == "__future__"
    return at == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
