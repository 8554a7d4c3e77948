"""Directories that the script makes in its set-up, and files that it asks for there.

A replica that was started again runs the set-up again, and would begin another directory of the
run, by the time or a free number: its checkpoints would be in two places. So each worker leaves the
directories that it has made before its first step to its successor, in a file of its slot. A
newcomer that makes one at the same line, in the same directory, with a name that differs in its
numbers or its UUID, gets that of its predecessor under the new name: a link, which is removed when
it ends. One of the same name it is given as if it were new. Directories for temporary files are
left alone.

A worker also leaves what was not there when its script asked (``os.path.exists``) or looked
(``os.listdir``), because a newcomer finds what its predecessor has made since. As a rule it takes a
shorter way then (a cache). Some scripts end ("the experiment exists already"), or train at another
line ("a checkpoint is there"): the next newcomer gets the answers that its predecessor got.

Not here: what is written to files (rewriting.py, files.py).
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import glob
import os
import re
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from ftrun.base import clock
from ftrun.inject.zero_edit import told
from ftrun.inject.zero_edit.files import is_by_script
from ftrun.inject.zero_edit.frames import call_site, is_script, site_of
from ftrun.inject.zero_edit.patches import Patches
from ftrun.inject.zero_edit.values.journal import Journal, read

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.script import Script

FILE = "made-{replica_id}.{group_rank}"
MADE_MAX = ABSENT_MAX = LISTED_MAX = 256
ASKS_IN_A_LOOP = 4
"""So often between two steps for one path that is not there, and the script waits for it."""
ASKS: dict[Any, tuple[str, ...]] = {
    os.path: ("exists", "lexists", "isfile", "isdir"),
    Path: ("exists", "is_file", "is_dir"),
}
LISTS: dict[Any, tuple[str, ...]] = {
    os: ("listdir",),
    glob: ("glob", "iglob"),
    Path: ("glob", "rglob", "iterdir"),
}
_PLAIN: Any = os.mkdir
_NUMBER = re.compile(r"[0-9a-f]{8}(?:-?[0-9a-f]{4}){3}-?[0-9a-f]{12}|\d+")
"""Also a UUID."""


class Directories:
    """Stands in for ``os.mkdir``, which ``makedirs`` and pathlib call, and for ``os.path.exists``
    and its like where the script itself calls them.

    Attributes:
        is_successor: a worker of this slot has trained before.
    """

    def __init__(self, script: Script) -> None:
        path = script.file(FILE)
        self._script, self._drafts = script, script.drafts
        self._journal = Journal(path, "the directories made here are not left to a successor")
        self._made: list[tuple[str, str]] = []  # what makes it alike, and the directory
        self._theirs: list[tuple[str, str]] = []
        self._links: list[str] = []
        self._absent: Counter[str] = Counter()  # what was not there, and how often
        self._listed: dict[str, list[list[str] | None]] = {}  # None: too many
        self._asked: Counter[str] = Counter()
        self.is_successor = self._repeats = self._ends = self._is_same = False
        self._asked_last: tuple[int, CodeType, str] | None = None
        self._asked_at, self._times = 0.0, 0
        for (made, links, absent, listed, ends), _ in read(path)[:1]:
            self._theirs = [(kind, whole) for kind, whole in made]
            self._links += links  # of lives that were killed: values that heal may name them
            self._absent.update(absent)
            self._listed.update(listed)
            self.is_successor, self._repeats, self._ends = True, ends, ends
        if script.is_in_place:
            self._is_same = self._repeats = True
        elif script.memory is not None:
            # A worker that replaces another in its group is to take the same way, so it is always
            # told the same; any other one of a group begins anew.
            self._is_same = self._repeats = script.memory.world.is_newcomer
            if not self._is_same:
                self._theirs, self._links, self.is_successor = [], [], False
                self._absent.clear()
                self._listed.clear()

    def install(self, patches: Patches) -> None:
        atexit.register(self._remove, os.getpid())
        functools.update_wrapper(self, _PLAIN)
        patches.put(os, "mkdir", self)
        tables: tuple[tuple[Any, Callable[..., Any]], ...] = (ASKS, self.asks), (LISTS, self.lists)
        known = [
            (owner, name, ours)
            for table, ours in tables
            for owner in table
            for name in table[owner]
        ]
        for owner, name, ours in known:
            home = sys.modules[getattr(owner, name).__module__]  # where pickle looks for it
            also = () if isinstance(owner, type) else (home,)
            patches.around(owner, name, ours, *also)

    def asks(self, plain: Callable[..., bool], path: Any, *args: Any, **kwargs: Any) -> bool:
        """The script asks whether something is there."""
        is_there, frame = plain(path, *args, **kwargs), sys._getframe(2)
        is_path = isinstance(path, (str, os.PathLike))
        if not self._is_set_up():
            if is_path and not is_there and self._drafts.has_begun():
                self._waits(frame, path)
            return is_there
        if not (is_path and is_script(frame.f_code.co_filename)):
            return is_there
        spot = site_of(frame)
        place = f"{plain.__name__} {spot} {os.path.abspath(os.fsdecode(path))}"
        if not self.is_successor:
            has_room = place in self._absent or len(self._absent) < ABSENT_MAX
            if has_room and not (is_there or os.path.lexists(path)):  # else of another kind
                self._absent[place] += 1
            return is_there
        self._asked[place] += 1
        if not is_there or self._asked[place] > self._absent[place]:
            return is_there
        if not self._repeats:
            self._leave(ends=True)
            return True
        self._tell_absent(spot, path)
        return False

    def lists(self, plain: Callable[..., Iterable[Any]], *args: Any, **kwargs: Any) -> Any:
        """The script asks what is in a directory."""
        found, frame = plain(*args, **kwargs), sys._getframe(2)
        if not (self._is_set_up() and is_script(frame.f_code.co_filename)):
            return found
        spot = site_of(frame)
        place = f"{plain.__name__} {spot} {os.getcwd()} {args} {kwargs}"
        number = self._asked[place]
        self._asked[place] += 1
        if not self.is_successor:
            if sum(map(len, self._listed.values())) >= ABSENT_MAX:
                return found
            self._listed.setdefault(place, []).append([])
        given = self._as_before(found, self._listed.get(place, []), number, spot)
        return list(given) if isinstance(found, list) else given

    def _as_before(
        self, found: Iterable[Any], listed: list[list[str] | None], number: int, spot: str
    ) -> Iterator[Any]:
        """What is found, and left to a successor; of a successor, what its predecessor found."""
        for item in found:
            known, name = next(iter(listed[number:]), None), os.fsdecode(item)
            if known is not None and not self.is_successor:
                known.append(name)
                listed[number] = known if len(known) <= LISTED_MAX else None
            elif known is not None and name not in known:
                if self._repeats:
                    self._tell_absent(spot, name)
                    continue
                self._leave(ends=True)
            yield item

    def _tell_absent(self, spot: str, path: Any) -> None:
        """A newcomer is told that something is not there."""
        if not self._is_same:
            told.once(
                f"{spot}: {os.path.basename(path)} was not there for the predecessor of rank "
                f"{self._drafts.rank}, so this one is told the same: with the truth the script has "
                "ended before its first step"
            )

    def _waits(self, frame: FrameType, path: Any) -> None:
        """The script asks for what is not there: in a loop, it waits for another rank."""
        if threading.current_thread() is not threading.main_thread() or self._drafts.is_forked:
            return
        asked = self._script.steps, frame.f_code, os.fsdecode(path)
        if asked != self._asked_last:
            self._asked_last, self._asked_at, self._times = asked, clock.now(), 0
        self._times += 1
        if self._times >= ASKS_IN_A_LOOP:
            words = f"{site_of(frame)} waits for {os.fsdecode(path)}"
            self._script.inside.waits_for_file(words, clock.now() - self._asked_at)

    def __call__(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        whole = _whole(path) if dir_fd is None and self._is_set_up() else None
        if whole is None:
            _PLAIN(path, mode, dir_fd=dir_fd)
            if dir_fd is None:
                self._drafts.made(path)
            return
        kind = f"{call_site()} {os.path.dirname(whole)} {_NUMBER.sub('0', os.path.basename(whole))}"
        is_free = not os.path.lexists(whole) or os.path.islink(whole)
        is_taken = (
            self._script.peers.can_be_found or is_by_script()
        )  # a logger of a package would mix two tables
        if is_free and is_taken and self._drafts.joins() and self._takes(kind, whole):
            return
        if os.path.isdir(whole) and (
            any(whole.startswith(f"{os.path.realpath(x)}{os.sep}") for x in self._links)
            or (self._drafts.joins() and (kind, whole) in self._theirs)
        ):
            return  # its predecessor's, which the script makes anew
        _PLAIN(path, mode)
        self._drafts.made(path)
        if len(self._made) < MADE_MAX:
            self._made.append((kind, whole))

    def _is_set_up(self) -> bool:
        is_main = threading.current_thread() is threading.main_thread()
        return is_main and not (self._drafts.is_forked or self._drafts.has_begun())

    def begins(self) -> None:
        """The first step begins, of a replica that joins nobody: what it has made is left."""
        self._theirs = [(kind, path) for kind, path in self._made if os.path.isdir(path)]
        self._leave()

    def joined(self) -> None:
        """This replica has come to its peers, perhaps with the answers that its predecessor got."""
        if self.is_successor:
            self._leave(ends=self._ends)

    def _leave(self, *, ends: bool = False) -> None:
        """Leave all to a successor. ``ends``: if this life does before its first step, it was by
        what it has found to be there."""
        self._journal.begin([self._theirs, self._links, self._absent, self._listed, ends])

    def _takes(self, kind: str, whole: str) -> bool:
        """Let the predecessor's directory have this name too; False: there is none."""
        number = sum(1 for known, _ in self._made if known == kind)
        found = [path for known, path in self._theirs if known == kind][number:][:1]
        if not found or not os.path.isdir(found[0]):
            return False
        if os.path.lexists(whole):
            return whole in self._links  # of a life that was killed
        os.symlink(found[0], whole)
        self._links.append(whole)
        self._leave(ends=self._ends)
        self._made.append((kind, found[0]))
        told.say(
            f"rank {self._drafts.rank} goes on in the directory {os.path.relpath(found[0])}, which "
            f"its predecessor has made, under the name {os.path.basename(whole)} too"
        )
        return True

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
