"""The kernel's out-of-memory killer, by invented cgroups, counters and logs."""

from __future__ import annotations

from pathlib import Path

from ftrun.agent.memory import MemoryWatch


class Machine:
    """A process's files, cgroups and the machine's counters, below a directory."""

    def __init__(self, root: Path, cgroup: str) -> None:
        self.root = root
        self.proc = root / "proc"
        self.proc.mkdir()
        (self.proc / "cgroup").write_text(cgroup)
        self.log = root / "kmsg"
        self.vmstat = root / "vmstat"

    def counts(self, path: str, value: int) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"low 0\noom 3\noom_kill {value}\noom_group_kill 0\n")

    def watch(self) -> MemoryWatch:
        return MemoryWatch(
            812, root=self.root, proc=self.proc, vmstat=self.vmstat, kernel_log=self.log
        )


def test_a_count_of_its_cgroup_that_rises_tells_it_in_version_2(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/jobs/a\n")
    machine.counts("jobs/a/memory.events", 4)
    watch = machine.watch()
    assert watch.verdict() == ""
    machine.counts("jobs/a/memory.events", 5)
    assert "rose from 4 to 5" in watch.verdict()
    assert "jobs/a/memory.events" in watch.verdict()


def test_a_count_of_its_cgroup_that_rises_tells_it_in_version_1(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "9:cpu,memory:/jobs/a\n0::/\n")
    machine.counts("memory/jobs/a/memory.oom_control", 0)
    watch = machine.watch()
    machine.counts("memory/jobs/a/memory.oom_control", 1)
    assert "memory.oom_control" in watch.verdict()


def test_the_machines_count_is_for_processes_without_a_cgroup_that_counts(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/\n")
    machine.counts("vmstat", 7)
    watch = machine.watch()
    assert watch.verdict() == ""
    machine.counts("vmstat", 8)
    assert "vmstat" in watch.verdict()


def test_the_kernels_log_names_the_process(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "")
    watch = machine.watch()
    machine.log.write_text("3,1,9,-;Out of memory: Killed process 8120 (other)\n")
    assert watch.verdict() == ""
    machine.log.write_text("3,1,9,-;Memory cgroup out of memory: Killed process 812 (python) x\n")
    assert watch.verdict().startswith("the kernel's log: Memory cgroup out of memory: Killed")


def test_the_log_is_not_read_while_the_counts_stand(tmp_path: Path) -> None:
    """Peers wait for the verdict, and the log may have thousands of records."""
    machine = Machine(tmp_path, "0::/jobs/a\n")
    machine.counts("jobs/a/memory.events", 4)
    machine.counts("vmstat", 7)
    watch = machine.watch()
    machine.log.write_text("3,1,9,-;Out of memory: Killed process 812 (an earlier one)\n")
    assert watch.verdict() == ""
    machine.counts("vmstat", 8)  # it may have moved to another cgroup
    assert watch.verdict().startswith("the kernel's log: Out of memory")
    machine.log.write_text("3,1,9,-;Out of memory: Killed process 813 (another)\n")
    assert watch.verdict() == ""
    machine.counts("jobs/a/memory.events", 5)
    assert "rose from 4 to 5" in watch.verdict()


def test_files_that_are_missing_or_odd_tell_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "nonsense\n0::/gone\n")
    machine.vmstat.write_text("oom_kill many\n")
    assert machine.watch().verdict() == ""
