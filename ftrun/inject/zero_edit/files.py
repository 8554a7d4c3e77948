"""``torch.save`` and safetensors to a path write a draft first and rename it.

A replica that dies while it writes leaves the older file whole, and replicas that all write one
path do not write into each other's. What a newcomer saves before it has joined replaces no file
that was there before it.

Not here: which replica writes; the script decides by its rank. Files that the script opens itself:
rewriting.py.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from ftrun.inject.zero_edit import told
from ftrun.inject.zero_edit.frames import INSTALLED, STANDARD, is_script
from ftrun.inject.zero_edit.patches import Patches, around_everywhere
from ftrun.inject.zero_edit.values.journal import Journal, read

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.script import Script

SAFETENSORS = ("safetensors.torch", "safetensors.numpy")
DRAFTS_MAX, OWN_MAX = 64, 4_096
REMOVED = "removed-{replica_id}.{group_rank}"
DRAFTED = "drafted-{replica_id}.{group_rank}"


class Drafts:
    """Names for drafts, in the directories of the files that they will be. From any thread.

    A name has the worker's rank, and a successor removes the drafts that a killed worker has left.
    (Processes that the worker has forked, such as a loader's, have names of their own.)

    Attributes:
        has_named: the script has made, renamed or removed a file since this was set to False.
    """

    def __init__(self, script: Script) -> None:
        self._script, self.rank = script, script.mates.rank
        removed = script.file(REMOVED)  # what the script removes; a successor reads it
        self._removed = Journal(removed)
        self._gone = {name for names, _ in read(removed) for name in names}
        drafted = script.file(DRAFTED)
        for left in {name for names, _ in read(drafted) for name in names}:
            with contextlib.suppress(OSError):
                os.unlink(left)
        self._drafted = Journal(drafted)
        self._pid = os.getpid()
        self.has_named = False
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
                if not os.path.lexists(path):
                    self.made(path)
                os.replace(draft, path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        finally:
            self.give_back(draft)

    @property
    def is_forked(self) -> bool:
        """Whether the worker has forked this process: a loader's workers write for the loop."""
        return os.getpid() != self._pid

    @property
    def is_loops(self) -> bool:
        """Whether the thread that runs is the script's own, which runs its loop."""
        is_main = threading.current_thread() is threading.main_thread()
        return is_main and not self.is_forked

    def has_begun(self) -> bool:
        """Whether the first step of this worker has begun."""
        return self._script.course.now.has_stepped

    def drops(self) -> bool:
        """Whether what is written now does not count (passing.py)."""
        return self._script.passing.is_on and not self.is_forked

    def drops_at(self, path: Path) -> bool:
        """Whether a file that is written now does not count. What this process has made itself, and
        what is in a directory that it has made, does: no other worker's file is there."""
        if self.is_forked:
            return False
        if not (self.drops() or (os.path.lexists(path) and self._script.has_peers())):
            return False
        return not self.is_own(path)

    def is_own(self, path: Path) -> bool:
        """Whether this process has made a file, or a directory around it."""
        real = _real(path)
        return any(str(one) in self._own for one in (real, *real.parents))

    def is_here(self, path: Path) -> bool:
        """Whether a file or a directory is where the script works, or in a directory that it has
        made. One elsewhere may be another job's too."""
        real = _real(path)
        is_installed = any(part in f"{real}/" for part in INSTALLED)
        within = Path.cwd() in (real, *real.parents) and not is_installed
        return within or self.is_own(real)

    def made(self, path: Any) -> None:
        """This process has made a file or a directory."""
        self.has_named = True
        if len(self._own) < OWN_MAX and isinstance(path, (str, os.PathLike)):
            self._own.add(str(_real(Path(path))))

    def remove(self, plain: Callable[..., None], path: Any, **kwargs: Any) -> None:
        """Remove a file or a directory, or find that the predecessor has: a list of checkpoints
        that heals may be older than that."""
        real = str(_real(Path(path)))
        if self.has_begun() and not self.is_forked:
            with contextlib.suppress(OSError):
                if not self._removed.add([real]):
                    self._removed.begin([*self._gone, real])
        try:
            plain(path, **kwargs)
        except FileNotFoundError:
            if real not in self._gone or os.path.lexists(real):
                raise
            self._gone.discard(real)
            name = os.path.basename(real)
            told.once(f"rank {self.rank}'s predecessor had already removed {name}")

    def is_dropped(self, path: Any) -> bool:
        """Whether a file is not there because it was not written."""
        if not self._dropped or not isinstance(path, (str, os.PathLike)):
            return False
        return str(_real(Path(path))) in self._dropped and not os.path.lexists(path)

    def tell_dropped(self, path: Path) -> None:
        """A file is not written."""
        if len(self._dropped) < OWN_MAX:
            self._dropped.add(str(_real(path)))
        told.once(f"rank {self.rank} does not write {path.name} while it catches up with its peers")

    def take(self, path: Path) -> Path:
        """An unused name.

        Raises:
            OSError: too many drafts of this file are in use.
        """
        self._script.writes()
        owner = f"{self.rank}-{os.getpid()}" if self.is_forked else str(self.rank)
        with self._lock:
            for number in range(DRAFTS_MAX):
                suffix = f"-{number}" if number else ""
                draft = path.with_name(f".{path.name}.{owner}{suffix}.draft")
                if draft not in self._in_use:
                    self._in_use.add(draft)
                    self._note_draft(draft)
                    return draft
        raise OSError(f"{path} is open for writing {DRAFTS_MAX} times at once")

    def _note_draft(self, draft: Path) -> None:
        with contextlib.suppress(OSError):
            if not self.is_forked and not self._drafted.add([os.path.abspath(draft)]):
                self._drafted.begin([os.path.abspath(one) for one in self._in_use])

    def give_back(self, draft: Path) -> None:
        with self._lock:
            self._in_use.discard(draft)


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def install(patches: Patches, drafts: Drafts) -> None:
    """Patch ``torch.save``, and ``safetensors`` when the script imports it."""

    def save(plain: Callable[..., None], obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(f, (str, os.PathLike)):
            with drafts.of(Path(f)) as draft:
                plain(obj, draft, *args, **kwargs)
        else:
            plain(obj, f, *args, **kwargs)

    _patch_names(patches, drafts)
    patches.around(torch, "save", save, torch.serialization)
    for name in SAFETENSORS:
        patches.when_imported(name, lambda module: _patch_safetensors(drafts, module))


def _patch_safetensors(drafts: Drafts, module: Any) -> None:
    def save_file(plain: Any, tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> None:
        with drafts.of(Path(filename)) as draft:
            plain(tensors, draft, *args, **kwargs)

    around_everywhere(module, "save_file", save_file)


def is_by_script(deep: int = 2) -> bool:
    """Whether a frame of the script's has called our caller, ``deep`` frames from here; those of
    the standard library's around it do not count."""
    return is_script(asker(sys._getframe(deep)).f_code.co_filename)


def asker(frame: FrameType) -> FrameType:
    """The frame that has called the standard library, or this one."""
    while frame.f_back is not None:
        file = frame.f_code.co_filename
        is_standard = file.startswith(("<frozen", *STANDARD))
        if not is_standard or any(part in file for part in INSTALLED):
            break
        frame = frame.f_back
    return frame


def _patch_names(patches: Patches, drafts: Drafts) -> None:
    """A file that was not written is not renamed either (``os.replace`` of a temporary one); one
    that stays is neither replaced nor removed."""
    plain_remove = os.remove

    def make(
        plain: Callable[..., int], path: Any, flags: int, mode: int = 0o777, **kwargs: Any
    ) -> int:
        is_made = flags & os.O_CREAT and not kwargs and not drafts.has_begun()
        is_made = is_made and not os.path.lexists(path)
        opened = plain(path, flags, mode, **kwargs)
        if is_made:
            drafts.made(path)
        return opened

    def rename(plain: Callable[..., None], src: Any, dst: Any, *args: Any, **kwargs: Any) -> None:
        if drafts.is_dropped(src):
            drafts.tell_dropped(Path(dst))
        elif os.path.isfile(src) and drafts.drops_at(Path(dst)) and is_by_script(3):
            drafts.tell_dropped(Path(dst))
            plain_remove(src)
        else:
            if not os.path.lexists(dst):
                drafts.made(dst)
            drafts.has_named = True
            plain(src, dst, *args, **kwargs)

    def remove(plain: Callable[..., None], path: Any, *, dir_fd: int | None = None) -> None:
        is_name = dir_fd is None and isinstance(path, (str, os.PathLike))
        if is_name and drafts.drops_at(Path(path)) and is_by_script(3):
            drafts.tell_dropped(Path(path))
        else:
            drafts.has_named = True
            drafts.remove(plain, path) if is_name else plain(path, dir_fd=dir_fd)

    def rmtree(plain: Callable[..., None], path: Any, *args: Any, **kwargs: Any) -> None:
        if args or not isinstance(path, (str, os.PathLike)):
            plain(path, *args, **kwargs)
        else:
            drafts.has_named = True
            drafts.remove(plain, path, **kwargs)

    patches.around(os, "open", make)
    patches.around(shutil, "rmtree", rmtree)
    for name in ("replace", "rename"):
        patches.around(os, name, rename)
    for name in ("remove", "unlink"):
        patches.around(os, name, remove)
