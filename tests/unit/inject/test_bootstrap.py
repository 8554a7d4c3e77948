"""What a forked worker does first, tried in a fork: its script sees a fresh interpreter."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from ftrun.core.messages import FailureReport, WorkerHello
from ftrun.inject.bootstrap import TRACEBACK_CHARS_MAX, failure_report
from ftrun.protocol.frames import FrameSocket

PARENT = """
import json, os, sys
from ftrun.core.ids import WorkerKey
from ftrun.inject.bootstrap import WorkerTask, prepare, run
from ftrun.training.context import WorkerContext
import numpy.random
import random
facts = json.loads(sys.argv[1])
for turn in range(2):
    pid = os.fork()
    if pid == 0:
        here = WorkerContext(
            job_id="job", key=WorkerKey("0", "f" * 16, 0), replicas=1, min_replicas=1,
            workers_per_replica=1, host="127.0.0.1", socket_path=facts["socket"], token="a" * 64,
        )
        arguments = ("--x", "1"), {"FLAG": "on"}
        prepare(facts["threads"])
        run(WorkerTask(here, facts["target"], facts["module"], *arguments))
    _, status = os.waitpid(pid, 0)
    print("status", os.waitstatus_to_exitcode(status), flush=True)
    if facts["once"]:
        break
"""


def fork_and_run(tmp_path: Path, source: str, **changes: Any) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(source))
    facts = {
        "target": str(script), "module": False, "socket": str(tmp_path / "none"), "once": True,
        "threads": 1, **changes,
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "-c", PARENT, json.dumps(facts)],
        capture_output=True, text=True, timeout=60, cwd=tmp_path, check=True,
        env={
            **os.environ, "PYTHONPATH": str(Path(__file__).parents[3]),
            "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1",
        },
    )  # fmt: skip


def test_the_script_is_main_with_its_own_arguments_path_and_environment(tmp_path: Path) -> None:
    done = fork_and_run(
        tmp_path,
        """
        import os, sys
        import ftrun.training.context as context
        print(__name__, os.path.basename(__file__), sys.argv[1:], os.environ["FLAG"])
        print(sys.path[0] == os.path.dirname(os.path.abspath(__file__)))
        print(sys.modules["__main__"].__dict__ is globals(), __spec__)
        print(context.current().job_id, context.has_failed())
        """,
    )
    assert done.stdout.splitlines() == [
        "__main__ script.py ['--x', '1'] on", "True", "True None", "job False", "status 0",
    ]  # fmt: skip
    assert done.stderr == ""


def test_two_forks_do_not_draw_the_same_numbers(tmp_path: Path) -> None:
    source = "import random, numpy\nprint('drew', random.random(), numpy.random.rand())"
    done = fork_and_run(tmp_path, source, once=False)
    draws = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("drew")]
    assert len(draws) == 2
    assert draws[0][0] != draws[1][0]
    assert draws[0][1] != draws[1][1]


def test_numpys_threads_are_the_workers_own(tmp_path: Path) -> None:
    source = """
        import ctypes
        paths = {line.split()[-1] for line in open("/proc/self/maps") if "openblas" in line}
        for path in paths:
            for name in ("scipy_openblas_get_num_threads64_", "openblas_get_num_threads"):
                if hasattr(ctypes.CDLL(path), name):
                    print("threads", getattr(ctypes.CDLL(path), name)())
        """
    done = fork_and_run(tmp_path, source, threads=2)
    assert set(done.stdout.splitlines()) == {"threads 2", "status 0"}


@pytest.mark.parametrize(
    ("source", "status", "words"),
    [
        ("", 0, ""),
        ("raise SystemExit(3)", 3, ""),
        ("raise SystemExit('no data')", 1, "no data"),
        ("raise SystemExit", 0, ""),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt"),
        ("raise ValueError('no')", 1, "ValueError: no"),
        ("def f():\n    1 / 0\nf()", 1, "ZeroDivisionError"),
        ("import sys\nsys.stdout.close()\nraise ValueError('no')", 1, "ValueError: no"),
    ],
)
def test_it_ends_as_the_interpreter_would(
    tmp_path: Path, source: str, status: int, words: str
) -> None:
    done = fork_and_run(tmp_path, source)
    assert f"status {status}" in done.stdout
    assert words in done.stderr
    assert "bootstrap.py" not in done.stderr


def test_exit_handlers_see_the_script_as_main_and_know_that_it_failed(tmp_path: Path) -> None:
    done = fork_and_run(
        tmp_path,
        """
        import atexit, sys
        import ftrun.training.context as context
        def leave():
            print("exit", sys.modules["__main__"].__file__, context.has_failed())
        atexit.register(leave)
        raise ValueError("no")
        """,
    )
    assert f"exit {tmp_path / 'script.py'} True" in done.stdout


def test_a_module_runs_as_with_m(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "tool.py").write_text("import sys; print(__name__, sys.argv[1:])")
    done = fork_and_run(tmp_path, "", target="package.tool", module=True)
    assert done.stdout.splitlines() == ["__main__ ['--x', '1']", "status 0"]


def test_the_agent_hears_of_an_exception_before_the_process_ends(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        server.settimeout(30)
        script = tmp_path / "script.py"
        script.write_text("raise ValueError('no')")
        facts = {"target": str(script), "module": False, "socket": str(path), "once": True}
        facts["threads"] = 1
        with subprocess.Popen(
            [sys.executable, "-c", PARENT, json.dumps(facts)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as parent:
            accepted, _ = server.accept()
            frames = FrameSocket(accepted)
            hello = frames.receive(30)
            report = frames.receive(30)
            frames.close()
            assert parent.stdout is not None
            assert parent.stdout.read() == b"status 1\n"
    assert isinstance(hello, WorkerHello)
    assert hello.token == "a" * 64
    assert isinstance(report, FailureReport)
    assert (report.error_type, report.message) == ("ValueError", "no")
    assert "script.py" in report.traceback
    assert "bootstrap.py" not in report.traceback


def test_a_report_is_bounded_and_survives_a_broken_message() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    report = failure_report(Broken(), None)
    assert report.message == "(its message cannot be shown)"
    long = failure_report(ValueError("x" * 1_000_000), None)
    assert len(long.traceback) < TRACEBACK_CHARS_MAX + 100
    assert len(long.message) == 4000
