"""What a script finds, beside what it finds under torchrun itself; and what it may leave."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.jobs import Job, free_port

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 180.0
RANKS = (
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
    "ROLE_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_NAME", "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_SIGNALS_TO_HANDLE", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "OMP_NUM_THREADS",
)  # fmt: skip

CHECKS = """
import json, os, sys
import torch.distributed as dist
dist.init_process_group("gloo")
assert dist.is_torchelastic_launched()
assert dist.get_rank() == int(os.environ["RANK"])
assert dist.get_world_size() == int(os.environ["WORLD_SIZE"])
import torch
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
facts = {
    "environment": dict(os.environ), "argv": sys.argv, "file": __file__, "sum": float(total),
    "orig": sys.orig_argv, "cwd": os.getcwd(),
}
with open(f"{sys.argv[1]}.{os.environ['RANK']}", "w") as file:
    json.dump(facts, file)
dist.destroy_process_group()
"""
OPTIONS = (
    "--nproc-per-node", "2", "--role", "learner", "--max-restarts", "4",
    "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--rdzv-id", "one",
)  # fmt: skip


def facts_under(launcher: str, directory: Path) -> list[dict[str, Any]]:
    """What both workers find, under ``python -m launcher``."""
    script, out = directory / "script.py", directory / launcher
    script.write_text(CHECKS)
    logs = () if launcher == "torch.distributed.run" else ("--log-dir", str(directory / "logs"))
    environ = {name: value for name, value in os.environ.items() if name not in RANKS}
    done = subprocess.run(
        [sys.executable, "-m", launcher, *OPTIONS, *logs, "script.py", str(out)],
        cwd=directory, timeout=TIMEOUT_S, capture_output=True, text=True, check=False,
        env={**environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(Path(f"{out}.{rank}").read_text()) for rank in (0, 1)]


def test_a_script_finds_what_it_finds_under_torchrun(tmp_path: Path) -> None:
    theirs, ours = facts_under("torch.distributed.run", tmp_path), facts_under("ftrun", tmp_path)
    for their, own in zip(theirs, ours, strict=True):
        assert their["environment"].keys() <= own["environment"].keys()
        assert {n: own["environment"][n] for n in RANKS} == {
            n: their["environment"][n] for n in RANKS
        }
        for what in ("sum", "file", "cwd"):
            assert own[what] == their[what]
        own["orig"][-1] = their["orig"][-1]  # the only argument differs
        assert own["orig"] == their["orig"]
        # @record writes there: the directory must be there, and the file not.
        error_file = Path(own["environment"]["TORCHELASTIC_ERROR_FILE"])
        assert error_file.parent.is_dir() and not error_file.exists()
        address = own["environment"]["MASTER_ADDR"], own["environment"]["MASTER_PORT"]
        assert address[0] == "127.0.0.1" and address[1].isdecimal()
    files = {own["environment"]["TORCHELASTIC_ERROR_FILE"] for own in ours}
    assert len(files) == 2


MEETS = """
import os, sys
import torch.distributed as dist
master = f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

def meet(method, **options):
    dist.init_process_group("gloo", init_method=method, **options)
    dist.barrier()
    print("met", method, flush=True)
    dist.destroy_process_group()

meet(master, rank=rank, world_size=world)
meet(f"tcp://localhost:{sys.argv[1]}", rank=rank, world_size=world)
os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", sys.argv[2]
meet("env://")
"""


def test_workers_meet_at_the_groups_store_and_at_ports_of_their_own(tmp_path: Path) -> None:
    """All ranks would wait for ever if nobody served the script's own ports."""
    master, one, two = (str(free_port()) for _ in range(3))
    options = ("--nproc-per-node", "2", "--master-port", master)
    with Job(tmp_path, MEETS, *options, args=(one, two)) as job:
        assert job.end() == 0
        met = re.findall(r"met (.*)", job.output)
        expected = [f"tcp://127.0.0.1:{master}", f"tcp://localhost:{one}", "env://"]
        assert sorted(met) == sorted(2 * expected)


RECORDS = """
import os, subprocess, sys
INNER = '''
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    raise KeyError("the inner cause")
main()
'''
done = subprocess.run([sys.executable, "-c", INNER], stderr=subprocess.DEVNULL)
os._exit(done.returncode + 4)
"""


def test_an_error_file_names_the_cause_of_a_worker_without_a_report(tmp_path: Path) -> None:
    with Job(tmp_path, RECORDS, "--max-restarts", "0") as job:
        assert job.end() == 5
        assert re.search(r"failed: KeyError: 'the inner cause'", job.output), job.output
        assert "INNER" not in job.output
        assert (tmp_path / "logs/job/replica_0/rank_0/0.error.json").is_file()
        assert job.left() == []
    # The next job of this name does not take the old file for its own.
    with Job(tmp_path, "import os; os._exit(3)", "--max-restarts", "0") as job:
        assert job.end() == 3
        assert "KeyError" not in job.output


DRAWS = """
import os, random, numpy, torch
print("drew", os.environ["RANK"], random.random(), numpy.random.rand(), torch.rand(1).item(),
      torch.initial_seed(), flush=True)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("options", [("--replicas", "2", "-w", "2"), ("--nproc-per-node", "2")])
def test_no_two_workers_draw_the_same_numbers(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Not on other ranks, not in other replicas, not after a restart."""
    with Job(tmp_path, DRAWS, *options, "--max-restarts", "1") as job:
        assert job.end() == 0
        logs = (tmp_path / "logs").rglob("*.log")
        drawn = [words for log in logs for words in re.findall(r"drew \d (.*)", log.read_text())]
        workers = 4 if "--replicas" in options else 2
        assert workers < len(drawn) <= 2 * workers  # a sibling may be killed before it has drawn
        columns = list(zip(*(words.split() for words in drawn), strict=True))
        assert [len(set(column)) for column in columns] == [len(drawn)] * 4
