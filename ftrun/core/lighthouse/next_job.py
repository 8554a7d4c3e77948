"""A lighthouse outlives its jobs: when one is over, the next one may begin.

A job is over when it has ended, or when no agent runs any of it. A job with another name or other
options is another job, and begins at once. The same command again may be another run, or a late
node of the old one: only agents that were started after the end count as another run. It begins
when as many agents are here as took part in the last run. Until then they are sent a notice, and
after the join timeout the outcome of the old run. A run that all nodes have left by a drain is to
be resumed, so the next agent begins at once.

Not here: how agents attach (machine.py), a job's state (state.py).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from ftrun.core import messages as m
from ftrun.core.failure_kinds import ALL_LEFT
from ftrun.core.lighthouse.state import NO_SPEC, MembershipState


@dataclass(slots=True)
class Waiting:
    """An agent that waits for another run. At ``until`` it is sent the outcome of the last one."""

    hello: m.Hello
    until: float


class NextJob:
    """The agents that wait for the next run of a job that is over."""

    def __init__(self) -> None:
        self.waiting: dict[str, Waiting] = {}

    def begins_with(self, state: MembershipState, hello: m.Hello, *, is_deserted: bool) -> bool:
        """Whether this Hello begins another job at once.

        ``is_deserted``: no agent runs any of the job, and none can come back with some of it.
        """
        is_over = state.outcome is not None or is_deserted
        is_another = hello.spec != state.spec and state.spec is not NO_SPEC
        has_left = state.outcome is not None and state.outcome.kind == ALL_LEFT
        return is_over and (is_another or has_left) and is_fresh(hello)

    def wants_another_run(self, state: MembershipState, hello: m.Hello) -> bool:
        """Whether this Hello is of a run that was started after the end of the last one."""
        if state.outcome is None or not is_fresh(hello) or hello.spec != state.spec:
            return False
        return state.ended_at is None or state.now - hello.age_s >= state.ended_at

    def wait(self, state: MembershipState, hello: m.Hello) -> bool:
        """Let an agent wait for another run. Returns True if enough are here for it to begin."""
        until = state.now + state.spec.join_timeout_s
        self.waiting[hello.agent_id] = Waiting(hello, until)
        if len(self.waiting) >= self.wanted(state):
            return True
        self._notice(state, hello.agent_id)
        return False

    def _notice(self, state: MembershipState, agent_id: str) -> None:
        reason = outcome_of(state).reason
        state.outbox.agents[agent_id] = None
        state.outbox.to_agent(agent_id, m.HeartbeatAck())  # a lighthouse is there
        text = (
            f"Job {state.spec.job_id} has ended ({reason}). {len(self.waiting)} of "
            f"{self.wanted(state)} nodes are here to run it again: it begins with the last of "
            f"them, or not at all if that is not here within {state.spec.join_timeout_s:g} s."
        )
        state.outbox.to_agent(agent_id, m.Notice("waiting", (), text))

    def take(self) -> list[m.Hello]:
        """The Hellos of the waiting agents, with which the next run begins."""
        hellos = [waiting.hello for waiting in self.waiting.values()]
        self.waiting.clear()
        return hellos

    @staticmethod
    def wanted(state: MembershipState) -> int:
        """How many agents another run begins with."""
        return max(state.spec.nodes, state.agents_seen)

    def gone(self, agent_id: str) -> None:
        self.waiting.pop(agent_id, None)

    def send_home(self, state: MembershipState) -> None:
        """Too few agents came in time: send those that have waited long enough the last run's
        outcome.
        """
        late = [name for name, waiting in self.waiting.items() if state.now >= waiting.until]
        for agent_id in late:
            del self.waiting[agent_id]
            state.outbox.to_agent(agent_id, outcome_of(state))
            state.outbox.agents.pop(agent_id, None)

    def next_deadline(self) -> float | None:
        """When the first of the agents has waited long enough."""
        return min((waiting.until for waiting in self.waiting.values()), default=None)


def outcome_of(state: MembershipState) -> m.EndJob:
    """The outcome of the last run. No agent waits for another run while it has none."""
    assert state.outcome is not None
    return state.outcome


def is_fresh(hello: m.Hello) -> bool:
    """Whether the agent has never been in a job."""
    return not (hello.running or hello.dead or hello.finished or hello.epoch)


def refusal(state: MembershipState, hello: m.Hello) -> str:
    """Why this agent cannot take part in the lighthouse's job; "": it can."""
    spec, ours = hello.spec, state.spec
    if state.settings.is_local and spec.nodes > 1:
        return (
            f"the job has {spec.nodes} nodes, and this lighthouse listens on the loopback "
            "interface only, which other nodes do not reach. Start it with --bind HOST:PORT; for "
            "agents on this one machine, with --bind 127.0.0.1:PORT."
        )
    if ours is NO_SPEC or spec == ours:
        return ""
    if spec.job_id != ours.job_id:
        return (
            f"this agent is for job {spec.job_id}, and this lighthouse serves job {ours.job_id}, "
            "which has not ended. Wait for its end, end it, or start another lighthouse for "
            f"{spec.job_id} with a --bind and a --state of its own."
        )
    unlike = [
        f"{_option(f.name)}: {getattr(spec, f.name)} was given here, and {getattr(ours, f.name)} "
        "where the job was started"
        for f in fields(spec)
        if getattr(spec, f.name) != getattr(ours, f.name)
    ]
    return (
        f"all nodes of job {ours.job_id} need the same options. {'; '.join(unlike)}. Start this "
        "node with those of the job; or end the job on all nodes, and start it with the new ones."
    )


def _option(field: str) -> str:
    """The field's option, as the user writes it."""
    if field == "accepts_fewer":
        return "--min-replicas or MIN:MAX is stated"
    name = field.removesuffix("_s").replace("_", "-")
    return f"--{name}"
