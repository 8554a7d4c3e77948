"""Checks before every HTTP route: the Host header, the token; and the answer's headers.

- **Host** (X6): a web page can point its own host name at 127.0.0.1 and read what is served there
  (DNS rebinding). Such a request carries that name, so only the lighthouse's own names are
  answered. A numeric address is always answered: no page can own one. ``/healthz`` answers under
  any name, because a probe may use a Service's name and the answer has no content.
- **Origin** (X6): browsers send the origin of the page that makes a request. A request of another
  site's page is refused, even with the token.
- **Token** (X1), or a session of the web page, in a header only. Cookies are ignored, because
  browsers add them automatically, so no other page can act in a user's name.
- **Headers** (X6): browsers never run, frame, sniff or cache an answer. The web page's own files
  state what they run (page_routes.py).

Not here: the routes (web.py).
"""

from __future__ import annotations

import ipaddress
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Collection
from typing import Any, TypeAlias

from aiohttp import web

from ftrun.lighthouse.page_routes import FILES
from ftrun.lighthouse.sessions import Sessions
from ftrun.lighthouse.settings import ServiceSettings
from ftrun.protocol.auth import bearer_matches

OPEN_ROUTES = frozenset({"/healthz", *FILES})
ANY_NAME = frozenset({"/healthz"})
TOKEN_ROUTES = frozenset({"/links"})
"""A session does not open these, so that a session cannot be extended."""
CHECKED_THERE = frozenset({"/session"})
"""The route itself checks a code or the token, and refuses anything else."""
CONTENT_SECURITY_POLICY = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'"
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:/@\s]+)(?::[0-9]{1,5})?")

log = logging.getLogger(__name__)

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


def guard(
    settings: ServiceSettings, sessions: Sessions, more: Collection[str] = frozenset()
) -> Any:
    """The middleware of a lighthouse with these settings. ``more``: routes that need no token."""
    names = own_names(settings)

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        hosts = request.headers.getall("Host", [])
        if request.path not in ANY_NAME and not is_own_host(hosts, names):
            return _refusal(
                421, "this lighthouse does not go by that name; to ask it so: --allow-host NAME"
            )
        if request.path not in OPEN_ROUTES and request.path not in more:
            if not is_own_page(request):
                return _refusal(403, "another site's page sent this request")
            if request.path not in CHECKED_THERE and not _is_admitted(request, settings, sessions):
                return _refusal(401, "the job's token is missing or wrong")
        try:
            return await handler(request)
        except web.HTTPException as answer:
            if answer.status < 400:
                raise
            return _refusal(answer.status, answer.reason, answer.headers.get("Allow"))
        except Exception:  # the shell's edge: logged, and the lighthouse keeps running
            log.exception("%s %s cannot be answered", request.method, request.path)
            return _refusal(500, "the lighthouse contradicts itself; its log says more")

    return check


async def add_headers(_request: web.Request, response: web.StreamResponse) -> None:
    """For ``on_response_prepare``: adds the headers to every answer, including errors."""
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)


def is_own_page(request: web.Request) -> bool:
    """False if the request's headers show that it comes from another site's page.

    A program that is no browser sends no such header. A proxy in front must forward the Host
    header.
    """
    if request.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
        return False
    origins = request.headers.getall("Origin", [])
    return all(_authority(origin) == request.host.lower() for origin in origins)


def _authority(origin: str) -> str:
    """The host and port of an origin; empty for ``null`` and anything else."""
    scheme, _, rest = origin.strip().lower().partition("://")
    return rest if scheme in ("http", "https") else ""


def _is_admitted(request: web.Request, settings: ServiceSettings, sessions: Sessions) -> bool:
    header = request.headers.get("Authorization")
    if bearer_matches(header, settings.token):
        return True
    return request.path not in TOKEN_ROUTES and sessions.admits(header)


def own_names(settings: ServiceSettings) -> frozenset[str]:
    """The host names that requests may use; numeric addresses are always allowed."""
    bound = settings.grpc_address()[0], settings.http_address()[0]
    given = *settings.allowed_hosts, *settings.tls.names()
    names = ("localhost", socket.gethostname(), socket.getfqdn(), *bound, *given)
    return frozenset(name.lower().rstrip(".") for name in names)


def is_own_host(values: list[str], names: frozenset[str]) -> bool:
    """True if there is one Host header, and it is an address or one of ``names``."""
    if len(values) != 1:
        return False
    found = _HOST.fullmatch(values[0].strip().lower())
    if found is None:
        return False
    host = found[1]
    return host.rstrip(".") in names or _is_address(host.strip("[]"))


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _refusal(status: int, why: str, allow: str | None = None) -> web.Response:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    if allow is not None:
        headers["Allow"] = allow
    return web.json_response({"error": why}, status=status, headers=headers)
