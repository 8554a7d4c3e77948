"""The page of a door of many jobs, in a browser."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from tests.jobs import TOKEN, Lighthouse
from tests.process.test_door import Noting, shown
from tests.web.browser import CHROMIUM, Browser

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine"),
]

ROWS = "[...document.querySelectorAll('#rows tr')].map((row) => row.innerText.split(/\\s+/))"


def test_the_page_lists_the_jobs_and_how_often_each_lighthouse_has_started(tmp_path: Path) -> None:
    with Lighthouse(tmp_path, "--jobs") as door:
        asyncio.run(look(tmp_path, door))
        door.signal(signal.SIGTERM)
        assert door.end() == 0


async def look(directory: Path, door: Lighthouse) -> None:
    token = (directory / TOKEN).read_text().strip()
    agents = [Noting(job, number, door.address, token) for job in ("a", "b") for number in (0, 1)]
    await asyncio.gather(*(agent.welcomed() for agent in agents))
    async with Browser(directory) as browser:
        await browser.open(f"http://{door.http}/")
        await browser.until("document.readyState === 'complete'")
        await browser.value(
            f"document.getElementById('token').value = {json.dumps(token)}; "
            "document.getElementById('sign-in').requestSubmit()"
        )
        await browser.until(f'JSON.stringify({ROWS}) === \'[["a","1"],["b","1"]]\'')
        assert await browser.value("document.getElementById('sign-in').hidden")
        (killed,) = (one for one in await shown(directory, door) if one["job"] == "b")
        os.kill(killed["pid"], signal.SIGKILL)
        await browser.until(f'JSON.stringify({ROWS}) === \'[["a","1"],["b","2"]]\'')
        assert browser.problems == []
    await asyncio.gather(*(agent.close() for agent in agents))
