"""A worker's report of itself: its step, activity, commits and the script's scalars.

Not here: when it is sent (engine.py), and its display (status/).
"""

from __future__ import annotations

from ftrun.core.activity import Activity
from ftrun.core.messages import Progress
from ftrun.core.worker.machine import StepMachine
from ftrun.errors import UserError

SCALARS_MAX = 64
POSITION_CHARS_MAX = 1024


class WorkerProgress:
    """Makes the Progress messages of one worker.

    ``batches``: the sum of contributors over all committed steps. ``position``: where the script
    stands, for a replica that is to come there; of at most ``POSITION_CHARS_MAX`` characters.
    """

    def __init__(self, machine: StepMachine) -> None:
        self.batches = 0
        self.position = ""
        self._machine = machine
        self._scalars: dict[str, float] = {}  # replaced, never changed: other threads read it

    def log(self, scalars: dict[str, float]) -> None:
        """Add scalars, or replace those of the same names.

        Raises:
            UserError: more than 64 names.
        """
        self._scalars = self._scalars | {name: float(value) for name, value in scalars.items()}
        if len(self._scalars) > SCALARS_MAX:
            raise UserError(f"log() keeps {SCALARS_MAX} scalars at most")

    def show(self, **scalars: float) -> None:
        """Add ftrun's own scalars, where the script's leave room. From any thread."""
        merged = self._scalars | {name: float(value) for name, value in scalars.items()}
        if len(merged) <= SCALARS_MAX:
            self._scalars = merged

    def make(self, activity: Activity | None = None, since_s: float = 0.0) -> Progress:
        """The worker's progress now.

        ``activity``: None means the step machine's; ``since_s``: how long it has lasted.
        """
        if activity is None:
            activity, since_s = self._machine.report_activity()
        scalars = tuple(self._scalars.items())
        shown, pace = self._machine.shown, self._machine.pace
        pause = shown.pause
        times = self._machine.step_times
        return Progress(
            self._machine.position,
            self.batches,
            activity,
            scalars,
            since_s,
            "" if pause is None else pause.name,
            shown.beats,
            self.position,
            times.steps,
            times.median,
            times.longest,
            pace.step_s,
            pace.own_s,
            shown.heal if activity is Activity.HEALING else None,
        )
