"""The whole screen, driven by each of its keys. The facts on it are compared, not their places."""

from __future__ import annotations

from typing import Any

import pytest

from ftrun.base import clock
from ftrun.core.lighthouse.status import Status
from ftrun.tools.status.screen import columns
from ftrun.tools.status.screen.palette import DARK, LIGHT, TERMINAL
from ftrun.tools.status.screen.widgets import Table
from ftrun.tools.status.source import Picture, State
from tests.unit.tools.status.documents import DOCUMENTS, healing, healthy, hung, thousand
from tests.unit.tools.status.screen.driven import Driven, drive

HOSTILE = "[red]x[/] \x1b[2J\x1b]0;title\x07 \u202e\x9b31m\r\n\t[@click=app.quit]here[/]"
ROWS_MADE = 6
"""A row may be made so often for one key: measured, painted, and painted again as it scrolls."""


def test_the_head_has_the_facts_of_the_job() -> None:
    async def test(screen: Driven) -> None:
        assert "llama-1b-pretrain  ● training" in screen.line("llama")
        assert "14,208" in screen.line("step ")
        assert "3.41 /s" in screen.line("now")
        assert "3.30 /s" in screen.line(" run ")
        assert "10 of 10" in screen.line("replicas")
        assert "99.3 %" in screen.line("goodput")
        assert "1 min 11 s" in screen.line("lost")
        assert "5.7" in screen.line("quorum")
        assert "3.41" in screen.line("loss")
        assert "healed from replicas 0, 1 and 2" in screen.line("ago  Replica 3")

    drive(healthy(0), test)


def test_a_row_has_the_facts_of_its_replica() -> None:
    async def test(screen: Driven) -> None:
        row = screen.line(" 3      ● training")
        for fact in ("14,208", "ms", "%", "1/10", "62/85 GB", "cuda:0-1", "gpu-04"):
            assert fact in row, fact
        await screen.take(healing(3))
        assert "◐ healing 70 % of 4.1 GB 1.9 s" in screen.line("◐")
        assert "restarts in 3 s" in screen.line("○")
        assert "9 of 10" in screen.line("replicas")

    drive(healthy(0), test, size=(140, 36))


def test_the_hung_one_and_the_straggler_stand_out() -> None:
    async def test(screen: Driven) -> None:
        assert "✖ hung 11 s" in screen.line("✖")
        assert "replica 4 is hung" in screen.line("llama")
        assert "▲288 ms" in screen.line(" 7      ")
        assert "for 18.8 s at most" in screen.line("Replicas 0-3 and 5-9 wait for replica 4")

    drive(hung(3), test)


def test_moves() -> None:
    async def test(screen: Driven) -> None:
        found = []
        for keys in (["j"], ["down"], ["k"], ["up"], ["G"], ["home"], ["end"], ["g"], ["pagedown"]):
            await screen.press(*keys)
            found.append((screen.chosen or "").partition(":")[2])
        assert found == ["1", "2", "1", "0", "9", "0", "9", "0", "9"]

    drive(healthy(0), test)


def test_the_cursor_stays_with_its_replica_when_rows_come() -> None:
    async def test(screen: Driven) -> None:
        await screen.press("j", "j")
        few = healthy(1)
        few["replicas"] = few["replicas"][1:]
        await screen.take(few)
        assert screen.chosen == "replica:2"

    drive(healthy(0), test)


def test_what_is_seen_stays_when_rows_come_and_go() -> None:
    async def test(screen: Driven) -> None:
        await screen.press("f", "f")
        table = screen.app.screen.query_one("#replicas", Table)
        table.scroll_to(y=500, animate=False, force=True, immediate=True)  # as the wheel does
        await screen.pilot.pause()
        fewer = thousand(1)
        fewer["replicas"] = fewer["replicas"][:-1]
        await screen.take(fewer)
        assert table.scroll_y == 500
        assert screen.chosen == "replica:0"
        few = healthy(1)
        await screen.take(few)
        assert screen.chosen == "replica:0"
        assert "14,211" in screen.line(" 9      ")

    drive(thousand(0), test)


def test_columns_never_shrink_from_poll_to_poll() -> None:
    async def test(screen: Driven) -> None:
        before = screen.line("step time")
        assert before.index("step time") < 45
        await screen.take(healing(3))
        grown = screen.line("step time")
        assert grown.index("step time") > before.index("step time")
        await screen.take(healthy(4))
        assert screen.line("step time") == grown
        await screen.pilot.resize_terminal(139, 36)
        await screen.pilot.pause()
        assert screen.line("step time").index("step time") == before.index("step time")

    drive(healthy(0), test, size=(140, 36))


def test_ranks_open_and_close() -> None:
    async def test(screen: Driven) -> None:
        await screen.press("space")
        assert "cuda:1" in screen.line("    0.1")
        assert "20312" in screen.line("    0.1")
        await screen.press("j", "left")
        assert screen.chosen == "replica:0"
        await screen.press("left")
        assert "0.1 " not in screen.text()
        await screen.press("right")
        assert "0.1 " in screen.text()

    drive(healthy(0), test, size=(150, 36))


def test_panes_and_their_keys() -> None:
    async def test(screen: Driven) -> None:
        assert "replica 8: exit code 1" in screen.text()
        await screen.press("tab", "j")
        assert (screen.chosen or "").startswith("change:")
        await screen.press("tab")
        assert screen.chosen == "incident:3"
        assert "uncorrectable ECC error" in screen.text()
        assert "under way" in screen.line("ECC")
        assert "replica 8: exit code 1" not in screen.text()
        await screen.press("shift+tab", "shift+tab")
        assert screen.chosen == "replica:0"
        await screen.pilot.press("tab", "tab")  # faster than the focus moves
        await screen.until("ECC error")
        assert screen.chosen == "incident:3"

    drive(healing(0), test)


def test_a_wide_terminal_shows_both_panes() -> None:
    async def test(screen: Driven) -> None:
        assert "replica 8: exit code 1" in screen.text()
        assert "RuntimeError: CUDA error" in screen.text()

    drive(healing(0), test, size=(200, 40))


def test_details_are_kept_up_to_date() -> None:
    async def test(screen: Driven) -> None:
        await screen.press("j", "j", "j", "enter")
        assert "142,080 batches" in screen.line("step ")
        assert "9 left" in screen.line("restarts")
        assert "cuda:1" in screen.line("20333")
        assert "healing" in screen.text()
        assert "killed by SIGKILL" in screen.text()
        await screen.take(healthy(7))
        assert "14,229" in screen.line("step ")
        gone = healthy(8)
        gone["replicas"] = gone["replicas"][:2]
        await screen.take(gone)
        assert "no such replica any more" in screen.text()
        await screen.press("escape")
        assert "timeline" in screen.text()

    drive(healthy(0), test)


def test_help_names_every_key_of_the_key_line() -> None:
    async def test(screen: Driven) -> None:
        await screen.press("question_mark")
        for key in ("Enter", "l ", "s ", "d ", "r ", "K ", "/ ", "e ", "f ", "Tab", "t "):
            assert any(line.startswith(f"   {key}") for line in screen.lines()), key
        await screen.press("escape")
        assert "timeline" in screen.text()

    drive(healthy(0), test, size=(120, 40))


def test_a_filter_shows_what_has_its_words() -> None:
    async def test(screen: Driven) -> None:
        await screen.press("slash", *"gpu-02")
        assert "filter: gpu-02" in screen.text()
        assert screen.line("q quit")  # the line of keys is still there
        rows = [line for line in screen.lines() if "gpu-" in line and "● training" in line]
        assert len(rows) == 2
        await screen.press("enter", "j")
        assert screen.chosen == "replica:6"
        await screen.press("escape")
        assert "filter" not in screen.line("replicas ──")
        await screen.press("slash", *"zzz")
        assert "no replica is found by this filter" in screen.text()
        await screen.press("escape")
        assert "14,208" in screen.line(" 9      ")

    drive(healthy(0), test)


def test_folds() -> None:
    async def test(screen: Driven) -> None:
        assert "by state" in screen.text()
        assert "training  996" in screen.line("996")
        assert "▲287 ms" in screen.line("996")
        await screen.press("G", "enter", "G", "j")
        assert screen.chosen == "replica:999"
        await screen.press("f")
        assert "gpu-01  8" in screen.line("gpu-01")
        await screen.press("f", "f")
        assert "by state" in screen.text()

    drive(thousand(0), test)


def test_of_a_thousand_replicas_only_the_visible_ones_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So a key costs what fits on the terminal; scripts/screen_cost.py measures the time."""
    made = [0]
    real = columns.activity  # type: ignore[attr-defined]

    def counting(*args: Any) -> Any:
        made[0] += 1
        return real(*args)

    monkeypatch.setattr(columns, "activity", counting)

    async def test(screen: Driven) -> None:
        await screen.press("f", "f")
        assert screen.chosen == "replica:0"
        for key in ("j", "G", "k", "pageup", "g", "space"):
            made[0] = 0
            await screen.press(key)
            assert made[0] <= ROWS_MADE * 36, key
        made[0] = 0
        await screen.take(thousand(1))
        assert 0 < made[0] <= ROWS_MADE * 36

    drive(thousand(0), test)


def test_colours_follow_each_other() -> None:
    async def test(screen: Driven) -> None:
        seen = [screen.app.theme]
        for _ in range(3):
            await screen.press("t")
            seen.append(screen.app.theme)
            for strip in screen.app.screen._compositor.render_strips():
                for text, style, _ in strip:
                    assert style is not None and not style.underline, text  # a button is no link
        assert seen == [DARK, LIGHT, TERMINAL, DARK]
        assert "14,208" in screen.text()

    drive(healthy(0), test)


def test_without_colours_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def test(screen: Driven) -> None:
        assert "✖ hung" in screen.text()
        for strip in screen.app.screen._compositor.render_strips():
            filtered = strip.apply_filter(screen.app.get_line_filters()[-1], None)  # type: ignore[arg-type]
            for segment in filtered:
                style = segment.style
                named = style is not None and style.color is not None
                assert not named or style.color.is_default  # type: ignore[union-attr]

    drive(hung(0), test)


@pytest.mark.parametrize("document", sorted(DOCUMENTS))
@pytest.mark.parametrize("size", [(80, 24), (60, 12), (200, 60), (59, 24), (20, 6), (7, 3), (1, 1)])
def test_every_size_is_filled_and_none_is_too_small(document: str, size: tuple[int, int]) -> None:
    async def test(screen: Driven) -> None:
        assert {len(line) for line in screen.lines()} == {size[0]}
        if size[0] >= 60:
            assert screen.line("q quit")
            assert "llama-1b-pretrain" in screen.text()
        elif size[0] >= 20:
            assert "llama-1b-pretrain"[: size[0] - 1] in screen.text()

    drive(DOCUMENTS[document](2), test, size=size)


def test_a_resize_changes_the_layout() -> None:
    async def test(screen: Driven) -> None:
        await screen.pilot.resize_terminal(20, 10)
        await screen.pilot.pause()
        assert "step 14,208" in screen.text()
        assert "timeline" not in screen.text()
        await screen.pilot.resize_terminal(100, 30)
        await screen.pilot.pause()
        assert "timeline" in screen.text()
        assert {len(line) for line in screen.lines()} == {100}

    drive(healthy(0), test)


def hostile() -> Status:
    status = healing(0)
    status["job"]["job_id"] = HOSTILE
    status["scalars"] = {HOSTILE: 1.0, "loss": None}
    status["waiting"] = {"for": HOSTILE, "whom": [HOSTILE], "since_s": 1.0, "at_most_s": None}
    for change in status["history"]:
        change["reason"] = change["kind"] = HOSTILE
    for found in status["incidents"]:
        found["words"] = found["host"] = found["verdict"] = HOSTILE
    first = status["replicas"][0]
    first["host"] = first["pause"] = first["agent_id"] = first["incarnation"] = HOSTILE
    first["scalars"] = {HOSTILE: 2.0}
    for worker in first["workers"]:
        worker["device"] = HOSTILE
    return status


def test_hostile_text_is_shown_as_text() -> None:
    async def test(screen: Driven) -> None:
        for keys in ([], ["tab", "tab"], ["tab", "enter"], ["escape", "slash", "[", "x"]):
            await screen.press(*keys)
            text = screen.text().replace("\n", "")
            assert text.isprintable()
            assert {len(line) for line in screen.lines()} == {160}
            if not keys:
                assert "[red]x[/]" in text
        assert screen.app.is_running

    drive(hostile(), test, size=(160, 40))


def test_the_lighthouse_is_gone_and_comes_back() -> None:
    async def test(screen: Driven) -> None:
        now = clock.now()
        await screen.take(
            healthy(3), State.GONE, taken_at=now - 14, tried_at=now, next_s=4.0, words="refused"
        )
        assert "the lighthouse is gone" in screen.line("llama")
        assert "as of 14 s ago" in screen.line("llama")
        assert "has not answered for 14 s; asked again in 4 s" in screen.text()
        assert "14,217" in screen.text()  # the last picture stays
        await screen.take(healthy(4))
        assert "● training" in screen.line("llama")
        assert "gone" not in screen.text()

    drive(healthy(0), test)


def test_the_job_has_ended_and_its_last_picture_stays() -> None:
    async def test(screen: Driven) -> None:
        outcome = {"exit_code": 0, "reason": "All replicas have finished."}
        await screen.take(healthy(3), State.ENDED, outcome=outcome)
        assert "ended with exit code 0" in screen.line("llama")
        assert "All replicas have finished." in screen.text()
        assert "14,217" in screen.text()
        failed = {"exit_code": 1, "reason": "Replica 0 has no restart left."}
        await screen.take(healthy(3), State.ENDED, outcome=failed)
        assert "ended with exit code 1" in screen.line("llama")

    drive(healthy(0), test)


def test_a_wrong_token_is_said() -> None:
    async def test(screen: Driven) -> None:
        words = "The lighthouse at a:1 has another token. Give the job's: --token-file FILE."
        await screen.take(None, State.REFUSED, words=words)
        assert "does not let this request in" in screen.text()
        assert "--token-file" in screen.text()
        await screen.press("q")
        assert screen.app.return_value == 2

    drive(Picture(State.LOOKING), test)


def test_without_a_job_it_waits_for_one() -> None:
    async def test(screen: Driven) -> None:
        assert screen.text().split() == ["q", "quit"]  # nobody has looked yet
        await screen.take(None, State.LOOKING, tried_at=clock.now())
        assert "No job runs on this machine yet." in screen.text()
        await screen.take(healthy(0))
        assert "llama-1b-pretrain" in screen.text()

    drive(Picture(State.LOOKING), test)


@pytest.mark.parametrize("which", ["details", "torchft"])
def test_a_picture_that_comes_before_a_page_is_made_waits_for_it(which: str) -> None:
    async def test(screen: Driven) -> None:
        if which == "details":
            screen.app.show_details("3", None)
        else:
            screen.app.show_torchft()
        screen.app.take(Picture(State.LIVE, healthy(3), clock.now()))  # nothing has run between
        await screen.pilot.pause()
        assert "replica 3" in screen.text() or which == "torchft"
        assert screen.app.is_running

    drive(healthy(0), test)


@pytest.mark.parametrize("state", [State.LOOKING, State.CHOOSING])
def test_a_picture_that_comes_before_another_screen_is_made_waits_for_it(state: State) -> None:
    async def test(screen: Driven) -> None:
        screen.app.take(Picture(state, None, clock.now()))
        screen.app.take(Picture(state, None, clock.now()))
        await screen.pilot.pause()
        assert "quit" in screen.text()
        assert screen.app.is_running

    drive(healthy(0), test)


def test_q_leaves() -> None:
    async def test(screen: Driven) -> None:
        await screen.press("j", "enter", "q")
        assert screen.app.return_value == 0

    drive(healthy(0), test)
