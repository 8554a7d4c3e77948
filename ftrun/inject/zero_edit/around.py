"""The ``for`` loops around a newcomer that nobody can set: over a list, ``zip`` and the like.

So are comprehensions: ``[train(rate) for rate in rates]``.

Python gives no access to the iterator of such a loop. As long as its variables have the values that
they have at its peers, as in ``for phase in ["train", "val"]`` while all train, it stands right.
Else the replica would go through some of it twice, and train on when its peers have finished.

The loops are found in the script's source, by the line at which a frame stands. Not here: loops
that are set (counting.py), loops over loaders (loaders.py).
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from ftrun.inject.zero_edit.counting import KNOWN_SEQUENCES, RANGES
from ftrun.inject.zero_edit.frames import Spot, Values, is_loop_package, spot_of, variables_of


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop of ``function`` from line ``first`` to ``last``, and a description of it."""

    function: str
    first: int
    last: int
    words: str


@dataclass(frozen=True, slots=True)
class _Iteration:
    """A loop or a part of a comprehension, from line ``first`` to ``last``.

    ``begins``: a frame in it stands from this line on. ``code``: the first line of its code.
    ``function``: the name of that, if it is the comprehension's own; else "". ``collects``: makes
    a list, a set or a dict, which nobody can reach before it is whole.
    """

    target: ast.expr
    over: ast.expr
    first: int
    last: int
    begins: int
    code: int
    function: str = ""
    collects: bool = False


_COMPREHENSIONS: dict[Any, str] = {
    ast.ListComp: "<listcomp>",
    ast.SetComp: "<setcomp>",
    ast.DictComp: "<dictcomp>",
    ast.GeneratorExp: "<genexpr>",
}
"""Each has a frame of its own before Python 3.12, a generator also later."""
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def unlike(
    frames: Sequence[FrameType], at_peers: Mapping[str, Values], here: Mapping[str, Values]
) -> list[Loop]:
    """The loops around these frames that stand elsewhere than at the peers, innermost first.

    Args:
        at_peers, here: the plain values of each function on the stack.
    """
    return [
        Loop(
            spot_of(frame).name,
            loop.first,
            loop.last,
            f"its loop at {spot_of(frame).name.partition(':')[0]}:{loop.first} is over "
            f"{ast.unparse(loop.over)[:40]}, which cannot be set to its peers' place ({path} is "
            f"{here_values.get(path)!r} here and {value!r} there). Loop over range() there",
        )
        for frame in frames
        if (theirs := at_peers.get(spot_of(frame).name)) is not None
        for here_values in [here.get(spot_of(frame).name, {})]
        for loop in _untracked(frame)
        for path, value in [*_of_targets(loop, theirs, here_values)][:1]
    ]


def _of_targets(loop: _Iteration, theirs: Values, here: Values) -> Iterator[tuple[str, object]]:
    """The values of the loop's variables that differ."""
    names = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    for path, value in theirs.items():
        root = path.partition("[")[0].partition(".")[0]
        if "]." in path:
            continue  # of an object in a collection
        if root in names and here.get(path) != value:
            yield path, value


def innermost(frames: Sequence[FrameType]) -> tuple[CodeType, int] | None:
    """The innermost loop around these frames, by its code and the line of its header; None: it is
    one with ``while``, in a comprehension or in a package."""
    for frame in frames:
        code = frame.f_code
        if is_loop_package(code.co_filename) or code.co_name in _COMPREHENSIONS.values():
            return None
        for first, begins, last, header in _statements(code.co_filename):
            if begins <= frame.f_lineno <= last and first == code.co_firstlineno:
                return (code, header) if header else None
    return None


@lru_cache(maxsize=256)
def _statements(file: str) -> list[tuple[int, int, int, int]]:
    """The loops of a file, inner ones first: the first line of the code that has it, its own first
    and last lines within, and the line of its header (0: a ``while``)."""
    tree = _tree(file)
    nodes = [] if tree is None else [*ast.walk(tree)]
    loops = [node for node in nodes if isinstance(node, ast.For | ast.While)]
    return [
        (
            _first_line(loop, file),
            loop.body[0].lineno,
            loop.end_lineno or loop.lineno,
            loop.iter.lineno if isinstance(loop, ast.For) else 0,
        )
        for loop in sorted(loops, key=lambda x: x.lineno, reverse=True)
    ]


def collecting(frames: Sequence[FrameType]) -> list[str]:
    """The comprehensions around these frames, in words: what they have collected does not heal."""
    return sorted(
        {
            f"what the comprehension at {spot_of(frame).name.partition(':')[0]}:{loop.first} has "
            "collected"
            for frame in frames
            for loop in _around(frame)
            if loop.collects
        }
    )


def _untracked(frame: FrameType) -> list[_Iteration]:
    """The loops around the line at which a frame stands, but for those that can be set."""
    return [loop for loop in _around(frame) if _is_fixed(loop, frame)]


def _around(frame: FrameType) -> list[_Iteration]:
    code = frame.f_code
    if is_loop_package(code.co_filename):
        return []
    name = code.co_name if code.co_name in _COMPREHENSIONS.values() else ""
    return [
        loop
        for loop in _iterations(code.co_filename)
        if loop.begins <= frame.f_lineno <= loop.last
        and (loop.code, loop.function) == (code.co_firstlineno, name)
    ]


def _is_fixed(loop: _Iteration, frame: FrameType) -> bool:
    """Whether a loop is over something that nobody can set. An iterator in a variable may be one
    that can be set."""
    over, by = loop.over, frame.f_back if loop.function else frame
    if by is None:
        return False
    value = _value(over, by)
    if isinstance(over, ast.Call) or type(value) is range:
        lines = range(loop.first, (over.end_lineno or loop.first) + 1)
        names = {spot_of(frame).name, spot_of(by).name}
        return not any(RANGES.knows(Spot(name, line)) for line in lines for name in names)
    return isinstance(value, KNOWN_SEQUENCES) or isinstance(over, ast.List | ast.Tuple)


def _value(node: ast.expr, frame: FrameType) -> object:
    """The value of a variable, or of an attribute of one; None: it is something else."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return getattr(_value(node.value, frame), node.attr, None)
    if isinstance(node, ast.Name):
        return variables_of(frame).get(node.id, frame.f_globals.get(node.id))
    return None


@lru_cache(maxsize=256)
def _tree(file: str) -> ast.Module | None:
    try:
        return ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None


@lru_cache(maxsize=256)
def _iterations(file: str) -> tuple[_Iteration, ...]:
    tree, found = _tree(file), []
    nodes: Iterable[ast.AST] = ast.walk(tree) if tree is not None else ()
    for node in nodes:
        if isinstance(node, ast.For):
            first, last = node.lineno, node.end_lineno or node.lineno
            code = _first_line(node, file)
            found.append(_Iteration(node.target, node.iter, first, last, first + 1, code))
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            has_frame = isinstance(node, ast.GeneratorExp) or sys.version_info < (3, 12)
            first, last = node.lineno, node.end_lineno or node.lineno
            code = first if has_frame else _first_line(node, file)
            function = _COMPREHENSIONS[type(node)] if has_frame else ""
            collects = not isinstance(node, ast.GeneratorExp)
            found += [
                _Iteration(part.target, part.iter, first, last, first, code, function, collects)
                for part in node.generators
            ]
    return tuple(found)


@lru_cache(maxsize=4096)
def _first_line(loop: ast.stmt | ast.expr, file: str) -> int:
    """The first line of the code object that has the loop: a function's, or the module's."""
    tree = _tree(file)
    around = [
        node
        for node in (ast.walk(tree) if tree is not None else ())
        if isinstance(node, _Function) and node.lineno < loop.lineno <= (node.end_lineno or 0)
    ]
    if not around:
        return 1
    inner = max(around, key=lambda node: node.lineno)
    decorators: list[ast.expr] = getattr(inner, "decorator_list", [])
    return min([inner.lineno, *(x.lineno for x in decorators)])
