"""Rewrites the headers of the script's loops, so that ``follow`` gets each iterable first.

``for x in range(9):`` in a file of the script is compiled as ``for x in follow(range(9)):``, also
in comprehensions, and ``while x:`` as ``for () in follow():`` with ``if not x: break``. Lines and
columns stay those of the file, so tracebacks, coverage and debuggers show the original source. No
builtin is replaced, and nothing is written to ``__pycache__``.

Not rewritten: loops that call nothing, a ``while`` with an ``else``, code that the script compiles
itself (``exec``, a notebook), code that a tool compiles for it (``-m pdb``: the main file), and
functions that a decorator compiles from their bytecode. Compiled files are cached in the job's own
directory for later workers.

Not here: ``follow`` itself (counting.py), which loops a frame is in (around.py).
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
from ftrun.inject.zero_edit.patches import unseen

NAME = "__ftrun_follow__"
"""The name of ``follow`` in the script's modules."""
PACKAGE_FILES = ("/transformers/trainer", "/loops/", "/accelerate/data_loader")
"""The files that have a loop around training steps, in packages that run the loop for a script.
Only these are rewritten: such packages have many others."""
COMPREHENSIONS: dict[Any, str] = {
    ast.ListComp: "<listcomp>",
    ast.SetComp: "<setcomp>",
    ast.DictComp: "<dictcomp>",
    ast.GeneratorExp: "<genexpr>",
}
"""Before Python 3.12 each of these runs in a separate frame; a generator expression still does."""
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_CALLS = (ast.Call, ast.Await, ast.Yield, ast.YieldFrom, ast.GeneratorExp)
_DISPLAYS = (ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.ListComp, ast.SetComp)


@dataclass(frozen=True, slots=True)
class Iteration:
    """A loop, or one ``for`` of a comprehension.

    Attributes:
        first, last: its lines.
        header: the line of the iterable ``over``. 0: it is a ``while``, and both ``target`` and
            ``over`` are its condition.
        begins: a frame whose line is this one or a later one, up to ``last``, is in the loop.
        code: the first line of the code object that contains it.
        has_step: it may contain a training step, so it is followed.
        function: the name of the comprehension's own code object; "" if it has none.
        collects: it builds a list, a set or a dict, which no variable names until it is complete.
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
    """Turn the rewriting on or off, for the script's files that are compiled from now on.

    ``directory``: keeps compiled files for later workers; only this user may write to it.
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

    loader.get_code = unseen(get_code)


def compiled(source: bytes, path: str) -> CodeType | None:
    """The rewritten code of a file of the script.

    None: it has no loop to follow, or does not compile. Python then compiles the file itself, and
    raises the error.
    """
    if not RANGES.is_on or (b"for" not in source and b"while" not in source):
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
        loops = [loop for loop in iterations(tree) if loop.has_step]
        for loop in loops:
            node, at, over = loop.node, loop.over, [loop.over]
            if not loop.header:
                over, node.target, node.__class__ = [], ast.Tuple([], ast.Store()), ast.For
                ends = ast.If(ast.UnaryOp(ast.Not(), at), [ast.Break()], [])
                node.body.insert(0, ast.copy_location(ends, node))
            name = ast.copy_location(ast.Name(NAME, ast.Load()), at)
            node.iter = ast.copy_location(ast.Call(name, over, []), at)
        if loops:
            _import_follow(ast.fix_missing_locations(tree))
        return compile(tree, path, "exec", dont_inherit=True) if loops else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _is_followed(path: str) -> bool:
    is_many = is_loop_package(path) and not any(part in path for part in PACKAGE_FILES)
    return is_script(path) and not is_many


def iterations(tree: ast.AST) -> list[Iteration]:
    """The loops in a file, each before the loops inside it."""
    found: list[Iteration] = []
    _find(tree, 1, found)
    return found


def _find(node: ast.AST, code: int, found: list[Iteration]) -> bool:
    """Collect the loops in a node; returns whether the node calls or yields.

    ``code``: the first line of the code object that contains the node.
    """
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    if isinstance(node, _Function):
        code = min([node.lineno, *(x.lineno for x in decorators)])
    at = len(found)
    calls_of = {id(part): _find(part, code, found) for part in ast.iter_child_nodes(node)}
    calls = isinstance(node, _CALLS) or any(calls_of.values())
    if isinstance(node, ast.For | ast.While):
        last = node.end_lineno or node.lineno
        more = node.lineno, last, node.body[0].lineno, code
        has_step = any(calls_of[id(x)] for x in (*node.body, *node.orelse))
        if isinstance(node, ast.For):
            has_step = has_step and not isinstance(node.iter, _DISPLAYS)
            loop = Iteration(node, node.target, node.iter, node.iter.lineno, *more, has_step)
        else:
            loop = Iteration(node, node.test, node.test, 0, *more, has_step and not node.orelse)
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
    if any("jit" in ast.unparse(x) for x in decorators):  # a compiler reads its bytecode
        found[at:] = [replace(loop, has_step=False) for loop in found[at:]]
        return True
    return calls


def _import_follow(tree: ast.Module) -> None:
    """Import ``follow`` at the top of the module, after ``__future__`` imports and a docstring."""
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
