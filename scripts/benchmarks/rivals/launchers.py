"""The launchers of the comparison: how each is installed, and how it starts the training.

Every rival except torchrun and torchft is installed in a separate directory, which only its jobs
have on their path, because lm-resiliency installed beside torch would be loaded by every torchrun.
NVRx is published only for Python 3.12, but the parts used here are pure Python.

Not here: when a worker is killed, and the evaluation (measure.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from benchmarks.jobs import BIN, FTRUN, Job, Launcher
from tests import jobs
from tests.jobs import Command, free_port

WORKERS = 4
RESTARTS = "1000"
MODES = ("ddp", "fsdp")
TORCHRUN = str(BIN / "torchrun")
KIT = Path(__file__).parent / "lm_resiliency_kit"
RUN_ID = "bench"
_NVRX_NEEDS = "pyyaml defusedxml httpx nvidia-ml-py pydantic-settings setproctitle fastapi uvicorn"


@dataclass(frozen=True)
class Rival:
    """A launcher of the comparison.

    Args:
        modes: the modes in which it can take part.
        package: the package that its directory must have; empty if it needs none.
        install: commands that make this directory, with SITE in its place.
        note: what was changed so that it runs.
    """

    name: str
    modes: tuple[str, ...] = MODES
    package: str = ""
    install: tuple[str, ...] = ()
    note: str = ""

    def left_out(self, mode: str, sites: Path) -> str:
        """Why it cannot take part, and what to do; empty if it can."""
        if mode not in self.modes:
            return f"{self.name} was left out: it has no form for FSDP2 without replicas."
        if self.name == "torchft" and find_spec("torchft") is None:
            return "torchft was left out: it is not installed. pip install torchft-nightly"
        if not self.package or (sites / self.name / self.package).is_dir():
            return ""
        commands = " && ".join(self.install).replace("SITE", str(sites / self.name))
        return f"{self.name} was left out: it is not installed in {sites / self.name}. {commands}"


RIVALS = (
    Rival("ftrun"),
    Rival(
        "torchft",
        ("ddp",),
        note="torchft starts nothing, so a loop starts a dead group at once; with its README's "
        "join timeout of 10 s, which passes when one survivor does not notice the death",
    ),
    Rival(
        "torchrun",
        note="with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, because restarted workers otherwise read "
        "the Gloo addresses of the dead ones",
    ),
    Rival(
        "NVRx",
        package="nvidia_resiliency_ext",
        install=(
            "pip install --target SITE --no-deps --only-binary=:all: --python-version 3.12 "
            "--platform manylinux_2_39_x86_64 nvidia-resiliency-ext==0.7.0",
            f"pip install --target SITE {_NVRX_NEEDS}",
        ),
        note="ft_launcher, whose workers are restarted all together",
    ),
    Rival(
        "lm-resiliency",
        package="lm_resiliency",
        install=("pip install --target SITE --no-deps lm-resiliency==0.2.0",),
        note="with its entry point corrected, Gloo in the place of NCCL and a manager of this "
        "benchmark's, because it ships none; it copies the state in each step",
    ),
)


def launcher(name: str, mode: str, sites: Path) -> Launcher | None:
    """Starts the job of a rival; None: ``run_job`` does it."""
    if name == "torchrun":
        return _torchrun
    if name == "NVRx":
        return partial(_nvrx, site=sites / name)
    if name == "lm-resiliency":
        return partial(_lm_resiliency, mode=mode, site=sites / name)
    return _ftrun_group if (name, mode) == ("ftrun", "fsdp") else None


@contextmanager
def _ftrun_group(job: Job, environment: Mapping[str, str], nodes: int) -> Iterator[None]:
    """One replica of all workers. A lost worker is replaced from memory, and the script is
    unchanged."""
    options = (
        *("--workers-per-replica", str(WORKERS), "--max-restarts", RESTARTS),
        *("--memory-snapshots", "auto"),
    )
    with jobs.Job(
        job.out,
        job.script,
        *options,
        program=FTRUN,
        environment=_with_checkpoints(job, environment),
    ) as agent:
        job.launched.append(agent)
        yield


@contextmanager
def _torchrun(job: Job, environment: Mapping[str, str], nodes: int) -> Iterator[None]:
    own = _with_checkpoints(job, environment)
    own["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    options = ("--standalone", "--nproc-per-node", str(WORKERS), "--max-restarts", RESTARTS)
    with Command(job.out, (TORCHRUN, *options, str(job.script)), own, fresh=True) as command:
        job.launched.append(command)
        yield


@contextmanager
def _nvrx(job: Job, environment: Mapping[str, str], nodes: int, *, site: Path) -> Iterator[None]:
    own = {**_with_checkpoints(job, environment), "PYTHONPATH": str(site)}
    words = (
        *(sys.executable, "-m", "nvidia_resiliency_ext.fault_tolerance.launcher"),
        *("--nnodes", "1", "--nproc-per-node", str(WORKERS), "--max-restarts", RESTARTS),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"),
        *("--rdzv-id", RUN_ID, str(job.script)),
    )
    with Command(job.out, words, own, fresh=True) as command:
        job.launched.append(command)
        yield


@contextmanager
def _lm_resiliency(
    job: Job, environment: Mapping[str, str], nodes: int, *, mode: str, site: Path
) -> Iterator[None]:
    """torchrun with its rendezvous, and the manager for which it waits."""
    own = {**environment, "PYTHONPATH": f"{site}:{KIT}"}
    disk, policy, port = job.out / "disk", job.out / "policy.toml", str(free_port())
    policy.write_text(_policy(mode, disk))
    conf = {
        "store_type": "tcp",
        "lm_resiliency_restart_context_path": job.out / "context" / "context.json",
        "lm_resiliency_worker_config": policy,
    }
    words = (
        *(sys.executable, str(KIT / "launch.py")),
        *("--nnodes", "1:1", "--nproc-per-node", str(WORKERS), "--max-restarts", RESTARTS),
        *("--rdzv-backend", "lm_resiliency", "--rdzv-endpoint", f"127.0.0.1:{port}"),
        *("--rdzv-id", RUN_ID, "--rdzv-conf", ",".join(f"{k}={v}" for k, v in conf.items())),
        str(job.script),
    )
    manager = (sys.executable, str(KIT / "manager.py"), port, RUN_ID, str(job.out), str(disk))
    with ExitStack() as stack:
        for command in (words, (*manager, str(WORKERS))):
            started = Command(job.out, command, own, fresh=True)
            job.launched.append(stack.enter_context(started))
        yield


def _policy(mode: str, disk: Path) -> str:
    """Its example's policy: a copy of the state in each step, on the disk when workers end."""
    adapter = 'adapter = "on_cpu:make"\n' if mode == "ddp" else ""
    return (
        f"schema_version = 1\n{adapter}interval = 1\n"
        "enable_checkpoint = true\nenable_detection = false\n"
        f'[checkpoint]\ndisk_folder = "{disk}"\n'
        "replication_jump = 1\ndisk_flush_interval = 0\npin_memory = false\n"
    )


def _with_checkpoints(job: Job, environment: Mapping[str, str]) -> dict[str, str]:
    if "BENCH_REFERENCE" in environment:
        return dict(environment)
    return {**environment, "BENCH_CHECKPOINTS": str(job.out / "checkpoints")}
