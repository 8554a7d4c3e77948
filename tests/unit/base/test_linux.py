"""What Linux offers, tried on real processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.base import clock, linux


def run_python(code: str, **options: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True,
        env={**os.environ, **options},
    )  # fmt: skip
    return done.stdout


def test_a_row_tells_parent_and_state() -> None:
    with subprocess.Popen(["sleep", "100"]) as child:
        row = linux.process_row(child.pid)
        assert row is not None
        assert row.ppid == os.getpid()
        assert not row.is_zombie
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        row = linux.process_row(child.pid)
        assert row is not None
        assert row.is_zombie
    assert linux.process_row(child.pid) is None


@pytest.mark.parametrize(
    ("how", "status"), [("exit(7)", 7), ("exit(0)", 0), ("kill(9)", -9), ("kill(11)", -11)]
)
def test_a_zombie_tells_how_it_ended(how: str, status: int) -> None:
    code = f"import os; exit, kill = os._exit, lambda n: os.kill(os.getpid(), n); {how}"
    with subprocess.Popen([sys.executable, "-c", code]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert linux.status_of_zombie(child.pid) == status
    assert linux.status_of_zombie(child.pid) is None
    assert linux.status_of_zombie(os.getpid()) is None


def test_a_name_with_spaces_and_brackets_is_read_right() -> None:
    code = (
        "import os; from ftrun.base import linux; linux.title_process('a) S 1 (b');"
        "row = linux.process_row(os.getpid()); print(row.ppid == os.getppid())"
    )
    assert run_python(code) == "True\n"


def test_a_signal_reaches_the_process_of_the_row_and_no_later_one() -> None:
    with subprocess.Popen(["sleep", "100"]) as child:
        row = linux.process_row(child.pid)
        assert row is not None
        stranger = linux.ProcessRow(row.pid, row.ppid, "S", row.start_ticks - 1, row.cpu_s)
        assert linux.send_signal(stranger, signal.SIGKILL) is None
        assert child.poll() is None
        pidfd = linux.send_signal(row, signal.SIGKILL)
        assert pidfd is not None
        os.close(pidfd)
        assert child.wait(10) == -signal.SIGKILL
    assert linux.send_signal(row, signal.SIGKILL) is None


def test_a_fork_can_change_what_proc_shows_of_its_environment() -> None:
    code = (
        "import os; from ftrun.base import linux\n"
        "os.environ['MARK'] = os.environ['MARK']\n"  # as a library may: getenv's is elsewhere now
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    linux.write_own_environment('MARK', 'abcd')\n"
        "    print(b'MARK=abcd' in linux.process_environment(os.getpid()), flush=True)\n"
        "    print(b'MARK=----' in linux.process_environment(os.getppid()), flush=True)\n"
        "    os._exit(0)\n"
        "os.waitpid(pid, 0)"
    )
    assert run_python(code, MARK="----") == "True\nTrue\n"


@contextlib.contextmanager
def running(words: list[str], environment: dict[str, str]) -> Iterator[int]:
    with subprocess.Popen(words, env=environment) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def test_a_process_shows_its_words_and_its_environment_also_while_it_calls_exec(
    tmp_path: Path,
) -> None:
    again = tmp_path / "again"
    again.write_text('exec /bin/sh "$0"\n')
    with running(["/bin/sh", str(again)], {"MARK": "abcd"}) as pid:
        shown = {(linux.process_environment(pid), linux.command_line(pid)) for _ in range(2000)}
    words = f"/bin/sh {again}"
    assert {(b"MARK=abcd" in each, command) for each, command in shown} == {(True, words)}


def test_an_environment_that_is_empty_is_not_waited_for() -> None:
    with running(["/bin/sleep", "1000"], {}) as pid:
        began = clock.now()
        for _ in range(200):
            assert linux.process_environment(pid) == b""
        assert clock.now() < began + 100 * linux.EXEC_S


def test_without_a_placeholder_the_environment_is_not_written() -> None:
    with pytest.raises(ValueError, match="no placeholder"):
        linux.write_own_environment("FTRUN_NO_SUCH_NAME", "x")


def test_a_title_replaces_the_command_that_ps_shows() -> None:
    code = (
        "from ftrun.base import linux; linux.title_process('ftrun worker 0.0: t.py');"
        "print(open('/proc/self/cmdline', 'rb').read().rstrip(b'\\0').decode());"
        "print(open('/proc/self/comm').read().strip())"
    )
    assert run_python(code) == "ftrun worker 0.0: t.py\nftrun worker 0.\n"


def test_a_child_dies_with_its_parent() -> None:
    code = (
        "import os, signal, sys; from ftrun.base import linux\n"
        "parent = os.getpid()\n"
        "if os.fork() == 0:\n"
        "    assert linux.die_with_parent(parent)\n"
        "    print(os.getpid(), flush=True)\n"
        "    signal.pause()\n"
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        pidfd = os.pidfd_open(child)
        parent.kill()
        parent.wait(10)
        # The pipe ends when the last holder, the child, is gone.
        assert parent.stdout.read() == b""
        os.close(pidfd)


def test_an_orphan_is_reaped_and_a_child_of_before_is_not() -> None:
    code = (
        "import os, subprocess; from ftrun.base import linux\n"
        "before = subprocess.Popen(['true'])\n"
        "linux.become_subreaper()\n"
        "r, w = os.pipe()\n"  # The orphan outlives its parent, or that one would reap it.
        "script = f'(read x <&{r}; exit 7) >/dev/null & echo $!'\n"
        "done = subprocess.run(['sh', '-c', script], stdout=subprocess.PIPE, pass_fds=[r])\n"
        "os.close(w)\n"
        "orphan = int(done.stdout)\n"
        "os.waitid(os.P_PID, orphan, os.WEXITED | os.WNOWAIT)\n"
        "linux.reap_strays(frozenset({before.pid}))\n"
        "print(linux.process_row(orphan), before.wait())"
    )
    assert run_python(code) == "None 0\n"
