"""SIGTERM while a script with a Manager waits for a peer that never comes: it leaves in time."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.jobs import Job

GRACE_S = "20"  # at half of it the script is to leave where it stands
HEAD = """
import os, threading, time, torch, ftrun
manager = ftrun.manager(load_state_dict=lambda state: None, state_dict=lambda: {"x": 1})
is_late = os.environ["REPLICA_GROUP_ID"] == "1"
def stop_here():
    print("up", flush=True)
    if is_late:
        threading.Event().wait()
def train(steps):
    for _ in range(steps):
        manager.start_quorum()
        manager.allreduce(torch.ones(2)).wait()
        assert manager.should_commit()
"""
WAITS = {
    "the list of replicas": "stop_here()\nmanager.peers()\n",
    "the first quorum": "stop_here()\nmanager.start_quorum()\n",
    # The request comes after the script has begun its first step, and before its agent knows.
    "the first quorum, asked before its report": """
register = manager.session.engine.register
def asked_first():
    stop_here()
    while not ftrun.stop_requested():
        time.sleep(0.01)
    register()
if is_late:
    stop_here()
manager.session.engine.register = asked_first
manager.start_quorum()
""",
    "a reduction": """
train(2)
manager.start_quorum()
work = None if is_late else manager.allreduce(torch.ones(2))
stop_here()
work.wait()
assert not manager.should_commit()
manager.start_quorum()
""",
    "a commit": """
train(2)
manager.start_quorum()
if not is_late:
    manager.allreduce(torch.ones(2))
stop_here()
assert not manager.should_commit()
manager.start_quorum()
""",
    "a barrier between two steps": """
train(2)
stop_here()
ftrun.ManagedProcessGroup(manager).barrier()
manager.start_quorum()
""",
    "the end of the script": "train(2)\nstop_here()\nmanager.linger()\n",
    "a state to heal from": """
if is_late:
    manager.start_quorum()  # it ends without a state: the step is not committed
    assert not manager.should_commit()
    manager.start_quorum()
manager.disallow_state_dict_read()
manager.start_quorum()
is_late = True
stop_here()
""",
}


FIRST, *OTHERS = WAITS


@pytest.mark.parametrize("waits", [[FIRST], OTHERS], ids=[FIRST, "others"])
def test_it_leaves_within_the_grace(tmp_path: Path, waits: list[str]) -> None:
    """The jobs run side by side, because they wait for most of the time."""
    options = ("--replicas", "2", "--grace", GRACE_S, "--device", "cpu")
    with ExitStack() as stack:
        jobs: dict[str, Job] = {}
        for number, what in enumerate(waits):
            directory = tmp_path / str(number)
            directory.mkdir()
            jobs[what] = stack.enter_context(Job(directory, HEAD + WAITS[what], *options))
        for what, job in jobs.items():
            job.expect(r"\] up", 1 if what == "a state to heal from" else 2)
            job.signal(signal.SIGTERM)
        for what, job in jobs.items():
            assert job.end() == 75, f"{what}:\n{job.output}"
            job.expect(rf"SIGTERM: leaving within {GRACE_S} s")
            for word in ("killed", "did not end", "replica 0 failed", "replica 1 failed", "Trace"):
                assert word not in job.output, f"{what}:\n{job.output}"
            assert job.left() == []
