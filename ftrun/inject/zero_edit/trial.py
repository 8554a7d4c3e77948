"""``ftrun check`` in a worker: dies where the plan says, stops after some steps, writes a report.

The plan and the reports are files in a directory that an environment variable names. The trial
seeds all random generators, so that a script without a seed does the same in each run.

Not here: the runs, and how the reports are compared (tools/check/).
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ftrun.base.files import write_whole
from ftrun.inject.zero_edit.allowed import wait_to_begin
from ftrun.inject.zero_edit.digests import buffers_of, marked, marks_of
from ftrun.inject.zero_edit.frames import NOWHERE, module_frames, script_frames
from ftrun.inject.zero_edit.randomness import States, seed_with
from ftrun.inject.zero_edit.values.generators import global_ones
from ftrun.inject.zero_edit.values.survey import carried_by, survey

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.values.sources import Taken
    from ftrun.inject.zero_edit.values.walk import Walk
    from ftrun.training.context import WorkerContext
    from ftrun.training.manager import Manager

VARIABLE = "FTRUN_CHECK"
PLAN, REFUSED = "plan.json", "refused.json"
STARTING, TRAINING, WRITING, EVALUATION = "starting", "training", "writing", "evaluation"
TOGETHER_STEPS = 10
STEPS_MAX, FILES_MAX = 10_000, 10_000
OTHER, OTHER_BY, LEAP_S, SLOW = "other", 7919, 2.0, 64
_EVEN = ("ftrun", "threading", "asyncio", "selectors", "queue", "subprocess", "multiprocessing")
"""Modules that keep an even clock, because they wait by it."""
_NAMES = frozenset({"os.rename", "os.link", "os.symlink"})
"""The audit events of calls that give a file another name."""
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@dataclass(slots=True)
class Trial:
    """One worker's part in a trial.

    Attributes:
        directory: of the plan and the reports.
        name: the replica_id; with ``is_of_group``, the worker's number among all workers.
        starts: how often this replica was restarted.
        kills: the deaths still to come, by number: the phase and the step.
        steps: the trial ends after this number of steps, but not before ``together`` replicas have
            trained together in ``min(TOGETHER_STEPS, together)`` steps in a row.
        reports: this worker writes the report: the first worker of a replica.
        dies: this worker dies: the last worker of a replica.
        is_of_group: a single worker is replaced in its replica, so each one reports and may die.
        asks: it asks before each step whether the step may begin (allowed.py).
        is_other: this undisturbed run is to show what cannot be compared. Clocks are uneven, and
            the random numbers that a newcomer does not get back are others.
        skips: the steps after which a worker was killed while it wrote, so that its successor did
            not draw what the script draws from there to its next batch, as in an evaluation.
    """

    directory: Path
    name: str
    starts: int
    kills: dict[int, tuple[str, int]]
    steps: int
    together: int = 0
    reports: bool = True
    dies: bool = True
    is_of_group: bool = False
    asks: bool = False
    is_other: bool = False
    skips: set[int] = field(default_factory=set)
    _turns: list[int] = field(default_factory=list)  # steps with a place of their own
    _here: str = field(default_factory=os.getcwd)
    _step: int = 0
    _has_begun: bool = False
    _complete_for: int = 0
    _inputs: dict[int, list[str]] = field(default_factory=dict)
    _losses: dict[int, list[str]] = field(default_factory=dict)
    _batches: dict[str, dict[int, list[list[str]]]] = field(default_factory=dict)
    _trains: set[str] = field(default_factory=set)  # loaders of the training
    _files: set[str] = field(default_factory=set)  # names of those written since the first step
    _sizes: dict[str, dict[int, int]] = field(default_factory=dict)  # name: {step: size after it}
    _saves: list[int] = field(default_factory=list)
    _evaluations: list[int] = field(default_factory=list)
    _opened: Any = None  # the loaders' iterators (loaders.py)
    _buffers: dict[str, str] = field(default_factory=dict)  # of the models, at the first step
    _written: bytes = b""  # the random states as a file was written after the step
    _drawn: set[int] = field(default_factory=set)  # steps after which numbers were drawn from there
    _has_others: bool = False
    _first: dict[str, Any] = field(default_factory=dict)  # the script's values at the first step
    _trained: set[int] = field(default_factory=set)  # ids of parameters

    # ------------------------------------------------------------ what the script does

    def __post_init__(self) -> None:
        """Record which files the script opens for writing, from its start."""

        def note(event: str, args: tuple[Any, ...]) -> None:
            is_write = event in _NAMES
            if event == "open":
                is_write = isinstance(args[2], int) and bool(args[2] & _WRITE_FLAGS)
            if is_write and threading.current_thread() is threading.main_thread():
                path = args[1] if event in _NAMES else args[0]
                if isinstance(path, (str, os.PathLike)) and _is_in(path, self._here):
                    name = os.path.relpath(path, self._here)
                    if len(self._sizes) < FILES_MAX:
                        self._sizes.setdefault(name, {})
                    if self._trained:
                        self._files |= {name} & self._sizes.keys()
                        self._happens(WRITING, self._saves)

        sys.addaudithook(note)

    def watch(self, modules: Sequence[nn.Module]) -> None:
        """Record the models' inputs, the losses and the files' sizes from now on."""
        for module in modules:
            module.register_forward_pre_hook(_Hook(self._note_inputs), with_kwargs=True)
            self._trained.update(map(id, module.parameters()))
        self._buffers = {name: marked(x) for name, x in buffers_of(modules).items()}
        self._note_sizes()
        self._dies_in(STARTING)

    def _note_sizes(self) -> None:
        """Record the sizes after a step: a dying worker loses what it has written since."""
        for name, sizes in self._sizes.items():
            with contextlib.suppress(OSError):
                size = os.stat(os.path.join(self._here, name)).st_size
                if size != next(reversed(sizes.values()), 0):
                    sizes[self._step] = size

    def watch_loader(self, loader: Any) -> None:
        """The script has made a loader: a newcomer's workers begin with other random numbers."""
        if self.is_other and loader.num_workers:
            loader.worker_init_fn = _Otherwise(loader.worker_init_fn)

    def watch_batches(self, opened: Any) -> None:
        """Record each batch from now on, after what looks at batches already."""
        looks, begins, draws = opened.on_batch, opened.on_begin, opened.before_draw
        self._opened = opened

        def on_begin(iterator: Any) -> Any:
            self.look_at_draws()  # a newcomer draws again what this iterator draws
            return begins(iterator)

        def before_draw(iterator: Any) -> None:
            if iterator.cursor.drawn:
                self.look_at_draws()
            draws(iterator)

        def note(iterator: Any, batch: Any) -> Any:
            batch = batch if looks is None else looks(iterator, batch)
            if not iterator.is_sampler and iterator.cursor.drawn < STEPS_MAX:
                of = self._batches.setdefault(_named(iterator), {})
                of.setdefault(iterator.cursor.drawn, []).append(marks_of(batch))
            return batch

        opened.on_batch, opened.on_begin, opened.before_draw = note, on_begin, before_draw

    def look_at_draws(self) -> None:
        """Record whether the script has drawn random numbers since it wrote a file."""
        if self._written and _random_numbers() != self._written:
            self._drawn.add(self._step)

    def begins(self, step: int, *, turn: bool = True) -> None:
        """A step has begun, after ``step`` committed ones; ``turn``: and a turn of the loop."""
        if self.is_other and not self._has_others:
            self._has_others = True
            carried = {} if self._opened is None else self._opened.own()
            _draw_from(_generators_but(carried.values()))
        self._step, self._written = step, b""
        if not self._has_begun:  # drop what a newcomer got in skipped loops
            self._first = {} if self.is_of_group else self._survey()
            self._inputs.clear()
            self._losses.clear()
            if step:  # the first batch of all is drawn before
                self._batches.clear()
        self._has_begun = True
        self._turns += [step] * (turn and len(self._turns) < STEPS_MAX)
        self._drop(step)  # of an attempt that was not committed
        with open(self.directory / f"steps-{self.name}", "a") as steps:
            steps.write(f"{time.time()} {step}\n")  # the clock of files' times
        self.asks = self.asks and wait_to_begin(self.directory, step)
        self._dies_in(TRAINING)

    def goes_through_again(self) -> None:
        """This replica repeats a step of its peers: drop what was recorded of it."""
        self._drop(self._step)

    def _drop(self, step: int) -> None:
        self._inputs.pop(step, None)
        self._losses.pop(step, None)

    def evaluates(self) -> None:
        self._happens(EVALUATION, self._evaluations)

    def _happens(self, phase: str, seen: list[int]) -> None:
        if self._step not in seen[-1:] and len(seen) < STEPS_MAX:
            seen.append(self._step)
        if phase == WRITING and self._step in self.skips:
            self.skips.remove(self._step)
            _draw_from(global_ones().values())
        if phase == WRITING and not self._written:
            self._written = _random_numbers()
        self._dies_in(phase)

    def _dies_in(self, phase: str) -> None:
        for number, (of, step) in [*self.kills.items()] if self.dies else ():
            if of == phase and step == self._step:
                (self.directory / f"killed-{number}").touch()
                os.kill(os.getpid(), signal.SIGKILL)

    def _note_inputs(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        # Not a teacher's inputs: only a pass with gradients may begin a step.
        is_trained = module.training and torch.is_grad_enabled()
        if is_trained and len(self._inputs) < STEPS_MAX:
            self._inputs.setdefault(self._step, []).extend(marks_of((args, kwargs)))

    def differentiates(self, plain: Callable[..., Any], tensors: Any, *args: Any, **of: Any) -> Any:
        """The script calls ``backward()`` of these tensors: what it has computed of a batch, with
        the labels and the noise that no model was given."""
        if self._trained and len(self._losses) < STEPS_MAX:
            self._losses.setdefault(self._step, []).extend(marks_of(tensors))
        return plain(tensors, *args, **of)

    def committed(
        self, step: int, manager: Manager, facts: Callable[[], dict[str, Any]], walk: Walk
    ) -> None:
        """``step`` steps are committed. Writes the report and exits after the trial's last one."""
        self._step = step
        self._note_sizes()
        if self._opened is not None:
            self._trains.update(_named(x) for x in self._opened.all() if x.is_training)
        self._complete_for += 1
        if self.together and manager.num_participants() < self.together:
            self._complete_for = 0
        if self._step >= self.steps and self._complete_for >= min(TOGETHER_STEPS, self.together):
            now = self._survey(walk if self.is_of_group else None)
            counted = [x for x, y in now.items() if self._first.get(x, self) != y]
            of_walk = carried_by(walk, script_frames()) if counted else ()
            self.write(facts(), now, [x for x in counted if x in of_walk or _list_of(x) in of_walk])
            if self.is_of_group:
                manager.linger()  # the others may still need a call of this worker's
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)  # at once, in the middle of the script

    def _survey(self, like: Walk | None = None) -> dict[str, Any]:
        """All plain values that the script reaches."""
        frames = script_frames()
        return survey([*frames, *module_frames(frames)], like, self._here)

    def has_joined(self, place: str, taken: Taken) -> None:
        """Report that this replica has joined its peers."""
        if self.reports:
            name = f"join-{self.name}-{self.starts}.json"
            words = {"set": taken.changed, "lacking": taken.lacking, "continued": taken.continued}
            _write(self.directory / name, {"at": place, **words})

    # ------------------------------------------------------------ the report

    def write(
        self,
        facts: dict[str, Any],
        now: dict[str, Any] | None = None,
        counted: Sequence[str] = (),
    ) -> None:
        """Write the report. ``now``: all values that the script reaches; None: it has ended.

        ``counted``: those that the script has changed since its first step, and that are carried.
        """
        if not self.reports:
            return
        _write(
            self.directory / f"report-{self.name}.json",
            {
                "starts": self.starts,
                "step": self._step,
                "inputs": self._inputs,
                "losses": self._losses,
                "batches": {x: of for x, of in self._batches.items() if x in self._trains},
                "files": sorted(self._files),
                "sizes": self._sizes,
                "saves": self._saves,
                "turns": self._turns,
                "evaluations": self._evaluations,
                "drawn": sorted(self._drawn),
                "now": now or {},
                "counted": counted,
                "still": [
                    x for x, y in self._buffers.items() if y == facts["kept"]["buffers"].get(x)
                ],
                **facts,
            },
        )


def trial_of(here: WorkerContext) -> Trial | None:
    """This worker's part in the trial; None: this run is no trial."""
    named = os.environ.get(VARIABLE)
    if not named:
        return None
    directory = Path(named)
    plan = json.loads((directory / PLAN).read_text())
    number = int(here.replica_id) * here.workers_per_replica + here.group_rank
    is_of_group = bool(plan["is_group"])
    seed_with(number)
    is_other = plan.get("kind") == OTHER
    if is_other:
        _make_uneven()
    name = str(number) if is_of_group else here.replica_id
    kills = {
        index: (kill["phase"], kill["step"])
        for index, kill in enumerate(plan["kills"])
        if kill["victim"] == name and not (directory / f"killed-{index}").exists()
    }
    return Trial(
        directory,
        name,
        here.restarts,
        kills,
        plan["steps"],
        plan["together"],
        is_of_group or here.group_rank == 0,
        is_of_group or here.group_rank == here.workers_per_replica - 1,
        is_of_group,
        bool(plan.get("asks")) and number == 0,
        is_other and not is_of_group,  # a worker that is replaced has all of its predecessor's
        {step for victim, step in plan["skips"] if victim == name},
    )


def _make_uneven() -> None:
    """Make Python's clocks leap, and run slowly in between. Values that a script takes from a clock
    then differ from those of a run with an even clock, even if all steps take equally long. The
    leaps are too far, so that whole seconds differ as well."""
    for name in ("time", "monotonic", "perf_counter"):
        plain, plain_ns = getattr(time, name), getattr(time, f"{name}_ns")

        def seconds(plain: Any = plain, since: float = plain() // LEAP_S) -> float:
            leaps, rest = divmod(plain(), LEAP_S)
            return float((leaps + (leaps - since) / 2) * LEAP_S + rest / SLOW)

        def nanoseconds(seconds: Any = seconds) -> int:
            return int(seconds() * 1e9)

        for before, now in ((plain, seconds), (plain_ns, nanoseconds)):
            for module in [*sys.modules.values()]:
                if not getattr(module, "__name__", "").startswith(_EVEN):
                    _replace(module, before, now)


def _replace(module: Any, before: Any, now: Any) -> None:
    """Replace a function under every name in a module: many modules import it by name."""
    for name, value in [*getattr(module, "__dict__", {}).items()]:
        if value is before:
            setattr(module, name, now)


def note_refusal(form: str, text: str) -> None:
    """Write why the script is refused, for the command."""
    named = os.environ.get(VARIABLE)
    if named:
        _write(Path(named) / REFUSED, {"form": form, "reason": text})


class _Hook:
    """A hook of a model. Copied or pickled with the model, it becomes one that does nothing."""

    def __init__(self, note: Callable[..., None]) -> None:
        self._note = note

    def __call__(self, *given: Any) -> None:
        self._note(*given)

    def __reduce__(self) -> Any:
        return _Hook, (_nothing,)


def _nothing(*_: Any) -> None:
    """Note nothing."""


class _Otherwise:
    """Wraps a loader's ``worker_init_fn``: the worker draws other random numbers."""

    def __init__(self, plain: Callable[[int], Any] | None) -> None:
        self._plain = plain

    def __call__(self, worker: int) -> None:
        if self._plain is not None:
            self._plain(worker)
        seed_with(torch.initial_seed() + OTHER_BY)


def _generators_but(carried: Collection[Any]) -> list[Any]:
    """Python's and numpy's random generators, without those that a newcomer gets back and those of
    Python's library."""
    library: list[Any] = [random.getstate, tempfile]
    known = [library[0].__self__, getattr(library[1]._name_sequence, "_rng", None), *carried]
    kinds = random.Random, getattr(sys.modules.get("numpy.random"), "Generator", random.Random)
    return [x for x in gc.get_objects() if type(x) in kinds and not any(x is y for y in known)]


def _draw_from(generators: Iterable[Any]) -> None:
    """Draw a number from each of torch's, Python's and numpy's generators."""
    for generator in generators:
        if isinstance(generator, torch.Generator):
            torch.rand(1, generator=generator, device=generator.device)
        else:
            getattr(generator, "random_sample", generator.random)()


def _random_numbers() -> bytes:
    """A digest of the states of the global generators."""
    return hashlib.blake2b(b"".join(States.now().encode()), digest_size=8).digest()


def _named(iterator: Any) -> str:
    """A loader, by the line that made it: a newcomer may begin to iterate at another one."""
    at, number = iterator.made
    made = f"the loader made at {at}" if at != NOWHERE else f"the loader at {iterator.spot}"
    return made + f" ({number + 1})" * bool(number)


def _list_of(path: str) -> str:
    """The list or dict of an item."""
    return path.rpartition("[")[0]


def _is_in(path: str | os.PathLike[str], here: str) -> bool:
    whole = os.path.abspath(os.fspath(path))
    return whole.startswith(f"{here}{os.sep}") and "__pycache__" not in whole


def _write(path: Path, facts: dict[str, Any]) -> None:
    write_whole(path, json.dumps(facts, default=str))
