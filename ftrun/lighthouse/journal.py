"""The journal: the facts that a lighthouse needs after a kill -9, in one small file.

A corrupt file is kept as ``*.corrupt-<n>`` for people, and the state is rebuilt from the agents'
reports. Not here: the file's format (sealed_file.py), the content of the record and when it must be
on disk (core/lighthouse/machine.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from ftrun.base import clock
from ftrun.base.errors import ProtocolError
from ftrun.core.ids import EPOCH_MAX
from ftrun.core.lighthouse.events import Instruction, Journal, JournalState
from ftrun.lighthouse.sealed_file import SealedFile
from ftrun.protocol.limits import MESSAGE_BYTES_MAX
from ftrun.protocol.records import RecordCodec

MAGIC = b"ftrun journal 1\n"

log = logging.getLogger(__name__)
_CODEC = RecordCodec(JournalState)


class JournalFile:
    """The journal file of one lighthouse. One process at a time (main.py holds the lock).

    Without a path nothing is kept, for a lighthouse that lives no longer than its only agent.
    ``outlives``: see sealed_file.py.
    """

    def __init__(self, path: Path | None = None, *, outlives: bool = True) -> None:
        self._file: SealedFile | None = None
        if path is not None:
            self._file = SealedFile(path, MAGIC, "journal", MESSAGE_BYTES_MAX, outlives=outlives)
        self.writes = 0
        self.write_s = 0.0

    def load(self) -> JournalState | None:
        """The last state written; None if there is no file or it is corrupt.

        Raises:
            UserError: the file exists but cannot be read.
        """
        if self._file is None:
            return None
        try:
            payload = self._file.read()
            return None if payload is None else _checked(_CODEC.decode(payload))
        except ProtocolError as error:
            log.warning(
                "the journal %s is corrupt (%s). It is kept as %s; quorum and epoch are rebuilt "
                "from what the agents report.",
                self._file.path,
                error,
                self._file.keep_aside(),
            )
            return None

    may_decide = True
    """Always True: this is the only process on its file (main.py holds the lock)."""

    def decided(
        self, instructions: Sequence[Instruction], carry_out: Callable[[Instruction], None]
    ) -> None:
        """Carry out each instruction, and write each record before the instructions that follow it.

        Raises:
            OSError: a record could not be written.
        """
        for instruction in instructions:
            if isinstance(instruction, Journal):
                self.write(instruction.record)
            else:
                carry_out(instruction)

    def write(self, state: JournalState) -> None:
        """Write ``state``. If it ``outlives`` a crash, it is durably on disk when this returns.

        Raises:
            OSError: it could not be written; the old record stays.
        """
        if self._file is None:
            return
        started = clock.now()
        self._file.write(_CODEC.encode(state))
        self.writes += 1
        self.write_s += clock.now() - started


def _checked(state: JournalState) -> JournalState:
    """Reject the last possible epoch, after which no lighthouse could start."""
    if state.epoch >= EPOCH_MAX:
        raise ProtocolError(f"its epoch {state.epoch} is the last one there is, or beyond")
    return state
