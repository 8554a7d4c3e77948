"""Two real torchft processes train under our lighthouse, over kills of each of them and of it."""

from __future__ import annotations

import pytest

pytest.importorskip("torchft._torchft")

from tests.torchft.wire_job import job, play

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def test_torchfts_own_processes_train_over_kills() -> None:
    story: list[str] = []
    with job(story.append) as found:
        play(found)
        by_step: dict[int, set[str]] = {}
        for trainer in found.trainers:
            for step in trainer.steps():
                by_step.setdefault(step["step"], set()).add(step["weights"])
        assert all(len(weights) == 1 for weights in by_step.values()), "weights differ"
        ids = found.quorum_ids
        # A death and a comeback each have a new quorum; the lighthouse's restart needs none.
        assert ids[0] < ids[1] < ids[2] == ids[3] < ids[4], ids
        first = found.trainers[0]
        assert first.process.returncode == 0
        numbers = [step["step"] for step in first.steps()]
        # It may have come second, and begun with what the other one had.
        everything = list(range(numbers[0], numbers[-1] + 1))
        assert numbers == everything, "the survivor lost or skipped a step"
        shown = "\n".join(story)
        assert "train_0:" in shown and "train_1:" in shown and "room default: quorum" in shown
