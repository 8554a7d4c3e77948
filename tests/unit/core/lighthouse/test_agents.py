"""An agent that comes again under its name is the same node."""

from __future__ import annotations

from ftrun.core.lighthouse.events import (
    AgentDetached,
)
from tests.unit.core.lighthouse.test_reach import Nodes


def test_a_killed_agents_successor_gets_its_replicas_at_once() -> None:
    nodes = Nodes()
    nodes.note(nodes.lighthouse.handle(AgentDetached("n1"), nodes.now))
    nodes.wait(1.0)
    nodes.slots.clear()
    nodes.attach("n1")
    assert nodes.slots == {"n1": ("1",)}
