"""The web page's own routes: its files, ``POST /links`` and ``POST /session``.

The files hold no secret and need no token. ``POST /links`` returns a code for a link to a client
with the token. ``POST /session`` exchanges a code, or the token, for a session (sessions.py). Not
here: the stream that the page reads (events.py), the page (page/).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from aiohttp import web

from ftrun.lighthouse.sessions import CODE_S, SESSION_S, Sessions
from ftrun.protocol.auth import bearer_matches

HOME = Path(__file__).with_name("page")
FILES = {
    "/": ("index.html", "text/html"),
    "/page/page.css": ("page.css", "text/css"),
    "/page/icon.svg": ("icon.svg", "image/svg+xml"),
    "/page/main.js": ("main.js", "text/javascript"),
    "/page/connection.js": ("connection.js", "text/javascript"),
    "/page/overview.js": ("overview.js", "text/javascript"),
    "/page/replicas.js": ("replicas.js", "text/javascript"),
    "/page/actions.js": ("actions.js", "text/javascript"),
    "/page/charts.js": ("charts.js", "text/javascript"),
    "/page/words.js": ("words.js", "text/javascript"),
}
DOOR_FILES = {
    "/": ("jobs.html", "text/html"),
    "/page/jobs.js": ("jobs.js", "text/javascript"),
}
"""Files that replace these for a door of many jobs (door.py)."""
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; form-action 'none'; frame-ancestors 'none'; "
    "base-uri 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
}
"""Trusted types make the browser refuse any text that a script would turn into markup."""


def add_page(app: web.Application, token: str, sessions: Sessions) -> None:
    add_files(app, {})

    async def link(_request: web.Request) -> web.Response:
        return web.json_response({"code": sessions.new_code(), "expires_s": CODE_S})

    async def session(request: web.Request) -> web.Response:
        by_token = bearer_matches(request.headers.get("Authorization"), token)
        if not by_token and not sessions.use_code(await _code(request)):
            error = {"error": "the token is missing or wrong, or the link has been used or is old"}
            return web.json_response(error, status=401, headers={"WWW-Authenticate": "Bearer"})
        return web.json_response({"session": sessions.new_session(), "expires_s": SESSION_S})

    app.router.add_post("/links", link)
    app.router.add_post("/session", session)


def add_files(app: web.Application, others: Mapping[str, tuple[str, str]]) -> None:
    """Add the page's files, of which ``others`` replaces some. They are read once, here."""
    for path, (name, kind) in {**FILES, **others}.items():
        app.router.add_get(path, _file((HOME / name).read_text(encoding="utf-8"), kind))


def _file(text: str, kind: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def serve(_request: web.Request) -> web.Response:
        return web.Response(text=text, content_type=kind, headers=PAGE_HEADERS)

    return serve


async def _code(request: web.Request) -> str:
    """The code in a JSON body; empty if there is none."""
    if request.content_type != "application/json":
        return ""
    try:
        found = await request.json()
    except (ValueError, RecursionError):
        return ""
    code = found.get("code") if isinstance(found, dict) else None
    return code if isinstance(code, str) else ""
