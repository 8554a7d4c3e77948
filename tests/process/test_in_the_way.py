"""Files of the current directory, and a thread that the interpreter starts with, stop no job."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.jobs import Job

INSTALLED = str(Path(sys.executable).with_name("ftrun"))
"""Unlike `python -m ftrun`, it does not put the current directory in front itself."""
NAMES = ("typing", "queue", "token", "select", "copy", "signal", "logging", "random", "types")
STARTS_A_THREAD = """
import threading, time
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
"""
TRAINS = """
import os, sys, threading, torch
print("trained with", threading.active_count(), "threads,", sys.argv[1:], flush=True)
print("first", sys.path[0] == os.path.dirname(os.path.abspath(__file__)), flush=True)
"""


def test_a_job_runs_among_files_and_threads(tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} of the directory')")
    customized, source = tmp_path / "customized", tmp_path / "src"
    customized.mkdir()
    source.mkdir()
    (customized / "sitecustomize.py").write_text(STARTS_A_THREAD)
    (source / "train.py").write_text(TRAINS)
    with Job(
        tmp_path, source / "train.py", "--nproc-per-node", "1", args=("--", "--x"),
        program=(INSTALLED,), environment={"PYTHONPATH": str(customized)},
    ) as job:  # fmt: skip
        assert job.end() == 0
        job.expect("Python starts a thread in each interpreter here .* new interpreter")
        job.expect(r"trained with 2 threads, \['--x'\]")
        job.expect("first True")
        assert job.left() == []
