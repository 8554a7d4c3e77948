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

from ftrun.base.addresses import parse_address
from ftrun.base.errors import ExitCode, PeerError, UserError
from ftrun.core.lighthouse.status import Status
from ftrun.protocol.auth import bearer
from ftrun.protocol.handshake import (
    ALPN,
    GRPC_ALPN,
    connection_closed,
    explain,
    not_for_people,
)
from ftrun.protocol.tls import PLAINTEXT, TlsFiles

TIMEOUT_S = 5.0
NOT_FOUND, STANDS_BY = 404, 503
STATUS_BYTES_MAX = 64 * 1024 * 1024
SETTINGS, SETTINGS_AT = "\4", 3
"""The type of HTTP/2's first frame, and its offset in a frame (RFC 9113, 4.1)."""


class WrongToken(UserError):
    """The lighthouse has another token."""


class LighthouseUnreachable(PeerError):
    """No lighthouse answers at the address.

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
    found = fetch_json(address, token, "/status", "lighthouse", tls=tls, timeout_s=timeout_s)
    return cast(Status, found)


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
    """Send one request to a lighthouse, ``sent`` as JSON.

    Returns:
        ``host:port``, HTTP code and body.

    Raises:
        UserError: the address is invalid, or TLS is set up wrongly.
        LighthouseUnreachable: no answer within ``timeout_s``.
    """
    connection = Connection(address, token, tls, timeout_s)
    try:
        return connection.request(method, path, sent)
    finally:
        connection.close()


class Connection:
    """A connection to a lighthouse for several sequential requests.

    The lighthouse closes it after a while; the next request opens another one.

    Raises:
        UserError: the address is invalid.
    """

    def __init__(
        self,
        address: str,
        token: str,
        tls: TlsFiles = PLAINTEXT,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._at = parse_address(address, "--lighthouse")
        self._name = "{}:{}".format(*self._at)
        self._token = token
        self._tls = tls
        self._timeout_s = timeout_s
        self._open: http.client.HTTPConnection | None = None

    def fetch_status(self) -> Status:
        """``/status``. Raises as the function of this name."""
        return cast(Status, _checked(*self.request("GET", "/status"), "lighthouse"))

    def request(self, method: str, path: str, sent: object = None) -> tuple[str, int, bytes]:
        """Send one request. Raises and returns as the function of this name."""
        if self._open is not None:
            try:
                return self._name, *self._ask(method, path, sent)
            except TimeoutError as error:
                self.close()
                raise self._unreachable(error, was_sent=True) from error
            except (OSError, http.client.HTTPException) as error:
                self.close()  # the lighthouse has closed it
                if method != "GET":  # it may have arrived, and must not be repeated
                    raise self._unreachable(error, was_sent=True) from error
        return self._connect_and_ask(method, path, sent)

    def close(self) -> None:
        """Close it. A later request opens another one."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _connect_and_ask(self, method: str, path: str, sent: object) -> tuple[str, int, bytes]:
        name, tls, was_sent = self._name, self._tls, False
        try:
            self._open = connect(*self._at, tls, self._timeout_s)
            self._open.connect()
            socket = self._open.sock
            if isinstance(socket, ssl.SSLSocket) and socket.selected_alpn_protocol() == GRPC_ALPN:
                raise UserError(not_for_people(name))
            was_sent = True
            return name, *self._ask(method, path, sent)
        except _Closed as error:
            self.close()
            if not tls:
                raise self._unreachable(error, was_sent=True) from error
            raise UserError(connection_closed(name, tls)) from error
        except ssl.SSLError as error:
            self.close()
            raise UserError(explain(name, error, tls)) from error
        except http.client.BadStatusLine as error:
            self.close()
            if _is_http2(str(error.args[0])):
                raise UserError(not_for_people(name)) from error
            raise self._unreachable(error, was_sent=was_sent) from error
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise self._unreachable(error, was_sent=was_sent) from error

    def _ask(self, method: str, path: str, sent: object) -> tuple[int, bytes]:
        """The answer's code and body.

        Raises:
            _Closed: there was none. The underlying error depends on the timing and the Python
                version.
        """
        assert self._open is not None
        try:
            headers = {"Authorization": bearer(self._token)}
            data = None if sent is None else json.dumps(sent).encode()
            if data is not None:
                headers["Content-Type"] = "application/json"
            self._open.request(method, path, body=data, headers=headers)
            response = self._open.getresponse()
            return response.status, response.read(STATUS_BYTES_MAX)
        except (ConnectionError, ssl.SSLEOFError) as error:
            raise _Closed(str(error)) from error

    def _unreachable(self, error: Exception, *, was_sent: bool) -> LighthouseUnreachable:
        scheme, hint = ("https", "") if self._tls else ("http", " If it has TLS: --tls-ca PEM.")
        # A non-HTTP answer is not quoted: its bytes may be no text.
        is_http = isinstance(error, (OSError, http.client.IncompleteRead))
        why = str(error) if is_http else "what answers there does not speak HTTP/1.1"
        unreachable = LighthouseUnreachable(
            f"No lighthouse answers at {scheme}://{self._name} ({why}). Is it the HTTP address "
            f"(by default the port above that of --bind)?{hint} To start one: ftrun lighthouse"
        )
        unreachable.was_sent = was_sent
        return unreachable


def answer_of(name: str, code: int, body: bytes, field: str) -> dict[str, Any]:
    """The object in an answer, which has ``field``.

    Raises:
        UserError: the token is another job's, or the lighthouse refuses the request.
        LighthouseUnreachable: the answer is not a lighthouse's.
    """
    if 400 <= code < 500 and code != 401:
        with contextlib.suppress(ValueError, TypeError, KeyError):
            raise UserError(f"{json.loads(body)['error']} Nothing was changed.")
    return _checked(name, code, body, field)


class _Closed(OSError):
    """The peer closed the connection without an answer, after TCP and TLS were established."""


def _is_http2(line: str) -> bool:
    """Whether an answer begins with a SETTINGS frame, as every HTTP/2 server's does."""
    return len(line) > SETTINGS_AT and line[SETTINGS_AT] == SETTINGS and line[0] == "\0"


def connect(host: str, port: int, tls: TlsFiles, timeout_s: float) -> http.client.HTTPConnection:
    """A connection that is opened by its first request."""
    context = tls.client_context()
    if context is None:
        return http.client.HTTPConnection(host, port, timeout=timeout_s)
    context.set_alpn_protocols(ALPN)
    return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)


def _checked(address: str, code: int, body: bytes, field: str) -> dict[str, Any]:
    if code == 401:
        raise WrongToken(
            f"The lighthouse at {address} has another token. Give the job's: --token-file FILE."
        )
    try:
        found = json.loads(body) if code == 200 else None
    except ValueError:
        found = None
    if not isinstance(found, dict) or field not in found:
        if code == STANDS_BY:
            raise LighthouseUnreachable(
                f"The lighthouse at {address} stands by. Give the HTTP address of the one that "
                "leads: the output of this one names it."
            )
        jobs = f" The jobs of `ftrun lighthouse --jobs`: ftrun ps --lighthouse {address}"
        raise LighthouseUnreachable(
            f"What answers at {address} is no job's lighthouse (HTTP {code})."
            f"{jobs if code == NOT_FOUND else ''}"
        )
    return found
