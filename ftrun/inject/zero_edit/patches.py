"""What was put into torch's classes and modules, and back again.

Not here: what is put there, and why (models.py, stepping.py, loaders.py, counting.py, world.py).
"""

from __future__ import annotations

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

    def undo(self) -> None:
        """Put everything back, the newest first."""
        while self._before:
            owner, name, before = self._before.pop()
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
