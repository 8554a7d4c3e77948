"""The script's frames on the stack: where it stands.

A frame is the script's if its code is neither ftrun's, the standard library's nor an installed
package's. Some packages run the training loop for the script: their frames count too, without line
numbers, because one loop of theirs asks for batches at several lines.

Not here: the values of its variables (values/).
"""

from __future__ import annotations

import ast
import contextlib
import dis
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from inspect import CO_GENERATOR, CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, TypeVar

LOOP_PACKAGES = (
    "/transformers/",
    "/accelerate/",
    "/lightning/pytorch/loops/",
    "/pytorch_lightning/loops/",
    "/lightning/fabric/wrappers.py",
    "/lightning_fabric/wrappers.py",
)
INSTALLED = ("/site-packages/", "/dist-packages/")
"""Also of another environment than this interpreter's own."""
OF_RANK = "rank|process_zero|main_process|is_main|is_master|is_lead"
"""In the names of what says which rank this is."""
DEPTH_MAX = 64
CODES_MAX = 65_536
GENERATOR = -1
OF_MODULE = "<module>"
"""In the name of a module's code, alone if the module is still being read."""
Values = dict[str, Any]
"""Plain values by path (values/)."""


def _paths(*names: str) -> tuple[str, ...]:
    found = (path for name in names if (path := sysconfig.get_path(name)))
    return tuple({str(Path(path).resolve()) for path in found})


STANDARD = _paths("stdlib", "platstdlib")
_FTRUN = str(Path(__file__).resolve().parents[2])
_LIBRARIES = (*STANDARD, *_paths("purelib", "platlib"))
_OTHERS = (_FTRUN, *_LIBRARIES)

Found = TypeVar("Found")


def of_code(find: Callable[[CodeType], Found]) -> Callable[[CodeType], Found]:
    """Remember what a function finds of code, by its id: to hash code takes microseconds."""
    known: dict[int, tuple[Found, CodeType]] = {}

    def remembered(code: CodeType) -> Found:
        found = known.get(id(code))
        if found is None:
            if len(known) >= CODES_MAX:
                known.clear()
            found = known[id(code)] = find(code), code  # which keeps its id
        return found[0]

    return remembered


@lru_cache(maxsize=65_536)
def is_loop_package(file: str) -> bool:
    """Whether a package that runs training loops has this file."""
    return any(part in file for part in LOOP_PACKAGES)


_resolved = lru_cache(maxsize=65_536)(os.path.realpath)
"""Of the directories of files: all modules' are asked for, and to resolve a path takes long."""


@lru_cache(maxsize=65_536)
def is_script(file: str) -> bool:
    """Whether code of this file is the script's, or runs the loop for it."""
    if file.startswith("<") or file.startswith(_FTRUN):
        return False
    directory, name = os.path.split(file)
    path = f"{_resolved(directory)}/{name}"
    path = os.path.realpath(path) if os.path.islink(path) else path
    is_library = path.startswith(_LIBRARIES) or any(part in path for part in INSTALLED)
    return not is_library or is_loop_package(path)


@dataclass(frozen=True, slots=True, order=True)
class Spot:
    """A frame's place: ``file:function``, and the line (0 in a loop's package).

    ``column``: of the call from there, of frames that are not the innermost one: a function may be
    called twice in one line. ``GENERATOR``: of a generator function's frame.
    """

    name: str
    line: int
    column: int = 0

    def __str__(self) -> str:
        return f"{self.name.partition(':')[0]}:{self.line}" if self.line else self.name


NOWHERE = Spot("?", 0)
"""A place that no frame of the script's has."""


@of_code
def _name(code: CodeType) -> tuple[str, bool]:
    name = f"{Path(code.co_filename).name}:{code.co_name}"
    return name, is_loop_package(code.co_filename)


def spot_of(frame: FrameType) -> Spot:
    return spot_at(frame.f_code, frame.f_lineno)


def spot_at(code: CodeType, line: int) -> Spot:
    name, is_package = _name(code)
    return Spot(name, 0 if is_package else line)


def loop_at(code: CodeType, line: int) -> Spot:
    """The place of a loop: its header has a line also in a package, which may have two in one
    function."""
    return Spot(_name(code)[0], line)


@of_code
def _columns(code: CodeType) -> tuple[int, ...]:
    """The column of each instruction; none before Python 3.11."""
    positions = code.co_positions() if hasattr(code, "co_positions") else ()
    return tuple(column or 0 for _, _, column, _ in positions)


def _column(frame: FrameType) -> int:
    columns, at = _columns(frame.f_code), frame.f_lasti // 2
    return columns[at] if at < len(columns) else 0


@of_code
def _twins(code: CodeType) -> dict[int, tuple[int, int]]:
    return {} if _name(code)[1] else _twins_in(code.co_filename)


@lru_cache(maxsize=256)
def _twins_in(file: str) -> dict[int, tuple[int, int]]:
    """Of each line of a file with a call that only some ranks make, ``if rank == 0: train(a) else:
    train(b)``, the line and the column at which the others make it."""
    found: dict[int, tuple[int, int]] = {}
    with contextlib.suppress(OSError, SyntaxError, ValueError, RecursionError):
        source = Path(file).read_bytes()
        forks = re.search(rf"\bif\b.*({OF_RANK}).*:".encode(), source) and ast.walk(
            ast.parse(source)
        )
        for fork in forks or ():
            if isinstance(fork, ast.If) and fork.orelse and _asks_for_rank(fork.test):
                ours, others = _calls(fork.body), _calls(fork.orelse)
                for callee, calls in others.items():
                    for call, twin in zip(calls, ours.get(callee, ()), strict=False):
                        found.setdefault(call.lineno, (twin.lineno, twin.col_offset))
    return found


def _asks_for_rank(test: ast.expr) -> bool:
    names = (x.id if isinstance(x, ast.Name) else getattr(x, "attr", "") for x in ast.walk(test))
    return any(re.search(OF_RANK, name) for name in names)


def _calls(body: Sequence[ast.stmt]) -> dict[str, list[ast.Call]]:
    found: dict[str, list[ast.Call]] = {}
    for node in (x for part in body for x in ast.walk(part)):
        if isinstance(node, ast.Call):
            found.setdefault(ast.unparse(node.func), []).append(node)
    return found


def spots_of(frames: Sequence[FrameType]) -> tuple[Spot, ...]:
    """The places of the frames on a stack, innermost first: the same on all ranks, where some make
    a call at another line than others."""
    found = []
    for index, frame in enumerate(frames):
        name, is_package = _name(frame.f_code)
        line = 0 if is_package else frame.f_lineno
        column = _column(frame) if index and not is_package else 0
        if (twin := _twins(frame.f_code).get(line)) is not None:
            line, column = twin[0], twin[1] if index else 0
        column = GENERATOR if frame.f_code.co_flags & CO_GENERATOR else column
        found.append(Spot(name, line, column))
    return tuple(found)


def script_frames() -> list[FrameType]:
    """The script's frames on this thread's stack, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    found: list[FrameType] = []
    while frame is not None and len(found) < DEPTH_MAX:
        if is_script(frame.f_code.co_filename):
            found.append(frame)
        frame = frame.f_back
    return found


def innermost_of(frames: Sequence[FrameType]) -> dict[str, FrameType]:
    """The innermost frame of each function, these first."""
    found: dict[str, FrameType] = {}
    for frame in frames:
        found.setdefault(spot_of(frame).name, frame)
    return found


class _Code:
    """In the place of a frame's code."""

    def __init__(self, file: str, name: str, flags: int = 0, line: int = 0) -> None:
        self.co_filename, self.co_name = file, name
        self.co_flags, self.co_firstlineno = flags, line


class _ModuleFrame:
    """In the place of the frame of a module that was read to its end."""

    f_lineno = 0

    def __init__(self, module: ModuleType, file: str) -> None:
        self.module, self.f_locals = module, vars(module)
        self.f_code = _Code(file, f"{OF_MODULE}{vars(module)['__name__']}")


@lru_cache(maxsize=1_024)
def _held_code(code: CodeType, name: str) -> _Code:
    """Several generators of one function have names of their own."""
    named = f"{code.co_name}@{name}"
    return _Code(code.co_filename, named, code.co_flags, code.co_firstlineno)


class HeldFrame:
    """In the place of the ``frame`` of a generator that the script holds, by this ``name``."""

    def __init__(self, frame: FrameType, name: str) -> None:
        self.frame, self.f_lineno = frame, frame.f_lineno
        self.f_code = _held_code(frame.f_code, name.replace(" ", "_"))

    @property
    def f_locals(self) -> Any:
        return self.frame.f_locals


class KeptFrame:
    """In the place of the frame of objects that packages keep for the script, by name."""

    f_lineno = 0
    f_code = _Code("package", "kept")

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self.f_locals = {**objects}


class _ModuleFrames:
    """Those of the script's modules, by name. Of thousands each is looked at once."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}
        self._seen: set[str] = set()

    def all(self) -> list[Any]:
        gone = [name for name, x in self._known.items() if sys.modules.get(name) is not x.module]
        for name in gone:
            del self._known[name]
            self._seen.discard(name)
        if len(self._seen) != len(sys.modules):
            for name in sys.modules.keys() - self._seen:
                module = sys.modules.get(name)
                if isinstance(module, ModuleType) and (file := own_file(module)):
                    self._known[name] = _ModuleFrame(module, file)
            self._seen = set(sys.modules)
        return [*self._known.values()]


def own_file(module: ModuleType) -> str:
    """The file of a module of the script's; "": it is another one's, or it only says that it is a
    module, as cffi's libraries do."""
    if not issubclass(type(module), ModuleType):
        return ""
    file = ModuleType.__getattribute__(module, "__dict__").get("__file__")  # loads no lazy one
    if not isinstance(file, str) or file.startswith(_OTHERS) or INSTALLED[0] in file:
        return ""  # most of them, without a look at their links
    return file if is_script(file) and not is_loop_package(file) else ""


_MODULES = _ModuleFrames()


def module_frames(frames: Sequence[FrameType]) -> list[FrameType]:
    """What stands for the frames of the script's modules that are not among ``frames``."""
    here = {id(frame.f_globals) for frame in frames if frame.f_code.co_name == OF_MODULE}
    return [frame for frame in _MODULES.all() if id(frame.f_locals) not in here]


def stack() -> tuple[Spot, ...]:
    """Where the script stands, innermost first."""
    return spots_of(script_frames())


def site_of(frame: FrameType) -> str:
    """``file:line`` of a frame, whoever's."""
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def call_site() -> str:
    """``file:line`` of the innermost frame of the script's own files; for messages."""
    return near_site() or "the script"


@of_code
def _script_file(code: CodeType) -> str:
    """The name of the script's file that has this code; "": no file of the script's has it."""
    file = code.co_filename
    is_own = is_script(file) and not is_loop_package(file)
    return Path(file).name if is_own else ""


def drops_result(frame: FrameType) -> bool:
    """Whether the script throws away what the call gives in which the frame is."""
    if not is_script(frame.f_code.co_filename):
        return False
    after = (x for x in dis.get_instructions(frame.f_code) if x.offset > frame.f_lasti)
    return next((x.opname for x in after if x.opname != "CACHE"), "") == "POP_TOP"


def near_site() -> str:
    """As ``call_site``; "" if no frame is the script's. Mostly in a microsecond."""
    frame = near_frame()
    return "" if frame is None else f"{_script_file(frame.f_code)}:{frame.f_lineno}"


def near_frame() -> FrameType | None:
    """The innermost frame of the script's own files."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _script_file(frame.f_code):
        frame = frame.f_back
    return frame


def names_of(frame: FrameType) -> Any:
    """The variables of a frame, to read and to set: of a module's frame the module's own. Since
    Python 3.12 ``f_locals`` is a copy there while a comprehension runs in it."""
    found = frame.f_locals
    is_own = frame.f_code.co_flags & CO_OPTIMIZED or found is frame.f_locals
    return found if is_own else frame.f_globals


def variables_of(frame: FrameType) -> dict[str, Any]:
    """A copy of a frame's variables, by which nothing lives longer than the copy.

    Before Python 3.13 ``f_locals`` of a function is a dict that the frame keeps until it is read
    again: a result of the model would be held for a step longer than the script holds it. So it
    is emptied, unless the script has got it from ``locals()``.
    """
    found = names_of(frame)
    copied = dict(found)  # another thread may set the script's global names
    is_snapshot = frame.f_code.co_flags & CO_OPTIMIZED and sys.version_info < (3, 13)
    if is_snapshot and sys.getrefcount(found) <= _HELD_BY_THE_FRAME:
        found.clear()
    return copied


def _held_by_the_frame() -> int:
    found = sys._getframe().f_locals
    return sys.getrefcount(found)


_HELD_BY_THE_FRAME = _held_by_the_frame()
