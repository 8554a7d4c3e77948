"""The report of `ftrun report` in a real browser, opened as a file."""

from __future__ import annotations

import asyncio
from datetime import datetime, timezone
from pathlib import Path

import pytest

from ftrun.tools.report.page import render
from ftrun.tools.report.story import read_story
from tests.unit.tools.report.test_report import account, event, incident, job
from tests.web.browser import CHROMIUM, Browser
from tests.web.test_page import CONTRASTS, HOSTILE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine"),
]


def written(path: Path) -> Path:
    """The report of a job with one failure, whose cause is hostile."""
    bands = {"width_s": 10.0, "last_s": 5.0, "seconds": {"training": [18, 9], "starting": [2, 1]}}
    change = {"kind": "shrink", "reason": HOSTILE, "members": ["0"], "duration_s": 0.02}
    lines = [job(), incident(1, 4.0, 2.5, HOSTILE), event("change", 4.0, **change)]
    for at in (1, 2, 3):
        times = {"step_s": 0.01 * at, "own_s": 0.004, "slowest": HOSTILE}
        lines.append(account(5.0 * at, at, bands=bands, **times))
    story = read_story(lines, "a")
    assert story is not None
    path.write_text(render(story, datetime(2026, 1, 2, tzinfo=timezone.utc), "1"), encoding="utf-8")
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_is_readable_and_asks_for_nothing(scheme: str, tmp_path: Path) -> None:
    """Its parts are shown, names are no markup, AA contrast, a phone's width, no request."""

    async def main() -> None:
        async with Browser(tmp_path) as browser:
            await browser.look(1280, 1400, scheme)
            await browser.open(written(tmp_path / "report.html").as_uri())
            await browser.until("!!document.getElementById('data')")
            shown = await browser.text()
            for words in ("Where the time went", "How long a step took", "Failures by cause",
                          "Incidents", "Changes of membership", "onerror="):  # fmt: skip
                assert words in shown, shown
            assert await browser.value("window.hacked") is None
            assert await browser.value("document.querySelectorAll('img').length") == 0
            shapes = "[...document.querySelectorAll('svg rect')].map(x => getComputedStyle(x).fill)"
            assert len(set(await browser.value(shapes))) == 2  # a colour for each use
            asked = "performance.getEntriesByType('resource').length"
            assert await browser.value(asked) == 0
            found = await browser.value(CONTRASTS)
            assert found[0][0] >= 4.5, found[:5]
            for width in (360, 800):
                await browser.look(width, 800, scheme, phone=width < 700)
                wide = await browser.value("document.documentElement.scrollWidth")
                assert wide <= width, (width, wide)
            assert browser.problems == []

    asyncio.run(asyncio.wait_for(main(), 180))
