"""What outlives a process: each rank's area with its generations and logs, and the board's words.

It works like snapshots/area.py and board.py, word by word.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ftrun.core.replay.settling import Generation, Logged
from tests.sim.replay.script import Id

Stop: TypeAlias = "str | Callable[[], bool]"
Calls: TypeAlias = "tuple[dict[int, int], dict[int, int]]"
"""By group: the calls before the copy of a state, and the calls before its place."""
Thread: TypeAlias = Generator[Stop, Any, Any]
"""A thread stops at a place, by name, or until a condition holds."""

SLOTS = 3


@dataclass
class Slot:
    """A generation. ``number``: -1 while it is written; ``step``: the step that it begins.

    ``calls``: calls made before it, by group; ``before``: calls made before the step. ``shown``:
    see script.py; the script may change it at any time, so it is copied at once.
    """

    number: int = -1
    step: int = 0
    calls: dict[int, int] = field(default_factory=dict)
    before: dict[int, int] = field(default_factory=dict)
    words: list[int] = field(default_factory=list)
    shown: list[int] = field(default_factory=list)


@dataclass
class Log:
    """A log. ``index``: (call, kind, offset, words) of each one from the rank's ``first`` on."""

    number: int = -1
    first: int = 0
    count: int = 0
    index: list[tuple[Id, str, int, int]] = field(default_factory=list)
    data: list[int] = field(default_factory=list)


class Area:
    """One rank's memory. ``room``: the number of words in a log."""

    def __init__(self, words: int, room: int) -> None:
        self.slots = [Slot(words=[0] * words) for _ in range(SLOTS)]
        self.logs = [Log(data=[0] * room) for _ in range(SLOTS)]
        self.room = room
        self.is_full = False
        self.was_full = False
        self.was_whole = False

    def write(
        self, number: int, step: int, state: list[int], calls: Calls, shown: list[int]
    ) -> Thread:
        slot = self.slots[number % SLOTS]
        slot.number = -1
        yield "generation begun"
        slot.shown = shown
        for index in range(len(state)):
            slot.words[index] = state[index]
            yield "word copied"
        slot.step, (slot.calls, slot.before) = step, calls
        yield "calls noted"
        slot.number = number
        self.was_whole = True
        yield "generation whole"

    def drop_logs(self, until: int) -> None:
        """Drop logs of generations at which no process begins any more."""
        for log in self.logs:
            if log.number <= until:
                log.number = -1

    @property
    def newest_log(self) -> int:
        return max(log.number for log in self.logs)

    def open_log(self, number: int, first: int) -> Thread:
        log = self.logs[number % SLOTS]
        log.number = -1
        yield "log closed"
        log.count, log.first = 0, first
        log.index.clear()
        yield "log emptied"
        log.number = number
        self.is_full = False
        yield "log open"

    def cut_logs(self, needed: Callable[..., int]) -> Thread:
        """Shorten the logs, which cannot be completed, to the calls that are needed."""
        for log in self.logs:
            if log.number >= 0:
                self.cut(log, needed(Logged(log.first, log.first + log.count), self.generations()))
                yield "log cut"

    def cut(self, log: Log, count: int) -> None:
        log.count = count
        del log.index[count:]
        log.number = log.number if count else -1

    def log(self, call: Id, kind: str, words: list[int]) -> Thread:
        """Add a call to the newest log. After a call that does not fit it takes none."""
        log = max(self.logs, key=lambda known: known.number)
        used = sum(size for *_, size in log.index[: log.count])
        if self.is_full or used + len(words) > self.room:
            self.is_full = self.was_full = True
            return
        for index, word in enumerate(words):
            log.data[used + index] = word
            yield "word logged"
        del log.index[log.count :]
        log.index.append((call, kind, used, len(words)))
        yield "entry logged"
        log.count += 1
        yield "call counted"

    def rewind(self, step: int, has_logs: bool) -> dict[int, int]:
        """Hold the newest generation of this boundary, as if nothing had followed."""
        whole = [slot for slot in self.slots if slot.number >= 0 and slot.step == step]
        assert whole, f"no generation of step {step}"
        newest = max(whole, key=lambda known: known.number)
        for slot in self.slots:
            if slot.number > newest.number:
                slot.number = -1
        self.is_full = False
        known = Generation(newest.number, step, newest.calls, newest.before)
        number, kept = self.newest_log + 1, None
        for log in self.logs:
            has = Logged(log.first, log.first + log.count)
            is_kept = has_logs and log.number >= 0 and known.copied > known.place
            if is_kept and kept is None and has.leads_to(known):
                kept = log
                self.cut(log, known.copied - log.first)
            else:
                log.number = -1
        if kept is None:
            newest.calls = newest.before
            for _ in self.open_log(number, known.place):
                pass
        return dict(newest.calls)

    def find(self, call: Id) -> tuple[Log, str, int, int] | None:
        for log in self.logs:
            for known, kind, offset, size in log.index[: log.count]:
                if log.number >= 0 and known == call:
                    return log, kind, offset, size
        return None

    def generations(self) -> list[Generation]:
        whole = [x for x in self.slots if x.number >= 0]
        return [Generation(x.number, x.step, dict(x.calls), dict(x.before)) for x in whole]

    def logged(self) -> list[Logged]:
        return [Logged(x.first, x.first + x.count) for x in self.logs if x.number >= 0]


@dataclass
class Words:
    """The board. ``due``: the steps that begin with generations, if not all steps do.

    ``full``: as in core/replay/log_rules.py.
    """

    number: int
    published: list[int]
    done: list[dict[int, int]]
    joined: list[int]
    over: list[bool]
    falls: list[int]
    broken: list[int]
    full: list[int]
    due: int = 0


def parts(value: int) -> list[int]:
    """A value as two words, so that a reader can find one half of it."""
    return [value >> 16, value & 0xFFFF]


def joined(words: list[int]) -> int:
    """Join the two words of a value."""
    return words[0] << 16 | words[1]
