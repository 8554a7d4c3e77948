"""What a job says of its failures: five kinds, a cascade, and the kernel's out-of-memory killer."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ftrun.core.incident_words import block
from tests.jobs import Job, ask

TRAIN = """
import ctypes, os, pathlib, signal, sys, time
import torch, ftrun
from ftrun import DistributedDataParallel, Optimizer
here = pathlib.Path(sys.argv[1])
me = os.environ["REPLICA_GROUP_ID"] + "." + os.environ["RANK"]
inner = torch.nn.Linear(2, 2)
optim = torch.optim.SGD(inner.parameters(), 0.01)
manager = ftrun.manager(
    lambda state: (inner.load_state_dict(state["m"]), optim.load_state_dict(state["o"])),
    lambda: {"m": inner.state_dict(), "o": optim.state_dict()},
)
ddp, optimizer = DistributedDataParallel(manager, inner), Optimizer(manager, optim)

def bad_batch():
    raise ValueError("the label 11 is out of range")

def fail_once():
    how, whom = (here / "go").read_text().split() if (here / "go").exists() else ("", "")
    mark = here / f"failed by {how}"
    if me != whom or mark.exists():
        return
    mark.touch()
    print("the last line", flush=True)
    if how == "exception":
        bad_batch()
    elif how == "exit":
        os._exit(7)
    elif how == "crash":
        ctypes.string_at(0)
    elif how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "hang":
        ctypes.PyDLL(None).pause()

while not (here / "stop").exists():
    optimizer.zero_grad()
    loss = ddp(torch.randn(4, 2)).square().mean()
    if manager.current_step() >= 3:
        fail_once()
    loss.backward()
    optimizer.step()
    if manager.current_step() == 3:
        print("trains", flush=True)
    time.sleep(0.05)
"""


def _records(job: Job, name: str = "job") -> list[dict[str, Any]]:
    paths = sorted((job.logs / name / "incidents").glob("*.json"))
    return [json.loads(path.read_text()) for path in paths]


def _explain(job: Job, *words: str) -> str:
    done = ask(job.directory, "explain", "--log-dir", str(job.logs), "job", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _tell(directory: Path, name: str, text: str) -> None:
    """Write a file that the workers look at, whole at once."""
    draft = directory / f"{name}.draft"
    draft.write_text(text)
    draft.rename(directory / name)


@dataclass(frozen=True)
class Failure:
    """One way to fail and what its incident states. ``causes``: how the cause may begin."""

    how: str
    replica_id: str
    kind: str
    causes: tuple[str, ...]


FAILURES = (
    Failure("exception", "1", "exception", ("failed: ValueError: the label 11 is out of range",)),
    Failure("exit", "2", "exit code", ("ended with exit code 7",)),
    Failure("crash", "0", "signal", ("died: SIGSEGV",)),
    Failure("kill", "1", "signal", ("died: SIGKILL",)),
    Failure("hang", "2", "hang", ("was given up", "hangs")),
)


def test_each_failure_is_one_incident_with_its_evidence(tmp_path: Path) -> None:
    """One job fails in every way, one after the other; each time a replacement comes back."""
    options = ("--replicas", "3", "--heartbeat-timeout", "2", "--hang-timeout", "4")
    with Job(tmp_path, TRAIN, *options, args=(str(tmp_path),)) as job:
        job.expect(r"\] trains", 3)
        for number, failure in enumerate(FAILURES, 1):
            _tell(tmp_path, "go", f"{failure.how} {failure.replica_id}.0")
            job.until(
                lambda n=number: sum(not x["is_open"] for x in _records(job)) == n,  # type: ignore[misc]
                f"over: {failure.how}",
            )
            _check_incident(_records(job)[-1], failure)
            running = _explain(job)
            assert running.startswith(f"Incident {number}, ")
            assert "repaired the step in place" in running or "again" in running
            assert ("who sent it is not known" in running) == (failure.how == "kill")
        (tmp_path / "stop").touch()
        assert job.end() == 0
        assert len(_records(job)) == len(FAILURES)
        assert _explain(job, "1").startswith("Incident 1, ")  # now from the log directory
        assert json.loads(_explain(job, "--json"))["number"] == len(FAILURES)
        assert f"{len(FAILURES)} incidents" in _explain(job, "--all")
        ending = json.loads((job.logs / "job" / "exit.json").read_text())
        assert (ending["exit_code"], ending["kind"]) == (0, "finished")
        assert job.left() == []


def _check_incident(found: dict[str, Any], failure: Failure) -> None:
    first, worker = found["first_cause"], found["first_cause"]["worker"]
    survivors = sorted({"0", "1", "2"} - {failure.replica_id})
    assert (first["replica_id"], first["kind"]) == (failure.replica_id, failure.kind)
    assert first["cause"].startswith(failure.causes) or failure.causes[-1] in first["cause"]
    assert found["consequences"] == []
    assert found["verdict"] == "restarted"
    assert found["response"]["survivors"] == survivors
    assert {x["replica_id"] for x in found["members"]} >= set(survivors)
    assert found["cost"]["steps"] == 0
    assert first["back_after_s"] > 0 and first["healed"]["donors"]
    assert "the last line" in worker["output"]
    if failure.how == "exception":
        assert "in bad_batch" in worker["traceback"]
    if failure.how == "hang":
        assert "fail_once" in worker["stacks"]


CASCADE = """
import os, signal, sys, torch
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
torch.distributed.all_reduce(torch.ones(1))
if rank == 1:
    print("rank 1 goes", flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)
torch.distributed.all_reduce(torch.ones(1))
signal.pause()
"""


def test_what_follows_in_the_group_is_a_consequence_and_those_we_stop_are_no_failures(
    tmp_path: Path,
) -> None:
    with Job(tmp_path, CASCADE, "-w", "3", "--json-exit") as job:
        assert job.end() == 139
        (found,) = _records(job)
        first = found["first_cause"]
        assert first["worker"]["group_rank"] == 1
        assert first["cause"] == "died: SIGSEGV"
        for other in first["other_workers"]:  # an error that came before our SIGKILL
            assert other["kind"] == "peer lost", other
        assert found["verdict"] == "ended"
        assert "failed before the first step: SIGSEGV" in found["verdict_words"]
        text = "\n".join(block(found))
        assert "first cause: replica 0, worker 1 (pid" in text
        ending = json.loads(job.output.splitlines()[-1])
        assert (ending["kind"], ending["source"], ending["exit_code"]) == ("signal", "script", 139)
        assert job.left() == []


def test_the_same_error_twice_at_one_step_ends_the_job_with_its_own_code(tmp_path: Path) -> None:
    source = TRAIN.replace(" or mark.exists()", "")
    _tell(tmp_path, "go", "exception 0.0")
    with Job(tmp_path, source, "--replicas", "1", args=(str(tmp_path),)) as job:
        assert job.end() == 73
        assert "restarting will not help: replica 0 has failed twice" in job.output
        last = _records(job)[-1]
        assert last["verdict"] == "will not help"
        ending = json.loads((job.logs / "job" / "exit.json").read_text())
        assert (ending["kind"], ending["source"]) == ("will_not_help", "ftrun")
        assert job.left() == []


def test_an_unhealthy_node_restarts_nothing_and_says_why(tmp_path: Path) -> None:
    source = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    check = "echo GPU 3 has fallen off the bus; exit 4"
    options = ("--max-restarts", "1", "--health-check", check, "--event-log-handler", "console")
    with Job(tmp_path, source, *options) as job:
        assert job.end() == 137
        why = "--health-check ended with exit code 4: GPU 3 has fallen off the bus"
        assert f"replica 0 cannot be restarted: {why}" in job.output
        events = [json.loads(x) for x in job.output.splitlines() if x.startswith('{"name"')]
        assert [x["name"] for x in events] == [
            "ftrun.replica.started",
            "ftrun.replica.failed",
            "ftrun.replica.failed",
            "ftrun.agent.ended",
        ]
        assert job.left() == []


HUNGRY = """
import torch
print("eats", flush=True)
kept = []
while True:
    kept.append(torch.ones(1 << 20))
"""


@contextlib.contextmanager
def _small_cgroup(name: str) -> Iterator[Path]:
    """A memory cgroup of this test, in either version; skipped where none can be made."""
    root = Path("/sys/fs/cgroup")
    parent = root / "memory" if (root / "memory").is_dir() else root
    group = parent / name
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made: {error}")
    try:
        limit = "memory.limit_in_bytes" if parent != root else "memory.max"
        try:
            (group / limit).write_text(str(700 << 20))
        except OSError as error:
            pytest.skip(f"this machine's cgroups have no limit on memory: {error}")
        yield group
    finally:
        group.rmdir()


def test_a_worker_that_the_kernel_ends_for_want_of_memory_is_recognised(tmp_path: Path) -> None:
    with _small_cgroup(f"ftrun-test-{os.getpid()}") as group:
        enter = f"import os; open({str(group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
        with Job(tmp_path, enter + HUNGRY, "--max-restarts", "0") as job:
            assert job.end() == 128 + signal.SIGKILL
            (found,) = _records(job)
            assert found["first_cause"]["kind"] == "out of memory"
            assert found["first_cause"]["cause"] == "died: SIGKILL, out of memory"
            assert job.left() == []
