"""The last reported activity of one worker's main thread, and when to report a new one.

Not here: what the activity is (machine.py), who reads it (core/activity.py).
"""

from __future__ import annotations

from ftrun.core.activity import STOOD_STILL_S, Activity, Pause
from ftrun.core.messages import HealProgress

HEAL_EVERY_S = 0.5
"""Ticks come once a second and with each message. The reports must not depend on the messages."""
COLLECTIVE_EVERY_S = 5.0
"""Reports repeat, for receivers that missed the first: other workers, or a restarted lighthouse."""


class ShownActivity:
    """Reports changes only; a gap between two ticks is reported as a time in which nothing ran.

    ``pause``, ``beats``: what the script has announced at the last tick (events.py). ``heal``: how
    much had arrived then. The progress of a heal is reported at most every ``HEAL_EVERY_S``.
    ``collective``: the one in which the script waits; it is reported again every
    ``COLLECTIVE_EVERY_S``.
    """

    def __init__(self) -> None:
        self.pause: Pause | None = None
        self.beats = 0
        self.heal: HealProgress | None = None
        self.collective: Pause | None = None
        self._collective_at = 0.0
        self._heal_shown: HealProgress | None = None
        self._heal_shown_at = -HEAL_EVERY_S
        self._beats_shown = 0
        self._pause_shown: Pause | None = None
        self._shown: Activity | None = Activity.STARTING
        self._ticked_at: float | None = None

    def tick(
        self, activity: Activity, since: float, now: float, waited_s: float = 0.0
    ) -> list[tuple[Activity, float]]:
        """The activities to report, each with its length so far in seconds.

        ``waited_s``: the part of the time since the last tick in which the process ran without a
        tick.
        """
        found = []
        before, self._ticked_at = self._ticked_at, now
        if before is not None and now - before - waited_s >= STOOD_STILL_S:
            self._shown = Activity.STOPPED
            found.append((Activity.STOPPED, now - before - waited_s))
        is_new = activity is not self._shown or self.pause != self._pause_shown
        goes_on = self._heal_goes_on(activity, now) or self._still_waits(activity, now)
        if is_new or self.beats != self._beats_shown or goes_on:
            self._heal_shown_at = self._collective_at = now
            self.reported(activity)
            found.append((activity, now - since))
        return found

    def reported(self, activity: Activity) -> None:
        """A report with this activity is sent, perhaps between two ticks, as a step ends."""
        self._shown, self._pause_shown, self._beats_shown = activity, self.pause, self.beats
        self._heal_shown = self.heal

    def forget(self) -> None:
        """The next tick reports the activity in any case."""
        self._shown = None

    def _heal_goes_on(self, activity: Activity, now: float) -> bool:
        is_more = activity is Activity.HEALING and self.heal != self._heal_shown
        return is_more and now - self._heal_shown_at >= HEAL_EVERY_S

    def _still_waits(self, activity: Activity, now: float) -> bool:
        is_due = now - self._collective_at >= COLLECTIVE_EVERY_S
        return activity is Activity.COLLECTIVE and is_due
