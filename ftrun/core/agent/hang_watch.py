"""Whether a worker that says nothing has nothing to say, or hangs.

A worker's link thread answers whatever the script is at. So one that has spoken, is still connected
and answers no question is stopped, dead in a lock, or stuck in the kernel. Members that wait for
its part of a step find that out sooner, by the lighthouse's Interrupt. This is for those whom
nobody waits for: they are in no quorum, or everybody hangs at once.

After half the limit without a word it is asked, and again each quarter. Who has answered nothing by
the third question, and used no processor since the first, hangs. Who does use it may be in a long
call of an extension that keeps Python's lock, and has ``BUSY_LIMITS`` times the limit. Questions
are counted, not time: an agent that was stopped itself, perhaps with its workers, begins anew.
Not here: what follows (supervisor.py), processor time (agent/).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

ASK_SHARE = 0.5
ASK_AGAIN_SHARE = 0.25
IDLE_QUESTIONS = 2
"""So many questions in a row after the first, each with no processor time since the last."""
BUSY_SHARE = 0.1
"""Of a core. Threads that wait for Python's lock look for it 200 times a second: that is less."""
BUSY_LIMITS = 10
BUSY_QUESTIONS = int(BUSY_LIMITS / ASK_AGAIN_SHARE)


class HangWatch:
    """The workers of one incarnation that have spoken, by group_rank; at most all of them.

    ``limit_s``: see above; 0: nobody is watched.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._silences: dict[int, Silence] = {}
        self._gone: set[int] = set()

    def received(self, rank: int, now: float) -> None:
        """It has said something: from its first word on it is watched."""
        silence = self._silences.get(rank)
        if silence is not None:
            silence.received(now)
        elif self._limit_s and rank not in self._gone:
            self._silences[rank] = Silence(self._limit_s, now)

    def disconnected(self, rank: int) -> None:
        """It cannot answer now; watched again when it speaks again."""
        self._silences.pop(rank, None)

    def gone(self, rank: int) -> None:
        """It has ended, or left: then it answers no more, and may live on for long."""
        self._silences.pop(rank, None)
        self._gone.add(rank)

    def ask(self, now: float) -> Iterator[int]:
        """Who is to be asked now; ``used`` is told of each when it was."""
        for rank, silence in self._silences.items():
            if silence.look_at <= now and silence.asks(now):
                yield rank

    def used(self, rank: int, cpu_s: float, now: float) -> float | None:
        """See ``Silence.used``; if it hangs: for how long it has said nothing."""
        silence = self._silences.get(rank)
        if silence is None or not silence.used(cpu_s, now):
            return None
        return now - silence.last_message_at

    def deadlines(self) -> Iterator[float]:
        """When to look at them, at the latest."""
        for silence in self._silences.values():
            yield silence.look_at


@dataclass(slots=True)
class Silence:
    """Of one worker. ``limit_s``: see above. ``look_at``: when to look at it next.

    ``_questions``: those that have no answer, since the agent was last stopped itself.
    """

    limit_s: float
    last_message_at: float
    look_at: float = 0.0
    _questions: int = 0
    _idle: int = 0
    _cpu_s: float = 0.0
    _cpu_at: float = 0.0

    def __post_init__(self) -> None:
        self.look_at = self.last_message_at + ASK_SHARE * self.limit_s

    def received(self, now: float) -> None:
        """It has said something. (It is looked at no later for that: most events move no timer.)"""
        self.last_message_at = now
        self._questions = 0

    def asks(self, now: float) -> bool:
        """At ``look_at``: whether to ask it now; ``used`` then tells what it has used so far."""
        due_at = self.last_message_at + ASK_SHARE * self.limit_s
        if not self._questions and now < due_at:
            self.look_at = due_at
            return False
        self.look_at = now + ASK_AGAIN_SHARE * self.limit_s
        return True

    def used(self, cpu_s: float, now: float) -> bool:
        """Processor time of its process when it was asked, in seconds; True: it hangs."""
        since_s = now - self._cpu_at
        if since_s > 2 * ASK_AGAIN_SHARE * self.limit_s:
            self._questions = 0  # we were stopped in between, and the worker perhaps with us
        if not self._questions or cpu_s - self._cpu_s > BUSY_SHARE * since_s:
            self._idle = 0
        else:
            self._idle += 1
        self._questions += 1
        self._cpu_s, self._cpu_at = cpu_s, now
        return self._idle >= IDLE_QUESTIONS or self._questions > BUSY_QUESTIONS
