"""Each verdict of ``ftrun doctor``, from invented facts; and checks that fail or do not end."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from ftrun.agent.nvml import NotReadable
from ftrun.core.agent.node_resources import Gpu
from ftrun.tools.doctor import command, devices, limits, network, system
from ftrun.tools.doctor.command import Check, diagnose, lines, run_checks
from ftrun.tools.doctor.devices import TorchView
from ftrun.tools.doctor.findings import Finding, Verdict, has_problem, ok, problem, warning

OK, WARNING, PROBLEM = Verdict.OK, Verdict.WARNING, Verdict.PROBLEM
GIB = 1 << 30
CARD = Gpu(0, "Card 9000", "GPU-00", 80 * GIB, GIB, ecc_errors=0)


def test_what_keeps_a_death_from_being_known_at_once_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = {finding.check: finding for finding in system.kernel_features()}
    assert found["deaths"].verdict is OK
    monkeypatch.setattr(system, "_HOLD", "raise OSError('no robust mutexes')")
    found = {finding.check: finding for finding in system.kernel_features()}
    assert found["deaths"].text.endswith("memory: OSError: no robust mutexes")
    monkeypatch.setattr("platform.machine", lambda: "vax")
    found = {finding.check: finding for finding in system.kernel_features()}
    assert "futex on vax is not known" in found["deaths"].text


@pytest.mark.parametrize(
    ("finding", "verdict"),
    [
        (system.judge_python((3, 9, 1)), PROBLEM),
        (system.judge_python((3, 10, 0)), OK),
        (system.judge_torch(None), PROBLEM),
        (system.judge_torch("2.8.1+cu128"), PROBLEM),
        (system.judge_torch("2.13.0+cpu"), OK),
        (system.judge_torch("3.0.0a0"), OK),
        (system.judge_kernel("Darwin", "23.1", ""), PROBLEM),
        (system.judge_kernel("Linux", "4.19.0-21-amd64", "glibc 2.28"), PROBLEM),
        (system.judge_kernel("Linux", "5.4.0", "glibc 2.31"), OK),
        (system.judge_kernel("Linux", "6.18.44-cloud", "glibc 2.36"), OK),
        (system.judge_pidfd(False), PROBLEM),
        (system.judge_pidfd(True), OK),
        (system.judge_life_lock(""), OK),
        (system.judge_life_lock("no such file"), WARNING),
        (system.judge_oom(0, "0"), OK),
        (system.judge_oom(900, "0"), WARNING),
        (system.judge_oom(0, "2"), WARNING),
        (limits.judge_descriptors(256, 256), PROBLEM),
        (limits.judge_descriptors(1024, 4096), WARNING),
        (limits.judge_descriptors(65536, 65536), OK),
        (limits.judge_descriptors(-1, -1), OK),
        (limits.judge_processes(100, is_root=False), PROBLEM),
        (limits.judge_processes(100, is_root=True), OK),
        (limits.judge_processes(1000, is_root=False), WARNING),
        (limits.judge_processes(-1, is_root=False), OK),
        (limits.judge_memory(GIB, 64 * GIB), WARNING),
        (limits.judge_memory(None, 64 * GIB), OK),
        (limits.judge_cpu("max 100000", 8), OK),
        (limits.judge_cpu("50000 100000", 8), WARNING),
        (limits.judge_cpu("400000 100000", 8), OK),
        (limits.judge_cpu("", 8), OK),
        (limits.judge_pids(None, None), OK),
        (limits.judge_pids(1000, 900), PROBLEM),
        (limits.judge_pids(1000, 200), WARNING),
        (limits.judge_pids(100000, None), OK),
        (limits.judge_shm(None, 0), PROBLEM),
        (limits.judge_shm(64 << 20, 10 << 20), PROBLEM),
        (limits.judge_shm(512 << 20, 512 << 20), WARNING),
        (limits.judge_shm(8 * GIB, 8 * GIB), OK),
        (limits.judge_disk("disk", Path("/x"), None), PROBLEM),
        (limits.judge_disk("disk", Path("/x"), 1 << 20), PROBLEM),
        (limits.judge_disk("disk", Path("/x"), GIB), WARNING),
        (limits.judge_disk("disk", Path("/x"), 50 * GIB), OK),
        (network.judge_port_range("32768\t60999\n"), OK),
        (network.judge_port_range("32768 33000"), WARNING),
        (network.judge_port_range(""), WARNING),
        (network.judge_route("127.0.0.1", "10.0.0.7"), PROBLEM),
        (network.judge_route("127.0.0.1", "localhost"), OK),
        (network.judge_route("10.0.0.8", "10.0.0.7"), OK),
        (network.judge_skew("Thu, 01 Jan 1970 00:16:40 GMT", 1000.9, 0.1), OK),
        (network.judge_skew("Thu, 01 Jan 1970 00:16:40 GMT", 1010.0, 0.1), WARNING),
        (network.judge_skew("Thu, 01 Jan 1970 00:16:40 GMT", 90000.0, 0.1), PROBLEM),
        (network.judge_skew("yesterday", 1000.0, 0.1), WARNING),
        (network.judge_skew(None, 1000.0, 0.1), WARNING),
        (devices.judge_no_table("no library", 0), OK),
        (devices.judge_no_table("no library", 8), WARNING),
        (devices.judge_gpu(CARD), OK),
        (devices.judge_gpu(replace(CARD, ecc_errors=None)), OK),
        (devices.judge_gpu(replace(CARD, ecc_errors=1)), PROBLEM),
        (devices.judge_gpu(replace(CARD, used_bytes=40 * GIB)), WARNING),
        (devices.judge_torch_view(TorchView("", 0), 0), OK),
        (devices.judge_torch_view(TorchView("12.8", 8), 8), OK),
        (devices.judge_torch_view(TorchView("", 0), 8), WARNING),
        (devices.judge_torch_view(TorchView("12.8", 0), 8), PROBLEM),
    ],
)
def test_a_verdict(finding: Finding, verdict: Verdict) -> None:
    assert finding.verdict is verdict
    assert bool(finding.remedy) == (verdict is not OK), "what is not well has a remedy"


class LostGpu:
    """A machine with one good GPU and one that has fallen off the bus."""

    def count(self) -> int:
        return 2

    def gpu(self, index: int) -> Gpu:
        if index:
            raise NotReadable("GPU is lost")
        return CARD

    def xids(self) -> list[tuple[int, int]]:
        return []

    def close(self) -> None:
        pass


def test_a_gpu_that_the_driver_cannot_read_is_a_problem_of_its_own() -> None:
    assert [finding.verdict for finding in devices.judge_gpus(LostGpu())] == [OK, PROBLEM]


def test_a_check_that_fails_or_does_not_end_is_a_finding() -> None:
    never = threading.Event()

    def fails() -> list[Finding]:
        raise PermissionError("a seccomp profile")

    def waits() -> list[Finding]:
        never.wait(60)
        return []

    checks = [Check("a", fails), Check("b", waits, 0.05), Check("c", lambda: [ok("c", "well")])]
    first, second, third = run_checks(checks)
    never.set()
    assert first.text == "it could not be checked: PermissionError: a seccomp profile"
    assert second.text == "no result within 0.05 s"
    assert [first.verdict, second.verdict, third.verdict] == [PROBLEM, PROBLEM, OK]


def test_only_a_problem_makes_the_exit_code() -> None:
    assert not has_problem([ok("a", "x"), warning("b", "y", "z")])
    assert has_problem([ok("a", "x"), problem("b", "y", "z")])


def test_the_lines_have_each_remedy_below_its_finding() -> None:
    assert lines([ok("a", "well"), problem("long name", "broken", "Repair it.")]) == [
        "ok       a          well",
        "PROBLEM  long name  broken",
        "                    -> Repair it.",
        "1 ok, 0 warning, 1 problem.",
    ]


def test_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Check("a", lambda: [warning("a", "b", "c")])]
    monkeypatch.setattr(command, "checks", lambda way, log_dir, trial: found)
    assert diagnose(None, Path(), as_json=True) == 0
    assert json.loads(capsys.readouterr().out) == {
        "findings": [{"check": "a", "verdict": "warning", "text": "b", "remedy": "c"}]
    }


def test_own_control_group_is_found_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("1:cpu:/old\n0::/slice/job\n")
    (tmp_path / "fs" / "slice" / "job").mkdir(parents=True)
    found = limits.own_group(tmp_path / "fs", tmp_path / "cgroup")
    assert found == tmp_path / "fs" / "slice" / "job"
    (found / "pids.max").write_text("max\n")
    (found / "memory.max").write_text("1024\n")
    assert limits.read_limit(found / "pids.max") is None
    assert limits.read_limit(found / "memory.max") == 1024
    assert limits.own_group(tmp_path / "other", tmp_path / "cgroup") == tmp_path / "other"
