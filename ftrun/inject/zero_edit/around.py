"""The ``for`` loops around a newcomer that nobody can set: over a list, ``zip`` and the like.

Python gives no access to the iterator of such a loop. As long as its variables have the values that
they have at its peers, as in ``for phase in ["train", "val"]`` while all train, it stands right.
Else the replica would go through some of it twice, and train on when its peers have finished.

The loops are found in the script's source, by the line at which a frame stands. Not here: loops
that are set (counting.py), loops over loaders (loaders.py).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import FrameType

from ftrun.inject.zero_edit.counting import KNOWN_SEQUENCES, RANGES
from ftrun.inject.zero_edit.frames import Spot, Values, is_loop_package, spot_of, variables_of


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop of ``function`` from line ``first`` to ``last``, and a description of it."""

    function: str
    first: int
    last: int
    words: str


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
            loop.lineno,
            loop.end_lineno or loop.lineno,
            f"its loop at {spot_of(frame).name.partition(':')[0]}:{loop.lineno} is over "
            f"{ast.unparse(loop.iter)[:40]}, which cannot be set to its peers' place ({path} is "
            f"{here_values.get(path)!r} here and {value!r} there). Loop over range() there",
        )
        for frame in frames
        if (theirs := at_peers.get(spot_of(frame).name)) is not None
        for here_values in [here.get(spot_of(frame).name, {})]
        for loop in _untracked(frame)
        for path, value in [*_of_targets(loop, theirs, here_values)][:1]
    ]


def _of_targets(loop: ast.For, theirs: Values, here: Values) -> Iterator[tuple[str, object]]:
    """The values of the loop's variables that differ."""
    names = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    for path, value in theirs.items():
        root = path.partition("[")[0].partition(".")[0]
        if "]." in path:
            continue  # of an object in a collection
        if root in names and here.get(path) != value:
            yield path, value


def _untracked(frame: FrameType) -> list[ast.For]:
    """The loops around the line at which a frame stands, but for those that can be set."""
    file, name = frame.f_code.co_filename, spot_of(frame).name
    if is_loop_package(file):
        return []
    return [
        loop
        for loop in _loops(file)
        if loop.lineno < frame.f_lineno <= (loop.end_lineno or loop.lineno)
        and _first_line(loop, file) == frame.f_code.co_firstlineno
        and _is_fixed(loop, frame, name)
    ]


def _is_fixed(loop: ast.For, frame: FrameType, name: str) -> bool:
    """Whether a loop is over something that nobody can set. An iterator in a variable may be one
    that can be set."""
    over = loop.iter
    if isinstance(over, ast.Call):
        if isinstance(over.func, ast.Name) and over.func.id == "zip":
            return True  # a range in it may be set, but not its other parts
        lines = range(loop.lineno, (over.end_lineno or loop.lineno) + 1)
        return not any(RANGES.knows(Spot(name, line)) for line in lines)
    return isinstance(_value(over, frame), KNOWN_SEQUENCES) or isinstance(
        over, ast.List | ast.Tuple
    )


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
def _loops(file: str) -> tuple[ast.For, ...]:
    tree = _tree(file)
    return tuple(x for x in ast.walk(tree) if isinstance(x, ast.For)) if tree is not None else ()


@lru_cache(maxsize=4096)
def _first_line(loop: ast.For, file: str) -> int:
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
