"""Reports a script without a Manager to the agent: its replica groups train separately.

That is certain when optimizers step before any Manager is made, or when the script ends without
one. The script's source is not read. If the agent watches the loop (``--hang-factor``), each
further step of an optimizer sends a beat, and so do ``ftrun.heartbeat()`` and ``ftrun.paused()``.
Beats are sent at most once a second.

Not here: the notice for people (core/agent/words.py), the use of beats (core/agent/loop_watch.py).
"""

from __future__ import annotations

import os
import sys
from contextlib import closing, suppress
from typing import Any

from ftrun.base import clock
from ftrun.base.errors import PeerError, UserError
from ftrun.inject.report import send_to_agent
from ftrun.training import context, pauses
from ftrun.training.context import WorkerContext

STEPS_REPORTED = 2
"""A script may take one step before it makes the Manager, to initialise an optimizer's state."""
BEAT_INTERVAL_S = 1.0
LOOK_S = 2.0


class Alone:
    """Watches one script. Optimizer steps show that it trains, and so is past its start.

    Args:
        here: this worker.
        store: of the world of all replicas, in which the script may train; "": there is none.
    """

    def __init__(self, here: WorkerContext, store: str = "") -> None:
        self._here, self._store = here, store
        self._pid = os.getpid()
        self._is_reported = False
        self._steps = 0
        self._beat_at = 0.0
        self._pause = ""
        if here.hang_factor:
            pauses.listen(self._beat)

    def watch(self) -> None:
        """Torch is imported: watch the steps of optimizers from now on."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        from ftrun.training import compiling

        register_optimizer_step_post_hook(compiling.never(self._stepped))

    def ends(self, *, well: bool) -> None:
        """The script has ended. A failed one is not reported here, because its failure is
        reported."""
        pauses.stop_listening()
        if well:
            self._send(has_stepped=False)

    def _stepped(self, *_: Any) -> None:
        """An optimizer has stepped. So either a Manager exists, or the script trains without
        one."""
        self._steps += 1
        if self._steps == STEPS_REPORTED:
            self._send(has_stepped=True)
        # The hook stays: torch is iterating over all hooks right now, so none may be removed.
        if self._here.hang_factor and not self._pause:
            self._beat("", 0.0)

    def _is_watched(self) -> bool:
        is_own = os.getpid() == self._pid
        return bool(self._here.hang_factor) and is_own and not context.had_manager()

    def _beat(self, pause: str, limit_s: float) -> None:
        """Send a beat: at most one a second, but every begin and end of a pause at once."""
        now = clock.now()
        is_soon = now - self._beat_at < BEAT_INTERVAL_S
        if not self._is_watched() or (pause == self._pause == "" and is_soon):
            return
        from ftrun.core.messages import Beat

        self._beat_at, self._pause = now, pause
        send_to_agent(self._here, Beat(pause, limit_s))

    def _trains_elsewhere(self) -> bool:
        """Whether a child of the script has made a world of all replicas, which the agent
        reports."""
        from ftrun.process_groups.store import WORLD_KEYS, StoreClient

        if self._store:
            with suppress(PeerError), closing(StoreClient(self._store, clock.now() + LOOK_S)) as it:
                return any(it.has(key) for key in WORLD_KEYS)
        return False

    def _send(self, *, has_stepped: bool) -> None:
        if self._is_reported or context.had_manager() or os.getpid() != self._pid:
            return
        if not has_stepped and self._trains_elsewhere():
            return
        from ftrun.core.messages import NoManager

        self._is_reported = True
        asked = self._here.options_of_samplers()
        if asked and has_stepped:
            raise UserError(
                f"{asked}: the script trains without a Manager, so ftrun does not choose its "
                "samples. Leave the option out, or use ftrun.ElasticSampler (docs/DATA.md)"
            )
        if asked:
            print(f"ftrun: {asked} had no effect: nothing trained", file=sys.stderr, flush=True)
        if self._here.snapshot_dir:
            why = (
                "the script makes neither torch's DistributedDataParallel nor a Manager, and this "
                "job has no memory snapshots (docs/MEMORY_SNAPSHOTS.md), so ftrun does not know "
                "its state"
            )
            print(f"ftrun: --snapshot takes no snapshots: {why}", file=sys.stderr, flush=True)
        send_to_agent(self._here, NoManager(has_stepped))
