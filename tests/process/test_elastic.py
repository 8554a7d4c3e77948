"""A program on torchelastic's API moves by changing its imports: the same file runs with both."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.process.test_launch import Program

PROGRAM = """
if len(sys.argv) > 1 and sys.argv[1] == "torch":
    from torch.distributed.elastic import events, metrics
    from torch.distributed.elastic.agent.server.api import WorkerSpec, WorkerState
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch
else:
    from ftrun.elastic import (
        ChildFailedError, DefaultLogsSpecs, LaunchConfig, LocalElasticAgent, SignalException, Std,
        WorkerSpec, WorkerState, elastic_launch, events, metrics, record,
    )

def config(**changes):
    return LaunchConfig(**{
        "min_nodes": 1, "max_nodes": 1, "nproc_per_node": 2, "run_id": "moved", "max_restarts": 0,
        "rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "monitor_interval": 0.1, **changes,
    })
"""

MOVES = (
    PROGRAM
    + """
def work(word, number):
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    total = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(total)
    dist.destroy_process_group()
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK",
             "ROLE_NAME",
             "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID")
    return word, number, total.item(), [os.environ[name] for name in names]

@record
def fail():
    if os.environ["RANK"] == "1":
        raise ValueError("not this way")
    time.sleep(3600)

def crash():
    if os.environ["RANK"] == "0":
        os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(3600)

def again():
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise RuntimeError("not yet")  # of all workers, before any step: still restarted
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return os.environ["TORCHELASTIC_RESTART_COUNT"]

def failures(entrypoint, *args):
    try:
        return elastic_launch(config(), entrypoint)(*args)
    except ChildFailedError as error:
        found = {}
        for rank, one in error.failures.items():
            if one.exitcode == -signal.SIGTERM:
                continue  # a worker that torchelastic itself has stopped; ftrun does not list it
            text = one.message if isinstance(one.message, str) else one.message["message"]
            stack = "" if isinstance(one.message, str) else one.message["extraInfo"]["py_callstack"]
            found[rank] = [one.local_rank, one.exitcode, one.signal_name(),
                           text.replace(str(one.pid), "PID"), "in fail" in stack]
        return error.name, found, error.get_first_failure()[0]

# main
import json
results = {
    "values": elastic_launch(config(), work)("rank ${local_rank}", 3),
    "restarts": elastic_launch(config(max_restarts=2), again)(),
    "raises": failures(fail),
    "crashes": failures(crash),
    "command": failures("echo", "hello", "${local_rank}"),
    "script": failures(sys.executable, "-u", "beside/one.py", "--flag"),
}
with open(sys.argv[1] + ".json", "w") as file:
    json.dump(results, file)
"""
)
ONE = """
import os, sys, time
assert sys.argv == ["beside/one.py", "--flag"], sys.argv
if os.environ["RANK"] == "1":
    sys.exit(3)
time.sleep(3600)
"""


NO_TRACEBACK = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
RESULTS = {
    "values": {
        str(rank): [
            f"rank {rank}",
            3,
            3.0,
            [str(rank), str(rank), "2", "2", "0", str(rank), "default_role", "0", "0", "moved"],
        ]
        for rank in (0, 1)
    },
    "restarts": {"0": "2", "1": "2"},
    "raises": ["fail", {"1": [1, 1, "<N/A>", "ValueError: not this way", True]}, 1],
    "crashes": [
        "crash",
        {"0": [0, -11, "SIGSEGV", "Signal 11 (SIGSEGV) received by PID PID", False]},
        0,
    ],
    "command": {"0": None, "1": None},
    "script": ["beside/one.py", {"1": [1, 3, "<N/A>", NO_TRACEBACK, False]}, 1],
}


def run_with(tmp_path: Path, library: str) -> Any:
    """The program's results, as ``library`` gives them."""
    with Program(tmp_path, MOVES, args=(library,)) as program:
        assert program.end() == 0, program.output
        return json.loads((tmp_path / f"{library}.json").read_text())


@pytest.mark.parametrize("library", ["ours", pytest.param("torch", marks=pytest.mark.slow)])
def test_the_same_program_has_the_same_results(tmp_path: Path, library: str) -> None:
    """With either library; torch's own results change only with torch, so they are slow."""
    (tmp_path / "beside").mkdir()  # a module where the program starts would have it start by exec
    (tmp_path / "beside" / "one.py").write_text(ONE)
    assert run_with(tmp_path, library) == RESULTS


LIVE = (
    PROGRAM
    + """
def work():
    print("runs", os.environ["RANK"], os.getpid(), flush=True)
    while not os.path.exists("go"):
        time.sleep(0.05)
    return os.environ["TORCHELASTIC_RESTART_COUNT"]

def say(text):
    sys.stdout.write(f"{text}\\n")  # one write, because two threads do this

class Names(metrics.MetricHandler):
    def emit(self, data):
        say(f"metric {data.name} {data.value}")

# main
from ftrun.compat.elastic.translation import OneNode
metrics.configure(Names(), "torchelastic")
spec = WorkerSpec(
    role="default", local_world_size=2, rdzv_handler=OneNode("live"), entrypoint=work,
    max_restarts=1, event_log_handler="console",
)
agent = LocalElasticAgent(spec, DefaultLogsSpecs("logs"))
results = []
thread = threading.Thread(target=lambda: results.append(agent.run()))
say(f"state {agent.get_worker_group().state.name}")
thread.start()
seen = ""
while thread.is_alive():
    group = agent.get_worker_group()
    line = f"{group.state.name} {sorted(worker.id or 0 for worker in group.workers)}"
    if line != seen:
        say(f"state {line}")
        seen = line
    thread.join(0.01)
print("result", results[0].state.name, results[0].return_values, results[0].is_failed())
"""
)


def test_the_group_can_be_looked_at_and_handlers_get_events(tmp_path: Path) -> None:
    with Program(tmp_path, LIVE) as program:
        program.expect(r"runs \d (\d+)", 2)
        first = sorted(int(pid) for pid in program.expect(r"runs \d (\d+)", 2))
        program.expect(rf"^state HEALTHY \[{first[0]}, {first[1]}\]$")
        program.kill_worker(first[0])
        second = sorted(int(pid) for pid in program.expect(r"runs \d (\d+)", 4)[2:])
        program.expect(rf"^state HEALTHY \[{second[0]}, {second[1]}\]$")
        (tmp_path / "go").touch()
        assert program.end() == 0, program.output
        assert "state INIT" in program.output
        assert "result SUCCEEDED {0: '1', 1: '1'} False" in program.output
        for name in ("remaining_restarts 1", "remaining_restarts 0", "stopped 1", "succeeded 1"):
            assert f"metric workers.default.{name}" in program.output
        events = [
            json.loads(line) for line in program.output.splitlines() if line[:8] == '{"name":'
        ]
        killed = [one["metadata"] for one in events if one["name"] == "ftrun.exited"]
        assert (first[0], -9) in {(facts["pid"], facts["status"]) for facts in killed}
        names = [one["name"] for one in events]
        assert names.count("torchelastic.worker.status.SUCCEEDED") == 2
        program.leaves_nothing()


RECORDED = (
    PROGRAM
    + """
def fail():
    raise ValueError("the root cause")

@record
def launch():
    elastic_launch(config(logs_specs=DefaultLogsSpecs("logs")), fail)()

# main
os.environ["TORCHELASTIC_ERROR_FILE"] = "error.json"
launch()
"""
)


def test_a_recorded_launcher_hands_on_the_first_error(tmp_path: Path) -> None:
    with Program(tmp_path, RECORDED) as program:
        assert program.end() == 1
        message = json.loads((tmp_path / "error.json").read_text())["message"]
        assert message["message"] == "ValueError: the root cause"
        assert "in fail" in message["extraInfo"]["py_callstack"]
        assert "Root Cause" in program.output


STOPPED = (
    PROGRAM
    + """
def wait():
    print("runs", flush=True)
    time.sleep(3600)

# main
try:
    elastic_launch(config(), wait)()
except SignalException as error:
    print("stopped by", error.sigval.name)
"""
)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_signals_are_raised_as_torchelastic_raises_them(
    tmp_path: Path, number: signal.Signals
) -> None:
    with Program(tmp_path, STOPPED) as program:
        program.expect(r"\] runs", 2)
        program.signal(number)
        assert program.end() == 0, program.output
        assert f"stopped by {number.name}" in program.output
        program.leaves_nothing()


def test_ftrun_elastic_is_loaded_only_when_it_is_used() -> None:
    code = "import sys, ftrun, ftrun.tools.launching.api; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
