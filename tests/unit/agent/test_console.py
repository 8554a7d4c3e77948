"""What an agent prints of the lighthouse's lines, where it shares its output and where not."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from ftrun.agent.console import Console
from ftrun.agent.incidents import IncidentRecords
from ftrun.agent.terminal import Terminal
from ftrun.config.layers import gather
from ftrun.config.settings import resolve
from ftrun.core.agent.events import EndAgent
from ftrun.core.agent.restarts import RestartRules
from ftrun.core.agent.settings import SupervisorSettings
from ftrun.core.agent.supervisor import Supervisor
from ftrun.core.messages import Notice

JOINED = Notice("joined", ("1",), "Replica 1 joined.")
ENDED = Notice("ended", (), "The job has ended.")


@pytest.mark.parametrize(("node", "elsewhere"), [("n1", True), ("n1", False), ("", True)])
def test_a_line_of_the_job_is_shown_once_in_one_output(
    node: str, elsewhere: bool, tmp_path: Path
) -> None:
    read, write = os.pipe()
    terminal = Terminal(write, write, node=node)
    settings = replace(resolve(["train.py"], gather({"replicas": "2"}, {}, None)), log_dir=tmp_path)
    settings.job_log_dir.mkdir(parents=True)
    rules = SupervisorSettings("n1", 1, RestartRules(3), 1.0, 1.0, 1.0)
    console = Console(settings, terminal, Supervisor(rules, 0.0))
    console.lighthouse_notice(replace(JOINED, elsewhere=elsewhere), frozenset())
    console.lighthouse_notice(replace(ENDED, elsewhere=elsewhere), frozenset())
    terminal.event_line("This node stands by.")
    console.sees_no_peers(OSError("no netlink"))
    console.end(EndAgent(0, ""), IncidentRecords(tmp_path, terminal.event_line))
    terminal.close()
    os.close(write)
    with os.fdopen(read) as shown:
        lines = shown.read().splitlines()
    own = f"ftrun {node}:" if node else "ftrun:"
    is_shown = not (node and elsewhere)
    assert ("ftrun: Replica 1 joined." in lines) == is_shown
    assert f"{own} This node stands by." in lines
    assert any(x.startswith(f"{own} This node cannot see") for x in lines)
    assert any("The job has finished" in line for line in lines) == is_shown
    assert not any("has ended" in line for line in lines)
