"""The faults of the simulated world, kind by kind.

A kind that finds no target does nothing. Processes that may rightly be given up after it are
excused (Q4). Not here: when a fault strikes (faults.py), errors in a reduction, a build or a heal
(rings.py, healing.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ftrun.core import messages as m
from ftrun.core.agent import events as s
from ftrun.core.lighthouse.events import Journal, OperatorAsked, Request
from ftrun.core.lighthouse.phases import Phase
from ftrun.core.worker import events as e
from tests.sim.mending import FALL, MEND, fall, mend
from tests.sim.network import KEEPALIVE_S

if TYPE_CHECKING:
    from tests.sim.actor import Actor
    from tests.sim.node import Agent, Host
    from tests.sim.worker import Worker
    from tests.sim.world import World

GONE_S = 0.85
"""By then a node without power is lost: 0.05 s to notice it, 0.2 to report it, 0.45 to ask
peers."""
HEARS_ONE_S = 0.7
"""Longer than a question, and shorter than the heartbeat timeout."""

# ---------------------------------------------------------------- workers


def _any_worker(world: World) -> Worker | None:
    workers = [worker for host in world.hosts for worker in host.workers()]
    return world.rng.choice(workers) if workers else None


def _kill_worker(world: World) -> None:
    worker = _any_worker(world)
    if worker is not None:
        worker.crash()


def _kill_worker_between_instructions(world: World) -> None:
    worker = _any_worker(world)
    if worker is not None:
        worker.crash_in = world.rng.randint(0, 12)


def _pause_worker(world: World) -> None:
    worker = _any_worker(world)
    if worker is not None:
        world.invariants.excuse(worker.key.incarnation, "it was stopped")
        worker.pause(world.rng.choice((0.05, 0.5, 1.5, 3.0)))


def _hang_worker(world: World) -> None:
    """A worker hangs forever in the middle of training, and its host reports that it lives."""
    worker = _any_worker(world)
    if worker is not None and worker.machine.in_force is not None:
        world.invariants.excuse(worker.key.incarnation, "it hung")
        world.hung += 1
        worker.hang()


def _repeat_to_worker(world: World) -> None:
    """A message of the lighthouse arrives again, late."""
    worker = _any_worker(world)
    if worker is not None and worker.heard:
        worker.from_agent.send(world.rng.choice(worker.heard[-12:]))


def _repeat_to_lighthouse(world: World) -> None:
    """A worker's answer arrives again, late. (Never a Report, because a stream keeps the order.)"""
    worker = _any_worker(world)
    if worker is not None:
        answers = [said for said in worker.said if not isinstance(said, (m.Report, m.Leaving))]
        if answers:
            worker.to_agent.send(world.rng.choice(answers[-6:]))


# ---------------------------------------------------------------- agents and their streams


def _any_host(world: World) -> Host:
    return world.rng.choice(world.hosts)


def _any_agent(world: World) -> Agent | None:
    agents = [host.agent for host in world.hosts if host.agent and host.agent.alive]
    return world.rng.choice(agents) if agents else None


def _kill_agent(world: World) -> None:
    agent = _any_agent(world)
    if agent is not None:
        agent.crash()


def _kill_agent_between_instructions(world: World) -> None:
    agent = _any_agent(world)
    if agent is not None:
        agent.crash_in = world.rng.randint(0, 8)


def _pause_agent(world: World) -> None:
    agent = _any_agent(world)
    if agent is not None:
        agent.host.excuse("its agent was stopped")
        # The last is longer than the isolation limit: its workers must detect it by themselves.
        agent.pause(world.rng.choice((0.05, 0.5, 1.5, 4.5)))


def _cut(world: World) -> None:
    agent = _any_agent(world)
    if agent is not None and agent.stream is not None:
        agent.host.excuse("its agent's stream was cut")
        agent.stream.cut()


def _half_open(world: World) -> None:
    agent = _any_agent(world)
    if agent is not None and agent.stream is not None:
        agent.host.excuse("its agent's stream was cut")
        agent.stream.cut(half_open=True)


def _cut_off(world: World) -> None:
    host = _any_host(world)
    host.excuse("its host was cut off")
    host.cut_off_until = world.now + world.rng.choice((0.3, 1.5, 5.0))
    if host.agent is not None and host.agent.stream is not None:
        host.agent.stream.cut(half_open=world.rng.random() < 0.5)


def _cut_off_trainers(world: World) -> None:
    """Every member is cut off from the lighthouse; other agents may take their slots."""
    duration_s = world.rng.choice((1.5, 6.0, 8.0))
    for host in world.hosts:
        if host.workers():
            host.excuse("its host was cut off")
            host.cut_off_until = world.now + duration_s
            if host.agent is not None and host.agent.stream is not None:
                host.agent.stream.cut(half_open=world.rng.random() < 0.3)


def _stall_up(world: World) -> None:
    agent = _any_agent(world)
    if agent is not None and agent.stream is not None:
        agent.host.excuse("its words were held up")
        agent.stream.up.stall(world.rng.choice((0.05, 0.5, 1.5, 3.0)))


def _stall_down(world: World) -> None:
    agent = _any_agent(world)
    if agent is not None and agent.stream is not None:
        agent.host.excuse("words to it were held up")
        agent.stream.down.stall(world.rng.choice((0.05, 0.5, 1.5, 3.0)))


def _drain(world: World) -> None:
    agent = _any_agent(world)
    if agent is not None and len(world.hosts) > 1:
        if world.receives(agent):
            agent.host.excuse("it was asked to leave")
        agent.handle(m.DrainAsked("SIGTERM", 75))


# ---------------------------------------------------------------- the lighthouse


def _kill_lighthouse(world: World) -> None:
    if world.lighthouse is not None and world.lighthouse.alive:
        world.lighthouse.crash()


def _kill_lighthouse_between_instructions(world: World) -> None:
    if world.lighthouse is not None and world.lighthouse.alive:
        world.lighthouse.crash_in = world.rng.randint(0, 10)


def _lose_journal(world: World) -> None:
    if world.lighthouse is not None and world.lighthouse.alive:
        world.lighthouse.crash()
        world.lose_disk()


def _pause_lighthouse(world: World) -> None:
    if world.lighthouse is not None and world.lighthouse.alive:
        for host in world.hosts:
            host.excuse("the lighthouse was stopped")
        world.lighthouse.pause(world.rng.choice((0.05, 0.5, 1.5, 4.0)))


FIRST_KINDS: Mapping[str, Callable[[World], None]] = {
    "kill_worker": _kill_worker,
    "kill_worker_between": _kill_worker_between_instructions,
    "pause_worker": _pause_worker,
    "repeat_to_worker": _repeat_to_worker,
    "repeat_to_lighthouse": _repeat_to_lighthouse,
    "kill_agent": _kill_agent,
    "kill_agent_between": _kill_agent_between_instructions,
    "pause_agent": _pause_agent,
    "cut": _cut,
    "half_open": _half_open,
    "cut_off": _cut_off,
    "cut_off_trainers": _cut_off_trainers,
    "stall_up": _stall_up,
    "stall_down": _stall_down,
    "drain": _drain,
    "kill_lighthouse": _kill_lighthouse,
    "kill_lighthouse_between": _kill_lighthouse_between_instructions,
    "lose_journal": _lose_journal,
    "pause_lighthouse": _pause_lighthouse,
}


# ---------------------------------------------------------------- at a certain instruction

WORKER_INSTRUCTIONS: tuple[type, ...] = (
    e.Send,
    e.BuildGroup,
    e.AbortGroup,
    e.DropGroup,
    e.UseGroup,
    e.Reissue,
    e.HandOut,
    e.FailOperations,
    e.LoadState,
    e.OfferState,
    e.RetireState,
)
AGENT_INSTRUCTIONS: tuple[type, ...] = (
    s.SendToLighthouse,
    s.StartReplica,
    s.SignalReplica,
    s.SendToWorkers,
    s.ShowNotice,
)
# (Later kinds are not among them, so that each seed keeps its schedule.)


def _doom(world: World, actor: Actor | None, instructions: tuple[type, ...]) -> None:
    if actor is not None:
        instruction = world.rng.choice(instructions)
        if world.rng.random() < 0.5:
            actor.dies_before = instruction
        else:
            actor.dies_after = instruction


def _kill_worker_at_instruction(world: World) -> None:
    _doom(world, _any_worker(world), WORKER_INSTRUCTIONS)


def _kill_agent_at_instruction(world: World) -> None:
    _doom(world, _any_agent(world), AGENT_INSTRUCTIONS)


def _kill_lighthouse_at_journal(world: World) -> None:
    _doom(world, world.lighthouse, (Journal,))


# ---------------------------------------------------------------- whole machines


def _silence_host(world: World) -> None:
    """The machine is gone, with all its processes, and no peer is notified."""
    _any_host(world).vanish()


def _silence_first_host(world: World) -> None:
    """The lighthouse's machine is gone, too."""
    if world.lighthouse is not None and world.lighthouse.alive:
        world.lighthouse.crash()
    world.hosts[0].vanish()


def _kill_two_workers(world: World) -> None:
    _kill_worker(world)
    _kill_worker(world)


def _pause_host(world: World) -> None:
    """The machine is paused: its agent and all its workers."""
    host = _any_host(world)
    host.excuse("its host stood still")
    duration_s = world.rng.choice((0.5, 1.5, 4.5))
    for worker in host.workers():
        worker.pause(duration_s)
    if host.agent is not None:
        host.agent.pause(duration_s)


# ---------------------------------------------------------------- the network, one way and between


def _one_way(world: World, *, is_up: bool) -> None:
    """One direction between an agent and the lighthouse is dead; neither end is notified."""
    agent = _any_agent(world)
    if agent is None or agent.stream is None:
        return
    duration_s = world.rng.choice((1.2, 2.5, 6.0))
    agent.host.excuse("the network carried its words one way only")
    agent.host.cut_off_until = world.now + duration_s  # a new connection needs both
    pipe = agent.stream.up if is_up else agent.stream.down
    pipe.stall(duration_s)


def _one_way_up(world: World) -> None:
    _one_way(world, is_up=True)


def _one_way_down(world: World) -> None:
    _one_way(world, is_up=False)


def _part(world: World, *, deaf: bool, mute: bool) -> None:
    """Workers of one host and of all others cannot reach each other."""
    host = _any_host(world)
    until = world.now + world.rng.choice((0.3, 1.5, 4.0))
    if deaf:
        host.deaf_until = until
    if mute:
        host.mute_until = until
    world.links_cut_until = max(world.links_cut_until, until)


def _part_workers(world: World) -> None:
    _part(world, deaf=True, mute=True)


def _deafen_workers(world: World) -> None:
    _part(world, deaf=True, mute=False)


def _mute_workers(world: World) -> None:
    _part(world, deaf=False, mute=True)


# ---------------------------------------------------------------- disks and clocks


def _fill_disk(world: World) -> None:
    """The journal cannot be written for a while: each lighthouse that tries to write ends."""
    world.disk_full_until = world.now + world.rng.choice((0.05, 0.5, 2.0))


def _tear_journal(world: World) -> None:
    """The machine's death cuts the next record off in the middle, so it is unreadable."""
    world.tears_journal = True


def _clock_jump(world: World) -> None:
    """The lighthouse's clock is set (L3)."""
    world.calendar_offset_s += world.rng.choice((-3600.0, 3600.0))


KINDS: Mapping[str, Callable[[World], None]] = {
    **FIRST_KINDS,
    "kill_worker_at": _kill_worker_at_instruction,
    "kill_agent_at": _kill_agent_at_instruction,
    "kill_lighthouse_at_journal": _kill_lighthouse_at_journal,
    "kill_two_workers": _kill_two_workers,
    "silence_host": _silence_host,
    "silence_first_host": _silence_first_host,
    "pause_host": _pause_host,
    "one_way_up": _one_way_up,
    "one_way_down": _one_way_down,
    "part_workers": _part_workers,
    "deafen_workers": _deafen_workers,
    "mute_workers": _mute_workers,
    "fill_disk": _fill_disk,
    "tear_journal": _tear_journal,
    "clock_jump": _clock_jump,
}

HOSTS_MAX = 5


def _late_host(world: World) -> None:
    """A node comes late: it takes free slots, or gets its share."""
    if len(world.hosts) < HOSTS_MAX:
        world.add_host()


LATE_KINDS: Mapping[str, Callable[[World], None]] = {
    "hang_worker": _hang_worker,
    "late_host": _late_host,
}
"""Drawn for few seeds, separately from the others (``Faults.add_late_kinds``)."""

# ---------------------------------------------------------------- loops that stand still


def _stand_still(world: World) -> None:
    """A script's main thread stalls forever in training; its link thread answers all messages."""
    worker = _any_worker(world)
    if worker is not None and world.would_be_found(worker) and not world.standing():
        world.invariants.excuse(worker.key.incarnation, "it stood still")
        worker.script.stand_still()


STANDSTILL_KINDS: Mapping[str, Callable[[World], None]] = {"stand_still": _stand_still}
"""Drawn like the late kinds, separately from them (``Faults.add_standstill``)."""

# ---------------------------------------------------------------- states that cannot be served


def _cannot_serve(world: World) -> None:
    """One worker's state comes to hold an object that cannot be sent, for good."""
    worker = _any_worker(world)
    if worker is not None:
        worker.serves_nothing = True


def _nobody_can_serve(world: World) -> None:
    """The script's state comes to hold an object that cannot be sent, in all replicas."""
    world.state_is_not_carried = True
    for host in world.hosts:
        for worker in host.workers():
            worker.serves_nothing = True


SERVING_KINDS: Mapping[str, Callable[[World], None]] = {
    "cannot_serve": _cannot_serve,
    "nobody_can_serve": _nobody_can_serve,
}
"""Drawn like the late kinds, separately from them (``Faults.add_serving``)."""

# ---------------------------------------------------------------- people


def _operator(world: World, command: str) -> None:
    """``ftrun drain``, ``restart`` or ``kill`` of one replica; a request may arrive twice.

    The person's client sends a request_id, and retries if the lighthouse has died meanwhile.
    """
    lighthouse = world.lighthouse
    if lighthouse is None or not lighthouse.alive or world.calm:
        return
    replica_id = str(world.rng.randrange(world.job.replicas))
    for _ in range(world.rng.choice((1, 1, 2))):
        number = world.next_number()
        request = Request(command, replica_id, request_id=f"request-{number}")
        asked = OperatorAsked(number, request)
        world.at(world.rng.choice((0.0, 0.01, 0.2)), lighthouse, lighthouse.asked, asked)


def _operator_drain(world: World) -> None:
    _operator(world, "drain")
    if world.rng.random() < 0.5:
        world.at(world.rng.uniform(0.0, 2.0), None, _operator, world, "restart")


def _operator_restart(world: World) -> None:
    _operator(world, "restart")


def _operator_kill(world: World) -> None:
    _operator(world, "kill")


def _cut_off_lighthouse(world: World) -> None:
    cut_off_lighthouse(world, world.rng.choice((1.3, 2.3, 2.9, 3.5, 6.0)))


def cut_off_lighthouse(world: World, duration_s: float) -> None:
    """The lighthouse's machine is cut off from all others.

    The keepalive ends streams without traffic.
    """
    for host in world.hosts:
        host.excuse("the lighthouse was cut off")
        host.cut_off_until = max(host.cut_off_until, world.now + duration_s)
        stream = host.agent.stream if host.agent is not None else None
        if stream is not None:
            stream.up.stall(duration_s)
            stream.down.stall(duration_s)
            if duration_s > KEEPALIVE_S:
                world.at(KEEPALIVE_S, None, stream.time_out)


def _drain_two(world: World) -> None:
    """Two nodes with training members get an engine's notice, within a quarter of a second."""
    lighthouse = world.lighthouse
    if lighthouse is None or lighthouse.core.state.phase is not Phase.STEADY:
        return
    live = lighthouse.core.state.live
    agents = [host.agent for host in world.hosts if host.agent is not None]
    trains = [a for a in agents if a.workers and all(k.replica_id in live for k in a.workers)]
    if len(trains) < 2 or any(agent.supervisor.is_ending for agent in trains):
        return
    world.faults.rates.clear()  # a replica lost while it leaves would reach no boundary
    first, second = world.rng.sample(trains, 2)
    world.invariants.leave_together({k.incarnation for a in (first, second) for k in a.workers})
    for agent, delay_s in ((first, 0.0), (second, world.rng.uniform(0.0, 0.25))):
        agent.host.excuse("it was asked to leave")
        world.at(delay_s, agent, agent.handle, m.DrainAsked("SIGTERM", 75))


def _see_peers(world: World, host: Host, duration_s: float, *, one: Host | None = None) -> None:
    """All agents, or only ``one``, see a host that acknowledges nothing for a while."""
    host.silent_until = world.now + duration_s
    for other in world.hosts if one is None else (one,):
        for after_s in (0.05, duration_s + 0.05):
            if other.agent is not None and other is not host:
                world.at(after_s, other.agent, other.agent.sees_peers)


def _power_off(world: World) -> None:
    """A machine loses its power; the others send data to it (N1)."""
    lighthouse, host = world.lighthouse, _any_host(world)
    agent = host.agent
    if lighthouse is None or agent is None or not agent.alive or len(world.hosts) < 2:
        return
    host.vanish()
    _see_peers(world, host, 10.0)
    stream = agent.stream
    is_steady = lighthouse.core.state.phase is Phase.STEADY and lighthouse.core.agents.get(
        agent.agent_id
    )
    if is_steady and stream is not None:
        world.at(GONE_S, lighthouse, lighthouse.has_lost, agent.agent_id)


def _lose_first_node(world: World) -> None:
    """A machine is lost, and the lighthouse with it. It may live, cut off, and come back."""
    lighthouse, host = world.lighthouse, _any_host(world)
    agent = host.agent
    if lighthouse is None or agent is None or not agent.alive or len(world.hosts) < 2:
        return
    if lighthouse.core.state.phase is not Phase.STEADY:
        world.faults.done.append("at an odd moment")
    if world.rng.random() < 0.5:
        host.vanish()
        _see_peers(world, host, 10.0)
    else:
        duration_s = world.rng.choice((1.5, 3.0, 6.0))
        host.excuse("its host was cut off")
        host.cut_off_until = world.now + duration_s
        world.invariants.quorums.cut_off |= {key.incarnation for key in agent.workers}
        if agent.stream is not None:
            agent.stream.cut(half_open=True)
        _see_peers(world, host, duration_s)
    lighthouse.crash_with_its_node(agent)


def _false_alarm(world: World) -> None:
    """A live machine's connections to all others, except its agent's, lose everything for a
    while."""
    _see_peers(world, _any_host(world), world.rng.choice((0.3, 1.0, 2.5)))


def _hears_one(world: World) -> None:
    """For a while the lighthouse and the first node are cut off from all others, which live."""
    first, *others = world.hosts
    attached = [host.agent for host in others if host.agent is not None and host.agent.stream]
    if len(attached) < 2:
        return
    for agent in attached:
        assert agent.stream is not None
        agent.stream.up.stall(HEARS_ONE_S)
        agent.stream.down.stall(HEARS_ONE_S)
        _see_peers(world, agent.host, HEARS_ONE_S, one=first)


FOCUS_KINDS: Mapping[str, Callable[[World], None]] = {
    "cut_off_lighthouse": _cut_off_lighthouse,
    "drain_two": _drain_two,
    "power_off": _power_off,
    "lose_first_node": _lose_first_node,
    "false_alarm": _false_alarm,
    "hears_one": _hears_one,
    MEND: mend,
    FALL: fall,
}
"""Drawn by ``focus`` only, in separate tests."""

OPERATOR_KINDS: Mapping[str, Callable[[World], None]] = {
    "operator_drain": _operator_drain,
    "operator_restart": _operator_restart,
    "operator_kill": _operator_kill,
}
"""Drawn like the late kinds, separately from them (``Faults.add_operators``)."""
