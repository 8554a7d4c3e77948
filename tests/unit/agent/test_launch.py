"""The spawner's launch: it starts before the agent does, and never outlives it."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ftrun.agent import env_markers
from ftrun.agent.launch import SpawnerLaunch, spawner_environment
from ftrun.agent.process import sweeper
from ftrun.base import clock, linux

ROOT = Path(__file__).parents[3]
ENDS_WITHIN_S = 60.0
FTRUN = (sys.executable, "-m", "ftrun")

LAUNCHES_AND_DIES = """
import os, sys
from ftrun.agent.launch import SpawnerLaunch
print(SpawnerLaunch().process.pid, flush=True)
sys.stdin.read()
os._exit(0)
"""


def has_ended(pidfd: int) -> bool:
    ready, _, _ = select.select([pidfd], [], [], ENDS_WITHIN_S)
    return bool(ready)


def test_a_launch_that_nobody_takes_over_ends_with_a_word() -> None:
    launch = SpawnerLaunch()
    assert launch.process.poll() is None
    launch.end()
    assert launch.process.returncode == -9
    launch.end()
    launch.channel.close()
    launch.stores.close()


def test_it_ends_with_its_parent() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCHES_AND_DIES], cwd=ROOT, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    ) as parent:  # fmt: skip
        assert parent.stdin is not None
        assert parent.stdout is not None
        pidfd = os.pidfd_open(int(parent.stdout.readline()))
        parent.stdin.close()
        assert has_ended(pidfd)
        os.close(pidfd)


def test_a_spawner_whose_parent_is_another_by_now_does_nothing() -> None:
    command = [sys.executable, "-m", "ftrun.agent.spawner", "--parent", "1"]
    done = subprocess.run(
        [*command, "--channel", "0", "--stores", "0"], cwd=ROOT, timeout=ENDS_WITHIN_S, check=False
    )
    assert done.returncode == 0


def test_every_launch_has_a_mark_of_its_own_and_one_thread_per_library() -> None:
    environment = spawner_environment("f" * 32)
    assert environment[env_markers.GUARD_NAME] == "f" * 32
    assert environment[env_markers.OWNER_NAME] == env_markers.NO_OWNER
    assert environment["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no_such_script.py"], "does not exist"),
        (["--no-such-flag", "train.py"], "No such option: --no-such-flag"),
        (["--replicas", "2:x", "train.py"], "--replicas"),
    ],
)
def test_a_run_that_is_refused_leaves_no_spawner(
    tmp_path: Path, words: list[str], message: str
) -> None:
    done = subprocess.run(
        [*FTRUN, "--log-dir", str(tmp_path), *words], timeout=ENDS_WITHIN_S,
        capture_output=True, text=True, check=False, env=environment(tmp_path.name),
    )  # fmt: skip
    assert done.returncode == 2
    assert message in done.stderr
    assert marked(tmp_path.name) == []


@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.05, 0.1])
def test_a_command_that_is_killed_while_it_starts_leaves_nobody(
    tmp_path: Path, after_s: float
) -> None:
    """P1 before the agent starts. ``after_s``: from the moment at which both processes run.

    However late that is seen, no worker runs: the spawner does not come to the end of its imports.
    """
    mark = tmp_path.name
    (tmp_path / "never_imported.py").write_text("import signal\nsignal.pause()\n")
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('nobody comes to this')")
    command = [*FTRUN, "--log-dir", str(tmp_path), "--preload", "never_imported", str(script)]
    variables = environment(mark)
    variables["PYTHONPATH"] += f":{tmp_path}"
    with subprocess.Popen(
        command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        deadline = clock.now() + ENDS_WITHIN_S
        while len(marked(mark)) < 2:
            assert clock.now() < deadline, "no spawner was launched"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(after_s)
        process.kill()
        # All that was started holds the other end of this pipe, for as long as it lives.
        assert select.select([process.stdout], [], [], ENDS_WITHIN_S)[0]
        assert process.stdout.read() == b""
    assert marked(mark) == []


def environment(mark: str) -> dict[str, str]:
    return {**os.environ, "MARK_OF_FTRUN_TEST": mark, "PYTHONPATH": str(ROOT)}


def marked(mark: str) -> list[int]:
    """The live processes with this marker."""
    word = f"MARK_OF_FTRUN_TEST={mark}".encode()
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return [pid for pid in pids if word in linux.process_environment(pid)]


def test_a_sweep_spares_a_launch_that_begins_beside_it_meanwhile() -> None:
    """A node whose place ends may just have one parked for the next place."""
    ends = SpawnerLaunch()
    selection = sweeper(ends, frozenset())
    waits = SpawnerLaunch(beside=ends)
    try:
        found = {row.pid for row in selection()}
        assert ends.process.pid in found and waits.process.pid not in found
        waits.end()
        assert waits.guard_id not in ends.guards
    finally:
        for launch in (waits, ends):
            launch.end()
            launch.channel.close()
            launch.stores.close()


def test_a_sweep_spares_a_launch_that_begins_while_it_looks() -> None:
    """Between fork and exec it shows this process's environment, and not its own marker."""
    ends = SpawnerLaunch()
    selection = sweeper(ends, frozenset())
    looks: list[set[int]] = []
    is_over = threading.Event()

    def look() -> None:
        while not is_over.is_set():
            looks.append({row.pid for row in selection()})

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for _ in range(50):
            waits = SpawnerLaunch(beside=ends)
            before, deadline = len(looks), clock.now() + ENDS_WITHIN_S
            while len(looks) < before + 2:  # the look in which it began is over
                assert clock.now() < deadline
                thread.join(0.001)
            is_found = any(waits.process.pid in look for look in looks)
            waits.end()
            waits.channel.close()
            waits.stores.close()
            assert not is_found
            looks.clear()
    finally:
        is_over.set()
        thread.join()
        ends.end()
        ends.channel.close()
        ends.stores.close()
