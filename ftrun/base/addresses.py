"""``HOST:PORT``: split, checked, normalized.

Not here: whether anything answers at an address (protocol/handshake.py, agent/devices.py).
"""

from __future__ import annotations

import ipaddress
import socket

from ftrun.base.defaults import BIND
from ftrun.base.errors import UserError

PORT_MAX = 65535
LOOPBACK = "127.0.0.1"
ANY_HOST = ("0.0.0.0", "::")
"""A server that is bound to one of these listens on every interface."""
_SOMEWHERE = ("192.0.2.1", 9)
"""An address for documentation (RFC 5737): the interface that leads there is the one to the net."""


def split_address(text: str) -> tuple[str, int]:
    """``host:port`` in two; the host of an IPv6 address may stand in brackets.

    Raises:
        ValueError: it has another form.
    """
    host, _, port = text.rpartition(":")
    host = host.strip("[]")
    if not host or "/" in host or not port.isdecimal() or int(port) > PORT_MAX:
        raise ValueError(f"{text!r} is not an address of the form host:port")
    return host, int(port)


def without_scheme(text: str) -> str:
    """``HOST:PORT`` of a URL; schemes are written in any case."""
    scheme, mark, rest = text.partition("://")
    is_web = bool(mark) and scheme.lower() in ("http", "https")
    return (rest if is_web else text).rstrip("/")


def join_address(host: str, port: int) -> str:
    """``host:port``, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_address(text: str, option: str) -> tuple[str, int]:
    """An option's ``HOST:PORT`` in two; ``http://`` in front and a ``/`` behind are ignored.

    ``https://`` too: whether TLS is used is for other options to say.

    Raises:
        UserError: no host, no port, or a port above 65535.
    """
    try:
        return split_address(without_scheme(text))
    except ValueError:
        raise UserError(
            f"{option} {text!r} is not HOST:PORT. For example: {option} {BIND}."
        ) from None


def normal_address(text: str | None) -> str | None:
    """``--lighthouse`` as plain HOST:PORT, or several of them after one another."""
    if text is None:
        return None
    return ",".join(join_address(*parse_address(x, "--lighthouse")) for x in text.split(","))


def is_loopback(host: str) -> bool:
    """True if no other machine can reach it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_loopback_name(host: str) -> bool:
    """True if ``host`` is a name that means this machine alone.

    Debian's /etc/hosts gives a machine's own name the address 127.0.1.1.
    """
    try:
        found = {str(row[4][0]) for row in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return host not in found and all(map(is_loopback, found))


def own_host() -> str:
    """The numeric address at which other machines reach this one; loopback without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_SOMEWHERE)  # a datagram socket: nothing is sent
        except OSError:  # no interface leads anywhere
            return LOOPBACK
        return str(probe.getsockname()[0])
