"""The start parameters of a node's agent, whether it runs alone, leads a group or is a hand.

Not here: their creation (main.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ftrun.agent.devices import Machine
from ftrun.agent.launch import SpawnerLaunch
from ftrun.config.settings import RunSettings


@dataclass(frozen=True, slots=True)
class AgentSetup:
    """The parameters of one agent. ``launch``: its spawner.

    ``runtime_dir``: a directory of mode 0700, which is removed when the agent ends.
    """

    settings: RunSettings
    machine: Machine
    token: str = field(repr=False)
    launch: SpawnerLaunch
    runtime_dir: Path
