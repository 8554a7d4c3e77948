"""Versions, and required features of the kernel.

Not here: limits (limits.py).
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path

from ftrun.base.life_lock import OWNER_DIED, LifeLocks
from ftrun.base.own_process import CLEAN_PATH
from ftrun.tools.doctor.findings import Finding, ok, problem, warning

PYTHON_MIN = (3, 10)
TORCH_MIN = (2, 9)
KERNEL_MIN = (5, 4)
"""The first version with ``pidfd_open`` and ``waitid(P_PIDFD)``."""
OOM_SCORE_HIGH = 500
HOLD_TIMEOUT_S = 8.0
_HOLD = "import sys; from ftrun.base import life_lock; life_lock.hold(sys.argv[1])"


def versions() -> list[Finding]:
    """Python, torch, ftrun, kernel and C library."""
    libc = " ".join(part for part in platform.libc_ver() if part) or "an unknown C library"
    return [
        judge_python(sys.version_info[:3]),
        judge_torch(_version("torch")),
        ok("ftrun", f"version {_version('ftrun') or 'unknown'}, protobuf {_version('protobuf')}"),
        judge_kernel(platform.system(), platform.release(), libc),
    ]


def kernel_features() -> list[Finding]:
    """Process descriptors, early notice of deaths, and the OOM killer's choice."""
    score = 0
    with contextlib.suppress(OSError, ValueError):
        score = int(Path("/proc/self/oom_score_adj").read_text())
    return [
        judge_pidfd(_has_pidfd()),
        judge_life_lock(_hindrance()),
        judge_oom(score, _overcommit()),
    ]


def judge_python(version: tuple[int, ...]) -> Finding:
    """Whether ftrun supports this Python."""
    text = ".".join(str(part) for part in version)
    if version[:2] < PYTHON_MIN:
        return problem("python", f"version {text}", "Install Python 3.10 or newer.")
    return ok("python", f"version {text}")


def judge_torch(version: str | None) -> Finding:
    """Whether ftrun supports this torch; None: it is not installed."""
    if version is None:
        return problem("torch", "not installed", "Install it: pip install torch")
    numbers = tuple(
        int(part) for part in version.partition("+")[0].split(".")[:2] if part.isdigit()
    )
    if numbers < TORCH_MIN:
        return problem("torch", f"version {version}", "Install torch 2.9 or newer.")
    return ok("torch", f"version {version}")


def judge_kernel(system: str, release: str, libc: str) -> Finding:
    """Whether the kernel is a recent enough Linux."""
    text = f"{system} {release}, {libc}"
    if system != "Linux":
        return problem("kernel", text, "Run ftrun on Linux.")
    head = release.split("-")[0].split(".")
    numbers = tuple(int(part) for part in head[:2] if part.isdigit())
    if numbers < KERNEL_MIN:
        return problem("kernel", text, "Use Linux 5.4 or newer: ftrun holds processes by pidfds.")
    return ok("kernel", text)


def judge_pidfd(can_open: bool) -> Finding:
    """Whether pidfds work, so that no other process is ever signalled."""
    if can_open:
        return ok("pidfd", "processes can be held by descriptors")
    return problem(
        "pidfd",
        "pidfd_open is refused",
        "Let the container's seccomp profile permit pidfd_open and pidfd_send_signal.",
    )


def judge_life_lock(hindrance: str) -> Finding:
    """Whether a death is noticed before the worker's memory is freed; ``hindrance``: why not."""
    if not hindrance:
        return ok("deaths", "known at once, whatever memory a worker holds")
    return warning(
        "deaths",
        f"known only when the kernel has taken down the worker's memory: {hindrance}",
        "Jobs run, and survivors wait longer the more memory it held. Use Linux with glibc, and "
        "let the container's profile permit memfd_create and /proc/PID/fd.",
    )


def judge_oom(score: int, overcommit: str) -> Finding:
    """Whether the kernel would kill the launcher first when memory runs out."""
    text = f"oom_score_adj {score}, overcommit_memory {overcommit}"
    if score >= OOM_SCORE_HIGH:
        return warning(
            "out of memory",
            f"{text}: the kernel kills this process among the first",
            "Give the container or service a lower oom_score_adj (a guaranteed QoS class).",
        )
    if overcommit == "2":
        return warning(
            "out of memory",
            f"{text}: each fork of a worker counts with all of torch's memory",
            "Set vm.overcommit_memory to 0, or provide swap for the forks to count against.",
        )
    return ok("out of memory", text)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _has_pidfd() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (OSError, AttributeError):
        return False
    return True


def _hindrance() -> str:
    """Let a process take a life lock and end. Returns why its end was not noticed, or ""."""
    try:
        locks = LifeLocks()
    except OSError as error:
        return str(error)
    lock, command = locks.lock(0), [sys.executable, "-c", CLEAN_PATH + _HOLD, locks.place(0)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=HOLD_TIMEOUT_S, check=False
        )
        if lock.read() & OWNER_DIED:
            return ""
        return (done.stderr.strip().splitlines() or ["the kernel does not show it"])[-1]
    finally:
        locks.close()


def _overcommit() -> str:
    try:
        return Path("/proc/sys/vm/overcommit_memory").read_text().strip()
    except OSError:
        return "unknown"
