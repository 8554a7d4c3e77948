"""Distinguishes a worker that has nothing to send from one that hangs.

A worker's link thread answers whatever the script does. So a worker that has sent something before,
is still connected and does not answer is stopped, dead in a lock, or stuck in the kernel. Members
that wait for it in a step find that sooner, by the lighthouse's Interrupt. This watch is for
workers that no member waits for: they are in no quorum, or all workers hang at once.

After half the limit of silence a worker is asked, and again each quarter. It hangs if it has not
answered by the third question and used no processor time since the first. A busy worker may be in a
long call of an extension that keeps Python's lock, and has ``BUSY_LIMITS`` times the limit.
Questions are counted, not time: an agent that was stopped itself starts counting again. Not here:
the consequences (supervisor.py), processor time (agent/).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

ASK_SHARE = 0.5
ASK_AGAIN_SHARE = 0.25
IDLE_QUESTIONS = 2
"""The number of questions in a row after the first, each without processor time since the last."""
BUSY_SHARE = 0.1
"""The share of a core. Threads that wait for Python's lock try it 200 times a second and use
less.
"""
BUSY_LIMITS = 10
BUSY_QUESTIONS = int(BUSY_LIMITS / ASK_AGAIN_SHARE)


class HangWatch:
    """The watched workers of one incarnation, by group_rank.

    ``limit_s``: see above; 0: no worker is watched.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._silences: dict[int, Silence] = {}
        self._gone: set[int] = set()

    def received(self, rank: int, now: float) -> None:
        """A worker has sent something; its first message begins the watch."""
        silence = self._silences.get(rank)
        if silence is not None:
            silence.received(now)
        elif self._limit_s and rank not in self._gone:
            self._silences[rank] = Silence(self._limit_s, now)

    def disconnected(self, rank: int) -> None:
        """A worker cannot answer now; its next message begins the watch again."""
        self._silences.pop(rank, None)

    def gone(self, rank: int) -> None:
        """A worker has ended or left: it does not answer any more, although it may still run."""
        self._silences.pop(rank, None)
        self._gone.add(rank)

    def back(self, rank: int) -> None:
        """A worker that had left has made another Manager: it is watched again."""
        self._gone.discard(rank)

    def ask(self, now: float) -> Iterator[int]:
        """The workers to ask now; the caller reports each one's processor time by ``used``."""
        for rank, silence in self._silences.items():
            if silence.look_at <= now and silence.asks(now):
                yield rank

    def used(self, rank: int, cpu_s: float, now: float) -> float | None:
        """See ``Silence.used``; if the worker hangs: the seconds of its silence."""
        silence = self._silences.get(rank)
        if silence is None or not silence.used(cpu_s, now):
            return None
        return now - silence.last_message_at

    def deadlines(self) -> Iterator[float]:
        for silence in self._silences.values():
            yield silence.look_at


@dataclass(slots=True)
class Silence:
    """One worker's silence. ``limit_s``: see above. ``look_at``: when to check it next.

    ``_questions``: the number of unanswered ones, since the agent itself was last stopped.
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
        """The worker has sent something.

        ``look_at`` is not postponed here, to avoid re-arming the timer at every message.
        """
        self.last_message_at = now
        self._questions = 0

    def asks(self, now: float) -> bool:
        """At ``look_at``. Returns whether to ask the worker now; then call ``used``."""
        due_at = self.last_message_at + ASK_SHARE * self.limit_s
        if not self._questions and now < due_at:
            self.look_at = due_at
            return False
        self.look_at = now + ASK_AGAIN_SHARE * self.limit_s
        return True

    def used(self, cpu_s: float, now: float) -> bool:
        """Note the processor time of its process, in seconds, at the question.

        Returns whether it hangs.
        """
        since_s = now - self._cpu_at
        if since_s > 2 * ASK_AGAIN_SHARE * self.limit_s:
            self._questions = 0  # this agent was stopped in between, and perhaps the worker too
        if not self._questions or cpu_s - self._cpu_s > BUSY_SHARE * since_s:
            self._idle = 0
        else:
            self._idle += 1
        self._questions += 1
        self._cpu_s, self._cpu_at = cpu_s, now
        return self._idle >= IDLE_QUESTIONS or self._questions > BUSY_QUESTIONS
