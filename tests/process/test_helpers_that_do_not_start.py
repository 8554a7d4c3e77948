"""A process of ftrun's own that cannot start is tried a few times, and its words are shown."""

from __future__ import annotations

import os
from pathlib import Path

from tests.jobs import ROOT, Job

NO_GRPC = """
import sys
if len(sys.argv) == 1:
    raise ImportError("this is no grpc")  # in the lighthouse, which has no argument
sys.path.remove(__file__.rpartition("/")[0])
del sys.modules["grpc"]
import grpc
"""
NO_NUMPY = "import os, sys; print('this is no numpy', file=sys.stderr, flush=True); os._exit(3)"
WAITS = "import signal\nprint('up', flush=True)\nsignal.pause()"


def first_in_path(directory: Path, name: str, text: str) -> dict[str, str]:
    """A module of this name that stands before the installed one."""
    (directory / "first").mkdir()
    (directory / "first" / name).write_text(text)
    return {"PYTHONPATH": os.pathsep.join([str(directory / "first"), str(ROOT)])}


def test_a_lighthouse_that_never_comes_up_ends_the_job(tmp_path: Path) -> None:
    environment = first_in_path(tmp_path, "grpc.py", NO_GRPC)
    with Job(tmp_path, WAITS, environment=environment) as job:
        assert job.end() == 2
        job.expect("The embedded lighthouse ended with exit code 1: .*this is no grpc", 5)
        assert "start 5 of 5" in job.output and "training continues" not in job.output
        assert "It does not restart, so the job ends here" in job.output
        assert job.left() == []


def test_a_spawner_that_cannot_start_shows_its_last_lines(tmp_path: Path) -> None:
    environment = first_in_path(tmp_path, "numpy.py", NO_NUMPY)
    with Job(tmp_path, "", environment=environment) as job:
        assert job.end() == 70
        assert (
            "the spawner did not start: it ended with exit code 3: this is no numpy" in job.output
        )
        assert job.left() == []
