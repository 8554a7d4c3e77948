"""Resuming from a snapshot: this worker starts with the job's state when the snapshot was written.

A resumed job is one whose first members heal from the snapshot instead of from a donor. Each worker
finds the newest whole snapshot and *claims* its state id before its first report. After that
everything happens as at any start from equal states: a replica with no snapshot or an older one
heals from the others, and a replica whose peers train heals from them.

At a slot's first start, the worker loads the snapshot at once. A restarted worker mostly heals from
peers, so it loads only if its first quorum relies on its claim. That happens when all replicas have
died and their launcher has not.

A snapshot whose bytes have changed is renamed, and the one before it is claimed.

The workers of a replica claim the same snapshot, and each reads its own part. A snapshot may become
whole while they look, so they compare what they have found, and take the lowest (vote.py). If a
part of a snapshot is damaged, none of them takes it.

Not here: which snapshot is the newest (snapshots/directory.py), its bytes (snapshots/reading.py).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftrun.base import clock
from ftrun.base.errors import UserError
from ftrun.checkpoint.heal import FetchedState
from ftrun.core.forms import Form
from ftrun.core.ids import StateId
from ftrun.core.worker import events as e
from ftrun.snapshots import directory
from ftrun.snapshots.directory import Found
from ftrun.snapshots.manifest import Damaged
from ftrun.training.engine import Engine
from ftrun.training.healing import OWN, USER
from ftrun.training.vote import GroupVote

AGREEMENTS_MAX = 10
log = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)
class Resuming:
    """A worker's claim to a snapshot. For the main thread only.

    Attributes:
        position: the script's place in its loop, from the loaded snapshot; empty: none was loaded,
            or peers have given a newer state since.
        form: the form that the script has turned out to have.
        first_step: the step at which this job began: the snapshot's, or that of the script's own
            state.
    """

    _engine: Engine
    _vote: GroupVote | None = None
    form: str = Form.EXPLICIT.value
    position: str = ""
    first_step: int = 0
    _found: Found | None = None
    _has_looked: bool = False
    _has_claimed: bool = False
    _is_pending: bool = False
    _began: float = 0.0

    def __post_init__(self) -> None:
        engine = self._engine
        self._context, self._machine = engine.context, engine.machine
        self._healing, self._progress = engine.healing, engine.progress
        self._fresh = self._machine.state

    def claim(self) -> None:
        """Before the first report: claim the newest snapshot's state, if it is ahead.

        Raises:
            UserError: the snapshot is of another script, or does not fit this one.
        """
        if self._has_claimed:
            return
        self._has_claimed = True
        found = self._look()
        self.first_step = self._machine.state.step
        if found is None:
            return
        if found.manifest.step <= self.first_step:
            log.warning(
                "the script's own state is of step %s, so the snapshot of step %s is not taken",
                self.first_step,
                found.manifest.step,
            )
            return
        self._fresh = self._machine.state
        self._claim(found)
        if self._context.restarts == 0:
            while self._is_pending and not self._load():
                pass

    def find_place(self) -> tuple[str, int] | None:
        """This worker's place in the snapshot that is, or will be, claimed, and the number of
        replicas that the job had then; None: there is no snapshot."""
        found = self._look()
        if found is None:
            return None
        place = found.manifest.share(self._context.group_rank).position
        return place, found.manifest.origin.replicas

    @property
    def is_pending(self) -> bool:
        """Whether the quorum relies on a claimed state that is not loaded yet."""
        return self._is_pending and not self._machine.healing

    def load_now(self) -> bool:
        """Load the claimed snapshot; False: an older one is claimed now, and the step is void."""
        return self._load()

    def healed(self) -> None:
        """Note that the peers' state has replaced the claimed or loaded one."""
        self._is_pending = False
        self.position = ""
        self._healing.is_unread = False

    # ------------------------------------------------------------ claims

    def _look(self) -> Found | None:
        if not self._has_looked:
            self._has_looked = True
            places = [Path(x) for x in (self._context.snapshot_dir, self._context.resume_dir) if x]
            self._found = self._agreed(places)
        return self._found

    def _agreed(self, places: Sequence[Path], below: int | None = None) -> Found | None:
        """The newest snapshot of all places, the same for all workers of this replica.

        Raises:
            UserError: they find different ones repeatedly.
        """
        for _ in range(AGREEMENTS_MAX):
            newest = (self._newest(where, below) for where in places)
            found = next((one for one in newest if one is not None), None)
            if self._vote is None:
                return found
            step = -1 if found is None else found.manifest.step
            name = "" if found is None else f"{found.path} {found.manifest.lineage}"
            lowest, is_same = self._vote.lowest(step, name)
            if is_same or lowest < 0:
                return found if is_same else None
            below = lowest + 1
        raise UserError(
            f"the workers of this replica do not find the same snapshot in {places[0]}. Do two "
            "jobs write to it?"
        )

    def _newest(self, where: Path, below: int | None = None) -> Found | None:
        try:
            looked = directory.look(where, below)
        except Damaged as why:
            raise UserError(
                f"the newest snapshot in {where} cannot be taken: {why}. Update ftrun, or start "
                "over with --resume none"
            ) from why
        except OSError as error:
            raise UserError(
                f"the snapshots in {where} cannot be read ({error.strerror}), so it is not known "
                "where this job stands. Make the directory readable on this node"
            ) from error
        for path, why_not in looked.passed_over:
            log.warning("the snapshot %s is skipped: %s", path, why_not)
        if looked.unagreed:
            log.warning("snapshots in %s: %s", where, looked.words())
        if looked.newest is not None:
            self._check_origin(looked.newest)
        return looked.newest

    def _check_origin(self, found: Found) -> None:
        theirs, here = found.manifest.origin, self._context
        if not theirs.fits(here.script, self.form, here.workers_per_replica):
            raise UserError(
                f"the snapshot {found.path} is of {theirs.script} with --inject {theirs.inject} "
                f"and {theirs.workers_per_replica} workers per replica, not of {here.script} with "
                f"--inject {self.form} and {here.workers_per_replica}. Give another directory, "
                "or start over with --resume none"
            )

    def _claim(self, found: Found) -> None:
        self._found = found
        self.first_step = found.manifest.step
        self._is_pending = self._healing.is_unread = True
        state = StateId(found.manifest.step, found.manifest.lineage)
        self._engine.feed(e.StateReset(state))

    # ------------------------------------------------------------ loading

    def _load(self) -> bool:
        """Load the claimed snapshot into the script; False: damaged, an older one is claimed.

        Raises:
            UserError: it does not fit this script.
        """
        found = self._found
        assert found is not None and self._is_pending
        tree = self._read(found)
        if tree is None:
            return False
        self._apply(found, tree)
        self._is_pending = self._healing.is_unread = False
        self.position = found.manifest.share(self._context.group_rank).position
        self._healing.forward_over(may_resume=True)  # an offer may have waited for the state
        return True

    def _read(self, found: Found) -> Any:
        """This worker's tree; None: the snapshot is damaged, here or at a mate.

        All workers have read it before one of them renames it.
        """
        from ftrun.snapshots.reading import read  # few starts of a worker read one

        self._began = clock.now()
        tree, why = None, "a part of another worker of this replica is"
        try:
            tree = read(found, self._healing.tree(), self._context.group_rank)
        except OSError as error:
            raise UserError(
                f"the snapshot {found.path} cannot be read now ({error.strerror}): this replica "
                "restarts, and tries again"
            ) from error
        except Damaged as error:
            why = str(error)
        is_bad = tree is None
        if is_bad if self._vote is None else self._vote.any(is_bad):
            self._pass_over(found, why)
            return None
        return tree

    def _apply(self, found: Found, tree: Any) -> None:
        self._check_keys(found, tree)
        manifest = found.manifest
        state = StateId(manifest.step, manifest.lineage)
        duration_s = clock.now() - self._began
        self._healing.fetched = FetchedState(state, tree, manifest.nbytes, duration_s, (), {})
        self._healing.apply()
        self._progress.batches = int(tree[OWN]["batches_committed"])

    def _check_keys(self, found: Found, tree: Any) -> None:
        saved, here = set(tree[USER]), set(self._healing.keys())
        lacks, unknown = sorted(here - saved), sorted(saved - here)
        if lacks or unknown:
            what = [f"has no state for {', '.join(lacks)}"] if lacks else []
            what += [f"has state for {', '.join(unknown)}, which is not registered"] * bool(unknown)
            raise UserError(
                f"the snapshot {found.path} does not fit this script: it {' and it '.join(what)}. "
                "Nothing was loaded. Register the same keys before the first step, or start over "
                "with --resume none"
            )

    def _pass_over(self, found: Found, why: str) -> None:
        """Claim the snapshot before this one; without one, the state that the script began with."""
        below: int | None = None
        if directory.set_damaged(found.path):
            log.warning("the snapshot %s is damaged, and is renamed: %s", found.path, why)
            below = found.manifest.step
        older = self._agreed([found.path.parent], below)
        if older is not None:
            self._claim(older)
            return
        log.warning("no older snapshot is in %s: this replica starts over", found.path.parent)
        self._found = None
        self._is_pending = self._healing.is_unread = False
        self._engine.feed(e.StateReset(self._fresh))
