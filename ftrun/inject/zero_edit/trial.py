"""``ftrun check`` in a worker: dies once, stops after some steps, and leaves a report of itself.

The plan and the reports are files in a directory that an environment variable names. Not here: the
run, and how the reports are judged (check/).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from ftrun.inject.zero_edit.frames import read_values, script_frames, spot_of
from ftrun.inject.zero_edit.histories import carries
from ftrun.inject.zero_edit.survey import survey

if TYPE_CHECKING:
    from ftrun.training.context import WorkerContext
    from ftrun.training.manager import Manager

VARIABLE = "FTRUN_CHECK"
PLAN, REFUSED = "plan.json", "refused.json"
TENSORS_MAX = 1_000
NAMES_MAX = 64
TOGETHER_STEPS = 10


@dataclass(slots=True)
class Trial:
    """One worker's part in a trial.

    ``kill_at``: the step at which ``victim`` dies in its first life. ``steps``: from there on the
    trial ends when all replicas have contributed to ``TOGETHER_STEPS`` in a row. Of several workers
    of a replica the first one ``reports``, and the last one ``dies``.
    """

    directory: Path
    replica_id: str
    starts: int
    victim: str
    kill_at: int
    steps: int
    replicas: int
    reports: bool = True
    dies: bool = True
    joined: str = ""
    set_to: list[str] = field(default_factory=list)
    _complete_for: int = 0
    _first: dict[tuple[str, str], Any] = field(default_factory=dict)
    _grows: dict[tuple[str, str], str] = field(default_factory=dict)

    def committed(self, manager: Manager, facts: Callable[[], dict[str, Any]]) -> None:
        """A step is committed: the victim dies here, and all end at the trial's last step.

        All replicas count the same steps, so they end at the same one.
        """
        step = manager.current_step()
        if self.reports and step == self.kill_at:
            _write(self._survey_of_death, survey(script_frames()))
        is_victim = self.replica_id == self.victim and self.dies
        if is_victim and not self.starts and step == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self._complete_for += 1
        if manager.num_participants() < self.replicas:
            self._complete_for = 0
        if step >= self.steps and self._complete_for >= TOGETHER_STEPS:
            self.write(facts(), survey(script_frames()))
            self._leave()

    def look(self) -> None:
        """The script draws a batch: which of its containers have changed since the first one?"""
        for frame in script_frames():
            function = spot_of(frame).name
            containers: dict[str, Any] = {}
            read_values(frame, containers)
            for path, value in containers.items():
                mark = _mark(value)
                if mark is None or len(self._first) > NAMES_MAX:
                    continue
                if self._first.setdefault((function, path), mark) != mark:
                    file = function.partition(":")[0]
                    words = f"{path} ({type(value).__name__}, {file})"
                    self._grows[function, path] = words

    def _left(self, carried: Collection[tuple[str, str]]) -> list[str]:
        return [words for key, words in self._grows.items() if key not in carried]

    @property
    def _survey_of_death(self) -> Path:
        return self.directory / f"survey-{self.replica_id}.json"

    def write(self, facts: dict[str, Any], now: dict[str, Any] | None = None) -> None:
        """Leave the report. ``now``: all values that the script reaches; None: it has ended."""
        changing, carried = facts.pop("changing"), facts.pop("tensors")
        if not self.reports:
            return
        _write(
            self.directory / f"report-{self.replica_id}.json",
            {
                "starts": self.starts,
                "joined": self.joined,
                "set": self.set_to,
                "changes": sorted({*changing, *self._left(carried)}),
                "then": _read(self._survey_of_death) if now is not None else {},
                "now": now or {},
                **facts,
            },
        )

    def _leave(self) -> NoReturn:
        """End this process where the script stands, whatever it would still do."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def trial_of(here: WorkerContext) -> Trial | None:
    """The trial that this worker is a part of; None: this run is no trial."""
    named = os.environ.get(VARIABLE)
    if not named:
        return None
    plan = json.loads((Path(named) / PLAN).read_text())
    return Trial(
        Path(named),
        here.replica_id,
        here.restarts,
        plan["victim"],
        plan["kill_at"],
        plan["steps"],
        here.replicas,
        here.group_rank == 0,
        here.group_rank == here.workers_per_replica - 1,
    )


def note_refusal(form: str, text: str) -> None:
    """The script is not carried; the trial's command reads why."""
    named = os.environ.get(VARIABLE)
    if named:
        _write(Path(named) / REFUSED, {"form": form, "reason": text})


def _write(path: Path, facts: dict[str, Any]) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(facts, default=str))
    os.replace(draft, path)


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found


def _mark(value: Any) -> Any:
    """A value that changes with a container that does not heal; None: the container heals."""
    inner = list(value.values() if isinstance(value, dict) else value)[:TENSORS_MAX]
    if any(isinstance(x, torch.Tensor) for x in inner):
        tensors = [x for x in inner if isinstance(x, torch.Tensor) and not x.is_inference()]
        versions = [x._version for x in tensors]
        return type(value).__name__, len(value), versions
    return None if carries(value) else (type(value).__name__, len(value))
