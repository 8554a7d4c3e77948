"""The identity of this worker process, which the bootstrap installs before the script runs.

Not here: its use (session.py, link.py), how it was decided (agent/).
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from ftrun.base import defaults
from ftrun.base.errors import UserError
from ftrun.core.ids import WorkerKey

if TYPE_CHECKING:
    from ftrun.training.keeper import Keeper

Place: TypeAlias = "tuple[int | None, bool]"
"""A step (None before the first one), and whether it is the peers' step because the worker
heals."""


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """The launcher's description of a worker and its job.

    Attributes:
        host: the numeric address at which peers reach this worker.
        socket_path: the agent's Unix socket.
        device: "cpu" or "cuda".
        heal_tls: states are served and fetched with TLS.
        restarts: how often this slot was started before.
        peers_train: a replica of this node was training when this worker was started.
        hang_factor: above 0, the agent watches whether the loop makes progress, even without a
            Manager.
        global_batch: samples of all replicas in one step.
        data: who chooses the samples of an unmodified script.
        script, inject: what runs, for snapshots.
        group_store: where the ranks of a group meet; "": at MASTER_ADDR and MASTER_PORT.
        snapshot_dir: the directory for snapshots; empty: none are taken.
        resume_dir: where to look for a first snapshot, if there is none in ``snapshot_dir``.
    """

    job_id: str
    key: WorkerKey
    replicas: int
    min_replicas: int
    workers_per_replica: int
    host: str
    socket_path: str
    token: str = field(repr=False)
    device: str = "cpu"
    heal_tls: bool = False
    connect_timeout_s: float = defaults.JOIN_TIMEOUT_S
    quorum_timeout_s: float = defaults.JOIN_TIMEOUT_S
    heartbeat_timeout_s: float = defaults.HEARTBEAT_TIMEOUT_S
    restarts: int = 0
    peers_train: bool = False
    hang_factor: float = 0.0
    global_batch: int | None = None
    data: str = defaults.AS_WRITTEN
    script: str = ""
    inject: str = "explicit"
    snapshot_dir: str = ""
    snapshot_every_s: float = defaults.SNAPSHOT_EVERY_S
    snapshot_keep: int = defaults.SNAPSHOTS_KEPT
    resume_dir: str = ""
    grace_s: float = defaults.GRACE_S
    group_store: str = ""

    @property
    def replica_id(self) -> str:
        """The slot of this worker's replica group."""
        return self.key.replica_id

    @property
    def group_rank(self) -> int:
        """This worker's rank within its replica group."""
        return self.key.group_rank

    def options_of_samplers(self) -> str:
        """The given options that require an ElasticSampler, as text; "": none was given."""
        asked = [] if self.data == defaults.AS_WRITTEN else [f"--data {self.data}"]
        if self.global_batch is not None:
            asked.append(f"--global-batch {self.global_batch}")
        return " and ".join(asked)


class Process:
    """The state of this process, which is the same worker for all its life.

    Attributes:
        failed: the script has raised or exits non-zero, so exit handlers must not report success.
        managed: the worker whose Manager is open.
        managers: how many Managers the worker ``owner`` has had, with the open one.
        place: the place of the last Manager, open or closed, for the report of a failure.
        leave: leaves the job at once and raises ``Drained``; set by a Manager's first step.
        before_claim: see the function of this name.
        keeper: of the worker's first Manager; None: no process could take this worker's place in
            its group.
        stop_signal: the signal by which it was asked to stop; 0: it was not asked.
        is_pressed: the script must leave, and its main thread is in ftrun's code. A wait for peers
            ends with ``Drained``, because it could last longer than the grace period.
    """

    context: WorkerContext | None = None
    failed: bool = False
    managed: WorkerKey | None = None
    owner: WorkerKey | None = None
    managers: int = 0
    place: Callable[[], Place] | None = None
    stop_signal: int = 0
    is_pressed: bool = False
    leave: Callable[[], None] | None = None
    before_claim: Callable[[], None] | None = None
    keeper: Keeper | None = None


def install(context: WorkerContext) -> None:
    """Set the identity of this process. The bootstrap calls it once."""
    Process.context = context


def current() -> WorkerContext | None:
    """The identity of this process; None if the script was started without ftrun."""
    return Process.context


def before_claim(call: Callable[[], None]) -> None:
    """Register a function that is called before each Manager of this process is made."""
    Process.before_claim = call


def claim(key: WorkerKey) -> None:
    """Note that this worker now has a Manager.

    Raises:
        UserError: its earlier Manager is still open.
    """
    if Process.before_claim is not None:
        Process.before_claim()
    if Process.managed == key:
        raise UserError(
            "this process has a Manager already: use that one (ftrun.manager() returns it), or "
            "call its shutdown() first"
        )
    if Process.owner != key:
        Process.owner, Process.managers = key, 0
    Process.managed = key
    Process.managers += 1


def release(key: WorkerKey) -> None:
    if Process.managed == key:
        last = place()
        Process.managed = None
        Process.leave = None
        Process.place = lambda: last


def place() -> Place:
    """The place of the open or last Manager; no step if there was no Manager."""
    return Process.place() if Process.place is not None else (None, False)


def had_manager() -> bool:
    return Process.managers > 0


def managers_before(key: WorkerKey) -> int:
    """How many Managers this worker has had and shut down."""
    return Process.managers - (Process.managed == key) if Process.owner == key else 0


def request_stop(number: int = signal.SIGTERM) -> None:
    """Note that the agent has asked this process to stop; ``number``: the signal to act as for."""
    Process.stop_signal = Process.stop_signal or int(number)


def stop_requested() -> bool:
    """Whether this worker was asked to stop: by a signal to ``ftrun``, a drain or a restart.

    It is True before ``Drained`` is raised, so that a script can end its loop by itself. Without
    ``ftrun`` it is always False.
    """
    return Process.stop_signal != 0


def is_pressed() -> bool:
    """Whether the script must leave as soon as it can: a wait for peers ends now."""
    return Process.is_pressed


def stops_with() -> BaseException:
    """The exception that ends a script without a Manager."""
    return KeyboardInterrupt() if was_interrupted() else SystemExit(128 + Process.stop_signal)


def was_interrupted() -> bool:
    """Whether the stop was requested by Ctrl-C."""
    return Process.stop_signal == signal.SIGINT
