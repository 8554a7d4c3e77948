"""A script whose all-reduce differs between replicas: one fails and names the difference."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.process.job import Job

UNLIKE = """
import os, sys, torch, ftrun
weight = torch.zeros(4)
manager = ftrun.manager(
    load_state_dict=lambda state: weight.copy_(state["w"]), state_dict=lambda: {"w": weight}
)
marks = os.path.join(os.path.dirname(__file__), "failed-")
mine = os.environ["FTRUN_REPLICA_ID"]
while True:
    manager.start_quorum()
    step = manager.current_step()
    tensor = torch.ones(4)
    if step == 10 and mine == sys.argv[1] and not os.path.exists(marks + mine):
        open(marks + mine, "w").close()
        tensor = torch.ones(5000)
    manager.allreduce(tensor).wait()
    if manager.should_commit():
        weight += 1
        if step >= 20 and manager.num_participants() == 3:
            break
print("ended", mine, "after", int(weight[0]), "steps of", manager.current_step(), flush=True)
"""


@pytest.mark.parametrize("wrong", ["0", "1", "2"])
def test_an_all_reduce_of_another_size_ends_one_replica_and_costs_no_step(
    tmp_path: Path, wrong: str
) -> None:
    """Gloo aborts (SIGABRT) the process that receives more than it expects, or all of them."""
    with Job(tmp_path, UNLIKE, "--replicas", "3", args=(wrong,)) as job:
        assert job.end() == 0, job.output
        assert (
            "UserError: the replicas' operations differ: as operation 0 of step 10, " in job.output
        )
        assert f"replica {wrong} has a sum of 5000 float32, where replica" in job.output
        assert "SIGABRT" not in job.output
        ended = re.findall(r"ended (\d) after (\d+) steps of (\d+)", job.output)
        assert sorted(replica for replica, _, _ in ended) == ["0", "1", "2"]
        assert len({count for _, *counts in ended for count in counts}) == 1, "all with all steps"
        for replica in "012":
            restarts = "1 restart," if replica == wrong else "0 restarts,"
            assert re.search(f"replica {replica}: finished, \\d+ steps, {restarts}", job.output)
