"""Planted bugs that the schedules of register.py must find: each is one change of one part."""

from __future__ import annotations

from typing import Any

from ftrun.core.agent.epochs import EpochGuard
from ftrun.core.register.events import Lead, Release, Value
from ftrun.core.register.leadership import Leadership
from tests.sim.register import Store


class NoCompare(Store):
    """The store writes unconditionally."""

    compares = False


class FromTheAnswer(Leadership):
    """The deadline counts from the answer, not from the request."""

    def _landed(self, version: int, written: Any) -> None:
        super()._landed(version, written)
        self._proven_from = self._now


class ActsBeforeItsWrite(Leadership):
    """A standby leads as soon as it has sent its request."""

    def _take(self) -> None:
        super()._take()
        self.leads = self._has_begun = True
        self._proven_from = self._now
        self.epoch = 1 + (self._value.epoch if self._value is not None else 100)
        own = self._settings
        self._out.append(Lead(Value(self.epoch, own.name, "", own.silence_s, 0, False, b"")))


class GoesOutBeforeTheWrite(Leadership):
    """Held messages leave while their record is being written."""

    def _let_go(self) -> None:
        for output in [x for x in self._held if not self._is_record(x)]:
            self._held.remove(output)
            self._out.append(Release(output))

    @staticmethod
    def _is_record(output: object) -> bool:
        return hasattr(output, "journal") and not hasattr(output, "kind")


class NeverStepsDown(Leadership):
    """The leader acts until it reads that another one leads."""

    def _is_proven(self, now: float) -> bool:
        return self.leads


class TakesTooEarly(Leadership):
    """A standby waits for half of T."""

    def _takes_at(self) -> float:
        assert self._seen_at is not None
        return (self._seen_at + super()._takes_at()) / 2


class FailedIsWritten(Leadership):
    """A write without an answer counts as carried out, and another one as refused."""

    def _on_answer(self, answer: Any, asked: Any) -> None:
        super()._on_answer(answer, asked)
        if self._is_unsure and self._record is not None:
            self._held.popleft()


class SameEpoch(Leadership):
    """The lighthouse that takes over keeps the epoch."""

    def _swap(self, epoch: int, record: Any, *, is_free: bool = False) -> None:
        super()._swap(self._value.epoch if self._value is not None else epoch, record)


class ActsAfterGivingBack(Leadership):
    """A leader that ends acts until it knows that it has given the register back."""

    def _write(self) -> None:
        super()._write()
        self._gives_back = False


class AnyWelcome(EpochGuard):
    """An agent follows any lighthouse that answers."""

    def accepts(self, epoch: int) -> bool:
        return True


MUTANTS: dict[str, dict[str, Any]] = {
    "writes without comparing": {"store": NoCompare},
    "counts its deadline from the answer": {"leadership": FromTheAnswer},
    "leads before its write is answered": {"leadership": ActsBeforeItsWrite},
    "sends before its record is written": {"leadership": GoesOutBeforeTheWrite},
    "leads past its deadline": {"leadership": NeverStepsDown},
    "takes over at half of the silence": {"leadership": TakesTooEarly},
    "takes an unanswered write for done": {"leadership": FailedIsWritten},
    "takes over with the old epoch": {"leadership": SameEpoch},
    "acts after giving the register back": {"leadership": ActsAfterGivingBack},
    "an agent follows an old epoch": {"guard": AnyWelcome},
}
