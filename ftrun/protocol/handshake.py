"""One TLS handshake with the lighthouse before anything starts, to explain what is wrong.

gRPC retries forever and reports every error as «unavailable». This handshake distinguishes a wrong
CA, a name that is not in the certificate, a lighthouse that requires a certificate, and the
lighthouse's other port. A lighthouse that does not answer yet is no error, because it may start
later. Not here: the files (tls.py).
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence

from ftrun.base.errors import UserError
from ftrun.protocol.tls import TlsFiles

TIMEOUT_S = 5.0
GRPC_ALPN = "h2"
ALPN = [GRPC_ALPN, "http/1.1"]
_NOTHING = "Nothing was started."


def check_first_answer(addresses: Sequence[tuple[str, int]], tls: TlsFiles) -> None:
    """Do a handshake with the first of several lighthouses that answers; all share ``TIMEOUT_S``.

    Raises:
        UserError: as ``check_handshake``.
    """
    share_s = TIMEOUT_S / len(addresses)
    any(check_handshake(host, port, tls, share_s) for host, port in addresses)


def check_handshake(host: str, port: int, tls: TlsFiles, timeout_s: float = TIMEOUT_S) -> bool:
    """Do a handshake with the lighthouse at ``host:port``, if it answers, and send nothing.

    Returns:
        Whether no retry is needed: it has answered, or there is no TLS.

    Raises:
        UserError: a handshake can never succeed; why, and what to do.
    """
    context = tls.client_context()
    if context is None:
        return True
    context.set_alpn_protocols(ALPN)
    try:
        raw = socket.create_connection((host, port), timeout_s)
    except OSError:
        return False
    with raw:
        try:
            with context.wrap_socket(raw, server_hostname=host) as secured:
                if secured.selected_alpn_protocol() != GRPC_ALPN:
                    raise UserError(not_for_agents(f"{host}:{port}", "it does not speak HTTP/2"))
                # With TLS 1.3 the server checks our certificate after we have checked its own, and
                # then a gRPC server sends first. If it closes instead, it has refused ours.
                accepted = _answers_with_bytes(secured)
        except ssl.SSLError as error:
            raise UserError(explain(f"{host}:{port}", error, tls)) from None
        except OSError:
            return False
    if not accepted:
        raise UserError(connection_closed(f"{host}:{port}", tls))
    return True


def _answers_with_bytes(secured: ssl.SSLSocket) -> bool:
    """False: the server ends the connection; Python 3.13 reports that as a reset."""
    try:
        return secured.recv(1) != b""
    except ConnectionResetError:
        return False


def not_for_agents(address: str, why: str) -> str:
    """The error text for an agent that has connected to another port than a lighthouse's for
    agents."""
    return (
        f"{address} is not a lighthouse's port for agents: {why}. {_NOTHING} Give the address of "
        "its --bind, by default the port below its HTTP address: --lighthouse HOST:PORT"
    )


def not_for_people(address: str) -> str:
    """The error text for a command that has connected to a lighthouse's port for agents."""
    return (
        f"{address} is a lighthouse's port for agents. Nothing was changed. Give its HTTP "
        "address, by default the port above that of --bind: --lighthouse HOST:PORT"
    )


def connection_closed(address: str, tls: TlsFiles) -> str:
    """The error text for a lighthouse with a valid certificate that closes the connection."""
    if tls.cert is None:
        return (
            f"The lighthouse at {address} ends the connection: it wants to see a certificate (it "
            f"has --tls-ca), and none was given. {_NOTHING} Give --tls-cert PEM and --tls-key PEM."
        )
    return (
        f"The lighthouse at {address} ends the connection: it does not accept --tls-cert "
        f"{tls.cert}. {_NOTHING} Give a certificate that its --tls-ca has signed."
    )


def explain(address: str, error: ssl.SSLError, tls: TlsFiles) -> str:
    """The error text for a failed handshake."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _not_believed(address, error, tls)
    reason = str(error.reason or error)
    if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        return connection_closed(address, tls)
    if any(word in reason for word in ("WRONG_VERSION_NUMBER", "RECORD_LAYER", "UNEXPECTED_EOF")):
        return (
            f"What answers at {address} does not speak TLS ({reason}). {_NOTHING} Start the "
            "lighthouse with --tls-cert and --tls-key, or leave --tls-ca out here."
        )
    return f"TLS with the lighthouse at {address} fails: {reason}. {_NOTHING}"


def _not_believed(address: str, error: ssl.SSLCertVerificationError, tls: TlsFiles) -> str:
    why = error.verify_message
    if "mismatch" in why or "not valid for" in why:
        return (
            f"The certificate of the lighthouse at {address} is not for that name: {why}. "
            f"{_NOTHING} Use a name that is in it, or make one with: ftrun certs --host NAME"
        )
    if "expired" in why or "not yet valid" in why:
        return (
            f"The certificate of the lighthouse at {address} is out of date: {why}. {_NOTHING} "
            "Renew it and start the lighthouse again with it."
        )
    return (
        f"The certificate of the lighthouse at {address} was not signed by --tls-ca {tls.ca}: "
        f"{why}. {_NOTHING} Give the authority that signed it, and check whether that is your "
        "lighthouse at all."
    )
