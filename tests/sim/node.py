"""A machine with its agent: the real supervisor core in a modelled shell (agent/shell.py).

When an agent dies, its workers end a little later. Its successor is another agent on the same host
and starts without any knowledge. Not here: the workers themselves (worker.py).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from ftrun.core import messages as m
from ftrun.core.agent import events as s
from ftrun.core.agent.restarts import RestartRules
from ftrun.core.agent.settings import SupervisorSettings
from ftrun.core.agent.supervisor import Supervisor
from ftrun.core.ids import WorkerKey
from tests.sim.actor import HEARTBEAT_TIMEOUT_S, ISOLATION_LIMIT_S, STANDSTILL_FACTOR, Actor
from tests.sim.mending import Left, tell
from tests.sim.network import Stream
from tests.sim.violation import Violation, require
from tests.sim.worker import Worker

if TYPE_CHECKING:
    from tests.sim.world import World

HEARTBEAT_S = HEARTBEAT_TIMEOUT_S / 4
BACKOFF_MAX_S = 0.4
STACKS_S = 0.05
SIGKILL = 9
AGE_S = 1e6
"""The same for every agent: none was started for an earlier run of the job."""


class Host:
    """A machine. ``cut_off_until``: until then no process here reaches the lighthouse.

    ``deaf_until``: until then nothing from workers elsewhere arrives here; ``mute_until``: nothing
    from workers here arrives elsewhere.
    """

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.name = f"host{number}"
        self.agent: Agent | None = None
        self.lives = 0
        self.cut_off_until = 0.0
        self.deaf_until = 0.0
        self.mute_until = 0.0
        self.over = False  # the agent has ended in order
        self.silent_until = 0.0  # it acknowledges nothing to others

    def start_agent(self) -> None:
        """Start a new agent process with a new id."""
        if self.agent is not None and self.agent.alive:
            return
        self.lives += 1
        self.agent = Agent(self.world, self, f"{self.name}-{self.lives}")
        self.agent.start()

    def mend(self) -> None:
        """End all faults: the network works and an agent runs."""
        self.cut_off_until = self.deaf_until = self.mute_until = 0.0
        self.world.at(0.1, None, self.mend_agent)

    def mend_agent(self) -> None:
        """Start the dead agent's successor."""
        if not self.over:
            self.start_agent()

    def leaves(self, *, returns: bool) -> None:
        """Its agent has ended in order. ``returns``: for maintenance; the node may come back."""
        self.over = True
        world = self.world
        if returns and not world.calm and world.rng.random() < 0.6:
            world.at(world.rng.choice((0.1, 1.0, 3.0)), None, self.come_back)
        else:
            world.hosts_left -= 1

    def come_back(self) -> None:
        """Maintenance is over."""
        self.over = False
        self.start_agent()

    def vanish(self) -> None:
        """Power off: no peer is notified, and no connection is closed."""
        agent, world = self.agent, self.world
        if agent is None or not agent.alive:
            return
        world.note(self.name, "vanishes")
        self.excuse("its host fell silent")
        for worker in self.workers():
            worker.vanish()
        agent.vanish()
        if world.rng.random() < 0.7:
            world.at(world.rng.choice((0.5, 2.0, 4.0)), None, self.mend_agent)

    def workers(self) -> list[Worker]:
        """The living workers."""
        if self.agent is None:
            return []
        return [worker for worker in self.agent.workers.values() if worker.alive]

    def excuse(self, why: str) -> None:
        """The lighthouse may now give up all workers here (Q4)."""
        for worker in self.workers():
            self.world.invariants.excuse(worker.key.incarnation, why)


class Agent(Actor):
    """One agent process: Hello, relay, heartbeats, and the supervisor's instructions."""

    role = "agent"

    def __init__(self, world: World, host: Host, agent_id: str) -> None:
        super().__init__()
        self.world = world
        self.host = host
        self.name = agent_id
        self.agent_id = host.name if world.keeps_agents else agent_id
        self.store = f"store-{agent_id}"
        self.workers: dict[WorkerKey, Worker] = {}
        self._starting: dict[str, None] = {}
        self._owed: dict[WorkerKey, int] = {}
        self._left = Left()
        self._epoch = 0
        self._silent: tuple[str, ...] = ()
        self.stream: Stream | None = None
        self.supervisor = Supervisor(self._rules(), world.now)
        self.supervisor.handle(s.SpawnerReady(), world.now)  # its imports are not simulated
        self._failures = 0
        self._asked: deque[float] = (
            deque()
        )  # send times of requests without an answer yet, in order
        self._progress: dict[str, m.ReplicaProgress] = {}
        self._timer = 0
        self._timer_at: float | None = None

    def _rules(self) -> SupervisorSettings:
        return SupervisorSettings(
            agent_id=self.name,
            workers_per_replica=self.world.job.workers,
            restarts=RestartRules(
                max_restarts=self.world.max_restarts,
                backoff_first_s=0.1,
                backoff_max_s=0.3,
                strikes_max=1000,
            ),
            grace_s=3.0,
            isolation_limit_s=ISOLATION_LIMIT_S,
            hang_timeout_s=self.world.hang_timeout_s,
            hang_factor=STANDSTILL_FACTOR if self.world.standstill_limit_s else 0.0,
            join_timeout_s=60.0,
            replicas=self.world.job.replicas,
            min_replicas=self.world.job.min_replicas,
            alone=self.world.job.agents == 1,
            end_grace_s=1.0,
            has_memory_snapshots=self.world.mends,
        )

    def start(self) -> None:
        """Begin to connect and to send heartbeats."""
        self.world.note(self.name, "starts")
        self._connect()
        self.world.at(HEARTBEAT_S, self, self._beat)
        self._arm()

    def crash(self) -> None:
        """Die by SIGKILL; the guard ends the workers soon after."""
        if not self.alive:
            return
        world = self.world
        world.note(self.name, "dies")
        self.host.excuse("its agent died")
        self.alive = False
        if self.stream is not None:
            self.stream.cut()
        for worker in list(self.workers.values()):
            # The script may have ended, and no agent sees how the process ends.
            world.invariants.quorums.ended.discard(worker.key.replica_id)
            world.at(0.001, worker, worker.lost_agent)
            # A SIGKILL takes effect at once, even on a stopped process.
            world.at(world.rng.uniform(0.001, 0.2), None, worker.crash)
        if world.rng.random() < 0.8:
            world.at(world.rng.choice((0.05, 0.3, 2.0)), None, self.host.mend_agent)

    def vanish(self) -> None:
        """End silently: the lighthouse's end of the stream stays open."""
        self.alive = False
        if self.stream is not None:
            self.stream.vanish()

    # ------------------------------------------------------------ the supervisor

    def handle(self, event: s.Event) -> None:
        """Feed the supervisor one event; carry out its instructions in order."""
        self.world.note(self.name, "event", event)
        instructions = self.supervisor.handle(event, self.world.now)
        self.supervisor.check()
        for instruction in instructions:
            self.before_instruction(instruction)
            self._carry_out(instruction)
        self._arm()

    def _arm(self) -> None:
        at = self.supervisor.next_deadline()
        if at == self._timer_at and at is not None and at > self.world.now:
            return
        self._timer += 1
        self._timer_at = at
        if at is not None and self.alive:
            self.world.at(max(0.0, at - self.world.now), self, self._ring, self._timer)

    def _ring(self, timer: int) -> None:
        if timer == self._timer:
            self._timer_at = None
            self.handle(s.TimerFired())

    def _carry_out(self, instruction: s.Instruction) -> None:
        match instruction:
            case s.SendToLighthouse(message):
                self.tell(message)
            case s.StartReplica(replica_id, incarnation, sound_until=until):
                self._starting[incarnation] = None
                delay_s = self.world.rng.uniform(0.01, 0.05)
                self.world.at(delay_s, self, self._start_replica, replica_id, incarnation, until)
            case s.SignalReplica(_, incarnation, number):
                self._signal(incarnation, number)
            case s.SignalWorker(key, number):
                if key in self.workers:
                    self.world.at(0.001, None, self.workers[key].crash, -number)
                elif key.incarnation in self._starting:
                    self._owed[key] = number
            case s.AskToStop(_, incarnation, _):
                self._ask_to_stop(incarnation)
            case s.SendToReplica(_, incarnation, message):
                for worker in self.workers.values():
                    if worker.key.incarnation == incarnation:
                        worker.from_agent.send(message)
            case s.SendToWorkers(message):
                for worker in self.workers.values():
                    worker.from_agent.send(message)
            case s.AskWorker(key):
                self._ask(key)
            case s.TakeStacks(_, incarnation):
                taken = s.StacksTaken(incarnation, ((0, "stacks"),))
                self.world.at(STACKS_S, self, self.handle, taken)
            case s.SendEvidence(evidence):
                self._send_evidence(evidence)
            case s.EndAgent():
                self._end(instruction)
            case _:
                pass

    def _send_evidence(self, evidence: m.FailureEvidence) -> None:
        """Evidence overtakes other messages, or is lost: nothing may depend on its order."""
        lighthouse, stream = self.world.lighthouse, self.stream
        if lighthouse is not None and lighthouse.alive and stream is not None:
            self.world.at(0.0, lighthouse, lighthouse.evidence, stream, evidence)

    def recorded(self, record: m.IncidentRecord) -> None:
        """The lighthouse has written a record."""
        self.world.records.reached(record)
        self.handle(record)

    def _ask(self, key: WorkerKey) -> None:
        worker = self.workers.get(key)
        if worker is not None:
            worker.from_agent.send(m.AskReport())
            self.world.at(0.0, self, self.handle, m.WorkerUsed(key, 1, 0.0))  # no processor time

    def tell(self, message: m.FromAgent) -> None:
        if isinstance(message, m.AgentLeaving):
            if self.world.receives(self):
                self.host.excuse("it was asked to leave")
        elif isinstance(message, m.ReplicaLost):
            if message.cause.startswith("hangs") and not self._stands_still(message.incarnation):
                raise Violation("Q4", f"{message.incarnation} is killed as one that hangs")
            self.world.invariants.killed(message.incarnation)
            # This includes a script that ended after a request to stop, and may not have been
            # finished.
            self.world.invariants.quorums.ended.discard(message.replica_id)
        elif isinstance(message, m.ReplicaFinished):
            self.world.invariants.slot_ends(message.replica_id)
        if self.stream is not None:
            self.stream.up.send(message)

    def _stands_still(self, incarnation: str) -> bool:
        workers = (w for key, w in self.workers.items() if key.incarnation == incarnation)
        return any(w.hangs or w.was_paused or w.script.stands for w in workers)

    def _start_replica(self, replica_id: str, incarnation: str, until: float) -> None:
        world = self.world
        if incarnation not in self._starting:
            return  # it was withdrawn
        del self._starting[incarnation]
        world.invariants.quorums.starts(replica_id, is_early=world.early.slot == replica_id)
        if world.receives(self) and self._owns(replica_id):
            heard = world.living(replica_id, heard=True)
            world.invariants.starts(replica_id, world.living(replica_id), heard)
        still = [str(key) for key in self.workers if key.replica_id == replica_id]
        require(not still, "P8", f"{replica_id} is started while {still} are not gone")
        ranks = range(world.job.workers)
        keys = [WorkerKey(replica_id, incarnation, rank) for rank in ranks]
        ballot = world.rings.ballot(incarnation)
        claims = self._left.claims(replica_id, until) if world.mends else None
        for key in keys:
            worker = self.workers[key] = Worker(world, self, key, ballot)
            if claims is not None:
                worker.claims(claims[key.group_rank])
            worker.start()
            world.at(0.0, worker, worker.attached, self.supervisor.lease)
            if key in self._owed:
                world.at(0.001, None, worker.crash, -self._owed.pop(key))

    def _owns(self, replica_id: str) -> bool:
        """Whether the slot is this agent's, as the lighthouse knows it: news of a move takes
        time."""
        lighthouse = self.world.lighthouse
        if lighthouse is None or not lighthouse.alive:
            return True
        return lighthouse.core.state.slots[replica_id].agent_id == self.agent_id

    def _takes_back(self, incarnation: str) -> bool:
        """True if the incarnation was not started yet: then it will not be (agent/fleet.py)."""
        if incarnation not in self._starting:
            return False
        del self._starting[incarnation]
        for rank in range(self.world.job.workers):
            gone = s.WorkerExited(incarnation, rank, 0, -SIGKILL, "was never started")
            self.world.at(0.0, self, self.handle, gone)
        return True

    def _signal(self, incarnation: str, number: int) -> None:
        if self._takes_back(incarnation):
            return
        for worker in list(self.workers.values()):
            if worker.key.incarnation == incarnation:
                waits_for = None if number == SIGKILL else worker
                self.world.at(0.001, waits_for, worker.crash, -number)

    def _ask_to_stop(self, incarnation: str) -> None:
        """The first request is for the Manager; the second raises in the main thread."""
        if self._takes_back(incarnation):
            return
        for worker in list(self.workers.values()):
            if worker.key.incarnation == incarnation:
                self.world.at(0.001, worker, worker.asked_to_stop)

    def _end(self, instruction: s.EndAgent) -> None:
        self.world.note(self.name, "ends", instruction)
        self.host.leaves(returns=instruction.reason == "SIGTERM")
        self.alive = False
        self.host.excuse("its agent ended")
        if self.stream is not None:
            self.stream.cut(lossy=False)
        for worker in list(self.workers.values()):
            self.world.at(0.001, None, worker.crash)

    # ------------------------------------------------------------ workers

    def worker_sent(self, worker: Worker, message: Any) -> None:
        """A worker's frame has arrived."""
        if worker.key not in self.workers:
            return
        if isinstance(message, m.Progress) and worker.key.group_rank == 0:
            key = worker.key
            line = m.ReplicaProgress(key.replica_id, key.incarnation, message)
            self._progress[key.replica_id] = line
        if isinstance(message, m.Leaving):
            if self.world.receives(self):
                self.world.invariants.excuse(worker.key.incarnation, "it has left")
            if message.reason is m.LeaveReason.DRAINED:
                self.world.invariants.left(worker.key)
            else:
                self.world.invariants.slot_ends(worker.key.replica_id)
        self.handle(s.WorkerSent(worker.key, message))
        if not isinstance(message, m.Progress) and self.stream is not None:
            self.stream.up.send(m.WorkerMessage(worker.key, message))

    def worker_dying(self, worker: Worker, status: int) -> None:
        """The kernel shows that a worker is dying; its process still exists."""
        key = worker.key
        end = s.WorkerExited(key.incarnation, key.group_rank, 1, status)
        self.handle(s.WorkerDying(end))

    def worker_exited(self, worker: Worker, status: int) -> None:
        """The kernel reports that a worker has ended."""
        if self.workers.pop(worker.key, None) is not None:
            key = worker.key
            self._left.ended(worker)
            self.handle(s.WorkerExited(key.incarnation, key.group_rank, 1, status))

    # ------------------------------------------------------------ the lighthouse

    def _connect(self) -> None:
        world = self.world
        lighthouse = world.lighthouse
        cut_off = self.host.cut_off_until > world.now and not world.calm
        if lighthouse is None or not lighthouse.alive or cut_off:
            world.at(0.005, self, self._refused)
            return
        self.stream = Stream(world, self, lighthouse)
        self._failures = 0
        supervisor = self.supervisor
        self._asked.append(world.now)
        self.stream.up.send(
            m.Hello(
                self.agent_id,
                world.job.spec(world.standstill_limit_s),
                0 if supervisor.is_ending else world.job.replicas,
                self.host.name,
                self.store,
                supervisor.slots.running(),
                tuple(supervisor.slots.dead),
                supervisor.slots.finished(),
                self._epoch,
                AGE_S,
                incidents=supervisor.evidence.last_number,
                kept=supervisor.slots.kept(),
            )
        )
        for worker in self.workers.values():
            worker.from_agent.send(m.AskReport())
        for message in (*supervisor.absent(), *supervisor.apart()):
            self.stream.up.send(message)
        for worker in self.workers.values():
            if worker.mends is not None:
                tell(worker)
        self.sees_peers()

    def sees_peers(self) -> None:
        """Report the hosts that acknowledge nothing now, like agent/peers.py."""
        hosts = [x for x in self.world.hosts if x is not self.host]
        silent = tuple(x.name for x in hosts if x.silent_until > self.world.now)
        if self.stream is not None and silent != self._silent:
            self._silent = silent
            self.tell(m.PeersSilent(silent))

    def _refused(self) -> None:
        self._failures += 1
        self.handle(s.LighthouseGone("no answer"))
        delay_s = min(BACKOFF_MAX_S, 0.05 * 2 ** min(self._failures, 6))
        self.world.at(delay_s * self.world.rng.uniform(0.5, 1.0), self, self._connect)

    def disconnected(self, stream: Stream, why: str) -> None:
        """The stream has broken; the agent reconnects."""
        if self.stream is stream:
            self.world.note(self.name, "disconnected", why)
            self.stream = None
            self._asked.clear()
            self._silent = ()
            self.host.excuse("its agent's stream broke")
            self._refused()

    def received(self, stream: Stream, message: m.ToAgent) -> None:
        """A message of the lighthouse has arrived."""
        if self.stream is not stream:
            return
        is_answer = isinstance(message, (m.Welcome, m.HeartbeatAck)) and self._asked
        asked_at = self._asked.popleft() if is_answer else None
        self.handle(s.LighthouseSent(asked_at))
        match message:
            case m.Welcome(epoch):
                self._epoch = epoch
                for evidence in self.supervisor.evidence.again(self.world.now):
                    self._send_evidence(evidence)
            case m.AskHeartbeat():
                self.tell(m.Heartbeat(quiet=True))
            case m.AssignSlots() | m.StopReplica() | m.KillWorkers():
                self.handle(message)
            case m.ToWorkers(targets, inner):
                wanted = {target.incarnation for target in targets}
                for worker in self.workers.values():
                    if worker.key.incarnation in wanted:
                        worker.from_agent.send(inner)
                        worker.heard.append(inner)
            case m.RestartReplica(_, incarnation, reason):
                if reason.startswith("stands still"):
                    self.world.invariants.stood_still(incarnation)
                if reason.startswith("has diverged"):
                    self.world.invariants.diverged(incarnation, reason)
                self.handle(message)
            case m.EndJob(exit_code):
                is_known = not (self.world.job.accepts_fewer or self.world.journals_lost)
                self.world.parting_rules.ends(exit_code, is_known=is_known)
                self.handle(message)
            case m.Rejected(reason):
                self.handle(m.EndJob(1, reason))
            case _:
                pass

    def _beat(self) -> None:
        if self.stream is not None:
            progress, self._progress = tuple(self._progress.values()), {}
            self._asked.append(self.world.now)
            self.tell(m.Heartbeat(progress))
        self.world.at(HEARTBEAT_S, self, self._beat)
