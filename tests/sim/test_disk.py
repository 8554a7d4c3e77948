"""Random lives of nodes that write snapshots to a disk together, and proof that bugs are found."""

from __future__ import annotations

import pytest

from ftrun.core.replay.copying import Copying
from ftrun.core.replay.parts import Parts
from ftrun.core.worker.group_snapshots import GroupSnapshots
from ftrun.core.worker.snapshots import SnapshotSchedule
from tests.sim.replay.disk import DiskWorld
from tests.sim.violation import Violation

SCHEDULES = 120


class OneIsEnough(Parts):
    """The first part makes the snapshot."""

    @property
    def is_over(self) -> bool:
        return super().is_over or self._waits < self.asked


class AnyDraft(Parts):
    """An answer about a former draft counts."""

    def answered(self, node: str, name: str, reason: str = "", *, is_damaged: bool = False) -> None:
        super().answered(node, self.name, reason, is_damaged=is_damaged)


class CountsTheLost(Parts):
    """A lost node has written."""

    def gone(self, node: str) -> None:
        self._waits.discard(node)


class PublishesWhatFailed(Parts):
    """A node's reason does not count."""

    @property
    def why_not(self) -> tuple[str, str] | None:
        return None


class OverwritesWhatIsTaken(Copying):
    """A round begins before all nodes hold the step for the disk."""

    def begin(self, announced: int, now: float) -> bool:
        self.is_taken = False
        return super().begin(announced, now)


class WritesAgain(GroupSnapshots):
    """What is on the disk already."""

    def _is_newer(self, step: int) -> bool:
        return True


class ForgetsThatItFailed(SnapshotSchedule):
    """It waits for the one that has failed."""

    def failed(self) -> None:
        pass


class NeverAgain(GroupSnapshots):
    """After one that has failed."""

    def schedule(self, now: float) -> SnapshotSchedule:
        if self._schedule is None:
            self._schedule = ForgetsThatItFailed(self._every_s, now)
        return self._schedule


def test_what_is_on_the_disk_is_whole_and_of_the_group() -> None:
    worlds = [DiskWorld(seed) for seed in range(SCHEDULES)]
    for world in worlds:
        world.run()
    assert sum(len(world.disk.whole) for world in worlds) > SCHEDULES
    assert sum(world.resumed for world in worlds) > SCHEDULES / 4


@pytest.mark.parametrize(
    "kinds",
    [
        *({"parts": kind} for kind in (
            OneIsEnough, AnyDraft, CountsTheLost, PublishesWhatFailed,
        )),
        {"copying": OverwritesWhatIsTaken},
        *({"plan": kind} for kind in (WritesAgain, NeverAgain)),
    ],
    ids=lambda kinds: next(iter(kinds.values())).__name__,
)  # fmt: skip
def test_a_planted_bug_is_found(kinds: dict[str, type]) -> None:
    with pytest.raises(Violation):
        for seed in range(SCHEDULES):
            DiskWorld(seed, **kinds).run()
