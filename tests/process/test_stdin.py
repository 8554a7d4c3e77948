"""Standard input: of the one worker that may read it, through a pipe and at a terminal."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

from tests.jobs import ROOT, run

READS = "import os, sys; print('read', os.environ['RANK'], sys.stdin.read().split(), flush=True)"
ASKS = "name = input('who? '); print('hello', name); breakpoint(); print('went on')"
TIMEOUT_S = 60.0


def command(directory: Path, source: str, *options: str) -> tuple[list[str], dict[str, str]]:
    script = directory / "script.py"
    script.write_text(source)
    words = [sys.executable, "-m", "ftrun", "--log-dir", str(directory / "logs"), *options]
    return [*words, str(script)], {**os.environ, "PYTHONPATH": str(ROOT)}


def piped(words: list[str], environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """The command to its end, with two words in its standard input."""
    reads, writes = os.pipe()
    os.write(writes, b"two words")
    os.close(writes)
    with open(reads) as pipe:
        return run(
            words, env=environ, stdin=pipe, capture_output=True, text=True, timeout=TIMEOUT_S
        )


def test_a_pipe_reaches_the_first_worker_and_no_other(tmp_path: Path) -> None:
    done = piped(*command(tmp_path, READS, "-w", "2"))
    assert "read 0 ['two', 'words']" in done.stdout
    assert "read 1 []" in done.stdout


def test_replicas_read_nothing_unless_one_is_named(tmp_path: Path) -> None:
    source = READS.replace("RANK", "REPLICA_GROUP_ID")
    done = piped(*command(tmp_path, source, "--replicas", "2", "--stdin", "1.0"))
    assert "read 1 ['two', 'words']" in done.stdout
    assert "read 0 []" in done.stdout


def test_a_worker_that_is_not_there_is_refused(tmp_path: Path) -> None:
    done = piped(*command(tmp_path, READS, "--stdin", "1.0"))
    assert done.returncode == 2
    assert "--stdin '1.0': give REPLICA.RANK of a worker of this job" in done.stderr


def test_input_and_a_debugger_work_at_a_terminal(tmp_path: Path) -> None:
    words, environ = command(tmp_path, ASKS)
    pid, master = pty.fork()
    if pid == 0:
        os.execve(sys.executable, words, environ)
    screen = b""

    def expect(text: bytes) -> None:
        nonlocal screen
        deadline = time.monotonic() + TIMEOUT_S
        while text not in screen:
            left = deadline - time.monotonic()
            assert left > 0, screen
            if select.select([master], [], [], left)[0]:
                screen += os.read(master, 4096)

    try:
        expect(b"who? ")
        os.write(master, b"ada\n")
        expect(b"hello ada")
        expect(b"(Pdb) ")
        os.write(master, b"p 6 * 7\n")
        expect(b"42")
        os.write(master, b"c\n")
        expect(b"went on")
        expect(b"The job has finished")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        pid = 0
    finally:
        if pid:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
        os.close(master)
