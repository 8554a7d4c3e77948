"""What one process has written to a stream is known to the byte, whenever it is killed.

A count that is raised after a ``write`` is too low if a SIGKILL comes in between, and its successor
would print the line again. So a line goes out by ``sendfile`` from a file in memory, at the offset
of all bytes that were sent before: the kernel moves that offset, a word of the board, in the same
call. A process is killed before a call or after it. Two more words, written before the call, tell
how many lines these bytes are.

| word  | what it has                                                                        |
|-------|------------------------------------------------------------------------------------|
| bytes | all bytes that were sent; the kernel's                                              |
| ends  | the piece under way: how many bytes there are at its end, and how many lines       |
| from  | how many bytes there were where the line begins                                     |

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
"""A pipe keeps so many bytes, or a 4 KiB part of it for each call."""
FILE_BYTES_MAX = 1 << 20
"""What was sent is kept until another file takes its place."""
_HALF = (1 << 32) - 1
_send = ctypes.CDLL(None, use_errno=True).sendfile
_send.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
_send.restype = ctypes.c_ssize_t

Position = tuple[int, int]
"""In a stream: so many whole lines, and so many bytes of the next one."""


class Sent:
    """What the processes of one rank have written to one stream.

    Args:
        words: those of the table.
        descriptor: of the stream; None: it has none.
        plain: writes to it.
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
            with contextlib.suppress(OSError):  # it is no pipe, or this user has many
                fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def position(self) -> Position:
        """Where the stream stands."""
        sent, ends = (self._board.read(self._rank, x) for x in (self._bytes, self._ends))
        lines, is_line = divmod(ends & _HALF, 2)
        if (ends >> 32) & _HALF == sent & _HALF:  # it was sent
            return (lines, 0) if is_line else (lines, self._in_line(sent))
        return lines - is_line, self._in_line(sent)

    def _in_line(self, sent: int) -> int:
        return sent - self._board.read(self._rank, self._from)

    def stands_at(self, lines: int) -> None:
        """The stream has so many whole lines, whatever was counted before."""
        self._will_end(self._board.read(self._rank, self._bytes), lines, is_line=True)

    def _will_end(self, at: int, lines: int, *, is_line: bool) -> None:
        word = (at & _HALF) << 32 | (2 * lines + is_line) & _HALF
        self._board.set(self._rank, self._ends, ctypes.c_int64(word).value)

    def write(self, piece: bytes) -> None:
        """Write a piece of a line, to its end at most."""
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
        """Send what can be sent; nothing is left if all goes well."""
        if self._file < 0 or sent - self._begun > FILE_BYTES_MAX:
            if self._file >= 0:
                os.close(self._file)
            self._file, self._begun = os.memfd_create("ftrun-printed"), sent
        os.pwrite(self._file, piece, sent)
        while (at := self._board.read(self._rank, self._bytes)) < end:
            if _send(self._descriptor, self._file, self._address, end - at) > 0:
                continue
            if ctypes.get_errno() != errno.EINTR:  # a signal's handler has run since
                self._descriptor = None  # a file that is appended to, as one
                return
