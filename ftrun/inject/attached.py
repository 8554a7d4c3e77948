"""Attaches ftrun to torch in a worker: at once in a fork, otherwise when it is imported.

A new interpreter (agent/fresh.py) starts without torch, so that the variables that its script sets
take effect, and tools see what is loaded. Everything in ftrun that needs torch waits there until
the script's own ``import torch`` has ended, and runs before the script uses any name of it.

Not here: how an unmodified script is carried (zero_edit/), the rest of a worker's start
(bootstrap.py).
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from dataclasses import replace
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftrun.core.forms import AUTO, MEMORY, WATCHED, Form
from ftrun.inject import rendezvous
from ftrun.inject.alone import Alone
from ftrun.inject.zero_edit import headers
from ftrun.inject.zero_edit.patches import Patches

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ftrun.inject.zero_edit.loop import Loop
    from ftrun.inject.zero_edit.variables import Variables
    from ftrun.training.context import WorkerContext

CARRYING = (AUTO, Form.DDP.value)
"""The values of ``inject`` with which an unmodified script may heal."""

_WITH_TORCH = frozenset(
    {"checkpoint", "elastic", "process_groups", "snapshots", "torchft", "training"}
)
"""Packages of ftrun whose modules import torch."""


class Attached:
    """ftrun's additions in one worker. ``loop``: lets an unmodified script heal, if requested.

    Args:
        here: this worker.
        inject: see config/forms.py.
        environment: its variables.
        explicit: the variables of the explicit form.
    """

    def __init__(
        self,
        here: WorkerContext,
        inject: str,
        environment: Mapping[str, str],
        explicit: Mapping[str, str],
    ) -> None:
        self._here, self._inject = here, inject
        self._variables: Variables | None = None
        self.loop: Loop | None = None
        carries = inject in (*CARRYING, MEMORY)
        has_store = carries and {"MASTER_ADDR", "MASTER_PORT"} <= environment.keys()
        store = "{MASTER_ADDR}:{MASTER_PORT}".format_map(environment) if has_store else ""
        # The agent writes its memory's content to a disk without this process.
        self.alone = Alone(replace(here, snapshot_dir="") if inject == MEMORY else here, store)
        headers.install(is_on=carries, directory=Path(here.socket_path).parent)
        if inject == AUTO:
            from ftrun.inject.zero_edit.variables import Variables

            several = here.workers_per_replica > 1
            self._variables = Variables(environment, explicit, are_several=several)
            self._variables.watch_names()
        if "torch" in sys.modules:
            self._attach()
        else:
            self._guard = _TorchFirst()
            sys.meta_path.insert(0, self._guard)
            Patches().when_imported("torch", self._attach_late)

    def _attach_late(self, _: object) -> None:
        with contextlib.suppress(ValueError):  # the script may have removed it
            sys.meta_path.remove(self._guard)
        first = sys.path.pop(0)  # the script's files must not shadow ftrun's imports
        try:
            self._attach()
        finally:
            sys.path.insert(0, first)

    def _attach(self) -> None:
        rendezvous.serve_elsewhere(int(os.environ.get("MASTER_PORT", "0")))
        self._carry()
        self.alone.watch()  # last: the first watcher may restart the script

    def _carry(self) -> None:
        from ftrun.snapshots import group_memory

        keeper = None
        if self._inject != MEMORY and group_memory.VARIABLE in os.environ:
            from ftrun.inject.zero_edit import in_place

            if self._inject in CARRYING:
                keeper = in_place.keeper_of(self._here)
            else:
                in_place.install(self._here)
        if self._inject not in (WATCHED, MEMORY, *CARRYING):
            return
        from ftrun.inject import zero_edit

        if self._inject == MEMORY:
            from ftrun.inject.zero_edit import one_group

            self.loop = one_group.install(self._here)
            return
        if self._inject == WATCHED:
            zero_edit.watch(self._here)
            return
        try:
            self.loop = zero_edit.install(self._here, self._variables, keeper)
        except Exception as error:
            from ftrun.inject.zero_edit.refusals import refuse_own

            refuse_own(error, must_be=True)
            raise


class _TorchFirst(MetaPathFinder):
    """Finds nothing, but imports torch before the first module of ftrun that imports it.

    Otherwise ftrun would be attached in the middle of importing a module that it needs.
    """

    def find_spec(self, name: str, path: Any, target: Any = None) -> None:  # noqa: ARG002
        """Called by the import system before it looks for ``name``."""
        package, _, rest = name.partition(".")
        is_one = package == "ftrun" and rest.partition(".")[0] in _WITH_TORCH
        if is_one and "torch" not in sys.modules:
            importlib.import_module("torch")
