"""A lighthouse's real web server, with a fixed status or a function that returns one."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ftrun.lighthouse.operations import OperationSource
from ftrun.lighthouse.settings import ServiceSettings
from ftrun.lighthouse.web import WebServer, build_app
from tests.unit.lighthouse.scripted_operations import ScriptedOperations


@contextlib.contextmanager
def served(
    status: dict[str, Any] | Callable[[], Any],
    token: str,
    operations: OperationSource | None = None,
    incidents: list[dict[str, Any]] | None = None,
) -> Iterator[str]:
    """Serve it in a thread; yields the address."""
    listener = socket.create_server(("127.0.0.1", 0))
    acting = ScriptedOperations() if operations is None else operations
    loop = asyncio.new_event_loop()
    stopping = asyncio.Event()

    async def serve() -> None:
        settings = ServiceSettings(Path("/nowhere"), token)
        found: Any = status if callable(status) else lambda: status
        app = build_app(found, settings, acting, lambda: list(incidents or []))
        server = WebServer(app, settings)
        await server.start(listener)
        await stopping.wait()
        await server.stop()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    host, port = listener.getsockname()
    thread.start()
    try:
        yield f"{host}:{port}"
    finally:
        loop.call_soon_threadsafe(stopping.set)
        thread.join(10.0)
        assert not thread.is_alive()
        loop.close()
