"""Runs all checks concurrently, each with a deadline, and prints their findings.

A check that fails or hangs is a finding. Not here: the checks, one file for each group.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ftrun.base import clock
from ftrun.tools.doctor import devices, limits, network, slurm, system
from ftrun.tools.doctor.findings import Finding, Verdict, has_problem, ok, problem
from ftrun.tools.doctor.network import Way
from ftrun.tools.doctor.pairs import CONNECT_S, MEET_S, Trial

DEADLINE_S = 10.0
EXIT_PROBLEM = 1
MARKS = {Verdict.OK: "ok", Verdict.WARNING: "WARNING", Verdict.PROBLEM: "PROBLEM"}


@dataclass(frozen=True, slots=True)
class Check:
    """One check. ``find`` runs in a separate thread, for ``deadline_s`` at most."""

    name: str
    find: Callable[[], list[Finding]]
    deadline_s: float = DEADLINE_S


def diagnose(
    way: Way | None, log_dir: Path, trial: Trial | None = None, *, as_json: bool = False
) -> int:
    """Print all findings. Returns 1 if a verdict is ``problem``, otherwise 0.

    ``trial``: of the nodes of this Slurm step; only the first node prints.
    """
    if trial is not None and trial.place.node > 0:
        trial.run()
        return 0
    findings = run_checks(checks(way, log_dir, trial))
    if as_json:
        print(json.dumps({"findings": [finding.as_json() for finding in findings]}, indent=2))
    else:
        for line in lines(findings):
            print(line)
    return EXIT_PROBLEM if has_problem(findings) else 0


def checks(way: Way | None, log_dir: Path, trial: Trial | None = None) -> list[Check]:
    """All checks, in the order of the result."""
    found = [
        Check("versions", system.versions),
        Check("kernel", system.kernel_features),
        Check("limits", limits.process_limits),
        Check("control group", limits.control_group),
        Check("/dev/shm", limits.shared_memory),
        Check("disks", partial(limits.disks, log_dir)),
        Check("GPUs", devices.driver),
        Check("torch's devices", devices.torch_view, devices.TORCH_TIMEOUT_S + DEADLINE_S),
        Check("ports", network.ports),
        Check("interface", partial(network.route, way)),
    ]
    if slurm.is_here():
        found.append(Check("Slurm", slurm.settings))
    if trial is not None:
        most_s = 2 * MEET_S + CONNECT_S * len(trial.place.nodes)
        found.append(Check("nodes", trial.run, most_s + DEADLINE_S))
    if way is not None:
        found.append(Check("lighthouse", partial(network.handshake, way)))
        found.append(Check("clock", partial(network.skew, way)))
    return found


def run_checks(wanted: Iterable[Check]) -> list[Finding]:
    """Run all checks concurrently. The findings are in the order of the checks."""
    began = clock.now()
    running = []
    for check in wanted:
        result: list[Finding] = []
        thread = threading.Thread(target=_run, args=(check, result), name=check.name, daemon=True)
        thread.start()
        running.append((check, thread, result))
    findings = []
    for check, thread, result in running:
        thread.join(max(0.0, began + check.deadline_s - clock.now()))
        if thread.is_alive():
            text = f"no result within {check.deadline_s:g} s"
            remedy = "Something that it reads does not answer: a mount, a driver or a name server."
            findings.append(problem(check.name, text, remedy))
        else:
            findings += result
    return findings


def _run(check: Check, result: list[Finding]) -> None:
    try:
        result += check.find() or [ok(check.name, "nothing to check")]
    except Exception as error:  # noqa: BLE001 - whatever a check meets on a strange machine
        text = f"it could not be checked: {type(error).__name__}: {error}"
        result.append(problem(check.name, text, "Look at what the error names, and try again."))


def lines(findings: list[Finding]) -> list[str]:
    """The findings for people, and a last line that counts them."""
    width = max(len(finding.check) for finding in findings)
    rows = []
    for finding in findings:
        rows.append(f"{MARKS[finding.verdict]:<7}  {finding.check:<{width}}  {finding.text}")
        if finding.remedy:
            rows.append(f"{'':<7}  {'':<{width}}  -> {finding.remedy}")
    counts = {verdict: sum(f.verdict is verdict for f in findings) for verdict in Verdict}
    summary = ", ".join(f"{count} {verdict.value}" for verdict, count in counts.items())
    return [*rows, f"{summary}."]
