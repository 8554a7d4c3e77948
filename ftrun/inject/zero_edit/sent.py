"""Counts the bytes that a process has written to a stream, exactly, even if it is killed.

A counter that is raised after a ``write`` is too low if SIGKILL comes in between, and the successor
would print the line again. So a line is written by ``sendfile`` from a file in memory. The offset
in that file is the count of all bytes sent, and is a word of the board; the kernel advances it in
the same system call. A process is killed either before or after the call. Two more words, written
before the call, map the count to lines.

| word  | contents                                                                           |
|-------|------------------------------------------------------------------------------------|
| bytes | the count of all bytes sent; advanced by the kernel                                 |
| ends  | for the piece under way: the counts of bytes and lines at its end                   |
| from  | the count of bytes where the current line begins                                    |

Not here: which lines a replacement drops (printed.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
from collections.abc import Callable, Sequence

from ftrun.snapshots.board import Board, Word

PIPE_BYTES = 1 << 20
"""The buffer size of a pipe. Each call may take up a whole page of 4 KiB."""
FILE_BYTES_MAX = 1 << 20
"""The file in memory keeps sent bytes; after this many a new file replaces it."""
_HALF = (1 << 32) - 1
_send = ctypes.CDLL(None, use_errno=True).sendfile
_send.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
_send.restype = ctypes.c_ssize_t

Position = tuple[int, int]
"""A position in a stream: the count of whole lines, and of bytes in the next line."""


class Sent:
    """Writes to one stream, and counts what the processes of one rank have written to it.

    Args:
        words: the board's words for bytes, ends and from.
        descriptor: the stream's; None: it has none.
        plain: writes to the stream without ``sendfile``.
    """

    def __init__(
        self,
        board: Board,
        rank: int,
        words: Sequence[Word],
        descriptor: int | None,
        plain: Callable[[bytes], int],
    ) -> None:
        self._board, self._rank, self._plain = board, rank, plain
        self._bytes, self._ends, self._from = words
        self._address = board.address(rank, self._bytes)
        self._descriptor, self._file, self._begun = descriptor, -1, 0
        if descriptor is not None:
            with contextlib.suppress(OSError):  # no pipe, or the user's limit is reached
                fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def position(self) -> Position:
        """The current position in the stream."""
        sent, ends = (self._board.read(self._rank, x) for x in (self._bytes, self._ends))
        lines, is_line = divmod(ends & _HALF, 2)
        if (ends >> 32) & _HALF == sent & _HALF:  # it was sent
            return (lines, 0) if is_line else (lines, self._in_line(sent))
        return lines - is_line, self._in_line(sent)

    def _in_line(self, sent: int) -> int:
        return sent - self._board.read(self._rank, self._from)

    def stands_at(self, lines: int) -> None:
        """Set the count of whole lines, whatever was counted before."""
        self._will_end(self._board.read(self._rank, self._bytes), lines, is_line=True)

    def _will_end(self, at: int, lines: int, *, is_line: bool) -> None:
        word = (at & _HALF) << 32 | (2 * lines + is_line) & _HALF
        self._board.set(self._rank, self._ends, ctypes.c_int64(word).value)

    def write(self, piece: bytes) -> None:
        """Write a part of a line, at most up to its newline."""
        sent, (lines, within) = self._board.read(self._rank, self._bytes), self.position()
        is_line = piece.endswith(b"\n")
        if not within:
            self._board.set(self._rank, self._from, sent)
        self._will_end(sent + len(piece), lines + is_line, is_line=is_line)
        end = sent + len(piece)
        if self._descriptor is not None:
            self._send(piece, sent, end)
        rest = end - self._board.read(self._rank, self._bytes)
        if rest:
            self._plain(piece[-rest:])
            self._board.set(self._rank, self._bytes, end)

    def _send(self, piece: bytes, sent: int, end: int) -> None:
        """Send the piece by ``sendfile``. If the stream does not support that, some is left."""
        if self._file < 0 or sent - self._begun > FILE_BYTES_MAX:
            if self._file >= 0:
                os.close(self._file)
            self._file, self._begun = os.memfd_create("ftrun-printed"), sent
        os.pwrite(self._file, piece, sent)
        while (at := self._board.read(self._rank, self._bytes)) < end:
            if _send(self._descriptor, self._file, self._address, end - at) > 0:
                continue
            if ctypes.get_errno() != errno.EINTR:  # else a signal's handler has interrupted it
                self._descriptor = None  # unsupported, for example a file opened to append
                return
