"""One group on two nodes with memory snapshots, which go to a disk, too.

No worker's death costs a step, a node's few, and that of all an interval. Both nodes are agents of
this host, as in test_team.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.base.errors import ExitCode
from ftrun.snapshots.directory import drafts, look
from tests.jobs import free_port
from tests.process.test_operators import command
from tests.process.test_team import Node, gone
from tests.snapshots.jobs import kill_everything
from tests.zero_edit.test_memory_snapshots import SCRIPT as SHORT

pytestmark = pytest.mark.timeout(600)

OPTIONS = ("--nnodes", "2", "--nproc-per-node", "2", "--max-restarts", "9", "--grace", "60")
SCRIPT = (
    SHORT.replace("sys.argv[1]", "'fsdp'")
    .replace("range(6)", "range(12)")
    .replace("steps == 60", "steps == 90")
    .replace("time.sleep(0.02)", "time.sleep(0.2 * (not os.path.exists('over')))")
)
"""Its steps take long enough for some rounds of copies, until it may come to its end."""


class Half(Node):
    """One of the two nodes."""

    def __init__(self, base: Path, number: int, port: int, *options: str) -> None:
        rank = ("--node-rank", str(number))
        super().__init__(base, number, port, SCRIPT, *rank, *OPTIONS, *options)


@contextlib.contextmanager
def halves(base: Path, *options: str) -> Iterator[tuple[Half, Half]]:
    """Both nodes, in a new directory or one that was used before."""
    base.mkdir(exist_ok=True)
    port = free_port()
    with Half(base, 0, port, *options) as lead, Half(base, 1, port, *options) as hand:
        yield lead, hand


def over(base: Path) -> None:
    """The nodes may come to the end."""
    for number in range(2):
        (base / f"n{number}").mkdir(parents=True, exist_ok=True)
        (base / f"n{number}" / "over").touch()


def test_all_go_on_from_memory_or_the_disk_whatever_is_lost(tmp_path: Path) -> None:
    quiet, killed, where = tmp_path / "quiet", tmp_path / "killed", tmp_path / "snapshots"
    over(quiet)
    with halves(quiet) as (lead, hand):
        assert lead.end() == hand.end() == 0
        undisturbed = ends(lead) + ends(hand)
    often = ("--snapshot", str(where), "--snapshot-every", "1s")
    with halves(killed, *often) as (lead, hand):
        lead.expect(r"wrote the snapshot of step \d+ to .*; no worker waited")
        os.kill(hand.expect_process("ftrun snapshots"), signal.SIGSTOP)  # its parts never come
        lead.until(lambda: lacks_parts(where), "a draft without them")
        (torn,), whole = drafts(where), newest(where)
        lead.until(lambda: job_from(lead) == whole, "the snapshot in the status")
        kill_everything(lead)
        kill_everything(hand)
    assert drafts(where) == [torn]
    seldom = ("--snapshot", str(where), "--snapshot-every", "1h")
    with halves(killed, *seldom) as (lead, hand):
        lead.expect(rf"resumes from step {whole}, the newest snapshot in .* of 4 workers, ")
        assert torn > whole
        assert hand.expect(r"\[0\.2\] step (\d+): ")[0] == str(whole + 1)
        lead.expect("Memory snapshots are kept on each node")
        survivors = lead.worker(0, 0), hand.worker(0, 2)
        os.kill(hand.worker(0, 3), signal.SIGKILL)
        lead.expect(r"worker 0\.3 .* All continued after \S+ s, and no step was lost")
        os.kill(lead.worker(0, 1), signal.SIGKILL)
        lead.expect(r"worker 0\.1 .* All continued after \S+ s, and no step was lost")
        os.kill(lead.worker(0, 1), signal.SIGKILL)
        os.kill(hand.worker(0, 3), signal.SIGKILL)
        for rank in (1, 3):
            lead.expect(rf"worker 0\.{rank} .* All continued after \S+ s, and no step was lost", 2)
        assert survivors == (lead.worker(0, 0), hand.worker(0, 2))
        for node, rank in ((lead, 0), (hand, 2)):
            steps = re.findall(rf"^\[0\.{rank}\] step (\d+): ", node.output, re.MULTILINE)
            once = range(whole + 1, whole + 1 + len(steps))
            assert steps == list(map(str, once)), "a survivor repeats nothing"
        for node, rank in ((lead, 1), (hand, 3)):
            steps = re.findall(rf"^\[0\.{rank}\] step (\d+): ", node.output, re.MULTILINE)
            assert len(steps) - len(set(steps)) <= 1, "but for a death in a line"
        hand.signal(signal.SIGKILL)
        gone(hand)
        lead.expect(r"The nodes that are left have the states of step \d+ in memory")
        other = ("--snapshot", str(tmp_path / "other"), "--snapshot-every", "1h")
        with Half(tmp_path, 1, lead.port, *other) as stranger:
            assert stranger.end() == ExitCode.REFUSED
            lead.expect("what it writes to its --snapshot directory is not seen by")
        with Half(killed, 1, lead.port, *seldom) as again:
            lead.expect(r"The lost node's states of step \d+ come from")
            lead.expect(r"worker 0\.2 is lost with its node .* all resumed from step \d+", 1)
            lead.expect(r"all workers restart: its node is lost")
            lead.signal(signal.SIGTERM)
            last = lead.expect(r"The last snapshot is of step (\d+)\. The same command resumes")[0]
            lead.expect(rf"the snapshot of step {torn} is incomplete")
            assert again.end() == lead.end() != 0
            gone(lead, again)
    with halves(killed, *seldom) as (lead, hand):
        lead.expect(rf"resumes from step {last}, the newest snapshot in .* of 4 workers, ")
        lead.expect(r"\[0\.0\] step ")
        assert command(lead.directory, "restart", "0")[0] == 0  # without its memory
        lead.expect(rf"All workers resume from step {last}, the newest snapshot in ")
        over(killed)
        assert hand.end() == lead.end() == 0
        assert ends(lead) + ends(hand) == undisturbed
        gone(lead, hand)
    assert int(last) > whole and list(where.glob(".*")) == []


def test_a_node_that_is_lost_as_it_takes_a_lost_ones_place_costs_no_more(tmp_path: Path) -> None:
    """What it had so far is nothing, and the copies of the first one's states are still there."""
    memory = ("--memory-snapshots", "auto")
    with halves(tmp_path, *memory) as (lead, hand):
        lead.expect("Memory snapshots are kept on each node")
        with Node(tmp_path, 2, lead.port, SCRIPT, *OPTIONS, *memory) as spare:
            lead.expect("stands by")
            kill_everything(hand)
            lead.expect("takes its place")
            kill_everything(spare)
            lead.expect("The nodes that are left have the states of step")
        with Node(tmp_path, 3, lead.port, SCRIPT, *OPTIONS, *memory) as last:
            lead.expect(r"all resumed from step [1-9]\d*")
            for node in (lead, last):
                (node.directory / "over").touch()
            assert lead.end() == last.end() == 0
            assert "no whole snapshot" not in lead.output
            gone(lead, last)


def lacks_parts(where: Path) -> bool:
    """The first node has written its parts of a draft, and the other has not."""
    found = [{x.name for x in draft.iterdir()} for draft in where.glob(".draft-*")]
    return any(".part-1" in names and ".part-3" not in names for names in found)


def newest(where: Path) -> int:
    """The step of the newest whole snapshot."""
    found = look(where).newest
    assert found is not None
    return found.manifest.step


def job_from(node: Node) -> int:
    """From which step the job would go on now, if its written snapshots are counted."""
    code, text = command(node.directory, "status", "--json")
    known = json.loads(text) if code == 0 else {}
    counts = known["replicas"][0]["scalars"] if known else {}
    return int(known["recovery"]["job"]["from_step"]) if counts.get("snapshots_written") else -1


def ends(node: Node) -> list[str]:
    """What each worker of a node has at the end."""
    found = re.findall(r"^\[0\.(\d)\] end (\w+)$", node.output, re.MULTILINE)
    assert len(found) == 2, node.output
    return sorted(" ".join(one) for one in found)
