"""The board of a group's memory: the words that the agent and all workers of the group share.

Not here: the memory (group_memory.py), what follows from the words (core/replay/, core/agent/).
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
    """The words of one rank on the board. Times are the monotonic clock's nanoseconds.

    ``PUBLISHED``, ``OVER``: as core/replay/settling.py has them. ``JOINED``: the decree
    whose group it is connected to. ``FALL``: why it cannot be followed (core/replay/falls.py).
    ``STARTS``: how many processes the agent has started as this rank, so above 1 this is a
    replacement. ``NEWEST``: the step of its newest generation. ``CUT_AT``: when it had dropped its
    former groups; ``LOADED_AT``, ``JOINED_AT``: a replacement's times; ``AGAIN``: calls that it has
    issued again. ``DUE``: of rank 0, the steps that begin with generations (core/replay/pacing.py).
    ``BROKEN``: the decree whose group it could not connect, though nobody has died. ``REACHED``:
    how many steps it has taken; a replacement writes it again from its own first step on.
    ``DRAWS``: workers of its data loaders have drawn random numbers. ``PRINTED…``: what is on its
    standard output and its standard error (inject/zero_edit/sent.py). ``FULL``:
    its log is, and the generation was made before this number of steps; 0: it is not. ``SEEN``,
    ``SEEN_NUMBER``: the highest attempt of a quorum that it knows. ``SAID_AT``: when it has said
    last which call it waits in, by ``WAITS_GROUP``, ``WAITS_CALL``, ``WAITS_KIND`` and
    ``WAITS_BYTES``. ``LOST``: how many steps it has ended that were not committed. ``SET_UP``: so
    long its main thread had worked before its first generation. ``STEP``: that it has begun last;
    ``BEGUN``: how many it had begun then; ``BEFORE``: the same of the step before, if it has taken
    that. ``APPENDS``: bits of the names of the files that it, or a predecessor, has appended to
    (``bits_of``).
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
_DECREE, _DIED_AT, _ROOM = range(3)
_GROUPS_AT = len(Word)
_RANKS, _WORDS_EACH = 8, _GROUPS_AT + 2 * GROUPS_MAX
WHY_BYTES = 512
BITS, NAME_BITS = 62, 3


class Board:
    """The words that the agent and all workers of a group share.

    Behind its other words a rank has two for each process group that it is in: a name, which is not
    0, and how many of the group's calls are in its log (``done`` of core/replay/settling.py).
    """

    def __init__(self, memory: SharedMemory, ranks: int) -> None:
        self.ranks = ranks
        self._end = board_bytes(ranks) // _WORD
        self._words = memory.words(0, self._end)
        self._why = memory.buffer(board_bytes(ranks), WHY_BYTES)

    def read(self, rank: int, word: Word) -> int:
        """One word of one rank."""
        return int(self._words[_RANKS + _WORDS_EACH * rank + word])

    def set(self, rank: int, word: Word, value: int) -> None:
        """Write one word of one rank."""
        self._words[_RANKS + _WORDS_EACH * rank + word] = value

    def address(self, rank: int, word: Word) -> int:
        """Where one word of one rank is in this process's memory, for the kernel to write it."""
        return ctypes.addressof(self._words) + _WORD * (_RANKS + _WORDS_EACH * rank + word)

    def see(self, rank: int, attempt: Attempt) -> None:
        """A rank knows a higher attempt. Whoever reads half of it has a lower one."""
        if self.read(rank, Word.SEEN) != attempt.quorum_id:
            self.set(rank, Word.SEEN_NUMBER, 0)
            self.set(rank, Word.SEEN, attempt.quorum_id)
        self.set(rank, Word.SEEN_NUMBER, attempt.number)

    def seen(self, rank: int) -> Attempt:
        """The highest attempt that a rank knows, or one below."""
        quorum_id = self.read(rank, Word.SEEN)
        return Attempt(quorum_id, self.read(rank, Word.SEEN_NUMBER))

    def begins(self, rank: int, step: int, begun: int) -> None:
        """A rank has begun a step, its ``begun``-th one. Whoever reads half of it has nothing."""
        last, number = self.read(rank, Word.STEP), self.read(rank, Word.BEGUN)
        if step != last:
            self.set(rank, Word.STEP, NONE)
            self.set(rank, Word.BEFORE, number if step == last + 1 else NONE)
        self.set(rank, Word.BEGUN, begun)
        self.set(rank, Word.STEP, step)

    def begun(self, rank: int, step: int) -> int:
        """Which of its steps a rank had for this one, when it has begun it last; ``NONE``: it has
        not, or that was long ago."""
        last, begun, before = (self.read(rank, x) for x in (Word.STEP, Word.BEGUN, Word.BEFORE))
        if last != self.read(rank, Word.STEP) or not 0 <= last - step <= 1:
            return NONE
        return begun if step == last else before

    def says(self, rank: int, group: int, call: int, kind: str, nbytes: int) -> None:
        """A rank waits in this call; ``call`` -1: in none. Whoever reads half of it has nothing."""
        self.set(rank, Word.SAID_AT, 0)
        number = CALLED.index(kind)
        for word, value in zip(_SAID, (group, call, number, nbytes), strict=True):
            self.set(rank, word, value)
        self.set(rank, Word.SAID_AT, time.monotonic_ns())

    def said(self, rank: int) -> Waits | None:
        """Which call a rank waits in; None: it has not said so far."""
        at = self.read(rank, Word.SAID_AT)
        group, call, number, nbytes = (self.read(rank, word) for word in _SAID)
        if not at or at != self.read(rank, Word.SAID_AT):
            return None
        return Waits(group, call, CALLED[number], nbytes, (time.monotonic_ns() - at) / 1e9)

    def all(self, word: Word) -> list[int]:
        """This word of each rank."""
        return self._words[_RANKS + word : self._end : _WORDS_EACH]

    def look(self) -> Words:
        """What core/replay decides by."""
        decree, published = self.decree, self.all(Word.PUBLISHED)
        over = [bool(x) for x in self.all(Word.OVER)]
        return Words(decree, published, self.all_done(), over)

    def add_group(self, rank: int, group: int) -> bool:
        """A rank is in a process group; whether there is room for it."""
        for at in self._groups_of(rank):
            if self._words[at] in (group, 0):
                self._words[at] = group
                return True
        return False

    def all_done(self) -> list[dict[int, int]]:
        """Of each rank: ``done`` of each of its groups."""
        return [self.done_of(rank) for rank in range(self.ranks)]

    def done_of(self, rank: int) -> dict[int, int]:
        """Of one rank: ``done`` of each of its groups."""
        words = self._words
        return {words[at]: words[at + 1] for at in self._groups_of(rank) if words[at]}

    def places(self, group: int, ranks: Iterable[int]) -> list[int]:
        """Where the words ``done`` of a group are, of members that have added it."""
        found = (at for rank in ranks for at in self._groups_of(rank) if self._words[at] == group)
        return [at + 1 for at in found]

    def reader(self, places: Sequence[int]) -> Callable[[], tuple[int, ...]]:
        """Gives the words ``done`` at these places, the first one twice."""
        return partial(itemgetter(*places, places[0]), self._words)

    def writer(self, place: int) -> Callable[[int], None]:
        """Writes a word ``done``."""
        return partial(self._words.__setitem__, place)

    def rewind(self, rank: int, calls: Counts) -> None:
        """The agent: a rank has made these calls; no process of it runs, or it is elsewhere."""
        for group in calls:
            self.add_group(rank, group)
        for at in self._groups_of(rank):
            self._words[at + 1] = calls.get(self._words[at], 0)

    def row(self, rank: int) -> RankWords:
        """What other nodes need of the words of an own rank."""
        read = self.read
        published, joined = read(rank, Word.PUBLISHED), read(rank, Word.JOINED)
        over, done = bool(read(rank, Word.OVER)), self.done_of(rank)
        fall, broken = read(rank, Word.FALL), read(rank, Word.BROKEN)
        each = tuple(done), tuple(done.values()), read(rank, Word.APPENDS)
        return RankWords(rank, published, joined, over, fall, broken, *each)

    def appends(self, rank: int, bits: int) -> None:
        """A rank appends to files with these bits, too."""
        self.set(rank, Word.APPENDS, self.read(rank, Word.APPENDS) | bits)

    def take(self, row: RankWords) -> None:
        """The agent: words of another node's rank have come. ``published`` says that all have."""
        self.rewind(row.group_rank, dict(zip(row.groups, row.done, strict=True)))
        self.appends(row.group_rank, row.appends)  # of a lost node's rank, too
        for word in (Word.OVER, Word.FALL, Word.BROKEN, Word.JOINED, Word.PUBLISHED):
            self.set(row.group_rank, word, int(getattr(row, word.name.lower())))

    def _groups_of(self, rank: int) -> range:
        begin = _RANKS + _WORDS_EACH * rank + _GROUPS_AT
        return range(begin, begin + 2 * GROUPS_MAX, 2)

    @property
    def decree(self) -> int:
        """The number of the newest decree; 0: nobody has died so far."""
        return int(self._words[_DECREE])

    @property
    def room(self) -> int:
        """So much memory may still be taken on this node, as the agent has seen it last."""
        return int(self._words[_ROOM])

    @room.setter
    def room(self, nbytes: int) -> None:
        self._words[_ROOM] = nbytes

    @property
    def why(self) -> str:
        """What a worker of this node has found, which the word ``FALL`` has no room for."""
        return bytes(self._why).partition(b"\0")[0].decode(errors="replace")

    @why.setter
    def why(self, text: str) -> None:
        self._why[:] = text.encode()[: WHY_BYTES - 1].ljust(WHY_BYTES, b"\0")

    @property
    def died_at(self) -> int:
        """When the agent learned of the latest death."""
        return int(self._words[_DIED_AT])

    def make_decree(self, number: int, died_at: int) -> None:
        """The agent: raise the number, and wake all who wait for it."""
        self._words[_DIED_AT] = died_at
        self._words[_DECREE] = number
        futex.wake(self._at(), futex.ALL)

    def wait(self, beyond: int, timeout_s: float) -> int:
        """Wait for a decree with a higher number, ``timeout_s`` at most; returns the newest.

        Raises:
            OSError: this system refuses to wait.
        """
        if self.decree <= beyond:
            futex.wait_while(self._at(), beyond & 0xFFFFFFFF, timeout_s)
        return self.decree

    def _at(self) -> int:
        return ctypes.addressof(self._words) + _DECREE * _WORD  # its lower half, as all we run on


def board_bytes(ranks: int) -> int:
    """What the words of so many ranks take."""
    return (_RANKS + _WORDS_EACH * ranks) * _WORD


def bits_of(name: str) -> int:
    """Of a file's name. Who has the bits of another's name may append to that file: a path means
    the same file on other nodes, but may be another one there, so the last part counts."""
    digest = hashlib.blake2b(os.fsencode(os.path.basename(name)), digest_size=NAME_BITS).digest()
    return sum({1 << byte % BITS for byte in digest})
