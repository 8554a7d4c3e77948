"""Leadership of one process: ``handle(event, now) -> list[Instruction]``. Pure.

Theory of operation. There is one register ``(version, value)`` and one operation on it that
matters: write a value if the version is still the one that the writer has seen. Clocks of two
machines are never compared.

- The leader writes every quarter of T (``silence_s``), and whenever the job's journal changes.
- A standby that has seen no new version for T writes its own name with the next epoch. If the write
  is accepted, it leads. If not, another process has written meanwhile, and it keeps watching. While
  the store does not answer, it sees nothing; so the former leader continues when the store is back.
- The leader acts for two thirds of T after it *asked* for its last accepted write, by its own
  clock. A standby saw that write later, and waits longer. Then the leader is **suspended**: it
  decides nothing and sends nothing. If its next write is accepted, no other process has led
  meanwhile, and it continues. If another process's value is there, it is deposed.
- What follows a Record is **held** until that record is in the register, and until leadership is
  proven. While anything is held, events queue and must not be handled (``may_decide``).

| state | leads by | ends by |
|---|---|---|
| watching | silence for T or a free register, and an accepted write: leading | |
| leading, proven | an accepted write asked for less than 2/3 T ago | time: suspended |
| leading, suspended | | an accepted write: proven; another's value: Depose, watching |

A write without an answer may have been carried out, and may be later. So the register is read, and
the holder's name and serial show which write of this process is there. One request is under way at
a time.

A limit of this: the clock of a suspended host may stand still with it. When the host resumes, its
lighthouse may answer agents for 2/3 T at most; it cannot write.

Not here: the stores, the content of a journal.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ftrun.base.errors import assert_never
from ftrun.core.register import events as e

WRITES_PER_SILENCE = 4
PROVEN_SHARE = 2 / 3
LOOKS_PER_SILENCE = 8
LOOK_MAX_S = 0.5
"""The longest pause between two looks at the register, and after a request that failed."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one process.

    ``name``: names this life of this process alone. ``address``: the address for its agents.
    ``silence_s``: T. It is infinite for a process that is known to be the only one, which writes
    only when its journal changes. ``epoch_floor``: an epoch below the first one of a register
    without a value.
    """

    name: str
    address: str
    silence_s: float
    epoch_floor: int = 0

    @property
    def look_s(self) -> float:
        """The pause between two looks."""
        return min(self.silence_s / LOOKS_PER_SILENCE, LOOK_MAX_S)


@dataclass(frozen=True, slots=True)
class _Try:
    """A write whose outcome is not known. ``asked_at``: when it was first asked for."""

    value: e.Value
    record: e.Record | None
    asked_at: float


class Leadership:
    """One process's part in the register. ``epoch``: under which it leads, or has led last.

    ``watched_s``: how long the former holder had written nothing when this process took over; 0: it
    did not wait for that.
    """

    def __init__(self, settings: Settings) -> None:
        self.epoch = 0
        self.watched_s = 0.0
        self.leads = False
        self._settings = settings
        self._now = 0.0
        self._out: list[e.Instruction] = []
        # The last known state of the register.
        self._version = 0
        self._value: e.Value | None = None
        self._seen_at: float | None = None
        self._answered_at = 0.0
        self._ended: str | None = None
        # The request under way, and the writes whose outcome is not known.
        self._asked: e.Read | e.Swap | None = None
        self._asked_at = 0.0
        self._ask_at = 0.0
        self._serial = 0
        self._tries: dict[int, _Try] = {}
        self._is_unsure = False
        # As leader.
        self._proven_from = 0.0
        self._has_begun = False
        self._held: deque[object] = deque()
        # For people, and the end.
        self._away_since: float | None = None
        self._is_stopping = False
        self._gives_back = False
        self._is_over = False

    # ------------------------------------------------------------ what the shell asks

    def handle(self, event: e.Event, now: float) -> list[e.Instruction]:
        """Take one event; the instructions are to be carried out in order."""
        self._now = now
        match event:
            case e.Answered() | e.Accepted() | e.Refused() | e.Failed():
                asked, self._asked = self._asked, None
                self._on_answer(event, asked)
            case e.Decided(outputs):
                self._held.extend(outputs)
            case e.HolderEnded(holder):
                self._ended = holder
                self._ask_at = min(self._ask_at, now)
            case e.Stopped():
                self._is_stopping = True
            case e.TimerFired():
                pass
            case _:
                assert_never(event)
        self._let_go()
        self._ask()
        if self._has_begun and self._away_since is None and now >= self._missed_at:
            self._is_away("it gives no answer")
        out, self._out = self._out, []
        return out

    def may_decide(self, now: float) -> bool:
        """Whether the leader may handle an event now, and answer it at once."""
        return self._has_begun and not self._held and self._is_proven(now)

    def next_deadline(self) -> float | None:
        """When TimerFired is due; None: only after another event."""
        times = [] if self._asked is not None or self._is_over else [self._due_at()]
        if self._has_begun and self._away_since is None:
            times.append(self._missed_at)
        return min((t for t in times if t < float("inf")), default=None)

    # ------------------------------------------------------------ answers

    def _on_answer(
        self, answer: e.Answered | e.Accepted | e.Refused | e.Failed, asked: e.Read | e.Swap | None
    ) -> None:
        if isinstance(answer, e.Failed):
            self._is_unsure |= isinstance(asked, e.Swap)
            self._ask_at = self._now + self._settings.look_s
            self._is_away(answer.reason)
            return
        self._is_back()
        if self._seen_at is not None and self._now - self._answered_at > self._blind_s:
            self._seen_at = self._now
        self._answered_at = self._now
        match answer, asked:
            case e.Accepted(version), e.Swap(_, value):
                self._landed(version, self._tries[value.serial])
            case e.Answered(version, value), e.Read(with_journal):
                self._on_found(version, value, with_journal=with_journal)
            case _:
                self._is_unsure = True  # which write is there?

    @property
    def _blind_s(self) -> float:
        """After this long without an answer, the silence was not observed: it begins again."""
        return self._settings.silence_s / 2

    def _on_found(self, version: int, value: e.Value | None, *, with_journal: bool) -> None:
        self._is_unsure = False
        if self._seen_at is not None and (version == self._version or 0 < version < self._version):
            # Nothing new. Some shared file systems show a directory as it was a moment ago.
            if with_journal and version == self._version and value is not None:
                self._has_begun = True
                self._out.append(e.Lead(value))
            return
        is_mine = value is not None and value.holder == self._settings.name
        mine = self._tries.get(value.serial) if value is not None and is_mine else None
        if mine is not None:
            self._landed(version, mine)
        else:
            self._saw(version, value)

    def _saw(self, version: int, value: e.Value | None) -> None:
        """The register has a value other than this process has seen or written."""
        former = self._value
        self._version, self._value, self._seen_at = version, value, self._now
        self._tries.clear()
        if value is None or value.is_free:
            self._ask_at = self._now
        had_begun = self._has_begun
        self._end()
        if had_begun:
            self._out.append(e.Depose(_named(value)))
        elif value is not None and not value.is_free:
            if _is_new(value.holder, former):
                self._out.append(e.Say(f"The lighthouse is {_named(value)}. This one stands by."))
            else:
                self._out.append(e.Follow(value))

    def _landed(self, version: int, written: _Try) -> None:
        """A write of this process is in the register."""
        self._version, self._value, self._seen_at = version, written.value, self._now
        self._tries.clear()
        if written.value.is_free:
            self._end()
            return
        self._proven_from = written.asked_at
        self.epoch = written.value.epoch
        self.leads = True
        if written.record is not None:
            self._held.popleft()

    def _end(self) -> None:
        self.leads = self._has_begun = False
        self._held.clear()

    # ------------------------------------------------------------ what goes out

    def _let_go(self) -> None:
        """Release what is held, up to the first record that is not in the register."""
        while self._held and not isinstance(self._held[0], e.Record) and self._is_proven(self._now):
            self._out.append(e.Release(self._held.popleft()))

    @property
    def _proven_until(self) -> float:
        return self._proven_from + PROVEN_SHARE * self._settings.silence_s

    def _is_proven(self, now: float) -> bool:
        return self.leads and not self._gives_back and now < self._proven_until

    @property
    def _missed_at(self) -> float:
        """When a missing answer is reported to people. A pause of this process does not count."""
        pause_s = self._settings.silence_s / WRITES_PER_SILENCE
        return max(self._proven_until, self._asked_at + pause_s)

    # ------------------------------------------------------------ requests

    def _due_at(self) -> float:
        """When the next request is due, if none is under way."""
        is_resting = self._has_begun and not (self._is_unsure or self._is_stopping or self._record)
        if not is_resting:
            return self._ask_at
        pause_s = self._settings.silence_s / WRITES_PER_SILENCE
        return max(self._ask_at, self._proven_from + pause_s)

    @property
    def _record(self) -> e.Record | None:
        return self._held[0] if self._held and isinstance(self._held[0], e.Record) else None

    def _takes_at(self) -> float:
        """When a standby may take the register, if it sees no new version until then."""
        assert self._seen_at is not None
        value = self._value
        if value is None or value.is_free or value.holder == self._ended:
            return self._seen_at
        return self._seen_at + max(self._settings.silence_s, value.silence_s)

    def _ask(self) -> None:
        """Send the next request if it is due."""
        if self._asked is not None or self._is_over or self._now < self._due_at():
            return
        if self._is_unsure or self._seen_at is None:
            self._send(e.Read())
        elif self._is_stopping and not self.leads:
            self._is_over = True
            self._out.append(e.GivenBack())
        elif self.leads and not (self._has_begun or self._is_stopping):
            self._send(e.Read(with_journal=True))
        elif self.leads:
            self._write()
        elif self._now >= self._takes_at():
            self._take()
        else:
            self._ask_at = self._now + self._settings.look_s
            self._send(e.Read())

    def _take(self) -> None:
        assert self._seen_at is not None
        self.watched_s = self._now - self._seen_at if self._takes_at() > self._seen_at else 0.0
        former = self._value.epoch if self._value is not None else self._settings.epoch_floor
        self._swap(former + 1, None)

    def _write(self) -> None:
        """Write the journal's record, if one waits; at the end, that the register is free."""
        record = self._record
        epoch = self.epoch if record is None else max(self.epoch, record.epoch)
        # Another process may lead from the moment of this request on, whenever its answer arrives.
        self._gives_back = self._is_stopping and record is None
        self._swap(epoch, record, is_free=self._gives_back)

    def _swap(self, epoch: int, record: e.Record | None, *, is_free: bool = False) -> None:
        """Ask for a write. A repeated one keeps its serial and the time of its first request."""
        last = self._tries.get(self._serial)
        if last is None or (last.value.is_free, last.record) != (is_free, record):
            self._serial += 1
            journal = None if record is None else record.journal
            own = self._settings
            value = e.Value(
                epoch, own.name, own.address, own.silence_s, self._serial, is_free, journal
            )
            last = self._tries[self._serial] = _Try(value, record, self._now)
        self._send(e.Swap(self._version, last.value))

    def _send(self, request: e.Read | e.Swap) -> None:
        self._asked = request
        self._asked_at = self._now
        self._out.append(request)

    # ------------------------------------------------------------ words

    def _is_away(self, reason: str) -> None:
        """The store has not answered, or not in time. Short failures are not reported."""
        is_idle = self._has_begun and not self._held and self._is_proven(self._now)
        if self._away_since is not None or is_idle:
            return
        self._away_since = self._now
        then = "The lighthouse decides nothing until it answers; training continues."
        if not self._has_begun:
            then = "It is asked again and again."
        self._out.append(e.Say(f"The store of the state does not answer ({reason}). {then}"))

    def _is_back(self) -> None:
        if self._away_since is not None:
            away_s = self._now - self._away_since
            self._away_since = None
            self._out.append(e.Say(f"The store of the state answers again, after {away_s:.1f} s."))


def _is_new(holder: str, former: e.Value | None) -> bool:
    return former is None or former.is_free or former.holder != holder


def _named(value: e.Value | None) -> str:
    if value is None:
        return "nobody: the register is empty"
    if value.is_free:
        return f"nobody: {value.holder} has stopped (epoch {value.epoch})"
    return f"{value.holder} at {value.address} (epoch {value.epoch})"
