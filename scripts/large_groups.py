#!/usr/bin/env python3
"""What faults cost groups that are larger than a node: two groups of two nodes, and a spare one.

Each node is a machine of its own: namespaces of network, names, mounts and processes. Needs root
and iproute2. For each fault a row: the other group's longest step, without its usual length, and
the time until the group trains again. ``--rounds N``: deaths of workers.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.engines.groups import Cost, TwoGroups


def show(what: str, costs: list[Cost]) -> None:
    """Print a row."""
    stalls = sorted(cost.stall_ms for cost in costs)
    back = statistics.median(cost.back_s for cost in costs)
    row = f"{statistics.median(stalls):.0f} | {stalls[-1]:.0f} of {len(stalls)} | {back:.2f}"
    print(f"| {what} | {row} |", flush=True)


def workers(job: TwoGroups, rounds: int) -> None:
    """Deaths of workers, on the lead's node and on the other one."""
    for rank, where in ((1, "a hand's node"), (0, "the lead's node")):
        act = partial(job.kill_worker, f"0.{rank}")
        show(f"kill -9 worker on {where}", [job.cost(0, act) for _ in range(rounds)])


def nodes(job: TwoGroups) -> None:
    """Faults of nodes; each time a spare one completes the group."""
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


def main() -> int:
    """Try all faults."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    print(f"Load: {os.getloadavg()[0]:.1f}.")
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
