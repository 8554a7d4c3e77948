"""The restart budget: first at once, then backoff; refilled by progress; a crash loop ends it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ftrun.core.agent.failures import Failure
from ftrun.core.agent.restarts import (
    BudgetSpent,
    CrashLoop,
    Restart,
    RestartBudget,
    RestartRules,
    WillNotHelp,
)
from ftrun.core.messages import FailureReport


def killed() -> Failure:
    return Failure("0", 0, 100, 0, -9)


def raised(line: int = 3) -> Failure:
    trace = f'Traceback:\n  File "train.py", line {line}, in f\nValueError: at 0x{line:x}'
    return Failure("0", 0, 100, 0, 1, FailureReport("ValueError", "no", trace))


def test_the_first_restart_is_at_once_and_later_ones_wait_longer_and_longer() -> None:
    budget = RestartBudget(RestartRules(max_restarts=9))
    verdicts = [budget.failed(killed()) for _ in range(9)]
    assert [v.delay_s for v in verdicts if isinstance(v, Restart)] == [
        0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0,
    ]  # fmt: skip


def test_a_spent_budget_names_the_failure_that_began_the_row() -> None:
    budget = RestartBudget(RestartRules(max_restarts=1))
    first = killed()
    assert budget.failed(first) == Restart(0.0, 1)
    assert budget.failed(raised()) == BudgetSpent(first)


def test_a_new_step_ends_the_row_and_its_backoff() -> None:
    budget = RestartBudget(RestartRules(max_restarts=9))
    budget.failed(killed())
    budget.failed(killed())
    budget.started()
    budget.progressed(0)
    budget.progressed(1)
    assert budget.failed(killed()) == Restart(0.0, 3)


def test_ten_new_steps_give_one_restart_back() -> None:
    budget = RestartBudget(RestartRules(max_restarts=3, refill_steps=10))
    budget.failed(killed())
    budget.failed(killed())
    budget.started()
    for step in range(26):
        budget.progressed(step)
    assert (budget.spent, budget.refill) == (0, 5)


def test_steps_that_were_reached_before_give_nothing_back() -> None:
    budget = RestartBudget(RestartRules(max_restarts=3))
    for step in range(8):
        budget.progressed(step)
    budget.failed(killed())
    budget.started()
    for step in range(8):
        budget.progressed(step)
    assert (budget.row, budget.spent) == (1, 1)


def test_the_step_that_a_group_heals_to_is_not_its_own_progress() -> None:
    budget = RestartBudget(RestartRules(max_restarts=3))
    budget.failed(killed())
    budget.started()
    budget.progressed(0)
    budget.healed(4999)
    budget.progressed(4999)
    budget.progressed(5000)  # its peers' step, in which it healed
    assert budget.row == 1
    budget.progressed(5001)
    assert budget.row == 0


def test_the_first_word_after_a_heal_can_be_of_own_progress() -> None:
    budget = RestartBudget(RestartRules(max_restarts=3))
    budget.failed(killed())
    budget.started()
    budget.healed(20)
    budget.progressed(25)
    assert budget.row == 0


def test_the_same_traceback_three_times_without_a_step_is_a_crash_loop() -> None:
    budget = RestartBudget(RestartRules(max_restarts=99))
    for line in (3, 4, 3, 4):
        assert isinstance(budget.failed(raised(line)), Restart)
    assert budget.failed(raised()) == CrashLoop(3)


def crashed() -> Failure:
    return Failure("0", 0, 100, 0, -11)


def test_a_crash_by_a_signal_three_times_is_a_crash_loop() -> None:
    budget = RestartBudget(RestartRules(max_restarts=99))
    assert isinstance(budget.failed(crashed()), Restart)
    assert isinstance(budget.failed(crashed()), Restart)
    assert budget.failed(crashed()) == CrashLoop(3)


def ran_to(budget: RestartBudget, step: int) -> None:
    budget.started()
    for done in range(step + 1):
        budget.progressed(done)


def test_the_same_error_twice_at_the_same_step_will_come_at_every_try() -> None:
    budget = RestartBudget(RestartRules(max_restarts=99))
    ran_to(budget, 5)
    assert isinstance(budget.failed(raised()), Restart)
    ran_to(budget, 5)
    assert budget.failed(raised()) == WillNotHelp(5)


def test_the_same_error_at_a_later_step_or_after_another_one_may_be_chance() -> None:
    budget = RestartBudget(RestartRules(max_restarts=99))
    ran_to(budget, 5)
    assert isinstance(budget.failed(raised()), Restart)
    ran_to(budget, 6)
    assert isinstance(budget.failed(raised()), Restart)
    ran_to(budget, 6)
    assert isinstance(budget.failed(killed()), Restart)
    ran_to(budget, 6)
    assert isinstance(budget.failed(raised()), Restart)


def test_the_same_exit_code_twice_is_hopeless_before_the_first_step_only() -> None:
    usage = Failure("0", 0, 100, 0, 2)
    budget = RestartBudget(RestartRules(max_restarts=99))
    budget.started()
    assert isinstance(budget.failed(usage), Restart)
    budget.started()
    assert budget.failed(usage) == WillNotHelp(None)
    budget = RestartBudget(RestartRules(max_restarts=99))
    for _ in range(2):
        ran_to(budget, 3)
        assert isinstance(budget.failed(usage), Restart)


def test_an_error_without_a_known_position_is_a_crash_loop_only_at_the_third_time() -> None:
    budget = RestartBudget(RestartRules(max_restarts=99))
    for _ in range(2):
        assert isinstance(budget.failed(raised(), has_position=False), Restart)
    assert budget.failed(raised(), has_position=False) == CrashLoop(3)


def test_a_lost_peer_is_no_fault_of_the_script() -> None:
    report = FailureReport("RuntimeError", "Connection closed by peer [10.0.0.1]:2", "Traceback:")
    failure = Failure("0", 0, 100, 0, 1, report)
    budget = RestartBudget(RestartRules(max_restarts=99))
    assert isinstance(budget.failed(failure), Restart)
    assert isinstance(budget.failed(failure), Restart)


def test_torchrun_counts_restarts_and_judges_nothing_else() -> None:
    budget = RestartBudget(RestartRules(max_restarts=3, as_torchrun=True))
    for number in (1, 2, 3):
        assert budget.failed(raised(), at_start=True) == Restart(0.0, number)
        ran_to(budget, 100)
    assert isinstance(budget.failed(raised()), BudgetSpent)


def test_torchruns_restarts_end_where_a_step_repeated_from_memory_raises_again() -> None:
    budget = RestartBudget(RestartRules(max_restarts=9, as_torchrun=True, repeats=True))
    for _ in range(4):  # before the first step, or at another one: torchrun tries again
        assert isinstance(budget.failed(raised()), Restart)
    for step in (3, 4):
        budget.progressed(step)
        assert isinstance(budget.failed(raised()), Restart)
    assert budget.failed(raised()) == WillNotHelp(4)


def test_a_step_in_between_or_another_line_is_no_crash_loop() -> None:
    budget = RestartBudget(RestartRules(max_restarts=99))
    for line in (1, 2, 1, 2):
        assert isinstance(budget.failed(raised(line)), Restart)
    budget.progressed(0)
    budget.progressed(1)
    for line in (1, 2, 1):
        assert isinstance(budget.failed(raised(line)), Restart)


@given(st.lists(st.sampled_from(["kill", "raise", "step", "again"]), max_size=60))
def test_the_budget_is_never_overdrawn(events: list[str]) -> None:
    budget = RestartBudget(RestartRules(max_restarts=4, refill_steps=3))
    step = 0
    for event in events:
        if event == "step":
            step += 1
            budget.progressed(step)
        elif event == "again":
            budget.started()
        else:
            budget.failed(killed() if event == "kill" else raised())
        assert 0 <= budget.spent <= 4
