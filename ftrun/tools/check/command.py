"""Runs a script undisturbed and with deaths, each as an ordinary job, and prints a verdict.

In the first run no process dies. In the second, replicas die in training and while a file is
written, and their peers wait for the newcomers. This run must end like the first one. In the third
run replicas die in an evaluation.

There are variants. With several workers per replica, one death is tried, and the peers train on.
With one replica, or with memory snapshots, workers die one at a time, and each is replaced in its
group. With several nodes, which are all launchers on this machine, one node is lost in a separate
run.

Not here: the times of the deaths (plan.py), the verdict about the runs (verdict.py).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ftrun.agent.team.meeting import free_port
from ftrun.base.errors import naming
from ftrun.tools.check.comparison import may_vary
from ftrun.tools.check.launching import Launchers
from ftrun.tools.check.losing import Losing
from ftrun.tools.check.outcome import REFUSED, run_of
from ftrun.tools.check.place import Due, Place, compare, due_after
from ftrun.tools.check.plan import WRITING, Kill, plan_of
from ftrun.tools.check.runs import Run, Trial
from ftrun.tools.check.verdict import lines_of

VARIABLE, PLAN, OTHER = "FTRUN_CHECK", "plan.json", "other"
"""As in inject/zero_edit/trial.py, which imports torch."""
INJECT, HOST = "auto", "127.0.0.1"
RESTARTS = 10


@dataclass(frozen=True, slots=True)
class Job:
    """What each run executes.

    Attributes:
        script: the words of the command, for a copy of the directory.
        options: for ``ftrun run``.
        workers: of each of ``replicas``; those of one replica may be on several ``nodes``.
        is_group: there are memory snapshots, so that workers are replaced one at a time.
    """

    script: Sequence[str]
    options: Sequence[str]
    replicas: int
    workers: int = 1
    nodes: int = 1
    is_group: bool = False

    @property
    def seen(self) -> int:
        """The number of reports: in a group each worker reports like a replica."""
        return self.replicas * self.workers if self.is_group else self.replicas

    @property
    def id(self) -> str:
        """The id of a job on several nodes."""
        return f"check-{os.getpid()}"

    def command(self, logs: Path, at: str = "", node: int | None = None) -> list[str]:
        """The command line. ``at``: where the nodes meet; ``node``: this one, None: a standby."""
        if self.nodes > 1:
            each = self.workers // self.nodes
            shape = ["--nnodes", str(self.nodes), "--nproc-per-node", str(each)]
            shape += ["--node-rank", str(node)] if node is not None else []
            shape += ["--rdzv-endpoint", at, "--rdzv-id", self.id]
            shape += ["--max-restarts", str(RESTARTS)]
        else:
            shape = ["--replicas", str(self.replicas)]
            several = ["--workers-per-replica", str(self.workers)] if self.workers > 1 else []
            # With several workers, the step of a death is computed again under a quorum that needs
            # the newcomer. It then uses the next batches, and one worker may be a batch ahead.
            waits = [] if self.workers > 1 or self.is_group else ["--min-replicas", shape[-1]]
            shape += [*waits, *several]
        fixed = ["--log-dir", str(logs), "--prefix", "--inject", INJECT]
        return ["run", *fixed, *shape, *self.options, *self.script]


def check_script(
    words: Sequence[str],
    options: Sequence[str],
    replicas: int,
    steps: int,
    timeout_s: float,
    workers: int = 1,
    *,
    is_group: bool = False,
    nodes: int = 1,
) -> int:
    """Try the script ``words``. Returns the exit code: 0 if it heals, otherwise 1.

    Args:
        words: the script with its arguments.
        options: for ``ftrun run``.
        replicas: how many.
        steps: each run ends after this many steps, unless the script ends before.
        timeout_s: each run is ended after this time.
        workers: of each replica. The last replica dies; with a single replica any worker may.
        is_group: there are memory snapshots, so that workers are replaced one at a time.
        nodes: of the single replica. The last node is lost.

    Raises:
        UserError: the current directory cannot be copied.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # leave no launcher behind
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    job = Job(_from_copy(words, options), options, replicas, workers, nodes, is_group)
    seen = job.seen
    with tempfile.TemporaryDirectory(prefix="ftrun-check-") as name:
        directory = Path(name)
        place = Place(directory, Path.cwd())
        skips: list[tuple[str, int]] = []

        def run(kind: str, kills: Sequence[Kill], loses: range = range(0)) -> Run:
            together = seen if kills and workers > 1 and not is_group else 0
            plan: dict[str, Any] = {"steps": steps, "together": together, "is_group": is_group}
            plan |= {"kind": kind, "asks": bool(loses), "skips": skips}
            return _run(job, directory / kind, place, kills, plan, timeout_s, loses)

        _say(f"runs undisturbed{f', on {nodes} nodes' * (nodes > 1)}")
        undisturbed = run("undisturbed", ())
        trial = Trial(seen, workers, timeout_s, undisturbed, is_group=is_group, nodes=nodes)
        if undisturbed.is_whole(seen):
            once = workers > 1 and not is_group
            trial.plan = plan_of(undisturbed.reports, once=once, is_group=is_group, loses=nodes > 1)
            starts = _starts(undisturbed) if is_group else {}

            def with_deaths(kind: str, kills: Sequence[Kill]) -> Run:
                found = run(kind, kills)
                due = _due(undisturbed, found.kills)
                beside = compare(undisturbed.files, found.files, due, found.early, starts)
                return replace(found, beside=beside)

            if trial.plan.training:
                _say(
                    "runs with deaths in training"
                    + " and while a file is written" * trial.plan.writes
                )
                trial.training = with_deaths("training", trial.plan.training)
            if trial.plan.evaluations:
                _say("runs with deaths in evaluations")
                trial.evaluations = with_deaths("evaluations", trial.plan.evaluations)
            if trial.plan.loss and trial.training and trial.training.is_whole(seen):
                _say(f"runs with the loss of {trial.lost_node}; node {nodes} stands by")
                lost = run("lost", (), loses=trial.plan.loss)
                beside = compare(undisturbed.files, lost.files, {}, lost.early, starts)
                trial.lost = replace(lost, beside=beside)
            runs = [x for x in (*trial.with_deaths, trial.lost) if x and x.is_whole(seen)]
            if any(may_vary(trial, x) for x in runs):
                _say("runs undisturbed again, to see what is other in each run")
                skips += [] if is_group else _skips(undisturbed, runs[0].kills)
                again = run(OTHER, ())
                beside = compare(undisturbed.files, again.files, {}, again.early)
                trial.again = replace(again, beside=beside)
        lines, is_well = lines_of(trial)
    for line in lines:
        _say(line)
    return 0 if is_well else 1


def _due(undisturbed: Run, kills: Sequence[Kill]) -> Due:
    """By file, the range that a replica killed during a write would have written before the
    join."""
    writing = [kill for kill in kills if kill.phase == WRITING]
    return {
        name: span
        for kill in writing
        for name, span in due_after(undisturbed.reports[kill.victim]["sizes"], kill.step).items()
    }


def _skips(undisturbed: Run, kills: Sequence[Kill]) -> list[tuple[str, int]]:
    """The replicas that were killed as they wrote a file, and drew random numbers afterwards."""
    writing = [kill for kill in kills if kill.phase == WRITING]
    drawn = {x: report["drawn"] for x, report in undisturbed.reports.items()}
    return [(str(x.victim), x.step) for x in writing if x.step in drawn[x.victim]]


def _starts(undisturbed: Run) -> dict[str, int]:
    """The size of each file before the first step."""
    known = (report["sizes"].items() for report in undisturbed.reports.values())
    return {name: sizes["0"] for each in known for name, sizes in each if "0" in sizes}


def _say(line: str) -> None:
    print(f"ftrun check: {line}", flush=True)


def _from_copy(words: Sequence[str], options: Sequence[str]) -> list[str]:
    """The script's words, adjusted to a copy of the current directory."""
    script = Path(words[0])
    if "--module" in options or not script.exists():
        return [*words]
    whole, here = script.absolute(), Path.cwd()
    named = whole.relative_to(here) if whole.is_relative_to(here) else whole
    return [str(named), *words[1:]]


def _run(
    job: Job,
    directory: Path,
    place: Place,
    kills: Sequence[Kill],
    plan: dict[str, Any],
    timeout_s: float,
    loses: range,
) -> Run:
    directory.mkdir()
    whole = {**plan, "kills": [{**asdict(kill), "victim": str(kill.victim)} for kill in kills]}
    with naming(directory / PLAN):
        (directory / PLAN).write_text(json.dumps(whole))
    place.begin()
    logs = directory / "logs"
    variables = {
        **os.environ, VARIABLE: str(directory), "PYTHONHASHSEED": "0", "PWD": str(place.path)
    }  # fmt: skip
    at = ""
    if job.nodes > 1:
        at = f"{HOST}:{free_port(HOST)}"
        variables.setdefault("OMP_NUM_THREADS", "1")  # the nodes share this machine's cores
    with Launchers(place.path, variables, "node {}: " * (job.nodes > 1)) as launchers:

        def start(node: int | None) -> None:
            of_node = logs if job.nodes == 1 else logs / f"node-{node}"
            launchers.start(job.command(of_node, at, node))

        for node in range(job.nodes):
            start(node)
        losing = None
        if loses:
            losing = Losing(
                directory,
                job.id,
                loses,
                start_spare=lambda: start(None),
                lose=lambda: launchers.kill(job.nodes - 1),
            )
        look: Callable[[str], None] = losing.look if losing else lambda line: None
        heard = launchers.watch(timeout_s, look, (directory / REFUSED).exists)
    files = place.end(f"files-{directory.name}")
    return run_of(directory, logs, heard, files, kills, job.seen, is_group=job.is_group)
