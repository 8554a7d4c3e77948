"""The settings of a run, frozen before anything is started.

Not here: the options' spellings and sources (options.py, layers.py), torchrun's meanings
(torchrun.py), the checks of values (checks.py), the script (script.py), the machine
(agent/devices.py).
"""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ftrun.base import clock
from ftrun.base.addresses import normal_address, parse_address
from ftrun.base.defaults import AS_WRITTEN, MEMORY_SNAPSHOTS, SNAPSHOTS_KEPT
from ftrun.base.errors import UserError
from ftrun.config import torchrun
from ftrun.config.layers import DEFAULT, Stated
from ftrun.config.rendezvous import Rendezvous, Span
from ftrun.config.script import Script, TargetKind, other_python, own_path
from ftrun.config.streams import PREFIX_VARIABLE, Streams, parse_ranks, parse_std, parse_words
from ftrun.core.agent.signals import SignalRules, signal_rules
from ftrun.core.failure_kinds import HEAL
from ftrun.core.ids import WorkerKey
from ftrun.core.messages import JobSpec
from ftrun.logs.disk import parse_log_limit
from ftrun.logs.layout import MERGED
from ftrun.logs.units import parse_age
from ftrun.protocol.tls import TlsFiles

NO_RESUME = "none"
"""The value of --resume that starts from scratch."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    """All settings of ``ftrun run``; none is secret.

    Attributes:
        accepts_fewer: the user has stated ``min_replicas``.
        as_torchrun: the command defines a job in torchrun's terms, so it is one replica group with
            torchrun's semantics.
        master_addr, master_port: where the user wants the workers to meet.
        rendezvous: where the nodes of the group meet, if it has several.
        span: this node's part of that group, once known. Then ``workers_per_replica`` counts the
            workers of all its nodes.
        workers_per_node: of each replica group, if a group spans several nodes, which a lighthouse
            connects.
        node_rank, topology: this node's number and label in that case.
        groups_placed: how many groups have their nodes.
        restarts_spent: restarts used by an earlier team of another size.
        gpus: the number of GPUs that a program started here would see.
        sources: what states each option: a flag, an environment variable, a file, ``default``.
    """

    script: Script
    job_id: str
    replicas: int
    min_replicas: int
    accepts_fewer: bool
    workers_per_replica: int
    nodes: int
    spare_nodes: int
    rebalance: bool
    lighthouse: str | None
    max_restarts: int
    join_timeout_s: float
    heartbeat_timeout_s: float
    isolation_limit_s: float
    lighthouse_timeout_s: float
    hang_timeout_s: float
    hang_factor: float
    grace_s: float
    device: str
    inject: str
    torchft: str
    start: str
    preload: tuple[str, ...]
    standbys: int
    log_dir: Path
    state_dir: Path | None
    token_file: Path | None
    tls: TlsFiles
    as_torchrun: bool = False
    no_python: bool = False
    run_path: bool = False
    role: str = "default"
    master_addr: str | None = None
    master_port: int | None = None
    local_addr: str | None = None
    rendezvous: Rendezvous | None = None
    span: Span | None = None
    restarts_spent: int = 0
    workers_per_node: int | None = None
    node_rank: int | None = None
    topology: str = ""
    groups_placed: int = 0
    interface: str | None = None
    virtual_local_rank: bool = False
    gpus: int = 0
    numa_binding: str | None = None
    redirects: str = "0"
    tee: str = "0"
    local_ranks_filter: str = ""
    duplicate_stdout_filters: str = ""
    duplicate_stderr_filters: str = ""
    event_log_handler: str = "null"
    on_corruption: str = HEAL
    health_check: str = ""
    health_timeout_s: float = 30.0
    json_exit: bool = False
    exit_with: str = "node"
    stdin: str | None = None
    prefix: bool | None = None
    status_line: bool = True
    signals_to_handle: str | None = None
    preempt_signal: str | None = None
    preempt_file: Path | None = None
    requeue: bool = False
    log_keep: str = ""
    log_max_size: str = ""
    merged_log: bool = False
    data: str = AS_WRITTEN
    global_batch: int | None = None
    snapshot: Path | None = None
    snapshot_every: str = "5m"
    snapshot_keep: int = SNAPSHOTS_KEPT
    resume: str | None = None
    memory_snapshots: str = MEMORY_SNAPSHOTS
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def ranks_here(self) -> range:
        """The group ranks that this node runs of each replica."""
        return self.span.ranks if self.span is not None else range(self.workers_per_replica)

    @property
    def spans(self) -> bool:
        """Whether the group has workers on other nodes too, once that is known."""
        return self.span is not None and self.span.nodes > 1

    @property
    def nodes_per_replica(self) -> int:
        """The number of nodes of a replica group that a lighthouse places on nodes."""
        return self.workers_per_replica // (self.workers_per_node or self.workers_per_replica)

    def signal_rules(self) -> SignalRules:
        """The rules for signals to the agent. Raises as ``check``."""
        handled, preempt = self.signals_to_handle, self.preempt_signal
        return signal_rules(handled, preempt, as_torchrun=self.as_torchrun)

    @property
    def begins_anew(self) -> bool:
        """Whether existing snapshots are ignored."""
        return self.resume == NO_RESUME

    @property
    def resume_path(self) -> Path | None:
        """The directory that ``--resume`` names."""
        named = self.resume is not None and not self.begins_anew
        return Path(self.resume or "").expanduser().absolute() if named else None

    @property
    def snapshot_path(self) -> Path | None:
        """The directory for snapshots; None: none are taken."""
        return self.snapshot.absolute() if self.snapshot is not None else self.resume_path

    @property
    def snapshot_every_s(self) -> float:
        """The interval of snapshots; 0: ``snapshot_every`` is no time."""
        return parse_age(self.snapshot_every) or 0.0

    @property
    def job_log_dir(self) -> Path:
        """The directory of this job's logs."""
        return self.log_dir / self.job_id

    @property
    def prefixes_lines(self) -> bool:
        """Whether lines on the terminal begin with the worker's name."""
        several = self.replicas * self.workers_per_replica > 1
        asks = self.tee != "0" and bool(self.streams().template)
        return (several or asks) if self.prefix is None else self.prefix

    @property
    def log_bytes_max(self) -> int:
        """The limit of each log file of this job; 0: none."""
        return parse_log_limit(self.log_max_size)

    @property
    def merged_path(self) -> Path | None:
        """The file with the lines of all workers. If a job has several agents, each has its own."""
        if not self.merged_log:
            return None
        is_alone = self.lighthouse is None and self.span is None
        name = MERGED if is_alone else f"merged.{socket.gethostname()}.log"
        return self.job_log_dir / name

    def streams(self) -> Streams:
        """The part of the workers' output that the terminal shows.

        Raises:
            UserError: one of the options has another form.
        """
        return Streams(
            redirected=parse_std(self.redirects, "--redirects"),
            teed=parse_std(self.tee, "--tee"),
            ranks=parse_ranks(self.local_ranks_filter),
            out_words=parse_words(self.duplicate_stdout_filters),
            err_words=parse_words(self.duplicate_stderr_filters),
            template=os.environ.get(PREFIX_VARIABLE, ""),
            role=self.role,
            first=self.ranks_here.start,
        )

    def reads_stdin(self, key: WorkerKey) -> bool:
        """Whether this worker reads ftrun's standard input."""
        return (key.replica_id, key.group_rank) == self.stdin_worker()

    def stdin_worker(self) -> tuple[str, int] | None:
        """The replica and rank that read ftrun's standard input; None: no worker does."""
        wanted = self.stdin or ("0.0" if self.replicas == 1 else "")
        replica_id, _, rank = wanted.partition(".")
        return (replica_id, int(rank or 0)) if replica_id else None

    def lighthouse_addresses(self) -> list[tuple[str, int]]:
        """Host and port of each address in ``lighthouse``, which must not be None."""
        return [parse_address(x, "--lighthouse") for x in (self.lighthouse or "").split(",")]

    @property
    def waits_for_mends(self) -> bool:
        """Whether the others wait for a lost worker's replacement as long as for a newcomer: the
        user has requested memory snapshots of several replicas."""
        is_stated = self.sources.get("memory_snapshots", DEFAULT) != DEFAULT
        return is_stated and self.memory_snapshots != "off" and self.replicas > 1

    def spec(self) -> JobSpec:
        """The settings on which all agents of the job must agree.

        If groups are larger than a node, only the agent of each group's first node connects.
        """
        known = self.shared_with(JobSpec)
        spec = JobSpec(**known, waits_for_mends=self.waits_for_mends)
        if self.rendezvous is not None:
            return replace(spec, spare_nodes=0)  # the lead's, and no agents of the lighthouse
        if self.workers_per_node is None:
            return spec
        groups = min(self.replicas, self.nodes // self.nodes_per_replica)
        return replace(spec, nodes=groups, spare_nodes=0)

    def shared_with(self, kind: type[Any]) -> dict[str, Any]:
        """The settings that the dataclass ``kind`` has too, under the same names."""
        names = {field.name for field in fields(kind)} & {field.name for field in fields(self)}
        return {name: getattr(self, name) for name in names}

    def check_directories(self) -> None:
        """Make the directories that the job writes to.

        Raises:
            UserError: one of them cannot be made or written to.
        """
        check_writable(self.job_log_dir, "--log-dir")
        if self.state_dir is not None:
            check_writable(self.state_dir, "--state-dir")


def resolve(
    words: Sequence[str] | Script, stated: Mapping[str, Stated], gpus: int = 0
) -> RunSettings:
    """The settings of ``ftrun run``.

    ``words``: the script and its arguments, or the target itself. ``stated``: every option
    (layers.py). ``gpus``: the number of GPUs that a program started here would see.

    Raises:
        UserError: an option cannot be parsed. ``check`` checks its meaning later.
    """
    options = {**{name: one.value for name, one in stated.items()}}
    options |= torchrun.translate(stated, gpus)
    if isinstance(words, Script):
        script = words
    else:
        target, *args = words
        kind = _kind(options)
        if kind in (TargetKind.FILE, TargetKind.PATH):
            target = own_path(target)
        has_python = kind in (TargetKind.FILE, TargetKind.MODULE)
        script = Script(target, kind, tuple(args), other_python(os.environ) if has_python else "")
    low, high = parse_replicas(options["replicas"], options["min_replicas"])
    if options["workers_per_node"] and not stated["nodes"].is_given:
        each = options["workers_per_replica"] // options["workers_per_node"]
        options["nodes"] = high * each + options["spare_nodes"]
    lighthouse, job_id = options["lighthouse"], options["job_id"]
    is_shared = lighthouse is not None or options["rendezvous"] is not None
    parsed = {
        **options,
        "sources": _sources(stated),
        "gpus": gpus,
        "script": script,
        "job_id": default_job_id(script, is_shared) if job_id is None else job_id,
        "replicas": high,
        "min_replicas": low,
        "accepts_fewer": ":" in options["replicas"] or options["min_replicas"] is not None,
        "lighthouse": normal_address(lighthouse),
        "preload": tuple(options["preload"].replace(",", " ").split()),
        "tls": TlsFiles(options["tls_cert"], options["tls_key"], options["tls_ca"]),
    }
    names = {field.name for field in fields(RunSettings)}
    return RunSettings(**{name: value for name, value in parsed.items() if name in names})


def _kind(options: Mapping[str, Any]) -> TargetKind:
    kinds = {
        "module": TargetKind.MODULE,
        "no_python": TargetKind.COMMAND,
        "run_path": TargetKind.PATH,
    }
    return next((kind for name, kind in kinds.items() if options[name]), TargetKind.FILE)


def _sources(stated: Mapping[str, Stated]) -> dict[str, str]:
    found = torchrun.sources(stated)
    if not stated["min_replicas"].is_given and ":" in stated["replicas"].value:
        found["min_replicas"] = found["replicas"]
    return found


def parse_replicas(text: str, min_replicas: int | None) -> tuple[int, int]:
    """``N`` or ``MIN:MAX`` to (min_replicas, replicas).

    Raises:
        UserError: not numbers, MIN above MAX, or two different minima.
    """
    low_text, colon, high_text = text.partition(":")
    try:
        low = int(low_text)
        high = int(high_text) if colon else low
    except ValueError:
        raise UserError(
            f"--replicas {text!r} is neither a number nor MIN:MAX. For example: --replicas 4, "
            "or --replicas 2:4."
        ) from None
    if not colon:
        return (1 if min_replicas is None else min_replicas), high
    if low > high:
        raise UserError(
            f"--replicas {text}: MIN {low} is above MAX {high}. Did you mean {high}:{low}?"
        )
    if min_replicas is not None and min_replicas != low:
        raise UserError(
            f"--replicas {text} asks for at least {low} and --min-replicas for {min_replicas}. "
            "Give one of the two."
        )
    return low, high


def default_job_id(script: Script, is_shared: bool) -> str:
    """The script's name, made unique unless a second agent must derive the same name."""
    stem = re.sub(r"[^A-Za-z0-9._-]", "-", script.name).strip("-._")[:32] or "job"
    if is_shared:
        return stem
    return f"{stem}-{clock.wall():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def check_writable(path: Path, option: str) -> None:
    """Make ``path`` and write a file in it.

    Raises:
        UserError: the directory cannot be made or written to.
    """
    probe = path / f".ftrun-{secrets.token_hex(8)}"  # other nodes have the same pids
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe.touch(mode=0o600)
        probe.unlink()
    except OSError as error:
        raise UserError(
            f"{option}: cannot write in {path} ({error.strerror}). Nothing was started. "
            f"Give a directory that you may write: {option} DIR."
        ) from None
