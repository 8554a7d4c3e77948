"""Whether this ``ftrun`` is one of several that an engine has started alike.

Slurm, MPI and an Indexed Job of Kubernetes start one command in several places. Without the address
of a lighthouse each of them would be a whole job: N jobs that write the same checkpoints. To start
such jobs on purpose, give ``--nodes 1``, ``--nnodes 1`` or ``--standalone``.

Not here: jobs on several nodes themselves, which ``--nodes`` and ``--lighthouse`` define, or an
engine that ftrun can read (engines/).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ftrun.base.errors import UserError
from ftrun.config.layers import Stated


class Sign(NamedTuple):
    """Variables of an engine. ``size``: the number of tasks; "": not known.

    ``words``: with {size}, and {own} for this task's number.
    """

    own: str
    size: str
    words: str


SIGNS = (
    Sign("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "task {own} of {size} of a Slurm step"),
    Sign("SLURM_NODEID", "SLURM_STEP_NUM_NODES", "node {own} of {size} of a Slurm step"),
    Sign("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "rank {own} of {size} of mpirun"),
    Sign("PMI_RANK", "PMI_SIZE", "rank {own} of {size} of an MPI launcher"),
    Sign("PET_NODE_RANK", "PET_NNODES", "node {own} of {size} (PET_NNODES)"),
    Sign("LWS_WORKER_INDEX", "LWS_GROUP_SIZE", "pod {own} of {size} of a LeaderWorkerSet"),
    Sign("JOB_COMPLETION_INDEX", "", "pod {own} of an Indexed Job of Kubernetes"),
)
"""A batch script has Slurm's SLURM_NTASKS but no SLURM_STEP_*, because it runs only once."""


def check_alone(stated: Mapping[str, Stated], environ: Mapping[str, str]) -> None:
    """Check that this command was not started several times as a whole job.

    Raises:
        UserError: an engine's variables show several tasks, and no option states where they meet.
    """
    if stated["lighthouse"].is_given or stated["nodes"].is_given or stated["standalone"].value:
        return
    if stated["nnodes"].is_given:
        return  # rendezvous.py has their meeting place
    place = place_of(environ)
    if place:
        raise UserError(
            f"This ftrun is {place}, and each of these would be a whole job that writes the same "
            "files. Nothing was started. For one job under Slurm: --replicas N, with one task a "
            "node (docs/SLURM.md). Kubernetes: docs/KUBERNETES.md. Elsewhere: `ftrun lighthouse` "
            "on one node, and --nodes N --lighthouse HOST:PORT --token-file FILE here "
            "(docs/SEVERAL_NODES.md). One world of all, as under torchrun: --nnodes N "
            "--rdzv-endpoint HOST:PORT. If each is to be a job of its own: --nodes 1."
        )


def place_of(environ: Mapping[str, str]) -> str:
    """Which of several tasks this one is; "": the variables show no other task."""
    for sign in SIGNS:
        own, size = environ.get(sign.own, ""), environ.get(sign.size, "")
        most = size.rpartition(":")[2]
        is_one = own != "" if not sign.size else most.isdecimal() and int(most) > 1
        if is_one:
            return sign.words.format(own=own or "?", size=size)
    return ""
