"""The options of ``ftrun run``: one table, from which all their spellings come.

An option has a name, which is its field in RunSettings; flags on the command line; the environment
variable ``FTRUN_<NAME>``, and torchrun's ``PET_<NAME>`` if it is one of torchrun's; and its key in
ftrun.toml, which is the long flag without dashes. Not here: parsing of command lines (words.py),
which spelling wins (layers.py), the meaning of torchrun's options (torchrun.py), checks of values
(settings.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftrun.base import defaults
from ftrun.base.errors import UserError

TRUE_WORDS = frozenset({"1", "true", "yes", "on"})
FALSE_WORDS = frozenset({"0", "false", "no", "off"})
NEAR = 0.78
"""The similarity of two words for a hint. --standalone and --standby are less similar."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option of ``ftrun run``.

    Attributes:
        kind: str, int, float, bool or Path.
        default: None if the default depends on other options; then ``default_words`` states it.
        pet: torchrun's environment variable without ``PET_``.
        variable: a further environment variable, with another name.
        hidden: not in ``--help``, because it has no effect; docs/TORCHRUN_REFERENCE.md lists it.
    """

    name: str
    flags: tuple[str, ...]
    kind: type
    help: str
    metavar: str = ""
    default: Any = None
    default_words: str = ""
    pet: str = ""
    variable: str = ""
    hidden: bool = False

    @property
    def flag(self) -> str:
        return next(flag for flag in self.flags if flag.startswith("--")).partition("/")[0]

    @property
    def key(self) -> str:
        """The key in ftrun.toml."""
        return self.flag.removeprefix("--")

    def check_choice(self, value: Any) -> None:
        """Check a value against the choices in the metavar, such as ``job|node``.

        Raises:
            UserError: the value is none of them.
        """
        words = self.metavar.split("|")
        is_choice = len(words) > 1 and self.metavar.islower()
        if is_choice and value is not None and value not in words:
            raise UserError(f"{self.flag} {value!r}: give one of {', '.join(words)}.")

    def variables(self) -> tuple[str, ...]:
        """The environment variables. The first one that is set wins."""
        own = "FTRUN_" + self.key.replace("-", "_").upper()
        return tuple(filter(None, (own, self.pet and f"PET_{self.pet}", self.variable)))

    def shown_default(self) -> str:
        """The default as help and documents show it; empty if there is nothing to show."""
        if self.default_words or self.default in (None, "", False):
            return self.default_words
        if self.kind is bool:
            return self.key
        return f"{self.default:g}" if self.kind is float else str(self.default)

    def parse(self, text: str, source: str) -> Any:
        """Parse the text of a flag or a variable. The error names ``source``.

        Raises:
            UserError: the text is no value of this kind.
        """
        if self.kind is bool:
            return _parse_bool(text, source)
        try:
            return self.kind(text)
        except ValueError:
            noun = "a whole number" if self.kind is int else "a number"
            raise UserError(f"{source}: {text!r} is not {noun}. Nothing was started.") from None

    def accept(self, value: Any, source: str) -> Any:
        """The value of an entry of ftrun.toml, which has a type already.

        A list of texts is joined with commas, as on the command line.

        Raises:
            UserError: the entry has another type.
        """
        if self.kind is str and isinstance(value, list) and all(isinstance(x, str) for x in value):
            return ",".join(value)
        if self.kind is bool and isinstance(value, bool):
            return value
        if self.kind is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if self.kind is int and isinstance(value, int) and not isinstance(value, bool):
            return value
        is_text = isinstance(value, str | int | float) and not isinstance(value, bool)
        if self.kind in (str, Path) and is_text:
            text = str(value)
            return Path(text).expanduser() if self.kind is Path else text
        noun = {bool: "true or false", int: "a whole number", float: "a number"}
        wanted = noun.get(self.kind, "a text")
        raise UserError(f"{source}: {value!r} is not {wanted}. Nothing was started.")


def _parse_bool(text: str, source: str) -> bool:
    lowered = text.strip().lower()
    if lowered in TRUE_WORDS:
        return True
    if lowered in FALSE_WORDS:
        return False
    raise UserError(f"{source}: {text!r} is neither true nor false. Nothing was started.")


def _option(
    flags: str, kind: type, help: str, metavar: str = "", *, name: str = "", **more: Any
) -> Option:
    words = tuple(flags.split())
    long = next(word for word in words if word.startswith("--")).partition("/")[0]
    return Option(name or long[2:].replace("-", "_"), words, kind, help, metavar, **more)


_OWN: tuple[Option, ...] = (
    _option("--replicas", str, "Number of replica groups.", "N|MIN:MAX", default="1"),
    _option("-w --workers-per-replica", int, "Workers per replica group.", "W", default=1),
    _option(
        "--min-replicas", int, "Fewest replica groups that train.", "N", default_words="1",
    ),
    _option("--nodes", int, "Number of agents that share the replica groups.", "N", default=1),
    _option("--topology", str, "Label of nodes that are near each other. A group of several nodes "
            "is on one label, if it can be; copies of its states are on another one.",
            "LABEL", default=""),
    _option("--spare-nodes", int, "How many of --nodes stand by, to take a lost node's replicas.",
            "K", default=0),
    _option(
        "--rebalance/--no-rebalance", bool,
        "Move replica groups, one by one, to nodes that join late.", default=True,
    ),
    _option(
        "--lighthouse", str, "A running lighthouse; of several, all.", "HOST:PORT,…",
        default_words="start one",
    ),
    _option("--interface", str, "Interface by which this node and the others meet, or its network.",
            "NAME|CIDR", default_words="the one that leads to the lighthouse",
            variable="GLOO_SOCKET_IFNAME"),
    _option("--job-id", str, "The job's name, the same on all nodes.", "NAME"),
    _option(
        "--max-restarts", int, "Restarts per replica group; progress refills them.", "N",
        default_words="10; with torchrun's spelling of a job 0, not refilled", pet="MAX_RESTARTS",
    ),
    _option(
        "--join-timeout", float, "Seconds to wait for replicas or the lighthouse.", "S",
        name="join_timeout_s", default=defaults.JOIN_TIMEOUT_S,
    ),
    _option(
        "--heartbeat-timeout", float, "Seconds of silence until an agent is lost.", "S",
        name="heartbeat_timeout_s", default=defaults.HEARTBEAT_TIMEOUT_S,
    ),
    _option(
        "--isolation-limit", float, "Seconds without a lighthouse until workers stop committing.",
        "S", name="isolation_limit_s", default=defaults.ISOLATION_LIMIT_S,
    ),
    _option(
        "--lighthouse-timeout", float,
        "Seconds without a lighthouse until a node whose workers wait for it ends (exit code 71).",
        "S", name="lighthouse_timeout_s", default=defaults.LIGHTHOUSE_TIMEOUT_S,
    ),
    _option(
        "--hang-timeout", float,
        "Seconds without a sign of life, or of a step that others wait for, until a worker is "
        "replaced; 0: never.", "S",
        name="hang_timeout_s", default=defaults.HANG_TIMEOUT_S,
    ),
    _option(
        "--hang-factor", float,
        "Replace a worker whose step takes F times its usual time, also without peers; 0: never.",
        "F", default=0.0,
    ),
    _option("--on-corruption", str, "After silent corruption of a replica's parameters: heal it "
            "from the others, if most of three or more agree (one group: all workers resume from "
            "the last step at which they agreed); stop the job; or only report it.",
            "heal|stop|report", default="heal"),
    _option(
        "--health-check", str, "Command that must end with 0 before a failed replica restarts.",
        "CMD", default="",
    ),
    _option(
        "--health-timeout", float, "Seconds that --health-check may take.", "S",
        name="health_timeout_s", default=30.0,
    ),
    _option(
        "--grace --shutdown-timeout", float,
        "Seconds from SIGTERM to SIGKILL, for a script to save.", "S",
        name="grace_s", default=defaults.GRACE_S,
        default_words="10; with torchrun's spelling of a job 30", pet="SHUTDOWN_TIMEOUT",
        variable="TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
    ),
    _option("--preempt-signal", str, "Signal that announces the end of this node, as SIGUSR1.",
            "NAME"),
    _option("--preempt-file", Path, "File that appears before the end of this node; looked for "
            "twice a second.", "PATH"),
    _option("--requeue", bool, "In a step of Slurm: queue the job again after such a notice.",
            default=False),
    _option("--exit-with", str, "Exit code of a node that was drained: the job's, when that ends, "
            "or the node's own, at once.", "job|node", default="node",
            default_words="job in a step of Slurm, else node"),
    _option(
        "--log-dir", Path, "Directory for logs.", "DIR", default=Path("ftrun-logs"), pet="LOG_DIR",
    ),
    _option("--log-keep", str, "Remove finished jobs' logs in that directory beyond a number, an "
            "age or a size.", "20jobs,7d,10GiB", default="", default_words="keep all"),
    _option("--log-max-size", str, "Keep only the newest bytes of each log file.", "SIZE",
            default="", default_words="keep all"),
    _option("--merged-log", bool, "Also write all workers' and ftrun's lines, with times, to "
            "merged.log.", default=False),
    _option(
        "--prefix/--no-prefix", bool, "Begin each line on the terminal with [replica.rank].",
        default_words="on for several workers",
    ),
    _option(
        "--status-line/--no-status-line", bool,
        "On a terminal, show a line with the job's state under the output.", default=True,
    ),
    _option(
        "--json-exit", bool, "Print why the run has ended, as a last line of JSON.", default=False,
    ),
    _option(
        "--state-dir", Path, "Directory for the embedded lighthouse's journal.", "DIR",
        default_words="temporary",
    ),
    _option("--snapshot", Path, "Directory for snapshots of the job's state; the job resumes from "
            "the newest one there.", "DIR", default_words="none are taken"),
    _option("--snapshot-every", str, "Time from one snapshot to the next: 30s, 5m, 1h.", "TIME",
            default="5m"),
    _option("--snapshot-keep", int, "Snapshots that are kept.", "N",
            default=defaults.SNAPSHOTS_KEPT),
    _option("--resume", str, "Resume from the newest snapshot in DIR; none: start over.",
            "DIR|none", default_words="the newest in --snapshot, if there is one"),
    _option("--memory-snapshots", str, "Keep the last step of each worker of a group in memory, so "
            "that a lost worker is replaced alone, and no step is lost.", "auto|off",
            default=defaults.MEMORY_SNAPSHOTS),
    _option("--token-file", Path, "File with the job's token, mode 0600.", "FILE"),
    _option("--tls-cert", Path, "TLS: certificate to present.", "PEM"),
    _option("--tls-key", Path, "TLS: private key of that certificate.", "PEM"),
    _option("--tls-ca", Path, "TLS: CA that signed the peer's certificate.", "PEM"),
    _option("--device", str, "Device to train on.", "auto|cpu|cuda", default="auto"),
    _option("--inject", str, "How ftrun attaches to the script.", "auto|explicit|ddp|off",
             default="auto"),
    _option("--data", str, "Who chooses the samples: the script or ftrun.",
            "as-written|exactly-once", default=defaults.AS_WRITTEN),
    _option("--global-batch", int, "Samples of all replicas in a step, for ftrun.ElasticSampler.",
            "G", default_words="as many as the replicas that train bring"),
    _option("--start", str, "How workers start: forked with torch loaded, or each as a new "
            "interpreter, which imports it.", "auto|exec|fork", default="auto"),
    _option("--torchft", str, "What `import torchft` gives the script.", "auto|ftrun|real",
            default="auto"),
    _option("--stdin", str, "The worker that reads ftrun's standard input.", "REPLICA.RANK",
            default_words="0.0 in a job of one replica, else none"),
    _option("--preload", str, "Modules to import once, before forking workers.", "MODULES",
            default=""),
    _option(
        "--standby", int, "Standby workers, started up to the script's first line.", "K",
        name="standbys", default=0,
    ),
)  # fmt: skip

_TORCHRUN: tuple[Option, ...] = (
    _option("-m --module", bool, "SCRIPT is a module, as in `python -m`.", default=False,
            pet="MODULE"),
    _option("--no-python", bool, "SCRIPT is any command, not Python.", default=False,
            pet="NO_PYTHON"),
    _option("--run-path", bool, "Run SCRIPT as runpy.run_path does.", default=False,
            pet="RUN_PATH"),
    _option(
        "--nproc-per-node", str, "torchrun's name of --workers-per-replica; beside it, the "
        "workers of each node of a group that is larger than a node.",
        "P|auto|cpu|gpu", pet="NPROC_PER_NODE",
    ),
    _option("--nnodes", str, "Nodes of one group, each with --nproc-per-node workers.",
            "N|MIN:MAX", default_words="1", pet="NNODES"),
    _option("--role", str, "The workers' ROLE_NAME.", "NAME", default="default", pet="ROLE"),
    _option("--master-addr", str, "Where the workers meet.", "HOST", pet="MASTER_ADDR"),
    _option("--master-port", int, "Port at which the workers meet.", "PORT",
            default_words="a free one", pet="MASTER_PORT"),
    _option("--local-addr", str, "This node's address for the workers.", "HOST", pet="LOCAL_ADDR"),
    _option("--rdzv-backend", str, "static or c10d.", "NAME", pet="RDZV_BACKEND"),
    _option("--rdzv-endpoint", str, "Where the nodes, or the workers of one, meet.", "HOST:PORT",
            pet="RDZV_ENDPOINT"),
    _option("--rdzv-id", str, "torchrun's name of --job-id.", "NAME", pet="RDZV_ID"),
    _option("--rdzv-conf", str, "How long nodes wait for each other: join_timeout, timeout, "
            "last_call_timeout, read_timeout.", "KEY=VALUE,…", pet="RDZV_CONF"),
    _option("--standalone", bool, "One node by itself, as is the default.", pet="STANDALONE",
            hidden=True),
    _option("--node-rank", int, "This node's place among --nnodes.", "R",
            default_words="by arrival", pet="NODE_RANK"),
    _option("--monitor-interval", float, "Nothing: exits are seen at once.", "S",
            pet="MONITOR_INTERVAL", hidden=True),
    _option("--start-method", str, "Nothing: workers are forked.", "NAME", pet="START_METHOD",
            hidden=True),
    _option("--use-env", bool, "Nothing: ranks are always in the environment.", hidden=True),
    _option("--virtual-local-rank", bool, "LOCAL_RANK is 0, with one visible GPU, in each worker.",
            default=False, pet="VIRTUAL_LOCAL_RANK"),
    _option("--numa-binding", str, "Bind workers to NUMA nodes.",
            "node|socket|exclusive|core-complex"),
    _option("-r --redirects", str, "Keep streams off the terminal, each in a file of its own: 0, "
            "1 (out), 2 (err), 3 (both), or by local rank 0:1,1:3.", "STD", default="0",
            pet="REDIRECTS"),
    _option("-t --tee", str, "As -r, and on the terminal too; overrides -r.", "STD",
            default="0", pet="TEE"),
    _option("--local-ranks-filter", str, "Local ranks whose output the terminal shows.", "0,1,…",
            default="", pet="LOCAL_RANKS_FILTER"),
    _option("--duplicate-stdout-filters", str, "Copy lines with one of these words to a file.",
            "WORD,…", default="", pet="DUPLICATE_STDOUT_FILTERS"),
    _option("--duplicate-stderr-filters", str, "The same for standard error.", "WORD,…",
            default="", pet="DUPLICATE_STDERR_FILTERS"),
    _option("--logs-specs", str, "Only default, torch's own: ftrun writes the logs.", "NAME"),
    _option("--event-log-handler", str, "Where events go: null (nowhere), or console (lines of "
            "JSON on stderr).", "NAME", default="null", pet="EVENT_LOG_HANDLER"),
    _option("--signals-to-handle", str, "Signals that end the job.", "SIGTERM,…",
            default_words="SIGTERM,SIGINT,SIGHUP; with torchrun's spelling of a job SIGQUIT too",
            pet="SIGNALS_TO_HANDLE"),
)  # fmt: skip

OPTIONS: tuple[Option, ...] = _TORCHRUN[:3] + _OWN + _TORCHRUN[3:]
BY_NAME = {option.name: option for option in OPTIONS}
TORCHRUN_NAMES = frozenset(o.name for o in OPTIONS if o.pet) | {
    "logs_specs",
    "numa_binding",
    "use_env",
}
"""Options that torchrun has too."""
JOB_SPELLINGS = (
    "nproc_per_node", "nnodes", "standalone", "node_rank", "master_addr", "master_port",
    "rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf",
)  # fmt: skip
"""Options that define a job in torchrun's terms."""


COMMAND_ONLY: tuple[Option, ...] = (
    _option("--config", Path, "File with options.", "FILE",
            default_words="ftrun.toml, if it is here"),
    _option("--dry-run", bool, "Print the resolved plan and start nothing.", default=False),
    _option("--json", bool, "With --dry-run: the plan as one JSON document.", name="as_json",
            default=False),
)  # fmt: skip
"""Options of the command itself: neither settings, nor variables, nor keys of ftrun.toml."""

SECTIONS: dict[str, tuple[str, ...]] = {
    "Script": ("module", "no_python", "run_path", "inject", "start", "torchft", "preload", "stdin"),
    "Data": ("data", "global_batch"),
    "Size": ("replicas", "workers_per_replica", "nproc_per_node", "min_replicas", "standbys",
             "device"),
    "Several nodes": ("nodes", "topology", "spare_nodes", "lighthouse", "interface", "job_id",
                      "rebalance", "state_dir"),
    "Security": ("token_file", "tls_cert", "tls_key", "tls_ca"),
    "Restarts": ("max_restarts", "on_corruption", "health_check", "health_timeout_s"),
    "Hangs": ("hang_timeout_s", "hang_factor"),
    "Timeouts": ("join_timeout_s", "heartbeat_timeout_s", "isolation_limit_s",
                 "lighthouse_timeout_s"),
    "Stops and preemption": (
        "grace_s", "signals_to_handle", "preempt_signal", "preempt_file", "requeue",
        "exit_with",
    ),
    "Snapshots": ("snapshot", "snapshot_every", "snapshot_keep", "resume", "memory_snapshots"),
    "Terminal": ("prefix", "status_line", "local_ranks_filter", "json_exit"),
    "Logs": ("log_dir", "log_keep", "log_max_size", "merged_log", "redirects", "tee",
             "duplicate_stdout_filters", "duplicate_stderr_filters", "logs_specs",
             "event_log_handler"),
    "As under torchrun": ("nnodes", "node_rank", "standalone", "master_addr", "master_port",
                          "local_addr", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf",
                          "role", "virtual_local_rank", "numa_binding", "start_method",
                          "monitor_interval", "use_env"),
    "The command itself": ("config", "dry_run", "as_json", "help"),
}  # fmt: skip
"""The headings of ``ftrun run --help``: every option is under one, in this order."""


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint for an unknown word: `` Did you mean …?``, or nothing."""
    found = nearest_words(word, known, 1)
    return f" Did you mean {found[0]}?" if found else ""


def nearest_words(word: str, known: Iterable[str], count: int) -> list[str]:
    """The words most similar to ``word``, at most ``count``, most similar first."""
    import difflib

    return difflib.get_close_matches(word, list(known), n=count, cutoff=NEAR)
