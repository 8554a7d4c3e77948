"""Writes the variables that this machine's Slurm gives its tasks, for tests/unit.

``python -m tests.engines.record``, as root. A file for each shape of job has the SLURM_* variables
of one of its tasks; one more has the cluster's settings.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.engines.job import SlurmJob
from tests.engines.slurm import Slurm, why_no_slurm

PLACE = Path(__file__).parents[1] / "unit" / "engines" / "slurm"
CONFIG = PLACE.parents[1] / "tools" / "doctor" / "slurm_config.txt"
DUMP = "bash -c 'env | grep ^SLURM > {}.$SLURM_PROCID'"
SHAPES = {
    "step": (("--nodes=3", "--ntasks-per-node=1"), "srun {}", 1),
    "two_tasks_a_node": (("--nodes=2", "--ntasks-per-node=2"), "srun {}", 3),
    "fewer_nodes_than_the_job": (("--nodes=4",), "srun --nodes=2 --ntasks=2 {}", 1),
    "array": (("--nodes=2", "--array=3"), "srun {}", 1),
    "ranges": (("--nodelist=n0,n2,n3",), "srun --ntasks=3 {}", 2),
    "heterogeneous": (("--nodes=1", ":", "--nodes=2"), "srun --het-group=0,1 {}", 2),
    "second_step": (("--nodes=2",), "srun true; srun {}", 0),
    "one_task": (("--nodes=1",), "srun {}", 0),
}
"""By name: options of sbatch, the line, and the task that is recorded."""


def main() -> None:
    """Record all shapes."""
    if reason := why_no_slurm():
        raise SystemExit(f"No Slurm here: {reason}.")
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with Slurm(directory, 4) as slurm:
            for shape, text in _record(slurm, directory):
                (PLACE / f"{shape}.env").write_text(_plain("\n".join(sorted(text.splitlines()))))
            config = slurm.ask("scontrol", "show", "config")
            CONFIG.write_text(_plain(re.sub(r"20\d\d-\S+", "2026-01-01T00:00:00", config)))


def _plain(text: str) -> str:
    """Without the paths of this machine."""
    lines = (re.sub(r"/tmp/[^\s,]*", "/home/user", line).rstrip() for line in text.splitlines())
    return "\n".join(lines) + "\n"


def _record(slurm: Slurm, directory: Path) -> Iterator[tuple[str, str]]:
    place = directory / "requeue"
    place.mkdir()
    line = f"srun {DUMP.format(place / 'task')}; echo recorded; sleep 600"
    with SlurmJob(slurm, place, ("--nodes=2", "--requeue"), line) as job:
        job.expect("recorded")
        slurm.ask("scontrol", "requeue", job.id)
        job.run_again()
        job.expect("recorded", 2)
    yield "requeued", (place / "task.1").read_text()
    for shape, (options, line, task) in SHAPES.items():
        place = directory / shape
        place.mkdir()
        batch = f"{DUMP.format(place / 'batch')}; {line.format(DUMP.format(place / 'task'))}"
        with SlurmJob(slurm, place, options, batch) as job:
            job.end()
        yield shape, (place / f"task.{task}").read_text()
        if shape == "step":
            yield "batch", (place / "batch.0").read_text()
    for name, words in {"srun": ("srun",), "salloc": ("salloc", "--nodes=2", "srun")}.items():
        dump = DUMP.format(directory / name).removeprefix("bash -c ").strip("'")
        slurm.ask(*words, "--nodes=2", "bash", "-c", dump)
        yield name, (directory / f"{name}.1").read_text()


if __name__ == "__main__":
    main()
