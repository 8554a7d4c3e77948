"""The workers' output on the terminal: ``-r``, ``-t`` and ``--local-ranks-filter``.

The log of a worker always has all of its output. A stream that ``-r`` or ``-t`` names also has a
separate file. Not here: the logs themselves (agent/logs.py).
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from dataclasses import dataclass

from ftrun.base.errors import UserError

PREFIX_VARIABLE = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
_ONE = re.compile(r"[0-3]")
_BY_RANK = re.compile(r"\d+:[0-3](,\d+:[0-3])*")
OUT, ERR = 1, 2


@dataclass(frozen=True, slots=True)
class Streams:
    """The output that the terminal shows.

    Attributes:
        redirected, teed: the streams as a sum of OUT and ERR, of all workers or by local rank.
        ranks: the local ranks that are shown; empty: all.
        out_words, err_words: lines with one of them are copied to a file.
        template: the prefix, with ${role_name}, ${local_rank} and ${rank}; empty:
            ``[replica.rank]``.
        first: the rank of this node's first worker, whose local rank is 0.
    """

    redirected: int | Mapping[int, int] = 0
    teed: int | Mapping[int, int] = 0
    ranks: frozenset[int] = frozenset()
    out_words: tuple[str, ...] = ()
    err_words: tuple[str, ...] = ()
    template: str = ""
    role: str = "default"
    first: int = 0

    def shows(self, rank: int, *, error: bool) -> bool:
        local_rank = rank - self.first
        if self.ranks and local_rank not in self.ranks:
            return False
        stream = ERR if error else OUT
        is_redirected = bool(_of(self.redirected, local_rank) & stream)
        return not is_redirected or bool(_of(self.teed, local_rank) & stream)

    def has_file(self, rank: int, *, error: bool) -> bool:
        """Whether this stream of this worker has a separate file beside the log of both."""
        local_rank = rank - self.first
        either = _of(self.redirected, local_rank) | _of(self.teed, local_rank)
        return bool(either & (ERR if error else OUT))

    def filters(self, *, error: bool) -> bool:
        """Whether lines of this stream are copied if they contain one of some words."""
        return bool(self.err_words if error else self.out_words)

    def label(self, replica_id: str, rank: int) -> str:
        """The prefix of a line of this worker."""
        if not self.template:
            return f"[{replica_id}.{rank}] "
        names = {"role_name": self.role, "local_rank": rank - self.first, "rank": rank}
        return string.Template(self.template).safe_substitute(names)

    def copies(self, line: bytes, *, error: bool) -> bool:
        words = self.err_words if error else self.out_words
        return any(word.encode() in line for word in words)


def _of(streams: int | Mapping[int, int], local_rank: int) -> int:
    return streams if isinstance(streams, int) else streams.get(local_rank, 0)


def parse_std(text: str, flag: str) -> int | Mapping[int, int]:
    """Parse streams of all workers, or by local rank.

    Raises:
        UserError: the text is neither.
    """
    if _ONE.fullmatch(text):
        return int(text)
    if not _BY_RANK.fullmatch(text):
        raise UserError(
            f"{flag} {text!r}: give 0 (none), 1 (stdout), 2 (stderr) or 3 (both), for all workers "
            "or by local rank: 0:3,1:2. Nothing was started."
        )
    pairs = (part.split(":") for part in text.split(","))
    return {int(rank): int(streams) for rank, streams in pairs}


def parse_ranks(text: str) -> frozenset[int]:
    """Raises UserError: a part is no number."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() for part in parts):
        raise UserError(
            f"--local-ranks-filter {text!r}: give local ranks, as in 0,1. Nothing was started."
        )
    return frozenset(int(part) for part in parts)


def parse_words(text: str) -> tuple[str, ...]:
    """Split at commas. Two commas stand for one inside a word."""
    parts = (part.replace("\0", ",") for part in text.replace(",,", "\0").split(","))
    return tuple(part for part in parts if part)
