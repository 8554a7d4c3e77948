"""Asks a lighthouse for its status over HTTP, with the token.

Standard library only: the command should answer at once. Not here: how it is shown (view.py), which
lighthouse (jobs.py).
"""

from __future__ import annotations

import http.client
import json
import ssl
from pathlib import Path
from typing import Any

from ftrun.config import parse_address
from ftrun.errors import ExitCode, PeerError, UserError
from ftrun.protocol.auth import bearer

TIMEOUT_S = 5.0
STATUS_BYTES_MAX = 64 * 1024 * 1024


class LighthouseUnreachable(PeerError):
    """Nobody answers there, or something else than a lighthouse does."""

    exit_code = ExitCode.LIGHTHOUSE_UNREACHABLE


def fetch_status(
    address: str, token: str, *, ca_file: Path | None = None, timeout_s: float = TIMEOUT_S
) -> dict[str, Any]:
    """``/status`` of the lighthouse whose web server is at ``address``.

    Raises:
        UserError: the address is none, or the token is another job's.
        LighthouseUnreachable: no answer within ``timeout_s``, or none that a lighthouse gives.
    """
    host, port = parse_address(address, "--lighthouse")
    connection = _connect(host, port, ca_file, timeout_s)
    try:
        connection.request("GET", "/status", headers={"Authorization": bearer(token)})
        response = connection.getresponse()
        body = response.read(STATUS_BYTES_MAX)
    except (OSError, http.client.HTTPException) as error:
        raise LighthouseUnreachable(
            f"No lighthouse answers at http://{host}:{port} ({error}). Is it the HTTP address (by "
            "default the port above that of --bind)? To start one: ftrun lighthouse"
        ) from error
    finally:
        connection.close()
    return _checked(f"{host}:{port}", response.status, body)


def _connect(
    host: str, port: int, ca_file: Path | None, timeout_s: float
) -> http.client.HTTPConnection:
    if ca_file is None:
        return http.client.HTTPConnection(host, port, timeout=timeout_s)
    context = ssl.create_default_context(cafile=str(ca_file))
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
