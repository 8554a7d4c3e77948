"""The agents of one job: the attached ones, and those that were detached recently.

If no agent at all has sent anything for three heartbeats, the lighthouse itself is cut off: it is
**deaf**. While it is deaf it declares no agent lost, whether an agent is silent or its stream
breaks, and it decides nothing: a survivor that owes it an answer is not replaced. When an agent
sends again, all others have trained on without the lighthouse, and their streams may be slow to
return. So it begins another life, as if it had been restarted, and takes over what it finds. (In a
job with one agent there are no others.) After the time in which workers isolate themselves there is
nothing to keep, and silent agents are lost.

Not here: the consequences of a silent agent (machine.py), which slots it runs (assignment.py).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ftrun.core.lighthouse.state import MembershipState
from ftrun.core.lighthouse.suspicion import SilenceCheck

FAILURES_KEPT = 8
DEAF_SHARE = 0.6
"""The share of the heartbeat timeout after which the lighthouse is deaf if no agent has sent
anything: three heartbeats of all.

When the first agent is overdue, the last one has sent something a heartbeat after it at most.
"""


@dataclass(slots=True)
class Agent:
    """One node's agent. ``gone_at``: when its stream ended; None while it is attached.

    ``assigned``: the slots that it was last sent; None before the first time. ``is_leaving``: it
    takes no more slots, and its replicas leave. ``failures``: when its replicas failed, since any
    of them trained; ``failed_at_step``: the job's step at the last one. ``is_aside``: it takes no
    more slots (set_aside.py); ``is_unplaced``: no other node could take its slots. ``is_back``: it
    was in the job under an earlier lighthouse. ``silent_peers``: the hosts that do not acknowledge
    its packets; ``is_out_of_reach``: it was lost because of that (reach.py). ``rank``: its place,
    if it has one.
    """

    agent_id: str
    host: str
    store: str
    capacity: int
    last_message_at: float
    gone_at: float | None = None
    assigned: tuple[str, ...] | None = None
    is_leaving: bool = False
    failures: deque[float] = field(default_factory=lambda: deque(maxlen=FAILURES_KEPT))
    failed_at_step: int = -1
    is_aside: bool = False
    is_unplaced: bool = False
    is_back: bool = False
    silent_peers: frozenset[str] = frozenset()
    is_out_of_reach: bool = False
    silence_check: SilenceCheck = field(default_factory=SilenceCheck)
    rank: int | None = None

    @property
    def takes_slots(self) -> bool:
        return not (self.is_leaving or self.is_aside)

    def due_at(self, timeout_s: float, grace_s: float) -> float:
        """When to check whether it is silent or, once it is gone, to free its slots."""
        if self.gone_at is not None:  # a node without power or network is not waited for
            return self.gone_at + (0.0 if self.is_out_of_reach else grace_s)
        return self.silence_check.overdue_at(self.last_message_at, timeout_s)


class Agents(dict[str, Agent]):
    """Agents by id. A detached one stays for its grace period, in case it comes back.

    ``check_at``: when the first of them can be overdue; None without any. ``heard_at``: when any of
    them sent last. ``is_deaf``: see above.
    """

    def __init__(self, state: MembershipState) -> None:
        super().__init__()
        self.check_at: float | None = None
        self.is_deaf = False
        self.heard_at = state.now
        self._state = state

    def attach(self, agent: Agent) -> None:
        state = self._state
        former = self.get(agent.agent_id)
        agent.is_back |= former is not None and former.is_back
        self[agent.agent_id] = agent
        state.last_message_at[agent.agent_id] = self.heard_at = state.now
        state.outbox.agents[agent.agent_id] = None
        if state.outcome is None:
            state.agents_seen = max(state.agents_seen, len(state.outbox.agents))
        self._check_by(state.now + state.spec.heartbeat_timeout_s)

    def detach(self, agent_id: str) -> Agent | None:
        """Its stream has ended. Returns None if it is unknown or had ended before."""
        agent = self.get(agent_id)
        if agent is None or agent.gone_at is not None:
            return None
        agent.gone_at = self._state.now
        del self._state.outbox.agents[agent_id]
        self._check_by(agent.due_at(0.0, self._grace_s))
        return agent

    def spares(self) -> list[str]:
        """The attached agents that stand by: they may get slots, and have none."""
        taken = self._state.slots.by_agent()
        return [
            agent.agent_id
            for agent in self.values()
            if agent.gone_at is None and agent.takes_slots and agent.agent_id not in taken
        ]

    @property
    def _grace_s(self) -> float:
        """How long a detached agent's slots are kept for it: shorter if spare nodes stand by."""
        settings = self._state.settings
        has_spare = self._state.spec.spare_nodes and self.spares()
        return settings.spare_grace_s if has_spare else settings.reassign_grace_s

    def forget(self, agent_id: str) -> Agent:
        """Remove an agent that will not come back."""
        del self._state.last_message_at[agent_id]
        return self.pop(agent_id)

    def why_apart(self, agent_id: str, host: str) -> str:
        """Why workers on this node and on the others cannot connect to each other; "": they can."""
        others = [a.host for a in self.values() if a.gone_at is None and a.agent_id != agent_id]
        other = next((at for at in others if _kind(at) != _kind(host)), None)
        if other is None:
            return ""
        return (
            f"this node announces {host}, another one {other}, and workers at these two do not "
            "reach each other. Give each node the lighthouse's address on the network that all "
            "share (--lighthouse), or state that network by --interface CIDR."
        )

    # ------------------------------------------------------------ who is overdue

    def becomes_deaf(self) -> bool:
        """Whether no agent sends anything: then neither silence nor a stream's end counts."""
        state = self._state
        silent_s = state.now - self.heard_at
        least_s = DEAF_SHARE * state.spec.heartbeat_timeout_s
        is_cut_off = least_s <= silent_s < state.silence_s
        self.is_deaf = is_cut_off and len(state.outbox.agents) > 1 and state.outcome is None
        return self.is_deaf

    def hears_again(self, agent_id: str) -> bool:
        """An agent has sent something. True: there are others, whose messages may be lost."""
        self.is_deaf = False
        return any(name != agent_id for name in self._state.outbox.agents)

    def silent(self) -> list[Agent]:
        """The attached agents that are declared lost because they are silent."""
        was_deaf = self.is_deaf
        if self.becomes_deaf():
            return []
        state, timeout_s = self._state, self._state.spec.heartbeat_timeout_s
        late_s = 0.0 if self.check_at is None else state.now - self.check_at
        found = [
            agent
            for agent in self.values()
            if agent.gone_at is None
            and agent.silence_check.ends(agent.last_message_at, timeout_s, state.now, late_s)
        ]
        self.is_deaf = was_deaf and not found  # until the second look
        return found

    def long_gone(self) -> list[str]:
        """The detached agents whose grace period is over, so that their slots are free."""
        now, grace_s = self._state.now, self._grace_s
        gone = (agent for agent in self.values() if agent.gone_at is not None)
        return [agent.agent_id for agent in gone if now >= agent.due_at(0.0, grace_s)]

    def succeeded_by(self, agent: Agent) -> list[str]:
        """The detached agents that had the same place as this one: they are not waited for."""
        if agent.rank is None:
            return []
        others = (x for x in self.values() if x.rank == agent.rank and x.gone_at is not None)
        return [other.agent_id for other in others if other.agent_id != agent.agent_id]

    def plan_check(self) -> None:
        """All have been checked: set the time of the next check."""
        timeout_s = self._state.spec.heartbeat_timeout_s
        grace_s = self._grace_s
        due_at = min((a.due_at(timeout_s, grace_s) for a in self.values()), default=None)
        if self.is_deaf:  # all attached agents are overdue
            due_at = max(due_at or 0.0, self.heard_at + self._state.silence_s)
        self.check_at = due_at

    def _check_by(self, at: float) -> None:
        self.check_at = at if self.check_at is None else min(self.check_at, at)


def _kind(host: str) -> tuple[bool, bool]:
    """Whether the host is a loopback address, and whether it is IPv6: Gloo connects only like
    ones.
    """
    return host == "::1" or host.startswith("127."), ":" in host
