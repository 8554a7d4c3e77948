"""Groups of two nodes each: a hand is stopped, asked to leave, cut off; a lead's power goes.

Each time a spare node completes the group, and the other group trains on alone meanwhile.
"""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from ftrun.base.errors import ExitCode
from tests.engines.groups import TwoGroups
from tests.jobs import FTRUN, THIS_TREE, Job, run
from tests.jobs.process import START_S


def status_on(job: TwoGroups, index: int, directory: Path) -> str:
    """What ``ftrun status`` shows people on a node."""
    words = (*job.machines.nodes[index].inside(), *FTRUN, "status")
    variables = {**os.environ, **THIS_TREE, "XDG_STATE_HOME": str(directory / "state")}
    done = run(words, env=variables, timeout=START_S, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_spare_node_completes_a_group_whatever_becomes_of_one_of_its_nodes(
    tmp_path: Path,
) -> None:
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("machines of their own need root and iproute2")
    with TwoGroups(tmp_path, pause_s=0.05) as job:
        spare = job.spare()
        text = status_on(job, spare, job.jobs[spare].directory)
        assert "1 idle node" in text
        lead, hand = (job.node_of(f"0.{rank}") for rank in (0, 1))
        assert "1 idle node" in status_on(job, hand, job.jobs[hand].directory)

        job.cost(0, lambda: job.signal_agent(hand, signal.SIGSTOP))
        job.jobs[lead].expect(rf"Node n{hand} .* is lost: it has sent nothing for 5 s")
        assert job.node_of("0.1") == spare
        job.signal_agent(hand, signal.SIGCONT)
        job.jobs[hand].expect("The first node is lost|is a hand of .* no more")
        assert job.spare() == hand

        leaver = job.jobs[spare]
        job.cost(0, lambda: job.signal_agent(spare, signal.SIGTERM))
        assert leaver.end() == ExitCode.PREEMPTED
        leaver.expect("SIGTERM: the whole group is asked to stop")
        job.jobs[lead].expect(r"SIGTERM at n\d")
        assert job.node_of("0.1") == hand
        job.start(spare)
        assert job.spare() == spare

        job.cost(0, lambda: job.machines.cut(hand))
        job.jobs[lead].expect(rf"Node n{hand} .* is lost", 2)
        job.machines.mend(hand)
        assert job.node_of("0.1") == spare
        assert job.spare() == hand

        lost: Job = job.jobs[lead]
        job.cost(0, lambda: job.machines.power_off(lead))
        assert lost.left() == []
        assert {job.node_of("0.0"), job.node_of("0.1")} == {hand, spare}
        del job.jobs[lead]
        states = job.end()
        assert [len(digests) for digests in states.values()] == [1, 1]
