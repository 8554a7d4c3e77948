"""The findings of a trial, as lines for people. Pure.

Not here: the trial (command.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

NAMED_MAX = 12


@dataclass(frozen=True, slots=True)
class Trial:
    """The facts that are known after a trial.

    ``refused``: what could not be carried, or None. ``reports``: what each replica has left at the
    end, by number; one that did not come to it has left none. ``workers``: of each replica.
    ``differences``: between replicas that the lighthouse has found meanwhile.
    """

    replicas: int
    victim: int
    exit_code: int
    is_late: bool
    timeout_s: float
    refused: Mapping[str, Any] | None
    reports: Mapping[int, Mapping[str, Any]]
    workers: int = 1
    differences: list[str] = field(default_factory=list)

    @property
    def dead(self) -> str:
        """The process that was killed."""
        worker = f"worker {self.workers - 1} of " if self.workers > 1 else ""
        return f"{worker}replica {self.victim}"


def lines_of(trial: Trial) -> tuple[list[str], bool]:
    """The lines, and whether the script heals."""
    if trial.refused is not None:
        return _not_carried(trial.refused), False
    if trial.is_late:
        return [f"the trial did not end within {trial.timeout_s:g} s (--timeout)"], False
    if not trial.reports:
        return [_nothing_to_carry(trial)], False
    lines = _carried(trial)
    problems = _problems(trial)
    if problems:
        return [*lines, *(f"FAILED: {problem}" for problem in problems)], False
    return [*lines, "ok: the script heals"], True


def _not_carried(refused: Mapping[str, Any]) -> list[str]:
    lines = [f"not carried: {refused['reason']}"]
    if refused["form"] == "world":
        lines.append("under --replicas it runs as under torchrun: one world, restarted as a whole")
    else:
        lines.append("it uses ftrun itself: the script decides what heals")
    return lines


def _nothing_to_carry(trial: Trial) -> str:
    if trial.exit_code:
        return f"the script failed before its first step (exit code {trial.exit_code})"
    return "the script has ended without a step of torch's DistributedDataParallel"


def _carried(trial: Trial) -> list[str]:
    report = trial.reports[min(trial.reports)]
    lines = [f"carried: {part}" for part in report["carried"]]
    newcomer = trial.reports.get(trial.victim, {})
    if newcomer.get("joined"):
        who = " the replica" if trial.workers > 1 else ""
        lines.append(f"{trial.dead} was killed, and{who} joined at {newcomer['joined']}")
        if newcomer["set"]:
            lines.append(f"set there: {_some(newcomer['set'])}")
    lines += [f"not carried: {part}" for part in report["loose"]]
    changes = sorted({name for found in trial.reports.values() for name in found["changes"]})
    if changes:
        lines.append(f"not carried, and the script changes it: {_some(changes)}")
    if newcomer.get("lacking"):
        lines.append(f"the newcomer could not be given: {_some(newcomer['lacking'])}")
    lacking = _lacking(trial)
    if lacking:
        lines.append(
            "equal on both replicas before, and not any more (not carried, or kept by each rank): "
            + _some(lacking)
        )
    lines.append("not carried: random numbers; a newcomer draws with a seed of its own")
    return lines


def _lacking(trial: Trial) -> list[str]:
    """The values of the newcomer that its peers have changed since its death, and it has not.

    Its predecessor and a peer had the same value at the death, and the peer has another one now,
    which the newcomer does not have.
    """
    newcomer = trial.reports.get(trial.victim, {})
    peer = next((x for index, x in trial.reports.items() if index != trial.victim), {})
    before, then = newcomer.get("then", {}), peer.get("then", {})
    here, now = newcomer.get("now", {}), peer.get("now", {})
    common = before.keys() & then.keys() & here.keys()
    return [
        f"{path.partition(' ')[2]} ({here[path]!r:.24}, at its peer {value!r:.24})"
        for path, value in now.items()
        if path in common and before[path] == then[path] != value != here[path]
    ]


def _problems(trial: Trial) -> list[str]:
    found = []
    if trial.exit_code:
        found.append(f"the job ended with exit code {trial.exit_code}")
    missing = [str(index) for index in range(trial.replicas) if index not in trial.reports]
    if missing:
        found.append(f"replica {', '.join(missing)} did not come to the end")
    newcomer = trial.reports.get(trial.victim, {})
    if newcomer and not newcomer["starts"]:
        found.append("the script ended before the trial could kill a replica: give it more steps")
    elif newcomer and not newcomer["joined"]:
        who = "the replica " if trial.workers > 1 else ""
        found.append(f"{trial.dead} was killed and {who}did not join its peers")
    found += trial.differences
    digests = {index: report["parameters"] for index, report in trial.reports.items()}
    if len(set(digests.values())) > 1:
        each = ", ".join(f"replica {index}: {digest}" for index, digest in digests.items())
        found.append(f"the parameters differ at the end ({each})")
    lost = max((report["lost"] for report in trial.reports.values()), default=0)
    if lost > 1:
        found.append(f"{lost} steps were lost")
    return found


def _some(names: list[str]) -> str:
    more = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
