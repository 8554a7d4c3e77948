"""One group on two nodes with memory snapshots: no worker's death costs a step, a node's few.

Both nodes are agents of this host, as in test_team.py.
"""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.jobs import free_port
from tests.process.test_team import Node, gone
from tests.zero_edit.test_memory_snapshots import SCRIPT

pytestmark = pytest.mark.timeout(300)

OPTIONS = ("--nnodes", "2", "--nproc-per-node", "2", "--max-restarts", "9", "--grace", "1")
ON = ("--memory-snapshots", "auto")


class Half(Node):
    """One of the two nodes."""

    def __init__(self, base: Path, number: int, port: int, *options: str) -> None:
        rank = ("--node-rank", str(number))
        script = SCRIPT.replace("sys.argv[1]", "'fsdp'")
        super().__init__(base, number, port, script, *rank, *OPTIONS, *options)


def test_lost_workers_cost_no_step_and_a_lost_node_does_not_cost_all(tmp_path: Path) -> None:
    quiet, killed = tmp_path / "quiet", tmp_path / "killed"
    for base in (quiet, killed):
        for number in range(2):
            (base / f"n{number}").mkdir(parents=True)
    for number in range(2):
        (quiet / f"n{number}" / "over").touch()
    port = free_port()
    with Half(quiet, 0, port) as lead, Half(quiet, 1, port) as hand:
        assert lead.end() == hand.end() == 0
        undisturbed = ends(lead) + ends(hand)
    port = free_port()
    with Half(killed, 0, port, *ON) as lead, Half(killed, 1, port, *ON) as hand:
        lead.expect("Memory snapshots: on each node")
        survivors = lead.worker(0, 0), hand.worker(0, 2)
        os.kill(hand.worker(0, 3), signal.SIGKILL)
        lead.expect(r"worker 0\.3 .* all go on after \S+ s, no step lost")
        os.kill(lead.worker(0, 1), signal.SIGKILL)
        lead.expect(r"worker 0\.1 .* all go on after \S+ s, no step lost")
        os.kill(lead.worker(0, 1), signal.SIGKILL)
        os.kill(hand.worker(0, 3), signal.SIGKILL)
        for rank in (1, 3):
            lead.expect(rf"worker 0\.{rank} .* all go on after \S+ s, no step lost", 2)
        assert survivors == (lead.worker(0, 0), hand.worker(0, 2))
        for node, rank in ((lead, 0), (hand, 2)):
            steps = re.findall(rf"^\[0\.{rank}\] step (\d+): ", node.output, re.MULTILINE)
            assert steps == [str(x + 1) for x in range(len(steps))], "a survivor repeats nothing"
        hand.signal(signal.SIGKILL)
        gone(hand)
        lead.expect(r"The states of step \d+ are in memory of the nodes that are left")
        with Half(killed, 1, port, *ON) as again:
            lead.expect(r"The lost node's states of step \d+ come from")
            lead.expect(r"worker 0\.2 is lost with its node .* All went on from step \d+", 1)
            lead.expect(r"begin again: its node is lost")
            for number in range(2):
                (killed / f"n{number}" / "over").touch()
            assert again.end() == lead.end() == 0
            assert ends(lead) + ends(again) == undisturbed
            gone(lead, again)


def ends(node: Node) -> list[str]:
    """What each worker of a node has at the end."""
    found = re.findall(r"^\[0\.(\d)\] end (\w+)$", node.output, re.MULTILINE)
    assert len(found) == 2, node.output
    return sorted(" ".join(one) for one in found)
