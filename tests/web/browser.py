"""A headless Chromium, driven by the DevTools protocol over its WebSocket.

Every wait has a deadline: ``until`` evaluates an expression until it holds.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp

from ftrun.base import clock

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
START_S = 120.0
COMMAND_S = 60.0
POLL_S = 0.05
MESSAGE_BYTES_MAX = 64 * 1024 * 1024


class Browser:
    """One page in a separate Chromium. ``problems``: the errors in its console and its log."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._asked = 0
        self.problems: list[str] = []

    async def __aenter__(self) -> Browser:
        assert CHROMIUM is not None
        profile = self._directory / "profile"
        self._process = subprocess.Popen(
            [
                CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
                "--disable-dev-shm-usage", "--disable-background-networking",
                "--force-color-profile=srgb", "--hide-scrollbars", "--remote-debugging-port=0",
                f"--user-data-dir={profile}", "about:blank",
            ],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.client = aiohttp.ClientSession()
        try:
            port = await self._port(profile / "DevToolsActivePort")
            async with self.client.get(f"http://127.0.0.1:{port}/json/list") as response:
                (page,) = (x for x in await response.json() if x["type"] == "page")
            self._socket = await self.client.ws_connect(
                page["webSocketDebuggerUrl"], max_msg_size=MESSAGE_BYTES_MAX
            )
            for domain in ("Page", "Runtime", "Log", "Performance"):
                await self.do(f"{domain}.enable")
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        with contextlib.suppress(Exception):
            await self.do("Browser.close")
        await self._socket.close()
        await self._end()

    async def _end(self) -> None:
        await self.client.close()
        try:
            await asyncio.to_thread(self._process.wait, 20.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    async def _port(self, path: Path) -> int:
        ends = clock.now() + START_S
        while clock.now() < ends:
            lines = path.read_text().split() if path.exists() else []
            if lines:
                return int(lines[0])
            assert self._process.poll() is None, "Chromium has ended"
            await asyncio.sleep(POLL_S)
        raise AssertionError("Chromium does not open its port")

    async def do(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol; its result."""
        self._asked += 1
        number = self._asked
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            found = json.loads(await asyncio.wait_for(self._socket.receive_str(), COMMAND_S))
            if found.get("id") == number:
                assert "error" not in found, found
                result: dict[str, Any] = found["result"]
                return result
            self._note(found)

    def _note(self, event: dict[str, Any]) -> None:
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.problems.append(json.dumps(event["params"]["exceptionDetails"])[:600])
            case "Log.entryAdded" if event["params"]["entry"]["level"] == "error":
                entry = event["params"]["entry"]
                self.problems.append(f"{entry['text']} {entry.get('url', '')}")

    async def open(self, url: str) -> None:
        """Go to an address."""
        await self.do("Page.navigate", url=url)

    async def value(self, expression: str) -> Any:
        """The value of an expression in the page; a promise is awaited."""
        found = await self.do(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def until(self, expression: str, timeout_s: float = COMMAND_S) -> Any:
        """Wait until an expression holds; its value."""
        ends = clock.now() + timeout_s
        while True:
            found = await self.value(expression)
            if found:
                return found
            assert clock.now() < ends, (expression, self.problems, await self.text())
            await asyncio.sleep(POLL_S)

    async def text(self) -> str:
        """The text of the page."""
        return str(await self.value("document.body ? document.body.innerText : ''"))

    async def metrics(self) -> dict[str, float]:
        """The browser's figures about the page, by name."""
        found = await self.do("Performance.getMetrics")
        return {x["name"]: x["value"] for x in found["metrics"]}

    async def look(
        self, width: int, height: int, scheme: str = "light", phone: bool = False
    ) -> None:
        """Set the window's size and the colours that its user prefers."""
        await self.do(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=phone,
        )  # fmt: skip
        feature = {"name": "prefers-color-scheme", "value": scheme}
        await self.do("Emulation.setEmulatedMedia", features=[feature])

    async def key(self, name: str, code: int) -> None:
        """Press and release a key."""
        what = {"key": name, "code": name, "windowsVirtualKeyCode": code}
        text = {"text": "\r"} if name == "Enter" else {}
        await self.do("Input.dispatchKeyEvent", type="keyDown", **what, **text)
        await self.do("Input.dispatchKeyEvent", type="keyUp", **what)

    async def picture(self, path: Path) -> None:
        """Write what the window shows as a PNG."""
        found = await self.do("Page.captureScreenshot", format="png", captureBeyondViewport=False)
        path.write_bytes(base64.b64decode(found["data"]))
