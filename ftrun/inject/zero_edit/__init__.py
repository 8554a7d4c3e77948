"""An unmodified DistributedDataParallel script heals per step: ``--inject ddp``.

torch's own classes are patched in place before the script runs, so that modules that were loaded
earlier see the patches too. Nothing else happens until the script makes its first
DistributedDataParallel. Begin with ``loop.py``.

| file | what it patches or keeps |
|---|---|
| world.py | ``torch.distributed``: one world of all replicas, whose collectives are exchanges |
| models.py | DistributedDataParallel; the modules that no DDP wraps |
| stepping.py | optimizers, schedulers, GradScaler |
| loaders.py | DataLoader iterators, with their cursor |
| exactly_once.py | the loader of training batches, under ``--data exactly-once`` |
| counting.py | ``range`` and ``enumerate`` of the script's modules, which can be set |
| frames.py | the script's frames: where it stands, and its counters |
| place.py | a replica's place in the script, as it heals |
| carried.py | all state that heals |
| files.py | ``torch.save`` of one replica for all |
| told.py | what is said, and what is refused |
| loop.py | boundaries, joins and the end |

Not here: the Manager (training/), the protocol (core/).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.loop import Loop
    from ftrun.training.context import WorkerContext


def install(here: WorkerContext) -> Loop:
    """Patch torch; call it once, before the script runs."""
    from ftrun.inject.zero_edit import counting, files, loaders, world
    from ftrun.inject.zero_edit.loop import Loop

    loop = Loop(here)
    loop.models.install()
    loop.stepping.install()
    loaders.Draws.before = loop.before_draw
    loaders.install(loop.exactly_once.claim)
    counting.install()
    world.install(here, loop.exchange)
    files.install()
    return loop
