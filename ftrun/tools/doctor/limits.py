"""Limits of this process, its control group, shared memory and disks.

Not here: devices (devices.py), a job's own memory while it runs (agent/resources.py).
"""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from pathlib import Path

from ftrun.tools.doctor.findings import Finding, ok, problem, warning

GIB = 1 << 30
DESCRIPTORS_MIN = 1024
DESCRIPTORS_GOOD = 4096
PROCESSES_MIN = 256
PROCESSES_GOOD = 4096
SHM_GOOD = GIB
SHM_MIN = 64 << 20
DISK_GOOD = 5 * GIB
DISK_MIN = 256 << 20
MEMORY_MIN = 2 * GIB
UNLIMITED = -1


def process_limits() -> list[Finding]:
    """Descriptors, processes and core dumps."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes = resource.getrlimit(resource.RLIMIT_NPROC)
    return [judge_descriptors(*files), judge_processes(processes[0], os.getuid() == 0)]


def control_group(root: Path = Path("/sys/fs/cgroup")) -> list[Finding]:
    """The container's limits on memory and processors."""
    where = own_group(root)
    return [
        judge_memory(read_limit(where / "memory.max"), _machine_memory()),
        judge_cpu(_read(where / "cpu.max"), os.cpu_count() or 1),
        judge_pids(read_limit(where / "pids.max"), read_limit(where / "pids.current")),
    ]


def shared_memory(path: Path = Path("/dev/shm")) -> list[Finding]:
    """Room for data loaders and for NCCL."""
    if not path.is_dir():
        return [judge_shm(None, 0)]
    usage = shutil.disk_usage(path)
    return [judge_shm(usage.total, usage.free)]


def disks(log_dir: Path) -> list[Finding]:
    """Room for logs and for temporary files."""
    places = {
        "disk of the log directory": log_dir,
        "disk of temporary files": Path(tempfile.gettempdir()),
    }
    return [judge_disk(name, path, _free_of(path)) for name, path in places.items()]


def judge_descriptors(soft: int, hard: int) -> Finding:
    """A worker needs ten descriptors of its agent, and a few more for each peer."""
    name = "descriptors"
    text = f"{_count(soft)} open files (at most {_count(hard)})"
    remedy = "Raise it: ulimit -n 65536, or LimitNOFILE= of the service."
    if soft != UNLIMITED and soft < DESCRIPTORS_MIN:
        return problem(name, text, remedy)
    if soft != UNLIMITED and soft < DESCRIPTORS_GOOD:
        return warning(name, f"{text}: enough for small jobs", remedy)
    return ok(name, text)


def judge_processes(soft: int, is_root: bool) -> Finding:
    """Threads count as processes; the limit does not bind root."""
    text = f"{_count(soft)} processes and threads"
    remedy = "Raise it: ulimit -u 65536, or LimitNPROC= of the service."
    if soft == UNLIMITED or is_root or soft >= PROCESSES_GOOD:
        return ok("processes", text)
    if soft < PROCESSES_MIN:
        return problem("processes", text, remedy)
    return warning("processes", f"{text}: torch starts dozens per worker", remedy)


def judge_memory(limit: int | None, machine: int) -> Finding:
    """``limit``: the control group's, in bytes; None if it has none."""
    name = "memory"
    known = machine if limit is None else min(limit, machine)
    text = f"{known / GIB:.1f} GiB" + (" (limit of the control group)" if known < machine else "")
    if known < MEMORY_MIN:
        return warning(
            name, f"{text}: torch alone takes half a GiB", "Give the container more memory."
        )
    return ok(name, text)


def judge_cpu(line: str, cores: int) -> Finding:
    """``line``: cpu.max, which is a quota and a period in microseconds."""
    quota, _, period = line.partition(" ")
    if not quota.isdecimal() or not period.strip().isdecimal() or int(period) == 0:
        return ok("processors", f"{cores}")
    granted = int(quota) / int(period)
    if granted < 1:
        return warning(
            "processors",
            f"{granted:.2g} of {cores}: less than one, so heartbeats may be late",
            "Give the container at least one processor.",
        )
    return ok("processors", f"{granted:.3g} of {cores} (limit of the control group)")


def judge_pids(limit: int | None, used: int | None) -> Finding:
    """Processes and threads in the control group."""
    if limit is None:
        return ok("pids", "no limit of the control group")
    left = limit - (used or 0)
    text = f"{left} of {limit} processes and threads are left in the control group"
    remedy = "Raise the limit of pids of the container (for example --pids-limit)."
    if left < PROCESSES_MIN:
        return problem("pids", text, remedy)
    return warning("pids", text, remedy) if left < 4 * PROCESSES_MIN else ok("pids", text)


def judge_shm(total: int | None, free: int) -> Finding:
    """``total``: bytes; None: there is no /dev/shm."""
    name = "/dev/shm"
    remedy = "Make it larger: --shm-size 8g of the container, or an emptyDir of medium Memory."
    if total is None:
        return problem(name, "is missing", remedy)
    text = f"{free / GIB:.2f} of {total / GIB:.2f} GiB are free"
    if free < SHM_MIN:
        return problem(name, text, remedy)
    if total < SHM_GOOD:
        return warning(name, f"{text}: data loaders with workers need more", remedy)
    return ok(name, text)


def judge_disk(name: str, path: Path, free: int | None) -> Finding:
    """``free``: bytes that this user may write; None: the directory cannot be read."""
    if free is None:
        return problem(name, f"{path} cannot be read", "Give another directory: --log-dir DIR.")
    text = f"{free / GIB:.1f} GiB are free at {path}"
    remedy = f"Free some of {path}, or use another directory (--log-dir DIR, TMPDIR)."
    if free < DISK_MIN:
        return problem(name, text, remedy)
    return warning(name, text, remedy) if free < DISK_GOOD else ok(name, text)


def own_group(root: Path, proc: Path = Path("/proc/self/cgroup")) -> Path:
    """The control group (version 2) of this process; for version 1, the root."""
    for line in _read(proc).splitlines():
        if line.startswith("0::"):
            path = root / line[3:].strip().lstrip("/")
            return path if path.is_dir() else root
    return root


def read_limit(path: Path) -> int | None:
    """A number in a file; None: ``max``, or there is no such file."""
    text = _read(path).strip()
    return int(text) if text.isdecimal() else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _machine_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _free_of(path: Path) -> int | None:
    for place in (path.absolute(), *path.absolute().parents):
        try:
            return shutil.disk_usage(place).free
        except FileNotFoundError:
            continue
        except OSError:
            return None
    return None


def _count(number: int) -> str:
    return "unlimited" if number == UNLIMITED else str(number)
