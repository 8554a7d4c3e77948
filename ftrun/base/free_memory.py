"""The memory that is free: of the machine, and of the control group that this process is in.

Not here: what is told of it (agent/resources.py).
"""

from __future__ import annotations

from pathlib import Path

LEFT_SHARE = 0.05
"""Of all memory. What ftrun keeps beside the scripts leaves so much."""
MEMINFO = Path("/proc/meminfo")
CGROUPS = Path("/sys/fs/cgroup")


def machine_memory(path: Path = MEMINFO) -> tuple[int, int] | None:
    """The bytes that are free, and all; None: they cannot be read."""
    rows = {}
    try:
        for line in path.read_text().splitlines():
            name, _, rest = line.partition(":")
            rows[name] = int(rest.split()[0]) << 10
        return rows["MemAvailable"], rows["MemTotal"]
    except (OSError, KeyError, ValueError, IndexError):
        return None


def free_bytes(
    root: Path = CGROUPS, proc: Path = Path("/proc/self/cgroup"), left: float = 0.0
) -> int:
    """The memory that is free on this machine, and in this process's control group.

    ``left``: without this share of the whole; the result may be below 0.
    """
    known = machine_memory()
    free = [] if known is None else [int(known[0] - left * known[1])]
    try:
        lines = proc.read_text().splitlines()
        below = next(line[3:].lstrip("/") for line in lines if line.startswith("0::"))
        limit = (root / below / "memory.max").read_text().strip()
        used = int((root / below / "memory.current").read_text())
        free += [int(int(limit) * (1 - left)) - used] if limit.isdecimal() else []
    except (OSError, ValueError, StopIteration):
        pass  # no limit that can be read
    return min(free, default=0)
