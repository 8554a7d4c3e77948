"""Every public call that may wait for a peer ends by its timeout, when the peer never comes.

``WAITS`` has a row for each such call: what the peer has done when it stops, the call, and how the
call ends. After it the peer comes, and both replicas commit a step: the next call is usable.
``DOES_NOT_WAIT`` has all other public names of the classes that scripts use, so that a new one is
not forgotten. Real Managers (scripted_agent.py); isolation: test_waits_in_isolation.py.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed import TCPStore

import ftrun
from ftrun.base import clock
from ftrun.base.errors import PeerError, UserError
from ftrun.core.messages import Errored
from ftrun.process_groups import ProcessGroupGloo
from ftrun.process_groups.collectives import Collectives
from ftrun.torchft import (
    checkpointing,
    collectives,
    coordination,
    futures,
    parameter_server,
    process_group,
)
from ftrun.training import context, link
from ftrun.training import manager as manager_module
from ftrun.training.ddp import DistributedDataParallel, PureDistributedDataParallel
from ftrun.training.diloco import DiLoCo
from ftrun.training.elastic_loader import ElasticLoader
from ftrun.training.elastic_sampler import ElasticSampler
from ftrun.training.join import Join
from ftrun.training.local_sgd import LocalSGD
from ftrun.training.managed_group import ManagedProcessGroup
from ftrun.training.manager import Manager
from ftrun.training.optim import GradScaler, OptimizerWrapper
from ftrun.training.reductions import ManagedWork
from ftrun.training.session import Session
from ftrun.training.vote import GroupVote
from tests.unit.training.scripted_agent import DEADLINE_S, HOST, Job, job

SHORT = timedelta(seconds=0.3)
LONG = timedelta(seconds=DEADLINE_S)
HASTY = {"timeout": SHORT, "quorum_timeout": SHORT}
"""A Manager whose own timeouts are under test."""
UNSTATED = {"timeout": None, "quorum_timeout": SHORT}
"""One whose operations time out, and go out again for as long as their peer does not come."""
HEALS = {"timeout": SHORT, "quorum_timeout": LONG}
"""One whose quorum comes, however slow the machine is, and whose heal is under test."""
PATIENT = {"timeout": LONG, "quorum_timeout": LONG}
"""One whose timeouts are too long to end a call: that call's own timeout does."""


GOES_ON_S = 0.5
LOOKS_EACH_S = 0.1
"""How often a Manager looks at its deadlines here: in these tests they are tenths of a second."""


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "TICK_S", LOOKS_EACH_S)
    monkeypatch.setattr(manager_module, "DEFAULT_TIMEOUT", SHORT)


# ------------------------------------------------------------ a replica, and a peer that stops


class Here:
    """Two replicas; the one that calls, and the peer that never comes."""

    def __init__(self, running: Job, caller: str) -> None:
        self.job = running
        self.manager = running.managers[caller]
        self.peer = running.managers["1" if caller == "0" else "0"]
        self.kept: Any = None
        self.model = nn.Linear(2, 1)
        self.sgd = torch.optim.SGD(self.model.parameters(), lr=0.1)

    @property
    def group(self) -> ManagedProcessGroup:
        return ManagedProcessGroup(self.manager)

    def optimizer(self) -> OptimizerWrapper:
        return OptimizerWrapper(self.manager, self.sgd)


def _first(running: Job) -> str:
    """The peer has a Manager, and never begins a step."""
    return "0"


def _between(running: Job) -> str:
    """Both have committed a step; the peer does nothing more."""
    come_together(running)
    return "0"


def _step(running: Job) -> str:
    """Both have begun a step; the peer issues nothing, and does not decide."""
    come_together(running)

    def begin(slot: str, manager: Manager) -> None:
        manager.start_quorum(timeout=LONG)

    running.run(begin)
    return "0"


def _heal(running: Job) -> str:
    """The peer holds the state that the caller needs, and lets nobody read it."""
    donor = running.managers["0"]
    donor.disallow_state_dict_read()
    thread = Thread(target=donor.start_quorum, kwargs={"timeout": LONG}, daemon=True)
    thread.start()
    return "1"


def come_together(running: Job) -> None:
    """The peer comes: steps until both replicas hold the same step, which is a new one."""
    both = running.managers
    target = max(manager.state_dict()["step"] for manager in both.values()) + 1
    meeting = _Meeting(lambda: all(m.state_dict()["step"] >= target for m in both.values()))

    def steps(slot: str, manager: Manager) -> None:
        while not meeting.is_over(slot):
            manager.start_quorum(timeout=LONG)
            manager.allreduce(torch.ones(2)).wait()
            manager.should_commit(timeout=LONG)

    with ExitStack() as patient:
        for manager in both.values():
            patient.enter_context(_patience(manager))
        running.run(steps)
    assert len({manager.state_dict()["step"] for manager in both.values()}) == 1


class _Meeting:
    """Two replicas meet after each step; one that meets nobody makes another step."""

    def __init__(self, over: Callable[[], bool]) -> None:
        self._deadline = clock.now() + DEADLINE_S
        self._over = over
        self._here: set[str] = set()
        self._changed = threading.Condition()
        self._together = threading.Barrier(2)

    def is_over(self, slot: str) -> bool:
        assert clock.now() < self._deadline, f"replica {slot} and its peer do not come together"
        with self._changed:
            self._here.add(slot)
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: len(self._here) == 2, GOES_ON_S):
                self._here.discard(slot)
                return False  # the other may wait for this one in a step
        self._together.wait(DEADLINE_S)
        is_over = self._over()
        self._here.discard(slot)
        self._together.wait(DEADLINE_S)
        return is_over


@contextmanager
def _patience(manager: Manager) -> Iterator[None]:
    """Its operations and heals have time meanwhile, so that no slow machine fails them."""
    machine, healing = manager.session.machine, manager.session.healing
    before = machine._operation_timeout_s, machine._quorum_timeout_s, healing._timeout_s
    results_s, machine._results_timeout_s = machine._results_timeout_s, None
    machine._operation_timeout_s = machine._quorum_timeout_s = healing._timeout_s = DEADLINE_S
    yield
    machine._operation_timeout_s, machine._quorum_timeout_s, healing._timeout_s = before
    machine._results_timeout_s = results_s


# ------------------------------------------------------------ the table


@dataclass(frozen=True)
class Row:
    """One call. ``of``: the public name; ``peer``: what the peer has done before it stops.

    The call ends by ``raises``, whose text has ``words``; or it ``gives`` a value, and then
    ``errored`` says whether the Manager has an error. ``is_last``: the Manager is closed after it.

    ``repeats``: it makes one step after another for as long as a peer has data (Join), so that the
    peer is lost at its second time-out.
    ``ends_test``: the peer has no part of this kind, so it does not come. ``again``: the call is
    made once more, and ends alike.
    """

    of: str
    peer: Callable[[Job], str]
    call: Callable[[Here], Any]
    raises: type[Exception] | None = None
    words: str = ""
    gives: Any = None
    errored: bool = True
    is_last: bool = False
    repeats: bool = False
    again: bool = False
    ends_test: bool = False
    manager: dict[str, Any] = field(default_factory=lambda: HASTY)

    @property
    def name(self) -> str:
        patience = " with a timeout of its own" if self.manager is PATIENT else ""
        return f"{self.of}: {self.peer.__name__[1:]}{patience}"


def _times_out(
    of: str, peer: Callable[[Job], str], call: Callable[[Here], Any], words: str, **more: Any
) -> Row:
    return Row(of, peer, call, TimeoutError, words, **more)


def _bucket(here: Here) -> Any:
    future = here.manager.session.allreduce_bucket(torch.ones(2), True, None)
    here.manager.session.await_buckets()
    future.wait()
    return here.manager.should_commit()


def _heal_late(here: Here) -> None:
    here.manager.start_quorum()
    here.manager.session.heal_after_backward()


def _batch(here: Here) -> Any:
    with here.manager.batch():
        works = [here.manager.allreduce(torch.ones(2)) for _ in range(2)]
    return [work.wait() for work in works]


def _work(here: Here) -> Any:
    return here.manager.allreduce(torch.ones(2))


def _decide(here: Here, **arguments: Any) -> bool:
    _work(here)
    return here.manager.should_commit(**arguments)


def _backward(kind: Any) -> Callable[[Here], Any]:
    def call(here: Here) -> Any:
        here.kept = kind(here.manager, here.model)  # it reduces as long as it lives
        here.kept(torch.ones(1, 2)).sum().backward()

    return call


def _optimizer_step(here: Here) -> bool:
    optimizer = here.optimizer()
    _work(here)
    optimizer.step()
    return optimizer.committed


def _scaler_step(here: Here) -> bool:
    optimizer, scaler = here.optimizer(), GradScaler(here.manager, "cpu")
    scaler.scale(here.model(torch.ones(1, 2)).sum()).backward()
    _work(here)
    scaler.step(optimizer)
    return optimizer.committed


def _follow(here: Here) -> None:
    """It is out of data at once, and follows a peer that never comes."""
    here.kept = here.optimizer()
    network = DistributedDataParallel(here.manager, here.model)
    with Join([network]):
        pass


def _sync(here: Here) -> None:
    LocalSGD(here.manager, here.model, here.sgd, 1).sync()


def _local_step(here: Here) -> None:
    with LocalSGD(here.manager, here.model, here.sgd, 1):
        here.sgd.step()


def _outer_step(here: Here) -> None:
    outer = torch.optim.SGD(here.model.parameters(), lr=0.7)
    with DiLoCo(here.manager, [here.model], here.sgd, outer, sync_every=1):
        here.sgd.step()


def _sampler(here: Here) -> ElasticSampler:
    here.kept = here.kept or ElasticSampler(here.manager, 8, 2)
    return here.kept


def _load(here: Here) -> Any:
    return next(iter(ElasticLoader(range(8), _sampler(here))))


def _group_without_mate(here: Here) -> Any:
    """The caller's replica has two workers, of which the other one never starts."""
    agent = here.job.agent
    made = replace(
        agent.context("0"), workers_per_replica=2, group_store=f"{HOST}:{agent._store.port}"
    )
    here.manager.session.close(None)
    context.install(made)
    return Manager(ProcessGroupGloo(LONG), connect_timeout=SHORT)


def _receive(here: Here) -> Any:
    return here.group.recv([torch.ones(1)], 1).wait(SHORT)


def _in_group(name: str, *arguments: Any) -> Callable[[Here], Any]:
    return lambda here: getattr(here.group, name)(*arguments).wait()


def one() -> torch.Tensor:
    return torch.ones(1)


QUORUM, STATE = "a quorum did not come", "the state to heal from did not come"
OWN: dict[str, Any] = {"manager": PATIENT}
SYNCHRONOUS: dict[str, Any] = {"manager": {**HASTY, "use_async_quorum": False}}

WAITS = (
    # The Manager: no quorum.
    _times_out("Manager.start_quorum", _first, lambda h: h.manager.start_quorum(), QUORUM),
    _times_out(
        "Manager.start_quorum", _first, lambda h: h.manager.start_quorum(timeout=SHORT),
        QUORUM, **OWN,
    ),
    _times_out("Session.begin", _first, lambda h: h.manager.session.begin(for_draw=True), QUORUM),
    _times_out(
        "Session.catch_up",
        _first,
        lambda h: h.manager.session.catch_up(lambda: False),
        QUORUM,
    ),
    _times_out("Manager.peers", _first, lambda h: h.manager.peers(), "the other replicas"),
    _times_out(
        "Manager.peers", _first, lambda h: h.manager.peers(SHORT), "the other replicas", **OWN
    ),
    Row("Session.exchange", _first, lambda h: h.manager.session.exchange("a.py:1", "mean", b"1")),
    Row("Session.exchange", _between, lambda h: h.manager.session.exchange("a.py:1", "mean", b"1")),
    Row("Session.exchange", _step, lambda h: h.manager.session.exchange("a.py:1", "mean", b"1")),
    # The Manager: a state that does not come.
    Row("Manager.start_quorum", _heal, lambda h: h.manager.start_quorum(), manager=HEALS),
    _times_out(
        "Manager.start_quorum", _heal, lambda h: h.manager.start_quorum(timeout=SHORT),
        STATE, **OWN,
    ),
    Row("Session.heal_after_backward", _heal, _heal_late, manager=HEALS),
    # The Manager: operations.
    Row("Manager.allreduce", _step, lambda h: _work(h).wait(), gives=True),
    Row("Manager.batch", _step, _batch, gives=[True, True]),
    Row("Session.allreduce_bucket", _step, _bucket, gives=False),
    Row("Session.await_buckets", _step, _bucket, gives=False),
    _times_out("Manager.should_commit", _step, _decide, "results did not come", manager=UNSTATED),
    _times_out(
        "Manager.should_commit", _step, lambda h: _decide(h, timeout=SHORT), "results", **OWN
    ),
    Row(
        "Manager.wrap_future", _step,
        lambda h: h.manager.wrap_future(torch.futures.Future(), 7).wait(), gives=7,
    ),
    Row(
        "Manager.wrap_future", _step,
        lambda h: h.manager.wrap_future(torch.futures.Future(), 7, SHORT).wait(),
        gives=7, **OWN,
    ),
    Row("ManagedWork.wait", _step, lambda h: _work(h).wait(SHORT), gives=False, **OWN),
    Row("ManagedWork.wait", _step, lambda h: _work(h).wait(), gives=True),
    Row("ManagedWork.synchronize", _step, lambda h: _work(h).synchronize()),
    Row("ManagedWork.result", _step, lambda h: len(_work(h).result()), gives=1),
    Row("ManagedWork.get_future", _step, lambda h: _work(h).get_future().wait().numel(), gives=2),
    # The Manager: the end, and the workers of one replica.
    Row("Manager.linger", _first, lambda h: h.manager.linger(SHORT), gives=False, errored=False),
    Row(
        "Manager.linger", _between, lambda h: h.manager.linger(SHORT),
        gives=False, errored=False, **OWN,
    ),
    Row("Manager.leave", _between, lambda h: h.manager.leave(), errored=False, is_last=True),
    Row("Manager.leave", _step, lambda h: h.manager.leave(), errored=False, is_last=True),
    Row("Manager.shutdown", _between, lambda h: h.manager.shutdown(), errored=False, is_last=True),
    Row("Manager.__init__", _first, _group_without_mate, PeerError, "", is_last=True),
    # Optimizers, DDP.
    _times_out(
        "OptimizerWrapper.zero_grad", _first, lambda h: h.optimizer().zero_grad(), QUORUM
    ),
    _times_out(
        "OptimizerWrapper.zero_grad_again", _first, lambda h: h.optimizer().zero_grad_again(),
        QUORUM,
    ),
    _times_out(
        "OptimizerWrapper.step", _step, _optimizer_step, "results did not come", manager=UNSTATED
    ),
    _times_out(
        "GradScaler.step", _step, _scaler_step, "results did not come", ends_test=True,
        manager=UNSTATED,
    ),
    Row("DistributedDataParallel.forward", _step, _backward(DistributedDataParallel)),
    Row("PureDistributedDataParallel.forward", _step, _backward(PureDistributedDataParallel)),
    _times_out("Join.__exit__", _first, _follow, QUORUM),
    _times_out("Join.__exit__", _between, _follow, QUORUM, repeats=True),
    # Samples, local training.
    _times_out(
        "ElasticSampler.__iter__", _first, lambda h: next(iter(_sampler(h))), QUORUM, again=True
    ),
    _times_out("ElasticSampler.draw", _first, lambda h: _sampler(h).draw(), QUORUM, again=True),
    _times_out("ElasticLoader.__iter__", _first, _load, QUORUM, again=True),
    _times_out("LocalSGD.sync", _first, _sync, QUORUM),
    _times_out("LocalSGD.__enter__", _first, _local_step, QUORUM),
    Row("LocalSGD.sync", _between, _sync),
    _times_out("DiLoCo.__enter__", _first, _outer_step, QUORUM, **SYNCHRONOUS),
    # The replicas as a group of torch's.
    Row("ManagedProcessGroup.allreduce", _step, _in_group("allreduce", [one()]), gives=True),
    Row("ManagedProcessGroup.allreduce", _between, _in_group("allreduce", [one()]), gives=True),
    Row(
        "ManagedProcessGroup.allreduce_coalesced", _step,
        _in_group("allreduce_coalesced", [one(), one()]), gives=True,
    ),
    Row("ManagedProcessGroup.barrier", _first, _in_group("barrier"), gives=True),
    Row("ManagedProcessGroup.barrier", _between, _in_group("barrier"), gives=True),
    Row("ManagedProcessGroup.barrier", _step, _in_group("barrier"), gives=True),
    Row("ManagedProcessGroup.broadcast", _between, _in_group("broadcast", [one()], 0), gives=True),
    Row("ManagedProcessGroup.reduce", _between, _in_group("reduce", [one()]), gives=True),
    Row(
        "ManagedProcessGroup.reduce_scatter", _between,
        _in_group("reduce_scatter", [one()], [[one(), one()]]), gives=True,
    ),
    Row(
        "ManagedProcessGroup.reduce_scatter_tensor_coalesced", _between,
        _in_group("reduce_scatter_tensor_coalesced", [one()], [torch.ones(2)]), gives=True,
    ),
    Row(
        "ManagedProcessGroup.allgather", _between,
        _in_group("allgather", [[one(), one()]], [one()]), gives=True,
    ),
    Row(
        "ManagedProcessGroup.allgather_into_tensor_coalesced", _between,
        _in_group("allgather_into_tensor_coalesced", [torch.ones(2)], [one()]), gives=True,
    ),
    Row(
        "ManagedProcessGroup.alltoall_base", _between,
        _in_group("alltoall_base", torch.ones(2), torch.ones(2), [], []), gives=True,
    ),
    Row("ManagedProcessGroup.recv", _step, _receive, gives=False, **OWN),
    Row("ManagedProcessGroup.send", _first, _in_group("send", [one()], 1), gives=True),
)  # fmt: skip


@pytest.mark.parametrize("row", WAITS, ids=[row.name for row in WAITS])
def test_it_ends_by_its_timeout(row: Row, tmp_path: Path) -> None:
    with _scene(tmp_path, row) as here:

        def call(slot: str, manager: Manager) -> Any:
            try:
                return row.call(here)
            except Exception as error:  # noqa: BLE001  # how the call ends
                return error

        if row.repeats:
            Thread(target=_lose_the_peer, args=(here,), daemon=True).start()
        [found] = here.job.run(call, [here.manager.session.here.replica_id])
        if row.raises is None:
            assert not isinstance(found, Exception), found
            assert found == row.gives
            if row.errored:  # a heal's error comes with the next quorum, soon after the call
                here.job.agent.wait(lambda: here.manager.errored() is not None, "its error")
            else:
                assert here.manager.errored() is None
        else:
            assert isinstance(found, row.raises), found
            assert row.words in str(found)
        if row.is_last:
            with pytest.raises((UserError, RuntimeError)):
                here.manager.start_quorum(timeout=SHORT)
            return
        if row.repeats:  # of two replicas that are wanted one is lost: the next call says so
            with pytest.raises(TimeoutError, match=QUORUM):
                here.manager.start_quorum(timeout=SHORT)
            return
        if row.again:
            [found] = here.job.run(call, [here.manager.session.here.replica_id])
            assert isinstance(found, TimeoutError), found
            return
        if row.ends_test:
            return
        here.peer.allow_state_dict_read()
        come_together(here.job)


def _lose_the_peer(here: Here) -> None:
    agent, caller = here.job.agent, here.manager.session.here.replica_id
    agent.wait(lambda: len(agent.sent(caller, Errored)) >= 2, "two time-outs")
    agent.lose(here.peer.session.here.replica_id)


def test_without_a_stated_timeout_a_reduction_waits_for_its_peer(tmp_path: Path) -> None:
    """It goes out again after each time-out, and is complete once the peer comes."""
    with _scene(tmp_path, Row("", _step, _work, manager=UNSTATED)) as here:

        def reduce(slot: str, manager: Manager) -> tuple[bool, bool]:
            if manager is here.peer:
                times_out = lambda: len(here.job.agent.sent("0", Errored)) >= 3  # noqa: E731
                here.job.agent.wait(times_out, "three time-outs")
            work = _work(Here(here.job, slot))
            return work.wait(), manager.should_commit(timeout=LONG)

        with _patience(here.peer):
            assert here.job.run(reduce) == [(True, True)] * 2


@contextmanager
def _scene(directory: Path, row: Row) -> Iterator[Here]:
    limit_s = row.manager["quorum_timeout"].total_seconds()
    with job(directory, 2, join_timeout_s=limit_s) as running:
        for slot in ("0", "1"):
            running.add(slot, **row.manager)
        yield Here(running, row.peer(running))


# ------------------------------------------------------------ a mate, and torchft's own classes


def test_a_vote_ends_when_a_mate_never_votes(tmp_path: Path) -> None:
    """In replicas of several workers: ``any_in_group``, ``should_commit`` and ``linger``."""
    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    with job(tmp_path, 1) as running:
        alone = running.agent.context("0")
        both = [
            replace(
                alone, key=replace(alone.key, group_rank=rank), workers_per_replica=2,
                group_store=f"{HOST}:{store.port}",
            )
            for rank in (0, 1)
        ]  # fmt: skip
        with ThreadPoolExecutor(2) as pool:
            votes = list(pool.map(lambda place: GroupVote(place, DEADLINE_S), both))
            votes[0]._group.set_timeout(SHORT)
            for wait in (lambda: votes[0].any(True), lambda: votes[0].decide(None, True)):
                with pytest.raises(RuntimeError):
                    pool.submit(wait).result(DEADLINE_S)
        for vote in votes:
            vote.close()


class _Server(parameter_server.ParameterServer):
    @classmethod
    def new_process_group(cls) -> ProcessGroupGloo:
        return ProcessGroupGloo(SHORT)

    def forward(self, session_id: str, pg: Any) -> None:
        """Serve nothing."""


def _lighthouse_quorum() -> None:
    server = coordination.LighthouseServer("[::]:0", 2)
    try:
        coordination.LighthouseClient(server.address(), LONG).quorum("a", SHORT)
    finally:
        server.shutdown()


def _vote_of_ranks() -> None:
    lighthouse = coordination.LighthouseServer("[::]:0", 2)
    server = coordination.ManagerServer(
        "a", lighthouse.address(), "localhost", "[::]:0", "store", 2, SHORT, LONG, 0
    )
    try:
        client = coordination.ManagerClient(server.address(), LONG)
        with pytest.raises(TimeoutError):
            client._quorum(0, 0, "", False, True, 0, SHORT, "")
        client.should_commit(0, 0, True, SHORT)
    finally:
        server.shutdown()
        lighthouse.shutdown()


def _meet_at_store() -> None:
    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    address = f"{HOST}:{store.port}/x"
    process_group.reconfigure_with_store(ProcessGroupGloo(LONG), address, 0, 2, SHORT)


def _open_session() -> None:
    """A listener accepts, and never answers."""
    with socket.create_server((HOST, 0)) as listener:
        _Server.new_session(f"http://{HOST}:{listener.getsockname()[1]}/new_session")


def _late_future() -> None:
    futures.future_timeout(torch.futures.Future(), SHORT).wait()


OF_TORCHFT: dict[str, tuple[Callable[[], Any], type[Exception] | tuple[type[Exception], ...]]] = {
    "LighthouseClient.quorum": (_lighthouse_quorum, TimeoutError),
    "ManagerClient.should_commit": (_vote_of_ranks, TimeoutError),
    "ParameterServer.new_session": (_open_session, OSError),
    "future_timeout": (_late_future, (TimeoutError, RuntimeError)),
    "future_wait": (lambda: futures.future_wait(torch.futures.Future(), SHORT), TimeoutError),
    "reconfigure_with_store": (_meet_at_store, RuntimeError),
}


@pytest.mark.parametrize("name", OF_TORCHFT)
def test_what_has_torchft_s_name_ends_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameter_server, "ASK_TIMEOUT_S", SHORT.total_seconds())
    call, error = OF_TORCHFT[name]
    with ThreadPoolExecutor(1) as pool, pytest.raises(error):
        pool.submit(call).result(DEADLINE_S)


# ------------------------------------------------------------ none is forgotten

FACTS_AND_SETTINGS = """
    Manager: session register_state_dict_fn watch_buffers set_state_dict_fns allow_state_dict_read
        disallow_state_dict_read state_dict load_state_dict stop_requested wait_quorum report_error
        errored current_step batches_committed participating_rank num_participants is_participating
        contributors is_healing log quorum_logger commits_logger errors_logger
    Session: __init__ step_under_way keep_state awaits_newcomers others_join others_heal
        require_step issue watch_optimizer watch_sampler joining make_joining train_locally
        heal_with_place
        follow_quorums show_end
    ManagedWork: __init__ is_success exception is_completed
    ManagedProcessGroup: __init__ size rank getBackendName alltoall gather scatter recv_anysource
    OptimizerWrapper: __init__ add_param_group load_state_dict state_dict param_groups state
        defaults
    GradScaler: __init__ update
    DistributedDataParallel: __init__ forget_uses register_comm_hook join join_hook
        join_process_group
    PureDistributedDataParallel: __init__ no_sync
    ElasticSampler: __init__ epochs epoch trained samples fraction begins_step ends_step state_dict
        load_state_dict heal weight before_reduction committed put_back is_over forecast indices
    ElasticLoader: __init__ load
    DistributedSampler: __init__
    Join: __init__ __enter__
    LocalSGD: __init__ __exit__
    DiLoCo: __init__ __exit__
    LighthouseServer: __init__ address shutdown
    LighthouseClient: __init__ heartbeat
    ManagerServer: __init__ address shutdown
    ManagerClient: __init__
    ParameterServer: __init__ address new_process_group forward
"""
"""What does not wait for a peer: it answers at once, or waits for this process or a server only."""
NEWER_NAMES = (
    "all_gather_single", "all_gather_single_coalesced", "all_to_all_single",
    "reduce_scatter_single", "reduce_scatter_single_coalesced",
)  # fmt: skip
BY_OTHERS = {
    "Session.close": "Manager.leave has rows",
    "Session.finish": "Manager.shutdown has a row",
    "Session.any_in_group": "test_a_vote_ends_when_a_mate_never_votes",
    **{f"ManagedProcessGroup.{name}": "a row has its older name" for name in NEWER_NAMES},
}
SCRIPTS_USE = (
    Manager, Session, ManagedWork, ManagedProcessGroup, OptimizerWrapper, GradScaler,
    DistributedDataParallel, PureDistributedDataParallel, ElasticSampler, ElasticLoader,
    ftrun.DistributedSampler, Join, LocalSGD, DiLoCo,
)  # fmt: skip
TORCHFT_S_OWN = (
    coordination.LighthouseServer, coordination.LighthouseClient, coordination.ManagerServer,
    coordination.ManagerClient, parameter_server.ParameterServer,
)  # fmt: skip
OTHER_NAMES = {
    "CheckpointTransport": "a script's own class; Healing bounds it (test_as_torchft.py)",
    "HTTPTransport": "a choice without an effect: ftrun's own transfer carries states",
    "Drained": "an exception",
    "Interrupted": "an exception",
    "JoinHook": "torch's",
    "Joinable": "a protocol",
    "LaunchError": "an exception",
    "ProcessGroupGloo": "has its own timeout: tests/unit/process_groups",
    "ProcessGroupNCCL": "has its own timeout: tests/unit/process_groups",
    "WorldSizeMode": "an enumeration",
    "heartbeat": "notes a fact",
    "launch": "waits for a whole job, to its end: tests/process/test_launch.py",
    "manager": "makes a Manager",
    "paused": "notes a fact",
    "replicate": "its backward pass waits in allreduce_bucket and await_buckets",
    "stop_requested": "a fact",
}
OTHER_NAMES_OF_TORCHFT = {
    "allocate_reduce_scatter_output": "makes a tensor",
    "allreduce_quantized": "waits for its group, which has its own timeout",
    "context_timeout": "a deadline for a block of the script's",
    "get_padded_sizes": "counts",
    "get_stream_context": "a fact",
    "record_event": "of a stream",
    "reduce_scatter_quantized": "waits for its group, which has its own timeout",
    "stream_timeout": "waits in a thread of its own, for the device",
    "synchronize": "waits for the device",
    "trigger_nccl_fr_trace_through_pipe": "writes to a pipe",
    "ProcessGroupBaby": "has its own timeout: tests/unit/process_groups",
    "ProcessGroupBabyGloo": "has its own timeout: tests/unit/process_groups",
    "ProcessGroupBabyNCCL": "has its own timeout: tests/unit/process_groups",
    "ProcessGroupBabyXCCL": "refuses to be made",
    "ProcessGroupXCCL": "refuses to be made",
    "Quorum": "a record",
    "QuorumMember": "a record",
    "Timestamp": "a record",
}
SPECIAL = {"__init__", "__enter__", "__exit__", "__iter__"}


def _public(kind: type) -> set[str]:
    """The names that a script may use of a class, as far as ftrun has written them."""
    rooms = ("ftrun.t", Collectives.__module__)
    own = [base for base in kind.__mro__ if base.__module__.startswith(rooms)]
    names = {name for base in own for name in vars(base)}
    return {name for name in names if name in SPECIAL or not name.startswith("_")}


def _listed() -> set[str]:
    """All names of the tables: ``Class.method``."""
    found = {row.of for row in WAITS} | set(BY_OTHERS) | set(OF_TORCHFT)
    for text in re.split(r"\n    (?=\w)", FACTS_AND_SETTINGS.strip()):
        kind, _, names = text.partition(":")
        found |= {f"{kind.strip()}.{name}" for name in names.split()}
    return found


@pytest.mark.parametrize("kind", [*SCRIPTS_USE, *TORCHFT_S_OWN], ids=lambda kind: kind.__name__)
def test_each_public_name_is_in_a_table(kind: type) -> None:
    listed = {name for name in _listed() if name.startswith(f"{kind.__name__}.")}
    assert {f"{kind.__name__}.{name}" for name in _public(kind)} == listed


def test_each_public_class_and_function_is_in_a_table() -> None:
    known = {kind.__name__ for kind in SCRIPTS_USE} | set(OTHER_NAMES)
    assert {getattr(ftrun, name).__name__ for name in ftrun.__all__} <= known
    assert set(OTHER_NAMES) <= set(ftrun.__all__)
    own = {
        name
        for module in (checkpointing, collectives, coordination, futures, parameter_server,
                       process_group)
        for name, value in vars(module).items()
        if getattr(value, "__module__", "").startswith("ftrun.torchft.")
        and not name.startswith("_") and callable(value)
    }  # fmt: skip
    waiting = {name.partition(".")[0] for name in OF_TORCHFT}
    assert own == waiting | {kind.__name__ for kind in TORCHFT_S_OWN} | set(OTHER_NAMES_OF_TORCHFT)
