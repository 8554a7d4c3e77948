"""Asks a lighthouse for its status over HTTP, with the token.

Standard library only: the command should answer at once. Not here: how it is shown (view.py), which
lighthouse (jobs.py).
"""

from __future__ import annotations

import http.client
import json
import ssl
from typing import Any

from ftrun.config import parse_address
from ftrun.errors import ExitCode, PeerError, UserError
from ftrun.protocol.auth import bearer
from ftrun.protocol.handshake import explain, hung_up
from ftrun.protocol.tls import PLAINTEXT, TlsFiles

TIMEOUT_S = 5.0
STATUS_BYTES_MAX = 64 * 1024 * 1024


class LighthouseUnreachable(PeerError):
    """Nobody answers there, or something else than a lighthouse does."""

    exit_code = ExitCode.LIGHTHOUSE_UNREACHABLE


def fetch_status(
    address: str, token: str, *, tls: TlsFiles = PLAINTEXT, timeout_s: float = TIMEOUT_S
) -> dict[str, Any]:
    """``/status`` of the lighthouse whose web server is at ``address``.

    Raises:
        UserError: the address is none, the token is another job's, or TLS fails for good.
        LighthouseUnreachable: no answer within ``timeout_s``, or none that a lighthouse gives.
    """
    host, port = parse_address(address, "--lighthouse")
    connection = _connect(host, port, tls, timeout_s)
    try:
        connection.request("GET", "/status", headers={"Authorization": bearer(token)})
        response = connection.getresponse()
        body = response.read(STATUS_BYTES_MAX)
    except ssl.SSLError as error:
        raise UserError(explain(f"{host}:{port}", error, tls)) from error
    except http.client.RemoteDisconnected as error:
        if not tls:
            raise _unreachable(host, port, tls, error) from error
        raise UserError(hung_up(f"{host}:{port}", tls)) from error
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(host, port, tls, error) from error
    finally:
        connection.close()
    return _checked(f"{host}:{port}", response.status, body)


def _unreachable(host: str, port: int, tls: TlsFiles, error: Exception) -> LighthouseUnreachable:
    scheme, hint = ("https", "") if tls else ("http", " If it has TLS: --tls-ca PEM.")
    return LighthouseUnreachable(
        f"No lighthouse answers at {scheme}://{host}:{port} ({error}). Is it the HTTP address "
        f"(by default the port above that of --bind)?{hint} To start one: ftrun lighthouse"
    )


def _connect(host: str, port: int, tls: TlsFiles, timeout_s: float) -> http.client.HTTPConnection:
    context = tls.client_context()
    if context is None:
        return http.client.HTTPConnection(host, port, timeout=timeout_s)
    return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)


def _checked(address: str, code: int, body: bytes) -> dict[str, Any]:
    if code == 401:
        raise UserError(
            f"The lighthouse at {address} has another token. Give the job's: --token-file FILE."
        )
    try:
        status = json.loads(body) if code == 200 else None
    except ValueError:
        status = None
    if not isinstance(status, dict) or "lighthouse" not in status:
        raise LighthouseUnreachable(f"What answers at {address} is no lighthouse (HTTP {code}).")
    return status
