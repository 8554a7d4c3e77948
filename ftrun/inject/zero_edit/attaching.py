"""Decides the form of an open script: by the objects that it makes, never by its text.

| stage \\ the script | makes torch's DDP | names ftrun's classes | steps, with neither |
|---|---|---|---|
| OPEN | TAKEN | EXPLICIT, or begins again | one world, if it has a process group |
| TAKEN | carried | begins again as explicit | |
| EXPLICIT | left alone | | begins again: as DDP, or as one world |
| MANAGED | left alone | | left alone |

Usually a script names ``ftrun.Manager`` at its top, before it reads its rank. Then all patches are
removed. If the script has already read a variable or made its process group, the run begins again
(core/forms.py). MANAGED: the script has made its Manager.

If a replica has several workers, FSDP2's ``fully_shard`` counts as torch's DDP. Such a script makes
its process group before its Manager, so it is explicit if it has imported ftrun by then.

Not here: the forms' variables (variables.py), what is patched (__init__.py).
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

import ftrun
from ftrun.core.forms import Form
from ftrun.inject import torchft_names
from ftrun.inject.zero_edit.frames import call_site, is_script
from ftrun.inject.zero_edit.refusals import refuse, refuse_own, want
from ftrun.inject.zero_edit.trial import note_refusal
from ftrun.inject.zero_edit.variables import EXPLICIT_NAMES, Variables, has_imported_ftrun
from ftrun.training import compiling, context

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.script import Script

_DISTRIBUTED = ("/torch/distributed/", "/ftrun/inject/zero_edit/world/")
STEPS_ALONE = 2
"""The optimizer step at which the form is checked. A script may take one step before it makes a
Manager or a DDP, to initialize the state of its optimizer."""


class Stage(Enum):
    """See the module's table."""

    OPEN = "open"
    TAKEN = "taken"
    EXPLICIT = "explicit"
    MANAGED = "managed"


class Attaching:
    """Watches an open script until its form is known.

    Args:
        variables: the environment variables of both forms.
        undo: removes all patches.
    """

    def __init__(self, script: Script, variables: Variables, undo: Callable[[], None]) -> None:
        self.stage = Stage.OPEN
        self._script, self._variables, self._undo = script, variables, undo
        self._made_ddp_at = ""
        self._steps = 0

    def install(self) -> None:
        names = vars(ftrun)
        for name in EXPLICIT_NAMES & names.keys():
            del names[name]  # so that an import calls ``__getattr__``, which reports it
        self._variables.on_name = lambda name: self._is_explicit(f"ftrun.{name}")
        context.before_claim(self._claimed)
        torchft_names.ON_USE.append(partial(self._is_explicit, "torchft"))
        self._hook = register_optimizer_step_post_hook(self._stepped)

    def raised(self, error: Exception, is_early: bool) -> None:
        """The script has failed: refuse it if ftrun may be the cause.

        ftrun offers only a part of torch.distributed. So an error from there before the first step
        (``is_early``) makes the script run as one world; if it fails there too, the error is its
        own. It is not refused if a mate is gone, because a collective also fails when a worker of
        the replica has died.

        Raises:
            Refused: the error is one of these, or an error of ftrun's own code.
        """
        is_open = self.stage in (Stage.OPEN, Stage.TAKEN)
        if is_open:
            refuse_own(error)
        if not (is_early and is_open and _has_group()):
            return
        frames = traceback.extract_tb(error.__traceback__)
        is_there = frames and any(part in frames[-1].filename for part in _DISTRIBUTED)
        if is_there and self._script.mates.are_here():
            site = next((f for f in reversed(frames) if is_script(f.filename)), frames[0])
            place = f"{os.path.basename(site.filename)}:{site.lineno}"
            refuse(
                f"{place}: {type(error).__name__} ({str(error)[:200]}) in torch.distributed, of "
                "which ftrun offers only a part to a script that heals step by step"
            )

    # ------------------------------------------------------------ what the script does

    def makes_ddp(self) -> bool:
        """The script makes a DistributedDataParallel; returns whether ftrun carries it."""
        match self.stage:
            case Stage.OPEN:
                self.stage = Stage.TAKEN
                self._variables.stop_watching()
                self._hook.remove()  # it would run at each step
            case Stage.EXPLICIT:
                self._made_ddp_at = self._made_ddp_at or call_site()
        return self.stage is Stage.TAKEN

    def asks_for_world(self) -> None:
        """The script reads its rank or makes its process group. It is explicit if it has imported
        ftrun."""
        if self.stage is Stage.OPEN and has_imported_ftrun():
            self._is_explicit("ftrun")

    def _claimed(self) -> None:
        """A Manager is being made, by the script or by ftrun."""
        if not self._script.makes_manager:
            self._is_explicit("a Manager")
            self.stage = Stage.MANAGED

    @compiling.never
    def _stepped(self, *_: Any) -> None:
        """An optimizer has stepped. Refuse a script with neither a carried DDP nor a Manager."""
        self._steps += 1
        if self._steps != STEPS_ALONE or self.stage in (Stage.TAKEN, Stage.MANAGED):
            return
        if self._made_ddp_at:
            want(
                Form.DDP,
                f"{self._made_ddp_at}: this script names ftrun's classes, but trains torch's "
                "DistributedDataParallel (or FSDP2) without a Manager",
            )
        if _has_group():
            refuse(
                f"{call_site()}: this script has a process group and steps an optimizer, but makes "
                "neither torch's DistributedDataParallel nor an ftrun.Manager, so ftrun cannot "
                "heal it step by step"
            )

    def _is_explicit(self, what: str) -> None:
        """The script uses ftrun's classes (``what``): make it explicit.

        Raises:
            Refused: too late, because it has used the open form.
        """
        if self.stage not in (Stage.OPEN, Stage.TAKEN):
            return
        late = self._why_late()
        if late:
            want(Form.EXPLICIT, f"{call_site()}: {what} comes after {late}")
        note_refusal(Form.EXPLICIT.value, f"{call_site()}: the script uses {what}")
        self.stage = Stage.EXPLICIT
        self._variables.become_explicit()
        self._undo()
        if self._script.mates.keeper is not None:
            self._script.mates.keeper.leaves()

    def _why_late(self) -> str:
        if self.stage is Stage.TAKEN:
            return "torch's DistributedDataParallel"
        if _has_group():
            return "the script's process group"
        if self._variables.read_at:
            return f"the script has read {self._variables.read_at}"
        in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        return "CUDA is in use" if in_use else ""


def _has_group() -> bool:
    """Whether the script has made its process group."""
    return dist.is_available() and bool(dist.is_initialized())
