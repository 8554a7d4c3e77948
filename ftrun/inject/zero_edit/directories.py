"""Directories that the script makes in its set-up, and files that it asks for there.

A replica that was started again runs the set-up again, and would begin another directory of the
run, by the time or a free number: its checkpoints would be in two places. So each worker leaves the
directories that it has made before its first step to its successor, in a file of its slot. A
newcomer that makes one at the same line, in the same directory, with a name that differs in its
numbers or its UUID, gets that of its predecessor under the new name: a link, which is removed when
it ends. So it does if another rank had made that first, at the same moment. One of the same name
it is given as if it were new. Directories for temporary files are left alone.

A worker also leaves what was not there when its script asked (``os.path.exists``, ``open``) or
looked (``os.listdir``), because a newcomer finds what its predecessor has made since. A script that
finds a checkpoint goes on from there, and may count its steps from there, to another end than its
peers. So a newcomer that joins them does not find what was made in training: their state is newer.
What was made in the set-up it finds, and takes a shorter way as a rule (a cache). Some scripts end
("the experiment exists already"), or train at another line: the next newcomer gets the answers that
its predecessor got.

A package mostly looks for the next free number of a run ("version_0"), and a cache is known by its
files. So a newcomer's packages find in a directory what their predecessors found there, and of the
directories that those have made none is there until it is made again. What has made a directory,
and names it in an attribute, keeps the run's table: its values count (values/walk.py).

A life that ends before its first step has begun nothing that the run could go on with. So who
follows it, and joins nobody, is given its directories in the same way.

Not here: what is written to files (rewriting.py, files.py).
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import glob
import os
import pathlib
import sys
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Set
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from ftrun.base import clock
from ftrun.base.words import first_of
from ftrun.inject.zero_edit import told
from ftrun.inject.zero_edit.files import asker, is_by_script
from ftrun.inject.zero_edit.frames import INSTALLED, STANDARD, call_site, is_script, site_of
from ftrun.inject.zero_edit.patches import Patches
from ftrun.inject.zero_edit.values.journal import Journal, read
from ftrun.inject.zero_edit.values.kinds import form_of

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.script import Script

FILE = "made-{replica_id}.{group_rank}"
MADE_MAX = ABSENT_MAX = LISTED_MAX = 256
NAMES_MAX = 4_096
"""In all directories."""
MANY = [""]
"""In the place of more names."""
ASKS_IN_A_LOOP = 4
"""So often between two steps for one path that is not there, and the script waits for it."""
ASKS: dict[Any, tuple[str, ...]] = {
    os.path: ("exists", "lexists", "isfile", "isdir"),
    Path: ("exists", "is_file", "is_dir"),
}
LISTS = ("listdir", "scandir")
"""Of ``os``. What else looks into a directory calls them: glob, pathlib, packages."""
_NAMES: tuple[Any, ...] = (
    getattr(pathlib, "_NormalAccessor", None),  # of Python 3.10
    *(getattr(glob, name, None) for name in ("_Globber", "_StringGlobber")),  # of 3.13
)
"""Classes that have a name of their own for one of them."""
_FOUND = "found "
"""Before what makes a directory alike, if another rank made it first (``exist_ok``)."""
NEAR, WRITERS_MAX = 16, 64
_PACKAGES = tuple(f"{os.path.dirname(os.path.abspath(x))}/" for x in STANDARD)
"""Where no run writes. An import looks into many directories there."""
_PLAIN: Any = os.mkdir


class Directories:
    """Stands in for ``os.mkdir``, which ``makedirs`` and pathlib call, and for ``os.path.exists``
    and its like where the script itself calls them.

    Attributes:
        hides: it has not found what was made in training.
        is_successor: a worker of this slot has trained before.
        begins_again: the last one has not, and has ended.
    """

    def __init__(self, script: Script) -> None:
        path = script.file(FILE)
        self._script, self._drafts = script, script.drafts
        self._journal = Journal(path, "the directories made here are not left to a successor")
        self._made: list[tuple[str, str]] = []  # what makes it alike, and the directory
        self._theirs: list[tuple[str, str]] = []
        self._links: list[str] = []
        self._since: list[str] = []  # directories that were made in training
        self._absent: Counter[str] = Counter()  # what was not there, and how often
        self._listed: dict[str, list[list[str] | None]] = {}  # None: no such directory
        self._early: list[str] | None = []  # what was not found, and was made before the first step
        self._asked: Counter[str] = Counter()
        self._later: set[str] = set()  # what this life has not made again so far
        self._is_asking = False  # so that what is called in turn gets the truth
        self._writers: list[weakref.ref[Any]] = []
        self.is_successor = self._repeats = self._ends = self._is_same = self.begins_again = False
        self.hides = False
        self._asked_last: tuple[int, CodeType, str] | None = None
        self._asked_at, self._times = 0.0, 0
        entries = [head for head, _ in read(path)]
        if script.memory is not None and not script.is_in_place:  # another one of one group
            entries = [] if entries and entries[0][0] else entries  # begins anew
        for has_begun, made, links, absent, listed, early, since, ends in entries[:1]:
            self._theirs = [(kind, whole) for kind, whole in made]
            self._links += links  # of lives that were killed: values that heal may name them
            self.is_successor, self.begins_again = has_begun, not has_begun
            if has_begun:
                self._absent.update(absent)
                self._listed.update(listed)
                self._early = early
                self._since = [*since, *entries[1:]]
                self._repeats = self._ends = ends
        if script.is_in_place:
            # A worker that replaces another in its group is to take the same way, so it is always
            # told the same.
            self._is_same = self._repeats = True
        made = (whole for kind, whole in self._theirs if not kind.startswith(_FOUND))
        self._later.update(self._links, self._since, made)

    def install(self, patches: Patches) -> None:
        atexit.register(self._remove, os.getpid())
        functools.update_wrapper(self, _PLAIN)
        patches.put(os, "mkdir", self)
        for owner in ASKS:
            for name in ASKS[owner]:
                home = sys.modules[getattr(owner, name).__module__]  # where pickle looks for it
                also = () if isinstance(owner, type) else (home,)
                patches.around(owner, name, self.asks, *also)
        for name, ours in (*dict.fromkeys(LISTS, self.lists).items(), ("stat", self.stats)):
            plain = getattr(os, name)
            patches.around(os, name, ours)
            getattr(os, name).__module__ = os.__name__  # where pickle looks for it
            for offer in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
                if plain in offer:
                    offer.add(getattr(os, name))
            for owner in _NAMES:
                if name in vars(owner or object):
                    patches.put(owner, name, staticmethod(getattr(os, name)))

    def asks(self, plain: Callable[..., bool], path: Any, *args: Any, **kwargs: Any) -> bool:
        """The script asks whether something is there."""
        was_asking, self._is_asking = self._is_asking, True
        try:
            is_there, frame = plain(path, *args, **kwargs), asker(sys._getframe(2))
        finally:
            self._is_asking = was_asking
        is_path = isinstance(path, (str, os.PathLike))
        if not self._is_set_up():
            if is_path and not is_there and self._drafts.has_begun():
                self._waits(frame, path)
            return is_there
        if not (is_path and is_script(frame.f_code.co_filename)):
            return is_there and not (is_path and self._is_later(path, 4))
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
        if not (self._repeats or self._is_of_training(os.path.abspath(os.fsdecode(path)))):
            self._leave(ends=True)
            return True
        self._tell_absent(spot, path)
        return False

    def _is_of_training(self, whole: str) -> bool:
        """Whether something that its predecessor did not find was made since the first step, and
        this replica joins its peers."""
        is_late = self._early is not None and whole not in self._early
        is_late = is_late and self._script.has_peers()
        self.hides |= is_late
        return is_late

    def lists(self, plain: Callable[..., Any], path: Any = None) -> Any:
        """Somebody asks what is in a directory."""
        is_path = path is None or isinstance(path, (str, os.PathLike))
        if not (is_path and self._is_set_up()):
            return plain(path)
        whole, is_by_it = os.path.realpath("." if path is None else path), is_by_script(3)
        is_of_package = f"{whole}/".startswith(_PACKAGES) or any(
            x in f"{whole}/" for x in INSTALLED
        )
        if is_of_package or not (is_by_it or self._drafts.is_here(Path(whole))):
            return plain(path)
        try:
            found = plain(path)
        except FileNotFoundError:
            self._find(whole, None, is_by_it=is_by_it)
            raise
        every = list(found)
        names = [x if isinstance(x, str) else x.name for x in every]
        given = self._find(whole, names, is_by_it=is_by_it)
        if given is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        shown = [x for x, name in zip(every, names, strict=True) if name in given]
        return shown if isinstance(found, list) else _Entries(found, shown)

    def _find(self, whole: str, names: list[str] | None, *, is_by_it: bool) -> Set[str] | None:
        """What a look into a directory gives; None: it is not there. ``is_by_it``: the script looks
        itself. What a first life finds is left to a successor."""
        number = self._asked[whole]
        self._asked[whole] += 1
        truth = None if names is None else {*names}
        if not self.is_successor:
            if truth and not is_by_it and self.begins_again:
                truth -= {x for x in truth if os.path.join(whole, x) in self._later}
                names = [x for x in names or () if x in truth]
            known = [x for one in self._listed.values() for x in one]
            count = sum(len(x or ()) for x in known) + len(names or ())
            if len(known) < ABSENT_MAX:
                is_short = len(names or ()) <= LISTED_MAX and count <= NAMES_MAX
                self._listed.setdefault(whole, []).append(names if is_short else MANY)
            return truth
        theirs = next(iter(self._listed.get(whole, [])[number:]), MANY)
        given = truth
        if truth is not None and theirs != MANY:
            given = None if theirs is None else truth & {*theirs}
        if not (is_by_it or self._script.has_peers()):
            return truth
        if is_by_it and truth is not None and given != truth and not self._repeats:
            late = {x for x in truth - {*(given or ())} if self._is_of_training(f"{whole}/{x}")}
            if late | {*(given or ())} != truth:
                self._leave(ends=True)
            is_there = given is not None or not self._is_of_training(whole)
            given = truth - late if is_there else None
        if given and (not is_by_it or self._is_same):
            given -= {x for x in given if os.path.join(whole, x) in self._later}
        if is_by_it and truth and given != truth:
            self._tell_absent(call_site(), *sorted(truth - {*(given or ())}))
        return given

    def stats(self, plain: Callable[..., Any], path: Any, *args: Any, **kwargs: Any) -> Any:
        """A package asks in another way whether something is there."""
        is_path = isinstance(path, (str, os.PathLike)) and kwargs.get("dir_fd") is None
        if self._later and is_path and self._is_later(path, 4):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
        try:
            return plain(path, *args, **kwargs)
        except FileNotFoundError:
            is_first = is_path and not (self.is_successor or self._is_asking)
            if is_first and self._is_set_up() and len(self._absent) < ABSENT_MAX:
                self._absent[f"{plain.__name__} {os.path.abspath(os.fsdecode(path))}"] += 1
            raise

    def reads(self, path: Any) -> bool:
        """Whether the script finds a file that it, or a package for it, opens to read. What was not
        there is left to a successor."""
        if not (isinstance(path, (str, os.PathLike)) and self._is_set_up()):
            return True
        whole = os.path.abspath(os.fsdecode(path))
        place, is_there = f"open {whole}", os.path.lexists(whole)
        if is_there == self.is_successor and self._drafts.is_here(Path(whole)):
            if not is_there and len(self._absent) < ABSENT_MAX:
                self._absent[place] += 1
            self._asked[place] += 1
            if self._asked[place] <= self._absent[place] and self._is_of_training(whole):
                self._tell_absent(call_site(), path)
                return False
        return True

    def _is_later(self, path: Any, deep: int) -> bool:
        """Whether a package asks for what its predecessor has made since. ``deep``: its frame."""
        if self._is_asking or not (self._later and self._is_set_up()):
            return False
        self._is_asking = True
        try:
            if not (_whole(path) in self._later and self._follows()):
                return False
            # A life that ended before its first step may have made it before its predecessor's.
            end = f" {os.path.abspath(os.fsdecode(path))}"
            was_absent = self._is_same and any(x.endswith(end) for x in self._absent)
            return was_absent or not is_by_script(deep)
        finally:
            self._is_asking = False

    def _tell_absent(self, spot: str, *paths: Any) -> None:
        """A newcomer is told that something is not there."""
        if not self._is_same:
            names, rank = first_of([os.path.basename(x) for x in paths]), self._drafts.rank
            why = f"because {'it was' if len(paths) == 1 else 'they were'} not there"
            ended = ". When visible, the script ended before its first step"
            told.once(
                f"{spot}: ftrun hides {names} from rank {rank}, {why} for its predecessor"
                f"{ended if self._repeats else ''}"
            )

    def _waits(self, frame: FrameType, path: Any) -> None:
        """The script asks for what is not there: in a loop, it waits for another rank."""
        if not self._drafts.is_loops:
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
                self._made_since(path)
            return
        was_later, follows = whole in self._later, self._follows()
        self._later.discard(whole)
        self._find_writer(whole, sys._getframe(1))
        kind = f"{call_site()} {os.path.dirname(whole)} {form_of(os.path.basename(whole))}"
        is_free = not os.path.lexists(whole) or os.path.islink(whole)
        if is_free and follows and self._takes(kind, whole):
            return
        if os.path.isdir(whole) and (
            any(whole.startswith(f"{os.path.realpath(x)}{os.sep}") for x in self._links)
            or (follows and (kind, whole) in self._theirs)
            or (self.begins_again and was_later)
        ):
            self._keep(kind, whole)
            return  # its predecessor's, which the script makes anew
        try:
            _PLAIN(path, mode)
        except FileExistsError:
            if os.path.isdir(whole):
                self._keep(_FOUND + kind, whole)
            raise
        self._drafts.made(path)
        self._keep(kind, whole)

    def _follows(self) -> bool:
        """Whether its predecessor's directories are this worker's, before its first step."""
        return self.begins_again or self._script.has_peers()

    def _keep(self, kind: str, whole: str) -> None:
        """Note what was made; who follows a life that ends before its first step goes on in it."""
        if len(self._made) < MADE_MAX:
            self._made.append((kind, whole))
        if not self.is_successor:
            theirs = [x for x in self._theirs if x not in self._made]
            self._journal.begin([False, [*self._made, *theirs], self._links, {}, {}, [], [], False])

    def writers(self) -> list[Any]:
        """Objects of packages that have made a directory, and name it: they write a run's table."""
        return [x for ref in self._writers if (x := ref()) is not None]

    def _find_writer(self, whole: str, frame: FrameType | None) -> None:
        """Whether an object of a package's makes a directory for itself, within ``NEAR`` frames."""
        for _ in range(NEAR):
            if frame is None or is_script(frame.f_code.co_filename):
                return
            own = frame.f_locals.get("self")
            if own is not None and whole in _named_by(own) and len(self._writers) < WRITERS_MAX:
                with contextlib.suppress(TypeError):
                    self._writers.append(weakref.ref(own))
                return
            frame = frame.f_back

    def _is_set_up(self) -> bool:
        return self._drafts.is_loops and not self._drafts.has_begun()

    def begins(self) -> None:
        """The first step begins, of a replica that joins nobody: what it has made is left."""
        self._early = self._made_early()
        self._theirs = [(kind, path) for kind, path in self._made if os.path.isdir(path)]
        self.begins_again = False
        self._leave()

    def _made_early(self) -> list[str] | None:
        """What this worker did not find at first, and is there now; None: it is too much."""
        paths = (place[place.index(f" {os.sep}") + 1 :] for place in self._absent)
        early = [x for x in paths if os.path.lexists(x)]
        for whole, looks in self._listed.items():
            try:
                names = {*os.listdir(whole)}
            except OSError:
                continue
            early += [os.path.join(whole, x) for x in names.difference(*(x or () for x in looks))]
            early += [whole] if None in looks else []
            if len(early) > NAMES_MAX:
                return None
        return early

    def joined(self) -> None:
        """This replica has come to its peers, perhaps with the answers that its predecessor got."""
        if self.is_successor:
            self._leave(ends=self._ends)
        elif self._made:  # the first one here
            self.begins()

    def _leave(self, *, ends: bool = False) -> None:
        """Leave all to a successor. ``ends``: if this life does before its first step, it was by
        what it has found to be there."""
        looked = self._absent, self._listed, self._early
        self._journal.begin([True, self._theirs, self._links, *looked, self._since, ends])

    def _made_since(self, path: Any) -> None:
        """The script, or a package for it, has made a directory in training."""
        whole = _whole(path) if self._drafts.is_loops else None
        if whole is None or whole in self._since or len(self._since) >= MADE_MAX:
            return
        self._since.append(whole)
        if not self._journal.add(whole):
            self._leave(ends=self._ends)

    def _takes(self, kind: str, whole: str) -> bool:
        """Let the predecessor's directory have this name too; False: there is none."""
        number = sum(1 for known, _ in self._made if known in (kind, _FOUND + kind))
        found = [(known, path) for known, path in self._theirs if known in (kind, _FOUND + kind)]
        found = found[number:][:1]
        self._later.difference_update(path for _, path in found)
        if not found or not os.path.isdir(found[0][1]):
            return False
        known, path = found[0]
        if os.path.lexists(whole):
            return whole in self._links  # of a life that was killed
        os.symlink(path, whole)
        self._links.append(whole)
        if self.is_successor:
            self._leave(ends=self._ends)
        self._keep(known, path)
        told.say(
            f"rank {self._drafts.rank} continues in its predecessor's directory "
            f"{os.path.relpath(path)}, for which {os.path.basename(whole)} is now a second name"
        )
        return True

    def _remove(self, pid: int) -> None:
        for link in self._links if os.getpid() == pid else ():
            if os.path.islink(link):
                with contextlib.suppress(OSError):
                    os.unlink(link)


class _Entries:
    """In the place of what ``os.scandir`` gives."""

    def __init__(self, found: Any, shown: Iterable[Any]) -> None:
        self.close, self._shown = found.close, iter(shown)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._shown)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _named_by(item: Any) -> set[str]:
    """The paths in the attributes of an object."""
    attributes = getattr(item, "__dict__", {})
    known = [str(x) for x in attributes.values() if isinstance(x, (str, Path))]
    return {os.path.abspath(x) for x in known if x}


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
