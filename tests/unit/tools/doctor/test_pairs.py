"""Which node is named when pairs do not reach each other. Real nodes: tests/engines."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ftrun.engines.place import Place
from ftrun.tools.doctor import pairs
from ftrun.tools.doctor.findings import Finding, Verdict
from ftrun.tools.doctor.pairs import Trial, judge

NODES = ("n0", "n1", "n2", "n3")
HOSTS = {n: f"10.0.0.{n}" for n in range(4)}
WHY = "timed out"


def judged(*bad: tuple[int, int], hosts: dict[int, str] | None = None) -> list[Finding]:
    missed = {a: {str(b): WHY for c, b in bad if c == a} for a in range(4)}
    return judge(NODES, hosts or HOSTS, missed)


def test_all_reach_each_other() -> None:
    (finding,) = judged()
    assert (finding.verdict, finding.text) == (
        Verdict.OK,
        "each of the 4 nodes reaches each other one",
    )


def test_one_that_nobody_reaches_is_named_once() -> None:
    (finding,) = judged((0, 2), (1, 2), (3, 2))
    assert finding.text == f"n0, n1, n3 do not reach n2 at 10.0.0.2 ({WHY})"
    assert "--interface" in finding.remedy


def test_one_that_reaches_nobody_is_named_once() -> None:
    (finding,) = judged((2, 0), (2, 1), (2, 3))
    assert finding.text == f"n2 does not reach n0 (10.0.0.0), n1 (10.0.0.1), n3 (10.0.0.3) ({WHY})"


def test_a_pair_is_named_as_a_pair() -> None:
    both = [finding.text for finding in judged((0, 1), (2, 3), (3, 2))]
    assert both == [
        f"n3 does not reach n2 at 10.0.0.2; n2 does not reach n3 (10.0.0.3) ({WHY})",
        f"n0 does not reach n1 at 10.0.0.1 ({WHY})",
    ]


def test_a_loopback_address_is_the_cause_whoever_fails() -> None:
    (finding,) = judged((0, 1), (2, 1), hosts={**HOSTS, 1: "127.0.1.1"})
    assert finding.text == "n1 would announce 127.0.1.1, which no other node reaches"
    assert "/etc/hosts" in finding.remedy


def test_one_that_takes_no_part_is_named() -> None:
    (finding,) = judge(NODES, {n: HOSTS[n] for n in range(3)}, {n: {} for n in range(3)})
    assert finding.text == "n3 did not take part within 60 s"


def test_nodes_meet_and_try_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "is_loopback", lambda _host: False)
    trials = [Trial(Place("Slurm", n, NODES, 0, "", "7.0"), tmp_path / "d", "lo") for n in range(4)]
    (tmp_path / "d").mkdir()
    others = [threading.Thread(target=trial.run) for trial in trials[1:]]
    for thread in others:
        thread.start()
    (finding,) = trials[0].run()
    assert finding.verdict is Verdict.OK
    for thread in others:
        thread.join(60)
        assert not thread.is_alive()
    assert list(tmp_path.iterdir()) == []
