"""Files that the script writes from their beginning: ``open(path, "w")`` of a file that exists.

1. A replica that was started again while its peers train runs the script from its beginning, which
   would empty its predecessor's file, or append to it once more. So its writes are held back. When
   it has joined, they are dropped, and later ones are appended to the file.
2. Before the script has made its process group, ftrun knows only of replicas of this node whether
   they train. If none does, the file is emptied, as under torchrun, and a notice reports the loss
   when the replica has joined.
3. While the loop runs a draft is written, and takes the file's name when it is closed. A replica
   that dies meanwhile leaves the older file whole.
4. What a newcomer's set-up reads is as for its predecessor (directories.py).
5. While a newcomer passes over loops that its peers have left (passing.py), nothing that it writes
   counts, also to files that it appends to, or writes again.

A file counts if the script's own line opens it, by ``open``, pathlib or ``logging``; not one that
a package opens. One that is read too (``a+``) has what the predecessor wrote there, and in the loop
it is written in place. A job that goes on from a snapshot is like a replica that was started again.

Not here: ``torch.save`` and safetensors (files.py).
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import io
import os
import shutil
import stat
import tempfile
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any, cast

from ftrun.base.words import first_of
from ftrun.inject.zero_edit import told
from ftrun.inject.zero_edit.appended import Appended
from ftrun.inject.zero_edit.files import Drafts, is_by_script
from ftrun.inject.zero_edit.patches import Patches, built_in

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.script import Script

_NO_PURPOSE = str.maketrans("", "", "bt+")
HELD_MAX = 64
_PLAIN: Any = builtins.open


class Rewriting(ModuleType):
    """Stands in for ``open``, and for the module that has it.

    Rules 1 and 2 are for the main thread's files only.

    Attributes:
        appended: gets the files to which the script appends.
    """

    def __init__(self, script: Script) -> None:
        super().__init__(io.__name__)
        self._script, self._drafts, self._directories = script, script.drafts, script.directories
        self._has_begun = self._drafts.has_begun
        self._held: list[_Held] = []
        self._appending: list[_Held] = []
        self._emptied: list[str] = []
        self.appended: Appended | None = None

    def install(self, patches: Patches) -> None:
        """Patch ``open`` where scripts and the standard library find it."""
        stand_in = built_in(self, _PLAIN)
        patches.put(builtins, "open", stand_in)
        patches.put(io, "open", stand_in)

    def passes(self) -> None:
        """This replica has peers to join: what it appends until then is dropped."""
        for held in self._appending:
            if held.redirect():
                self._held.append(held)
        self._appending.clear()

    def joined(self) -> None:
        """This replica stands where its peers stand: from here on its files are written."""
        names = [held.name for held in self._held]
        for held in self._held:
            held.go_on(None if self.appended is None else self.appended.place(str(held.path)))
        self._held.clear()
        if names:
            files = first_of(list(dict.fromkeys(names)))
            told.say(f"rank {self._drafts.rank} continues its predecessor's files: {files}")
        if self._emptied:
            emptied = first_of(list(dict.fromkeys(self._emptied)))
            told.say(
                f"the previous content of {emptied} is lost: the restarted script opened it for "
                "writing before its process group, when ftrun did not know yet that this replica "
                "would continue. Open it after init_process_group, or with mode 'a'"
            )
        self._emptied.clear()

    def begun(self) -> None:
        """This replica begins at the beginning after all: its files have what it wrote."""
        for held in self._held:
            held.begin()
        self._held.clear()
        self._appending.clear()
        self._emptied.clear()

    def __call__(
        self,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> IO[Any]:
        more: tuple[Any, ...] = (buffering, encoding, errors, newline)
        purpose = mode.translate(_NO_PURPOSE) if isinstance(mode, str) else ""
        is_ours = self._is_ours(file, opener, mode)
        appended = self.appended if is_ours else None
        if appended is not None and self._has_begun():
            if not os.path.lexists(file):
                appended.makes(file)
            elif purpose == "w":
                appended.rewrites(file)
        is_written = purpose == "w" and not (self._has_begun() and "+" in mode)
        is_written = is_written or (purpose == "a" and not self._has_begun())
        if is_written and opener is None and (path := self._is_followed(file)):
            if self._has_begun():
                return _draft(path, self._drafts, mode, more)
            is_main = threading.current_thread() is threading.main_thread()
            if self._script.may_follow and is_main:
                if self._drops(path) or self._is_to_hold(path, mode):
                    return self._hold(path, file, mode, more)
                self._appending = [held for held in self._appending if held.is_open]
                if purpose == "a" and len(self._appending) < HELD_MAX:
                    opened: IO[Any] = _PLAIN(file, mode, *more, closefd)
                    self._appending.append(_Held(path, weakref.ref(opened)))
                    if self.appended is not None:
                        self.appended.opened(path, opened)
                    return opened
        may_be_hidden = purpose == "r" and opener is None and not self._has_begun()
        if may_be_hidden and not self._directories.reads(file):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(file))
        if is_ours and purpose in ("a", "w") and self._has_begun():
            self._script.writes()
        if is_ours and self._has_begun() and not is_by_script():
            self._drafts.has_named = True  # a logger has no longer what it writes now
        found: IO[Any] = _PLAIN(file, mode, *more, closefd, opener)
        if purpose == "x" and not self._has_begun():
            self._drafts.made(file)
        is_kept = purpose == "a" or (purpose == "w" and not self._has_begun() and is_by_script())
        if is_kept and appended is not None:
            appended.opened(file, found)
        return found

    def _is_followed(self, file: Any) -> Path | None:
        """A file that is written: the script's, or one of a package's that a newcomer's repeats."""
        path = self._path(file)
        if path is None or is_by_script(3):
            return path
        is_kept = not self._has_begun() and self._drafts.is_here(path)
        return path if is_kept and self._script.has_peers() else None

    def _is_ours(self, file: Any, opener: Any, mode: Any) -> bool:
        """Whether a file that is written is the script's, or a package's that may append to it for
        the script, as a logger's table where it works."""
        is_named = opener is None and isinstance(file, (str, os.PathLike))
        is_written = isinstance(mode, str) and bool({*"wax"} & {*mode})
        if not (is_named and is_written and self._drafts.is_loops):
            return False
        return self._drafts.is_here(Path(os.fspath(file))) or is_by_script(3)

    def _path(self, file: Any) -> Path | None:
        """The file, if it is an ordinary one under one name; before the first step also one that is
        not there yet."""
        try:
            path = Path(os.path.realpath(os.fspath(file)))
            found = path.stat() if path.exists() else None
        except (OSError, ValueError, TypeError):
            return None
        if found is not None:
            return path if stat.S_ISREG(found.st_mode) and found.st_nlink == 1 else None
        if self._has_begun():
            return None
        if not self._drafts.drops():
            self._drafts.made(path)
        return path

    def _hold(self, path: Path, file: Any, mode: str, more: tuple[Any, ...]) -> IO[Any]:
        if self._drops(path):
            self._forget_closed()
            self._drafts.tell_dropped(path)
        held = _Held(path, appends="a" in mode, reads="+" in mode)
        opened: IO[Any] = _PLAIN(file, mode, *more, True, held.open)
        if self.appended is not None:
            self.appended.opened(file, opened)
        held.file = weakref.ref(opened)
        self._held.append(held)
        return opened

    def _drops(self, path: Path) -> bool:
        return self._drafts.drops() and self._drafts.drops_at(path)

    def _forget_closed(self) -> None:
        for held in self._held:
            if not held.is_open:
                held.close()
        self._held = [held for held in self._held if held.is_open]

    def _is_to_hold(self, path: Path, mode: str) -> bool:
        if not self._script.knows_its_peers():
            is_there = "w" in mode and path.exists()
            if is_there and len(self._emptied) < HELD_MAX and path.stat().st_size:
                self._emptied.append(path.name)
            return False
        if "a" in mode and len(self._held) >= HELD_MAX:
            self._forget_closed()
        has_any = path.exists() and path.stat().st_size > 0  # else a buffer had it, and is lost
        is_theirs = has_any and not self._drafts.is_own(path)
        return is_theirs and len(self._held) < HELD_MAX and self._script.has_peers()


# ---------------------------------------------------------------- before a newcomer has joined


@dataclass(slots=True)
class _Held:
    """A file that its writer either goes on with or begins again: it is not known yet which.

    The script writes into another file, which has no name. The descriptor stays the same.
    ``appends``: so does the script. ``reads``: it reads, too.
    """

    path: Path
    file: Callable[[], Any] = lambda: None
    appends: bool = False
    reads: bool = False
    _made: IO[bytes] | None = None
    _shown: int = 0  # bytes of the file's own, in the draft

    @property
    def name(self) -> str:
        here = Path.cwd()
        return str(self.path.relative_to(here) if here in self.path.parents else self.path.name)

    @property
    def _draft(self) -> IO[bytes]:
        if self._made is None:
            self._made = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the script writes
            if self.appends and self.reads and self.path.exists():
                with _PLAIN(self.path, "rb") as source:
                    shutil.copyfileobj(source, self._made)
                self._made.flush()
                self._shown = self._made.tell()
                fcntl.fcntl(self._made, fcntl.F_SETFL, os.O_APPEND)
        return self._made

    def close(self) -> None:
        if self._made is not None:
            self._made.close()

    @property
    def is_open(self) -> bool:
        """Whether the script may still write."""
        opened = self.file()
        return opened is not None and not opened.closed

    def redirect(self) -> bool:
        """Let the script's open file write to the draft from now on; False: it is closed."""
        if self.is_open:
            opened = self.file()
            opened.flush()
            os.dup2(self._draft.fileno(), opened.fileno(), inheritable=False)
        return self.is_open

    def open(self, _path: Any, _flags: int) -> int:
        """A descriptor for the script's file object."""
        return os.dup(self._draft.fileno())

    def begin(self) -> None:
        """Let the writes so far be the whole file, or its end, and append later ones to it."""
        if self.is_open:
            self.file().flush()
        self._draft.seek(self._shown)
        with _PLAIN(self.path, "ab" if self.appends else "wb") as target:
            shutil.copyfileobj(self._draft, target)
        self.go_on(None)

    def go_on(self, place: int | None) -> None:
        """Drop the writes so far, and write later ones to the file: at this place, or at its end.

        Other workers may write the same file at places of their own. One that is read and written
        from its beginning (``w+``) is not appended to: the script may go back in it, as for a table
        with one more column.
        """
        if self.is_open:
            opened = self.file()
            opened.flush()
            how = os.O_RDWR if opened.readable() else os.O_WRONLY
            is_appended = place is None and (self.appends or not self.reads)
            how |= os.O_APPEND if is_appended else 0
            target = os.open(self.path, how | os.O_CREAT, 0o666)
            try:
                os.dup2(target, opened.fileno(), inheritable=False)
            finally:
                os.close(target)
            if not is_appended:
                opened.seek(*((0, os.SEEK_END) if place is None else (place,)))
        self.close()


# ---------------------------------------------------------------- while the loop runs


class _Draft(io.FileIO):
    """Writes a draft, which takes the file's name when it is closed; not if a write has failed."""

    def __init__(self, path: Path, drafts: Drafts) -> None:
        self._path = path
        self._drafts = drafts
        self._draft = drafts.take(path)
        self._has_failed = False
        super().__init__(self._draft, "w")
        os.fchmod(self.fileno(), stat.S_IMODE(path.stat().st_mode))
        self.name = str(path)

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data) or 0
        except OSError:
            self._has_failed = True
            raise

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        try:
            if self._has_failed:
                self._draft.unlink(missing_ok=True)
            else:
                os.replace(self._draft, self._path)
        finally:
            self._drafts.give_back(self._draft)


def _draft(path: Path, drafts: Drafts, mode: str, more: tuple[Any, ...]) -> IO[Any]:
    """As ``open`` makes it, over a draft."""
    _PLAIN(os.devnull, mode, *more).close()  # Python's own errors
    raw, (buffering, encoding, errors, newline) = _Draft(path, drafts), more
    if buffering == 0:
        return raw
    buffered = io.BufferedWriter(raw, buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE)
    if "b" in mode:
        return buffered
    text: Any = io.TextIOWrapper(buffered, encoding, errors, newline, buffering == 1)
    text.mode = mode
    return cast(IO[Any], text)
