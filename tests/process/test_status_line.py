"""The line under the output of jobs that really run, on a terminal; in tmux with Ctrl-Z."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import termios
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from ftrun.base import clock
from tests.process.test_operators import CPU, STEPS
from tests.process.tmux_window import WAIT_S, Tmux
from tests.unit.agent.pty_screen import PtyScreen

OUTPUT = re.compile(r"\[\d\.0\] |ftrun: ")
ASKS = """
import sys, time
from pathlib import Path

print("begun", flush=True)
sys.stderr.write("  0%|    |")
sys.stderr.flush()
while not Path("goes on").exists():
    time.sleep(0.01)
sys.stderr.write("\\r100%|####|\\n")
answer = 41
breakpoint()
print("the answer is", answer, flush=True)
while not Path("over").exists():
    time.sleep(0.01)
"""


def ftrun(
    directory: Path,
    source: str,
    *options: str,
    variables: Mapping[str, str] = MappingProxyType({}),
    **more: object,
) -> PtyScreen:
    """``ftrun OPTIONS SCRIPT`` on a terminal."""
    script = directory / "script.py"
    script.write_text(source)
    words = ("-m", "ftrun", "--log-dir", str(directory / "logs"), "--job-id", "job", *options)
    environ = {"XDG_STATE_HOME": str(directory / "state"), "TMPDIR": str(directory), **variables}
    return PtyScreen(*words, str(script), environ=environ, cwd=directory, **more)  # type: ignore[arg-type]


def test_a_job_of_three_with_a_death(tmp_path: Path) -> None:
    options = ("--replicas", "3", "--min-replicas", "1", *CPU)
    with ftrun(tmp_path, STEPS, *options, columns=100, rows=12) as screen:
        screen.until(lambda lines: lines and re.match(r"job  starting .* of 3 ready", lines[-1]))
        line = r"job  step [\d,]+  .*3 of 3 replicas  .*"
        found = screen.until(lambda lines: lines and re.match(line, lines[-1]))
        assert len(found) == 12, "it is the last row of a terminal that is full"
        assert all(OUTPUT.match(row) for row in found[:-1])
        assert all(len(row) < 100 for row in found)
        assert termios.tcgetattr(screen._fd) == screen.modes
        screen.resize(20, 12)
        screen.until(lambda lines: re.fullmatch(r"step [\d,]+  3 of 3", lines[-1]))
        screen.resize(100, 12)
        (tmp_path / "over").touch()
        assert screen.end() == 0
        assert termios.tcgetattr(screen._fd) == screen.modes
        last = screen.lines()
        assert last[-1].startswith("ftrun:   replica 2: finished")
        assert not any(row.startswith(("job  ", "step ")) for row in last)
        assert screen.cursor()[1] == 0


def test_a_bar_and_a_prompt_have_the_terminal_to_themselves(tmp_path: Path) -> None:
    with ftrun(tmp_path, ASKS, *CPU, columns=100) as screen:
        screen.until(lambda lines: lines == ["begun", "  0%|    |"])
        (tmp_path / "goes on").touch()
        found = screen.until(lambda lines: lines and lines[-1] == "(Pdb)")
        assert found[:2] == ["begun", "100%|####|"]
        screen.type("answer = 42\n")
        screen.until(lambda lines: lines[-2:] == ["(Pdb) answer = 42", "(Pdb)"])
        screen.type("c\n")
        found = screen.until(lambda lines: re.match("job  up ", lines[-1]))
        assert found[-3:-1] == ["(Pdb) c", "the answer is 42"]
        (tmp_path / "over").touch()
        assert screen.end() == 0
        assert not any(row.startswith("job  ") for row in screen.lines())


@pytest.mark.parametrize("way", ["option", "dumb", "pipe"])
def test_there_is_no_line_where_it_is_not_wanted(tmp_path: Path, way: str) -> None:
    options = ("--no-status-line",) if way == "option" else ()
    reader, pipe = os.pipe()
    more = {"stdout": pipe} if way == "pipe" else {}
    source = "print('begun', flush=True)"
    variables = {"TERM": "dumb"} if way == "dumb" else {}
    with ftrun(tmp_path, source, *options, *CPU, variables=variables, **more) as screen:
        os.close(pipe)
        assert screen.end() == 0
        assert (b"\x1b" if way == "dumb" else b"\x1b[J") not in screen.seen
        assert b"job  " not in screen.seen
    os.close(reader)


def test_a_kill_of_ftrun_leaves_a_terminal_that_works(tmp_path: Path) -> None:
    with ftrun(tmp_path, "import time\ntime.sleep(600)", *CPU, columns=100) as screen:
        screen.until(lambda lines: lines and lines[-1].startswith("job  up "))
        screen.process.send_signal(signal.SIGKILL)
        assert screen.end() == -signal.SIGKILL
        assert termios.tcgetattr(screen._fd) == screen.modes
        assert screen.cursor()[1] == 0
        assert not screen._screen.cursor.hidden


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_ctrl_z_finds_a_clean_row_and_fg_brings_the_line_back(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(STEPS)
    shell = Tmux(tmp_path, "sh", "-i", size=(100, 20))

    def until(pattern: str) -> list[str]:
        """Wait until the last row is like this; returns all rows."""
        deadline = clock.now() + WAIT_S
        while True:
            rows = shell.text().rstrip().splitlines() or [""]
            if re.fullmatch(pattern, rows[-1]):
                return rows
            assert clock.now() < deadline, f"{pattern!r} did not come:\n{shell.text()}"
            time.sleep(0.05)

    try:
        shell.press("PS1='READY> '; clear", "Enter")
        until("READY>")
        words = f"{sys.executable} -m ftrun --log-dir logs --job-id job --device cpu"
        shell.press(f"{words} --replicas 3 --min-replicas 1 script.py", "Enter")
        line = r"job  step [\d,]+  .*3 of 3 replicas.*"
        until(line)
        shell.press("C-z")
        stopped = until("READY>")
        assert any("Stopped" in row for row in stopped)
        assert not any(re.match("job  step", row) for row in stopped)
        shell.press("fg", "Enter")
        found = until(line)
        assert any(row.startswith("[0.0] step") for row in found)
        shell.call("resize-window", "-x", "20", "-y", "20")
        until(r"step [\d,]+  3 of 3")
        shell.call("resize-window", "-x", "100", "-y", "20")
        until(line)
        shell.press("C-c")
        rows = until("READY>")
        assert not any(row.startswith("job  step") for row in rows)
    finally:
        shell.close()
