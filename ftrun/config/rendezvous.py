"""Where the nodes of torchrun's command meet, and a node's part of their group.

Not here: the meaning of torchrun's other options (torchrun.py), the decisions about joining nodes
(core/teams/), the meeting itself (agent/team/).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from ftrun.base.addresses import join_address
from ftrun.base.errors import UserError
from ftrun.config.layers import Stated

STATIC, C10D = "static", "c10d"
ETCD = ("etcd", "etcd-v2")
PORTS = {STATIC: 29500, C10D: 29400, **dict.fromkeys(ETCD, 2379)}
"""torchrun's defaults."""
JOIN_TIMEOUT_S = 600.0
LAST_CALL_S = 30.0
READ_TIMEOUT_S = 60.0
HERE = ("localhost", "127.0.0.1")


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """``least`` to ``most`` nodes meet at ``host``:``port``, which one of them serves.

    Attributes:
        rank: this node's, if stated.
        is_static: node 0 serves, and no other.
        stated_by: the option that names the place.
        join_timeout_s: how long to wait for ``least`` nodes.
        last_call_s: how long to wait for more nodes after that.
        connect_timeout_s: how long to wait for the serving node.
        run_id: distinguishes jobs at the same place.
        register: the etcd that names the serving node, in the form of --state; "": the place is one
            of the nodes.
    """

    least: int
    most: int
    rank: int | None
    host: str
    port: int
    is_static: bool
    stated_by: str
    join_timeout_s: float = JOIN_TIMEOUT_S
    last_call_s: float = LAST_CALL_S
    connect_timeout_s: float = READ_TIMEOUT_S
    run_id: str = "none"
    register: str = ""

    @property
    def size(self) -> str:
        """The number of nodes in the form of --nnodes."""
        return str(self.most) if self.least == self.most else f"{self.least}:{self.most}"


@dataclass(frozen=True, slots=True)
class Span:
    """This node's part of a replica group on several nodes.

    ``number``: of ``nodes``. ``first``: the group rank of its first worker, of ``workers`` here.
    ``master_addr``: where the group's store is.
    """

    number: int
    nodes: int
    first: int
    workers: int
    master_addr: str

    @property
    def ranks(self) -> range:
        """The group ranks of this node's workers."""
        return range(self.first, self.first + self.workers)


def parse_nodes(text: str) -> tuple[int, int]:
    """``N`` or ``MIN:MAX``.

    Raises:
        UserError: it is neither.
    """
    low, colon, high = text.partition(":")
    parts = (low, high if colon else low)
    if not all(part.isdecimal() for part in parts) or not 1 <= int(parts[0]) <= int(parts[1]):
        raise UserError(f"--nnodes {text!r}: give N, or MIN:MAX. Nothing was started.")
    return int(parts[0]), int(parts[1])


def read_rendezvous(
    stated: Mapping[str, Stated], conf: Mapping[str, str], address: str | None, port: int | None
) -> Rendezvous | None:
    """Where this node meets the others; None: it is alone, or the job is in ftrun's own terms.

    ``conf``: of --rdzv-conf. ``address``, ``port``: from --rdzv-endpoint, or --master-addr and
    --master-port.

    Raises:
        UserError: there are other nodes, but no place to meet.
    """
    values = {name: one.value for name, one in stated.items()}
    if values["nnodes"] is None or values["standalone"] or values["nodes"] > 1:
        return None
    least, most = parse_nodes(values["nnodes"])
    if most == 1 or (least == 1 and address in HERE and not port):
        return None
    backend = values["rdzv_backend"] or (C10D if least < most else STATIC)
    if address is None:
        raise UserError(
            f"--nnodes {values['nnodes']}: where do the nodes meet? Nothing was started. Give "
            "--rdzv-endpoint HOST:PORT on every node, HOST being one of them. For replica groups "
            f"that heal from each other: ftrun --nodes {most} --replicas N --lighthouse HOST:PORT "
            "(docs/SEVERAL_NODES.md)."
        )
    is_static = backend == STATIC
    run_id = values["rdzv_id"] or values["job_id"] or "none"
    register = _register(conf, address, port or PORTS[backend], run_id) if backend in ETCD else ""
    patience_s = JOIN_TIMEOUT_S if is_static else READ_TIMEOUT_S
    named = ("rdzv_endpoint", "master_addr")
    return Rendezvous(
        least,
        most,
        values["node_rank"],
        address,
        port or PORTS[backend],
        is_static,
        next((stated[name].source for name in named if stated[name].value), "--rdzv-endpoint"),
        _seconds(conf, ("join_timeout", "timeout"), JOIN_TIMEOUT_S),
        _seconds(conf, ("last_call_timeout",), LAST_CALL_S),
        _seconds(conf, ("timeout",) if is_static else ("read_timeout",), patience_s),
        run_id,
        register,
    )


def _register(conf: Mapping[str, str], host: str, port: int, run_id: str) -> str:
    """torchrun's options for an etcd in the form of ``--state``."""
    files = {name: conf[name] for name in ("cacert", "cert", "key") if name in conf}
    if conf.get("protocol", "http") != ("https" if files else "http"):
        raise UserError(
            "--rdzv-conf: protocol=https and cacert=FILE belong together, with cert=FILE,key=FILE "
            "where etcd wants to see a certificate. Nothing was started."
        )
    query = f"?{urlencode(files)}" if files else ""
    return f"etcd://{join_address(host, port)}/rendezvous-{quote(run_id, safe='')}{query}"


def _seconds(conf: Mapping[str, str], keys: tuple[str, ...], default_s: float) -> float:
    text = next((conf[key] for key in keys if key in conf), None)
    try:
        value = default_s if text is None else float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 7 * 86400:
        raise UserError(
            f"--rdzv-conf {keys[0]}={text}: give seconds above 0 and up to a week. Nothing was "
            "started."
        )
    return value
