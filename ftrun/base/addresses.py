"""``HOST:PORT``: split, checked, normalized.

Not here: whether a server answers at an address (protocol/handshake.py, agent/devices.py).
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Sequence

from ftrun.base.defaults import BIND
from ftrun.base.errors import UserError

PORT_MAX = 65535
LOOPBACK = "127.0.0.1"
HOSTS_TRIED_MAX = 8
ANY_HOST = ("0.0.0.0", "::")
"""A server that is bound to one of these listens on every interface."""
_SOMEWHERE = ("192.0.2.1", 9)
"""An address for documentation (RFC 5737). The route to it uses the default interface."""


def split_address(text: str) -> tuple[str, int]:
    """Split ``host:port``. The host of an IPv6 address may be in brackets.

    Raises:
        ValueError: it has another form.
    """
    host, _, port = text.rpartition(":")
    host = host.strip("[]")
    if not host or "/" in host or not port.isdecimal() or int(port) > PORT_MAX:
        raise ValueError(f"{text!r} is not an address of the form host:port")
    return host, int(port)


def without_scheme(text: str) -> str:
    """``HOST:PORT`` of a URL. The scheme may be in upper or lower case."""
    scheme, mark, rest = text.partition("://")
    is_web = bool(mark) and scheme.lower() in ("http", "https")
    return (rest if is_web else text).rstrip("/")


def join_address(host: str, port: int) -> str:
    """``host:port``, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_address(text: str, option: str) -> tuple[str, int]:
    """Split an option's ``HOST:PORT``. A leading ``http://`` and a trailing ``/`` are ignored.

    So is ``https://``, because other options determine whether TLS is used.

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
    """Normalize ``--lighthouse`` to HOST:PORT, or to several of them separated by commas."""
    if text is None:
        return None
    return ",".join(join_address(*parse_address(x, "--lighthouse")) for x in text.split(","))


def is_loopback(host: str) -> bool:
    """Whether no other machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_loopback_name(host: str) -> bool:
    """Whether ``host`` is a name that resolves to a loopback address.

    Debian's /etc/hosts gives a machine's own name the address 127.0.1.1, maybe beside another one.
    """
    try:
        found = {str(row[4][0]) for row in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return host not in found and any(map(is_loopback, found))


def address_towards(hosts: Sequence[str]) -> str | None:
    """The numeric address of the interface that leads to the first resolvable one of ``hosts``.

    Never a loopback address, whatever /etc/hosts has. If none can be resolved: the address of the
    default route, or the only other address; None: there is none, or there are several.
    """
    for host in hosts[:HOSTS_TRIED_MAX]:
        rows = []
        with contextlib.suppress(OSError):
            rows = socket.getaddrinfo(host, _SOMEWHERE[1], type=socket.SOCK_DGRAM)
        for family, _, _, _, at in rows:
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(at)  # a datagram socket: nothing is sent
                found = str(probe.getsockname()[0])
                if not is_loopback(found):
                    return found
    found = own_host()
    if not is_loopback(found):
        return found
    others = {name: at for name, at in reversed(_own_addresses()) if not is_loopback(at)}
    return next(iter(others.values())) if len(others) == 1 else None


def interface_address(wanted: str) -> str:
    """The numeric address of an interface of this machine: by its name, or in a network (CIDR).

    Raises:
        UserError: there is none.
    """
    found = _own_addresses()
    first = wanted.partition(",")[0]  # GLOO_SOCKET_IFNAME may be a list
    try:
        network = ipaddress.ip_network(wanted, strict=False) if "/" in wanted else None
    except ValueError as error:
        raise UserError(f"--interface {wanted!r}: {error}. Nothing was started.") from None
    for name, address in found:
        if name == first or (network is not None and ipaddress.ip_address(address) in network):
            return address
    there = ", ".join(f"{name} ({address})" for name, address in found)
    raise UserError(
        f"--interface {wanted}: this node has no such interface or address. Nothing was started. "
        f"It has: {there or 'none'}. Without --interface, GLOO_SOCKET_IFNAME counts."
    )


def interface_of(address: str) -> str:
    """The name of the interface that has this address; "": none has it."""
    return next((name for name, own in _own_addresses() if own == address), "")


def _own_addresses() -> list[tuple[str, str]]:
    """The interfaces' names and addresses: IPv4 first, without link-local ones."""
    import psutil  # here, because most processes of ftrun never call this

    rows = psutil.net_if_addrs().items()
    return [
        (name, row.address)
        for family in (socket.AF_INET, socket.AF_INET6)
        for name, own in rows
        for row in own
        if row.family == family and "%" not in row.address
    ]


def own_host() -> str:
    """The numeric address at which other machines reach this one; loopback without a network.

    It belongs to the interface of the default route, or else to the first non-loopback one.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_SOMEWHERE)  # a datagram socket: nothing is sent
        except OSError:  # no interface leads anywhere
            own = (address for _, address in _own_addresses())
            return next((address for address in own if not is_loopback(address)), LOOPBACK)
        return str(probe.getsockname()[0])
