"""Puts patches into torch's classes and modules, and takes them out again.

Not here: the patches themselves (models.py, stepping.py, loaders.py, counting.py, world.py).
"""

from __future__ import annotations

import functools
import importlib.machinery
import sys
from collections.abc import Callable
from typing import Any

_ABSENT = object()


class Patches:
    """Names of classes and modules that stand for others, until ``undo``."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Let ``owner.name`` be ``value``."""
        self._before.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def after(self, owner: Any, name: str, note: Callable[[Any], None]) -> None:
        """Call ``note`` with an object when a method of its class has returned."""
        plain = getattr(owner, name)

        @functools.wraps(plain)
        def method(made: Any, *args: Any, **kwargs: Any) -> None:
            plain(made, *args, **kwargs)
            note(made)

        self.put(owner, name, method)

    def when_imported(self, name: str, call: Callable[[Any], None]) -> None:
        """Call with the module ``name`` once it is imported, before anybody has names of it.

        Some parts of torch take half a second to import, so this does not import them. ``undo``
        ends the wait; what ``call`` has done stays.
        """
        if name in sys.modules:
            call(sys.modules[name])
            return
        loader: Any = importlib.machinery.SourceFileLoader
        plain = loader.exec_module

        def exec_module(self: Any, module: Any) -> None:
            plain(self, module)
            if module.__name__ == name:
                call(module)

        self.put(loader, "exec_module", exec_module)

    def undo(self) -> None:
        """Put everything back, the newest first."""
        while self._before:
            owner, name, before = self._before.pop()
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


def replace_everywhere(name: str, plain: Any, ours: Any) -> None:
    """Let ``ours`` stand for the function ``plain`` in all modules that have it under ``name``."""
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(name) is plain:
            setattr(module, name, ours)
