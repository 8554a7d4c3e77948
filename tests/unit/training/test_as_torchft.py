"""The Manager as torchft's scripts use it, on real Managers (scripted_agent.py)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import create_autospec

import pytest
import torch

from ftrun.base.errors import UserError
from ftrun.checkpoint.transport import CheckpointTransport, HTTPTransport
from ftrun.core.ids import Attempt
from ftrun.core.quorum import Endpoint, Member, Quorum
from ftrun.process_groups import ProcessGroupGloo
from ftrun.process_groups.wrappers import FakeProcessGroupWrapper
from ftrun.torchft import manager as names
from ftrun.training.event_loggers import EventLoggers
from ftrun.training.group_transport import PGTransport
from ftrun.training.launcher_arguments import seconds_of, stated_seconds
from ftrun.training.manager import Manager
from ftrun.training.optim import Optimizer
from ftrun.training.script_transport import donor, own_transport, receivers
from tests.unit.training.scripted_agent import job

# ------------------------------------------------------------ arguments


def test_variables_count_more_than_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHFT_TIMEOUT_SEC", "17")
    with job(tmp_path, 1) as single:
        assert single.add("0", timeout=timedelta(seconds=3))._timeout_s == 17
    monkeypatch.setenv("TORCHFT_TIMEOUT_SEC", "soon")
    with pytest.raises(UserError, match="TORCHFT_TIMEOUT_SEC='soon'"):
        seconds_of("TORCHFT_TIMEOUT_SEC", timedelta(seconds=3))


@pytest.mark.parametrize(
    ("given", "variable", "stated"),
    [(None, None, None), (timedelta(0), None, 0), (None, "17", 17), (timedelta(3), "17", 17)],
)
def test_a_timeout_is_stated_by_the_script_or_by_the_variable(
    monkeypatch: pytest.MonkeyPatch, given: timedelta | None, variable: str | None, stated: float
) -> None:
    monkeypatch.delenv("TORCHFT_TIMEOUT_SEC", raising=False)
    if variable is not None:
        monkeypatch.setenv("TORCHFT_TIMEOUT_SEC", variable)
    assert stated_seconds("TORCHFT_TIMEOUT_SEC", given) == stated


def test_small_names() -> None:
    assert names.get_timeout(None, timedelta(seconds=4)).total_seconds() == 4
    assert names.get_timeout("9", timedelta(seconds=4)).total_seconds() == 9
    assert [names.extract_trailing_digits(s) for s in ("a_12", "12", "a", "")] == [12, 12, 0, 0]


def test_a_wrapped_group_carries_a_job(tmp_path: Path) -> None:
    """A collective that fails though all are connected is refused: nobody commits it, or, if its
    peer has already, this one heals."""
    limit = timedelta(seconds=60)
    groups = {slot: FakeProcessGroupWrapper(ProcessGroupGloo(limit)) for slot in "01"}
    with job(tmp_path, 2) as both:
        for slot, pg in groups.items():
            both.add(slot, pg=pg)
        assert both.step() == [True, True]
        assert both.run(_reduce_quantised) == [True, True]
        groups["1"].report_future_error(RuntimeError("injected"))
        assert not both.step()[1]
        assert both.step() == [True, True]
        assert torch.equal(both.weights["0"], both.weights["1"])
        assert both.managers["0"].errored() is None


class _Reporting(ProcessGroupGloo):
    """A script's own group, which reports an error of its own once."""

    error: Exception | None = None
    named: tuple[Any, ...] = ()

    def set_rank_info(self, *place: Any) -> None:
        self.named = place
        super().set_rank_info(*place)

    def errored(self) -> Exception | None:
        found, self.error = self.error, None
        return found


def test_a_step_is_not_committed_if_the_script_s_own_group_reports_an_error(tmp_path: Path) -> None:
    group = _Reporting(timedelta(seconds=60))
    with job(tmp_path, 1) as single:
        manager = single.add("0", pg=group)
        assert group.named == ("0", 0, 1, 0)
        assert single.step() == [True]
        group.error = RuntimeError("mine")
        assert single.step() == [False]
        error = manager.errored()
        assert error is not None and str(error.original_exception) == "mine"
        assert single.step() == [True]


def _reduce_quantised(slot: str, manager: Manager) -> bool:
    manager.start_quorum()
    tensors = [torch.full((1000,), float(slot)), torch.full((3,), float(slot))]
    works = [manager.allreduce(tensor, should_quantize=True) for tensor in tensors]
    return (
        all(work.wait() for work in works)
        and manager.should_commit()
        and all(torch.equal(tensor, torch.full_like(tensor, 0.5)) for tensor in tensors)
    )


def test_reported_errors_have_their_original(tmp_path: Path) -> None:
    with job(tmp_path, 1) as single:
        manager = single.add("0")
        manager.start_quorum()
        try:
            raise KeyError("mine")
        except KeyError as mine:
            manager.report_error(mine)
        error = manager.errored()
        assert not manager.should_commit()
    assert isinstance(error, names.ExceptionWithTraceback)
    assert isinstance(error.original_exception, KeyError)
    assert "raise KeyError" in error.stack_trace


def test_loggers_tell_quorums_commits_and_errors(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for kind in ("quorums", "commits", "errors"):
        caplog.set_level(logging.INFO, f"torchft_{kind}")
    with job(tmp_path, 1) as single:
        single.add("0")
        assert single.step() == [True]
        manager = single.managers["0"]
        loggers = manager.quorum_logger, manager.commits_logger, manager.errors_logger
        assert [x.name for x in loggers] == ["torchft_quorums", "torchft_commits", "torchft_errors"]
        manager.start_quorum()
        manager.report_error(RuntimeError("why"))
        assert not manager.should_commit()
    found: dict[str, list[Any]] = {}
    for record in caplog.records:
        if getattr(record, "replica_id", None) == "0":
            found.setdefault(record.name, []).append(record)
    assert [r.commit_result for r in found["torchft_commits"]] == [True, False]
    assert [r.step for r in found["torchft_quorums"]] == [0]
    assert [r.error for r in found["torchft_errors"]] == ["why"]
    assert {r.job_id for r in found["torchft_commits"]} == {"job"}


# ------------------------------------------------------------ state on the training thread


def test_state_is_taken_on_the_training_thread_where_that_is_asked_for(tmp_path: Path) -> None:
    """FSDP2 must not reshard while another thread reads its state."""
    taken: dict[str, list[int]] = {"0": [], "1": []}
    loaded: dict[str, Any] = {}

    def train(slot: str, manager: Manager) -> int:
        for _ in range(3):
            manager.start_quorum()
            manager.allreduce(torch.ones(1)).wait()
            manager.should_commit()
        return threading.get_ident()

    with job(tmp_path, 2) as both:
        for slot in "01":

            def state(slot: str = slot) -> dict[str, torch.Tensor]:
                taken[slot].append(threading.get_ident())
                return {"w": torch.full((2,), float(slot) + 3)}

            both.add(slot).register_state_dict_fn(
                "sharded",
                lambda state, slot=slot: loaded.update({slot: state["w"].tolist()}),  # type: ignore[misc]
                state,
                state_dict_on_training_thread=True,
            )
        threads = both.run(train)
    assert loaded == {"1": [3.0, 3.0]}
    for slot, thread in zip("01", threads, strict=True):
        assert taken[slot] and set(taken[slot]) == {thread}


# ------------------------------------------------------------ the script's own transport


class Shelf(CheckpointTransport[Any]):
    """A transport by a dictionary that all replicas of this process share."""

    held: ClassVar[dict[tuple[str, int, int], Any]] = {}
    changed = threading.Condition()

    def __init__(self, name: str) -> None:
        self.name = name
        self.log: list[str] = []

    def metadata(self) -> str:
        return f"shelf {self.name}"

    def send_checkpoint(
        self, dst_ranks: Sequence[int], step: int, state_dict: Any, timeout: timedelta
    ) -> None:
        self.log.append(f"sent {list(dst_ranks)} of step {step}")
        with self.changed:
            for rank in dst_ranks:
                user = {key: dict(value) for key, value in state_dict["user"].items()}
                self.held[self.metadata(), rank, step] = {"user": user}
            self.changed.notify_all()

    def disallow_checkpoint(self) -> None:
        self.log.append("ended")

    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: timedelta) -> Any:
        self.log.append(f"receives from {src_rank} at {metadata}")
        with self.changed:
            key = metadata, int(self.name), step
            assert self.changed.wait_for(lambda: key in self.held, timeout.total_seconds())
            return self.held[key]


def test_a_script_s_own_transport_carries_the_state(tmp_path: Path) -> None:
    shelves = {slot: Shelf(slot) for slot in "01"}
    odd = {slot: threading.Lock() for slot in "01"}  # what ftrun's own transfer refuses
    loaded: dict[str, Any] = {}
    with job(tmp_path, 2) as both:
        for slot, shelf in shelves.items():
            manager = both.add(slot, checkpoint_transport=shelf)
            manager.register_state_dict_fn(
                "odd",
                lambda state, slot=slot: loaded.update({slot: state["lock"]}),  # type: ignore[misc]
                lambda slot=slot: {"lock": odd[slot]},  # type: ignore[misc]
            )
        assert both.step() == [True, True]
        assert both.step() == [True, True]
        assert torch.equal(both.weights["0"], both.weights["1"])
    assert loaded == {"1": odd["0"]}
    assert shelves["0"].log[:2] == ["sent [1] of step 0", "ended"]
    assert shelves["1"].log[0] == "receives from 0 at shelf 0"


def test_torchft_s_own_transports_are_replaced_by_ftrun_s_transfer() -> None:
    http = HTTPTransport[Any](timedelta(seconds=1), 0)
    group = PGTransport[Any](ProcessGroupGloo(), timedelta(seconds=1), torch.device("cpu"))
    assert own_transport(None, 1) is own_transport(http, 1) is own_transport(group, 1) is None
    http.shutdown(wait=False)
    with pytest.raises(UserError, match=r"has no metadata\(\)"):
        own_transport(object(), 1)


def test_newcomers_are_spread_over_the_donors() -> None:
    members = tuple(Member(str(i), f"i{i}", (Endpoint("", ""),), "") for i in range(5))
    quorum = Quorum(Attempt(1, 1), members, "", newcomers=("0", "2", "4"))
    assert [receivers(quorum, slot) for slot in "01234"] == [[], [0, 4], [], [2], []]
    assert [donor(quorum, rank) for rank in (0, 2, 4)] == ["1", "3", "1"]


# ------------------------------------------------------------ PGTransport


def _transports(in_place: Any = None) -> tuple[PGTransport[Any], PGTransport[Any], Any]:
    from tests.unit.process_groups.test_wrappers import pair as connected

    groups = [ProcessGroupGloo(timedelta(seconds=60)) for _ in range(2)]
    limit, device = timedelta(seconds=60), torch.device("cpu")
    made = (
        PGTransport[Any](groups[0], limit, device),
        PGTransport[Any](groups[1], limit, device, in_place),
    )
    return (*made, connected(*groups))


def test_a_checkpoint_goes_over_a_group_without_pickle() -> None:
    state = {
        "w": torch.arange(6.0).view(2, 3).t(),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "empty": torch.zeros(0),
        "bytes": b"abc",
        "plain": {"lr": 0.5, 3: None},
    }
    mine = {"w": torch.zeros(2, 3).t(), "half": torch.zeros(4, dtype=torch.bfloat16)}
    sender, receiver, connected = _transports(lambda: mine)
    with connected as pool:
        sent = pool.submit(sender.send_checkpoint, [1], 5, state)
        got = receiver.recv_checkpoint(0, sender.metadata(), 5)
        sent.result(60)
        assert torch.equal(got["w"], state["w"]) and torch.equal(mine["w"], state["w"])  # type: ignore[arg-type]
        assert torch.equal(got["half"], state["half"]) and not mine["half"].any()  # type: ignore[arg-type]
        assert (got["bytes"], got["plain"], got["empty"].numel()) == (b"abc", state["plain"], 0)
        sent = pool.submit(sender.send_checkpoint, [1], 6, {})
        with pytest.raises(Exception, match="of step 6, not 7"):
            receiver.recv_checkpoint(0, "", 7)
        sent.result(60)
    with pytest.raises(UserError, match=r"'fn' holds a .*function"):
        sender.send_checkpoint([1], 5, {"fn": lambda: None})


def test_a_script_may_test_its_loop_with_a_mock_of_the_manager() -> None:
    """As torchft's optim_test: what Optimizer asks of it are methods."""
    manager = create_autospec(Manager)
    model = torch.nn.Linear(3, 4)
    optimizer = Optimizer(manager, torch.optim.AdamW(model.parameters()))
    optimizer.zero_grad()
    manager.should_commit.return_value = True
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    assert (manager.start_quorum.call_count, manager.should_commit.call_count) == (1, 1)
    assert len(optimizer.state) == 2


def test_a_script_that_logs_all_of_level_info_gets_no_line_of_each_step() -> None:
    found: list[logging.LogRecord] = []

    class All(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record)

    handler, before = All(), logging.root.level
    logging.root.addHandler(handler)
    logging.root.setLevel(logging.INFO)
    try:
        loggers = EventLoggers("job", "0", 0)
        loggers.step_begins(1, 0)
        loggers.decided(0, True, None)
        loggers.decided(1, False, RuntimeError("x"))
    finally:
        logging.root.removeHandler(handler)
        logging.root.setLevel(before)
    assert found == []
