"""The facts of a job that really runs: what its workers take, and whose step is the slow one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.jobs import Job
from tests.process.test_nodes import MODEL
from tests.process.test_operators import CPU, command

SLOW_S, QUICK_S = 1.0, 0.05
STRAGGLES = f"""{MODEL}
from pathlib import Path
slow = os.environ["REPLICA_GROUP_ID"] == "1"
while not Path("over").exists():
    optimizer.zero_grad()
    time.sleep({SLOW_S} if slow else {QUICK_S})
    ddp(torch.randn(2, 4)).mean().backward()
    optimizer.step()
    manager.log(pid=os.getpid())
"""


def test_a_straggler_stands_out_by_its_own_part_and_each_worker_by_its_process(
    tmp_path: Path,
) -> None:
    with Job(tmp_path, STRAGGLES, "--replicas", "3", *CPU) as job:
        seen: list[dict[str, Any]] = []

        def is_known() -> bool:
            code, text = command(tmp_path, "status", "job", "--json")
            seen[:] = json.loads(text)["replicas"] if code == 0 else []
            return len(seen) == 3 and all(
                replica["own_s"] is not None
                and replica["workers"]
                and replica["workers"][0]["cpu_share"] is not None
                for replica in seen
            )

        job.until(is_known, "in the status")
        for number, replica in enumerate(seen):
            (worker,) = replica["workers"]
            assert worker["pid"] == job.worker(number) == replica["scalars"]["pid"]
            assert worker["device"] == "cpu"
            assert worker["rss_bytes"] > 50e6
            assert replica["step_s"] >= SLOW_S  # all are as slow as the slowest
            assert replica["heal"] is None
        own = [replica["own_s"] for replica in seen]
        assert own[1] >= SLOW_S
        assert max(own[0], own[2]) < own[1] - (SLOW_S - QUICK_S) / 2
        (tmp_path / "over").touch()
        assert job.end() == 0
