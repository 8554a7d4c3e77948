"""The benchmarks' arithmetic: what is made of time stamps, and which figures count as reached."""

from __future__ import annotations

import sys
import threading
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from benchmarks import goodput, join, recovery
from benchmarks.jobs import Line
from benchmarks.report import ABOVE, BELOW, FIGURES, MISS, OTHER_HOURS, Figure, judge, write
from benchmarks.results import (
    Result,
    Row,
    cells,
    grid,
    headings,
    load,
    quantile,
    ratio,
    save,
    trimmed,
    worst,
)
from benchmarks.rivals import measure as rivals
from benchmarks.rivals.launchers import RIVALS

STEP_S = 0.1


def lines(*gaps_s: float, lost: tuple[int, ...] = ()) -> list[Line]:
    """A worker's steps, each so long; those in ``lost`` were not committed."""
    found, when, step = [], 0.0, 0
    for index, gap_s in enumerate(gaps_s):
        when += gap_s
        step += index not in lost
        found.append(Line(when, step, index not in lost, 1.0))
    return found


def test_a_stall_is_the_longest_step_from_the_kill_on_beyond_the_median() -> None:
    calm = [STEP_S] * 10
    before = lines(*calm, STEP_S + 0.03, *calm)
    after = lines(*calm, STEP_S, STEP_S + 0.05, *calm)
    found = recovery.judge([before, after], killed=1.02, rejoined=1.5)
    assert found.stall_s == pytest.approx(0.05)
    assert found.step_s == pytest.approx(STEP_S)
    assert found.lost_steps == 0
    assert found.rejoin_s == pytest.approx(0.48)


def test_steps_in_vain_count_from_the_kill_on() -> None:
    survivor = lines(*[STEP_S] * 20, lost=(2, 12))
    assert recovery.judge([survivor], killed=1.05, rejoined=1.5).lost_steps == 1


def test_a_step_that_the_others_had_completed_is_not_in_vain() -> None:
    survivor = [*lines(*[STEP_S] * 11), Line(1.2, 11, False, 1.0), Line(1.3, 13, True, 1.0)]
    assert recovery.judge([survivor], killed=1.05, rejoined=1.5).lost_steps == 0
    again = [*survivor[:-1], Line(1.3, 12, True, 1.0)]
    assert recovery.judge([again], killed=1.05, rejoined=1.5).lost_steps == 1


def test_a_kill_ends_when_the_last_rank_takes_a_step_again() -> None:
    survivor = lines(*[STEP_S] * 10, STEP_S + 0.3, *[STEP_S] * 5)
    dead, back = lines(*[STEP_S] * 10), [Line(2.4, 24, True, 1.0), Line(2.5, 25, True, 1.0)]
    found = rivals.judge({0: [survivor], 1: [dead, back]}, victims=[1], killed=1.05)
    assert found.again_s == pytest.approx(2.4 - 1.05)
    assert found.stall_s == pytest.approx(0.3)
    assert found.repeated == 0


def test_survivors_that_start_again_repeat_steps() -> None:
    def processes() -> list[list[Line]]:
        after = [Line(5.0 + 0.1 * n, step, True, 1.0) for n, step in enumerate(range(7, 12))]
        return [lines(*[STEP_S] * 10), after]

    found = rivals.judge({0: processes(), 1: processes()}, victims=[1], killed=1.05)
    assert found.again_s == pytest.approx(5.0 - 1.05)
    assert found.stall_s == pytest.approx(5.0 - 1.0 - STEP_S)
    assert found.repeated == 4  # the steps 7 to 10


def test_a_step_in_vain_is_a_step_to_repeat() -> None:
    survivor = lines(*[STEP_S] * 20, lost=(12,))
    assert rivals.judge({0: [survivor], 1: [survivor]}, victims=[1], killed=1.05).repeated == 1


def test_a_rival_that_is_not_there_is_named_with_what_installs_it(tmp_path: Path) -> None:
    names = {rival.name: rival for rival in RIVALS}
    assert {name for name, r in names.items() if not r.left_out("ddp", tmp_path)} == {
        "ftrun", "torchrun", *(["torchft"] if find_spec("torchft") else []),
    }  # fmt: skip
    site = tmp_path / "lm-resiliency"
    told = names["lm-resiliency"].left_out("ddp", tmp_path)
    assert told.startswith("lm-resiliency was left out") and f"pip install --target {site}" in told
    (site / "lm_resiliency").mkdir(parents=True)
    assert not names["lm-resiliency"].left_out("ddp", tmp_path)
    assert "torchft was left out" in names["torchft"].left_out("fsdp", tmp_path)


def test_kills_are_counted_not_averaged() -> None:
    samples = {"ftrun": [1.0, 1.0], "peer": [1.0, 0.0]}
    row = Row("k", "w", "kills", samples, higher_is_better=True, is_count=True)
    result = Result("n", "t", [row])
    figure = Figure("f", "n", "k", ABOVE, 100)
    found = judge(figure, result)
    assert (found.target, found.measured, found.text) == ("≥ 100 %", "2/2 kills", "hit")
    assert cells(row, result.peers) == ["w, kills", "2/2", "", "1/2", "", "-"]
    assert found.peers == {"peer": "1/2"}
    samples["ftrun"].append(0.0)
    assert judge(figure, result).text == MISS


def test_many_peers_have_a_line_each() -> None:
    names = ("ftrun", "a", "b", "c", "d")
    times = Row("t", "time", "s", {name: [1.0, 3.0, 2.0] for name in names[:4]})
    kills = Row("k", "recovered", "kills", {n: [1.0, 0.0] for n in names}, is_count=True)
    head, rows = grid(Result("n", "t", [kills, times]))
    assert head == ["", "recovered, kills", "time, s"]
    assert rows[0] == ["ftrun", "1/2", "2.0 (3.0 of 3)"]
    assert rows[4] == ["d", "1/2", "-"]


def test_a_join_is_judged_by_the_steps_that_touch_it() -> None:
    steps = lines(0.1, 0.3, 0.1, 0.12, 0.1, 0.1, 0.4, 0.1, 0.1)
    stall_s, median_s = join.judge(steps, began=0.45, ended=0.75)
    assert (stall_s, median_s) == (pytest.approx(0.02), pytest.approx(0.1))


def test_loss_is_averaged_over_workers_and_steps() -> None:
    found = goodput._loss([Line(0, 3, True, 1.0), Line(0, 3, True, 2.0), Line(0, 12, True, 5.0)])
    assert found == [(0, 1.5), (10, 5.0)]


def test_beside_each_job_the_machines_own_pace_is_taken() -> None:
    with goodput._timed() as paces_ms:
        assert "pace" in {thread.name for thread in threading.enumerate()}
    assert "pace" not in {thread.name for thread in threading.enumerate()}
    assert len(paces_ms) >= 1
    assert min(paces_ms) > 0.0


def test_a_few_samples_have_their_worst_for_a_tail() -> None:
    assert quantile([3, 1, 2], 0.99) == 3
    assert quantile(range(1, 201), 0.99) == 198
    slow = Row("t", "time", "ms", {"ftrun": [1, 2, 9]})
    rate = Row("r", "rate", "GB/s", {"ftrun": [1, 2, 9]}, higher_is_better=True)
    assert (worst(slow, "ftrun"), worst(rate, "ftrun")) == (9, 1)


def test_a_mean_of_ratios_leaves_out_its_ends_and_has_an_error() -> None:
    mean, error = trimmed([2.0, 0.5] * 20)
    assert mean == pytest.approx(1.0), "twice and half are as far from 1"
    assert error == pytest.approx(0.69 / 0.8 / 40**0.5, rel=0.05)
    disturbed = trimmed([1.01] * 18 + [5.0, 0.1])
    assert disturbed == pytest.approx((1.01, 0.0))


def test_ratio_says_how_many_times_better_whatever_is_better() -> None:
    samples = {"ftrun": [2.0], "peer": [8.0]}
    assert ratio(Row("t", "time", "ms", samples), "peer") == 4
    assert ratio(Row("r", "rate", "/s", samples, higher_is_better=True), "peer") == 0.25
    assert ratio(Row("n", "lost", "steps", {"ftrun": [0.0], "peer": [1.0]}), "peer") is None


def test_every_row_of_a_table_is_as_long_as_its_head() -> None:
    rows = [Row("a", "a", "ms", {"ftrun": [1.0], "x": [2.0]}), Row("b", "b", "s", {"x": [1.0]})]
    peers = Result("n", "t", rows).peers
    assert peers == ["ftrun", "x"]
    assert {len(cells(row, peers)) for row in rows} == {len(headings(peers))}


@pytest.mark.parametrize(
    ("holds", "limit", "expected"),
    [
        (BELOW, 10.0, "hit"),
        (BELOW, 9.9, "**miss**"),
        (ABOVE, 10.0, "hit"),
        (ABOVE, 10.1, "**miss**"),
        (BELOW, "peer", "hit"),
    ],
)
def test_figures_are_hit_or_missed(holds: str, limit: float | str, expected: str) -> None:
    result = Result("n", "t", [Row("k", "w", "ms", {"ftrun": [1.0, 10.0, 30.0], "peer": [12.0]})])
    assert judge(Figure("f", "n", "k", holds, limit), result).text == expected
    tail = judge(Figure("f", "n", "k", BELOW, 20.0, share=0.99), result)
    assert tail.text == "**miss**" and tail.measured == "30.0 ms"


def test_what_was_not_measured_is_neither() -> None:
    assert judge(Figure("f", "n", "k", BELOW, 1.0), None).text == "not measured"


def test_results_survive_their_file_and_make_a_page(tmp_path: Path) -> None:
    row = Row("help_ms", "--help", "ms", {"ftrun": [100.0], "torchrun": [2000.0]})
    path = save(Result("startup", "Starting", [row], notes=["a note"]), tmp_path / "out")
    assert load(path).row("help_ms") == row
    page = write(tmp_path / "out", tmp_path).read_text()
    assert "| `--help` | ≤ 250 ms | 100.0 ms | 2000.0 | hit |" in page
    assert "not measured" in page and "No run of torchft or NVRx or lm-resiliency" in page
    assert "- a note" in (tmp_path / "BENCHMARKS_DETAILS.md").read_text()


def test_a_miss_is_named_with_its_reason_and_an_earlier_run(tmp_path: Path) -> None:
    def startup(first_line_ms: float) -> Result:
        samples = {"ftrun": [first_line_ms], "torchrun": [2000.0]}
        return Result(
            "startup", "Starting", [Row("ddp_first_line_ms", "first line", "ms", samples)]
        )

    save(startup(3000.0), tmp_path / "out")
    save(startup(2500.0), tmp_path / "benchmarks" / OTHER_HOURS)
    page = write(tmp_path / "out", tmp_path).read_text()
    _, _, misses = page.partition("## Misses")
    assert "3000.0 ms, target ≤ 2000 ms. ftrun imports torch before" in misses
    assert "An earlier run in another hour: 2500.0 ms." in misses


def test_each_recorded_miss_has_a_reason() -> None:
    kept = Path(__file__).parents[2] / "docs" / "benchmarks"
    recorded = {path.stem: load(path) for path in kept.glob("*.json")}
    for figure in FIGURES:
        if judge(figure, recorded.get(figure.result)).text == MISS:
            assert figure.reason, figure.what


def test_the_page_keeps_what_was_not_measured_again(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    save(Result("startup", "Starting", [], notes=["of the first run"]), first)
    save(Result("join", "Joining", [], notes=["of the first run, too"]), first)
    save(Result("join", "Joining", [], notes=["of the second run"]), second)
    write(first, tmp_path)
    write(second, tmp_path)
    page = (tmp_path / "BENCHMARKS_DETAILS.md").read_text()
    assert "- of the first run\n" in page and "- of the second run\n" in page
    assert "of the first run, too" not in page
