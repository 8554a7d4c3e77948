"""The activity of one worker's main thread as it was last reported, and when to report a new one.

Not here: what the activity is (machine.py), what follows from it (core/activity.py says who reads).
"""

from __future__ import annotations

from ftrun.core.activity import STOOD_STILL_S, Activity


class ShownActivity:
    """Reports changes only; a gap between two ticks is reported as a time in which nothing ran."""

    def __init__(self) -> None:
        self._shown = Activity.STARTING
        self._ticked_at: float | None = None

    def tick(self, activity: Activity, since: float, now: float) -> list[tuple[Activity, float]]:
        """The activities to report, each with its length so far in seconds."""
        found = []
        before, self._ticked_at = self._ticked_at, now
        if before is not None and now - before >= STOOD_STILL_S:
            self._shown = Activity.STOPPED
            found.append((Activity.STOPPED, now - before))
        if activity is not self._shown:
            self._shown = activity
            found.append((activity, now - since))
        return found
