"""State of Hugging Face's Trainer and Lightning outside their loops: callbacks, sums, a log.

The counters of their loops are found on the stack (walk.py). No frame's variable leads to their
callbacks. Without its callbacks' state, a replica would stop early, or save a best model, when its
peers do not. The trainer is found by its loop on the stack. The frameworks are neither imported nor
patched.

Not here: the loops themselves (LOOP_PACKAGES in frames.py), the rest of the state (carried.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from ftrun.inject.zero_edit.values import limits
from ftrun.inject.zero_edit.values.kinds import packed, unpacked
from ftrun.inject.zero_edit.values.units import mapped

_TRANSFORMERS = "transformers.trainer"
_LIGHTNING = ("lightning.pytorch.loops", "pytorch_lightning.loops")
_META = (
    *("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph"),
    *("add_dataloader_idx", "dataloader_idx", "metric_attribute"),
)
_SYNC = ("_should", "rank_zero_only")
_SUMS = ("value", "cumulated_batch_size", "has_reset", "_update_count")
"""Attributes of a metric of ``self.log``: its definition, how ranks share it, its sums."""


class Part:
    """An object whose state heals: the state at the place that this replica shows its peers.

    Args:
        read: captures the current state; returns a function that returns the captured state.
        load: loads the state of a peer.
    """

    def __init__(
        self,
        read: Callable[[], Callable[[], dict[str, Any]]],
        load: Callable[[dict[str, Any]], None],
    ) -> None:
        self._read, self.load_state_dict = read, load
        self._at_place: Callable[[], dict[str, Any]] | None = None

    def capture(self) -> None:
        """Capture the state, because this replica shows its peers its current place."""
        self._at_place = self._read()

    def state_dict(self) -> dict[str, Any]:
        return (self._at_place or self._read())()


def _stateful(owner: Any) -> Part:
    """A callback of Lightning. Its state has tensors as plain numbers, because a newcomer's state
    has tensors of other number and shape."""

    def read() -> Callable[[], dict[str, Any]]:
        found = mapped(owner.state_dict(), lambda x: x)  # callbacks replace their tensors
        return lambda: {"state": packed(found)}

    def load(state: dict[str, Any]) -> None:
        known = unpacked(state["state"])
        if known:
            owner.load_state_dict(known)

    return Part(read, load)


def _history(trainer: Any) -> Part:
    """The log of transformers' Trainer. Rank 0's next checkpoint has all of it."""

    def read() -> Callable[[], dict[str, Any]]:
        entries = trainer.state.log_history
        count = len(entries)  # no copy: it only grows, and this runs in each step
        return lambda: {"log_history": entries[:count]}

    def load(state: dict[str, Any]) -> None:
        trainer.state.log_history = list(state["log_history"])

    return Part(read, load)


def _sums(trainer: Any) -> Part:
    """The sums of Lightning's ``self.log`` for the current epoch, from which it takes the mean.

    The first step that logs a metric makes it, so a newcomer has none.
    """

    def read() -> Callable[[], dict[str, Any]]:
        known = {key: _sum(x, trainer) for key, x in _results(trainer).items()}
        found = mapped({key: x for key, x in known.items() if x}, lambda x: x)
        has_begun = _connector(trainer)._first_loop_iter is False
        return lambda: {"sums": packed(found), "has_begun": has_begun}

    def load(state: dict[str, Any]) -> None:
        results = _results(trainer)
        for key, known in (unpacked(state["sums"]) or {}).items():
            if key not in results:
                lightnings: Any = sys.modules[type(results).__module__]
                meta = lightnings._Metadata(**known["meta"], reduce_fx=known["reduce"])
                meta.sync = lightnings._Sync(fn=trainer.strategy.reduce, **known["sync"])
                results[key] = lightnings._ResultMetric(meta, True)
            vars(results[key]).update(known["sums"])
        if state["has_begun"]:  # else the next batch would reset the sums, as an epoch's first one
            _connector(trainer)._first_loop_iter = False

    return Part(read, load)


def _has_sums(trainer: Any) -> bool:
    """Whether this version of Lightning has the private names that ``_sums`` uses."""
    try:
        package: Any = sys.modules[type(_results(trainer)).__module__]
        used = package._Metadata, package._Sync, package._ResultMetric
        return None not in used and hasattr(_connector(trainer), "_first_loop_iter")
    except AttributeError:
        return False


def _results(trainer: Any) -> Any:
    return trainer.fit_loop.epoch_loop._results


def _connector(trainer: Any) -> Any:
    return trainer._logger_connector


def _sum(metric: Any, trainer: Any) -> dict[str, Any]:
    """The state of one metric; empty: another process could not make it from that."""
    meta, sums = metric.meta, vars(metric)
    name = getattr(meta.reduce_fx, "__name__", "")
    is_plain_sum = metric.is_tensor and meta.reduce_fx is getattr(torch, name, None)
    if not is_plain_sum or meta.sync.group is not None or meta.sync.fn != trainer.strategy.reduce:
        return {}
    return {
        "meta": {x: getattr(meta, x) for x in _META},
        "reduce": name,
        "sync": {x: getattr(meta.sync, x) for x in _SYNC},
        "sums": {x: sums[x] for x in _SUMS if x in sums},
    }


class Frameworks:
    """The trainer of this process, if a framework runs the script's loop.

    ``callbacks``: those whose plain values heal like other counters.
    """

    def __init__(self) -> None:
        self.callbacks: list[Any] = []
        self._parts: list[Part] = []
        self._owner: Any = None
        self._trainer: Any = None

    def look(self, variables: Sequence[Mapping[str, Any]]) -> None:
        """Find the trainer on the stack. A script may use several, one after another.

        Args:
            variables: the variables of the script's frames, innermost first.
        """
        if self._trainer is None and sys.modules.keys().isdisjoint((_TRANSFORMERS, *_LIGHTNING)):
            return
        for known in variables:
            own = known.get("self")
            if own is not None and (own is self._owner or self._take(own)):
                return

    @property
    def trainer(self) -> Any:
        """The Trainer of transformers or of a package on top of it; None: there is none."""
        return self._trainer if self._owner is self._trainer else None

    def capture(self) -> None:
        """Capture all parts, because this replica shows its peers its current place."""
        for part in self._parts:
            part.capture()

    def parts(self) -> list[Part]:
        """The parts of the trainer whose state heals."""
        return self._parts

    def _take(self, own: Any) -> bool:
        """Use ``own`` if it is a trainer or a loop of one; returns whether it is."""
        modules = [kind.__module__ for kind in type(own).__mro__]
        if _TRANSFORMERS in modules and hasattr(own, "callback_handler"):
            self._owner = self._trainer = own
            callbacks = own.callback_handler.callbacks
            self._parts = [_history(own)]
        elif any(x.startswith(_LIGHTNING) for x in modules) and hasattr(own, "trainer"):
            self._owner = own
            if own.trainer is self._trainer:
                return True
            self._trainer = own.trainer
            callbacks = self._trainer.callbacks
            self._parts = [_stateful(x) for x in _first(callbacks)]
            if _has_sums(self._trainer):
                self._parts.append(_sums(self._trainer))
        else:
            return False
        self.callbacks = [x for x in _first(callbacks) if not _draws(x)]
        return True


def _draws(callback: Any) -> bool:
    """Whether a callback draws a progress bar. Its values are about this process's screen."""
    return any(".callbacks.progress" in kind.__module__ for kind in type(callback).__mro__)


def _first(callbacks: Iterable[Any]) -> list[Any]:
    return list(callbacks)[: limits.ITEMS]
