"""``ftrun SCRIPT`` with plain scripts: output, arguments, environment, exit codes, restarts."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ftrun.agent.late_status import STATUS_LATE_S, STATUS_LOOKS
from ftrun.base import linux
from ftrun.base.own_process import command
from ftrun.core.agent.ending import ECHO_S
from tests.jobs import Job

HELLO = """
import multiprocessing, os, sys, threading
print("args", sys.argv[1:], "name", __name__, "file", os.path.basename(__file__))
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], os.environ["NUM_REPLICA_GROUPS"])
print("path", os.path.realpath(sys.path[0]) == os.path.dirname(os.path.realpath(__file__)))
print("threads", threading.active_count(), len(os.listdir("/proc/self/task")))
print("to stderr", file=sys.stderr)
print("token", any(len(value) == 64 for value in os.environ.values()))
def child(queue):
    queue.put("from a child of a child")
if __name__ == "__main__":
    import atexit, torch
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    process = multiprocessing.get_context("spawn").Process(target=child, args=(queue,))
    process.start()
    print(queue.get())
    process.join()
    atexit.register(print, "at exit", __name__)
    torch.distributed.init_process_group("gloo")
    flag = torch.ones(1)
    torch.distributed.all_reduce(flag)
    print("sum", int(flag))
    torch.distributed.destroy_process_group()
"""


def test_a_plain_script_runs_as_python_would_run_it(tmp_path: Path) -> None:
    with Job(tmp_path, HELLO, "-w", "2", args=("--lr", "3", "--help"), fresh=True) as job:
        assert job.end() == 0
        for rank in (0, 1):
            log = job.log(0, 0, rank)
            assert "args ['--lr', '3', '--help'] name __main__ file script.py" in log
            assert f"rank {rank} of 2 1" in log
            assert "path True" in log
            assert "threads 1 1" in log
            assert "token False" in log
            assert "from a child of a child" in log
            assert "at exit __main__" in log
            assert "sum 2" in log
            assert "to stderr" in log
            assert f"[0.{rank}] rank {rank} of 2 1" in job.output
        assert "replica 0: finished" in job.output
        assert job.left() == []


KILLABLE = """
import os, signal, sys
print("up", os.getpid(), os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
sys.stdin.read()
signal.pause()
"""


def test_a_killed_worker_is_replaced_and_nobody_else_is_touched(tmp_path: Path) -> None:
    with Job(tmp_path, KILLABLE, "--replicas", "2", "-w", "2") as job:
        job.expect(r"up \d+ 0", 4)
        assert "without a Manager" not in job.output  # it may still make one
        before = {slot: job.worker(slot // 2, slot % 2) for slot in range(4)}
        os.kill(before[1], signal.SIGKILL)
        job.expect(r"up \d+ 1", 2)
        after = {slot: job.worker(slot // 2, slot % 2) for slot in range(4)}
        assert (after[2], after[3]) == (before[2], before[3])
        assert not {after[0], after[1]} & set(before.values())
        assert "replica 0, worker 1" in job.output
        assert f"(pid {before[1]}) died: SIGKILL. Restart 1 of 10 now." in job.output
        assert_the_token_is_nowhere(job)
        job.signal(signal.SIGTERM)
        assert job.end() == 75
        assert job.left() == []
        assert "up" in job.log(0, 0)
        assert "up" in job.log(0, 1)
        assert list(job.directory.glob("state/ftrun/jobs/*")) == []


@pytest.mark.slow
def test_how_a_worker_died_is_known_while_the_spawner_cannot_say(tmp_path: Path) -> None:
    """The spawner may be busy with an import for seconds: the kernel has the status meanwhile."""
    with Job(tmp_path, KILLABLE, "--replicas", "2") as job:
        job.expect(r"up \d+ 0", 2)
        spawner, victim = job.spawner(), job.worker(0)
        os.kill(spawner, signal.SIGSTOP)
        os.kill(victim, signal.SIGKILL)
        job.expect(rf"replica 0 \(pid {victim}\) died: SIGKILL. Restart 1 of 10 now")
        os.kill(spawner, signal.SIGCONT)
        job.expect(r"up \d+ 1")
        job.signal(signal.SIGTERM)
        assert job.end() == 75
        assert job.output.count("died:") == 1


ENDS_WHEN_TOLD = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
print("up", flush=True)
signal.sigwait({signal.SIGUSR1})
"""


@pytest.mark.slow
def test_who_has_ended_well_is_not_failed_for_a_spawner_that_cannot_say(tmp_path: Path) -> None:
    with Job(tmp_path, ENDS_WHEN_TOLD) as job:
        job.expect("up")
        spawner, worker = job.spawner(), job.worker(0)
        os.kill(spawner, signal.SIGSTOP)
        os.kill(worker, signal.SIGUSR1)
        job.until(lambda: linux.status_of_zombie(worker) == 0, "ended")
        job.prints_more(len(job.output), STATUS_LATE_S * (STATUS_LOOKS + 4))
        os.kill(spawner, signal.SIGCONT)
        assert job.end() == 0
        assert "replica 0: finished" in job.output


def assert_the_token_is_nowhere(job: Job) -> None:
    """X4: it is in the file that the job's file names, and in no argv, environment or log."""
    (job_file,) = job.directory.glob("state/ftrun/jobs/*/*.json")
    token_file = Path(json.loads(job_file.read_text())["token_file"])
    assert token_file.stat().st_mode & 0o777 == 0o600
    token = token_file.read_bytes().strip()
    assert len(token) == 64
    for pid in job.pids():
        assert token not in Path(f"/proc/{pid}/cmdline").read_bytes()
        assert token not in Path(f"/proc/{pid}/environ").read_bytes()
    assert all(token not in path.read_bytes() for path in job.logs.rglob("*.log"))
    assert token.decode() not in job.output


BROKEN = """
import os, signal, sys
def broken():
    raise ValueError('no such data')

if os.environ["REPLICA_GROUP_ID"] in sys.argv[1:]:
    broken()
signal.pause()
"""


def test_the_same_error_before_any_step_on_all_replicas_is_told_once(tmp_path: Path) -> None:
    with Job(tmp_path, BROKEN, "--replicas", "2", args=("0", "1")) as job:
        assert job.end() == 1
        words = "all 2 replicas failed before the first step: ValueError: no such data"
        assert f"The job has ended with exit code 1 ({words})" in job.output
        assert len(re.findall(r"ftrun: +\| ValueError: no such data", job.output)) == 1
        assert 'script.py", line 4, in broken' in job.output
        assert "bootstrap.py" not in job.output
        assert "stopping.py" not in job.output
        assert re.search(r"replica [01]: failed, 0 steps, 0 restarts", job.output)
        assert job.left() == []


def test_a_script_that_raises_on_one_replica_only_is_tried_twice(tmp_path: Path) -> None:
    with Job(tmp_path, BROKEN, "--replicas", "2", args=("1",)) as job:
        assert job.end() == 73
        assert "restarting will not help: replica 1 has failed twice" in job.output
        assert "| ValueError: no such data" in job.output
        assert 'script.py", line 4, in broken' in job.output
        assert job.left() == []


def test_a_wrong_usage_of_the_script_is_told_once(tmp_path: Path) -> None:
    source = "import argparse\nargparse.ArgumentParser().parse_args(['--nonsense'])\n"
    with Job(tmp_path, source, "--replicas", "2") as job:
        assert job.end() == 2
        assert "the script failed before the first step" in job.output
        assert "Restart 2" not in job.output
        assert job.left() == []


@pytest.mark.parametrize(
    ("source", "code", "words"),
    [
        ("raise SystemExit(42)", 42, "ended with exit code 42"),
        pytest.param("import os; os._exit(7)", 7, "exit code 7", marks=pytest.mark.slow),
        pytest.param(
            "import os; os.kill(os.getpid(), 11)", 139, "died: SIGSEGV", marks=pytest.mark.slow
        ),
        pytest.param(
            "raise SystemExit('no data here')", 1, "SystemExit: no data here",
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_the_scripts_exit_code_is_the_jobs(
    tmp_path: Path, source: str, code: int, words: str
) -> None:
    with Job(tmp_path, source, "--max-restarts", "0") as job:
        assert job.end() == code
        assert words in job.output


SAVES = """
import os, signal, sys, time
def leave(number, frame):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("up", flush=True)
while True:
    signal.pause()
"""


@pytest.mark.slow
def test_sigterm_lets_a_script_save_and_ends_preempted(tmp_path: Path) -> None:
    with Job(tmp_path, SAVES) as job:
        job.expect("up")
        job.signal(signal.SIGTERM)
        assert job.end() == 75
        assert "saved" in job.output


STUBBORN = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
while True:
    signal.pause()
"""


def test_who_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    with Job(tmp_path, STUBBORN, "--grace", "1") as job:
        job.expect("up")
        job.signal(signal.SIGTERM)
        assert job.end() == 75
        cause = "did not end within --grace 1 s and was killed; its checkpoint may be unfinished"
        assert f"replica 0 {cause}." in job.output
        assert re.search(rf"replica 0: killed, .*: it {cause}$", job.output, re.MULTILINE)


def test_a_second_ctrl_c_does_not_wait(tmp_path: Path) -> None:
    deaf = f"import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n{STUBBORN}"
    with Job(tmp_path, deaf, "--grace", "1000") as job:
        job.expect("up")
        job.signal(signal.SIGINT)
        job.expect("SIGINT: leaving")
        time.sleep(2 * ECHO_S)  # the same signal at once would be the same one, sent by two
        job.signal(signal.SIGINT)
        assert job.end() == 130
        assert re.search(r"replica 0: killed, .*: it was killed by a second request", job.output)
        assert job.left() == []


def test_ctrl_c_while_all_is_still_starting_ends_at_once(tmp_path: Path) -> None:
    with Job(tmp_path, STUBBORN, fresh=True) as job:
        job.expect_process(" ".join(command("ftrun.agent.spawner", (), forks=True)))
        job.signal(signal.SIGINT)
        assert job.end() == 130
        assert job.left() == []


@pytest.mark.slow
def test_a_module_runs_with_m(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text("import sys; print('module', sys.argv[1:])")
    with Job(tmp_path, "", "-m", "package.train", args=("--x",)) as job:
        # The script's path is what the module gets as its first argument here.
        assert job.end() == 0
        assert "module" in job.output
        assert "'--x']" in job.output


def test_no_lighthouse_is_said_at_once_and_ends_with_71(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a" * 64)
    token.chmod(0o600)
    options = ("--lighthouse", "127.0.0.1:1", "--token-file", str(token), "--join-timeout", "2")
    with Job(tmp_path, "", *options) as job:
        job.expect(r"No lighthouse answers at 127\.0\.0\.1:1 \(try 1")
        assert "ftrun lighthouse --bind 127.0.0.1:1" in job.output
        assert job.end() == 71
        assert job.left() == []


@pytest.mark.slow
def test_closed_standard_streams_cost_the_output_only(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("print('hello')")
    command = f"exec {sys.executable} -m ftrun --job-id job {script} >&- 2>&- <&-"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, env=environment, timeout=300, check=False
    )
    assert done.returncode == 0
    assert (tmp_path / "ftrun-logs/job/replica_0/rank_0/0.log").read_text() == "hello\n"


@pytest.mark.slow
def test_a_preload_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    with Job(tmp_path, "", "--preload", "no_such_module_at_all") as job:
        assert job.end() == 2
        assert "--preload no_such_module_at_all: ModuleNotFoundError" in job.output


@pytest.mark.slow
def test_imports_that_outlast_the_join_timeout_are_waited_for(tmp_path: Path) -> None:
    (tmp_path / "from_a_cold_disk.py").write_text("import time; time.sleep(14)")
    options = ("--preload", "from_a_cold_disk", "--join-timeout", "8")
    with Job(tmp_path, "print('trains')", *options) as job:
        assert job.end() == 0
        assert "trains" in job.log(0, 0, 0)
        assert "no lighthouse" not in job.output.lower()


PLAIN = """
import os, sys, torch
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
mark = os.path.join(os.path.dirname(__file__), "died")
for step in range(40):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    if step == 10 and dist.get_rank() == 1 and not os.path.exists(mark):
        open(mark, "w").close()
        if sys.argv[1] == "killed":
            os.kill(os.getpid(), 9)
        raise OSError("a disk is full for a moment")
print("ended", dist.get_rank(), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("how", ["killed", "raised"])
def test_a_plain_script_that_trains_is_started_again(tmp_path: Path, how: str) -> None:
    """Its optimizer has stepped: no failed start, and the other worker's error is not the cause."""
    with Job(tmp_path, PLAIN, "-w", "2", "--memory-snapshots", "off", args=(how,)) as job:
        assert job.end() == 0, job.output
        assert "ended 0" in job.log(0, 1, 0) and "ended 1" in job.log(0, 1, 1)
        assert "Restart 1 of 10" in job.output
        assert "before the first step" not in job.output
