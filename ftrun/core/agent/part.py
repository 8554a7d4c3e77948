"""The fields that all parts of a node's supervision share: settings, slots, lease, outbox.

Not here: the parts themselves, which supervisor.py puts together.
"""

from __future__ import annotations

from dataclasses import dataclass

from ftrun.core.agent.evidence import Unconfirmed
from ftrun.core.agent.lease import AgentLease
from ftrun.core.agent.outbox import Outbox
from ftrun.core.agent.settings import SupervisorSettings
from ftrun.core.agent.slot_table import NodeSlots


@dataclass(eq=False, repr=False)
class Part:
    """One part; its own fields follow these."""

    _settings: SupervisorSettings
    _slots: NodeSlots
    _lease: AgentLease
    _unconfirmed: Unconfirmed
    _out: Outbox
