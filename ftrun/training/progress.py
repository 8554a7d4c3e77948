"""A worker's report of itself: its step, activity, commits and the script's scalars.

Not here: when it is sent (engine.py), and its display (status/).
"""

from __future__ import annotations

from collections.abc import Callable

from ftrun.base import clock
from ftrun.base.errors import UserError
from ftrun.core.activity import Activity
from ftrun.core.messages import Progress
from ftrun.core.worker.machine import StepMachine
from ftrun.core.worker.marks import Marks

SCALARS_MAX = 64
POSITION_CHARS_MAX = 1024


class WorkerProgress:
    """Makes the Progress messages of one worker.

    ``batches``: the sum of contributors over all committed steps. ``position``: returns the
    script's place, in any thread; ``POSITION_CHARS_MAX`` characters of it are sent.
    """

    def __init__(self, machine: StepMachine) -> None:
        self.batches = 0
        self.position: Callable[[], str] = str
        self.empty: Callable[[], int] = int
        self._marks = Marks()
        self._machine = machine
        self._scalars: dict[str, float] = {}  # replaced, never mutated: other threads read it

    def log(self, scalars: dict[str, float]) -> None:
        """Add scalars, or replace scalars of the same names.

        Raises:
            UserError: more than 64 names.
        """
        self._scalars = self._scalars | {name: float(value) for name, value in scalars.items()}
        if len(self._scalars) > SCALARS_MAX:
            raise UserError(f"log() keeps {SCALARS_MAX} scalars at most")

    def show(self, **scalars: float) -> None:
        """Add ftrun's own scalars, if the script's leave room. From any thread."""
        merged = self._scalars | {name: float(value) for name, value in scalars.items()}
        if len(merged) <= SCALARS_MAX:
            self._scalars = merged

    def wants_mark(self) -> bool:
        """Whether the step that was just committed may be compared. Call it once per step."""
        return self._marks.wants(self._machine.heal.state.step, clock.now())

    def mark(
        self, settings: Callable[[], str], parameters: str, position: Callable[[], str]
    ) -> None:
        """Publish what must be equal on all replicas after the step that was just committed.

        Args:
            settings: returns the text of the optimizers' settings, in any thread.
            parameters: a digest of the parameters; "" if none was made.
            position: returns the script's place, in any thread.
        """
        self._marks.note(self._machine.state, settings, parameters, position)

    @property
    def agreed_step(self) -> int:
        """The last step after which all other replicas had the same parameters; 0: none is
        known."""
        state = self._machine.agreed
        return state.step if state is not None and state in self._marks.compared else 0

    def make(self, activity: Activity | None = None, since_s: float = 0.0) -> Progress:
        """The worker's current progress.

        ``activity``: None means the step machine's; ``since_s``: how long it has lasted.
        """
        if activity is None:
            activity, since_s = self._machine.report_activity()
        scalars = tuple(self._scalars.items())
        shown, pace = self._machine.shown, self._machine.pace
        pause = shown.pause
        collective = shown.collective if activity is Activity.COLLECTIVE else None
        position = self.position() if collective is None else collective.name
        times = self._machine.step_times
        return Progress(
            self._machine.position,
            self.batches,
            activity,
            scalars,
            since_s,
            "" if pause is None else pause.name,
            shown.beats,
            position[:POSITION_CHARS_MAX],
            times.steps,
            times.median,
            times.longest,
            pace.step_s,
            pace.own_s,
            shown.heal if activity is Activity.HEALING else None,
            self._marks.shown(),
            empty=self.empty(),
        )
