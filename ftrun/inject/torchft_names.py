"""Makes ``import torchft`` in a worker load ftrun's modules of those names: ``--torchft``.

The finder comes before all others, so that an installed torchft, or one beside the script, is not
used. ``torchft.x`` and ``ftrun.torchft.x`` are one module object, so that classes are identical
whichever name a library imports. ``importlib.util.find_spec("torchft")`` finds them too. Processes
that the script spawns by multiprocessing inherit the path, and so use them too (for_children/).

Not here: the modules (ftrun/torchft/).
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ftrun.training.context import WorkerContext

NAME = "torchft"
REAL = "real"
FOR_CHILDREN = str(Path(__file__).with_name("for_children"))
LINE = (
    "ftrun: `import torchft` gives this script ftrun's modules of that name; --torchft real gives "
    "it the installed package"
)


def install(mode: str, here: WorkerContext) -> None:
    """Provide torchft's modules from now on, unless ``mode`` is "real". Idempotent.

    "auto": the job's first worker reports it, once, when the script imports it.
    """
    if mode == REAL:
        return
    is_first = here.replica_id == "0" and here.group_rank == 0 and here.restarts == 0
    answer(says_so=mode == "auto" and is_first)
    if FOR_CHILDREN not in sys.path:
        sys.path.insert(0, FOR_CHILDREN)  # the script's own directory comes before it


def answer(says_so: bool = False) -> None:
    """Provide torchft's modules in this process from now on. Idempotent."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(says_so))


ON_USE: list[Callable[[], None]] = []
"""Called before the script first uses anything from torchft. Importing the package does not count,
because a script may test whether torchft is installed, and train without it."""


class _Finder(MetaPathFinder):
    """Finds ``torchft`` and its submodules in ``ftrun.torchft``."""

    def __init__(self, says_so: bool) -> None:
        self._says_so = says_so

    def find_spec(
        self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != NAME and not name.startswith(f"{NAME}."):
            return None
        own = importlib.util.find_spec(f"ftrun.{name}")
        if own is None:
            return None  # no such submodule: the import fails with the requested name
        is_package = own.submodule_search_locations is not None
        spec = ModuleSpec(name, _Own(self), origin=own.origin, is_package=is_package)
        spec.submodule_search_locations = own.submodule_search_locations
        return spec

    def say_so(self) -> None:
        """Report whose modules these are, once."""
        if self._says_so:
            self._says_so = False
            print(LINE, file=sys.__stderr__, flush=True)


class _Own(Loader):
    """Gives a module of ftrun, unchanged, a second name."""

    def __init__(self, finder: _Finder) -> None:
        self._finder = finder
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(f"ftrun.{spec.name}")
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system has set the spec of the other name
        self._finder.say_so()
        if module.__name__ == f"ftrun.{NAME}":
            _watch(module)
        else:
            _used()


def _used() -> None:
    importlib.import_module("torch")  # attaches ftrun to torch from then on
    while ON_USE:
        ON_USE.pop()()


def _watch(package: ModuleType) -> None:
    """Watch what the script uses from the package."""
    names = vars(package)
    plain = names["__getattr__"]

    def look_up(name: str) -> Any:
        if name in dir(package):
            names["__getattr__"] = plain
            _used()
        return plain(name)

    names["__getattr__"] = look_up
