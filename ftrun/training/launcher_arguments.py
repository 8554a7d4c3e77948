"""Arguments of the Manager that exist so that torchft's scripts run: the launcher decides these.

One that contradicts the launcher is refused. One that would have no effect is shown once, because
its author expects one. Not here: the arguments that the Manager keeps (manager.py).
"""

from __future__ import annotations

import logging

from ftrun.errors import UserError
from ftrun.training.context import WorkerContext

log = logging.getLogger(__name__)


def refuse_contradictions(context: WorkerContext, rank: int | None, world_size: int | None) -> None:
    """Refuse a worker's own idea of its place in the replica group, unless it is the launcher's.

    Raises:
        UserError: ``rank`` or ``world_size`` is another one.
    """
    places = (
        ("rank", rank, context.group_rank),
        ("world_size", world_size, context.workers_per_replica),
    )
    for name, given, own in places:
        if given is not None and given != own:
            raise UserError(
                f"Manager({name}={given}): this worker's is {own}, because a replica group looks "
                f"like a whole job to its script. Leave {name} out, or give "
                f"int(os.environ[{name.upper()!r}])."
            )


def show_unused(context: WorkerContext, **given: object) -> None:
    """Show which of these arguments are given and have no effect; ``None`` and 0: not given."""
    names = [name for name, value in given.items() if value is not None and value != 0]
    if names and context.group_rank == 0:
        log.warning(
            "Manager: %s: no effect under ftrun, because the launcher decides about addresses, "
            "names and heartbeats, and states heal by ftrun's own transfer.",
            ", ".join(names),
        )
