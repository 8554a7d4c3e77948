"""The form in which a script starts, and the settings of a run that restarts in another form.

Not here: why it does (core/forms.py, inject/zero_edit/), other settings (settings.py).
"""

from __future__ import annotations

from dataclasses import replace

from ftrun.base.defaults import AS_WRITTEN
from ftrun.config.layers import DEFAULT
from ftrun.config.script import TargetKind
from ftrun.config.settings import RunSettings
from ftrun.config.torchrun import MAX_RESTARTS
from ftrun.core.forms import AUTO, MEMORY, WATCHED, Form


def injection(settings: RunSettings) -> str:
    """``--inject`` as it applies to this run: ``auto`` only if there is something to detect.

    A command, or a script under another interpreter, is out of reach. So are functions of
    ``ftrun.launch``, whose return values come from each replica. A single replica has nothing to
    heal from, but an unmodified script's state can be in snapshots. On several nodes a script that
    cannot be carried could not restart in another form, so it runs without snapshots.
    """
    if settings.replicas == 1 and not why_no_memory_snapshots(settings):
        return MEMORY
    if settings.inject != AUTO:
        return settings.inject
    script = settings.script.as_started()
    is_script = script.kind in (TargetKind.FILE, TargetKind.MODULE, TargetKind.PATH)
    has_snapshots = settings.snapshot_path is not None and settings.nodes == 1
    has_snapshots &= settings.rendezvous is None
    is_open = settings.replicas > 1 or has_snapshots
    return AUTO if is_script and is_open else Form.EXPLICIT.value


def may_carry(settings: RunSettings) -> bool:
    """Whether this run may turn out to be an unmodified script of several replicas."""
    return settings.replicas > 1 and injection(settings) in (AUTO, Form.DDP.value)


def why_no_memory_snapshots(settings: RunSettings) -> str:
    """Why this run takes no memory snapshots; "": it takes them.

    --snapshot of a single group is written from them, so it requests them too. Unless requested,
    they are off on machines with GPUs and for torchrun's commands. A script with a Manager, of
    several replicas, must be able to compute a step again from its state. By requesting them, the
    user states that it can.
    """
    is_stated = settings.sources.get("memory_snapshots", DEFAULT) != DEFAULT
    is_asked = is_stated or settings.snapshot_path is not None
    several = settings.replicas > 1
    has_gpus = sees_gpus(settings)
    script = settings.script.as_started()
    one = settings.rendezvous
    reasons = {
        "--memory-snapshots is off": settings.memory_snapshots == "off",
        "torchrun's options keep torchrun's restarts": settings.as_torchrun and not is_asked,
        f"{settings.replicas} replica groups heal from each other": several
        and not (is_stated or settings.workers_per_replica > 1),
        "several replica groups have them only without --snapshot and on one node so far": several
        and (settings.snapshot_path is not None or settings.nodes > 1),
        "where ftrun chooses the samples, no step can be repeated so far": several
        and (settings.data != AS_WRITTEN or settings.global_batch is not None),
        "one worker has no peers to continue with": settings.workers_per_replica < 2
        and not several
        and one is None,
        "a group that a lighthouse places is on one node only so far": bool(settings.lighthouse),
        "its group may change its size": one is not None and one.least < one.most,
        f"--inject {settings.inject} leaves the script alone": settings.inject != AUTO
        and not (several and settings.inject != "off"),
        "a script with a Manager must compute a step again from its state": several
        and not (is_stated or settings.inject in (AUTO, Form.DDP.value)),
        "on GPUs it is untried so far, and only if you ask for it": has_gpus and not is_asked,
        "it is for Python scripts that ftrun itself runs": script.kind
        not in (TargetKind.FILE, TargetKind.MODULE, TargetKind.PATH),
    }
    return next((why for why, holds in reasons.items() if holds), "")


def leaves_state(settings: RunSettings) -> bool:
    """Whether workers leave their state in their launcher's memory where all replicas are about to
    begin again together: where no memory snapshots hold it, and this launcher alone decides."""
    is_alone = settings.lighthouse is None and settings.nodes == 1 and settings.replicas > 1
    return is_alone and injection(settings) == AUTO and bool(why_no_memory_snapshots(settings))


def sees_gpus(settings: RunSettings) -> bool:
    """Whether a script of this run may train on GPUs."""
    return settings.device == "cuda" or (settings.gpus > 0 and settings.device == "auto")


def misses_memory_snapshots(settings: RunSettings) -> str:
    """Why groups of several workers, which have them by default, have none; "": they have them, or
    do not have them by default."""
    are_several = settings.workers_per_replica > 1
    is_left = settings.memory_snapshots == "off" or settings.as_torchrun or settings.inject != AUTO
    return why_no_memory_snapshots(settings) if are_several and not is_left else ""


def would_have_helped(settings: RunSettings) -> str:
    """For a worker's death in a run with torchrun's options, without memory snapshots: what they
    could have saved; "": nothing, or they are off because the user says so."""
    stated = {**settings.sources, "memory_snapshots": "--memory-snapshots"}
    if not settings.as_torchrun or not why_no_memory_snapshots(settings):
        return ""
    if why_no_memory_snapshots(replace(settings, sources=stated)):
        return ""
    more = f" and --max-restarts {MAX_RESTARTS}" if not settings.max_restarts else ""
    return (
        f"If it trains, --memory-snapshots auto{more} may replace such a worker alone, and no step "
        "is lost (docs/MEMORY_SNAPSHOTS.md). "
    )


def without_effect(settings: RunSettings) -> list[str]:
    """A line for each stated option that has no effect in this run."""
    source = settings.sources.get("on_corruption", DEFAULT)
    if settings.replicas > 1 or source.startswith(DEFAULT):
        return []
    why = why_no_memory_snapshots(settings)
    if why:
        why = f"without memory snapshots the workers of one group are not compared ({why})"
    return [f"{source} has no effect: {why}."] if why else []


def standbys_of(settings: RunSettings) -> int:
    """The stated number of standbys; otherwise one, if a single worker may be replaced.

    On several nodes all workers are replaced, so the default is the number on this node.
    """
    is_stated = settings.sources.get("standbys", DEFAULT) != DEFAULT
    takes_one = not (is_stated or why_no_memory_snapshots(settings))
    if settings.rendezvous is not None:
        wanted = len(settings.ranks_here) if takes_one else settings.standbys
        return min(wanted, len(settings.ranks_here))
    return max(settings.standbys, int(takes_one))


def in_form(settings: RunSettings, form: Form) -> RunSettings:
    """The settings of the same run in another form.

    ``ONE_WORLD``: as with ``--replicas 1``, all workers are in one replica, with memory snapshots
    if such a group would have them. It neither reads nor writes snapshots of replicas.
    """
    if form is Form.EXPLICIT:
        return replace(settings, inject=WATCHED)
    if form is Form.DDP:
        return replace(settings, inject=form.value)
    stdin, workers = settings.stdin, settings.workers_per_replica
    if stdin is not None:
        replica, _, rank = stdin.partition(".")
        stdin = f"0.{int(replica) * workers + int(rank or 0)}"
    world = replace(
        settings,
        replicas=1,
        min_replicas=1,
        workers_per_replica=settings.replicas * workers,
        stdin=stdin,
        snapshot=None,
        resume=None,
    )
    kept = replace(world, inject=AUTO)
    return replace(world, inject=Form.EXPLICIT.value) if why_no_memory_snapshots(kept) else kept
