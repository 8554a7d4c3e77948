"""The settings of a run, checked and frozen before anything is started.

Every bad input has its own message here. Not here: the options' spellings and sources (options.py,
layers.py), torchrun's meanings (torchrun.py), the script (script.py), the machine
(agent/devices.py).
"""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ftrun import clock
from ftrun.addresses import normal_address, parse_address
from ftrun.config import torchrun
from ftrun.config.layers import Stated
from ftrun.config.script import Script, TargetKind, check_script, is_module_name
from ftrun.config.streams import Streams, parse_streams
from ftrun.core.agent.signals import SignalRules, signal_rules
from ftrun.core.ids import WorkerKey
from ftrun.core.messages import JobSpec
from ftrun.defaults import LIGHTHOUSE_PORT, REPLICAS_MAX
from ftrun.errors import UserError
from ftrun.logs.disk import parse_log_limit
from ftrun.logs.keep import parse_keep
from ftrun.logs.layout import MERGED
from ftrun.protocol.tls import TlsFiles

WORKERS_PER_REPLICA_MAX = 1024
PRELOAD_MAX = 64
STANDBYS_MAX = 64
HANG_FACTOR_MIN = 2.0
HANG_FACTOR_MAX = 1e6
DEVICES = ("auto", "cpu", "cuda")
INJECT_MODES = ("explicit", "off")
EVENT_LOG_HANDLERS = ("null", "console")
_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class RunSettings:
    """All settings of ``ftrun run``; none is secret.

    ``as_torchrun``: the command spells a job as torchrun does, so it is one replica group with
    torchrun's meaning. ``master_addr``, ``master_port``: where the user wants the workers to meet.
    ``sources``: what states each option: a flag, an environment variable, a file, ``default``.
    """

    script: Script
    job_id: str
    replicas: int
    min_replicas: int
    workers_per_replica: int
    nodes: int
    rebalance: bool
    lighthouse: str | None
    max_restarts: int
    join_timeout_s: float
    heartbeat_timeout_s: float
    isolation_limit_s: float
    hang_timeout_s: float
    hang_factor: float
    grace_s: float
    device: str
    inject: str
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
    virtual_local_rank: bool = False
    numa_binding: str | None = None
    redirects: str = "0"
    tee: str = "0"
    local_ranks_filter: str = ""
    duplicate_stdout_filters: str = ""
    duplicate_stderr_filters: str = ""
    logs_specs: str | None = None
    event_log_handler: str = "null"
    health_check: str = ""
    health_timeout_s: float = 30.0
    json_exit: bool = False
    stdin: str | None = None
    prefix: bool | None = None
    signals_to_handle: str | None = None
    preempt_signal: str | None = None
    preempt_file: Path | None = None
    log_keep: str = ""
    log_max_size: str = ""
    merged_log: bool = False
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    def signal_rules(self) -> SignalRules:
        """The rules for signals to the agent. Raises as ``check``."""
        handled, preempt = self.signals_to_handle, self.preempt_signal
        return signal_rules(handled, preempt, as_torchrun=self.as_torchrun)

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
        """The file with the lines of all workers; each agent of a job of several has its own."""
        if not self.merged_log:
            return None
        name = MERGED if self.lighthouse is None else f"merged.{socket.gethostname()}.log"
        return self.job_log_dir / name

    def streams(self) -> Streams:
        """The part of the workers' output that the terminal shows.

        Raises:
            UserError: one of the options has another form.
        """
        return parse_streams(
            redirects=self.redirects,
            tee=self.tee,
            ranks=self.local_ranks_filter,
            out_words=self.duplicate_stdout_filters,
            err_words=self.duplicate_stderr_filters,
            role=self.role,
            environ=os.environ,
        )

    def reads_stdin(self, key: WorkerKey) -> bool:
        """Whether this worker reads ftrun's standard input."""
        default = "0.0" if self.replicas == 1 else None
        wanted = self.stdin or default
        if wanted is not None and "." not in wanted:
            wanted += ".0"
        return f"{key.replica_id}.{key.group_rank}" == wanted

    def lighthouse_address(self) -> tuple[str, int]:
        """Host and port of ``lighthouse``, which must not be None."""
        return parse_address(self.lighthouse or "", "--lighthouse")

    def spec(self) -> JobSpec:
        """The settings on which all agents of the job must agree."""
        return JobSpec(**self.shared_with(JobSpec))

    def shared_with(self, kind: type[Any]) -> dict[str, Any]:
        """The settings that the dataclass ``kind`` has too, under the same names."""
        names = {field.name for field in fields(kind)} & {field.name for field in fields(self)}
        return {name: getattr(self, name) for name in names}

    def check(self) -> None:
        """Check everything that can be checked without starting anything.

        Raises:
            UserError: the first error found, with its remedy.
        """
        _check_counts(self)
        _check_times(self)
        _check_names(self)
        _check_meeting(self)
        self.streams()
        parse_keep(self.log_keep)
        parse_log_limit(self.log_max_size)
        _check_security(self)
        _check_signals(self)
        check_script(self.script)

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
    (layers.py). ``gpus``: how many GPUs a program that is started here would see.

    Raises:
        UserError: an option cannot be parsed. What it means is checked later: ``check``.
    """
    options = {**{name: one.value for name, one in stated.items()}}
    options |= torchrun.translate(stated, gpus)
    if isinstance(words, Script):
        script = words
    else:
        target, *args = words
        kind = _kind(options)
        script = Script(target, kind, tuple(args))
    low, high = parse_replicas(options["replicas"], options["min_replicas"])
    lighthouse, job_id = options["lighthouse"], options["job_id"]
    parsed = {
        **options,
        "sources": _sources(stated),
        "script": script,
        "job_id": default_job_id(script, lighthouse) if job_id is None else job_id,
        "replicas": high,
        "min_replicas": low,
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


def default_job_id(script: Script, lighthouse: str | None) -> str:
    """The script's name; made unique if no second agent has to derive the same name."""
    stem = re.sub(r"[^A-Za-z0-9._-]", "-", script.name).strip("-._")[:32] or "job"
    if lighthouse is not None:
        return stem
    return f"{stem}-{clock.wall():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def check_writable(path: Path, option: str) -> None:
    """Make ``path`` and write a file in it.

    Raises:
        UserError: the directory cannot be made or written to.
    """
    probe = path / f".ftrun-{os.getpid()}"
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe.touch(mode=0o600)
        probe.unlink()
    except OSError as error:
        raise UserError(
            f"{option}: cannot write in {path} ({error.strerror}). Nothing was started. "
            f"Give a directory that you may write: {option} DIR."
        ) from None


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
    if settings.nodes > 1 and settings.lighthouse is None:
        raise UserError(
            "--nodes above 1 needs a lighthouse that all nodes reach. Start one with "
            f"`ftrun lighthouse --bind HOST:{LIGHTHOUSE_PORT} --token-file FILE`, with TLS "
            "(`ftrun certs`) or --insecure-plaintext, and give --lighthouse "
            f"HOST:{LIGHTHOUSE_PORT} and a copy of that FILE on every node."
        )


def _check_times(settings: RunSettings) -> None:
    for option, value in (
        ("--join-timeout", settings.join_timeout_s),
        ("--heartbeat-timeout", settings.heartbeat_timeout_s),
        ("--isolation-limit", settings.isolation_limit_s),
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
    """Two times of which one should not be below the other. ``why``: what happens else.

    ``is_rule``: a run whose times do not keep it is refused; others are only shown.
    """

    upper: str
    upper_s: float
    lower: str
    lower_s: float
    why: str
    is_rule: bool = True

    @property
    def holds(self) -> bool:
        """Whether the settings keep it."""
        return self.upper_s >= self.lower_s

    def words(self) -> str:
        """The relation with its numbers, as a sentence without its full stop."""
        verb = "is at least" if self.holds else "is less than"
        return f"{self.upper} {self.upper_s:g} {verb} {self.lower} ({self.lower_s:g} s): {self.why}"


def relations(settings: RunSettings) -> tuple[Relation, ...]:
    """How the times of a run must be, or should be, to each other."""
    heartbeat_s, isolation_s = settings.heartbeat_timeout_s, settings.isolation_limit_s
    rule = Relation(
        "--isolation-limit", isolation_s, "twice --heartbeat-timeout", 2 * heartbeat_s,
        "else healthy workers would stop committing at the first late heartbeat",
    )  # fmt: skip
    if settings.lighthouse is None:
        return (rule,)
    advice = Relation(
        "--join-timeout", settings.join_timeout_s,
        "--isolation-limit and --heartbeat-timeout together", isolation_s + heartbeat_s,
        "else workers may give up while the lighthouse still waits for nodes that have vanished",
        is_rule=False,
    )  # fmt: skip
    return rule, advice


def _check_meeting(settings: RunSettings) -> None:
    wanted = [f"--{n.replace('_', '-')}" for n in ("master_addr", "local_addr", "master_port")
              if getattr(settings, n) is not None]  # fmt: skip
    if wanted and settings.replicas > 1:
        raise UserError(
            f"{' and '.join(wanted)}: {settings.replicas} replica groups meet at places of their "
            "own. Nothing was started. Leave it out; MASTER_ADDR and MASTER_PORT name each one's."
        )


def _check_names(settings: RunSettings) -> None:
    if not _JOB_ID.fullmatch(settings.job_id):
        raise UserError(
            f"--job-id {settings.job_id!r}: letters, digits, '.', '_' and '-', at most 64, "
            "beginning with a letter or digit."
        )
    if settings.device not in DEVICES:
        raise UserError(f"--device {settings.device!r}: give one of {', '.join(DEVICES)}.")
    if settings.inject not in INJECT_MODES:
        raise UserError(f"--inject {settings.inject!r}: give one of {', '.join(INJECT_MODES)}.")
    if settings.logs_specs not in (None, "default"):
        raise UserError(
            f"--logs-specs {settings.logs_specs}: ftrun writes the logs itself, so only `default` "
            "is accepted. Nothing was started. See --log-dir, -r and -t."
        )
    if settings.stdin is not None:
        replica, dot, rank = settings.stdin.partition(".")
        rank = rank if dot else "0"
        is_there = replica.isdecimal() and int(replica) < settings.replicas
        if not (is_there and rank.isdecimal() and int(rank) < settings.workers_per_replica):
            raise UserError(
                f"--stdin {settings.stdin!r}: give REPLICA.RANK of a worker of this job, for "
                "example 0.0. Nothing was started."
            )
    if settings.event_log_handler not in EVENT_LOG_HANDLERS:
        raise UserError(
            f"--event-log-handler {settings.event_log_handler!r}: give one of "
            f"{', '.join(EVENT_LOG_HANDLERS)}. Handlers that other programs register with torch "
            "are not known here; console writes the same events as lines of JSON on stderr, to be "
            "piped to them. Nothing was started."
        )
    if len(settings.preload) > PRELOAD_MAX:
        raise UserError(f"--preload: at most {PRELOAD_MAX} modules.")
    for name in settings.preload:
        if not is_module_name(name):
            raise UserError(f"--preload {name!r} is not a module name.")
    if settings.lighthouse is not None:
        parse_address(settings.lighthouse, "--lighthouse")


def _check_signals(settings: RunSettings) -> None:
    settings.signal_rules()
    path = settings.preempt_file
    if path is not None and path.exists():
        raise UserError(
            f"--preempt-file {path} is there already, so the run would end at once. Nothing was "
            "started. Remove the file, or give the path of one that appears at a preemption."
        )


def _check_security(settings: RunSettings) -> None:
    if settings.tls and settings.lighthouse is None:
        raise UserError(
            "--tls-cert, --tls-key and --tls-ca are for a lighthouse that runs by itself "
            "(--lighthouse HOST:PORT): the embedded one is reached from this machine only. "
            "Nothing was started. Leave them out."
        )
    settings.tls.check_client()
