"""The ``for`` loops around a newcomer that cannot be set: over a list, ``zip`` and the like.

Comprehensions are such loops too: ``[train(rate) for rate in rates]``.

Python gives no access to the iterator of such a loop. If the loop's variables have the same values
as at the peers, the loop is taken to be at the right turn: ``for phase in ["train", "val"]`` while
all replicas train. Otherwise the replica would run some turns twice, and would still train when its
peers have finished.

The loops are found in the script's source (headers.py), by the current line of each frame. Not
here: loops that can be set (counting.py), loops over loaders (loaders.py).
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType

from ftrun.inject.zero_edit.counting import KNOWN_SEQUENCES, RANGES
from ftrun.inject.zero_edit.frames import (
    Spot,
    Values,
    is_loop_package,
    of_code,
    spot_of,
    spots_of,
    variables_of,
)
from ftrun.inject.zero_edit.headers import COMPREHENSIONS, Iteration, iterations

_LOOPS = (ast.For, ast.While)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop of ``function`` from line ``first`` to ``last``; ``words``: an error text about it.

    ``turn``: of a ``range`` loop, where its header is, and the number with which it is to go on.
    """

    function: str
    first: int
    last: int
    words: str
    turn: tuple[Spot, int] | None = None


def unlike(
    frames: Sequence[FrameType], at_peers: Mapping[str, Values], here: Mapping[str, Values]
) -> list[Loop]:
    """The loops around these frames whose position differs from the peers', innermost first.

    Args:
        at_peers, here: the plain values, by function on the stack and by path.
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
        for loop in _around(frame)
        if loop.header and _is_fixed(loop, frame)
        for path, value in [*_of_targets(loop, theirs, here_values)][:1]
    ]


def to_turn(frames: Sequence[FrameType], spot: Spot, number: int, why: str) -> list[Loop]:
    """The ``range`` loop around these frames with its header at ``spot``, which is to go on with
    ``number``. ``why``: for its words."""
    words = f"its loop at {spot} is not in the turn of {number}, in which {why}"
    return [
        Loop(spot.name, loop.first, loop.last, words, (spot, number))
        for frame in frames
        if spot_of(frame).name == spot.name
        for loop in _around(frame)
        if loop.over.lineno == spot.line
    ]


def _of_targets(loop: Iteration, theirs: Values, here: Values) -> Iterator[tuple[str, object]]:
    """The variables of the loop that differ from the peers', with the peers' values."""
    names = _names(loop.target)
    for path, value in theirs.items():
        root = path.partition("[")[0].partition(".")[0]
        if "]." in path:
            continue  # a value in an object in a collection
        if root in names and here.get(path) != value:
            yield path, value


def _names(target: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}


def drawn(code: CodeType, line: int) -> set[str]:
    """The target variables of the ``for`` loops of this code that contain a line."""
    return {x for first, last, names, *_ in _loops(code) if first <= line <= last for x in names}


def handed_on(code: CodeType, line: int, *, seldom: bool = False) -> set[str]:
    """The variables that carry a value from one turn to the next, in the loops that contain a line:
    a turn reads the variable before it sets it, as with a batch drawn ahead. ``seldom``: also those
    that some turns do not set, as a loss that is computed in each tenth one."""
    found = [x[3:5] for x in _loops(code) if x[0] <= line <= x[1]]
    return {x for often, all_of in found for x in (all_of if seldom else often)}


def developed(code: CodeType, line: int) -> set[str]:
    """Of the variables handed on, those whose value follows from the one of the turn before, as
    with ``out, hidden = model(x, hidden)``: no batch."""
    return {x for one in _loops(code) if one[0] <= line <= one[1] for x in one[5]}


@lru_cache(maxsize=256)
def read_later(code: CodeType, line: int) -> frozenset[str]:
    """The variables that the innermost loop around a line has set, and reads later in that turn."""
    within = [x for x in _of_file(code) if x.code == code.co_firstlineno]
    loops = [x.node for x in within if x.first <= line <= x.last and isinstance(x.node, _LOOPS)]
    if not loops:
        return frozenset()
    names = [x for part in loops[-1].body for x in _in_order(part) if x.lineno < line]
    stored = {x.id for x in names if isinstance(x.ctx, ast.Store)}
    later = [part for part in loops[-1].body if (part.end_lineno or part.lineno) > line]
    return frozenset(_read_first(later, set(), seldom=True) & stored)


@of_code
def _loops(code: CodeType) -> list[tuple[int, int, set[str], set[str], set[str], set[str]]]:
    """The loops in this code: first line, last line, target variables, variables handed on, those
    with the ones that are set seldom, and the developed ones."""
    return [
        (
            loop.first,
            loop.last,
            _names(loop.target) if loop.header else set(),
            _handed_on(loop.node, seldom=False),
            (all_of := _handed_on(loop.node, seldom=True)),
            all_of & _developed(loop.node),
        )
        for loop in _of_file(code)
        if loop.code == code.co_firstlineno
    ]


def _handed_on(loop: ast.AST, *, seldom: bool) -> set[str]:
    if not isinstance(loop, _LOOPS):
        return set()
    names = [name for part in loop.body for name in _in_order(part)]
    stored = {name.id for name in names if isinstance(name.ctx, ast.Store)}
    drawn = _names(loop.target) if isinstance(loop, ast.For) else set[str]()
    return _read_first(loop.body, drawn, seldom=seldom) & stored


def _developed(loop: ast.AST) -> set[str]:
    """The variables of a loop from which their own next values follow, by its assignments."""
    follows: dict[str, set[str]] = {}
    for part in ast.walk(loop):
        if isinstance(part, ast.Assign | ast.AugAssign | ast.AnnAssign):
            names = [*_in_order(part)]
            read = {x.id for x in names if isinstance(x.ctx, ast.Load)}
            for name in (x.id for x in names if isinstance(x.ctx, ast.Store)):
                follows.setdefault(name, set()).update(read)
    for name in follows:  # and what it follows from follows from
        for one in follows.values():
            one |= follows[name] if name in one else set()
    return {name for name, of in follows.items() if name in of}


def _read_first(body: Sequence[ast.stmt], is_set: set[str], *, seldom: bool) -> set[str]:
    """The variables that are read before they are set. ``is_set``: gets those that are set."""
    read = set[str]()
    for part in body:
        arms = [part.body, part.orelse] if seldom and isinstance(part, ast.If) else []
        for name in _in_order(part.test if arms else part):  # type: ignore[attr-defined]
            if isinstance(name.ctx, ast.Store):
                is_set.add(name.id)
            elif name.id not in is_set:
                read.add(name.id)
        after = [{*is_set} for _ in arms]
        for arm, known in zip(arms, after, strict=True):
            read |= _read_first(arm, known, seldom=seldom)
        is_set |= set.intersection(*after) if arms else set()
    return read


def _in_order(node: ast.AST) -> Iterator[ast.Name]:
    """The variables of a statement in the order of access, without those in inner scopes.

    ``total += x`` reads ``total`` first. What a comprehension is over belongs to the outer scope.
    """
    if isinstance(node, ast.Name):
        yield node
    elif isinstance(node, _COMPREHENSIONS):
        yield from _in_order(node.generators[0].iter)
    elif not isinstance(node, _SCOPES):
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            yield ast.copy_location(ast.Name(node.target.id, ast.Load()), node)
        for part in sorted(ast.iter_child_nodes(node), key=_turn_of):
            yield from _in_order(part)


def _turn_of(part: ast.AST) -> tuple[bool, bool]:
    """A sort key for the parts of a statement: first reads, then assignments, then blocks."""
    is_block = isinstance(part, ast.stmt | ast.excepthandler)
    return is_block, isinstance(getattr(part, "ctx", None), ast.Store)


def innermost(frames: Sequence[FrameType]) -> tuple[CodeType, int] | None:
    """The innermost loop around these frames: its code, and the line of its header. None: there is
    none, or it is in a comprehension or in a package."""
    for frame in frames:
        code = frame.f_code
        if is_loop_package(code.co_filename) or code.co_name in COMPREHENSIONS.values():
            return None
        for loop in reversed(_around(frame)):
            if not loop.collects:
                return code, loop.over.lineno
    return None


def holds_both(frames: Sequence[FrameType], there: Sequence[Spot]) -> bool:
    """Whether peers at ``there`` are in the same loop as these frames, at another line of it: the
    innermost loop around the frame at which the two part."""
    ours = zip(frames, spots_of(frames), strict=True)
    for (frame, here), theirs in zip(reversed([*ours]), reversed(there), strict=False):
        if here != theirs:
            loops = _around(frame) if here.name == theirs.name else []
            return bool(loops) and loops[-1].begins <= theirs.line <= loops[-1].last
    return False


def collecting(frames: Sequence[FrameType]) -> list[str]:
    """Describes the comprehensions around these frames, whose collected items do not heal."""
    return sorted(
        {
            f"what the comprehension at {spot_of(frame).name.partition(':')[0]}:{loop.first} has "
            "collected"
            for frame in frames
            for loop in _around(frame)
            if loop.collects
        }
    )


def _around(frame: FrameType) -> list[Iteration]:
    code = frame.f_code
    name = code.co_name if code.co_name in COMPREHENSIONS.values() else ""
    return [
        loop
        for loop in _of_file(code)
        if loop.begins <= frame.f_lineno <= loop.last
        and (loop.code, loop.function) == (code.co_firstlineno, name)
    ]


def _is_fixed(loop: Iteration, frame: FrameType) -> bool:
    """Whether a loop is over something that cannot be set. An iterator in a variable counts as one
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
    """The value of an expression that is a variable or an attribute of one; None: it is neither."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return getattr(_value(node.value, frame), node.attr, None)
    if isinstance(node, ast.Name):
        return variables_of(frame).get(node.id, frame.f_globals.get(node.id))
    return None


def _of_file(code: CodeType) -> tuple[Iteration, ...]:
    """The loops of the file that has this code; none for a package that runs the loop."""
    return () if is_loop_package(code.co_filename) else _iterations(code.co_filename)


@lru_cache(maxsize=256)
def _iterations(file: str) -> tuple[Iteration, ...]:
    """The loops of a file, each before the loops inside it; none if it cannot be read."""
    with contextlib.suppress(OSError, SyntaxError, ValueError, RecursionError):
        return tuple(iterations(ast.parse(Path(file).read_bytes())))
    return ()
