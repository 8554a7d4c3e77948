"""Linux's means of supervision: prctl, pidfds and /proc, as small typed functions.

Not here: which process is watched or killed (agent/sweep.py, agent/spawner.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ftrun.base import clock

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
ZOMBIE_STATES = ("Z", "X")
PF_EXITING = 0x4
SIGNAL_MASKS = ("SigBlk", "SigIgn", "SigCgt")
ARGUMENTS_FIELDS, ENVIRONMENT_FIELDS = (45, 46), (47, 48)
"""Indices in /proc/PID/stat, counted from the state: the memory behind ``cmdline`` and
``environ``."""
SIZE_FIELD, CODE_FIELD, HIDDEN = 20, 23, "1"
"""Indices of the size of the address space (0 without one), and of the code's start, which is 1 if
this process may not read it."""
EXEC_S, EXEC_LOOK_S = 1.0, 0.0005
"""During an exec, words and environment are empty for some microseconds, or longer under load."""


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """One line of /proc/PID/stat: enough to identify a process (pid and start_ticks).

    ``cpu_s``: CPU time of all its threads so far, in seconds.
    """

    pid: int
    ppid: int
    state: str
    start_ticks: int
    cpu_s: float

    @property
    def is_zombie(self) -> bool:
        """Whether the process has ended and only waits to be reaped."""
        return self.state in ZOMBIE_STATES


@lru_cache(maxsize=1)
def libc() -> ctypes.CDLL:
    """The C library of this process."""
    return ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, argument: int) -> None:
    if libc().prctl(option, ctypes.c_ulong(argument), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), f"prctl({option})")


def become_subreaper() -> None:
    """Make orphans below this process its children instead of init's."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent_pid: int) -> bool:
    """Have the kernel SIGKILL this process when its parent's thread ends.

    Returns:
        False if the parent is gone already: then the caller must end itself.
    """
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent_pid


def live_without_parent() -> None:
    """Undo ``die_with_parent``."""
    _prctl(PR_SET_PDEATHSIG, 0)


def replace_process(words: list[str]) -> None:
    """``os.execv`` of the C library, which no debugger has patched.

    Raises:
        OSError: the system refused. Otherwise this does not return.
    """
    argv = (ctypes.c_char_p * (len(words) + 1))(*map(os.fsencode, words), None)
    libc().execv(argv[0], argv)
    code = ctypes.get_errno()
    raise OSError(code, os.strerror(code), words[0])


def title_process(title: str) -> None:
    """Set the title that ``ps`` shows, in place of the inherited command line.

    It overwrites the arguments' memory and cannot be longer. ``comm`` gets the first 15 bytes.
    """
    name = ctypes.create_string_buffer(title.encode()[:15])
    libc().prctl(PR_SET_NAME, name, 0, 0, 0)
    start, end = _memory(ARGUMENTS_FIELDS)
    if 0 < start < end:
        ctypes.memmove(
            start, title.encode()[: end - start - 1].ljust(end - start, b"\0"), end - start
        )


def _memory(fields: tuple[int, int]) -> tuple[int, int]:
    """The first address and the end of a part of this process's memory, from /proc/self/stat."""
    found = Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()
    return int(found[fields[0]]), int(found[fields[1]])


def thread_count() -> int:
    """How many threads this process has."""
    return len(os.listdir("/proc/self/task"))


def write_own_environment(name: str, value: str) -> None:
    """Overwrite ``name``'s value in the memory that /proc/PID/environ shows.

    A forked process shows its parent's environment there forever, so the parent starts with a
    placeholder of the same length. Forks of this process inherit the new value.

    Raises:
        ValueError: there is no such placeholder, or its length differs.
    """
    # Not getenv's address, which differs once the variable has been set again.
    start, end = _memory(ENVIRONMENT_FIELDS)
    shown, data = ctypes.string_at(start, end - start), value.encode()
    found = (b"\0" + shown).find(b"\0" + name.encode() + b"=")
    at = found + len(name.encode()) + 1
    if found < 0 or shown.find(b"\0", at) != at + len(data):
        raise ValueError(f"no placeholder of {len(data)} bytes for {name}")
    ctypes.memmove(start + at, data, len(data))


def survives_signal(pid: int, number: int) -> bool:
    """Whether a process handles a signal, ignores it, or blocks it in all its threads.

    False for a process that has ended.
    """
    bit = 1 << (number - 1)
    try:
        masks = _signal_masks(Path(f"/proc/{pid}/status"))
        if (masks["SigCgt"] | masks["SigIgn"]) & bit:
            return True
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return all(_signal_masks(task / "status")["SigBlk"] & bit for task in tasks)
    except (OSError, KeyError):
        return False


def _signal_masks(status: Path) -> dict[str, int]:
    lines = status.read_text(errors="replace").splitlines()
    fields = (line.partition(":\t")[::2] for line in lines)
    return {name: int(mask, 16) for name, mask in fields if name in SIGNAL_MASKS}


def process_row(pid: int) -> ProcessRow | None:
    """The current row of the process with this pid, or None."""
    fields = _stat(pid)
    if not fields:
        return None
    return ProcessRow(
        pid=pid,
        state=fields[0],
        ppid=int(fields[1]),
        start_ticks=int(fields[19]),
        cpu_s=(int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
    )


def descendants(rows: Iterable[ProcessRow], roots: Iterable[int]) -> set[int]:
    """The pids among ``rows`` of all descendants of ``roots``."""
    children: dict[int, list[int]] = {}
    for row in rows:
        children.setdefault(row.ppid, []).append(row.pid)
    found: set[int] = set()
    pending = list(roots)
    while pending:
        for pid in children.get(pending.pop(), ()):
            if pid not in found:
                found.add(pid)
                pending.append(pid)
    return found


def status_of_zombie(pid: int) -> int | None:
    """The exit code, or minus the signal, of a process that is not reaped yet; otherwise None.

    Without ptrace permission the kernel reports 0.
    """
    return _status(pid, lambda state, _: state in ZOMBIE_STATES)


def status_of_dying(pid: int) -> int | None:
    """As ``status_of_zombie``, but already when the process's main thread begins to end.

    0 may also mean a main thread that ends alone, or that is replaced by another one that calls
    exec.
    """
    return _status(pid, lambda _, flags: bool(flags & PF_EXITING))


def _status(pid: int, has_ended: Callable[[str, int], bool]) -> int | None:
    """The status in /proc/PID/stat, if ``has_ended`` accepts the process's state and flags."""
    fields = _stat(pid)
    is_over = bool(fields) and has_ended(fields[0], int(fields[6]))
    return os.waitstatus_to_exitcode(int(fields[49])) if is_over else None


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; empty if the process is gone."""
    return _shown(pid, "stat").decode(errors="replace").rpartition(")")[2].split()


def process_rows() -> list[ProcessRow]:
    rows = (process_row(int(name)) for name in os.listdir("/proc") if name.isdecimal())
    return [row for row in rows if row is not None]


def process_environment(pid: int) -> bytes:
    """The environment block of a process, NUL separated; empty if it may not be read."""
    return _memory_of(pid, "environ", ENVIRONMENT_FIELDS)


def _memory_of(pid: int, name: str, fields: tuple[int, int]) -> bytes:
    """A file of /proc/PID that shows memory. During an exec, waits for the memory after the exec.

    Before the exec, a process that was just started has its parent's memory.
    """
    deadline = clock.now() + EXEC_S
    while True:
        found = _shown(pid, name)
        if found or not _is_to_come(_stat(pid), fields) or clock.now() >= deadline:
            return found
        time.sleep(EXEC_LOOK_S)


def _is_to_come(stat: list[str], fields: tuple[int, int]) -> bool:
    """Whether memory that was read as empty is just being set up, or has been since."""
    if not stat or stat[SIZE_FIELD] == "0" or stat[CODE_FIELD] == HIDDEN:
        return False  # it has ended, belongs to the kernel, or is not readable
    start, end = (stat[field] for field in fields)
    return end == "0" or start != end


def _shown(pid: int, name: str) -> bytes:
    """A file of /proc/PID, empty if it cannot be read. Avoids ``Path``, as a sweep reads
    hundreds."""
    try:
        with open(f"/proc/{pid}/{name}", "rb", 0) as file:
            return file.read()
    except OSError:
        return b""


def command_line(pid: int) -> str:
    """The words or the title of a process; "" if it is gone or a zombie."""
    words = _memory_of(pid, "cmdline", ARGUMENTS_FIELDS)
    return words.rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")


def send_signal(row: ProcessRow, number: int) -> int | None:
    """Signal the process of ``row``, and never a later one with the same pid.

    Returns:
        Its pidfd, which the caller must close; None if the process is gone.
    """
    try:
        pidfd = os.pidfd_open(row.pid)
    except OSError:
        return None
    now = process_row(row.pid)
    if now is None or now.start_ticks != row.start_ticks:
        os.close(pidfd)
        return None
    try:
        signal.pidfd_send_signal(pidfd, number)
    except OSError:
        os.close(pidfd)
        return None
    return pidfd


def reap_strays(spare: frozenset[int]) -> None:
    """Reap ended children without a waiting parent: orphans that a subreaper has inherited."""
    own = os.getpid()
    for row in process_rows():
        if row.ppid == own and row.is_zombie and row.pid not in spare:
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, row.pid, os.WEXITED | os.WNOHANG)


def look_names_up_in_files_only() -> None:
    """Make this process resolve names by /etc/hosts only, without a name server.

    torch's TCPStore resolves each client's name in its only thread when it accepts the client. A
    resolver that does not answer stalls all clients for 5 s (seen with torch 2.13).
    """
    configure = getattr(libc(), "__nss_configure_lookup", None)  # glibc has it, others may not
    if configure is not None:
        configure(b"hosts", b"files")


def boot_id() -> str:
    """An id of this boot of the machine, within which monotonic times compare; "": unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
