"""Deaths at the worst moments, on real Managers (scripted_agent.py): no survivor loses a step."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from ftrun.base.errors import PeerError
from ftrun.checkpoint.layout import CHUNK_BYTES
from ftrun.checkpoint.stripes import Stripe, Stripes
from ftrun.core.messages import Built, Healed, Report
from ftrun.process_groups.gloo import PIECE_BYTES
from ftrun.training.manager import Manager
from tests.unit.training.scripted_agent import DEADLINE_S, Job, job

BIG = 24 << 20


class Reduction:
    """One step in each of ``job``'s replicas: all have issued their operation, some are lost."""

    def __init__(self, running: Job, lost: str, values: int = 4) -> None:
        self.values = values
        self.running = running
        self.lost = lost
        self._issued = threading.Barrier(len(running.managers) + 1)

    def run(self, strike: Any) -> list[float]:
        """The survivors' results; ``strike`` is called once all but the lost ones have issued."""
        striker = threading.Thread(target=lambda: (self._issued.wait(DEADLINE_S), strike()))
        striker.start()
        found = self.running.run(self._one)
        striker.join(DEADLINE_S)
        return [value for value in found if value is not None]

    def _one(self, slot: str, manager: Manager) -> float | None:
        manager.start_quorum()
        tensor = torch.full((self.values,), float(slot))
        # The first of the lost issues nothing, so the reduction cannot complete before it is lost.
        work = manager.allreduce(tensor) if slot != self.lost[0] else None
        self._issued.wait(DEADLINE_S)
        if work is None or slot in self.lost:
            return None
        work.wait()
        assert manager.should_commit()
        assert manager.num_participants() == len(self.running.managers) - len(self.lost)
        assert bool((tensor == tensor[0]).all())
        return float(tensor[0])


def started(tmp_path: Path, slots: str) -> Any:
    """A job that has committed a step, and then may shrink to one."""
    return job(tmp_path, len(slots), min_replicas=1)


def test_two_that_die_at_once_cost_no_step(tmp_path: Path) -> None:
    with started(tmp_path, "0123") as four:
        for slot in "0123":
            four.add(slot)
        assert four.step() == [True] * 4
        assert Reduction(four, "32").run(lambda: [four.agent.lose(s) for s in "32"]) == [0.5, 0.5]
        assert four.managers["0"].current_step() == 2


def test_a_reduction_in_pieces_is_repaired_as_a_whole(tmp_path: Path) -> None:
    with started(tmp_path, "012") as three:
        for slot in "012":
            three.add(slot)
        assert three.step() == [True] * 3
        large = Reduction(three, "2", values=5 * PIECE_BYTES // 8)
        assert large.run(lambda: three.agent.lose("2")) == [0.5, 0.5]


def test_one_that_dies_during_the_repair_costs_no_step(tmp_path: Path) -> None:
    def strike() -> None:
        before = len(four.agent.sent("2", Report))
        four.agent.lose("3")
        four.agent.wait(lambda: len(four.agent.sent("2", Report)) > before, "the interrupt")
        four.agent.lose("2")

    with started(tmp_path, "0123") as four:
        for slot in "0123":
            four.add(slot)
        assert four.step() == [True] * 4
        assert Reduction(four, "32").run(strike) == [0.5, 0.5]
        assert four.managers["0"].current_step() == 2


def test_a_group_that_cannot_be_built_is_built_once_more(tmp_path: Path) -> None:
    """Its peers wait for it until an abort, or fail too: the next attempt has another group."""
    with started(tmp_path, "012") as trio:
        for slot in "012":
            trio.add(slot)
        assert trio.step() == [True] * 3
        groups = trio.managers["1"].session.engine._groups
        refused: list[Any] = []
        connect = groups._connect

        def refuse(quorum: Any, signal: Any) -> Any:
            if refused:
                return connect(quorum, signal)
            refused.append(quorum.attempt)
            raise PeerError("connection refused")

        groups._connect = refuse
        assert Reduction(trio, "2").run(lambda: trio.agent.lose("2")) == [0.5, 0.5]
        assert trio.managers["0"].current_step() == 2
        assert trio.agent.sent("1", Built)[-1].attempt > refused[0]


@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "new memory"])
def test_a_donor_that_dies_during_a_heal_costs_nobody_a_step(
    tmp_path: Path, in_place: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces that arrived from it are kept; the other donor gives the rest under the next tag."""

    def train(slot: str, manager: Manager) -> list[bool]:
        committed: list[bool] = []
        while not left.is_set():
            manager.start_quorum()
            quorum = manager.session.machine.in_force
            heals = quorum is not None and "2" in quorum.newcomers
            if slot == "0" and heals:
                assert dead.wait(DEADLINE_S)  # else the step would stand without the newcomer
            work = manager.allreduce(torch.ones(1))
            if slot == "1" and heals:
                break
            work.wait()
            committed.append(manager.should_commit())
            if slot == "2" and len(committed) == 2:
                manager.leave()
                left.set()
        return committed

    def arrive(stripes: Stripes, stripe: Stripe) -> None:
        arrived.append(stripe.next)
        if len(arrived) == 3:
            threading.Thread(target=lambda: (trio.die("1"), dead.set())).start()
        if len(arrived) >= 3:
            assert dead.wait(DEADLINE_S)
        arrives(stripes, stripe)

    arrived: list[Any] = []
    dead, left, arrives = threading.Event(), threading.Event(), Stripes.arrived
    with started(tmp_path, "012") as trio:
        weights = {slot: _add(trio, slot, in_place) for slot in "012"}
        assert trio.step() == [True] * 3
        trio.die("2")
        while trio.step() != [True, True]:
            pass
        trio.agent.restart("2")
        weights["2"] = _add(trio, "2", in_place)
        monkeypatch.setattr(Stripes, "arrived", arrive)
        survivor, _, newcomer = trio.run(train)
        [healed] = trio.agent.sent("2", Healed)[-1:]
    assert all(survivor) and newcomer == [True, True]
    assert healed.donors == ("0",) and healed.nbytes >= BIG
    assert sorted(arrived) == list(range(-(-healed.nbytes // CHUNK_BYTES)))  # each chunk once
    assert torch.equal(weights["0"], weights["2"])


def _add(running: Job, slot: str, in_place: bool) -> torch.Tensor:
    """A replica with ``BIG`` bytes that an optimizer steps."""
    weight = torch.nn.Parameter(torch.full((BIG // 4,), float(slot)))

    def load(state: dict[str, torch.Tensor]) -> None:
        with torch.no_grad():
            weight.copy_(state["weight"])

    manager = running.add(
        slot,
        load_state_dict=load,
        state_dict=lambda: {"weight": weight.detach()},
        heal_in_place=in_place,
    )
    manager.session.watch_optimizer(torch.optim.SGD([weight], lr=1.0))
    return weight.detach()
