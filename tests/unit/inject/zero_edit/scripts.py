"""A script without a job, as far as its files need one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ftrun.inject.zero_edit.files import Drafts


class FilesOf:
    """The script of one life of a slot, whose files are in ``directory``. Its facts may be set."""

    def __init__(self, directory: Path, rank: int = 0, **facts: bool) -> None:
        self.has_begun = self.passes = self.has_peers = False
        self.is_known, self.steps = True, 0
        vars(self).update(facts)
        self._directory = directory
        self.mates = SimpleNamespace(rank=rank)
        self.here = SimpleNamespace(restarts=1, snapshot_dir="")
        this: Any = self
        self.drafts = Drafts(this)

    @property
    def course(self) -> Any:
        return SimpleNamespace(now=SimpleNamespace(has_stepped=self.has_begun))

    @property
    def passing(self) -> Any:
        return SimpleNamespace(is_on=self.passes)

    @property
    def peers(self) -> Any:
        return SimpleNamespace(can_be_found=self.is_known)

    def joins(self) -> bool:
        return self.has_peers

    def joins_early(self) -> bool:
        return False

    def knows_peers(self) -> bool:
        return self.is_known

    def file(self, name: str) -> Path:
        return self._directory / name.partition("-")[0]
