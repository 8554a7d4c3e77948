"""torch's plugins in real jobs: a LogsSpecs places the output, a handler gets torchrun's events."""

from __future__ import annotations

import json
import os
import signal
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests import jobs

PLUGINS = '''
import logging, os
from torch.distributed.elastic.events import handlers
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest, LogsSpecs

class Raises(logging.Handler):
    def emit(self, record):
        raise ValueError("no room")

handlers._log_handlers["to-file"] = logging.FileHandler("events", delay=True)
handlers._log_handlers["raises"] = Raises()

def backend():
    return lambda parameters: None

class Placed(LogsSpecs):
    """Standard output of rank 0 to a file and the terminal, of rank 1 nowhere else."""

    def reify(self, envs):
        ranks = sorted(envs)
        for rank in ranks:
            envs[rank]["PLACED"] = f"{self._root_log_dir} {int(self._tee)} {len(envs)}"
        attempt = envs[0]["TORCHELASTIC_RESTART_COUNT"]
        return LogsDest(
            stdouts={0: f"placed/{attempt}.out", 1: os.devnull},
            stderrs={rank: "" for rank in ranks},
            tee_stdouts={0: f"placed/{attempt}.out"},
            error_files={rank: "" for rank in ranks},
            filtered_stdout="placed/filtered",
        )

    @property
    def root_log_dir(self):
        return str(self._root_log_dir)

class Own(DefaultLogsSpecs):
    pass

class Fails(Own):
    def reify(self, envs):
        raise OSError("the log server is away")

class Unmade(Own):
    def __init__(self, **options):
        raise OSError("no place for logs")
'''
ENTRY_POINTS = """
[torchrun.logs_specs]
placed = plugins_of_test:Placed
own = plugins_of_test:Own
fails = plugins_of_test:Fails
unmade = plugins_of_test:Unmade
unloadable = plugins_of_test:Nothing
[torchrun.handlers]
of-test = plugins_of_test:backend
"""


class Job(jobs.Job):
    """A job that finds the plugins as torchrun would: by PYTHONPATH."""

    def __init__(self, directory: Path, script: str, *options: str) -> None:
        path = {"PYTHONPATH": f"{directory}{os.pathsep}{jobs.ROOT}"}
        super().__init__(directory, script, *options, environment=path)


SCRIPT = """
import os, sys
print("out", os.environ["RANK"], os.environ.get("PLACED"), flush=True)
print("err", os.environ["RANK"], file=sys.stderr, flush=True)
if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    from torch.distributed.elastic.multiprocessing.errors import record
    @record
    def main():
        raise ValueError("the first time")
    main()
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A working directory in which a package with plugins is installed."""
    (tmp_path / "plugins_of_test.py").write_text(PLUGINS)
    installed = tmp_path / "plugins_of_test-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Name: plugins-of-test\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(textwrap.dedent(ENTRY_POINTS))
    return tmp_path


def events_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.timeout(600)
def test_a_logs_specs_places_each_stream_and_may_set_variables(directory: Path) -> None:
    options = ("--logs-specs", "placed", "-t", "1", "--duplicate-stdout-filters", "out 1")
    with Job(directory, SCRIPT, "--nproc-per-node", "2", "--max-restarts", "1", *options) as job:
        assert job.end() == 0
        job.expect(rf"^\[0\.0\] out 0 {directory}/logs 1 2$", 2)
        job.expect(r"^\[0\.1\] err 1$", 2)
        job.expect(r"failed: ValueError: the first time\. Restart 1 of 1")
        assert "[0.1] out" not in job.output
        assert (directory / "placed" / "0.out").read_text().startswith("out 0 ")
        assert (directory / "placed" / "1.out").read_text().startswith("out 0 ")
        assert (directory / "placed" / "filtered").read_text().count("out 1") == 2
        assert "out 1" in (job.logs / "job" / "replica_0" / "rank_1" / "1.log").read_text()
        assert job.left() == []


@pytest.mark.timeout(600)
def test_torchs_own_class_by_another_name_writes_its_tree(directory: Path) -> None:
    with Job(
        directory, SCRIPT, "--nproc-per-node", "2", "--max-restarts", "1", "--logs-specs", "own",
        "-r", "1:3",
    ) as job:  # fmt: skip
        assert job.end() == 0
        job.expect(r"failed: ValueError: the first time\. Restart 1 of 1")
        job.expect(r"^\[0\.0\] out 0 None$", 2)
        (tree,) = job.logs.glob("job_*")
        assert (tree / "attempt_0" / "1" / "stdout.log").read_text() == "out 1 None\n"
        assert "the first time" in (tree / "attempt_0" / "1" / "error.json").read_text()
        assert (tree / "attempt_1" / "1" / "stderr.log").read_text() == "err 1\n"
        assert "[0.1] out" not in job.output


@pytest.mark.timeout(600)
def test_a_handler_gets_torchruns_events(directory: Path) -> None:
    with Job(
        directory, SCRIPT, "--nproc-per-node", "2", "--max-restarts", "1", "--role", "learner",
        "--event-log-handler", "to-file",
    ) as job:  # fmt: skip
        assert job.end() == 0
        found = events_of(directory / "events")
        assert job.left() == []
    states = [
        (one["source"], one["metadata"]["state"], one["metadata"]["global_rank"])
        for one in found
        if one["name"].startswith("torchelastic.")
    ]
    starts = [("WORKER", "START", rank) for rank in (0, 1)]
    ends = [("WORKER", "SUCCEEDED", 0), ("WORKER", "SUCCEEDED", 1), ("AGENT", "SUCCEEDED", None)]
    assert sorted(states[:2]) == sorted(states[2:4]) == starts
    assert states[4:] == ends
    assert {one["metadata"]["role"] for one in found} == {"learner"}
    assert {one["metadata"]["run_id"] for one in found} == {"job"}
    raised = [one["metadata"] for one in found if one["name"] == "ftrun.exited"]
    assert (1, 1) in [(facts["rank"], facts["status"]) for facts in raised]


@pytest.mark.timeout(600)
def test_a_failed_job_has_the_failures_of_its_workers(directory: Path) -> None:
    with Job(directory, SCRIPT, "--nproc-per-node", "2", "--event-log-handler", "to-file") as job:
        assert job.end() == 1
    last = [one["metadata"] for one in events_of(directory / "events")][-3:]
    assert [facts["state"] for facts in last[1:]] == ["FAILED", "SUCCEEDED"]
    assert "the first time" in last[1]["raw_error"]


@pytest.mark.timeout(600)
def test_a_handler_that_raises_costs_its_events_only(directory: Path) -> None:
    with Job(
        directory, "print('well')", "--nproc-per-node", "1", "--event-log-handler", "raises"
    ) as job:
        assert job.end() == 0
        job.expect(r"--event-log-handler raises has failed at an event \(ValueError: no room\)")
        assert job.output.count("has failed at an event") == 1


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(
            ("--logs-specs", "none"),
            r"Give one of default, fails, own, placed, unloadable, unmade",
            marks=pytest.mark.slow,
        ),
        (("--logs-specs", "unloadable"), r"--logs-specs unloadable: it cannot be loaded: Attr"),
        pytest.param(
            ("--logs-specs", "unmade"),
            r"unmade: it cannot be made: OSError: no place for logs",
            marks=pytest.mark.slow,
        ),
        (
            ("--event-log-handler", "none"),
            r"there are console, dynamic_rendezvous, null, raises, to-file\. Nothing was started",
        ),
    ],
)
def test_a_plugin_that_cannot_be_used_starts_nothing(
    directory: Path, options: tuple[str, str], message: str
) -> None:
    with Job(directory, "print('ran')", "--nproc-per-node", "1", *options) as job:
        assert job.end() == 2
        job.expect(message)
        assert "ran" not in job.output
        assert job.left() == []


@pytest.mark.timeout(600)
def test_the_process_of_the_plugins_does_not_outlive_the_agent(directory: Path) -> None:
    script = "import threading; print('up', flush=True); threading.Event().wait()"
    with Job(directory, script, "--nproc-per-node", "1", "--logs-specs", "own") as job:
        job.expect(r"up$")
        job.expect_process("ftrun plugins")
        job.signal(signal.SIGKILL)
        assert job.left() == []


@pytest.mark.timeout(600)
def test_events_end_with_the_process_of_the_plugins_and_the_job_goes_on(directory: Path) -> None:
    script = "import threading; print('up', flush=True); threading.Event().wait()"
    with Job(directory, script, "--nproc-per-node", "1", "--event-log-handler", "to-file") as job:
        job.expect(r"up$")
        os.kill(job.expect_process("ftrun plugins"), signal.SIGKILL)
        job.expect(r"The process of torch's plugins has ended: no handler gets events any more")
        job.signal(signal.SIGTERM)
        assert job.end() == 75
        assert job.left() == []


@pytest.mark.timeout(600)
def test_a_logs_specs_that_fails_at_a_start_fails_that_start(directory: Path) -> None:
    with Job(directory, "print('ran')", "--nproc-per-node", "2", "--logs-specs", "fails") as job:
        assert job.end() == 1
        job.expect(r"could not be started: --logs-specs fails: its reify has failed: OSError: the")
        assert "] ran" not in job.output
        assert job.left() == []
