"""One worker's part in a Join: its announcements, and whether it may commit a step.

The announcement is a sum with one row per slot. It goes out before the first bucket of the step, in
the same batch, and its count divides a bucket's average (core/worker/joining.py).

A follower cannot see what the script does to gradients or settings between ``backward()`` and
``step()``. So a replica with data checks whether the script changed anything: it compares the
versions and addresses of the gradients in ``step()``, and a digest of the optimizer's settings.

Not here: the loop of a replica that has run out of data (join.py), its gradients (following.py).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import torch
from torch.distributed import ReduceOp

from ftrun.base.errors import UserError
from ftrun.core.worker import joining as rows
from ftrun.core.worker.machine import StepMachine
from ftrun.training.optim import OptimizerWrapper
from ftrun.training.reductions import Reduction

log = logging.getLogger(__name__)

ENDS_UNLIKE_MAX = 3
"""Most heals at the end of a Join. One is enough unless it is interrupted."""


class Announcement(Reduction):
    """The rows of all slots on their way through a sum.

    Args:
        row: of this worker; marked as healing if its input does not count.
        slot, slots: the index of its row, and how many there are.
        device: of the gradients, whose group carries it.
    """

    def __init__(self, row: rows.Row, slot: int, slots: int, device: torch.device) -> None:
        table = torch.zeros(slots, rows.FIELDS, dtype=torch.int64, device=device)
        super().__init__(
            table, ReduceOp.SUM, lambda divisor: self._write(row), batched=True, awaited=True
        )
        self._row = row
        self._slot = slot
        self._verdict: rows.JoinVerdict | None = None
        self._write(row)

    @property
    def verdict(self) -> rows.JoinVerdict | None:
        """The verdict of the step, once its results are final."""
        return self._verdict

    def add_nothing(self) -> None:
        """Mark this worker as healing, so that its gradients do not count."""
        self._write(replace(self._row, heals=True))

    def hand_out(self, divisor: int) -> None:
        """Judge the rows, which are final, and complete the future."""
        self.judged()
        super().hand_out(divisor)

    def judged(self) -> rows.JoinVerdict:
        """The verdict, in any thread that hands out a result of the same batch."""
        verdict = self._verdict
        if verdict is None:  # two concurrent threads compute the same verdict
            verdict = self._verdict = rows.judge(rows.decode(self.data.tolist()))
        return verdict

    def _write(self, row: rows.Row) -> None:
        self.data.zero_()
        self.data[self._slot] = torch.tensor(rows.encode(row), dtype=torch.int64)


@dataclass(eq=False, repr=False)
class Joining:
    """The Joins of one Manager, one after another.

    Args:
        replica_id: of this worker; also the index of its row.
        slots: how many replicas the job has.
        issue: issues a reduction.
        machine: numbers the steps that have begun; only read here.

    Attributes:
        is_active: a Join is open.
        is_over: all replicas have run out of data, and the step that shows it is committed.
        is_last_joiner: this replica ran out last. True on exactly one replica.
    """

    _replica_id: str
    _slots: int
    _issue: Callable[[Reduction], Any]
    _machine: StepMachine
    is_active: bool = False
    is_over: bool = False
    is_last_joiner: bool = False
    _optimizer: OptimizerWrapper | None = None
    _terms: rows.Terms = field(default_factory=rows.Terms)
    _has_batch: bool = True
    _followed: int = 0
    _is_fresh: bool = True  # no step of this Join is committed here
    _lacks_settings: bool = False  # the script changes them after steps outside the Join
    _ends_unlike: int = 0
    _number: int = 0
    _stepped: rows.Stepped = rows.Stepped.UNKNOWN
    _has_warned: bool = False
    _announced: tuple[int, Announcement] | None = None
    _gradients: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    _settings: int = 0

    def begin(self, terms: rows.Terms, optimizer: OptimizerWrapper) -> None:
        """Begin a Join, in which ``optimizer`` steps by the averages.

        Raises:
            UserError: one is open.
        """
        if self.is_active:
            raise UserError(
                f"replica {self._replica_id}: a Join inside another one. Its data ends once, so "
                "end the first one before, or give all joinables to one Join"
            )
        self.is_active, self.is_over, self.is_last_joiner = True, False, False
        self._terms, self._optimizer = terms, optimizer
        self._has_batch, self._followed, self._is_fresh = True, 0, True
        self._lacks_settings, self._ends_unlike = False, 0

    def run_out(self) -> None:
        """This replica has no data left: from now on it follows."""
        self._has_batch = False

    def end(self) -> None:
        """The Join's block is left, at its end or by an error."""
        self.is_active = False
        self._optimizer = self._announced = None

    # ------------------------------------------------------------ in a step

    def announce(self, device: torch.device) -> None:
        """Announce this replica in the current step, unless that is done."""
        begun = self._machine.begun
        if self._announced is not None and self._announced[0] == begun:
            return
        self._gradients.clear()
        self._settings = self._own_settings()
        row = rows.Row(
            self._has_batch,
            stepped=self._stepped,
            followed=self._followed,
            settings=self._settings,
            number=self._number,
            terms=self._terms,
        )
        announcement = Announcement(row, int(self._replica_id), self._slots, device)
        self._announced = begun, announcement
        self._issue(announcement)

    @property
    def verdict(self) -> rows.JoinVerdict | None:
        """The verdict of the step that began last; None: it has no final results."""
        announced = self._current
        return None if announced is None else announced.verdict

    def divisor(self, contributors: int) -> int:
        """The number by which a bucket of this step is divided, when its result is final."""
        announced = self._current
        return contributors if announced is None else announced.judged().divisor

    def batches(self, contributors: int) -> int:
        """How many batches a committed step has trained."""
        verdict = self.verdict if self.is_active else None
        return contributors if verdict is None else verdict.batches

    def note_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Remember averaged gradients and settings, when a backward pass has ended."""
        for parameter in parameters:
            if parameter.grad is not None:
                self._gradients[id(parameter)] = _trace(parameter.grad)
        self._settings = self._own_settings()

    def forgoes(self, scales: bool) -> str:
        """Why this replica must not commit the step; "" if it may.

        ``scales``: a GradScaler steps the optimizer.

        Raises:
            UserError: this replica's Join has other arguments than its peers', or its optimizer has
                settings that do not heal.
        """
        verdict = self.verdict
        if verdict is None:
            return ""
        if int(self._replica_id) in verdict.unlike:
            raise UserError(
                f"replica {self._replica_id}: divide_by_initial_world_size or "
                "throw_on_early_termination is not that of the other replicas. This replica ends, "
                "before its weights become others. Give all replicas the same arguments of Join"
            )
        if verdict.throws:
            return "a replica has run out of data, and throw_on_early_termination is set"
        if not self._has_batch:
            return self._follower_forgoes(verdict)
        is_changed = scales or self._is_changed()
        was_plain = self._stepped is not rows.Stepped.CHANGED
        if was_plain:
            self._stepped = rows.Stepped.CHANGED if is_changed else rows.Stepped.PLAIN
        if not is_changed or not verdict.has_follower or verdict.settings is None:
            return ""
        reason = "the script changed gradients or settings for the first time"
        self._warn(
            f"{reason} after backward(), where replicas without data had stepped them as they "
            "were. This step counts without the change, and later ones with it"
        )
        return reason

    @property
    def all_forgo(self) -> bool:
        """Whether no replica commits the step, because all raise instead."""
        verdict = self.verdict
        return verdict is not None and verdict.throws

    def _follower_forgoes(self, verdict: rows.JoinVerdict) -> str:
        if not verdict.batches:
            return "" if verdict.has_leader else self._ends_with(verdict)
        reason = verdict.reason
        if verdict.settings is not None:
            self._lacks_settings |= verdict.settings != self._own_settings()
            if self._lacks_settings:
                reason = (
                    "its optimizer's settings are not theirs (a learning-rate schedule? Give the "
                    "scheduler to the Join too)"
                )
        if reason and verdict.is_known:  # otherwise it passes by itself
            self._warn(
                f"it has no data left and cannot step like the others, because {reason}. It takes "
                "their state in each step instead, which costs the transfer of a state"
            )
        return reason

    def _ends_with(self, verdict: rows.JoinVerdict) -> str:
        """All replicas have run out. Why this replica must heal first; "" if its settings equal the
        last joiner's."""
        if verdict.last_settings == self._own_settings():
            return ""
        self._ends_unlike += 1
        if self._ends_unlike > ENDS_UNLIKE_MAX:
            raise UserError(
                f"replica {self._replica_id}: at the end of a Join its optimizer's settings are "
                f"not those of replica {verdict.last_joiner}, also after it has taken that one's "
                "state. This replica ends. Carry optimizer.state_dict() in the state functions"
            )
        return "its optimizer's settings are not those of the replica that ran out last"

    def decided(self, committed: bool) -> bool:
        """The step is decided. Returns whether the optimizer shall step."""
        verdict = self.verdict
        if verdict is None or not committed:
            return committed and verdict is None
        is_late = verdict.number > self._number
        if is_late and not self._has_batch and not self._is_fresh:
            self.is_over = True  # the peers have ended this Join without this replica
            self._number = verdict.number
        elif verdict.is_over:
            self.is_over = True
            self.is_last_joiner = verdict.last_joiner == int(self._replica_id)
            self._number = verdict.number + 1
        else:
            self._number = verdict.number
        self._is_fresh = False
        self._followed += not self._has_batch
        return verdict.batches > 0

    def throw(self) -> NoReturn:
        """End the Join on all replicas, because one is out of data.

        Raises:
            RuntimeError: always.
        """
        if self._has_batch:
            raise RuntimeError(
                "Detected at least one replica that exhausted inputs. Throwing across all replicas."
            )
        raise RuntimeError(f"Replica {self._replica_id} exhausted all inputs.")

    # ------------------------------------------------------------ parts

    @property
    def _current(self) -> Announcement | None:
        """The announcement of the step that began last."""
        announced = self._announced
        is_of_step = announced is not None and announced[0] == self._machine.begun
        return announced[1] if announced is not None and is_of_step else None

    def _is_changed(self) -> bool:
        """Whether gradients or settings have changed since the backward pass."""
        assert self._optimizer is not None, "a Join has its optimizer"
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                trace = None if parameter.grad is None else _trace(parameter.grad)
                if trace != self._gradients.get(id(parameter)):
                    return True
        return self._settings != self._own_settings()

    def _own_settings(self) -> int:
        assert self._optimizer is not None, "a Join has its optimizer"
        return digest(self._optimizer)

    def _warn(self, text: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning("replica %s in a Join: %s", self._replica_id, text)


def digest(optimizer: OptimizerWrapper) -> int:
    """A number for the optimizer's settings, equal on all replicas with equal settings."""
    groups = [
        sorted((name, _plain(value)) for name, value in group.items() if name != "params")
        for group in optimizer.param_groups
    ]
    mixed = hashlib.blake2b(repr(groups).encode(), digest_size=8).digest()
    return int.from_bytes(mixed, "big") >> 1


def _plain(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return repr(value.tolist()) if value.numel() <= 16 else ""
    if isinstance(value, (tuple, list)):
        return ",".join(map(_plain, value))
    return repr(value) if value is None or isinstance(value, (bool, int, float, str)) else ""


def _trace(gradient: torch.Tensor) -> tuple[int, int, int]:
    """A value that changes when the gradient is replaced or written to."""
    return id(gradient), gradient.data_ptr(), gradient._version
