"""Ports of this machine, and the route to the lighthouse.

Not here: what a job does at its start (agent/devices.py), TLS (protocol/handshake.py).
"""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import os
import socket
from dataclasses import dataclass
from datetime import timezone
from pathlib import Path

from ftrun.agent.devices import check_own_address, own_address
from ftrun.base import clock
from ftrun.base.addresses import is_loopback, parse_address, split_address
from ftrun.base.errors import FtrunError, UserError
from ftrun.protocol.handshake import check_handshake
from ftrun.protocol.tls import TlsFiles
from ftrun.tools.doctor.findings import Finding, ok, problem, warning
from ftrun.tools.status.client import connect

CONNECT_TIMEOUT_S = 3.0
PORTS_MIN = 2000
SKEW_WARNING_S = 2.0
SKEW_PROBLEM_S = 300.0
OPTION = "--lighthouse"


@dataclass(frozen=True, slots=True)
class Way:
    """The lighthouse to reach. ``web``: its HTTP address; None: the port after its gRPC port."""

    lighthouse: str
    web: str | None
    tls: TlsFiles

    def web_address(self) -> tuple[str, int]:
        """Host and port of its web server."""
        if self.web is not None:
            return parse_address(self.web, "--web")
        host, port = parse_address(self.lighthouse, OPTION)
        return host, port + 1


def ports() -> list[Finding]:
    """Whether a port can be bound, and how many ports there are for connections."""
    try:
        with socket.create_server(("127.0.0.1", 0)):
            bound = ok("ports", "a port of the loopback interface can be bound")
    except OSError as error:
        bound = problem(
            "ports",
            f"no port of the loopback interface can be bound ({error.strerror})",
            "Bring the loopback interface up: ip link set lo up",
        )
    text = ""
    with contextlib.suppress(OSError):
        text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
    return [bound, judge_port_range(text)]


def route(way: Way | None) -> list[Finding]:
    """The address at which this node's peers would reach it."""
    name = "interface"
    try:
        address = own_address(way.lighthouse if way is not None else None)
        check_own_address(address)
    except UserError as error:
        return [problem(name, str(error), "Name the lighthouse by an address that is routed.")]
    if way is None:
        return [ok(name, f"workers meet at {address} (no {OPTION} was given)")]
    return [judge_route(address, split_address(way.lighthouse)[0])]


def handshake(way: Way) -> list[Finding]:
    """Whether the lighthouse answers, and is a lighthouse."""
    name = "lighthouse"
    host, port = parse_address(way.lighthouse, OPTION)
    remedy = (
        "Start it there (ftrun lighthouse --bind HOST:PORT), and let the firewall pass this port."
    )
    try:
        socket.create_connection((host, port), CONNECT_TIMEOUT_S).close()
    except OSError as error:
        why = error.strerror or str(error)
        return [problem(name, f"{way.lighthouse} does not answer ({why})", remedy)]
    try:
        check_handshake(host, port, way.tls)
    except FtrunError as error:
        return [problem(name, str(error), "Correct the TLS files; ftrun certs makes some to try.")]
    return [ok(name, f"{way.lighthouse} answers" + (" by TLS" if way.tls.ca else ""))]


def skew(way: Way) -> list[Finding]:
    """This machine's clock against the lighthouse's, by the Date of an HTTP answer."""
    host, port = way.web_address()
    began = clock.now()
    try:
        date = _date_of(host, port, way.tls)
    except (OSError, http.client.HTTPException) as error:
        return [
            warning(
                "clock",
                f"not compared: the web server at {host}:{port} does not answer ({error})",
                "Give its address: --web HOST:PORT.",
            )
        ]
    return [judge_skew(date, clock.wall().timestamp(), clock.now() - began)]


def judge_port_range(text: str) -> Finding:
    """``text``: the first and the last port for outgoing connections."""
    parts = text.split()
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        return warning(
            "port range", "it cannot be read", "Nothing, if jobs find the ports that they need."
        )
    first, last = int(parts[0]), int(parts[1])
    count = last - first + 1
    said = f"{count} ports for connections ({first} to {last})"
    if count < PORTS_MIN:
        return warning("port range", said, "Widen net.ipv4.ip_local_port_range.")
    return ok("port range", said)


def judge_route(address: str, lighthouse_host: str) -> Finding:
    """Whether other nodes can reach this node's address."""
    if is_loopback(address) and not is_loopback(lighthouse_host):
        return problem(
            "interface",
            f"the way to {lighthouse_host} begins at {address}, which other nodes cannot reach",
            "Name the lighthouse by its address on the network that the nodes share.",
        )
    return ok("interface", f"the way to the lighthouse begins at {address}: peers meet there")


def judge_skew(date: str | None, own: float, took_s: float) -> Finding:
    """Compare this machine's clock with the lighthouse's.

    ``date``: the header; ``own``: this machine's seconds since the epoch; ``took_s``: duration of
    the exchange. The header has whole seconds, so up to one more second is no difference.
    """
    name = "clock"
    try:
        parsed = email.utils.parsedate_to_datetime(date or "")
    except (TypeError, ValueError):
        return warning(name, "not compared: the answer has no Date", "Ask the lighthouse directly.")
    their = parsed.replace(tzinfo=parsed.tzinfo or timezone.utc).timestamp()
    off_s = max(0.0, abs(own - their) - took_s - 1.0)
    text = f"{off_s:.0f} s apart from the lighthouse's"
    remedy = "Let both machines follow a time server (chrony, systemd-timesyncd)."
    if off_s >= SKEW_PROBLEM_S:
        return problem(name, f"{text}: certificates may seem out of date", remedy)
    if off_s >= SKEW_WARNING_S:
        return warning(name, f"{text}: logs of the nodes are hard to compare", remedy)
    return ok(name, "as the lighthouse's")


def _date_of(host: str, port: int, tls: TlsFiles) -> str | None:
    connection = connect(host, port, tls, CONNECT_TIMEOUT_S)
    try:
        connection.request("GET", "/healthz", headers={"User-Agent": f"ftrun-doctor/{os.getpid()}"})
        return connection.getresponse().getheader("Date")
    finally:
        connection.close()
