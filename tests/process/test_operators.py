"""People act on a real job: drain, restart, kill, stacks, ps; and a preempted node of two.

"No step lost" is read from the script: each committed step is printed with the number of workers
that took part, and no replica that stays prints a step twice or leaves one out.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.jobs import THIS_TREE, Job, Lighthouse, run
from tests.process.test_nodes import MODEL

STEPS = f"""{MODEL}
from pathlib import Path
assert not ftrun.stop_requested()
try:
    while not Path("over").exists():
        optimizer.zero_grad()
        ddp(torch.randn(2, 4)).mean().backward()
        optimizer.step()
        print("step", manager.current_step(), flush=True)
        time.sleep(0.05)  # who trains as fast as it can takes half a core from what is tested
except ftrun.Drained:
    print("drained", manager.stop_requested, flush=True)
    raise
"""
WAITS = "import signal\nprint('up', flush=True)\nsignal.pause()\n"
ENDS_ITSELF = """
import signal, time, ftrun
signal.signal(signal.SIGTERM, lambda number, frame: None)
print("up", flush=True)
while not ftrun.stop_requested():
    time.sleep(0.05)  # a signal between the question and a pause() would be waited for for ever
print("stops by itself", flush=True)
"""
CPU = ("--device", "cpu")
COMMAND_S = 180.0


def command(directory: Path, *words: str, state: Path | None = None) -> tuple[int, str]:
    """Run ``ftrun WORDS``; returns its exit code and all that it printed."""
    found = run(
        [sys.executable, "-m", "ftrun", *words],
        cwd=directory,
        env={
            **os.environ,
            "XDG_STATE_HOME": str(state or directory / "state"),
            **THIS_TREE,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=COMMAND_S,
        check=False,
    )
    return found.returncode, found.stdout.decode()


def steps(output: str, replica: int) -> list[int]:
    """The steps that a replica has committed, in order."""
    return [int(x) for x in re.findall(rf"^\[{replica}\.0\] step (\d+)$", output, re.MULTILINE)]


def assert_lost_no_step(output: str, replica: int) -> None:
    found = steps(output, replica)
    assert found == list(range(found[0], found[0] + len(found))), f"replica {replica}: {found}"


def test_drain_restart_kill_and_stacks(tmp_path: Path) -> None:
    with Job(tmp_path, STEPS, "--replicas", "3", *CPU) as job:
        job.expect(r"^\[1\.0\] step 5$")
        code, text = command(tmp_path, "drain", "1")
        gone = r"Replica 1 has left at step \d+\. Replicas 0 and 2 go on\."
        assert code == 0 and re.search(gone, text), text
        job.expect(r"^\[1\.0\] drained True$")
        assert command(tmp_path, "drain", "1") == (0, "Replica 1 is drained already.\n")
        code, text = command(tmp_path, "restart", "job", "1")
        assert code == 0 and "Replica 1 trains again." in text, text
        code, text = command(tmp_path, "restart", "2")
        assert code == 0 and re.search(r"Replica 2 trains again; it left at step \d+\.", text), text
        code, text = command(tmp_path, "stack", "2.0")
        assert code == 0 and "script.py" in text, text
        before = job.output
        assert "Restart 1 of" not in before, "a restart on request costs no restart of the budget"
        code, text = command(tmp_path, "kill", "1.0")
        assert code == 0 and "Worker 1.0 is dead." in text, text
        job.expect(r"replica 1 \(pid \d+\) was killed on request \(ftrun kill\)\. Restart 1 of 10")
        code, text = command(tmp_path, "ps", "--json")
        (shown,) = json.loads(text)["jobs"]
        assert (shown["job"], shown["pid"], shown["replicas"]) == ("job", job.pid, 3)
        code, text = command(tmp_path, "drain")
        assert code == 0, text
        assert job.end() == 75
        assert_lost_no_step(job.output, 0)
        assert job.left() == []
    assert command(tmp_path, "ps") == (0, "No job runs on this machine.\n")


def test_what_cannot_be_done_is_said(tmp_path: Path) -> None:
    with Job(tmp_path, WAITS, "--replicas", "2", "--min-replicas", "2", *CPU) as job:
        job.expect(r"\] up", 2)
        for words, why in (
            (("kill", "7"), "no replica '7': it has 0 to 1"),
            (("kill", "0.1"), "no worker 1"),
            (("drain", "0.0"), "whole replicas"),
            (("drain", "0"), "--min-replicas asks for 2"),
            (("drain", "--node", "moon"), "No agent of this job runs on 'moon'"),
            (("restart",), "Name a replica"),
            (("drain", "other", "0"), "No job other runs"),
        ):
            code, text = command(tmp_path, *words)
            assert code == 2 and why in text, (words, text)
        code, text = command(tmp_path, "drain", "--node", "127.0.0.1")
        assert code == 0, text
        assert job.end() == 75
        assert job.left() == []


def test_a_script_ends_by_itself_and_starts_anew(tmp_path: Path) -> None:
    with Job(tmp_path, ENDS_ITSELF, "--replicas", "2", *CPU) as job:
        job.expect(r"\] up", 2)
        code, text = command(tmp_path, "restart", "1")
        assert code == 0 and "Replica 1 runs again" in text, text
        job.expect(r"^\[1\.0\] stops by itself$")
        job.expect(r"\] up", 3)
        job.signal(signal.SIGTERM)
        assert job.end() == 75
        job.expect(r"stops by itself", 3)
        assert job.left() == []


def test_ps_names_and_removes_what_a_killed_agent_has_left(tmp_path: Path) -> None:
    with Job(tmp_path, WAITS, *CPU) as job:
        job.expect(r"\] up")
        job.process.kill()
        job.process.wait(60)
        code, text = command(tmp_path, "ps")
        assert code == 0 and "job: its agent was killed; its file is removed now." in text
        assert command(tmp_path, "ps") == (0, "No job runs on this machine.\n")
        assert job.left() == []


def test_a_preempted_node_costs_its_peers_no_step(tmp_path: Path) -> None:
    homes = [tmp_path / "a", tmp_path / "b"]
    for home in homes:
        home.mkdir()
    with Lighthouse(tmp_path) as house:
        shared = (*house.found_by, "--nodes", "2", *CPU)
        options = (*shared, "--replicas", "2", "--preempt-signal", "USR1")
        with Job(homes[0], STEPS, *options) as a, Job(homes[1], STEPS, *options) as b:
            for job in (a, b):
                job.expect(r"step 5$")
            other = 0 if steps(b.output, 0) else 1
            b.signal(signal.SIGUSR1)
            assert b.end() == 75
            assert b.left() == []
            b.expect(r"drained True")
            left_at = max(steps(b.output, other))
            a.expect(rf"step {left_at + 20}$")
            assert_lost_no_step(a.output, 1 - other)
            (homes[0] / "over").touch()
            a.signal(signal.SIGTERM)
            a.end()
            assert a.left() == []


def test_a_worker_that_is_about_to_start_is_killed_too(tmp_path: Path) -> None:
    with Job(tmp_path, WAITS, "--replicas", "2", *CPU) as job:
        job.expect(r"\] up", 2)
        assert command(tmp_path, "drain", "1")[0] == 0
        os.kill(job.spawner(), signal.SIGSTOP)
        assert command(tmp_path, "restart", "1", "--no-wait")[0] == 0
        job.until(lambda: command(tmp_path, "kill", "1", "--no-wait")[0] == 0, "asked")
        os.kill(job.spawner(), signal.SIGCONT)
        job.expect(r"replica 1 \(pid \d+\) was killed on request \(ftrun kill\)")
        assert command(tmp_path, "drain")[0] == 0
        assert job.end() == 75
        assert job.left() == []
