"""The identity of this worker process: the bootstrap installs it before the script runs.

Not here: its use (session.py, link.py) and how it was decided (agent/).
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from ftrun.base import defaults
from ftrun.base.errors import UserError
from ftrun.core.ids import WorkerKey

if TYPE_CHECKING:
    from ftrun.training.keeper import Keeper

Place: TypeAlias = "tuple[int | None, bool]"
"""A step, None before the first one, and whether it is its peers', because the worker heals."""


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """The launcher's description of a worker and its job.

    ``host``: the numeric address on which peers reach this worker. ``socket_path``: the agent's
    Unix socket. ``device``: "cpu" or "cuda". ``heal_tls``: states are served and fetched with TLS.
    ``restarts``: earlier starts of this slot. ``peers_train``: a replica of this node did when this
    worker was started. ``hang_factor``: above 0 the agent wants to know that
    the loop goes on, also without a Manager. ``global_batch``: samples of all replicas in one step.
    ``data``: who chooses the samples of an unmodified script. ``script``, ``inject``: what runs,
    for snapshots. ``group_store``: where the ranks of a group meet; "": at MASTER_ADDR and
    MASTER_PORT. ``snapshot_dir``: where they go; empty: none are taken. ``resume_dir``: where the
    first one to go on from is, if none is in ``snapshot_dir``.
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
        """This worker's place inside its replica group."""
        return self.key.group_rank

    def options_of_samplers(self) -> str:
        """The options that only an ElasticSampler can keep, as they were given; "": none."""
        asked = [] if self.data == defaults.AS_WRITTEN else [f"--data {self.data}"]
        if self.global_batch is not None:
            asked.append(f"--global-batch {self.global_batch}")
        return " and ".join(asked)


class Process:
    """The state of this process, which is one worker for all its life.

    ``failed``: the script has raised or exits non-zero, so exit handlers must not report it as
    finished. ``managed``: the worker whose Manager is open. ``managers``: how many the worker
    ``owner`` has had, with that one. ``place``: of the last Manager, which may be closed; for the
    report of a failure. ``leave``: of a Manager that has begun its first step; it raises
    ``Drained`` unless left. ``before_claim``: see there. ``keeper``: of its first
    Manager; None: nobody could take this worker's place in its group. ``left``: claims what its
    replica's earlier processes have left, for that Manager. ``stop_signal``: what it was
    asked to stop with; 0: it was not. ``is_pressed``: the script is to leave where it stands, and
    stands in a place of ftrun's: a wait for peers there ends by ``Drained``, because it may last
    longer than the grace.
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
    left: Callable[[Any], Any] | None = None


def install(context: WorkerContext) -> None:
    """Set the identity of this process. The bootstrap calls it once."""
    Process.context = context


def current() -> WorkerContext | None:
    """The identity of this process; None if the script was started without ftrun."""
    return Process.context


def before_claim(call: Callable[[], None]) -> None:
    """Call this before each Manager of this process is made."""
    Process.before_claim = call


def claim(key: WorkerKey) -> None:
    """Note that this worker has a Manager from now on.

    Raises:
        UserError: it has one already.
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
    """The Manager's place now, or at its end; no step if there was no Manager."""
    return Process.place() if Process.place is not None else (None, False)


def had_manager() -> bool:
    return Process.managers > 0


def managers_before(key: WorkerKey) -> int:
    """How many Managers this worker has had and shut down."""
    return Process.managers - (Process.managed == key) if Process.owner == key else 0


def request_stop(number: int = signal.SIGTERM) -> None:
    """Note that the agent has asked this process to stop; ``number``: as if by this signal."""
    Process.stop_signal = Process.stop_signal or int(number)


def stop_requested() -> bool:
    """Whether this worker was asked to stop: by a signal to ``ftrun``, a drain or a restart.

    It is True before ``Drained`` is raised, so that a script can end its loop by itself. Without
    ``ftrun`` it is always False.
    """
    return Process.stop_signal != 0


def is_pressed() -> bool:
    """Whether the script is to leave as soon as it can: a wait for peers ends now."""
    return Process.is_pressed


def stops_with() -> BaseException:
    """What a script without a Manager is ended by."""
    return KeyboardInterrupt() if was_interrupted() else SystemExit(128 + Process.stop_signal)


def was_interrupted() -> bool:
    """Whether it was asked by Ctrl-C."""
    return Process.stop_signal == signal.SIGINT
