"""DDP on real Managers (scripted_agent.py): overlap, memory, healing after a backward pass."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed import Work

from ftrun.base.errors import PeerError
from ftrun.core.messages import Built
from ftrun.core.worker.events import OfferState
from ftrun.training.ddp import DistributedDataParallel, PureDistributedDataParallel
from ftrun.training.manager import Manager
from ftrun.training.optim import OptimizerWrapper
from ftrun.training.reductions import Reduction
from tests.unit.training.scripted_agent import DEADLINE_S, Job, job, takes_peers_for_alike

WIDTH, LAYERS = 32, 4
SMALL_BUCKETS: dict[str, Any] = {"bucket_cap_mb": 0.005}  # one layer in each


class Replica:
    """One replica's model, optimizer and scaler; equal weights everywhere."""

    def __init__(self, running: Job, slot: str, model: nn.Module, **arguments: Any) -> None:
        self.model = model
        self.inner = torch.optim.SGD(model.parameters(), lr=0.125)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** (4 + 2 * int(slot)))
        self.manager: Manager = running.add(
            slot,
            load_state_dict=self._load,
            state_dict=lambda: {"model": model.state_dict(), "scaler": self.scaler.state_dict()},
            **arguments,
        )
        self.optimizer = OptimizerWrapper(self.manager, self.inner)

    def _load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.scaler.load_state_dict(state["scaler"])


def layers() -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))


def gradient_bytes(model: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in model.parameters())


# ------------------------------------------------------------ overlap


def test_a_bucket_goes_out_without_waiting_for_the_one_before(tmp_path: Path) -> None:
    """One replica sends its second bucket only when the other has sent all of its own."""

    def train(slot: str, _: Manager) -> list[float]:
        replica = replicas[slot]
        ddp = DistributedDataParallel(replica.manager, replica.model, **SMALL_BUCKETS)
        first, *_, last = replica.model.parameters()  # type: ignore[assignment]
        if slot == "0":
            first.register_hook(lambda _: all_out.set())
        else:
            last.register_hook(lambda _: waited.append(all_out.wait(DEADLINE_S)))
        replica.optimizer.zero_grad()
        ddp(torch.ones(2, WIDTH)).sum().backward()
        assert replica.manager.should_commit()
        return [float(p.grad.sum()) for p in replica.model.parameters() if p.grad is not None]

    all_out, waited = threading.Event(), []  # type: ignore[var-annotated]
    with job(tmp_path, 2) as both:
        replicas = {slot: Replica(both, slot, layers()) for slot in "01"}
        one, other = both.run(train)
    assert waited == [True] and one == other


def test_another_module_s_gradients_are_computed_before_anybody_waits(tmp_path: Path) -> None:
    """One replica sends the first module's buckets only when the other has all gradients."""

    def train(slot: str, _: Manager) -> list[float]:
        replica = replicas[slot]
        manager, model = replica.manager, replica.model
        parts = [DistributedDataParallel(manager, part) for part in (model[:2], model[2:])]  # type: ignore[index]
        first, *_, last = model.parameters()  # type: ignore[assignment]
        if slot == "0":
            first.register_hook(lambda _: all_out.set())
        else:
            last.register_hook(lambda _: waited.append(all_out.wait(DEADLINE_S)))
        replica.optimizer.zero_grad()
        parts[1](parts[0](torch.ones(2, WIDTH))).sum().backward()
        assert manager.should_commit()
        return [float(p.grad.sum()) for p in model.parameters() if p.grad is not None]

    all_out, waited = threading.Event(), []  # type: ignore[var-annotated]
    with job(tmp_path, 2) as both:
        replicas = {slot: Replica(both, slot, layers()) for slot in "01"}
        one, other = both.run(train)
    assert waited == [True] and one == other


@pytest.mark.parametrize("kwargs", [{}, {"static_graph": True}, {"find_unused_parameters": True}])
def test_a_lost_agent_wakes_a_backward_pass(tmp_path: Path, kwargs: dict[str, Any]) -> None:
    def train(slot: str, manager: Manager) -> None:
        replica = replicas[slot]
        ddp = DistributedDataParallel(manager, replica.model, **kwargs)
        replica.optimizer.zero_grad()
        if slot == "1":
            return  # its buckets never come
        takes_peers_for_alike(manager)
        awaits = manager.session.await_buckets

        def lose_the_agent() -> None:
            both.agent._links[manager.session.here.key].shut_down()
            awaits()

        manager.session.await_buckets = lose_the_agent  # type: ignore[method-assign]
        ddp(torch.ones(2, WIDTH)).sum().backward()
        with pytest.raises(PeerError, match="lost its agent"):
            manager.should_commit()

    with job(tmp_path, 2, min_replicas=1) as both:
        replicas = {slot: Replica(both, slot, layers()) for slot in "01"}
        both.run(train)


# ------------------------------------------------------------ memory


@pytest.mark.parametrize(
    ("kwargs", "repair", "gradients"),
    [
        ({}, "reissue", 0),
        ({"find_unused_parameters": True}, "reissue", 0),
        ({"gradient_as_bucket_view": True}, "reissue", 1),
        ({"gradient_as_bucket_view": True}, "discard", 0),
    ],
)
def test_what_a_repair_needs_takes_no_memory_or_that_of_one_gradient(
    tmp_path: Path, kwargs: dict[str, Any], repair: str, gradients: int
) -> None:
    """Memory when every bucket is issued and none is complete, and again after the step.

    A copy is made when a bucket goes out; in the first step that is only when it was compared.
    """

    def train(slot: str, _: Manager) -> list[int]:
        replica = replicas[slot]
        ddp = DistributedDataParallel(replica.manager, replica.model, **SMALL_BUCKETS, **kwargs)
        found = []
        for step in range(2):
            replica.optimizer.zero_grad()
            own = [b.buffer() for b in ddp.reducer._get_zeros_like_grad_buckets()]
            loss = ddp(torch.ones(2, WIDTH)).sum()
            if slot == "0":
                _at_first_gradient(replica.model, partial(looked[step].wait, DEADLINE_S))
            else:
                _at_last_bucket(replica.manager, lambda: found.append(batched(ddp)), looked[step])
            loss.backward()
            assert replica.manager.should_commit()
            del own
            found.append(batched(ddp))
        return found

    looked = [threading.Event(), threading.Event()]
    with job(tmp_path, 2) as both:
        replicas = {slot: Replica(both, slot, layers(), repair=repair) for slot in "01"}
        size = gradient_bytes(replicas["0"].model)
        found = both.run(train)[1]
    map_of_uses = 4 * LAYERS if "find_unused_parameters" in kwargs else 0
    of_copies = gradients * size
    assert found == [map_of_uses, map_of_uses, of_copies + map_of_uses, map_of_uses]


def _at_first_gradient(model: nn.Module, action: Any) -> None:
    *_, last = model.parameters()
    handle: Any = last.register_hook(lambda _: (handle.remove(), action(), None)[-1])


def _at_last_bucket(manager: Manager, look: Any, done: threading.Event) -> None:
    """In the wrapped call of the last bucket: it is out, and the peer has not sent its own."""
    session = manager.session
    issue = type(session).allreduce_bucket

    def watched(buffer: torch.Tensor, is_last: bool, *rest: Any) -> Any:
        future = issue(session, buffer, is_last, *rest)
        if is_last:
            look()
            done.set()
        return future

    session.allreduce_bucket = watched  # type: ignore[method-assign, assignment]


def batched(ddp: DistributedDataParallel) -> int:
    """Bytes of all tensors that this replica's Manager holds, without torch's own buckets."""
    in_flight = ddp._buckets._manager.session.engine.in_flight
    seen: set[int] = set()
    storages: dict[int, int] = {}
    torchs = {p.grad.untyped_storage().data_ptr() for p in ddp.parameters() if p.grad is not None}
    torchs |= {p.untyped_storage().data_ptr() for p in ddp.parameters()}
    torchs |= {r.data.untyped_storage().data_ptr() for r in in_flight.reductions if r.batched}
    todo: list[Any] = [in_flight.reductions, in_flight.ready]
    while todo:
        thing = todo.pop()
        if id(thing) in seen or isinstance(thing, (type, nn.Module, Manager)):
            continue
        seen.add(id(thing))
        if isinstance(thing, torch.Tensor):
            storage = thing.untyped_storage()
            if storage.data_ptr() not in torchs:
                storages[storage.data_ptr()] = storage.nbytes()
        elif isinstance(thing, FunctionType):
            todo += [cell.cell_contents for cell in thing.__closure__ or ()]
        elif isinstance(thing, MethodType):
            todo.append(thing.__self__)
        else:
            todo += gc.get_referents(thing)
    return sum(storages.values())


# ------------------------------------------------------------ GradScaler


def test_skipped_steps_are_committed_and_cost_no_quorum(tmp_path: Path) -> None:
    """More in a row than an agent tolerates as errors, yet no replica is restarted."""

    def train(slot: str, manager: Manager) -> tuple[list[float], float]:
        replica = replicas[slot]
        ddp = DistributedDataParallel(manager, replica.model)
        for step in range(15):
            replica.optimizer.zero_grad()
            factor = torch.inf if step < 12 and slot == "1" else 1.0
            loss = ddp(torch.ones(2, WIDTH)).square().mean() * factor
            replica.scaler.scale(loss).backward()
            if step % 2:
                replica.scaler.unscale_(replica.optimizer)
            before = replica.model[0].weight.detach().clone()  # type: ignore[index]
            replica.scaler.step(replica.optimizer)
            replica.scaler.update()
            assert torch.equal(before, replica.model[0].weight) == (step < 12)  # type: ignore[index]
        return replica.model[0].weight.flatten().tolist(), replica.scaler.get_scale()  # type: ignore[index]

    with job(tmp_path, 2) as both:
        replicas = {slot: Replica(both, slot, layers()) for slot in "01"}
        one, other = both.run(train)
        assert one == other
        assert one[1] == 2.0 ** (4 - 12)  # slot 1 has healed slot 0's scale
        assert all(manager.current_step() == 15 for manager in both.managers.values())
        assert len(both.agent.sent("0", Built)) == 1


@pytest.mark.parametrize("unscales", [False, True])
@pytest.mark.parametrize("wrap", [DistributedDataParallel, PureDistributedDataParallel])
def test_a_newcomer_unscales_by_its_peers_scale(
    tmp_path: Path, unscales: bool, wrap: type[nn.Module]
) -> None:
    """It heals when its first backward pass ends: before the script looks at the gradients."""

    def step(replica: Replica, ddp: nn.Module) -> None:
        replica.optimizer.zero_grad()
        replica.scaler.scale(ddp(torch.ones(2, WIDTH)).square().mean()).backward()
        if unscales:
            replica.scaler.unscale_(replica.optimizer)
        replica.scaler.step(replica.optimizer)
        replica.scaler.update()

    def join(slot: str, manager: Manager) -> None:
        ddp = wrap(manager, replicas[slot].model)
        while not joined.is_set():
            step(replicas[slot], ddp)
            number = manager.state_dict()["step"]
            with changed:
                states[slot][number] = weights_of(replicas[slot].model)
                changed.notify_all()
                if slot == "1" and len(states[slot]) == 3:
                    # What its peer has not got yet when it leaves, the peer does without it.
                    assert changed.wait_for(partial(states["0"].__contains__, number), DEADLINE_S)
                    joined.set()
        if slot == "1":
            manager.leave()

    joined, changed = threading.Event(), threading.Condition()
    states: dict[str, dict[int, torch.Tensor]] = {"0": {}, "1": {}}
    with job(tmp_path, 2, min_replicas=1) as both:
        replicas = {slot: Replica(both, slot, layers()) for slot in "01"}
        assert both.step() == [True, True]
        both.die("1")
        while both.step() != [True]:
            pass
        both.agent.restart("1")
        replicas["1"] = Replica(both, "1", layers())
        both.run(join)
    zero, one = states["0"], states["1"]
    common = zero.keys() & one.keys()
    assert len(common) == 3
    assert all(torch.equal(zero[number], one[number]) for number in common)


def weights_of(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


# ------------------------------------------------------------ buffers


def test_buffers_heal_as_they_were_before_the_forward_pass(tmp_path: Path) -> None:
    """The donor's forward pass is over before the newcomer may ask: its buffers are not torn."""

    def train(slot: str, manager: Manager) -> dict[str, torch.Tensor]:
        replica = replicas[slot]
        ddp = DistributedDataParallel(manager, replica.model)
        replica.optimizer.zero_grad()
        if slot == "1":  # it heals here: in the first step everybody does, before the forward pass
            return {name: buffer.clone() for name, buffer in replica.model.named_buffers()}
        ddp(torch.full((4, WIDTH), 100.0)).sum()
        forward_is_over.set()
        return {}

    forward_is_over = threading.Event()
    with job(tmp_path, 2) as both:
        replicas = {slot: Replica(both, slot, nn.BatchNorm1d(WIDTH)) for slot in "01"}
        for slot, replica in replicas.items():
            replica.model.running_mean.fill_(float(slot))  # type: ignore[operator]
        load = replicas["1"].manager.session.healing.load

        def load_late(*arguments: Any) -> None:
            waiter = threading.Thread(
                target=lambda: (forward_is_over.wait(DEADLINE_S), load(*arguments))
            )
            waiter.start()

        replicas["1"].manager.session.healing.load = load_late  # type: ignore[method-assign, assignment]
        _, found = both.run(train)
    assert torch.equal(found["running_mean"], torch.zeros(WIDTH))
    assert found["num_batches_tracked"] == 0


def test_an_offer_in_the_middle_of_a_step_waits_for_the_end_of_the_forward_pass(
    tmp_path: Path,
) -> None:
    """A repair may bring a newcomer while the main thread still computes."""
    with job(tmp_path, 1) as single:
        manager = Replica(single, "0", nn.BatchNorm1d(WIDTH)).manager
        engine, healing = manager.session.engine, manager.session.healing
        for ends_by_reducing in (True, False):
            manager.start_quorum()
            machine = manager.session.machine
            assert machine.tag is not None
            with engine.changed:
                healing.offer(OfferState(machine.tag, machine.state, 1))
            assert healing._offer_waits
            if ends_by_reducing:
                manager.allreduce(torch.ones(1)).wait()
            else:
                engine.finish_results()
            assert not healing._offer_waits
            assert machine.tag in healing._server._offers
            tag = machine.tag
            manager.should_commit()
            healing.retire(tag)


class _Unwoken(Work):
    """A collective of a group that was aborted and did not notice."""

    def __init__(self, began: threading.Event) -> None:
        super().__init__()
        self._began = began

    def is_completed(self) -> bool:
        return False

    def get_future(self) -> torch.futures.Future[Any]:
        return torch.futures.Future()

    def wait(self, timeout: timedelta = timedelta()) -> bool:
        self._began.set()
        raise RuntimeError("Operation timed out!")


def reduce_while_a_peer_is_lost(
    tmp_path: Path, collective: Callable[[], Work], began: threading.Event
) -> None:
    """Slot 1 goes once slot 0 waits for ``collective``, which stands in for gloo's; 0 commits."""

    def train(slot: str, manager: Manager) -> bool:
        replica = replicas[slot]
        ddp = DistributedDataParallel(manager, replica.model)
        replica.optimizer.zero_grad()
        if slot == "1":
            assert began.wait(DEADLINE_S)
            both.agent.lose("1")
            return True
        takes_peers_for_alike(manager)
        group = manager.session.engine.in_flight._group
        assert group is not None
        group.allreduce = lambda *_: collective()  # type: ignore[method-assign]
        ddp(torch.ones(2, WIDTH)).sum().backward()
        return manager.should_commit()

    with job(tmp_path, 2, min_replicas=1) as both:
        replicas = {slot: Replica(both, slot, layers()) for slot in "01"}
        assert both.run(train) == [True, True]


def test_a_collective_that_no_abort_wakes_holds_up_nobody(tmp_path: Path) -> None:
    """The survivor reduces again with another group, however the first attempt ended."""
    began = threading.Event()
    reduce_while_a_peer_is_lost(tmp_path, lambda: _Unwoken(began), began)
    assert began.is_set()


def of_busy_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group whose threads work, and are known to be its own: as if each replica had a process."""
    monkeypatch.setattr("ftrun.process_groups.gloo.all_sleep", lambda *threads: False)
    monkeypatch.setattr("ftrun.process_groups.writers.Build.has_own_threads", True)


class _Late(_Unwoken):
    """A collective of an aborted group that ends a moment after the abort."""

    def __init__(self, began: threading.Event) -> None:
        super().__init__(began)
        self._waiter = threading.current_thread()
        self._future: torch.futures.Future[Any] = torch.futures.Future()

    def is_completed(self) -> bool:
        return self._future.done()

    def wait(self, timeout: timedelta = timedelta()) -> bool:
        if threading.current_thread() is not self._waiter and not self._future.done():
            self._future.set_exception(RuntimeError("aborted"))  # awaited by the repair
        return super().wait(timeout)

    def get_future(self) -> torch.futures.Future[Any]:
        return self._future


def test_a_repair_writes_when_the_aborted_collectives_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def collective() -> Work:
        works.append(_Late(began))
        return works[-1]

    def restore(reduction: Reduction, divisor: int) -> None:
        had_ended.append(all(work.is_completed() for work in works))
        original(reduction, divisor)

    original = Reduction.restore
    monkeypatch.setattr(Reduction, "restore", restore)
    monkeypatch.setattr("ftrun.process_groups.writers.LIMIT_S", DEADLINE_S)
    of_busy_threads(monkeypatch)
    began = threading.Event()
    works: list[_Late] = []
    had_ended: list[bool] = []
    reduce_while_a_peer_is_lost(tmp_path, collective, began)
    assert works and had_ended and all(had_ended)


def test_gradients_that_may_still_be_written_over_are_not_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This worker is replaced, and heals, so that S1 holds."""
    monkeypatch.setattr("ftrun.process_groups.writers.LIMIT_S", 0.05)
    of_busy_threads(monkeypatch)
    monkeypatch.setattr(Reduction, "restore", lambda *_: pytest.fail("it was repaired"))
    began = threading.Event()
    with pytest.raises(PeerError, match="may write over gradients"):
        reduce_while_a_peer_is_lost(tmp_path, lambda: _Unwoken(began), began)
