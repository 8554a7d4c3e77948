"""The checks of a run's settings: each bad value has its own message.

Not here: the settings themselves (settings.py), directories (settings.py: check_writable), the
script (script.py), the machine (agent/devices.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ftrun.base.addresses import normal_address
from ftrun.base.defaults import LIGHTHOUSE_PORT, REPLICAS_MAX
from ftrun.base.errors import UserError
from ftrun.config.forms import why_no_memory_snapshots
from ftrun.config.layers import DEFAULT
from ftrun.config.options import OPTIONS
from ftrun.config.script import TargetKind, check_script, is_module_name
from ftrun.config.settings import RunSettings
from ftrun.logs.disk import parse_log_limit
from ftrun.logs.keep import parse_keep

WORKERS_PER_REPLICA_MAX = 1024
PRELOAD_MAX = 64
NODES_MAX = 65_536
STANDBYS_MAX = 64
HANG_FACTOR_MIN = 2.0
HANG_FACTOR_MAX = 1e6
SNAPSHOT_EVERY_MAX_S = 7 * 86400.0
SNAPSHOTS_KEPT_MAX = 1000
_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check(settings: RunSettings) -> None:
    """Check everything that can be checked without starting anything.

    Raises:
        UserError: the first error found, with its remedy.
    """
    for option in OPTIONS:
        option.check_choice(getattr(settings, option.name, None))
    _check_counts(settings)
    _check_times(settings)
    _check_names(settings)
    _check_meeting(settings)
    settings.streams()
    parse_keep(settings.log_keep)
    parse_log_limit(settings.log_max_size)
    _check_security(settings)
    _check_signals(settings)
    _check_snapshots(settings)
    check_script(settings.script)


def _check_counts(settings: RunSettings) -> None:
    if not 1 <= settings.replicas <= REPLICAS_MAX:
        raise UserError(f"--replicas {settings.replicas}: give 1 to {REPLICAS_MAX}.")
    if settings.min_replicas < 1:
        raise UserError(f"--min-replicas {settings.min_replicas}: at least 1 must train.")
    if settings.min_replicas > settings.replicas:
        raise UserError(
            f"--min-replicas {settings.min_replicas} is above --replicas {settings.replicas}: "
            "the job could never begin."
        )
    if not 1 <= settings.workers_per_replica <= WORKERS_PER_REPLICA_MAX:
        raise UserError(
            f"--workers-per-replica {settings.workers_per_replica}: "
            f"give 1 to {WORKERS_PER_REPLICA_MAX}."
        )
    if settings.max_restarts < 0:
        raise UserError(f"--max-restarts {settings.max_restarts}: give 0 or more.")
    if not 0 <= settings.standbys <= STANDBYS_MAX:
        raise UserError(f"--standby {settings.standbys}: give 0 to {STANDBYS_MAX}.")
    if settings.nodes < 1:
        raise UserError(f"--nodes {settings.nodes}: give 1 or more.")
    if not 0 <= settings.spare_nodes <= NODES_MAX:
        raise UserError(f"--spare-nodes {settings.spare_nodes}: give 0 to {NODES_MAX}.")
    _check_placement(settings)
    if settings.nodes > 1 and settings.lighthouse is None:
        raise UserError(
            "--nodes above 1 needs a lighthouse that all nodes reach. Start one with "
            f"`ftrun lighthouse --bind HOST:{LIGHTHOUSE_PORT} --token-file FILE`, with TLS "
            "(`ftrun certs`) or --insecure-plaintext, and give --lighthouse "
            f"HOST:{LIGHTHOUSE_PORT} and a copy of that FILE on every node."
        )


def _check_placement(settings: RunSettings) -> None:
    """Check replica groups that span several nodes each."""
    rank, nodes, each = settings.node_rank, settings.nodes, settings.nodes_per_replica
    if rank is not None and settings.rendezvous is None and rank >= nodes:
        raise UserError(
            f"--node-rank {rank}: there is no such node with --nodes {nodes}. Nothing was started."
        )
    if settings.workers_per_node is None:
        # A variable may be set for the whole site, or by Slurm for its switches.
        has_copies = settings.rendezvous is not None and not why_no_memory_snapshots(settings)
        is_stated = settings.sources.get("topology", "").startswith("--")
        if settings.topology and is_stated and not has_copies:
            raise UserError(
                "--topology is for replica groups that take several nodes each (--nproc-per-node "
                "P -w W, W above P), and for memory snapshots on several nodes (--nnodes N "
                "--memory-snapshots auto). Nothing was started. Leave it out."
            )
        return
    takes = (
        f"A replica group of {settings.workers_per_replica} workers takes {each} nodes with "
        f"{settings.workers_per_node} each"
    )
    if settings.lighthouse is None:
        raise UserError(
            f"{takes}, and nodes find each other by a lighthouse. Nothing was started. Start one "
            f"with `ftrun lighthouse`, and give --lighthouse HOST:{LIGHTHOUSE_PORT} on every node "
            "(docs/SEVERAL_NODES.md). For this node alone, give fewer -w."
        )
    if nodes < each:
        raise UserError(f"{takes}, and --nodes is {nodes}. Nothing was started.")


def _check_times(settings: RunSettings) -> None:
    for option, value in (
        ("--join-timeout", settings.join_timeout_s),
        ("--heartbeat-timeout", settings.heartbeat_timeout_s),
        ("--isolation-limit", settings.isolation_limit_s),
        ("--lighthouse-timeout", settings.lighthouse_timeout_s),
    ):
        if not 0 < value <= 7 * 86400:
            raise UserError(f"{option} {value:g}: give seconds above 0 and up to a week.")
    if not 0 <= settings.grace_s <= 86400:
        raise UserError(f"--grace {settings.grace_s:g}: give seconds from 0 to a day.")
    if not 1 <= settings.health_timeout_s <= 3600:
        raise UserError(
            f"--health-timeout {settings.health_timeout_s:g}: give seconds from 1 to an hour."
        )
    if settings.hang_timeout_s != 0 and not 1 <= settings.hang_timeout_s <= 7 * 86400:
        raise UserError(
            f"--hang-timeout {settings.hang_timeout_s:g}: give seconds from 1 to a week, or 0 to "
            "never replace workers that hang."
        )
    if settings.hang_factor != 0 and not HANG_FACTOR_MIN <= settings.hang_factor <= HANG_FACTOR_MAX:
        raise UserError(
            f"--hang-factor {settings.hang_factor:g}: give a number from {HANG_FACTOR_MIN:g} to "
            f"{HANG_FACTOR_MAX:g}, or 0 to judge no loop by its own steps."
        )
    for relation in relations(settings):
        if relation.is_rule and not relation.holds:
            raise UserError(f"{relation.words()}. Nothing was started.")


@dataclass(frozen=True, slots=True)
class Relation:
    """Two times of which one should not be below the other. ``why``: what happens otherwise.

    ``is_rule``: a run that violates it is refused. Violations of other relations are only reported.
    """

    upper: str
    upper_s: float
    lower: str
    lower_s: float
    why: str
    is_rule: bool = True

    @property
    def holds(self) -> bool:
        return self.upper_s >= self.lower_s

    def words(self) -> str:
        """The relation with its numbers, as a sentence without its full stop."""
        verb = "is at least" if self.holds else "is less than"
        return f"{self.upper} {self.upper_s:g} {verb} {self.lower} ({self.lower_s:g} s): {self.why}"


def relations(settings: RunSettings) -> tuple[Relation, ...]:
    """The relations that a run's times must, or should, satisfy."""
    heartbeat_s, isolation_s = settings.heartbeat_timeout_s, settings.isolation_limit_s
    rule = Relation(
        "--isolation-limit", isolation_s, "twice --heartbeat-timeout", 2 * heartbeat_s,
        "else healthy workers would stop committing at the first late heartbeat",
    )  # fmt: skip
    end = Relation(
        "--lighthouse-timeout", settings.lighthouse_timeout_s, "--isolation-limit", isolation_s,
        "else a node would end while its workers may still train",
    )  # fmt: skip
    if settings.lighthouse is None:
        return rule, end
    advice = Relation(
        "--join-timeout", settings.join_timeout_s,
        "--isolation-limit and --heartbeat-timeout together", isolation_s + heartbeat_s,
        "else workers may give up while the lighthouse still waits for nodes that have vanished",
        is_rule=False,
    )  # fmt: skip
    return rule, end, advice


def _check_meeting(settings: RunSettings) -> None:
    wanted = [f"--{n.replace('_', '-')}" for n in ("master_addr", "local_addr", "master_port")
              if getattr(settings, n) is not None]  # fmt: skip
    if wanted and settings.replicas > 1:
        raise UserError(
            f"{' and '.join(wanted)}: {settings.replicas} replica groups meet at places of their "
            "own. Nothing was started. Leave it out; MASTER_ADDR and MASTER_PORT name each one's."
        )
    if settings.rendezvous is not None and settings.script.kind is TargetKind.FUNCTION:
        raise UserError(
            f"nnodes={settings.rendezvous.size!r}: the values of a function come back from this "
            "node alone. Nothing was started. Start a script with `ftrun --nnodes` on every node."
        )


def _check_data(settings: RunSettings) -> None:
    if settings.data == "exactly-once" and settings.inject in ("explicit", "off"):
        raise UserError(
            f"--data exactly-once with --inject {settings.inject}: a script with a Manager chooses "
            "its samples itself, with ftrun.ElasticSampler. Nothing was started."
        )
    if settings.data == "exactly-once" and settings.workers_per_replica > 1:
        raise UserError(
            f"--data exactly-once with {settings.workers_per_replica} workers per replica: ftrun "
            "gives an unmodified script's samples to replicas of one worker only. Use "
            "ftrun.ElasticSampler in the script, or leave --data out. Nothing was started."
        )
    if settings.global_batch is None:
        return
    if settings.global_batch < 1:
        raise UserError(f"--global-batch {settings.global_batch}: give 1 or more samples.")
    if settings.inject == "off":
        raise UserError(
            "--global-batch with --inject off: the script has the batches that it has written "
            "down. Use another --inject, or ftrun.ElasticSampler. Nothing was started."
        )
    if settings.inject == "ddp" and settings.workers_per_replica > 1:
        raise UserError(
            f"--global-batch with {settings.workers_per_replica} workers per replica: ftrun gives "
            "an unmodified script's samples to replicas of one worker only. Use "
            "ftrun.ElasticSampler in the script, or leave it out. Nothing was started."
        )


def _check_names(settings: RunSettings) -> None:
    if not _JOB_ID.fullmatch(settings.job_id):
        raise UserError(
            f"--job-id {settings.job_id!r}: letters, digits, '.', '_' and '-', at most 64, "
            "beginning with a letter or digit."
        )
    _check_data(settings)
    if settings.stdin is not None:
        replica, dot, rank = settings.stdin.partition(".")
        rank = rank if dot else "0"
        is_there = replica.isdecimal() and int(replica) < settings.replicas
        if not (is_there and rank.isdecimal() and int(rank) < settings.workers_per_replica):
            raise UserError(
                f"--stdin {settings.stdin!r}: give REPLICA.RANK of a worker of this job, for "
                "example 0.0. Nothing was started."
            )
    if len(settings.preload) > PRELOAD_MAX:
        raise UserError(f"--preload: at most {PRELOAD_MAX} modules.")
    for name in settings.preload:
        if not is_module_name(name):
            raise UserError(f"--preload {name!r} is not a module name.")
    if settings.lighthouse is not None:
        normal_address(settings.lighthouse)


def _check_signals(settings: RunSettings) -> None:
    settings.signal_rules()
    path = settings.preempt_file
    if path is not None and path.exists():
        raise UserError(
            f"--preempt-file {path} is there already, so the run would end at once. Nothing was "
            "started. Remove the file, or give the path of one that appears at a preemption."
        )


def _check_snapshots(settings: RunSettings) -> None:
    is_stated = settings.sources.get("memory_snapshots", DEFAULT) != DEFAULT
    why = why_no_memory_snapshots(settings)
    if is_stated and settings.memory_snapshots != "off" and why:
        workers = settings.replicas * settings.workers_per_replica
        is_here = settings.replicas > 1 and settings.nodes == 1 and not settings.lighthouse
        rather = f", or make all one group: --workers-per-replica {workers}" if is_here else ""
        raise UserError(
            f"--memory-snapshots {settings.memory_snapshots}: not in this job: {why}. Nothing was "
            f"started. Leave it out{rather}."
        )
    if settings.snapshot_path is None:
        if settings.begins_anew:
            raise UserError(
                "--resume none is for a job that takes snapshots. Nothing was started. Give "
                "--snapshot DIR too, or leave it out."
            )
        return
    if not 1 <= settings.snapshot_every_s <= SNAPSHOT_EVERY_MAX_S:
        raise UserError(
            f"--snapshot-every {settings.snapshot_every!r}: give a time from 1s to 7d, for example "
            "5m. Nothing was started."
        )
    if not 1 <= settings.snapshot_keep <= SNAPSHOTS_KEPT_MAX:
        raise UserError(
            f"--snapshot-keep {settings.snapshot_keep}: give 1 to {SNAPSHOTS_KEPT_MAX}. "
            "Nothing was started."
        )
    why_not = ""
    if settings.inject == "off":
        why_not = "--inject off, so ftrun does not know the script's state"
    elif settings.script.kind is TargetKind.COMMAND:
        why_not = "a command that is not Python"
    if why_not:
        raise UserError(
            f"--snapshot: this job has {why_not}. Snapshots are taken of Python scripts: of "
            "those with a Manager, and of unmodified ones in one group or in replicas. Nothing was "
            "started. Leave --snapshot and "
            "--resume out, and let the script save its own checkpoint."
        )


def _check_security(settings: RunSettings) -> None:
    if settings.tls and settings.lighthouse is None and settings.rendezvous is None:
        raise UserError(
            "--tls-cert, --tls-key and --tls-ca are for a lighthouse that runs by itself "
            "(--lighthouse HOST:PORT): the embedded one is reached from this machine only. "
            "Nothing was started. Leave them out."
        )
    settings.tls.check_client()
