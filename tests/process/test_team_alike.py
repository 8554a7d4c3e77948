"""One group on several nodes whose workers hold the same parameters: the one whose node corrupts
them is found, and all resume from a step at which all were equal. Both nodes, and the one that
stands by, are agents of this host, as in test_team.py."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path

import pytest

from ftrun.base.errors import ExitCode
from tests.jobs import free_port
from tests.process.test_team import Node, gone
from tests.zero_edit.test_alike import SCRIPT as SHORT

pytestmark = pytest.mark.timeout(300)

SCRIPT = (
    SHORT.replace("sys.argv[1]", "'ddp'")
    .replace(
        'rank == 1 and step == 60 and not os.path.exists("done")',
        'step > 20 and os.path.exists(f"flip {rank}") and not os.path.exists("done")',
    )
    .replace(
        "time.sleep(0.02)\n    while", "time.sleep(0.1 * (not os.path.exists('over')))\n    while"
    )
)
"""A worker's memory is corrupted when a file is there, and steps are slow until another is."""
OPTIONS = ("--nnodes", "2", "--nproc-per-node", "2", "--max-restarts", "9", "--grace", "60")


class Half(Node):
    """A node of the group; ``number`` from 2 on: it stands by."""

    def __init__(self, base: Path, number: int, port: int, *more: str) -> None:
        rank = ("--node-rank", str(number)) * (number < 2)
        options = (*rank, *OPTIONS, "--memory-snapshots", "auto", *more)
        base.mkdir(exist_ok=True)
        super().__init__(base, number, port, SCRIPT, *options)


def test_all_resume_and_the_node_is_set_aside_if_another_stands_by(tmp_path: Path) -> None:
    undisturbed = quiet(tmp_path / "quiet")
    port, base = free_port(), tmp_path / "odd"
    with contextlib.ExitStack() as nodes:
        lead, hand = (nodes.enter_context(Half(base, number, port)) for number in range(2))
        hand.expect("This node is number 1 of 2")
        spare = nodes.enter_context(Half(base, 2, port))
        lead.expect("stands by")
        lead.expect("Memory snapshots are kept on each node")
        flip(hand, 3)
        lead.expect(
            r"Node \S+ \(127\.0\.0\.1, node rank 1\) is lost: it has altered the parameters of "
            r"worker 3, so it is set aside\."
        )
        lead.expect(r"which stood by, takes its place\.")
        lead.expect(r"The lost node's states of step \d+ come from")
        (found,) = lead.expect(
            r"worker 0\.3 .*is corrupted since a step after (\d+) and up to (\d+): its parameters "
            r"differ from those of workers 0-2, .* all resumed from step (\d+), .*Restart 1 of 9"
        )
        agreed, step, resumed = map(int, found)
        assert resumed <= agreed < step
        assert hand.end() == ExitCode.REFUSED, hand.output
        flip(spare, 2)
        lead.expect(r"would be set aside, .* of worker 2, but no node stands by\.")
        lead.expect(r"worker 0\.2 .*is corrupted since .*Restart 2 of 9")
        flip(lead, 1)  # perhaps before the next step at which all are equal
        lead.expect(r"would be set aside, .* of worker 1, but the first node is not replaced\.")
        lead.expect(r"worker 0\.1 .*is corrupted since .*Restart 3 of 9")
        over(lead, spare)
        assert lead.end() == spare.end() == 0, lead.output + spare.output
        assert ends(lead) + ends(spare) == undisturbed
        known = [json.loads(x.read_text()) for x in (lead.logs / "job/incidents").iterdir()]
        assert [x["first_cause"]["kind"] for x in known] == ["silent corruption"] * 3
        gone(lead, hand, spare)


def quiet(base: Path) -> list[str]:
    port = free_port()
    with Half(base, 0, port) as lead, Half(base, 1, port) as hand:
        over(lead, hand)
        assert lead.end() == hand.end() == 0, lead.output + hand.output
        return ends(lead) + ends(hand)


def flip(node: Node, rank: int) -> None:
    (node.directory / f"flip {rank}").touch()


def over(*nodes: Node) -> None:
    for node in nodes:
        (node.directory / "over").touch()


def ends(node: Node) -> list[str]:
    return sorted(re.findall(r"^\[0\.\d\] (end .*)$", node.output, re.MULTILINE))
