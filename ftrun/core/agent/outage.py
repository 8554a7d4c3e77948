"""The lighthouse's absence as this agent sees it: the messages to its workers and to people.

Four limits. When the lease expires, the workers are isolated (lease.py): training stops, and people
get a notice of that from time to time. A node that has waited for ``lighthouse_timeout_s`` ends,
and so does an agent that never had an answer; but a script without a Manager needs no lighthouse,
and runs on. If a replica is lost while the lighthouse is gone, training stops, because there is no
new quorum. Not here: the stream and the next attempts (agent/link.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ftrun.base.errors import ExitCode
from ftrun.core.agent import words
from ftrun.core.agent.ending import Ending
from ftrun.core.agent.events import LighthouseSent, SendToWorkers
from ftrun.core.agent.part import Part
from ftrun.core.agent.slot_state import SlotPhase
from ftrun.core.agent.stopping import Stopping
from ftrun.core.ids import StateId
from ftrun.core.messages import Lease

UNREACHABLE = int(ExitCode.LIGHTHOUSE_UNREACHABLE)
REMIND_S = 300.0
"""The pause between two notices of a wait for the lighthouse."""
STANDS_NOTICE_S = 3.0
"""How long training stops for lack of a lighthouse before people get the notice."""


@dataclass(eq=False, repr=False)
class Outage(Part):
    """One agent's reaction to the absence of its lighthouse.

    ``_gone_at``: when a connected lighthouse went; None while it is connected, or never was.
    ``_at``: the address of the lighthouse that was followed last, if there are several.
    ``_remind_at``: when the next notice of an isolation is due; None: no notice is due.
    ``_agreed``: the last agreement of the lighthouse, for the workers.
    """

    _stopping: Stopping
    _ending: Ending
    _gone_at: float | None = None
    _at: str = ""
    _agreed: StateId | None = None
    _stands_shown: bool = False
    _remind_at: float | None = None

    def lease(self) -> Lease | None:
        """Until when workers may commit without another message; None: there was no answer yet."""
        until_s = self._lease.until_s()
        return None if until_s is None else Lease(until_s, self._agreed)

    def received(self, sent: LighthouseSent) -> None:
        """The lighthouse has sent a message, so it is there. An answer renews the lease."""
        asked_at = sent.asked_at
        if not self._lease.is_connected and self._lease.renewed_at is not None:
            if self._at != sent.at:
                self._out.add(words.another_lighthouse(sent.at, sent.epoch, self._at))
            else:
                self._out.add(words.lighthouse_back())
        self._at = sent.at
        self._agreed = sent.agreed or self._agreed
        self._lease.received(self._out.now, asked_at)
        lease = self.lease()
        if asked_at is not None and lease is not None:
            self._out.add(SendToWorkers(lease))
        self._gone_at = None
        if not self._lease.isolated:
            self._remind_at = None

    def disconnected(self, reason: str, *, is_moved: bool) -> None:
        """The stream, or an attempt to open one, has failed; see ``LighthouseGone``."""
        if self._lease.is_connected and not is_moved:
            self._gone_at = self._out.now
            self._stands_shown = False
            if not self._ending.has_begun:
                limit_s = self._settings.isolation_limit_s
                self._out.add(words.lighthouse_gone(reason, limit_s))
            for slot in self._slots:
                if self._ending.has_begun and slot.phase is SlotPhase.STOPPING:
                    self._stopping.leave_now(slot)  # there will be no agreement
        self._lease.disconnected()

    def deadlines(self) -> Iterator[float]:
        """When ``check`` may have something to do; none once the agent ends."""
        if self._ending.has_begun:
            return
        ends_at, since = self._lease.deadline(), self._stands_since()
        if ends_at is not None:
            yield ends_at
        if since is not None:
            yield since + STANDS_NOTICE_S
        if self._remind_at is not None:
            yield self._remind_at
            if self._needs_lighthouse():
                yield self._lost_at()

    def check(self) -> None:
        """Act on the limits that have passed."""
        if self._ending.has_begun:
            return
        if self._lease.never_began(self._out.now):
            self._ending.end_job(UNREACHABLE, "no lighthouse has answered")
            return
        lease = self.lease()
        if self._lease.ends(self._out.now) and lease is not None:
            self._lease.isolated = True
            self._out.add(SendToWorkers(lease))
            self._remind_at = self._out.now
        if self._remind_at is not None:
            self._wait()
        since = self._stands_since()
        if since is not None and since + STANDS_NOTICE_S <= self._out.now:
            self._stands_shown = True
            step = max((slot.budget.mark for slot in self._slots), default=0)
            self._out.add(words.no_quorum(step, self._out.now - since))

    def _wait(self) -> None:
        """The workers are isolated: end in time, and report the wait from time to time."""
        settings, now = self._settings, self._out.now
        if self._needs_lighthouse() and now >= self._lost_at():
            reason = words.lighthouse_lost(settings.lighthouse_at, settings.lighthouse_timeout_s)
            self._ending.end_job(UNREACHABLE, reason)
        elif self._remind_at is not None and now >= self._remind_at:
            self._remind_at = now + REMIND_S
            silent_s = now - self._lost_at() + settings.lighthouse_timeout_s
            at, left_s = settings.lighthouse_at, self._lost_at() - now
            notice = words.isolated(at, silent_s, UNREACHABLE, left_s)
            self._out.add(notice if self._needs_lighthouse() else words.trains_on(at, silent_s))

    def _lost_at(self) -> float:
        """When this node ends without an answer. Valid only after a first answer."""
        return (self._lease.renewed_at or 0.0) + self._settings.lighthouse_timeout_s

    def _needs_lighthouse(self) -> bool:
        """Whether all scripts here need a lighthouse, because each that runs has a Manager."""
        return all(slot.has_manager for slot in self._slots if slot.alive)

    def _stands_since(self) -> float | None:
        """Since when training stands still; None: it does not, or the notice was shown."""
        since = [s.lost_at for s in self._slots if s.lost_at is not None and s.has_trained]
        if self._gone_at is None or self._stands_shown or not since:
            return None
        return max(min(since), self._gone_at)
