"""Workers that are interpreters of their own: what torch sees of a script's first lines, compared
with torchrun; deaths, heals, failures and stops as in forked workers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.jobs import ROOT, Job, ask

TIMEOUT_S = 300.0
SHADOWS = ("typing", "queue", "select", "token", "secrets", "logging")
"""Names of Python's own modules that files of the user's have."""

FIRST_LINES = {
    "OMP_NUM_THREADS": "3", "OMP_MAX_ACTIVE_LEVELS": "7", "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "2", "NUMPY_MADVISE_HUGEPAGE": "0", "ATEN_CPU_CAPABILITY": "default",
    "PYTORCH_JIT": "0", "TORCH_DISTRIBUTED_DEBUG": "DETAIL", "TORCH_LOGS": "dynamo",
    "TORCH_SHOW_CPP_STACKTRACES": "1", "TORCHINDUCTOR_MAX_AUTOTUNE": "1",
}  # fmt: skip
"""Variables of each family, with values that are not the defaults."""
OF_THE_SHELL = {"PYTHONIOENCODING": "latin-1", "PYTHONWARNINGS": "once", "PYTHONHASHSEED": "7"}

TELLS = """
import ctypes, json, logging, os, sys
loaded = sorted(name for name in ("torch", "numpy") if name in sys.modules)
SETS = %r
for name, value in SETS.items():
    os.environ[name] = value
import numpy, torch
import torch._inductor.config
import torch.distributed as dist

def library(part):
    lines = open("/proc/self/maps").read().splitlines()
    paths = {line.split(maxsplit=5)[5] for line in lines if part in line and ".so" in line}
    return [ctypes.CDLL(path) for path in sorted(paths)]

def threads_of_blas():
    names = ("scipy_openblas_get_num_threads64_", "openblas_get_num_threads64_")
    return [getattr(x, n)() for x in library("openblas") for n in names if hasattr(x, n)]

def error():
    try:
        torch.ones(2) @ torch.ones(3)
    except RuntimeError as error:
        return "Exception raised from" in str(error) or "C++" in str(error)

facts = {
    "loaded": loaded,
    "OMP_NUM_THREADS": torch.get_num_threads(),
    "OMP_MAX_ACTIVE_LEVELS": [x.omp_get_max_active_levels() for x in library("libgomp")],
    "MKL_NUM_THREADS": [x for x in torch.__config__.parallel_info().splitlines() if "mkl" in x],
    "OPENBLAS_NUM_THREADS": threads_of_blas(),
    "NUMPY_MADVISE_HUGEPAGE": numpy._core.multiarray._get_madvise_hugepage(),
    "ATEN_CPU_CAPABILITY": torch.backends.cpu.get_cpu_capability(),
    "PYTORCH_JIT": bool(torch.jit._state._enabled.enabled),
    "TORCH_DISTRIBUTED_DEBUG": str(dist.get_debug_level()),
    "TORCH_LOGS": logging.getLogger("torch._dynamo").getEffectiveLevel(),
    "TORCH_SHOW_CPP_STACKTRACES": error(),
    "TORCHINDUCTOR_MAX_AUTOTUNE": torch._inductor.config.max_autotune,
    "encodings": [sys.stdin.encoding, sys.stdout.encoding, sys.stderr.errors],
    "warnings": sys.warnoptions, "hash": hash("x"), "flags": str(sys.flags),
    "argv": sys.argv, "path": sys.path[0], "orig": sys.orig_argv, "file": __file__,
}
with open(f"{sys.argv[1]}.json", "w") as file:
    json.dump(facts, file)
""" % (FIRST_LINES,)  # noqa: UP031 - the source has braces


def facts_under(directory: Path, *command: str) -> dict[str, Any]:
    """What one worker finds."""
    script = directory / "tells.py"
    script.write_text(TELLS)
    done = subprocess.run(
        [sys.executable, "-m", *command, "tells.py", "out"],
        cwd=directory, timeout=TIMEOUT_S, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), **OF_THE_SHELL},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    if command[0] == "ftrun":
        assert "OMP_NUM_THREADS at tells.py:" in done.stderr
    found: dict[str, Any] = json.loads((directory / "out.json").read_text())
    return found


def test_what_a_script_sets_first_has_the_effect_that_it_has_under_torchrun(tmp_path: Path) -> None:
    theirs = facts_under(tmp_path, "torch.distributed.run", "--nproc-per-node", "1")
    ours = facts_under(tmp_path, "ftrun", "--nproc-per-node", "1")
    assert ours == theirs
    assert ours["loaded"] == []
    # None of these is what torch would do without the variable.
    assert ours["OMP_NUM_THREADS"] == 1  # of the two torch takes MKL's
    assert set(ours["OMP_MAX_ACTIVE_LEVELS"]) == {7}
    assert ours["ATEN_CPU_CAPABILITY"] == "DEFAULT"
    assert not ours["PYTORCH_JIT"]
    assert ours["TORCH_SHOW_CPP_STACKTRACES"] and ours["TORCHINDUCTOR_MAX_AUTOTUNE"]


FAILS_AND_WAITS = """
import os, signal, sys, threading
assert "torch" not in sys.modules and "" not in sys.path
assert sys.path[0] == os.path.dirname(os.path.abspath(__file__))
life = os.environ["TORCHELASTIC_RESTART_COUNT"]
print("life", life, os.environ["FTRUN_OWNER"] == os.environ["FTRUN_INCARNATION"],
      os.getsid(0) == os.getpid(), sorted(int(x) for x in os.listdir("/proc/self/fd"))[:4],
      flush=True)
if life == "0":
    raise ValueError("the first life")
def asked(*_):
    print("asked to stop", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, asked)
print("waits", flush=True)
threading.Event().wait()
"""


def test_failures_stacks_and_stops_of_such_a_worker_are_a_worker_s(tmp_path: Path) -> None:
    script = tmp_path / "src" / "script.py"
    script.parent.mkdir()
    script.write_text(FAILS_AND_WAITS)
    for name in SHADOWS:
        script.with_stem(name).write_text(f"raise SystemExit('the user has a {name}.py')")
    options = ("--start", "exec", "--nproc-per-node", "1", "--max-restarts", "1", "--standby", "1")
    with Job(tmp_path, script, *options) as job:
        job.expect("ValueError: the first life")
        job.expect("waits$")
        assert job.worker(0) in job.pids()
        stack = ask(tmp_path, "stack", "job", "0")
        assert "script.py" in stack.stdout, stack
        job.signal(signal.SIGTERM)
        job.expect("asked to stop")
        assert job.end() == 75
        assert job.left() == []
    lives = re.findall(r"life (\d) (\w+) (\w+) (\[.*\])$", job.output, re.MULTILINE)
    assert [x[0] for x in lives] == ["0", "1"]
    assert {x[1:3] for x in lives} == {("True", "True")}
    assert "fresh.py" not in job.output and "bootstrap.py" not in job.output


TRAINS = """
import os
os.environ["OMP_NUM_THREADS"] = "1"
rank = int(os.environ["RANK"])
from itertools import count
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
sgd = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.arange(160.0).reshape(40, 4) / 160)
sampler = torch.utils.data.distributed.DistributedSampler(data)
loader = torch.utils.data.DataLoader(data, batch_size=4, sampler=sampler)
seen = 0
for epoch in range(6):
    sampler.set_epoch(epoch)
    for i, (x,) in enumerate(loader):
        sgd.zero_grad()
        model(x).sum().backward()
        sgd.step()
        seen += 1
        print("step", epoch, i, flush=True)
with torch.no_grad():
    print("end", rank, seen, float(model.module.weight.sum()), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_one_that_is_measured_by_coverage_heals_after_its_death(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINS)
    words = ("run", "--source=.", "-p", "train.py")
    with Job(tmp_path, Path("coverage"), "--module", "--replicas", "2", args=words) as job:
        job.expect(r"step 1 2$", 2)
        os.kill(job.worker(1), signal.SIGKILL)
        job.expect("died: SIGKILL")
        ends = job.expect(r"\] end (.*)$", 2)
        assert job.end() == 0
        assert job.left() == []
    assert {x.split()[0] for x in ends} == {"0", "1"}
    assert len({tuple(x.split()[1:]) for x in ends}) == 1
    assert len(list(tmp_path.glob(".coverage.*"))) == 2
