"""Checks of a finished run. Each cites its invariant.

Not here: the replay (oracle.py), the course of a run (run.py).
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress

from ftrun.lighthouse.account_file import ACCOUNT_FILE
from tests.chaos.job import Job
from tests.chaos.journal import Commit, Process, read_journals
from tests.chaos.oracle import Log, Unreplayable, replay

FDS_MORE_MAX = 16
THREADS_MORE_MAX = 8


def check_history(job: Job, *, finished: bool) -> list[str]:
    """S1, S3, S6, C2, C4, Q3 over all journals; with ``finished``, equal hashes at the end too."""
    processes = read_journals(job.out)
    found = [
        *_one_state_per_lineage(processes),
        *_heals(processes),
        *_steps_rise(processes),
        *_divisors(processes),
        *_one_history(processes),
    ]
    goals = _last_commits(processes)
    if not goals:
        return found if not finished else [*found, "nobody has committed anything"]
    goal = goals[-1]
    try:
        steps = replay(processes, goal)
        job.tell(f"the oracle replays {steps} steps to {goal.hash}")
    except Unreplayable as error:
        found.append(str(error))
    return found + (_ends(job, goal) if finished else [])


def check_account(job: Job) -> list[str]:
    """A1, in the account that a separate lighthouse has left on disk."""
    try:
        account = json.loads((job.service_dir / ACCOUNT_FILE).read_text())["account"]
    except FileNotFoundError:
        return []  # the agent's own lighthouse has removed its directory
    slots, wall = account["slots"], account["wall"]
    sums = [sum(slot["spent"].values()) for slot in slots]
    job.tell(f"the account: {wall / 1e6:.3f} s, {account['steps']} steps, {len(slots)} replicas")
    found = [f"A1: {spent} µs are booked of {wall}" for spent in sums if spent != wall]
    bands = sum(sum(row) for row in account["bands"].values())
    if bands != wall * len(slots):
        found.append(f"A1: the bands have {bands} µs of {wall * len(slots)}")
    return found


def check_output(job: Job, causes: Iterable[str]) -> list[str]:
    """P2, P3, P5, P6 from the samples of the processes and the output of ``ftrun``."""
    text = job.text()
    found = [f"P2: {line}" for line in job.family.stale]
    if job.bystander.poll() is not None:
        found.append(f"P3: a stranger was ended with {job.bystander.returncode}")
    for number, limit in re.findall(r"Restart (\d+) of (\d+)", text):
        if int(number) > int(limit):
            found.append(f"P5: restart {number} of {limit}")
    found += [f"P6: nothing says {cause!r}" for cause in causes if not re.search(cause, text)]
    found += [f"said: {line}" for line in text.splitlines() if "contradicts itself" in line]
    return found


def check_pids(before: dict[str, int], after: dict[str, int], may_go: set[str]) -> list[str]:
    """P4: a replica that was not killed keeps its process."""
    return [
        f"P4: replica {replica} was pid {pid} and is {after.get(replica)}; nobody struck it"
        for replica, pid in sorted(before.items())
        if replica not in may_go and after.get(replica) != pid
    ]


def check_flat(before: dict[str, dict[str, int]], after: dict[str, dict[str, int]]) -> list[str]:
    """P7, coarsely: over a few faults no process gains dozens of descriptors or threads."""
    found = []
    for name in before.keys() & after.keys():
        for what, more_max in (("fds", FDS_MORE_MAX), ("threads", THREADS_MORE_MAX)):
            if after[name].get(what, 0) > before[name].get(what, 0) + more_max:
                found.append(f"P7: {name} had {before[name]} and has {after[name]}")
    return found


def _one_state_per_lineage(processes: list[Process]) -> list[str]:
    """S1: equal state id, equal bits."""
    digests: dict[tuple[int, str], dict[str, str]] = defaultdict(dict)
    for process in processes:
        for commit in process.commits:
            digests[commit.step, commit.lineage].setdefault(commit.hash, str(process))
    unlike = {key: found for key, found in digests.items() if len(found) > 1}
    return [f"S1: at step {step}/{name[:6]}: {found}" for (step, name), found in unlike.items()]


def _heals(processes: list[Process]) -> list[str]:
    """S3: a heal has loaded exactly the state that its peers held at that step."""
    log = Log(processes)
    found = []
    for process in processes:
        commits = process.commits
        if commits and commits[0].step > 1 and not process.heals:
            found.append(f"S3: {process} begins with step {commits[0].step} and has never healed")
        # Of several heals before one commit, only the last had an effect.
        for number, healed in dict(process.heals).items():
            if number < len(commits):
                with suppress(Unreplayable):  # the replay reports it
                    held = log.hash(log.parent(commits[number]))
                    if healed != held:
                        found.append(f"S3: {process} has healed to {healed}, its donor held {held}")
    return found


def _steps_rise(processes: list[Process]) -> list[str]:
    """C2: the step rises by one, or by a heal, and no step comes twice."""
    found = []
    for process in processes:
        steps = [commit.step for commit in process.commits]
        if steps != sorted(set(steps)):
            found.append(f"C2: {process} went {steps}")
        begun = {(try_.held, try_.lineage) for try_ in process.tries}
        for before, after in zip(process.commits, process.commits[1:], strict=False):
            heals = (before.step, before.lineage) not in begun or after.step != before.step + 1
            if heals and process.member in after.who and after.step != 1:
                found.append(f"C2: {process} contributes to {after.step} from {before.step}")
    return found


def _divisors(processes: list[Process]) -> list[str]:
    """C4: all that commit a state name the same contributors and divide by their number."""
    found = []
    named: dict[tuple[int, str], set[tuple[tuple[str, str], ...]]] = defaultdict(set)
    for process in processes:
        for commit in process.commits:
            named[commit.step, commit.lineage].add(commit.who)
            if commit.number != len(commit.who):
                found.append(f"C4: {process} divides by {commit.number} at {commit.step}")
    unlike = {key: who for key, who in named.items() if len(who) > 1}
    return found + [f"C4: step {step}: contributors {who}" for (step, _), who in unlike.items()]


def _one_history(processes: list[Process]) -> list[str]:
    """Q3: each step has one lineage that continues.

    A commit on another lineage is legal unless its whole quorum holds it: a replica that alone
    holds it has died or has healed away from it. Two such commits in a row mean that two quorums
    made progress.
    """
    children: dict[int, set[str]] = defaultdict(set)
    holders: dict[tuple[int, str], set[tuple[str, str]]] = defaultdict(set)
    members: dict[tuple[int, str], set[tuple[str, str]]] = defaultdict(set)
    for process in processes:
        for commit in process.commits:
            key = commit.step, commit.lineage
            children[commit.step].add(commit.lineage)
            holders[key].add(process.member)
            members[key] = set(commit.members)
    forks = {step for step, lineages in children.items() if len(lineages) > 1}
    found = [f"Q3: two lineages at steps {step} and {step + 1}" for step in forks & _next(forks)]
    for step in sorted(forks):
        confirmed = [n for n in children[step] if holders[step, n] >= members[step, n]]
        if len(confirmed) > 1:
            found.append(f"Q3: {len(confirmed)} lineages are confirmed at step {step}")
    return found


def _next(steps: set[int]) -> set[int]:
    return {step - 1 for step in steps}


def _last_commits(processes: list[Process]) -> list[Commit]:
    """The last commits of each process, by step and time."""
    last = [process.commits[-1] for process in processes if process.commits]
    return sorted(last, key=lambda commit: (commit.step, commit.at))


def _ends(job: Job, goal: Commit) -> list[str]:
    hashes = re.findall(r"hash ([0-9a-f]{16})", job.text())
    if len(hashes) != job.replicas or set(hashes) != {goal.hash}:
        return [f"the hashes at the end are {hashes}, not {job.replicas} times {goal.hash}"]
    return []
