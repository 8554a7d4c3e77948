"""An unmodified DistributedDataParallel script heals per step: ``--inject auto`` and ``ddp``.

torch's own classes are patched in place before the script has any name of them, so that modules
that were loaded earlier see the patches too. Nothing else happens until the script makes its first
DistributedDataParallel. Under ``auto`` the patches are removed again if the script turns out to use
ftrun itself. Begin with ``states.py``.

| file | what it patches or keeps |
|---|---|
| one_group.py, memory.py | one replica group, whose workers go on from the agent's memory |
| alike.py | what workers of one group hold alike, so that silent corruption is found |
| in_place.py | the workers of a replica of several, which do so too |
| generations.py, predecessor.py | what both of these keep, and when; beside the state |
| at_fall.py, inherited.py | what a worker leaves if all begin again, and how that is claimed |
| world/ | ``torch.distributed``: the script's process groups, which follow the quorums |
| mates.py | the workers of one replica, where these are several |
| wrapping.py | DistributedDataParallel |
| models.py | what is trained on all replicas, and the modules that are not |
| sharding.py | FSDP2's ``fully_shard``, within replicas of several workers |
| stepping.py | optimizers, schedulers, GradScaler |
| loaders.py, cursor.py | DataLoader iterators; which of their batches a step trains on |
| exactly_once.py | the loader of training batches, under ``--data exactly-once`` |
| around.py | loops that cannot be set, and stand elsewhere than at the peers |
| passing.py | the way of a newcomer past loops that its peers have left |
| inside.py | steps that begin where peers wait for what only a newcomer gives |
| headers.py, counting.py | the loops of the script that can be set where they stand |
| frames.py | the script's frames: where it stands |
| place.py, noting.py | a replica's place in the script, as it heals; what it is made of |
| standing.py, sparing.py | the last place, and the steps since; which steps have one |
| peers.py, moving.py | where a replica's peers stand; its move to their place |
| values/ | the script's values outside its modules: counters, histories, tensors |
| carried.py | the objects of the script whose state heals |
| ending.py | the state for a replica that has died at the end of the script |
| batches.py | memory snapshots: a replacement's batches are those of its predecessor |
| trial.py, allowed.py, digests.py | ``ftrun check``: a worker's part in a trial |
| marking.py | what replicas compare of a step, so that nothing diverges silently |
| files.py, rewriting.py | the script's files: none is left half written, or emptied at a restart |
| appended.py | memory snapshots: what is appended to files is in them once |
| printed.py, sent.py | memory snapshots: so is what a repeated step prints |
| repeated.py | what a set-up prints is there once, though a newcomer repeats it |
| directories.py | a run's own directory stays that of the predecessor; what its set-up has found |
| checkpoints.py | ``torch.distributed.checkpoint``: one replica writes for all |
| told.py, charge.py | notices to the user; what ftrun takes charge of |
| attaching.py | under ``auto``: which form the script turns out to have |
| variables.py | what an open script does before its form is known: reads, and names of ftrun's |
| refusals.py | refusals of scripts that cannot be carried |
| randomness.py | random numbers: what a worker leaves, and a newcomer goes on with |
| patches.py | the patches, and their removal |
| loop.py, states.py | boundaries, joins and the end; the states of a replica |
| script.py | all rooms of one script, connected |

Not here: the Manager (training/), the protocol (core/).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.in_place import InPlace
    from ftrun.inject.zero_edit.loop import Loop
    from ftrun.inject.zero_edit.patches import Patches
    from ftrun.inject.zero_edit.variables import Variables
    from ftrun.inject.zero_edit.world.opening import Opening
    from ftrun.training.context import WorkerContext


def install(
    here: WorkerContext, variables: Variables | None, keeper: InPlace | None = None
) -> Loop:
    """Patch torch; call it once, before the script has any name of it.

    Args:
        here: this worker.
        variables: of both forms, if the script may turn out to be explicit; None: ftrun carries it.
        keeper: of this worker; None: nobody could take its place.

    Raises:
        Refused: the installed torch lacks names that ftrun needs.
    """
    import torch

    from ftrun.checkpoint import meshes
    from ftrun.inject import torch_private
    from ftrun.inject.zero_edit import counting, refusals, sharding
    from ftrun.inject.zero_edit.attaching import Attaching, Stage
    from ftrun.inject.zero_edit.checkpoints import Checkpoints
    from ftrun.inject.zero_edit.loop import Loop
    from ftrun.inject.zero_edit.patches import Patches
    from ftrun.inject.zero_edit.values.kinds import has_its_rank
    from ftrun.inject.zero_edit.world.opening import Opening
    from ftrun.inject.zero_edit.wrapping import Wrapping

    if variables is not None:
        refusals.may_begin_again(here)
    if lacking := torch_private.missing():
        refusals.refuse(
            f"torch {torch.__version__} has no {', '.join(lacking)}, which ftrun needs to heal a "
            "script step by step. Use a version of torch that ftrun names in its requirements"
        )
    if keeper is not None:
        has_its_rank()
    loop, patches = Loop(here, keeper=keeper), Patches()
    script = loop.script
    script.models.install(patches)
    if script.predecessor is not None:
        script.predecessor.install(patches)
    Wrapping(script.models).install()
    if script.mates.are_several:
        meshes.count_from(script.mates.first)
        sharding.install(script.models)
    elif variables is None and here.replicas > 1:
        sharding.refuse_all(patches)

    def undo() -> None:
        patches.undo()
        script.repeated.ends()
        counting.RANGES.is_on = False
        meshes.count_from(0)

    def leave() -> None:
        undo()
        script.models.leave()
        if attaching is not None:
            attaching.stage = Stage.MANAGED

    attaching = None if variables is None else Attaching(script, variables, undo)
    opening = Opening(script, leave)
    if attaching is not None and variables is not None:
        script.models.makes_ddp = attaching.makes_ddp
        loop.on_raise = attaching.raised
        if script.mates.are_several:
            opening.begins = variables.on_read = attaching.asks_for_world
    _install_rooms(loop, opening, patches)
    Checkpoints(script).install(patches)
    if attaching is not None:
        attaching.install()
    return loop


def _install_rooms(loop: Loop, opening: Opening, patches: Patches) -> None:
    """Patch what is alike whoever keeps the script's state."""
    import torch
    from torch.utils.data import DataLoader

    from ftrun.inject.zero_edit import counting, files, loaders
    from ftrun.inject.zero_edit.world.objects import Objects

    script = loop.script
    script.stepping.install(patches)
    loaders.OPEN.before_draw, loaders.OPEN.ended = loop.before_draw, loop.loader_ended
    loaders.OPEN.own = lambda: script.randomness.own
    loaders.install(patches, script.exactly_once.claim)
    counting.RANGES.before_turn, counting.RANGES.ended = loop.before_turn, loop.loop_ended
    counting.install()
    opening.install(patches)
    Objects().install(patches)
    files.install(patches, script.drafts)
    script.rewriting.install(patches)
    script.directories.install(patches)
    if script.trial is not None:
        patches.after(DataLoader, "__init__", script.trial.watch_loader)
        patches.around(torch.autograd, "backward", script.trial.differentiates)
        script.trial.watch_batches(loaders.OPEN)


def watch(here: WorkerContext) -> None:
    """Make sure that a script that has begun again as explicit makes a Manager."""
    from ftrun.inject.zero_edit import refusals, sharding
    from ftrun.inject.zero_edit.attaching import Attaching, Stage
    from ftrun.inject.zero_edit.loop import Loop
    from ftrun.inject.zero_edit.variables import Variables
    from ftrun.inject.zero_edit.wrapping import Wrapping

    loop = Loop(here)
    script = loop.script
    refusals.may_begin_again(here)
    attaching = Attaching(script, Variables({}, {}), lambda: None)
    attaching.stage = Stage.EXPLICIT
    script.models.makes_ddp = attaching.makes_ddp
    Wrapping(script.models).install()
    if script.mates.are_several:
        sharding.install(script.models)
    attaching.install()
