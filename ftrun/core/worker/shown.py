"""The activity of one worker's main thread as it was last reported, and when to report a new one.

Not here: what the activity is (machine.py), what follows from it (core/activity.py says who reads).
"""

from __future__ import annotations

from ftrun.core.activity import STOOD_STILL_S, Activity, Pause


class ShownActivity:
    """Reports changes only; a gap between two ticks is reported as a time in which nothing ran.

    ``pause``, ``beats``: what the script has announced at the last tick (events.py).
    """

    def __init__(self) -> None:
        self.pause: Pause | None = None
        self.beats = 0
        self._beats_shown = 0
        self._pause_shown: Pause | None = None
        self._shown: Activity | None = Activity.STARTING
        self._ticked_at: float | None = None

    def tick(self, activity: Activity, since: float, now: float) -> list[tuple[Activity, float]]:
        """The activities to report, each with its length so far in seconds."""
        found = []
        before, self._ticked_at = self._ticked_at, now
        if before is not None and now - before >= STOOD_STILL_S:
            self._shown = Activity.STOPPED
            found.append((Activity.STOPPED, now - before))
        is_new = activity is not self._shown or self.pause != self._pause_shown
        if is_new or self.beats != self._beats_shown:
            self.reported(activity)
            found.append((activity, now - since))
        return found

    def reported(self, activity: Activity) -> None:
        """A report with this activity goes out, perhaps between two ticks, as a step ends."""
        self._shown, self._pause_shown, self._beats_shown = activity, self.pause, self.beats

    def forget(self) -> None:
        """The next tick reports the activity in any case."""
        self._shown = None
