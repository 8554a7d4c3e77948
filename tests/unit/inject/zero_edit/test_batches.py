from __future__ import annotations

import torch

from ftrun.inject.zero_edit.batches import ENTRY_BYTES, WorkersRandom


def drawn(workers: WorkersRandom, count: int) -> list[float]:
    """What a worker draws for so many batches."""
    return [workers.reads(0, lambda: torch.rand(1).item())[0] for _ in range(count)]


def test_a_worker_goes_on_with_the_random_numbers_of_another() -> None:
    torch.manual_seed(1)
    one = WorkersRandom(1, 4)
    numbers = drawn(one, 7)
    states = one.before(5)
    assert states is not None and 0 < len(states[0]) < ENTRY_BYTES
    torch.manual_seed(2)
    other = WorkersRandom(1, 4)
    other.go_on(5, 3, states)  # it reads the first two, and then the sixth
    assert other.before(5) == states
    assert drawn(other, 4)[2:] == numbers[5:7]
    assert other.before(7) == one.before(7)


def test_what_is_too_long_ago_or_is_not_read_is_not_known() -> None:
    torch.manual_seed(1)
    workers = WorkersRandom(1, 4)
    drawn(workers, 9)
    assert workers.before(9) is not None
    assert workers.before(10) is None
    assert workers.before(2) is None


def test_a_worker_that_never_draws_has_nothing_to_give() -> None:
    workers = WorkersRandom(2, 4)
    assert workers.before(0) == [b"", b""]
    assert workers.reads(0, lambda: 5) == (5, False)
    assert workers.before(1) == [b"", b""]
    torch.manual_seed(1)
    _, has_drawn = workers.reads(0, lambda: torch.rand(1))
    assert has_drawn
