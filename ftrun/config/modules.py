"""Finds the module that ``-m`` names as ``python -m`` does, without importing anything.

A package that changes its search path when it is imported cannot be checked, and is accepted. Not
here: scripts in files (script.py), running the module (inject/).
"""

from __future__ import annotations

import importlib.util
import pkgutil
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path

from ftrun.base.errors import UserError
from ftrun.config.options import nearest

_EXTENDS = (b"__path__", b"meta_path", b"sys.modules", b"__getattr__")
"""Words in an ``__init__.py`` that may make it import modules from outside its directory."""


def find_module(name: str, directory: Path) -> Path | None:
    """The source of the module ``name``, or of a package's ``__main__``.

    ``directory``: where the command was typed; ``python -m`` looks there first.

    Returns:
        None: the module exists, or may exist, but has no source to read.

    Raises:
        UserError: there is no such module.
    """
    parts = name.split(".")
    top = _find(parts[0], [str(directory), *sys.path]) or _find_elsewhere(parts[0])
    if top is None:
        raise UserError(
            f"-m {name}: no module named {parts[0]!r} here ({directory}) or installed. "
            "Nothing was started."
        )
    found = top
    for depth in range(1, len(parts)):
        package, found_next = ".".join(parts[:depth]), _inside(found, parts[depth])
        if found_next is None:
            if _may_have_more(found):
                return None
            raise _missing(name, package, parts[depth], found)
        found = found_next
    if found.submodule_search_locations is None:
        return _source(found)
    main = _inside(found, "__main__")
    if main is None and not _may_have_more(found):
        raise UserError(
            f"-m {name}: the package has no __main__.py. Nothing was started. "
            f"Name a module of it: -m {name}.MODULE"
        )
    return _source(main) if main is not None else None


def _inside(package: ModuleSpec, name: str) -> ModuleSpec | None:
    places = list(package.submodule_search_locations or ())
    full = f"{package.name}.{name}"
    found = _find(full, places)
    for finder in sys.meta_path if found is None else ():
        # Finders of editable installs; the usual ones would need the package imported.
        if not isinstance(finder, type):
            try:
                found = found or finder.find_spec(full, places)
            except Exception:  # noqa: BLE001 - somebody else's finder: it knows nothing, then
                continue
    return found


def _find(name: str, places: Sequence[str]) -> ModuleSpec | None:
    """A module or a package. A directory without ``__init__.py`` counts if there is nothing
    else."""
    parts: list[str] = []
    for place in places:
        finder = pkgutil.get_importer(place)
        spec = finder.find_spec(name) if finder is not None else None
        if spec is not None and spec.loader is not None:
            return spec
        if spec is not None:
            parts += spec.submodule_search_locations or ()
    if not parts:
        return None
    namespace = ModuleSpec(name, None, is_package=True)
    namespace.submodule_search_locations = parts
    return namespace


def _find_elsewhere(name: str) -> ModuleSpec | None:
    """A built-in module, or one of an editable install."""
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None


def _may_have_more(package: ModuleSpec) -> bool:
    """Whether the package's names are known only after its import."""
    source = _source(package)
    if source is None:
        return package.loader is not None
    try:
        text = source.read_bytes()
    except OSError:
        return True
    return any(word in text for word in _EXTENDS)


def _source(spec: ModuleSpec) -> Path | None:
    is_python = spec.origin is not None and spec.origin.endswith(".py")
    path = Path(spec.origin or "") if is_python else None
    return path if path is not None and path.is_file() else None


def _missing(name: str, package: str, module: str, found: ModuleSpec) -> UserError:
    places = found.submodule_search_locations
    if places is None:
        return UserError(
            f"-m {name}: {package} is a module and not a package, so it has no {module!r}. "
            "Nothing was started."
        )
    where = ", ".join(list(places)[:2])
    hint = nearest(module, [each.name for each in pkgutil.iter_modules(list(places))])
    return UserError(
        f"-m {name}: the package {package} ({where}) has no module {module!r}. "
        f"Nothing was started.{hint}"
    )
