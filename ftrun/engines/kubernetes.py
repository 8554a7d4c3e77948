"""Default options from the variables of a pod that is one of several alike in Kubernetes. Pure.

| started by | number of nodes | this node's number | the first node's name |
|---|---|---|---|
| Kubeflow Trainer | PET_NNODES | PET_NODE_RANK | PET_MASTER_ADDR |
| LeaderWorkerSet | LWS_GROUP_SIZE | LWS_WORKER_INDEX | LWS_LEADER_ADDRESS |
| Indexed Job, also of a JobSet | not available | JOB_COMPLETION_INDEX | not available |

Users cannot remove variables that a controller injects. So these are only defaults, for options in
ftrun's own terms (``--replicas``) that are not stated. The lighthouse is expected on the first
node.

Not here: the lighthouse itself and the credentials, which the manifests provide; a pod whose
options state everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ftrun.base.addresses import join_address
from ftrun.base.defaults import LIGHTHOUSE_PORT
from ftrun.config.layers import Stated, as_variables

TRAINER, LWS, INDEXED = "Kubeflow Trainer", "LeaderWorkerSet", "an Indexed Job"
HEEDED = frozenset(
    {"PET_NNODES", "PET_NODE_RANK", "PET_NPROC_PER_NODE", "PET_MASTER_ADDR", "PET_MASTER_PORT"}
)
"""torchrun's variables that are read here. No worker uses the port that they name."""


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod. ``node``: this pod's number.

    ``nodes``: 0: not given. ``workers``: of a node, "" if not given. ``first``: the first pod's
    name.
    """

    engine: str
    node: int
    nodes: int = 0
    workers: str = ""
    first: str = ""

    def variables(self, stated: Mapping[str, Stated], gpus: int) -> dict[str, str]:
        """The variables of options that are not stated. ``gpus``: of this node."""
        nodes = self.nodes if self.nodes > 1 else 0
        own = stated["workers_per_replica"].is_given or stated["nproc_per_node"].is_given
        gpus = 0 if stated["device"].value == "cpu" else gpus
        told, group = _count(self.workers, gpus), stated["workers_per_replica"].value
        here = 0 if own else told
        replicas = _most(str(stated["replicas"].value))
        spans = 0 < (told or gpus) < group and group % (told or gpus) == 0
        values = {
            "nodes": str(nodes or ""),
            "nproc_per_node": str(told or "") if spans else "",
            "node_rank": str(self.node) if spans else "",
            "lighthouse": join_address(self.first, LIGHTHOUSE_PORT) if nodes and self.first else "",
            "workers_per_replica": str(_share(here, replicas, max(self.nodes, 1)) or ""),
        }
        return as_variables(values, stated)

    def notice(self, variables: Mapping[str, str]) -> str:
        """A line about the values taken from the pod's variables; "": none."""
        found = {name.removeprefix("FTRUN_").lower(): text for name, text in variables.items()}
        options = " ".join(f"--{name.replace('_', '-')} {text}" for name, text in found.items())
        if not options:
            return ""
        return f"{self.engine} has started this pod as node {self.node}, so: {options}"


def read_kubernetes(stated: Mapping[str, Stated], environ: Mapping[str, str]) -> Pod | None:
    """The pod of a job in ftrun's own terms; None: there are no variables to use."""
    is_alone = stated["nodes"].is_given and stated["nodes"].value == 1
    if not stated["replicas"].is_given or stated["standalone"].value or is_alone:
        return None
    if environ.get("PET_NNODES"):
        return Pod(
            TRAINER,
            _number(environ, "PET_NODE_RANK"),
            _most(environ["PET_NNODES"]),
            environ.get("PET_NPROC_PER_NODE", ""),
            environ.get("PET_MASTER_ADDR", ""),
        )
    if environ.get("LWS_GROUP_SIZE"):
        node, nodes = _number(environ, "LWS_WORKER_INDEX"), _number(environ, "LWS_GROUP_SIZE")
        return Pod(LWS, node, nodes, first=environ.get("LWS_LEADER_ADDRESS", ""))
    if environ.get("JOB_COMPLETION_INDEX"):
        return Pod(INDEXED, _number(environ, "JOB_COMPLETION_INDEX"))
    return None


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    return int(text) if text.isdecimal() else 0


def _most(text: str) -> int:
    """MAX of MIN:MAX; 0: it has another form, which is refused elsewhere."""
    high = text.rpartition(":")[2]
    return int(high) if high.isdecimal() else 0


def _count(workers: str, gpus: int) -> int:
    """A node's workers; 0: not given. The number of CPUs is not used as a default."""
    return int(workers) if workers.isdecimal() else gpus if workers in ("auto", "gpu") else 0


def _share(workers: int, replicas: int, nodes: int) -> int:
    """Workers per replica, if a node's workers are divided among the replicas that run on it."""
    here = -(-replicas // nodes) if replicas else 1
    return max(workers // here, 1) if workers else 0
