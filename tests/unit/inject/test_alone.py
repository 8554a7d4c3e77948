"""A script without a Manager, in a job of several groups: reported once, when it is certain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ftrun.core.messages import FailureReport, NoManager
from tests.unit.inject.forked import listening, run_each

TRAINS = """\
import torch
weight = torch.nn.Parameter(torch.ones(1))
weight.grad = torch.ones(1)
optimizer = torch.optim.SGD([weight], lr=1.0)
"""
MANAGER = """\
from ftrun.training import context
context.claim(context.current().key)
"""
CLOSED = "context.release(context.current().key)\n"
STEP = "optimizer.step()\n"


FORKS = """\
import os
if os.fork() == 0:
    for _ in range(5):
        optimizer.step()
    os._exit(0)
os.wait()
"""

SCRIPTS: dict[str, tuple[str, list[str]]] = {
    "it ends": ("print('no training')", ["ended"]),
    "it fails": ("raise SystemExit(3)", []),
    "one step may be there to give the optimizer its state": (TRAINS + STEP, ["ended"]),
    "it trains": (TRAINS + 5 * STEP, ["trains"]),
    # At the second step, and not at the end.
    "it trains and raises": (TRAINS + 2 * STEP + "raise ValueError", ["trains", "failed"]),
    "it has a Manager": (MANAGER, []),
    "it has a Manager after the first step": (TRAINS + STEP + MANAGER + 5 * STEP, []),
    "it has closed its Manager": (MANAGER + CLOSED + TRAINS + 5 * STEP, []),
    "its child trains": (TRAINS + FORKS + MANAGER, []),
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What the agent is told by each script, of a job of two groups."""
    sources = {name: source for name, (source, _) in SCRIPTS.items()}
    return words_of(tmp_path_factory.mktemp("alone"), sources, replicas=2)


def words_of(path: Path, sources: dict[str, str], *, replicas: int) -> dict[str, list[str]]:
    """Run scripts; what the agent is told by each. An optimizer imports what is preloaded."""
    words: dict[str, list[str]] = {name: [] for name in sources}
    with listening(path) as (sock, said):
        run_each(path, sources, socket=sock, replicas=replicas, preload=["torch._dynamo"])
    for index, message in said:
        words[list(sources)[index]].append(word(message))
    return words


def word(message: Any) -> str:
    if isinstance(message, NoManager):
        return "trains" if message.has_stepped else "ended"
    assert isinstance(message, FailureReport)
    return "failed"


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_the_agent_is_told(name: str, told: dict[str, list[str]]) -> None:
    assert told[name] == SCRIPTS[name][1]


def test_one_group_that_trains_is_past_its_start(tmp_path: Path) -> None:
    """Its next failure is no failed start: it is started again. (People are told nothing.)"""
    assert words_of(tmp_path, {"trains": TRAINS + 5 * STEP}, replicas=1) == {"trains": ["trains"]}
