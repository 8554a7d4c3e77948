"""A worker without a job, as the rooms that keep a script's files see it."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ftrun.inject.zero_edit.directories import Directories
from ftrun.inject.zero_edit.files import Drafts


class Worker:
    """It may follow another one. Its files are in ``directory``."""

    memory, steps, may_follow = None, 0, True

    def __init__(
        self,
        rank: int = 0,
        *,
        joins: bool = False,
        has_begun: bool = False,
        passes: bool = False,
        has_world: bool = True,
        is_in_place: bool = False,
        directory: Path = Path("/nowhere"),
    ) -> None:
        self.mates, self.directory, self.is_known = SimpleNamespace(rank=rank), directory, True
        self.joins, self.has_begun, self.passes = joins, has_begun, passes
        self.is_in_place = is_in_place
        self.peers = SimpleNamespace(can_be_found=has_world)

    @property
    def course(self) -> Any:
        return SimpleNamespace(now=SimpleNamespace(has_stepped=self.has_begun))

    @property
    def passing(self) -> Any:
        return SimpleNamespace(is_on=self.passes)

    @cached_property
    def drafts(self) -> Drafts:
        script: Any = self
        return Drafts(script)

    @cached_property
    def directories(self) -> Directories:
        script: Any = self
        return Directories(script)

    def file(self, name: str) -> Path:
        return self.directory / name.partition("-")[0]

    def writes(self) -> None:
        """It has no tensors."""

    def has_peers(self) -> bool:
        return self.joins

    def knows_its_peers(self) -> bool:
        return self.is_known
