"""Recognises workers that the kernel killed because memory ran out.

There are three sources, and the answer names its source: the ``oom_kill`` counter of the worker's
cgroup (version 2 ``memory.events``, version 1 ``memory.oom_control``), the machine's counter in
``/proc/vmstat``, and the kernel's log where it may be read. A counter that has risen since the
worker's start counts only together with a SIGKILL that ftrun did not send. Not here: the decision
that follows.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

KERNEL_LOG = Path("/dev/kmsg")
VMSTAT = Path("/proc/vmstat")
CGROUPS = Path("/sys/fs/cgroup")
RECORD_BYTES = 8192
RECORDS_MAX = 20_000
KILLED = "Killed process"
OOM_KILL = "oom_kill"


@dataclass(frozen=True, slots=True)
class Counter:
    """A count of out-of-memory kills: its file, its key in the file, its value at a time."""

    path: Path
    key: str
    value: int

    def now(self) -> int:
        """The value now; the earlier value if it cannot be read any more."""
        found = _read_key(self.path, self.key)
        return self.value if found is None else found


class MemoryWatch:
    """The counters of one worker, as they were when it started.

    ``root``: where cgroups are mounted; ``proc``: the process's files; ``kernel_log``: see above.
    """

    def __init__(
        self,
        pid: int,
        *,
        root: Path = CGROUPS,
        proc: Path | None = None,
        vmstat: Path = VMSTAT,
        kernel_log: Path = KERNEL_LOG,
    ) -> None:
        self._pid = pid
        self._kernel_log = kernel_log
        self._counters = _own_counters(proc or Path(f"/proc/{pid}"), root)
        self._machine = _counters([(vmstat, OOM_KILL)])

    def verdict(self) -> str:
        """The evidence that the kernel sent a SIGKILL that ftrun did not send; "" if there is none.

        Peers wait for the answer, so the log is read only if a counter has risen or there is no
        counter. The machine's counter also counts a worker that has moved to another cgroup, but
        does not name the worker. On its own it is evidence only where the worker's cgroup has no
        counter.
        """
        risen = [(x, now) for x in self._counters or self._machine if (now := x.now()) > x.value]
        if self._machine and not risen and self._machine[0].now() <= self._machine[0].value:
            return ""
        line = _kernel_line(self._kernel_log, self._pid)
        if line:
            return f"the kernel's log: {line}"
        for counter, now in risen:
            return (
                f"the kernel's count of out-of-memory kills rose from {counter.value} to {now} "
                f"while it ran ({counter.path}, {counter.key})"
            )
        return ""


def _own_counters(proc: Path, root: Path) -> list[Counter]:
    """The counters of the worker's own cgroup, if it has any."""
    return _counters([(path, OOM_KILL) for path in _files(proc, root)])


def _counters(candidates: list[tuple[Path, str]]) -> list[Counter]:
    return [Counter(p, key, n) for p, key in candidates if (n := _read_key(p, key)) is not None]


def _files(proc: Path, root: Path) -> list[Path]:
    """The files that may count the kills in this process's cgroup."""
    try:
        lines = (proc / "cgroup").read_text().splitlines()
    except OSError:
        return []
    files = []
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        below = path.lstrip("/")
        if controllers == "":
            files.append(root / below / "memory.events")
            files.append(root / "unified" / below / "memory.events")
        elif "memory" in controllers.split(","):
            files.append(root / "memory" / below / "memory.oom_control")
            # In a container the mount shows its own group as the root.
            files.append(root / "memory" / "memory.oom_control")
    return files


def _read_key(path: Path, key: str) -> int | None:
    try:
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == key:
                return int(value)
    except (OSError, ValueError):
        return None
    return None


def _kernel_line(log: Path, pid: int) -> str:
    """The kernel's line about the end of this process; "" if none can be read."""
    try:
        fd = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    found = ""
    try:
        for _ in range(RECORDS_MAX):
            try:
                record = os.read(fd, RECORD_BYTES)
            except BrokenPipeError:
                continue  # records were overwritten while we read
            except OSError:
                break
            if not record:
                break
            text = record.decode(errors="replace")
            if KILLED in text and f"{KILLED} {pid} " in text:
                found = text.partition(";")[2].strip().partition("\n")[0] or text.strip()
    finally:
        with contextlib.suppress(OSError):
            os.close(fd)
    return found
