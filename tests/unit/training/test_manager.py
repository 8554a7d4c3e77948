"""Every public method of the Manager, on real Managers (scripted_agent.py)."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import pytest
import torch
from torch.distributed import ReduceOp

from ftrun.base import clock
from ftrun.base.errors import Bug, FtrunError, UserError
from ftrun.core.activity import Activity
from ftrun.core.messages import Built, Healed, LeaveReason, Leaving, Progress
from ftrun.process_groups import ProcessGroupGloo
from ftrun.training import context, engine
from ftrun.training.context import WorkerContext
from ftrun.training.healing import StateUnread
from ftrun.training.manager import Manager, WorldSizeMode
from tests.unit.training.scripted_agent import DEADLINE_S, Job, job

SHORT = timedelta(seconds=0.05)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Job]:
    """Two replicas, of which one is enough."""
    with job(tmp_path, 2, min_replicas=1) as both:
        both.add("0")
        both.add("1")
        yield both


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Manager]:
    """A replica that trains alone."""
    with job(tmp_path, 1) as single:
        yield single.add("0")


# ------------------------------------------------------------ steps


def test_steps_average_and_count(pair: Job) -> None:
    assert [pair.step() for _ in range(3)] == [[True, True]] * 3
    zero, one = pair.managers["0"], pair.managers["1"]
    assert zero.current_step() == one.current_step() == 3
    assert zero.batches_committed() == one.batches_committed() == 6
    assert (zero.participating_rank(), one.participating_rank()) == (0, 1)
    assert zero.num_participants() == 2 and zero.is_participating()
    assert zero.state_dict() == one.state_dict()
    # Slot 1 has healed from slot 0 before its first step, then each added 0.5 three times.
    assert torch.equal(pair.weights["0"], torch.full((3,), 1.5))
    assert torch.equal(pair.weights["1"], pair.weights["0"])


@pytest.mark.parametrize(
    ("op", "kind", "expected"),
    [
        (ReduceOp.AVG, torch.float32, 2.5),
        (ReduceOp.SUM, torch.float32, 5),
        (ReduceOp.MAX, torch.float64, 3),
        (ReduceOp.MIN, torch.float32, 2),
        (ReduceOp.PRODUCT, torch.bfloat16, 6),
        (ReduceOp.AVG, torch.bfloat16, 2.5),
        (ReduceOp.SUM, torch.int64, 5),
        (ReduceOp.SUM, torch.int32, 5),
        (ReduceOp.MAX, torch.uint8, 3),
        (ReduceOp.BAND, torch.int64, 2),
    ],
    ids=str,
)
def test_reduce_ops(operations: Job, op: Any, kind: torch.dtype, expected: float) -> None:
    def reduce(slot: str, manager: Manager) -> torch.Tensor:
        manager.start_quorum()
        tensor = torch.full((2, 3), int(slot) + 2, dtype=kind).t()  # dense, not contiguous
        assert manager.allreduce(tensor, reduce_op=op).wait()
        assert manager.should_commit()
        return tensor

    for tensor in operations.run(reduce):
        assert torch.equal(tensor, torch.full((3, 2), expected, dtype=kind))


@pytest.fixture(scope="module")
def operations(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """Two replicas for all reduce operations."""
    with job(tmp_path_factory.mktemp("ops"), 2) as both:
        both.add("0")
        both.add("1")
        yield both


def test_a_parameter_is_reduced_in_place(pair: Job) -> None:
    def reduce(slot: str, manager: Manager) -> torch.nn.Parameter:
        manager.start_quorum()
        weight = torch.nn.Parameter(torch.full((2,), float(slot)))
        work = manager.allreduce(weight)
        assert work.wait(timedelta(seconds=DEADLINE_S))
        assert work.is_completed() and work.get_future().value() is weight
        assert manager.should_commit()
        return weight

    for weight in pair.run(reduce):
        assert weight.tolist() == [0.5, 0.5] and weight.is_leaf


def test_what_is_chained_on_a_reduction_has_run_when_the_step_is_decided(pair: Job) -> None:
    """Bucketised DiLoCo copies results out of its buckets in callbacks, for example."""

    def reduce(slot: str, manager: Manager) -> list[bool]:
        late = []
        for turn in range(50):
            manager.start_quorum()
            tensor, copied = torch.full((4,), float(slot)), torch.zeros(4)
            work = manager.allreduce(tensor)
            work.get_future().add_done_callback(lambda f, c=copied: c.copy_(f.value()))  # type: ignore[misc]
            if turn % 2:
                work.wait()
                late.append(not torch.equal(copied, tensor))
            assert manager.should_commit()
            late.append(not torch.equal(copied, tensor))
        return late

    assert not any(flag for flags in pair.run(reduce) for flag in flags)


def test_a_result_that_nobody_waited_for_stands_after_should_commit(pair: Job) -> None:
    def reduce(slot: str, manager: Manager) -> list[float]:
        manager.start_quorum()
        tensors = [torch.full((1 << 16,), float(slot)) for _ in range(8)]
        for tensor in tensors:
            manager.allreduce(tensor)
        assert manager.should_commit()
        return [tensor.unique().item() for tensor in tensors]

    assert pair.run(reduce) == [[0.5] * 8] * 2


def test_operations_outside_a_step_are_refused(alone: Manager) -> None:
    with pytest.raises(UserError, match="outside a step"):
        alone.allreduce(torch.ones(1))
    with pytest.raises(UserError, match="outside a step"):
        alone.should_commit()
    with pytest.raises(UserError, match="outside a step"), alone.batch():
        raise AssertionError("not reached")
    alone.start_quorum()
    assert alone.should_commit()
    with pytest.raises(UserError, match="outside a step"):
        alone.should_commit()


@pytest.mark.parametrize("kind", [True, "int8", "fp8"])
def test_a_quantised_mean_is_equal_on_all_and_within_its_bound(pair: Job, kind: bool | str) -> None:
    def reduce(slot: str, manager: Manager) -> torch.Tensor:
        manager.start_quorum()
        tensor = torch.linspace(-1, 1, 1000) * (int(slot) + 1)
        assert manager.allreduce(tensor, should_quantize=kind).wait()
        assert manager.should_commit()
        return tensor

    first, second = pair.run(reduce)
    assert torch.equal(first, second)
    error = (first - torch.linspace(-1, 1, 1000) * 1.5).abs().max()
    assert 0 < error <= 1.5 / (7 if kind == "fp8" else 126)


def test_what_cannot_be_quantised_is_said_at_once(alone: Manager) -> None:
    alone.start_quorum()
    with pytest.raises(UserError, match="choose True, 'int8' or 'fp8'"):
        alone.allreduce(torch.ones(1), should_quantize="int4")
    for tensor, op, text in (
        (torch.ones(1), ReduceOp.MAX, "only AVG and SUM"),
        (torch.ones(1).long(), ReduceOp.SUM, "cannot be quantised"),
    ):
        alone.allreduce(tensor, should_quantize=True, reduce_op=op)
        assert text in str(alone.errored())
        assert not alone.should_commit()
        alone.start_quorum()
    exact = torch.rand(1000)
    alone.allreduce(whole := exact.clone(), should_quantize=True).wait()
    assert torch.equal(whole, exact)  # nothing is sent, so nothing is quantised
    assert alone.should_commit()


def test_a_batch_gets_its_results_when_its_last_reduction_has_one(pair: Job) -> None:
    def reduce(slot: str, manager: Manager) -> list[float]:
        manager.start_quorum()
        tensors = [torch.full((2,), float(slot) + i) for i in range(3)]
        with manager.batch():
            works = [manager.allreduce(t, should_quantize=i == 1) for i, t in enumerate(tensors)]
            with pytest.raises(UserError, match="wait after the block"):
                works[0].wait()
            with pytest.raises(UserError, match="a batch of reductions is open"), manager.batch():
                raise AssertionError("not reached")
            with pytest.raises(UserError, match="end its block"):
                manager.should_commit()
        for work in works:
            work.wait()
        assert manager.should_commit()
        return [t[0].item() for t in tensors]

    for found in pair.run(reduce):
        assert found == pytest.approx([0.5, 1.5, 2.5], abs=0.02)


def test_an_error_in_a_batch_leaves_no_peer_waiting(pair: Job) -> None:
    def reduce(slot: str, manager: Manager) -> bool:
        manager.start_quorum()
        with pytest.raises(KeyError), manager.batch():
            work = manager.allreduce(torch.ones(2))
            raise KeyError("of the script")
        work.wait()
        return manager.should_commit()

    assert pair.run(reduce) == [True, True]


def test_a_step_may_be_begun_twice(pair: Job) -> None:
    def twice(slot: str, manager: Manager) -> bool:
        manager.start_quorum()
        manager.start_quorum()
        manager.wait_quorum()
        manager.allreduce(torch.ones(1)).wait()
        return manager.should_commit()

    assert pair.run(twice) == [True, True]
    assert pair.run(twice) == [True, True]
    assert len(pair.agent.sent("0", Built)) == 1  # no other quorum was needed


def test_a_step_that_was_never_decided_is_computed_again(pair: Job) -> None:
    """GradScaler steps nothing where gradients are infinite: ``should_commit`` is not called."""

    def skip(slot: str, manager: Manager) -> None:
        manager.start_quorum()
        manager.allreduce(torch.full((1,), torch.inf))

    assert pair.step() == [True, True]
    pair.run(skip)
    pair.train(until=4)
    for manager in pair.managers.values():
        assert manager.current_step() == 4 and manager.errored() is None


# ------------------------------------------------------------ errors


def test_a_reported_error_costs_the_step(pair: Job) -> None:
    def fail(slot: str, manager: Manager) -> bool:
        manager.start_quorum()
        assert manager.errored() is None
        if slot == "1":
            manager.report_error(ValueError("mine"))
            manager.report_error(ValueError("later"))
            assert str(manager.errored()) == "later"  # the last one, as torchft keeps it
        manager.allreduce(torch.ones(1)).wait()
        return manager.should_commit()

    assert pair.step() == [True, True]
    assert pair.run(fail)[1] is False
    pair.train(until=4)
    for manager in pair.managers.values():
        assert manager.current_step() == 4 and manager.errored() is None


def test_wrapped_futures(alone: Manager) -> None:
    alone.start_quorum()
    good: torch.futures.Future[int] = torch.futures.Future()
    wrapped = alone.wrap_future(good, 0)
    good.set_result(7)
    assert wrapped.wait() == 7 and alone.errored() is None
    bad: torch.futures.Future[int] = torch.futures.Future()
    bad.set_exception(ValueError("broken"))  # type: ignore[arg-type]
    assert alone.wrap_future(bad, 5).wait() == 5
    assert "broken" in str(alone.errored())
    assert not alone.should_commit()


def test_a_wrapped_future_has_a_deadline(alone: Manager) -> None:
    alone.start_quorum()
    never: torch.futures.Future[int] = torch.futures.Future()
    assert alone.wrap_future(never, 5, SHORT).wait() == 5
    error = alone.errored()
    assert error is not None and isinstance(error.original_exception, TimeoutError)
    assert alone.errored() is error
    never.set_result(1)  # too late: nothing happens
    assert not alone.should_commit()


def test_waiting_for_a_reduction_has_a_deadline(pair: Job) -> None:
    def late(slot: str, manager: Manager) -> bool:
        manager.start_quorum()
        if slot == "1":
            assert gate.wait(DEADLINE_S)
        work = manager.allreduce(torch.ones(1))
        if slot == "0":
            assert work.wait(SHORT) is False
            error = manager.errored()
            assert error is not None and isinstance(error.original_exception, TimeoutError)
            gate.set()
        outcome = manager.should_commit()
        if slot == "0":
            manager.leave()  # else the other may wait for it, to repair its own step
        return outcome

    gate = threading.Event()
    assert pair.run(late)[0] is False


def test_max_retries(tmp_path: Path) -> None:
    with job(tmp_path, 1) as single:
        manager = single.add("0", max_retries=1)
        for _ in range(2):
            manager.start_quorum()
            manager.report_error(ValueError("again"))
            if manager.current_step() or manager.session.flow._failures:
                with pytest.raises(RuntimeError, match=r"2 steps in a row.*again"):
                    manager.should_commit()
            else:
                assert not manager.should_commit()


# ------------------------------------------------------------ deaths, healing


def test_a_death_costs_no_step(tmp_path: Path) -> None:
    def one(slot: str, manager: Manager) -> float:
        manager.start_quorum()
        if slot == "2":
            return 0.0
        tensor = torch.full((4,), float(slot))
        work = manager.allreduce(tensor)
        waiting.wait(DEADLINE_S)
        work.wait()
        assert manager.should_commit()
        return float(tensor[0])

    waiting = threading.Barrier(3)
    with job(tmp_path, 3, min_replicas=1) as trio:
        for slot in "012":
            trio.add(slot)
        assert trio.step() == [True] * 3
        killer = threading.Thread(target=lambda: (waiting.wait(DEADLINE_S), trio.agent.lose("2")))
        killer.start()
        assert trio.run(one) == [0.5, 0.5, 0.0]
        killer.join(DEADLINE_S)
        assert trio.managers["0"].current_step() == 2
        assert trio.managers["0"].num_participants() == 2


@pytest.mark.parametrize("in_background", [True, False], ids=["async", "sync"])
def test_a_replacement_heals(tmp_path: Path, in_background: bool) -> None:
    with job(tmp_path, 2, min_replicas=1) as both:
        both.add("0", use_async_quorum=in_background)
        both.add("1", use_async_quorum=in_background)
        assert both.step() == [True, True]
        both.die("1")
        while both.step() != [True]:
            pass
        both.agent.restart("1")
        both.add("1", weight=9.0, use_async_quorum=in_background)
        joined = threading.Event()

        def train(slot: str, manager: Manager) -> list[int]:
            counts = []
            while not joined.is_set():
                manager.start_quorum()
                tensor = torch.ones(3)
                manager.allreduce(tensor).wait()
                if manager.should_commit():
                    both.weights[slot] += tensor
                    counts.append(manager.num_participants())
                if slot == "1" and len(counts) == 2:
                    manager.leave()
                    joined.set()
                    return counts
            return counts

        counts = both.run(train)[1]
        assert counts == ([1, 2] if in_background else [2, 2])  # C4
        [healed] = both.agent.sent("1", Healed)[-1:]
        assert healed.donors == ("0",) and healed.nbytes > 0
        ours, theirs = both.managers["0"].state_dict(), both.managers["1"].state_dict()
        assert ours["step"] >= theirs["step"]
        steps = ours["step"] - theirs["step"]
        assert torch.equal(both.weights["0"], both.weights["1"] + steps)  # S1


@pytest.mark.parametrize("init_sync", [True, False])
def test_init_sync(tmp_path: Path, init_sync: bool) -> None:
    with job(tmp_path, 2) as both:
        both.add("0", init_sync=init_sync)
        both.add("1", init_sync=init_sync)
        assert both.step(value=0.0) == [True, True]
        assert float(both.weights["1"][0]) == (0.0 if init_sync else 1.0)


def test_fixed_with_spares(tmp_path: Path) -> None:
    fixed: dict[str, Any] = {
        "min_replica_size": 2,
        "world_size_mode": WorldSizeMode.FIXED_WITH_SPARES,
    }
    with job(tmp_path, 3, min_replicas=2) as trio:
        for slot in "012":
            trio.add(slot, **fixed)
        assert trio.step() == [True] * 3
        ranks = [trio.managers[slot].participating_rank() for slot in "012"]
        assert ranks == [0, 1, None]
        assert not trio.managers["2"].is_participating()
        assert [manager.num_participants() for manager in trio.managers.values()] == [2] * 3
        assert {float(weight[0]) for weight in trio.weights.values()} == {0.5}
        trio.die("1")
        while trio.step() != [True, True]:
            pass
        assert trio.managers["2"].participating_rank() == 1


def test_nobody_joins_where_the_script_forbids_it(tmp_path: Path) -> None:
    with job(tmp_path, 2, min_replicas=1) as both:
        first = both.add("0")
        both.add("1")
        assert both.step() == [True, True]
        both.die("1")
        members = []

        def join(manager: Manager) -> None:
            manager.start_quorum()
            manager.allreduce(torch.ones(1)).wait()
            manager.should_commit()
            manager.leave()

        def step(shrink_only: bool) -> None:
            first.start_quorum(shrink_only=shrink_only)
            members.append(first.session.machine.in_force)
            first.allreduce(torch.ones(1)).wait()
            first.should_commit()

        step(shrink_only=True)  # before there is a newcomer: what was promised before would stand
        members.clear()  # whoever has died may have been in that step's
        both.agent.restart("1")
        thread = threading.Thread(target=join, args=(both.add("1"),))
        thread.start()
        both.agent.wait(lambda: bool(both.agent.sent("1", Built)[1:]), "the newcomer's group")
        for _ in range(20):
            step(shrink_only=True)
        assert all(quorum is None or len(quorum.members) == 1 for quorum in members), members
        while thread.is_alive():
            step(shrink_only=False)
        thread.join(DEADLINE_S)
        assert any(quorum is not None and len(quorum.members) == 2 for quorum in members)


def test_a_key_that_donors_lack_is_named(tmp_path: Path) -> None:
    def step(slot: str, manager: Manager) -> None:
        if slot == "0":
            manager.start_quorum()
            return
        with pytest.raises(UserError, match="no state for more"):
            manager.start_quorum()

    with job(tmp_path, 2) as both:
        both.add("0")
        both.add("1").register_state_dict_fn("more", lambda _: None, lambda: {"n": 1})
        both.run(step)


def test_registered_state_travels_under_its_key(tmp_path: Path) -> None:
    loaded: dict[str, Any] = {}
    with job(tmp_path, 2) as both:
        for slot in "01":
            manager = both.add(slot)
            manager.register_state_dict_fn(
                "more",
                lambda state, name=slot: loaded.update({name: state}),  # type: ignore[misc]
                lambda name=slot: {"n": int(name) + 5},  # type: ignore[misc]
            )
            manager.set_state_dict_fns(lambda _: None, dict)  # beside the constructor's own
            with pytest.raises(UserError, match="twice"):
                manager.set_state_dict_fns(lambda _: None, dict)
        assert both.step() == [True, True]
    assert loaded == {"1": {"n": 5}}


def test_state_that_cannot_be_carried_is_named_before_the_first_commit(alone: Manager) -> None:
    alone.register_state_dict_fn("odd", lambda _: None, lambda: {"lock": threading.Lock()})
    with pytest.raises(UserError, match=r"odd\.lock"):
        alone.start_quorum()


def test_state_that_is_registered_later_is_checked_at_once(alone: Manager) -> None:
    alone.start_quorum()
    with pytest.raises(UserError, match=r"odd\.lock"):
        alone.register_state_dict_fn("odd", lambda _: None, lambda: {"lock": threading.Lock()})
    assert alone.should_commit()


def test_the_model_may_be_made_after_the_manager(tmp_path: Path) -> None:
    """The state functions use a model that is made later, as in every script of torchft."""
    models: dict[str, torch.nn.Linear] = {}

    def step(slot: str, manager: Manager) -> bool:
        models[slot] = torch.nn.Linear(2, 2)
        manager.start_quorum()
        return manager.should_commit()

    with job(tmp_path, 2) as both:
        for slot in "01":
            both.add(
                slot,
                load_state_dict=lambda state, slot=slot: models[slot].load_state_dict(state),
                state_dict=lambda slot=slot: models[slot].state_dict(),
            )
        assert both.run(step) == [True, True]
    assert torch.equal(models["0"].weight, models["1"].weight)


class _Spoilt(Exception):
    pass


@pytest.mark.parametrize("side", ["newcomer", "load"])
def test_what_state_functions_raise_comes_out_in_the_script(tmp_path: Path, side: str) -> None:
    """Of a newcomer. A donor trains on (test_serving.py)."""
    calls = {"0": 0, "1": 0}

    def state(slot: str) -> dict[str, Any]:
        calls[slot] += 1
        if calls[slot] > 1 and slot == "1" and side == "newcomer":
            raise _Spoilt("state")
        return {"weight": torch.ones(1)}

    def load(_: Any) -> None:
        if side == "load":
            raise _Spoilt("load")

    def step(slot: str, manager: Manager) -> None:
        if slot != "1":
            return
        peer = both.managers["0"]
        beside = threading.Thread(target=lambda: _quietly(peer.start_quorum))
        beside.start()
        with pytest.raises((_Spoilt, StateUnread)) as raised:
            manager.start_quorum()
            manager.allreduce(torch.ones(1)).wait()
            manager.should_commit()
        assert _Spoilt in (type(raised.value), type(raised.value.__cause__))
        both.agent.lose(slot)
        beside.join(DEADLINE_S)

    with job(tmp_path, 2, min_replicas=1) as both:
        for slot in "01":
            both.add(slot, load_state_dict=load, state_dict=lambda slot=slot: state(slot))
        both.run(step)


def _quietly(action: Any) -> None:
    """Run ``action`` in a peer that may or may not see the other one end."""
    action()


def test_reading_may_be_forbidden_for_a_while(pair: Job) -> None:
    def step(slot: str, manager: Manager) -> bool:
        if slot == "0":
            manager.disallow_state_dict_read()
        manager.start_quorum(timeout=timedelta(seconds=DEADLINE_S)) if slot == "1" else (
            manager.start_quorum(),
            opened.wait(0.2),
            pair.weights["0"].fill_(4.0),
            manager.allow_state_dict_read(),
        )
        return manager.should_commit()

    opened = threading.Event()
    assert pair.run(step) == [True, True]
    assert pair.weights["1"].tolist() == [4.0] * 3


# ------------------------------------------------------------ the Manager's own state


def test_a_checkpoint_sets_the_step(tmp_path: Path) -> None:
    with job(tmp_path, 2) as both:
        both.add("0")
        both.add("1").load_state_dict({"step": 7, "batches_committed": 12, "lineage": "ab"})
        assert both.step() == [True, True]
        for manager in both.managers.values():
            assert (manager.current_step(), manager.batches_committed()) == (8, 13)
        assert torch.equal(both.weights["0"], both.weights["1"])


def test_scalars_are_told(alone: Manager, tmp_path: Path) -> None:
    alone.log(loss=0.5)
    alone.log(accuracy=torch.tensor(0.25), loss=0.75)  # type: ignore[arg-type]
    progress = alone.session.progress.make()
    assert dict(progress.scalars) == {"loss": 0.75, "accuracy": 0.25}
    with pytest.raises(UserError, match="64"):
        alone.log(**{f"s{i}": 0.0 for i in range(70)})


@pytest.mark.parametrize("keeps", [False, True])
def test_a_step_that_was_lost_here_is_taken_from_a_peer_between_two_steps(
    tmp_path: Path, keeps: bool
) -> None:
    """Its results were there, and the script of one replica failed: the other has committed.

    ``keeps``: the other does not begin its next step before, as if it waited in an evaluation. So
    it does not stand at that step's place in the script, and is not asked for it.
    """
    with job(tmp_path, 2, min_replicas=1) as both:  # who leaves first may interrupt the last step
        for slot in "01":
            both.add(slot, use_async_quorum=False).session.heal_with_place()
        assert both.step() == [True, True]
        weight, caught_up = both.weights["0"].clone(), list[bool]()
        has_committed, has_caught_up = threading.Event(), threading.Event()

        def lose(slot: str, manager: Manager) -> bool:
            manager.start_quorum()
            gradient = torch.ones(3)
            manager.allreduce(gradient).wait()
            if slot == "0":
                assert has_committed.wait(DEADLINE_S)  # else the other would lose the step too
                manager.report_error(RuntimeError("lost here"))
            committed = manager.should_commit()
            if committed:
                both.weights[slot] += gradient
                has_committed.set()
            if slot == "0":
                caught_up.append(manager.session.catch_up(lambda: False))
                assert not manager.session.machine.in_step, "it is between two steps still"
                assert both.weights["0"].equal(weight + 1)
                has_caught_up.set()
            elif keeps:
                manager.session.keep_state()
                assert has_caught_up.wait(DEADLINE_S)
            while manager.current_step() < 6:
                manager.start_quorum()
                manager.allreduce(torch.zeros(3)).wait()
                manager.should_commit()
            manager.leave()
            return committed

        assert both.run(lose) == [False, True] and caught_up == [True]
        assert both.weights["0"].equal(weight + 1) and both.weights["1"].equal(weight + 1)


def test_a_manager_shows_how_newcomers_heal_as_torchfts(tmp_path: Path) -> None:
    with job(tmp_path, 2) as both:
        assert both.add("0")._use_async_quorum
        assert not both.add("1", use_async_quorum=False)._use_async_quorum


def test_few_names_are_public_and_torchfts_mocks_have_the_inner_door() -> None:
    public = [name for name in dir(Manager) if not name.startswith("_")]
    assert len(public) <= 32, public
    mock = create_autospec(Manager)
    mock.session.watch_optimizer(None)


def test_what_a_manager_holds_is_private(alone: Manager) -> None:
    assert [name for name in vars(alone) if not name.startswith("_")] == []


# ------------------------------------------------------------ the end


def test_leaving_costs_the_others_nothing(pair: Job) -> None:
    assert pair.step() == [True, True]
    pair.managers["1"].leave()
    pair.managers["1"].leave()
    with pytest.raises(UserError, match="left"):
        pair.managers["1"].start_quorum()
    pair.agent.wait(lambda: bool(pair.agent.sent("1", Leaving)), "the word of leaving")
    [leaving] = pair.agent.sent("1", Leaving)
    assert leaving.reason is LeaveReason.LEFT
    while pair.step(["0"]) != [True]:
        pass
    assert pair.managers["0"].num_participants() == 1


def test_finishing_says_the_last_progress_first(pair: Job) -> None:
    assert pair.step() == [True, True]
    for manager in pair.managers.values():
        manager.log(loss=1.0)
        manager.shutdown()
    pair.agent.wait(lambda: bool(pair.agent.sent("1", Leaving)), "the last word")
    assert [x.reason for x in pair.agent.sent("0", Leaving)] == [LeaveReason.FINISHED]
    last = pair.agent.sent("0", Progress)[-1]
    assert (last.step, last.batches, last.phase) == (1, 2, Activity.STEP)


def test_the_first_commits_are_told_at_once(pair: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that dies soon after a heal has trained, and is started again at once."""
    monkeypatch.setattr(engine, "PROGRESS_INTERVAL_S", 60.0)
    for _ in range(4):
        assert pair.step() == [True, True]

    def commits() -> list[int]:
        return [said.step for said in pair.agent.sent("0", Progress) if said.step]

    pair.agent.wait(lambda: len(commits()) >= 2, "progress")
    assert commits() == [1, 2]


def test_a_process_has_one_manager(tmp_path: Path) -> None:
    with job(tmp_path, 1) as single:
        first = single.add("0")
        with pytest.raises(UserError, match="has a Manager already"):
            single.add("0")
        first.shutdown()
        single.add("0")


def test_without_an_agent_there_is_no_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context.Process, "context", None)
    with pytest.raises(UserError, match="ftrun --replicas"):
        Manager(ProcessGroupGloo())


def test_a_forked_child_does_not_speak_for_its_parent(pair: Job) -> None:
    assert pair.step() == [True, True]
    child = os.fork()
    if child == 0:
        try:
            for manager in pair.managers.values():
                manager.shutdown()
                manager.leave()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert pair.step() == [True, True]
    assert pair.agent.sent("0", Leaving) == []


def test_a_contradiction_in_any_thread_comes_out_in_the_script(alone: Manager) -> None:
    alone.start_quorum()
    nonsense: Any = object()
    thread = threading.Thread(target=alone.session.engine.feed, args=(nonsense,))
    thread.start()
    thread.join(DEADLINE_S)
    with pytest.raises(Bug, match=r"What led to it:\n(?s:.*)BoundaryReached"):
        alone.should_commit()


def test_a_lost_agent_wakes_whoever_waits(pair: Job) -> None:
    def wait(slot: str, manager: Manager) -> None:
        manager.start_quorum()
        if slot == "1":
            return
        work = manager.allreduce(torch.ones(1))
        pair.agent._links[manager.session.here.key].shut_down()
        assert work.wait()
        with pytest.raises(Exception, match="lost its agent"):
            manager.should_commit()

    pair.run(wait)


def test_nothing_is_kept_from_step_to_step(pair: Job) -> None:
    import gc
    import weakref

    tensors: list[Any] = []

    def step(slot: str, manager: Manager) -> None:
        manager.start_quorum()
        gc.collect()
        tensor = torch.ones(8)
        tensors.append(weakref.ref(tensor))
        manager.allreduce(tensor).wait()
        assert manager.should_commit()

    for _ in range(4):
        pair.run(step)
    gc.collect()
    alive = [ref for ref in tensors if ref() is not None]
    assert len(alive) <= 2  # the last step's, until the next one begins
    for manager in pair.managers.values():
        assert len(manager.session.engine._groups._built) == 1
        assert not manager.session.engine._groups._threads


def test_the_context_names_no_token(tmp_path: Path) -> None:
    with job(tmp_path, 1) as single:
        shown: WorkerContext = single.agent.context("0")
        assert shown.token not in repr(shown)


# ---------------------------------------------------------------- operations that differ


@pytest.mark.parametrize(
    ("sizes", "wrong", "words"),
    [
        ({"0": [10], "1": [20]}, "1", "replica 1 has a sum of 20 float32, where replica 0 has"),
        ({"0": [10], "1": [10, 5]}, "1", "as operation 1 of step 1, replica 1 has a sum of 5"),
        ({"0": [10], "1": []}, "1", "replica 1 has nothing more, where replica 0 has a sum of 10"),
        ({"0": [], "1": [10]}, "0", "replica 0 has nothing more, where replica 1 has a sum of 10"),
        ({"0": [7, 3], "1": [10]}, "0", "replica 0 has a sum of 7 float32, where replica 1 has"),
    ],
)
def test_operations_that_differ_are_an_error_of_one_replica(
    pair: Job, sizes: dict[str, list[int]], wrong: str, words: str
) -> None:
    """Gloo would abort the process of one, or of both (SIGABRT), at the first of these."""

    def train(slot: str, manager: Manager) -> str:
        manager.start_quorum()
        manager.allreduce(torch.ones(10)).wait()
        assert manager.should_commit()
        manager.start_quorum()
        try:
            for size in sizes[slot]:
                manager.allreduce(torch.ones(size)).wait()
            committed = manager.should_commit()
        except UserError as error:
            pair.agent.lose(slot)
            with pytest.raises(UserError):
                manager.start_quorum()
            return str(error)
        return f"committed {committed}, of {manager.num_participants()}"

    told = dict(zip("01", pair.run(train), strict=True))
    assert words in told[wrong]
    other = told["1" if wrong == "0" else "0"]
    assert other.startswith("committed True"), "it goes on, and has lost nothing"


def test_operations_may_change_from_step_to_step(pair: Job) -> None:
    def train(slot: str, manager: Manager) -> list[float]:
        sums = []
        for step in range(6):
            manager.start_quorum()
            first = torch.full((2 + step % 2,), float(slot))
            extra = torch.ones(3, dtype=torch.float64)
            works = [manager.allreduce(first)]
            if step == 3:
                works.append(manager.allreduce(extra, reduce_op=ReduceOp.SUM))
            for work in works:
                work.wait()
            assert manager.should_commit()
            sums.append(float(first[0]) + float(extra[0]))
        return sums

    assert pair.run(train) == [[1.5, 1.5, 1.5, 2.5, 1.5, 1.5]] * 2


def test_max_retries_names_the_reason_also_where_no_error_was_reported(tmp_path: Path) -> None:
    with job(tmp_path, 1) as single:
        manager = single.add("0", max_retries=0, min_replica_size=2)
        manager.start_quorum()
        with pytest.raises(RuntimeError, match="last reason: too few replicas contribute"):
            manager.should_commit()


# ------------------------------------------------------------ arguments that the launcher decides


def test_a_place_that_contradicts_the_launcher_is_refused(tmp_path: Path) -> None:
    with job(tmp_path, 1) as single:
        for given in ({"rank": 1}, {"world_size": 4}):
            with pytest.raises(UserError, match="because a replica group looks like a whole job"):
                single.add("0", **given)
        single.add("0", rank=0, world_size=1)


def test_what_has_no_effect_is_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHFT_USE_OTEL", "true")
    monkeypatch.setenv("TORCHFT_TRIGGER_FR_ON_ABORT", "false")
    with job(tmp_path, 1) as single:
        single.add("0", hostname="here", port=0, quorum_retries=2)
    line, other = [x.getMessage() for x in caplog.records if "no effect" in x.getMessage()]
    assert line.startswith("Manager: hostname, quorum_retries: no effect under ftrun")
    assert other.startswith("TORCHFT_USE_OTEL: no effect under ftrun: ftrun attaches no Open")


class SlowLock:
    """An engine's lock that each thread waits ten seconds for, on a clock of its own."""

    def __init__(self, lock: Any, now: list[float]) -> None:
        self._lock, self._now, self._depth = lock, now, 0

    def __enter__(self) -> None:
        self._lock.__enter__()
        self._now[0] += 0.0 if self._depth else 10.0
        self._depth += 1

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        self._lock.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)


def test_a_link_that_waits_for_the_main_thread_does_not_stand_still(
    alone: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The main thread keeps the lock while it copies its state for a peer."""
    alone.start_quorum()
    assert alone.should_commit()
    running, now, sent = alone.session.engine, [clock.now()], list[Any]()
    monkeypatch.setattr(running, "changed", SlowLock(running.changed, now))
    monkeypatch.setattr(running._link, "send", sent.append)
    monkeypatch.setattr(engine, "clock", SimpleNamespace(now=lambda: now[0]))
    for _ in range(3):
        running._on_message(None)
        now[0] += 1.0
    assert [x.phase for x in sent if isinstance(x, Progress) and x.phase is Activity.STOPPED] == []
    now[0] += 10.0
    running._on_message(None)
    assert Activity.STOPPED in [x.phase for x in sent if isinstance(x, Progress)]


@pytest.mark.parametrize("why", ["a second one", "no agent"])
def test_one_that_cannot_be_made_leaves_no_thread(tmp_path: Path, why: str) -> None:
    with job(tmp_path, 2) as both:
        both.add("0")
        context.install(both.agent.context("0"))
        if why == "no agent":
            context.install(replace(both.agent.context("1"), socket_path=str(tmp_path / "none")))
        before = set(threading.enumerate())
        with pytest.raises(FtrunError):
            Manager(ProcessGroupGloo(), load_state_dict=None, state_dict=None)
        for thread in set(threading.enumerate()) - before - both.agent.threads():
            thread.join(DEADLINE_S)
            assert not thread.is_alive(), thread.name
