"""A process of ftrun's own that cannot start is tried a few times, and its words are shown."""

from __future__ import annotations

from pathlib import Path

from tests.process.job import Job

BROKEN = "raise ImportError('this is no grpc')"


def test_a_lighthouse_that_never_comes_up_ends_the_job(tmp_path: Path) -> None:
    """In place of grpc's package stands a directory that the variable names."""
    (tmp_path / "grpc.py").write_text(
        "import sys\n"
        "if sys.argv[:1] == ['ftrun'] and len(sys.argv) == 1:\n"  # the lighthouse has no argument
        f"    {BROKEN}\n"
        "sys.path.remove(__file__.rpartition('/')[0])\n"
        "del sys.modules['grpc']\n"
        "import grpc\n"
    )
    source = "import signal\nprint('up', flush=True)\nsignal.pause()"
    with Job(tmp_path, source, env={"PYTHONPATH": str(tmp_path)}) as job:
        assert job.end() == 2
        job.expect("The embedded lighthouse ended with exit code 1", 5)
        assert "this is no grpc" in job.output
        assert "start 5 of 5" in job.output
        assert "so the job ends here" in job.output
        assert job.left() == []


def test_a_spawner_that_cannot_start_shows_its_last_lines(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("import os; print('no numpy here', file=__import__('sys').stderr); os._exit(3)")
    with Job(tmp_path, "", env={"PYTHONPATH": str(tmp_path)}) as job:
        assert job.end() == 70
        assert "the spawner did not start: it ended with exit code 3: no numpy here" in job.output
        assert job.left() == []
