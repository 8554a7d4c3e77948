"""A fork of the template is as good as a started program."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ftrun.base import linux
from tests.jobs import THIS_TREE, Command, Job
from tests.jobs.forks import SHOWN_BYTES, popen


def facts(
    start: Callable[..., subprocess.Popen[Any]], directory: Path, passed: int
) -> dict[str, Any]:
    """What the program tells of its start in ``directory``, with one descriptor more."""
    environment = {**os.environ, **THIS_TREE, "OF_THE_TEST": "a=b c", "EMPTY": ""}
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    try:
        with start(
            [sys.executable, "-m", "tests.jobs.facts", "3", "two words", ""],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[passed],
            start_new_session=True,
        ) as process:
            output, errors = process.communicate(timeout=180)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        signal.signal(signal.SIGHUP, former)
    assert (process.returncode, errors) == (3, b"")
    found: dict[str, Any] = json.loads(output)
    return found


def test_a_fork_looks_like_a_started_program(tmp_path: Path) -> None:
    passed = os.dup(0)  # a number of its own: another test's may not be closed
    forked, again = facts(popen, tmp_path, passed), facts(popen, tmp_path, passed)
    started = facts(subprocess.Popen, tmp_path, passed)
    os.close(passed)
    assert len({told.pop("drawn") for told in (forked, again, started)}) == 3
    assert forked == again == started
    assert forked["parent"] == os.getpid()


def test_its_end_is_its_parents_to_know(tmp_path: Path) -> None:
    with Job(tmp_path, "import signal; print('up', flush=True); signal.pause()") as job:
        job.expect("up")
        assert is_forked(job.pid) and is_forked(job.spawner()) and is_forked(job.lighthouse())
        row = linux.process_row(job.stores())
        assert row is not None and row.ppid == job.pid
        job.signal(signal.SIGKILL)
        assert job.process.wait(60) == -signal.SIGKILL
        assert job.left() == []


ENDS = """
import atexit, sys, threading

class Held:
    def __del__(self):
        print("let go", flush=True)

def outlive():
    threading.main_thread().join()
    print("thread", flush=True)

held = Held()
atexit.register(print, "at exit", flush=True)
threading.Thread(target=outlive).start()
sys.exit("of its own")
"""


def test_a_worker_ends_with_its_threads_its_handlers_and_its_objects(tmp_path: Path) -> None:
    with Job(tmp_path, ENDS, "--max-restarts", "0") as job:
        assert job.end() == 1
        said = re.findall(r"^\[0\.0\] (.*)", job.output, re.MULTILINE)
        assert said == ["of its own", "thread", "at exit", "let go"], job.output


@pytest.mark.parametrize("why", ["wish", "module", "variable"])
def test_what_only_a_fresh_interpreter_can_show_is_started_by_exec(
    tmp_path: Path, why: str
) -> None:
    if why == "module":
        (tmp_path / "random.py").write_text("")
    more = {"OMP_NUM_THREADS": "3"} if why == "variable" else {}
    words = (sys.executable, "-m", "tests.jobs.facts", "0")
    environment = {**THIS_TREE, **more, "TORCH_LOGS": "all" if why == "variable" else ""}
    with Command(tmp_path, words, environment, fresh=why == "wish") as command:
        assert not is_forked(command.pid)


def is_forked(pid: int) -> bool:
    """A fork of the template has its room for the environment."""
    return len(Path(f"/proc/{pid}/environ").read_bytes()) > SHOWN_BYTES
