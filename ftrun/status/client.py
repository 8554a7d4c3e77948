"""Fetches a lighthouse's status over HTTP, with the token.

It uses the standard library only, so that the command starts fast. Not here: showing the status
(view.py), finding the lighthouse (jobs.py).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
from typing import Any, cast

from ftrun.addresses import parse_address
from ftrun.core.lighthouse.status import Status
from ftrun.errors import ExitCode, PeerError, UserError
from ftrun.protocol.auth import bearer
from ftrun.protocol.handshake import connection_closed, explain
from ftrun.protocol.tls import PLAINTEXT, TlsFiles

TIMEOUT_S = 5.0
STATUS_BYTES_MAX = 64 * 1024 * 1024


class LighthouseUnreachable(PeerError):
    """Nothing answers at the address, or something other than a lighthouse does.

    ``was_sent``: there was a connection, so the request may have arrived.
    """

    exit_code = ExitCode.LIGHTHOUSE_UNREACHABLE
    was_sent = False


def fetch_status(
    address: str, token: str, *, tls: TlsFiles = PLAINTEXT, timeout_s: float = TIMEOUT_S
) -> Status:
    """``/status`` of the lighthouse whose web server is at ``address``.

    Raises:
        UserError: the address is invalid, the token is another job's, or TLS is set up wrongly.
        LighthouseUnreachable: no answer within ``timeout_s``, or not a lighthouse's.
    """
    name, code, body = request(address, token, "GET", "/status", tls=tls, timeout_s=timeout_s)
    return cast(Status, _checked(name, code, body, "lighthouse"))


def fetch_json(
    address: str,
    token: str,
    route: str,
    field: str,
    *,
    tls: TlsFiles = PLAINTEXT,
    timeout_s: float = TIMEOUT_S,
) -> dict[str, Any]:
    """The JSON object with this field that a lighthouse serves at ``route``.

    Raises as ``fetch_status``.
    """
    name, code, body = request(address, token, "GET", route, tls=tls, timeout_s=timeout_s)
    return _checked(name, code, body, field)


def request(
    address: str,
    token: str,
    method: str,
    path: str,
    sent: object = None,
    *,
    tls: TlsFiles = PLAINTEXT,
    timeout_s: float = TIMEOUT_S,
) -> tuple[str, int, bytes]:
    """One request to a lighthouse, ``sent`` as JSON; ``host:port``, HTTP code and body.

    Raises:
        UserError: the address is invalid, or TLS is set up wrongly.
        LighthouseUnreachable: no answer within ``timeout_s``.
    """
    host, port = parse_address(address, "--lighthouse")
    connection = _connection(host, port, tls, timeout_s)
    was_sent = False
    try:
        connection.connect()
        was_sent = True
        code, body = _ask(connection, token, method, path, sent)
    except _Closed as error:
        if not tls:
            raise _unreachable(host, port, tls, error, was_sent=True) from error
        raise UserError(connection_closed(f"{host}:{port}", tls)) from error
    except ssl.SSLError as error:
        raise UserError(explain(f"{host}:{port}", error, tls)) from error
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(host, port, tls, error, was_sent=was_sent) from error
    finally:
        connection.close()
    return f"{host}:{port}", code, body


def answer_of(name: str, code: int, body: bytes, field: str) -> dict[str, Any]:
    """The object in an answer, which has ``field``.

    Raises:
        UserError: the token is another job's, or the lighthouse refuses the request.
        LighthouseUnreachable: what answers is no lighthouse.
    """
    if 400 <= code < 500 and code != 401:
        with contextlib.suppress(ValueError, TypeError, KeyError):
            raise UserError(f"{json.loads(body)['error']} Nothing was changed.")
    return _checked(name, code, body, field)


class _Closed(OSError):
    """The peer closed the connection without an answer, after TCP and TLS were established."""


def _ask(
    connection: http.client.HTTPConnection, token: str, method: str, path: str, sent: object
) -> tuple[int, bytes]:
    """The answer's code and body.

    Raises:
        _Closed: there was none. Which error shows that depends on the moment and on the Python.
    """
    try:
        headers = {"Authorization": bearer(token)}
        data = None if sent is None else json.dumps(sent).encode()
        if data is not None:
            headers["Content-Type"] = "application/json"
        connection.request(method, path, body=data, headers=headers)
        response = connection.getresponse()
        return response.status, response.read(STATUS_BYTES_MAX)
    except (ConnectionError, ssl.SSLEOFError) as error:
        raise _Closed(str(error)) from error


def _unreachable(
    host: str, port: int, tls: TlsFiles, error: Exception, *, was_sent: bool
) -> LighthouseUnreachable:
    scheme, hint = ("https", "") if tls else ("http", " If it has TLS: --tls-ca PEM.")
    # A peer without HTTP, such as the port for agents, is not quoted: its bytes are no text.
    is_http = isinstance(error, (OSError, http.client.IncompleteRead))
    why = str(error) if is_http else "what answers there does not speak HTTP/1.1"
    unreachable = LighthouseUnreachable(
        f"No lighthouse answers at {scheme}://{host}:{port} ({why}). Is it the HTTP address "
        f"(by default the port above that of --bind)?{hint} To start one: ftrun lighthouse"
    )
    unreachable.was_sent = was_sent
    return unreachable


def _connection(
    host: str, port: int, tls: TlsFiles, timeout_s: float
) -> http.client.HTTPConnection:
    context = tls.client_context()
    if context is None:
        return http.client.HTTPConnection(host, port, timeout=timeout_s)
    return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)


def _checked(address: str, code: int, body: bytes, field: str) -> dict[str, Any]:
    if code == 401:
        raise UserError(
            f"The lighthouse at {address} has another token. Give the job's: --token-file FILE."
        )
    try:
        found = json.loads(body) if code == 200 else None
    except ValueError:
        found = None
    if not isinstance(found, dict) or field not in found:
        raise LighthouseUnreachable(f"What answers at {address} is no lighthouse (HTTP {code}).")
    return found
