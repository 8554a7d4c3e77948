"""The lighthouse's page in a real browser: its facts, its actions, its bad luck."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from ftrun.core.ids import WorkerKey
from ftrun.core.lighthouse.status import Status
from ftrun.lighthouse.settings import ServiceSettings
from ftrun.lighthouse.web import WebServer, build_app
from ftrun.protocol.auth import bearer, new_token
from tests.unit.lighthouse.scripted_operations import ScriptedOperations
from tests.web.browser import CHROMIUM, Browser
from tests.web.scripted_job import job_status

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine"),
]

SHOWN = "document.getElementById('picture')?.hidden === false"
HOSTILE = "</td><img src=x onerror='window.hacked=1'><script>window.hacked=1</script>\x1b[31m&amp;"
HEAP_BYTES_MAX = 20_000_000
ENTER = 13
EVENTS_S = 5.0
"""Some events pass while the page's own time is measured."""


class Served:
    """The web server of a scripted job, which can go away and come back at its port."""

    def __init__(self, status: Callable[[], Status]) -> None:
        self.status, self.token = status, new_token()
        self.operations = ScriptedOperations()
        self.port = 0

    async def __aenter__(self) -> Served:
        settings = ServiceSettings(Path("/nowhere"), self.token)
        listener = socket.create_server(("127.0.0.1", self.port))
        self.port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/"
        self._server = WebServer(build_app(self.status, settings, self.operations), settings)
        await self._server.start(listener)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop()

    async def link(self, browser: Browser) -> str:
        """A link that works once."""
        async with browser.client.post(
            self.url + "links", headers={"Authorization": bearer(self.token)}
        ) as response:
            return f"{self.url}#code={(await response.json())['code']}"


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 400.0))


def test_a_link_opens_the_page_and_hostile_text_stays_text(tmp_path: Path) -> None:
    async def main() -> None:
        served = Served(lambda: job_status(4, job_id=HOSTILE, text=HOSTILE))
        async with served, Browser(tmp_path) as browser:
            link = await served.link(browser)
            await browser.open(link)
            await browser.until(SHOWN)
            # The code is in no history, the token nowhere in the page.
            assert await browser.value("location.href") == served.url
            kept = await browser.value("JSON.stringify([{...localStorage}, {...sessionStorage}])")
            assert served.token not in kept
            text = await browser.text()
            for fact in ("4.2", "98.1 %", "healing", "60 % of 5 GiB", "starts again in 3.0 s"):
                assert fact in text, (fact, text)
            assert "slower than its peers" in text
            assert text.count("<img src=x onerror") >= 4
            assert await browser.value("window.hacked === undefined") is True
            assert await browser.value("document.querySelectorAll('img').length") == 1
            drawn = "document.querySelectorAll('#account path.use-healing').length"
            assert await browser.value(drawn) == 1
            # A reload keeps the session; the link works once.
            await browser.do("Page.reload")
            await browser.until(SHOWN)
            assert browser.problems == []
            await browser.value("sessionStorage.clear()")
            await browser.open("about:blank")
            await browser.open(link)
            await browser.until("document.body?.innerText.includes('Refused')")

    run(main())


def test_the_page_asks_for_the_token_and_refuses_another(tmp_path: Path) -> None:
    async def main() -> None:
        async with Served(job_status) as served, Browser(tmp_path) as browser:

            async def give(token: str) -> None:
                await browser.until("document.getElementById('entry')?.hidden === false")
                await browser.value(
                    f"document.getElementById('token').value = {json.dumps(token)};"
                    "document.getElementById('sign-in').requestSubmit()"
                )

            await browser.open(served.url)
            await give(new_token())
            await browser.until("document.body?.innerText.includes('Refused: the token')")
            await give(served.token)
            await browser.until(SHOWN)
            assert await browser.value("document.getElementById('token').value") == ""

    run(main())


def test_a_kill_asks_first_by_keyboard(tmp_path: Path) -> None:
    async def main() -> None:
        async with Served(job_status) as served, Browser(tmp_path) as browser:
            await browser.open(await served.link(browser))
            await browser.until(SHOWN)
            await browser.value("document.querySelector('#rows tr:nth-child(2) button').focus()")
            await browser.key("Enter", ENTER)
            await browser.until("document.getElementById('detail').open")
            assert "pid 813" in await browser.text()
            await browser.value("document.querySelector('[data-command=kill]').focus()")
            await browser.key("Enter", ENTER)
            await browser.until("document.activeElement.id === 'confirm-no'")
            await browser.key("Enter", ENTER)
            await browser.until("document.getElementById('confirm').hidden")
            assert served.operations.operations == {}
            await browser.value("document.querySelector('[data-command=kill]').click()")
            await browser.value("document.getElementById('confirm-yes').click()")
            await browser.until(
                "document.getElementById('outcome').textContent.includes('under way')"
            )
            served.operations.end(1, "replica 1 was killed")
            await browser.until(
                "document.getElementById('outcome').textContent.includes('was killed (done)')"
            )
            # The stacks of another operation are shown as text.
            await browser.value("document.querySelector('[data-command=stack]').click()")
            await browser.until("document.getElementById('outcome').textContent === 'under way'")
            key = WorkerKey("1", "aa", 0)
            served.operations.operations[2].stacks = {key: "File <b>train.py</b>"}
            served.operations.end(2, "Stacks of 1 worker.")
            await browser.until("document.querySelector('#stacks pre')?.textContent")
            assert "File <b>train.py</b>" in await browser.text()
            del served.operations.operations[2]
            (asked,) = served.operations.operations.values()
            assert (asked.request.command, asked.request.replica_id) == ("kill", "1")
            assert browser.problems == []

    run(main())


def test_a_lighthouse_that_goes_leaves_its_last_picture_and_is_found_again(tmp_path: Path) -> None:
    async def main() -> None:
        served = Served(job_status)
        async with Browser(tmp_path) as browser:
            async with served:
                await browser.open(await served.link(browser))
                await browser.until(SHOWN)
            await browser.until("!document.getElementById('banner').hidden")
            text = await browser.text()
            assert "The lighthouse does not answer." in text
            assert "This is the last picture" in text
            assert "98.1 %" in text
            async with served:  # At the same port, with the same token, and no memory.
                await browser.until("document.getElementById('live').textContent === 'live'")
                assert await browser.value("document.getElementById('banner').hidden")

    run(main())


def test_a_thousand_replicas_fold_by_node(tmp_path: Path) -> None:
    async def main() -> None:
        served = Served(lambda: job_status(1000))
        async with served, Browser(tmp_path) as browser:
            await browser.open(await served.link(browser))
            await browser.until(SHOWN)
            assert await browser.value("document.querySelectorAll('#rows tr').length") == 125
            milliseconds = await browser.value(
                "(() => { const began = performance.now();"
                "document.querySelector('#rows button').click();"
                "document.body.offsetHeight; return performance.now() - began; })()"
            )
            assert await browser.value("document.querySelectorAll('#rows tr').length") == 133
            before = await browser.metrics()
            await asyncio.sleep(EVENTS_S)
            await browser.do("HeapProfiler.collectGarbage")
            after = await browser.metrics()
            heap = after["JSHeapUsedSize"]
            busy_s, all_s = (after[x] - before[x] for x in ("TaskDuration", "Timestamp"))
            print(
                f"unfolded in {milliseconds:.0f} ms, heap {heap / 1e6:.1f} MB, "
                f"{100 * busy_s / all_s:.1f} % of a core"
            )
            assert heap < HEAP_BYTES_MAX

    run(main())


CONTRASTS = """
(() => {
  const numbers = (text) => { const context = CONTEXT; context.clearRect(0, 0, 1, 1);
    context.fillStyle = text; context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data]; };
  const light = (rgb) => { const [r, g, b] = rgb.slice(0, 3).map((x) => x / 255)
    .map((x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const CONTEXT = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const found = [];
  for (const node of document.querySelectorAll("body *")) {
    if (![...node.childNodes].some((x) => x.nodeType === 3 && x.data.trim())) continue;
    if (!node.checkVisibility() || node.matches(".unseen, .skip, th")) continue;
    const style = getComputedStyle(node);
    let ground = node;
    while (ground && numbers(getComputedStyle(ground).backgroundColor)[3] < 255) {
      ground = ground.parentElement;
    }
    const below = numbers(getComputedStyle(ground || document.body).backgroundColor);
    const above = numbers(node instanceof SVGElement ? style.fill : style.color);
    const [low, high] = [light(below), light(above)].sort((a, b) => a - b);
    const ratio = (high + 0.05) / (low + 0.05);
    found.push([ratio, node.textContent.slice(0, 40), node.className.baseVal ?? node.className]);
  }
  return found.sort((a, b) => a[0] - b[0]);
})()
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_readable(scheme: str, tmp_path: Path) -> None:
    """Contrast AA (4.5) of every text, and no sideways scrolling on a phone."""

    async def main() -> None:
        async with Served(job_status) as served, Browser(tmp_path) as browser:
            await browser.look(1280, 1400, scheme)
            await browser.open(await served.link(browser))
            await browser.until(SHOWN)
            found = await browser.value(CONTRASTS)
            assert len(found) > 60
            assert found[0][0] >= 4.5, found[:5]
            for width in (360, 412, 800):
                await browser.look(width, 800, scheme, phone=width < 700)
                wide = await browser.value("document.documentElement.scrollWidth")
                assert wide <= width, (width, wide)

    run(main())
