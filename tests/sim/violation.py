"""The error of a broken invariant, and the facts of a reduction that invariants need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ftrun.core.ids import Attempt, Tag, WorkerKey


class Violation(Exception):  # the word that INVARIANTS.md uses
    """An invariant is broken; ``code`` names it."""

    seed: int | None = None

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class Part(Protocol):
    """One member's contribution to a reduction."""

    @property
    def key(self) -> WorkerKey: ...
    @property
    def tag(self) -> Tag: ...
    @property
    def index(self) -> int: ...
    @property
    def base(self) -> int: ...
    @property
    def counts(self) -> bool: ...


class Sum(Protocol):
    """The result of a reduction."""

    @property
    def attempt(self) -> Attempt: ...
    @property
    def parts(self) -> Sequence[Part]: ...


def require(holds: bool, code: str, text: str) -> None:
    """Raise the violation of ``code`` unless ``holds``."""
    if not holds:
        raise Violation(code, text)
