"""The headers of the script's ``for`` loops: what a loop goes over is handed to ``follow`` first.

The script's files are compiled with ``for x in follow(range(9)):`` where they have ``for x in
range(9):``, also in comprehensions. Lines and columns are the file's, and so are tracebacks,
coverage and what debuggers show. No name of Python's stands for anything else, and nothing of this
is written to ``__pycache__``.

Left alone: loops that call nothing, what the script itself compiles (``exec``, a notebook), what a
tool compiles for it (``-m pdb``: the main file), and functions that a decorator compiles from their
bytecode. A new worker finds what another one has compiled in the job's own directory.

Not here: what ``follow`` does (counting.py), where a frame stands in its loops (around.py).
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import marshal
import sys
from dataclasses import dataclass, replace
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from types import CodeType
from typing import Any

from ftrun.base.files import write_whole
from ftrun.inject.zero_edit.counting import RANGES, follow
from ftrun.inject.zero_edit.frames import is_loop_package, is_script

NAME = "__ftrun_follow__"
"""Of ``follow`` in the script's modules."""
PACKAGE_FILES = ("/transformers/trainer", "/loops/", "/accelerate/data_loader")
"""Those of a loop's package that have a loop around training steps: others are many."""
COMPREHENSIONS: dict[Any, str] = {
    ast.ListComp: "<listcomp>",
    ast.SetComp: "<setcomp>",
    ast.DictComp: "<dictcomp>",
    ast.GeneratorExp: "<genexpr>",
}
"""Each has a frame of its own before Python 3.12, a generator also later."""
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_CALLS = (ast.Call, ast.Await, ast.Yield, ast.YieldFrom, ast.GeneratorExp)
_DISPLAYS = (ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.ListComp, ast.SetComp)


@dataclass(frozen=True, slots=True)
class Iteration:
    """A loop or a part of a comprehension, from line ``first`` to ``last``.

    ``header``: the line of what it goes ``over``; 0: it is a ``while``. ``begins``: a frame in it
    stands from this line on. ``code``: the first line of its code. ``has_step``: it may have a step
    in it, and is followed. ``function``: the name of its code, if that is the comprehension's own;
    else "". ``collects``: makes a list, a set or a dict, which nobody can reach before it is whole.
    """

    node: Any
    target: ast.expr
    over: ast.expr
    header: int
    first: int
    last: int
    begins: int
    code: int
    has_step: bool = False
    function: str = ""
    collects: bool = False


def install(*, is_on: bool, directory: Path | None = None) -> None:
    """Follow the loops of the script's files that are compiled from now on, or none any more.

    ``directory``: only this user can write to it; compiled files are kept there for later workers.
    """
    RANGES.is_on = is_on
    _Cache.directory = directory
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
    kept = _Cache.file(source, path)
    with contextlib.suppress(OSError, ValueError, EOFError, TypeError):
        if kept:
            found: CodeType | None = marshal.loads(kept.read_bytes())  # noqa: S302 - as of a .pyc
            return found
    code = _compiled(source, path)
    if kept:
        with contextlib.suppress(OSError):
            write_whole(kept, marshal.dumps(code))
    return code


class _Cache:
    directory: Path | None = None

    @classmethod
    def file(cls, source: bytes, path: str) -> Path | None:
        known = source, path.encode(), MAGIC_NUMBER, repr(sys.flags).encode()
        name = hashlib.blake2b(b"\0".join(known), digest_size=16).hexdigest()
        return None if cls.directory is None else cls.directory / f"loops-{name}"


def _compiled(source: bytes, path: str) -> CodeType | None:
    try:
        tree = ast.parse(source, path)
        loops = [loop.node for loop in iterations(tree) if loop.has_step]
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


def iterations(tree: ast.AST) -> list[Iteration]:
    """The loops in a file, each one before those in it."""
    found: list[Iteration] = []
    _find(tree, 1, found)
    return found


def _find(node: ast.AST, code: int, found: list[Iteration]) -> bool:
    """Collect the loops in a node; whether it calls or yields. ``code``: the first line of the code
    object that has it: a function's, or the module's."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    if isinstance(node, _Function):
        code = min([node.lineno, *(x.lineno for x in decorators)])
    at = len(found)
    calls_of = {id(part): _find(part, code, found) for part in ast.iter_child_nodes(node)}
    calls = isinstance(node, _CALLS) or any(calls_of.values())
    if isinstance(node, ast.For | ast.While):
        last = node.end_lineno or node.lineno
        more = node.lineno, last, node.body[0].lineno, code
        if isinstance(node, ast.For):
            within = any(calls_of[id(x)] for x in (*node.body, *node.orelse))
            has_step = within and not isinstance(node.iter, _DISPLAYS)
            loop = Iteration(node, node.target, node.iter, node.iter.lineno, *more, has_step)
        else:
            loop = Iteration(node, node.test, node.test, 0, *more)
        found.insert(at, loop)
    elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        collects = not isinstance(node, ast.GeneratorExp)
        has_frame = not collects or sys.version_info < (3, 12)
        first, own = node.lineno, node.lineno if has_frame else code
        within_lines = first, node.end_lineno or first, first, own
        name = COMPREHENSIONS[type(node)] if has_frame else ""
        found[at:at] = [
            Iteration(x, x.target, x.iter, first, *within_lines, has_step, name, collects)
            for x in node.generators
            for has_step in [calls and not (x.is_async or isinstance(x.iter, _DISPLAYS))]
        ]
    if any("jit" in ast.unparse(x) for x in decorators):  # it is compiled from its bytecode
        found[at:] = [replace(loop, has_step=False) for loop in found[at:]]
        return True
    return calls


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
