"""Directories that the script makes in its set-up: a run's own, by the time or a free number.

A replica that was started again runs the set-up again, and would begin another one: its checkpoints
would be in two places. So each worker leaves the directories that it has made before its first step
to its successor, in a file of its slot. A newcomer that makes one at the same line, in the same
directory, with a name that differs in its numbers, gets that of its predecessor under the new name:
a link, which is removed when it ends. Directories for temporary files are left alone.

Not here: files (rewriting.py, files.py).
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import re
import tempfile
import threading
from pathlib import Path
from typing import Any

from ftrun.inject.zero_edit import told
from ftrun.inject.zero_edit.files import Drafts
from ftrun.inject.zero_edit.frames import call_site
from ftrun.inject.zero_edit.patches import Patches

FILE = "made-{replica_id}.{group_rank}"
MADE_MAX = 256
_PLAIN: Any = os.mkdir
_NUMBER = re.compile(r"\d+")


class Directories:
    """Stands in for ``os.mkdir``, which ``makedirs`` and pathlib call.

    Args:
        path: the file of this slot and rank.
        drafts: of this worker, which notes what this process has made.
    """

    def __init__(self, path: Path, drafts: Drafts) -> None:
        self._path, self._drafts = path, drafts
        self._made: list[tuple[str, str]] = []  # what makes it alike, and the directory
        self._theirs: list[tuple[str, str]] | None = None
        self._links: list[str] = []
        self._is_registered = False

    def install(self, patches: Patches) -> None:
        functools.update_wrapper(self, _PLAIN)
        patches.put(os, "mkdir", self)

    def __call__(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        is_set_up = is_main and not (self._drafts.is_forked or self._drafts.has_begun())
        whole = _whole(path) if dir_fd is None and is_set_up else None
        if whole is None:
            _PLAIN(path, mode, dir_fd=dir_fd)
            if dir_fd is None:
                self._drafts.made(path)
            return
        kind = f"{call_site()} {os.path.dirname(whole)} {_NUMBER.sub('0', os.path.basename(whole))}"
        is_free = not os.path.lexists(whole) or os.path.islink(whole)
        if is_free and self._drafts.joins() and self._takes(kind, whole):
            return
        if os.path.isdir(whole) and any(whole.startswith(f"{x}{os.sep}") for x in self._targets()):
            return  # a part of its predecessor's, which the script makes anew
        _PLAIN(path, mode)
        self._drafts.made(path)
        if len(self._made) < MADE_MAX:
            self._made.append((kind, whole))

    def begins(self) -> None:
        """The first step begins, of a replica that joins nobody: what it has made is left."""
        self._leave(self._made)

    def _leave(self, made: list[tuple[str, str]]) -> None:
        try:
            self._path.write_text(json.dumps([made, self._links]))
        except OSError as error:
            told.once(f"the directories made here are not left to a successor: {error}")

    def _takes(self, kind: str, whole: str) -> bool:
        """Let the predecessor's directory have this name too; False: there is none."""
        number = sum(1 for known, _ in self._made if known == kind)
        found = [path for known, path in self._left() if known == kind][number:][:1]
        if not found or not os.path.isdir(found[0]):
            return False
        if os.path.lexists(whole):
            return whole in self._links  # of a life that was killed
        os.symlink(found[0], whole)
        if not self._is_registered:
            self._is_registered = True
            atexit.register(self._remove, os.getpid())
        self._links.append(whole)
        self._leave(self._left())
        self._made.append((kind, found[0]))
        told.say(
            f"rank {self._drafts.rank} goes on in the directory {os.path.relpath(found[0])}, which "
            f"its predecessor has made, under the name {os.path.basename(whole)} too"
        )
        return True

    def _left(self) -> list[tuple[str, str]]:
        if self._theirs is None:
            try:
                made, links = json.loads(self._path.read_text())
                self._theirs = [(kind, path) for kind, path in made]
                self._links += links  # of lives that were killed: values that heal may name them
            except (OSError, ValueError, TypeError):
                self._theirs = []
        return self._theirs

    def _targets(self) -> list[str]:
        return [os.path.realpath(link) for link in self._links]

    def _remove(self, pid: int) -> None:
        for link in self._links if os.getpid() == pid else ():
            if os.path.islink(link):
                with contextlib.suppress(OSError):
                    os.unlink(link)


def _whole(path: Any) -> str | None:
    """The directory, with its parent as it is; None: one that is left alone."""
    try:
        name = os.fspath(path)
        if not isinstance(name, str):
            return None
        parent, last = os.path.split(os.path.abspath(name))
        whole = os.path.join(os.path.realpath(parent), last)
    except (OSError, ValueError, TypeError):
        return None
    here = f"{os.getcwd()}{os.sep}"
    is_temporary = whole.startswith((tempfile.gettempdir(), "/dev/shm", "/run/"))
    return whole if whole.startswith(here) or not is_temporary else None
