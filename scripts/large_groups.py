#!/usr/bin/env python3
"""What faults cost groups that are larger than a node: two groups of two nodes, and a spare one.

Each node is a machine of its own: namespaces of network, names, mounts and processes. Needs root
and iproute2. For each fault a row: the other group's longest step, without its usual length, and
the time until the group trains again. ``--rounds N``: deaths of workers.

``--memory 2,3,4``: instead, one group of so many nodes with snapshots in memory, and a spare node.
The last node is lost in three ways, ``--rounds`` times each. Its row: the time from then until the
loss is known, and until all train again; the steps that are repeated. Both are medians.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.engines.groups import Cost, TwoGroups
from tests.engines.machines import Machines
from tests.engines.test_team import Team, ends
from tests.jobs import Job
from tests.jobs.process import START_S, wait
from tests.process.test_team_memory import SCRIPT

NOTED = (  # with one thread, because sums of several differ in their last bits
    SCRIPT.replace("torch.manual_seed(0)", "torch.set_num_threads(1); torch.manual_seed(0)")
    .replace(
        "steps += 1",
        """steps += 1
        with open(f"steps-{rank}", "a") as notes:
            notes.write(f"{time.monotonic()}\\n")""",
    )
    .replace("0.2 * ", "0.1 * ")
    .replace("range(12)", "range(10 * dist.get_world_size())")
    .replace("== 90", "== 300")
)
OPTIONS = ("--nproc-per-node", "1", "--max-restarts", "9", "--memory-snapshots", "auto")
STEPS_S = 3.0
"""After the first copies; and after a loss, so that the next one is not affected by it."""


def show(what: str, costs: list[Cost]) -> None:
    """Print a row."""
    stalls = sorted(cost.stall_ms for cost in costs)
    back = statistics.median(cost.back_s for cost in costs)
    row = f"{statistics.median(stalls):.0f} | {stalls[-1]:.0f} of {len(stalls)} | {back:.2f}"
    print(f"| {what} | {row} |", flush=True)


def workers(job: TwoGroups, rounds: int) -> None:
    """Deaths of workers, on the lead's node and on the other node."""
    for rank, where in ((1, "a hand's node"), (0, "the lead's node")):
        act = partial(job.kill_worker, f"0.{rank}")
        show(f"kill -9 worker on {where}", [job.cost(0, act) for _ in range(rounds)])


def nodes(job: TwoGroups) -> None:
    """Faults of nodes; each time a spare node completes the group."""
    hand, lead = "0.1", "0.0"

    def try_one(what: str, act: Callable[[int], object], victim: str) -> int:
        index = job.node_of(victim)
        show(what, [job.cost(0, partial(act, index))])
        return index

    def agent(number: signal.Signals) -> Callable[[int], object]:
        return lambda index: job.signal_agent(index, number)

    job.start(try_one("kill -9 a hand's ftrun", agent(signal.SIGKILL), hand))
    job.spare()
    job.start(try_one("SIGTERM to a hand's ftrun", agent(signal.SIGTERM), hand))
    job.spare()
    index = try_one("SIGSTOP to a hand's ftrun", agent(signal.SIGSTOP), hand)
    job.signal_agent(index, signal.SIGCONT)
    job.spare()
    index = try_one("a hand's network is cut", job.machines.cut, hand)
    job.machines.mend(index)
    job.spare()
    job.start(try_one("kill -9 the lead's ftrun", agent(signal.SIGKILL), lead))
    job.spare()
    try_one("the lead's power goes", job.machines.power_off, lead)


def kill_all(machines: Machines, index: int) -> None:
    """SIGKILL to all processes of a node at once. Its kernel lives, and closes their
    connections."""
    for pid in machines.nodes[index].processes():
        os.kill(pid, signal.SIGKILL)


LOSSES = {
    "its power goes": Machines.power_off,
    "its network is cut": Machines.cut,
    "kill -9 all its processes": kill_all,
}


def lose(count: int, how: str, undisturbed: list[tuple[str, str]]) -> tuple[float, float, int]:
    """Lose the last of ``count`` nodes. Returns the seconds until it is known, and until all train;
    and the repeated steps."""
    with tempfile.TemporaryDirectory(prefix="memory-") as name:
        (base := Path(name) / "machines").mkdir()
        machines = Machines(base, count + 1)
        try:
            for index in range(count + 1):
                machines.start(index, ":")
            with Team(machines, Path(name), NOTED, *OPTIONS, size=count) as team:
                return _lose(team, machines, LOSSES[how], undisturbed)
        finally:
            machines.close()


def _lose(
    team: Team,
    machines: Machines,
    act: Callable[[Machines, int], None],
    undisturbed: list[tuple[str, str]],
) -> tuple[float, float, int]:
    *others, _ = [team.start(index) for index in range(len(machines.addresses) - 1)]
    lead, index = others[0], len(others)
    lead.expect("Memory snapshots are kept on each node")
    spare = team.start(index + 1)
    lead.expect("stands by")
    spare.expect_process("ftrun spawner")
    time.sleep(STEPS_S)
    began = time.monotonic()
    act(machines, index)
    lead.expect("Node .* is lost")
    known = time.monotonic() - began
    left = [*others, spare]
    wait(lambda: all(_first(job, began + known) for job in left), "a step at all", START_S)
    again = max(_first(job, began + known) for job in left) - began
    lead.expect(r"all resumed from step \d+")
    steps = int((re.findall(r"repeat (\d+) steps?", lead.output) or [0])[-1])
    for job in left:
        (job.directory / "over").touch()
    assert [job.end() for job in left] == [0] * len(left)
    assert sorted(end for job in left for end in ends(job)) == undisturbed
    assert [job.left() for job in left] == [[]] * len(left)
    return known, again, steps


def _first(job: Job, after: float) -> float:
    """When the node's worker has taken its first step after that; 0: it has not."""
    lines = [line for path in job.directory.glob("steps-*") for line in path.open()]
    return next((at for at in sorted(map(float, lines)) if at > after), 0.0)


def memory(sizes: list[int], rounds: int) -> int:
    """Lose a node of one group whose nodes hold copies of each other's states."""
    print("| nodes | fault | known after, s | all train again after, s | worst | steps again |")
    print("|---:|---|---:|---:|---:|---:|")
    for count in sizes:
        with tempfile.TemporaryDirectory(prefix="alone-") as name:
            (Path(name) / "over").touch()
            alone = ("--workers-per-replica", str(count), "--memory-snapshots", "off")
            with Job(Path(name), NOTED, *alone, "--device", "cpu") as job:
                assert job.end() == 0, job.output
                undisturbed = sorted(ends(job))
        for how in LOSSES:
            found = [lose(count, how, undisturbed) for _ in range(rounds)]
            known, again = (statistics.median(x) for x in list(zip(*found, strict=True))[:2])
            worst, steps = max(x[1] for x in found), max(x[2] for x in found)
            row = f"{known:.2f} | {again:.2f} | {worst:.2f} of {rounds} | {steps}"
            print(f"| {count} | {how} | {row} |", flush=True)
    print("Each end was equal to that of an undisturbed run.")
    return 0


def main() -> int:
    """Try all faults."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", default="")
    given = parser.parse_args()
    print(f"Load: {os.getloadavg()[0]:.1f}.")
    if given.memory:
        return memory([int(count) for count in given.memory.split(",")], given.rounds)
    print("| fault | other group's stall, ms | worst | the group is back after, s |")
    print("|---|---:|---:|---:|")
    with tempfile.TemporaryDirectory(prefix="groups-") as name, TwoGroups(Path(name)) as job:
        workers(job, given.rounds)
        nodes(job)
        states = job.end()
    alike = all(len(digests) == 1 for digests in states.values())
    print(f"The groups have ended with equal parameters: {alike}.")
    return 0 if alike else 1


if __name__ == "__main__":
    sys.exit(main())
