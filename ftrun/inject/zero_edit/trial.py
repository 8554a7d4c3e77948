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
import mmap
import operator
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from ftrun.base.files import write_whole
from ftrun.checkpoint.format import leaves_of
from ftrun.inject.zero_edit.allowed import wait_to_begin
from ftrun.inject.zero_edit.frames import module_frames, script_frames
from ftrun.inject.zero_edit.randomness import States, seed_with
from ftrun.inject.zero_edit.values.generators import state_of
from ftrun.inject.zero_edit.values.survey import survey
from ftrun.inject.zero_edit.values.units import hashed

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.values.walk import Walk
    from ftrun.training.context import WorkerContext
    from ftrun.training.manager import Manager

VARIABLE = "FTRUN_CHECK"
PLAN, REFUSED = "plan.json", "refused.json"
STARTING, TRAINING, WRITING, EVALUATION = "starting", "training", "writing", "evaluation"
BESIDE, OUTSIDE = "modules beside the model", "tensors outside modules"
TENSORS_MAX = 1_000
TOGETHER_STEPS = 10
DEEP = 4
STEPS_MAX, FILES_MAX = 10_000, 10_000
UNEVEN, LEAP_S, SLOW = "uneven", 2.0, 64
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
    _here: str = field(default_factory=os.getcwd)
    _step: int = 0
    _has_begun: bool = False
    _complete_for: int = 0
    _inputs: dict[int, list[str]] = field(default_factory=dict)
    _files: set[str] = field(default_factory=set)  # names of those written since the first step
    _sizes: dict[str, dict[int, int]] = field(default_factory=dict)  # name: {step: size after it}
    _saves: list[int] = field(default_factory=list)
    _evaluations: list[int] = field(default_factory=list)
    _draws: set[int] = field(default_factory=set)
    _drawn: bytes = b""
    _by_workers: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, 1))  # 1: they have drawn
    _own: list[tuple[Any, bytes]] | None = None  # the script's generators, and their states
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
        """Record the models' inputs and the files' sizes from now on."""
        for module in modules:
            module.register_forward_pre_hook(_Hook(self._note_inputs), with_kwargs=True)
            self._trained.update(map(id, module.parameters()))
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
        """The script has made a loader: record whether its workers draw random numbers."""
        if loader.num_workers:
            loader.collate_fn = _Collating(loader.collate_fn, self._by_workers)

    def begins(self, step: int) -> None:
        """A step has begun, after ``step`` committed ones."""
        if self._own is None:
            self._own = [(x, state_of(x)) for x in _generators()]
        self._step = step
        if not self._has_begun:  # drop a newcomer's inputs from skipped loops
            self._inputs.clear()
        self._has_begun = True
        self._inputs.pop(step, None)  # of an attempt that was not committed
        self._note_draws()
        with open(self.directory / f"steps-{self.name}", "a") as steps:
            steps.write(f"{time.time()} {step}\n")  # the clock of files' times
        self.asks = self.asks and wait_to_begin(self.directory, step)
        self._dies_in(TRAINING)

    def goes_through_again(self) -> None:
        """This replica repeats a step of its peers: drop the inputs recorded for it."""
        self._inputs.pop(self._step, None)

    def loader_begins(self) -> None:
        """A loader yields its first batch. It has drawn a base seed, which does not count as a draw
        of the script: no batch depends on it if the sampler has a seed."""
        self._drawn = b""

    def evaluates(self) -> None:
        self._happens(EVALUATION, self._evaluations)

    def _happens(self, phase: str, seen: list[int]) -> None:
        if self._step not in seen[-1:] and len(seen) < STEPS_MAX:
            seen.append(self._step)
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
            self._inputs.setdefault(self._step, []).append(hashed((args, kwargs), DEEP))

    def committed(
        self, step: int, manager: Manager, facts: Callable[[], dict[str, Any]], walk: Walk
    ) -> None:
        """``step`` steps are committed. Writes the report and exits after the trial's last one."""
        self._step = step
        self._note_sizes()
        self._note_draws()
        self._complete_for += 1
        if self.together and manager.num_participants() < self.together:
            self._complete_for = 0
        if self._step >= self.steps and self._complete_for >= min(TOGETHER_STEPS, self.together):
            frames = script_frames()
            every = [*frames, *module_frames(frames)]
            like = walk if self.is_of_group else None
            self.write(facts(), survey(every, like, self._here))
            if self.is_of_group:
                manager.linger()  # the others may still need a call of this worker's
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)  # at once, in the middle of the script

    def _note_draws(self) -> None:
        """Record whether the script has drawn random numbers since the last call."""
        drawn = _random_numbers()
        if self._drawn and drawn != self._drawn and len(self._draws) < STEPS_MAX:
            self._draws.add(self._step)
        self._drawn = drawn

    def has_joined(self, place: str, set_to: list[str], lacking: list[str]) -> None:
        """Report that this replica has joined its peers."""
        if self.reports:
            name = f"join-{self.name}-{self.starts}.json"
            _write(self.directory / name, {"at": place, "set": set_to, "lacking": lacking})

    # ------------------------------------------------------------ the report

    def write(self, facts: dict[str, Any], now: dict[str, Any] | None = None) -> None:
        """Write the report. ``now``: all values that the script reaches; None: it has ended."""
        if not self.reports:
            return
        if self._by_workers[0] or any(state_of(x) != state for x, state in self._own or ()):
            self._draws.add(self._step)
        _write(
            self.directory / f"report-{self.name}.json",
            {
                "starts": self.starts,
                "step": self._step,
                "inputs": {step: " ".join(found) for step, found in self._inputs.items()},
                "files": sorted(self._files),
                "sizes": self._sizes,
                "saves": self._saves,
                "evaluations": self._evaluations,
                "draws": sorted(self._draws),
                "now": now or {},
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
    if plan.get("clock") == UNEVEN:
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
    )


def _make_uneven() -> None:
    """Make Python's clocks leap, and run slowly in between. Values that a script takes from a clock
    then differ from those of a run with an even clock, even if all steps take equally long."""
    for name in ("time", "monotonic", "perf_counter"):
        plain, plain_ns = getattr(time, name), getattr(time, f"{name}_ns")

        def seconds(plain: Any = plain) -> float:
            whole, rest = divmod(plain(), LEAP_S)
            return float(whole * LEAP_S + rest / SLOW)

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


def digests_of(
    trained: Sequence[nn.Module],
    beside: Mapping[str, nn.Module],
    optimizers: Sequence[Optimizer],
    units: Mapping[str, Mapping[str, Any]],
) -> dict[str, dict[str, str]]:
    """A digest of each tensor except the models' parameters, by kind and name.

    For a sharded tensor it is a digest of this worker's part. At most ``TENSORS_MAX`` a kind.
    """
    buffers = {name: x for module in trained for name, x in module.named_buffers()}
    modules = {
        f"{name}.{inner}": x
        for name, module in beside.items()
        for inner, x in module.named_parameters()
    }
    for name, module in beside.items():
        buffers.update((f"{name}.{inner}", x) for inner, x in module.named_buffers())
    moments = {
        f"{type(optimizer).__name__} {number}{leaf.spec.path}": leaf.value
        for optimizer in optimizers
        for number, of in enumerate(optimizer.state.values())
        for leaf in leaves_of(of)
        if isinstance(leaf.value, torch.Tensor)
    }
    outside = {
        f"{name.partition(' ')[2]}{leaf.spec.path}": leaf.value
        for name, unit in units.items()
        for leaf in leaves_of(unit.get("value"))
        if isinstance(leaf.value, torch.Tensor)
    }
    every = ("buffers", buffers), (BESIDE, modules), ("optimizers", moments), (OUTSIDE, outside)
    return {
        kind: {name: hashed(x, 0, whole=True) for name, x in [*tensors.items()][:TENSORS_MAX]}
        for kind, tensors in every
    }


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


class _Collating:
    """Wraps a loader's ``collate_fn``, which its workers call after they have read samples."""

    def __init__(self, plain: Callable[[Any], Any], drawn: mmap.mmap) -> None:
        self._plain, self._drawn, self._before = plain, drawn, b""

    def __call__(self, samples: Any) -> Any:
        now = _random_numbers()
        if self._before not in (b"", now):
            self._drawn[0] = 1
        self._before = now
        return self._plain(samples)

    def __reduce__(self) -> Any:
        """Pickles as the plain function, for workers that are not forked."""
        return operator.itemgetter(0), ((self._plain,),)


def _generators() -> list[Any]:
    """All Python and numpy random generators, except those of Python's library."""
    library: list[Any] = [random.getstate, tempfile]
    known = library[0].__self__, getattr(library[1]._name_sequence, "_rng", None)
    kinds = random.Random, getattr(sys.modules.get("numpy.random"), "Generator", random.Random)
    return [x for x in gc.get_objects() if type(x) in kinds and not any(x is y for y in known)]


def _random_numbers() -> bytes:
    """A digest of the states of the global generators."""
    return hashlib.blake2b(b"".join(States.now().encode()), digest_size=8).digest()


def _is_in(path: str | os.PathLike[str], here: str) -> bool:
    whole = os.path.abspath(os.fspath(path))
    return whole.startswith(f"{here}{os.sep}") and "__pycache__" not in whole


def _write(path: Path, facts: dict[str, Any]) -> None:
    write_whole(path, json.dumps(facts, default=str))
