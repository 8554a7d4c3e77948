"""A script whose all-reduce differs between replicas: one fails and names the difference."""

from __future__ import annotations

import re
from pathlib import Path

from tests.jobs import Job

UNLIKE = """
import os, pathlib, torch, ftrun
weight = torch.zeros(4)
manager = ftrun.manager(
    load_state_dict=lambda state: weight.copy_(state["w"]), state_dict=lambda: {"w": weight}
)
here = pathlib.Path(__file__).parent
mine = int(os.environ["FTRUN_REPLICA_ID"])

def failed_at(replica):
    # The step; -1: it has not failed.
    mark = here / f"failed-{replica}"
    return int(mark.read_text() or -1) if mark.exists() else -1

def is_wrong(step):
    # Each replica once, in their order, when all are members again.
    before = failed_at(mine - 1) if mine else 9
    is_next = failed_at(mine) < 0 <= before < step
    return is_next and manager.num_participants() == 3

while True:
    manager.start_quorum()
    step = manager.current_step()
    tensor = torch.ones(4)
    if is_wrong(step):
        (here / f"failed-{mine}").write_text(str(step))
        tensor = torch.ones(5000)
    manager.allreduce(tensor).wait()
    if manager.should_commit():
        weight += 1
        if 0 <= failed_at(2) < step - 10 and manager.num_participants() == 3:
            break
print("ended", mine, "after", int(weight[0]), "steps of", manager.current_step(), flush=True)
"""


def test_an_all_reduce_of_another_size_ends_one_replica_and_costs_no_step(tmp_path: Path) -> None:
    """Gloo aborts (SIGABRT) the process that receives more than it expects, or all of them.

    Each rank in turn has the tensor of another size.
    """
    with Job(tmp_path, UNLIKE, "--replicas", "3") as job:
        assert job.end() == 0, job.output
        for wrong in "012":
            step = (tmp_path / f"failed-{wrong}").read_text()
            words = f"the replicas' operations differ: as operation 0 of step {step}, "
            words += f"replica {wrong} has a sum of 5000 float32, where replica"
            assert f"UserError: {words}" in job.output
        assert "SIGABRT" not in job.output
        ended = re.findall(r"ended (\d) after (\d+) steps of (\d+)", job.output)
        assert sorted(replica for replica, _, _ in ended) == ["0", "1", "2"]
        assert len({count for _, *counts in ended for count in counts}) == 1, "all with all steps"
        for replica in "012":
            assert re.search(f"replica {replica}: finished, \\d+ steps, 1 restart,", job.output)
