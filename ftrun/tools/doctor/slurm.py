"""The effects of a cluster's Slurm settings on a job of ftrun, in words.

Not here: a task's place (engines/slurm.py), the nodes of a job (pairs.py).
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping

from ftrun.base.errors import ExitCode
from ftrun.config.options import BY_NAME
from ftrun.tools.doctor.findings import Finding, ok, warning

ASK_S = 8.0
LEAVING_S = 5.0
"""The time that ftrun needs to end, apart from --grace."""
_ROW = re.compile(r"^(\w+) *= *(.*?) *$", re.MULTILINE)
_NUMBER = re.compile(r"\d+")
BATCH = "ftrun sbatch does so"


def is_here() -> bool:
    """Whether this machine has Slurm's commands."""
    return shutil.which("scontrol") is not None


def settings() -> list[Finding]:
    """Ask the cluster, and judge."""
    command = ("scontrol", "show", "config")
    done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_S, check=False)
    if done.returncode != 0:
        why = (done.stderr.strip().splitlines() or ["no answer"])[0]
        text = f"its commands are here, but no cluster answers ({why})"
        return [warning("Slurm", text, "Nothing, if jobs do not run under Slurm.")]
    return list(judge(dict(_ROW.findall(done.stdout))))


def judge(config: Mapping[str, str]) -> Iterator[Finding]:
    """``config``: the rows of ``scontrol show config``."""
    yield _kill_wait(_seconds(config, "KillWait"))
    yield _wait_time(_seconds(config, "WaitTime"))
    yield _bad_exit(_seconds(config, "KillOnBadExit"))
    yield _lost_node(_seconds(config, "SlurmdTimeout"), _seconds(config, "ReturnToService"))
    yield _requeue(config)
    yield _preemption(config)
    if config.get("ProctrackType", "") in ("proctrack/linuxproc", "proctrack/pgid"):
        yield warning(
            "left processes",
            f"{config['ProctrackType']}: Slurm does not find processes that have left their parent",
            "Nothing for ftrun, which ends its own; other programs need proctrack/cgroup.",
        )


def _kill_wait(wait_s: int) -> Finding:
    name, grace_s = "KillWait", float(BY_NAME["grace_s"].default)
    text = f"at scancel and at the time limit replicas have {wait_s} s to leave in order"
    if wait_s >= grace_s + LEAVING_S:
        return ok(name, f"{text}, and ftrun takes {grace_s:g} s at most (--grace)")
    return warning(
        name,
        f"{text}, and are killed by then; ftrun would take {grace_s:g} s (--grace)",
        f"Give a --grace below {max(1.0, wait_s - LEAVING_S):g}, and a notice: --signal=USR1@60 "
        f"with --preempt-signal USR1 ({BATCH}).",
    )


def _wait_time(wait_s: int) -> Finding:
    if not wait_s:
        return ok("WaitTime", "if the tasks of one node end, those of the others continue")
    return warning(
        "WaitTime",
        f"{wait_s} s after the first task has ended Slurm kills all others: a second task of a "
        "node, which has nothing to do, would end the job",
        f"Give srun --wait=0 ({BATCH}).",
    )


def _bad_exit(is_set: int) -> Finding:
    if not is_set:
        return ok("KillOnBadExit", "a node whose ftrun is killed does not end the job")
    return warning(
        "KillOnBadExit",
        "a node whose ftrun is killed ends the job on all nodes. A drained node does not: it has "
        "the job's exit code",
        f"Give srun --kill-on-bad-exit=0 ({BATCH}).",
    )


def _lost_node(timeout_s: int, returns: int) -> Finding:
    when = f"{timeout_s} s after a node is lost" if timeout_s else "when an administrator says so"
    back = "takes jobs again by itself" if returns else "waits for an administrator"
    return ok(
        "SlurmdTimeout",
        f"{when} Slurm ends the job, unless --no-kill was given to sbatch and to srun ({BATCH}); "
        f"the others train on in either case until then. A node that is back {back}",
    )


def _requeue(config: Mapping[str, str]) -> Finding:
    name, code = "requeue", int(ExitCode.PREEMPTED)
    if _has(config.get("RequeueExitHold", ""), code):
        return warning(
            name,
            f"RequeueExitHold has {code}: a job that leaves after a notice is queued, and held",
            "Release it then (scontrol release JOB), or have the administrator take the code out.",
        )
    if _has(config.get("RequeueExit", ""), code):
        return ok(name, f"RequeueExit has {code}: Slurm queues a job again that leaves in order")
    text = f"RequeueExit has no {code}: --requeue has ftrun queue the job again after a notice"
    if config.get("JobRequeue", "1").startswith("0"):
        text += ", if sbatch was given --requeue too"
    return ok(name, text)


def _preemption(config: Mapping[str, str]) -> Finding:
    mode = config.get("PreemptMode", "OFF")
    if mode == "OFF":
        return ok("PreemptMode", "no job makes room for another one")
    if "send_user_signal" in config.get("PreemptParameters", ""):
        return ok("PreemptMode", f"{mode}: a job gets the signal of --signal first, and leaves")
    return ok(
        "PreemptMode",
        f"{mode}: a job gets SIGTERM and GraceTime of its partition; --signal is for the time "
        "limit only, because PreemptParameters has no send_user_signal",
    )


def _seconds(config: Mapping[str, str], name: str) -> int:
    found = _NUMBER.match(config.get(name, ""))
    return int(found[0]) if found else 0


def _has(codes: str, code: int) -> bool:
    """``codes``: as in ``75,100-120``."""
    for part in codes.split(","):
        low, _, high = part.strip().partition("-")
        if low.isdecimal() and int(low) <= code <= int(high if high.isdecimal() else low):
            return True
    return False
