"""Which runs an engine's tasks bring together, and by which reader. Pure.

Not here: engines without a reader (config/tasks.py), what a node does (keeper.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from ftrun.config.layers import Stated
from ftrun.engines.place import Place
from ftrun.engines.slurm import read_slurm

READERS = (read_slurm,)
SETTLED_BY = (
    "lighthouse", "standalone", "nnodes", "node_rank", "rdzv_endpoint", "master_addr"
)  # fmt: skip
"""Options that tell where the nodes meet, or that there is one."""


def place_of_task(stated: Mapping[str, Stated], environ: Mapping[str, str]) -> Place | None:
    """This task's place; None: an ordinary run, or an engine that is not known.

    Only a job in ftrun's own words is brought together, because a replica group does not span
    nodes.
    """
    if not stated["replicas"].is_given or any(stated[name].is_given for name in SETTLED_BY):
        return None
    if stated["nodes"].is_given and stated["nodes"].value == 1:
        return None
    return next(filter(None, (read(environ) for read in READERS)), None)
