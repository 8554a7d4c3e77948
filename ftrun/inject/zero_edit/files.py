"""``torch.save`` and safetensors to a path write a draft first and rename it.

A replica that dies while it writes leaves the older file whole, and replicas that all write one
path do not write into each other's. Not here: which replica writes; the script decides by its rank.
Files that the script opens itself: rewriting.py.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from ftrun.inject.zero_edit import told
from ftrun.inject.zero_edit.patches import Patches, replace_everywhere

SAFETENSORS = ("safetensors.torch", "safetensors.numpy")
DRAFTS_MAX, OWN_MAX = 64, 4_096


class Drafts:
    """Names for drafts, in the directories of the files that they will be. From any thread.

    A name has the worker's rank, so that a successor writes over the drafts of a killed worker.
    (Processes that the worker has forked, such as a loader's, have names of their own.)

    Args:
        rank: of the worker.
        drops: whether what it writes now does not count (passing.py).
    """

    def __init__(self, rank: int, drops: Callable[[], bool] = lambda: False) -> None:
        self.rank, self.drops = rank, drops
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._in_use: set[Path] = set()
        self._own: set[str] = set()
        self._dropped: set[str] = set()

    @contextlib.contextmanager
    def of(self, path: Path) -> Iterator[Path]:
        """A draft for the time of the block. It takes the file's name unless the block fails."""
        draft = self.take(path)
        try:
            yield draft
            if self.drops_at(path):
                self.tell_dropped(path)
                draft.unlink(missing_ok=True)
            else:
                os.replace(draft, path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        finally:
            self.give_back(draft)

    def drops_at(self, path: Path) -> bool:
        """Whether a file that is written now does not count; in a directory that this process has
        made itself it does: no other worker's file is there."""
        if not self.drops():
            return False
        return not any(str(parent) in self._own for parent in _real(path).parents)

    def made(self, directory: Any) -> None:
        """This process has made a directory."""
        if len(self._own) < OWN_MAX and isinstance(directory, (str, os.PathLike)):
            self._own.add(str(_real(Path(directory))))

    def is_dropped(self, path: Any) -> bool:
        """Whether a file is not there because it was not written."""
        if not self._dropped or not isinstance(path, (str, os.PathLike)):
            return False
        return str(_real(Path(path))) in self._dropped and not os.path.lexists(path)

    def tell_dropped(self, path: Path) -> None:
        """A file is not written."""
        if len(self._dropped) < OWN_MAX:
            self._dropped.add(str(_real(path)))
        told.once(f"rank {self.rank} does not write {path.name} on its way to its peers' place")

    def take(self, path: Path) -> Path:
        """An unused name.

        Raises:
            OSError: too many drafts of this file are in use.
        """
        pid = os.getpid()
        owner = str(self.rank) if pid == self._pid else f"{self.rank}-{pid}"
        with self._lock:
            for number in range(DRAFTS_MAX):
                suffix = f"-{number}" if number else ""
                draft = path.with_name(f".{path.name}.{owner}{suffix}.draft")
                if draft not in self._in_use:
                    self._in_use.add(draft)
                    return draft
        raise OSError(f"{path} is open for writing {DRAFTS_MAX} times at once")

    def give_back(self, draft: Path) -> None:
        """The name is unused again."""
        with self._lock:
            self._in_use.discard(draft)


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def install(patches: Patches, drafts: Drafts) -> None:
    """Patch ``torch.save``, and ``safetensors`` when the script imports it."""
    _patch_names(patches, drafts)
    plain = torch.save

    @functools.wraps(plain)
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(f, (str, os.PathLike)):
            with drafts.of(Path(f)) as draft:
                plain(obj, draft, *args, **kwargs)
        else:
            plain(obj, f, *args, **kwargs)

    patches.put(torch, "save", save)
    patches.put(torch.serialization, "save", save)
    for name in SAFETENSORS:
        patches.when_imported(name, functools.partial(_patch_safetensors, drafts))


def _patch_safetensors(drafts: Drafts, module: Any) -> None:
    plain = module.save_file

    @functools.wraps(plain)
    def save_file(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> None:
        with drafts.of(Path(filename)) as draft:
            plain(tensors, draft, *args, **kwargs)

    module.save_file = save_file
    replace_everywhere("save_file", plain, save_file)


def _patch_names(patches: Patches, drafts: Drafts) -> None:
    """Let a file that was not written not be renamed either (``os.replace`` of a temporary one)."""

    def patched(name: str) -> None:
        plain = getattr(os, name)

        @functools.wraps(plain)
        def rename(src: Any, dst: Any, *args: Any, **kwargs: Any) -> None:
            if drafts.is_dropped(src):
                drafts.tell_dropped(Path(dst))
            else:
                plain(src, dst, *args, **kwargs)

        patches.put(os, name, rename)

    for name in ("replace", "rename"):
        patched(name)
    plain_mkdir = os.mkdir

    @functools.wraps(plain_mkdir)
    def mkdir(path: Any, *args: Any, **kwargs: Any) -> None:
        plain_mkdir(path, *args, **kwargs)
        drafts.made(path)

    patches.put(os, "mkdir", mkdir)
