"""Which runs are connected as an engine's tasks, and by which reader. Pure.

Not here: engines without a reader (config/tasks.py), a node's work (keeper.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from ftrun.base.errors import UserError
from ftrun.config.layers import Stated
from ftrun.engines.place import Place
from ftrun.engines.slurm import read_slurm

READERS = (read_slurm,)
SETTLED_BY = (
    "lighthouse", "standalone", "nnodes", "node_rank", "rdzv_endpoint", "master_addr"
)  # fmt: skip


def place_of_task(stated: Mapping[str, Stated], environ: Mapping[str, str]) -> Place | None:
    """This task's place; None: an ordinary run, or an engine that is not known.

    Only jobs in ftrun's own terms are connected, because torchrun's options state where the nodes
    meet.

    Raises:
        UserError: requeueing was requested, but no engine supports it here.
    """
    if not stated["replicas"].is_given or is_settled(stated):
        return None
    place = read_place(environ)
    if place is None and stated["requeue"].value:
        raise UserError(
            "--requeue is for a job in a step of Slurm (srun ftrun --replicas N …), and this is "
            "none. Nothing was started. Leave it out."
        )
    return place


def read_place(environ: Mapping[str, str]) -> Place | None:
    """This process's place among those of an engine that is known; None: there is none."""
    return next(filter(None, (read(environ) for read in READERS)), None)


def is_settled(stated: Mapping[str, Stated]) -> bool:
    """Whether options state where the nodes meet, or that each node is a separate job."""
    is_alone = stated["nodes"].is_given and stated["nodes"].value == 1
    return is_alone or any(stated[name].is_given for name in SETTLED_BY)
