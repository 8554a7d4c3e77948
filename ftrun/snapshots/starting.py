"""Snapshots at a run's start: refuses what cannot work, and reports where the job begins.

The workers find the newest snapshot by themselves, also if all of them die later
(training/resuming.py). Here it is read in full once, before anything starts, so that a damaged
snapshot is reported. If the job has memory snapshots of one group, the manifest is enough here,
because the agent reads the snapshot before any worker starts (agent/group_disk.py).
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from ftrun.base import clock
from ftrun.base.errors import UserError
from ftrun.base.words import age, amount
from ftrun.config.forms import injection
from ftrun.config.settings import RunSettings, check_writable
from ftrun.core.forms import MEMORY, WATCHED, Form
from ftrun.snapshots import directory, manifest
from ftrun.snapshots.directory import Found
from ftrun.snapshots.manifest import Damaged

TRIES_MAX = 100
"""More than a job keeps. A running job may prune a snapshot while it is read."""


def prepare(settings: RunSettings) -> list[str]:
    """Check the directories of ``--snapshot`` and ``--resume``. Returns lines for people.

    Raises:
        UserError: a directory cannot be written or read, or its snapshots belong to another job.
    """
    if settings.snapshot_path is None:
        return []
    try:
        _require_some(settings, settings.snapshot_path)
        check_writable(settings.snapshot_path, "--snapshot")
        return _prepare(settings, settings.snapshot_path)
    except OSError as error:
        raise UserError(
            f"the snapshots in {error.filename or settings.snapshot_path} cannot be read or moved "
            f"({error.strerror}). Nothing was started."
        ) from error


def _prepare(settings: RunSettings, here: Path) -> list[str]:
    every = (
        f"One is written to {here} every {settings.snapshot_every}, {settings.snapshot_keep} kept"
    )
    if settings.begins_anew:
        has_others = settings.lighthouse is not None or settings.rendezvous is not None
        if has_others and directory.snapshots(here):
            raise UserError(
                f"--resume none: {here} holds snapshots, and this node cannot tell whether the "
                "job on the other nodes has taken them. Nothing was started. Move them away "
                "yourself, or give an empty directory; leave --resume out on a node that is late."
            )
        aside = directory.set_aside(here)
        moved = f" The snapshots that were there are in {aside}." if aside is not None else ""
        return [f"--resume none: the job starts over.{moved} {every}."]
    lines: list[str] = []
    for where in dict.fromkeys(filter(None, (here, settings.resume_path))):
        found = _newest_verified(where, lines)
        if found is not None:
            _check_origin(found, settings)
            return [*lines, f"{_words(found)} {every}. --resume none would start over."]
    if lines:
        raise UserError(
            f"{' '.join(lines)} No complete snapshot is left. Nothing was started. Start over with "
            "--resume none, or give another directory."
        )
    return [f"No snapshot is in {here} yet, so the job starts at step 0. {every}."]


def _require_some(settings: RunSettings, here: Path) -> None:
    there = settings.resume_path
    if there is not None and not (directory.snapshots(here) or directory.snapshots(there)):
        raise UserError(
            f"--resume {there}: there is no snapshot. Nothing was started. Give the directory that "
            "--snapshot named, which has entries like step-000000004211."
        )


def _newest_verified(where: Path, lines: list[str]) -> Found | None:
    """The newest snapshot whose bytes are right. Damaged ones are renamed and reported."""
    below: int | None = None
    for _ in range(TRIES_MAX):
        try:
            looked = directory.look(where, below)
        except Damaged as why:
            raise UserError(
                f"the newest snapshot in {where} cannot be taken: {why}. Nothing was started. "
                "Update ftrun, or start over with --resume none."
            ) from why
        bad = list(looked.passed_over)
        found = looked.newest
        if found is not None:
            try:
                if found.manifest.origin.inject != MEMORY:
                    manifest.verify(found.path, found.manifest)
            except Damaged as why:
                bad.append((found.path, str(why)))
                below = found.manifest.step if found.path.exists() else None
                found = None
        for path, why_not in bad:
            if directory.set_damaged(path):
                lines.append(f"The snapshot {path.name} is damaged and was renamed: {why_not}.")
        if found is not None and looked.unagreed:
            lines.append(f"{looked.words()}.")
        if found is not None or looked.newest is None:
            return found
    return None


def _check_origin(found: Found, settings: RunSettings) -> None:
    origin = found.manifest.origin
    script, workers = settings.script.name, settings.workers_per_replica
    if settings.rendezvous is not None:
        workers = origin.workers_per_replica  # all nodes' workers are known only when they have met
    inject = injection(settings)
    has_manager = inject == MEMORY and origin.inject == Form.EXPLICIT.value
    if has_manager or inject == WATCHED:
        inject = Form.EXPLICIT.value
    if origin.fits(script, inject, workers):
        return
    raise UserError(
        f"{found.path} is a snapshot of {origin.script} with {_form(origin.inject)} and "
        f"{origin.workers_per_replica} workers per replica; this is {script} with {_form(inject)} "
        f"and {workers}. Nothing was started. Give another directory, or start over with "
        "--resume none."
    )


def _form(inject: str) -> str:
    return "memory snapshots" if inject == MEMORY else f"--inject {inject}"


def _words(found: Found) -> str:
    of = found.manifest
    written = datetime.fromisoformat(of.written_at)
    age_s = max(0.0, (clock.wall() - written).total_seconds())
    replicas, workers = of.origin.replicas, of.origin.workers_per_replica
    whose = f"{workers} workers" if replicas == 1 < workers else f"{replicas} replicas"
    return (
        f"The job resumes from step {of.step}, the newest snapshot in {found.path.parent} "
        f"({amount(of.nbytes)} of {whose}, written {age(age_s)} ago)."
    )
