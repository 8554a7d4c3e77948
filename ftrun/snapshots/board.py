"""The board: words of shared memory through which the agent and a group's workers communicate.

Not here: the memory (group_memory.py), decisions that follow from the words (core/replay/,
core/agent/).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from functools import partial
from operator import itemgetter

from ftrun.base import futex
from ftrun.core.ids import Attempt
from ftrun.core.replay.afterwards import Waits
from ftrun.core.replay.falls import GROUPS_MAX
from ftrun.core.replay.log_rules import CALLED
from ftrun.core.replay.mirroring import RankWords
from ftrun.core.replay.settling import Board as Words
from ftrun.core.replay.settling import Counts
from ftrun.snapshots.area import NONE
from ftrun.snapshots.memory import SharedMemory

_WORD = 8


class Word(IntEnum):
    """The words of one rank on the board. Times are nanoseconds of the monotonic clock.

    Attributes:
        PUBLISHED, OVER: see ``Board`` in core/replay/settling.py.
        JOINED: the decree whose group the rank is connected to.
        FALL: why the rank cannot be replaced in place (core/replay/falls.py).
        STARTS: how many processes the agent has started as this rank; above 1: a replacement.
        NEWEST: the step of its newest generation.
        CUT_AT: when it had dropped its former groups.
        LOADED_AT, JOINED_AT: when a replacement had loaded its state, and joined.
        AGAIN: the number of calls that it has issued again.
        DUE: rank 0 only: the steps that begin with a generation (core/replay/pacing.py).
        BROKEN: the decree whose group it failed to connect although no process has died.
        REACHED: how many steps it has taken. A replacement writes it from its own first step on.
        DRAWS: 1 if workers of its data loaders have drawn random numbers.
        PRINTED…: what is on its standard output and standard error (inject/zero_edit/sent.py).
        FULL: 0: its log is not full; otherwise the step of its newest generation, plus 1.
        SEEN, SEEN_NUMBER: the highest attempt of a quorum that it knows.
        SAID_AT: when it last wrote ``WAITS_GROUP``, ``WAITS_CALL``, ``WAITS_KIND`` and
            ``WAITS_BYTES``, the call that it waits in.
        LOST: how many of its steps were not committed.
        SET_UP: CPU time of its main thread before its first generation.
        STEP: the step that it began last.
        BEGUN: how many steps it had begun by then.
        BEFORE: ``BEGUN`` of the step before, if it has taken that step.
        APPENDS: hash bits (``bits_of``) of the files that it, or a predecessor, has appended to.
    """

    PUBLISHED, JOINED, OVER, FALL, STARTS, NEWEST, CUT_AT, LOADED_AT, JOINED_AT = range(9)
    AGAIN, DUE, BROKEN, REACHED, DRAWS, PRINTED, PRINTED_ERRORS, FULL, SEEN = range(9, 18)
    SEEN_NUMBER, SAID_AT, WAITS_GROUP, WAITS_CALL, WAITS_KIND, WAITS_BYTES = range(18, 24)
    LOST, SET_UP, STEP, BEGUN, BEFORE = range(24, 29)
    PRINTED_ENDS, PRINTED_FROM, PRINTED_ERRORS_ENDS, PRINTED_ERRORS_FROM = range(29, 33)
    APPENDS = 33


PRINTED = (
    *(Word.PRINTED, Word.PRINTED_ENDS, Word.PRINTED_FROM),
    *(Word.PRINTED_ERRORS, Word.PRINTED_ERRORS_ENDS, Word.PRINTED_ERRORS_FROM),
)
_SAID = (Word.WAITS_GROUP, Word.WAITS_CALL, Word.WAITS_KIND, Word.WAITS_BYTES)
_DECREE, _DIED_AT, _ROOM, _STOPS, _DIFFERS = range(5)
_GROUPS_AT = len(Word)
_RANKS, _WORDS_EACH = 8, _GROUPS_AT + 2 * GROUPS_MAX
WHY_BYTES = 512
BITS, NAME_BITS = 62, 3


class Board:
    """The words that the agent and all workers of a group share.

    After its other words, a rank has two words for each process group that it is in: the group's
    name, which is not 0, and how many of the group's calls are in its log (``done`` of
    core/replay/settling.py).
    """

    def __init__(self, memory: SharedMemory, ranks: int) -> None:
        self.ranks = ranks
        self._end = board_bytes(ranks) // _WORD
        self._words = memory.words(0, self._end)
        self._why = memory.buffer(board_bytes(ranks), WHY_BYTES)

    def read(self, rank: int, word: Word) -> int:
        """Read one word of a rank."""
        return int(self._words[_RANKS + _WORDS_EACH * rank + word])

    def set(self, rank: int, word: Word, value: int) -> None:
        """Write one word of a rank."""
        self._words[_RANKS + _WORDS_EACH * rank + word] = value

    def address(self, rank: int, word: Word) -> int:
        """The address of a word in this process, for the kernel to write it."""
        return ctypes.addressof(self._words) + _WORD * (_RANKS + _WORDS_EACH * rank + word)

    def see(self, rank: int, attempt: Attempt) -> None:
        """Note a higher attempt that a rank knows. A concurrent reader sees this attempt or a lower
        one."""
        if self.read(rank, Word.SEEN) != attempt.quorum_id:
            self.set(rank, Word.SEEN_NUMBER, 0)
            self.set(rank, Word.SEEN, attempt.quorum_id)
        self.set(rank, Word.SEEN_NUMBER, attempt.number)

    def seen(self, rank: int) -> Attempt:
        """The highest attempt that a rank knows, or a lower one."""
        quorum_id = self.read(rank, Word.SEEN)
        return Attempt(quorum_id, self.read(rank, Word.SEEN_NUMBER))

    def begins(self, rank: int, step: int, begun: int) -> None:
        """Note that a rank has begun a step, its ``begun``-th one. A concurrent reader sees
        ``NONE``."""
        last, number = self.read(rank, Word.STEP), self.read(rank, Word.BEGUN)
        if step != last:
            self.set(rank, Word.STEP, NONE)
            self.set(rank, Word.BEFORE, number if step == last + 1 else NONE)
        self.set(rank, Word.BEGUN, begun)
        self.set(rank, Word.STEP, step)

    def begun(self, rank: int, step: int) -> int:
        """How many steps a rank had begun when it last began ``step``; ``NONE`` if it has not begun
        it, or if that is more than one step ago."""
        last, begun, before = (self.read(rank, x) for x in (Word.STEP, Word.BEGUN, Word.BEFORE))
        if last != self.read(rank, Word.STEP) or not 0 <= last - step <= 1:
            return NONE
        return begun if step == last else before

    def says(self, rank: int, group: int, call: int, kind: str, nbytes: int) -> None:
        """Note the call that a rank waits in; ``call`` -1: it waits in none. A concurrent reader
        sees None."""
        self.set(rank, Word.SAID_AT, 0)
        number = CALLED.index(kind)
        for word, value in zip(_SAID, (group, call, number, nbytes), strict=True):
            self.set(rank, word, value)
        self.set(rank, Word.SAID_AT, time.monotonic_ns())

    def said(self, rank: int) -> Waits | None:
        """The call that a rank waits in; None: it has not reported any."""
        at = self.read(rank, Word.SAID_AT)
        group, call, number, nbytes = (self.read(rank, word) for word in _SAID)
        if not at or at != self.read(rank, Word.SAID_AT):
            return None
        return Waits(group, call, CALLED[number], nbytes, (time.monotonic_ns() - at) / 1e9)

    def all(self, word: Word) -> list[int]:
        """One word of all ranks, by rank."""
        return self._words[_RANKS + word : self._end : _WORDS_EACH]

    def look(self) -> Words:
        """The input of the decisions in core/replay."""
        decree, published = self.decree, self.all(Word.PUBLISHED)
        over = [bool(x) for x in self.all(Word.OVER)]
        return Words(decree, published, self.all_done(), over)

    def add_group(self, rank: int, group: int) -> bool:
        """Add a rank to a process group. Returns False if there is no room."""
        for at in self._groups_of(rank):
            if self._words[at] in (group, 0):
                self._words[at] = group
                return True
        return False

    def all_done(self) -> list[dict[int, int]]:
        """``done`` of each group of each rank, by rank."""
        return [self.done_of(rank) for rank in range(self.ranks)]

    def done_of(self, rank: int) -> dict[int, int]:
        """``done`` of each group of one rank."""
        words = self._words
        return {words[at]: words[at + 1] for at in self._groups_of(rank) if words[at]}

    def places(self, group: int, ranks: Iterable[int]) -> list[int]:
        """The indexes of a group's ``done`` words, for those of ``ranks`` that have added the
        group."""
        found = (at for rank in ranks for at in self._groups_of(rank) if self._words[at] == group)
        return [at + 1 for at in found]

    def reader(self, places: Sequence[int]) -> Callable[[], tuple[int, ...]]:
        """A function that reads the ``done`` words at these indexes. It returns the first one
        twice."""
        return partial(itemgetter(*places, places[0]), self._words)

    def writer(self, place: int) -> Callable[[int], None]:
        """A function that writes the ``done`` word at this index."""
        return partial(self._words.__setitem__, place)

    def rewind(self, rank: int, calls: Counts) -> None:
        """Reset a rank's groups to these calls. Called by the agent while no process of the rank
        runs, or for a rank of another node."""
        for group in calls:
            self.add_group(rank, group)
        for at in self._groups_of(rank):
            self._words[at + 1] = calls.get(self._words[at], 0)

    def row(self, rank: int) -> RankWords:
        """The words of a rank of this node that other nodes need."""
        read = self.read
        published, joined = read(rank, Word.PUBLISHED), read(rank, Word.JOINED)
        over, done = bool(read(rank, Word.OVER)), self.done_of(rank)
        fall, broken = read(rank, Word.FALL), read(rank, Word.BROKEN)
        each = tuple(done), tuple(done.values()), read(rank, Word.APPENDS)
        return RankWords(rank, published, joined, over, fall, broken, *each)

    def appends(self, rank: int, bits: int) -> None:
        """Add hash bits of files that a rank appends to."""
        self.set(rank, Word.APPENDS, self.read(rank, Word.APPENDS) | bits)

    def take(self, row: RankWords) -> None:
        """Store the words of another node's rank. Called by the agent. ``PUBLISHED`` is written
        last: it shows that the other words are there."""
        self.rewind(row.group_rank, dict(zip(row.groups, row.done, strict=True)))
        self.appends(row.group_rank, row.appends)  # also of a rank whose node is lost
        for word in (Word.OVER, Word.FALL, Word.BROKEN, Word.JOINED, Word.PUBLISHED):
            self.set(row.group_rank, word, int(getattr(row, word.name.lower())))

    def _groups_of(self, rank: int) -> range:
        begin = _RANKS + _WORDS_EACH * rank + _GROUPS_AT
        return range(begin, begin + 2 * GROUPS_MAX, 2)

    @property
    def decree(self) -> int:
        """The number of the newest decree; 0: no process has died yet."""
        return int(self._words[_DECREE])

    @property
    def room(self) -> int:
        """The bytes of memory that may still be used on this node, as last measured by the
        agent."""
        return int(self._words[_ROOM])

    @room.setter
    def room(self, nbytes: int) -> None:
        self._words[_ROOM] = nbytes

    @property
    def why(self) -> str:
        """A worker's explanation of its ``FALL``, for people."""
        return bytes(self._why).partition(b"\0")[0].decode(errors="replace")

    @why.setter
    def why(self, text: str) -> None:
        self._why[:] = text.encode()[: WHY_BYTES - 1].ljust(WHY_BYTES, b"\0")

    @property
    def died_at(self) -> int:
        """When the agent learned of the latest death."""
        return int(self._words[_DIED_AT])

    def make_decree(self, number: int, died_at: int) -> None:
        """Raise the decree's number, and wake all processes that wait for it. Called by the
        agent."""
        self._words[_DIED_AT] = died_at
        self._words[_DECREE] = number
        futex.wake(self._at(), futex.ALL)

    @property
    def stops(self) -> bool:
        """Whether the workers were asked to stop: from then on no lost one is replaced."""
        return bool(self._words[_STOPS])

    def stop(self) -> None:
        """Note that, and wake all processes that wait for a decree. Called by the agent."""
        self._words[_STOPS] = 1
        futex.wake(self._at(), futex.ALL)

    @property
    def may_differ(self) -> bool:
        """Whether the workers' parameters are not compared any more (core/replay/alike.py)."""
        return bool(self._words[_DIFFERS])

    def let_differ(self) -> None:
        """Note that. Called by the agent."""
        self._words[_DIFFERS] = 1

    def wait(self, beyond: int, timeout_s: float) -> int:
        """Wait up to ``timeout_s`` for a decree above ``beyond``. Returns the newest decree.

        Raises:
            OSError: the kernel has no futex.
        """
        if self.decree <= beyond:
            futex.wait_while(self._at(), beyond & 0xFFFFFFFF, timeout_s)
        return self.decree

    def _at(self) -> int:
        return ctypes.addressof(self._words) + _DECREE * _WORD  # lower half: little-endian


def board_bytes(ranks: int) -> int:
    """The size of the words of ``ranks`` ranks."""
    return (_RANKS + _WORDS_EACH * ranks) * _WORD


def bits_of(name: str) -> int:
    """Hash bits of a file's name, like a Bloom filter's: two names with the same bits may be the
    same file. Only the last part of the path counts, because other nodes may mount the file
    elsewhere."""
    digest = hashlib.blake2b(os.fsencode(os.path.basename(name)), digest_size=NAME_BITS).digest()
    return sum({1 << byte % BITS for byte in digest})
