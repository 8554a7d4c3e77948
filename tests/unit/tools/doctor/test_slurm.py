"""What a Slurm's settings will do to a job, from a real cluster's and changed ones."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from ftrun.tools.doctor import slurm
from ftrun.tools.doctor.findings import Finding, Verdict

CONFIG = Path(__file__).with_name("slurm_config.txt")
"""`scontrol show config`, written by `python -m tests.engines.record`."""
BATCH = "ftrun sbatch does so"


@pytest.fixture
def findings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> dict[str, Finding]:
    """Those of a cluster in which some rows are others."""
    rows = [
        line
        for line in CONFIG.read_text().splitlines()
        if line.partition("=")[0].strip() not in request.param
    ]
    rows += [f"{name:<24}= {value}" for name, value in request.param.items()]
    text = "\n".join(rows)
    (tmp_path / "config").write_text(text)
    command = tmp_path / "scontrol"
    command.write_text(f'#!/bin/sh\n[ "$*" = "show config" ] && exec /bin/cat {tmp_path}/config\n')
    command.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert slurm.is_here()
    return {finding.check: finding for finding in slurm.settings()}


@pytest.mark.parametrize("findings", [{}], indirect=True)
def test_a_cluster_of_the_tests(findings: dict[str, Finding]) -> None:
    bad = [name for name, one in findings.items() if one.verdict is not Verdict.OK]
    assert bad == ["left processes"]
    assert "replicas have 30 s to leave in order" in findings["KillWait"].text
    assert "20 s after a node is lost Slurm ends the job" in findings["SlurmdTimeout"].text
    assert "takes jobs again by itself" in findings["SlurmdTimeout"].text
    assert "--requeue has ftrun queue the job again" in findings["requeue"].text


@pytest.mark.parametrize(
    ("findings", "check", "words", "remedy"),
    [
        ({"KillWait": "5 sec"}, "KillWait", "are killed by then", "--grace below 1"),
        ({"WaitTime": "60 sec"}, "WaitTime", "60 s after the first task", BATCH),
        ({"KillOnBadExit": "1"}, "KillOnBadExit", "ends the job on all nodes", BATCH),
        ({"SlurmdTimeout": "0 sec"}, "SlurmdTimeout", "an administrator says so", ""),
        ({"ReturnToService": "0"}, "SlurmdTimeout", "waits for an administrator", ""),
        ({"RequeueExit": "1,70-80"}, "requeue", "Slurm queues a job again", ""),
        ({"RequeueExitHold": "75"}, "requeue", "is queued, and held", "scontrol release"),
        ({"JobRequeue": "0"}, "requeue", "if sbatch was given --requeue too", ""),
        ({"PreemptMode": "REQUEUE"}, "PreemptMode", "gets SIGTERM and GraceTime", ""),
        (
            {"PreemptMode": "REQUEUE", "PreemptParameters": "send_user_signal"},
            "PreemptMode", "gets the signal of --signal", "",
        ),
    ],
    indirect=["findings"],
)  # fmt: skip
def test_settings_that_matter(
    findings: dict[str, Finding], check: str, words: str, remedy: str
) -> None:
    assert words in findings[check].text
    assert remedy in findings[check].remedy
    assert (findings[check].verdict is Verdict.OK) == (not remedy)


def test_a_cluster_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "scontrol"
    command.write_text("#!/bin/sh\necho no controller >&2; exit 1\n")
    command.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(tmp_path))
    (finding,) = slurm.settings()
    assert finding.verdict is Verdict.WARNING
    assert "no cluster answers (no controller)" in finding.text
