"""Interpreters of ftrun's own: no file, no signal and no thread of the job's is in their way."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ftrun.base import own_process
from ftrun.base.own_process import FOR_THE_JOB

ENDS_WITHIN_S = 60.0
PROBE = """
import json, os, signal, sys
from ftrun.base import linux, own_process

def main():
    print(json.dumps({
        "ignored": sorted(n for n in own_process.FOR_THE_JOB
                          if signal.getsignal(n) is signal.SIG_IGN),
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "path": sys.path, "words": sys.argv[1:], "threads": linux.thread_count(),
        "bare": own_process.is_bare(), "safe": getattr(sys.flags, "safe_path", False),
    }))
"""
STARTS_A_THREAD = """
import threading, time
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
"""
SHADOWS = ("ftrun", "typing", "queue", "token", "select", "copy", "signal", "logging", "random",
           "types", "runpy", "site", "subprocess", "pathlib", "threading", "json")  # fmt: skip


def facts(directory: Path, *words: str, **how: Any) -> dict[str, Any]:
    """What a process of ours finds that is started in ``directory``."""
    modules = directory / "modules"
    modules.mkdir(exist_ok=True)
    (modules / "probe.py").write_text(PROBE)
    environment = {**os.environ, "PYTHONPATH": str(modules), **how.pop("env", {})}
    process = own_process.start(
        "probe", words, cwd=directory, env=environment, stdout=subprocess.PIPE, **how
    )
    out, _ = process.communicate(timeout=ENDS_WITHIN_S)
    assert process.returncode == 0
    found: dict[str, Any] = json.loads(out)
    return found


def test_no_file_of_the_current_directory_is_imported(tmp_path: Path) -> None:
    for name in SHADOWS:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} of the directory')")
    found = facts(tmp_path, "a", "-b", forks=True)
    assert found["words"] == ["a", "-b"]
    assert str(tmp_path) not in found["path"] and "" not in found["path"]
    assert not found["safe"], "the flag would be inherited by workers"


def test_signals_for_the_job_are_ignored_and_no_other(tmp_path: Path) -> None:
    found = facts(tmp_path)
    assert found["ignored"] == sorted(FOR_THE_JOB)
    assert found["blocked"] == []
    assert facts(tmp_path, acts_on_signals=True)["ignored"] == []
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


def test_a_signal_that_comes_at_once_ends_nothing(tmp_path: Path) -> None:
    """Before the process could ignore it."""
    (tmp_path / "probe.py").write_text(PROBE)
    process = own_process.start(
        "probe", env={**os.environ, "PYTHONPATH": str(tmp_path)}, stdout=subprocess.PIPE
    )
    for number in FOR_THE_JOB:
        process.send_signal(number)
    process.communicate(timeout=ENDS_WITHIN_S)
    assert process.returncode == 0


def test_the_kernel_ends_a_tied_process_with_its_parent(tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text("import signal\nmain = signal.pause")
    program = (
        "import signal; from ftrun.base import own_process\n"
        "print(own_process.start('probe', is_tied=True).pid, flush=True); signal.pause()"
    )
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environ, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    ended, _, _ = select.select([child], [], [], ENDS_WITHIN_S)
    if not ended:
        signal.pidfd_send_signal(child, signal.SIGKILL)
    os.close(child)
    assert ended


def test_a_thread_of_sitecustomize_is_not_in_a_process_that_forks(tmp_path: Path) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "sitecustomize.py").write_text(STARTS_A_THREAD)
    found = facts(tmp_path, "a", forks=True)
    assert (found["threads"], found["bare"], found["words"]) == (1, True, ["a"])
    assert facts(tmp_path)["threads"] == 2, "one that does not fork has what the user wants"


@pytest.mark.parametrize("name", ["sitecustomize", "usercustomize"])
def test_a_harmless_customization_stays(tmp_path: Path, name: str) -> None:
    """It may be what makes torch importable."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / f"{name}.py").write_text("import sys; sys.path.append('/added')")
    found = facts(tmp_path, forks=True)
    assert not found["bare"]
    assert ("/added" in found["path"]) or name == "usercustomize", "off in virtual environments"


def test_threads_that_stay_are_named_and_nothing_is_forked() -> None:
    begin = f"import sys; sys.argv[1:] = ['', 'forks', 'x']; {STARTS_A_THREAD}"
    program = (
        f"{begin}\nimport site; site.main()\nfrom ftrun.base.own_process import begin; begin()"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=ENDS_WITHIN_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == own_process.UNFIT_EXIT
    assert "has 2 threads before ftrun begins" in done.stderr


def test_ftrun_is_found_where_this_one_is(tmp_path: Path) -> None:
    """Also where only the current directory had led to it."""
    (tmp_path / "probe.py").write_text(PROBE)
    command = own_process.command("probe", ())
    done = subprocess.run(
        [command[0], "-S", *command[1:]],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True,
        text=True, timeout=ENDS_WITHIN_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["path"][-1] == str(Path(__file__).parents[3])


def test_no_other_module_starts_an_interpreter_by_itself() -> None:
    package = Path(own_process.__file__).parents[1]
    for path in package.glob("**/*.py"):
        source = path.read_text()
        assert 'sys.executable, "-m"' not in source, path
        assert 'sys.executable, "-c"' not in source or "CLEAN_PATH" in source, path
