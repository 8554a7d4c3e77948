"""A script that needs more replicas than its job's options say: the job waits for them."""

from __future__ import annotations

import threading
from pathlib import Path

import torch

from ftrun.core import messages as m
from ftrun.training.manager import Manager
from tests.unit.training.scripted_agent import DEADLINE_S, job


def test_who_is_left_waits_and_spends_no_tries(tmp_path: Path) -> None:
    """Two tries in a row that are not committed would end the script: one may be interrupted."""
    with job(tmp_path, 2, min_replicas=1) as both:
        options = {"min_replica_size": 2, "max_retries": 1}
        both.add("0", **options)
        both.add("1", **options)
        assert both.step() == [True, True]
        both.die("1")
        reports = len(both.agent.sent("0", m.Report))

        def survive(manager: Manager) -> None:
            while manager.current_step() < 4:
                manager.start_quorum()
                manager.allreduce(torch.ones(3)).wait()
                manager.should_commit()  # and stays: who goes may break the other's last operation

        left = threading.Thread(target=survive, args=(both.managers["0"],))
        left.start()
        both.agent.wait(lambda: len(both.agent.sent("0", m.Report)) > reports, "its answer")
        assert both.agent.sent("0", m.Report)[-1].contributors_min == 2
        quorums = len(both.agent.sent("0", m.Built))
        both.agent.restart("1")
        newcomer = both.add("1", weight=9.0, **options)
        survive(newcomer)
        left.join(DEADLINE_S)
        assert not left.is_alive()
        built = both.agent.sent("0", m.Built)
        assert len(built) == quorums + 1, "it has built a quorum of its own meanwhile"
        assert [x.step for x in both.agent.sent("1", m.Healed) if x.step] == [1]
