"""Which loader gives the samples under ``--data exactly-once``, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from ftrun.base.errors import UserError
from ftrun.core.ids import WorkerKey
from ftrun.inject.zero_edit.exactly_once import ExactIterator, ExactlyOnce
from ftrun.training.context import WorkerContext

DATA = TensorDataset(torch.arange(24))


class Alone:
    """The Manager of a job of one replica, as far as a sampler needs it."""

    here = WorkerContext("job", WorkerKey("0", "aa", 0), 1, 1, 1, "127.0.0.1", "", "")

    def __init__(self) -> None:
        self.step: int | None = None
        self.begun = 0

    @property
    def session(self) -> Alone:
        return self

    def watch_sampler(self, sampler: Any, *, repairs: bool) -> None:
        self.sampler = sampler

    def contributors(self) -> tuple[str, ...]:
        return ("0",)

    def step_under_way(self) -> int | None:
        return self.step

    def begin(self, *, for_draw: bool) -> None:
        assert for_draw
        if self.step is None:
            self.begun += 1
            self.step = self.begun

    def commit(self) -> None:
        self.sampler.before_reduction()
        self.step = None
        self.sampler.committed(("0",))


class Script:
    """What the loop knows: ``ending`` of a replica that has come to its peers' end."""

    def __init__(self, mode: str = "exactly-once", has_model: bool = True) -> None:
        self.manager: Any = Alone()
        self.ending = SimpleNamespace(has_followed=False, replays=0)
        script: Any = SimpleNamespace(
            here=SimpleNamespace(data=mode, global_batch=None, workers_per_replica=1),
            manager=lambda: self.manager,
            models=SimpleNamespace(wrapped=[0] if has_model else []),
            ending=self.ending,
        )
        self.exact = ExactlyOnce(script)


def shuffled(**arguments: Any) -> Any:
    sampler: DistributedSampler[Any] = DistributedSampler(DATA, 3, 1, seed=4)
    return DataLoader(DATA, batch_size=5, sampler=sampler, **arguments)


def epoch_of(script: Script, loader: Any) -> Iterator[list[int]]:
    claimed = script.exact.claim(loader)
    assert isinstance(claimed, ExactIterator)
    for (batch,) in claimed:
        yield batch.tolist()
        script.manager.commit()


def test_each_sample_comes_once_per_epoch_in_the_order_of_torchs_sampler() -> None:
    script, loader = Script(), shuffled()
    torchs: DistributedSampler[Any] = DistributedSampler(DATA, 1, 0, seed=4)
    for epoch in (0, 1):
        torchs.set_epoch(epoch)
        found = list(epoch_of(script, loader))
        assert [len(batch) for batch in found] == [5, 5, 5, 5, 4]
        assert [x for batch in found for x in batch] == list(torchs)


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(DATA, batch_size=5),
        DataLoader(DATA, batch_size=5, sampler=DistributedSampler(DATA, 3, 1, shuffle=False)),
    ],
    ids=["in order", "sharded in order"],
)
def test_loaders_that_do_not_shuffle_are_as_written(loader: Any) -> None:
    assert Script().exact.claim(loader) is None


def test_a_loader_is_as_written_before_the_model_is_wrapped_and_by_default() -> None:
    assert Script(has_model=False).exact.claim(shuffled()) is None
    script = Script("as-written")
    assert script.exact.claim(shuffled()) is None
    script.exact.expect()


def test_a_second_loader_that_shuffles_is_as_written(capfd: pytest.CaptureFixture[str]) -> None:
    script, first = Script(), shuffled()
    assert script.exact.claim(first) is not None
    assert script.exact.claim(shuffled()) is None
    assert "ftrun does not choose its samples" in capfd.readouterr().err
    assert script.exact.claim(first) is not None


def test_what_is_not_kept_is_said_or_refused(capfd: pytest.CaptureFixture[str]) -> None:
    script = Script()
    script.exact.claim(shuffled(drop_last=True))
    assert "drop_last has no effect here" in capfd.readouterr().err
    with pytest.raises(UserError, match="does not come from the first data loader that shuffles"):
        script.exact.expect()

    class Own(BatchSampler):
        pass

    own = DataLoader(DATA, batch_sampler=Own(SequentialSampler(DATA), 4, False))
    assert Script().exact.claim(own) is None, "it does not shuffle"
    own = DataLoader(DATA, batch_sampler=Own(DistributedSampler(DATA, 3, 1), 4, False))
    assert Script().exact.claim(own) is None
    iterator = Script().exact.claim(shuffled())
    assert isinstance(iterator, ExactIterator)
    with pytest.raises(UserError, match="one batch in each step"):
        iterator.refuse_several()


def test_a_replica_at_its_peers_end_goes_through_batches_again_that_count_nothing() -> None:
    script = Script()
    iterator = script.exact.claim(shuffled())
    assert iterator is not None
    script.ending.has_followed, script.ending.replays = True, 1
    assert len(next(iterator)[0]) == 5
    script.ending.replays = 0
    with pytest.raises(StopIteration):
        next(iterator)
    assert script.manager.begun == 0, "no step of its own"


def test_a_newcomer_counts_from_the_batch_of_its_peers() -> None:
    script = Script()
    iterator = script.exact.claim(shuffled())
    assert isinstance(iterator, ExactIterator)
    iterator.go_to(2, 7)
    assert (iterator.cursor.drawn, iterator.epoch, len(iterator)) == (7, 2, 5)
    next(iterator)
    assert iterator.cursor.drawn == 8
