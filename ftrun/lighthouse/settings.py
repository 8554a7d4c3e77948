"""The settings of a lighthouse service, checked before anything is started.

Not here: the core's timeouts (``LighthouseSettings``), the spelling of the options (commands/).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from ftrun.base.addresses import is_loopback, is_loopback_name, parse_address
from ftrun.base.defaults import BIND
from ftrun.base.errors import UserError
from ftrun.config.settings import check_writable
from ftrun.core.lighthouse.events import LighthouseSettings
from ftrun.core.torchft_quorum.records import DEFAULT_ROOM, REPLICAS_MAX, QuorumSettings
from ftrun.lighthouse.register.opening import open_store
from ftrun.protocol.tls import PLAINTEXT, TlsFiles

ROOM_CHARS_MAX = 128
SILENCE_S = 3.0

EMBEDDED = LighthouseSettings(assign_gather_s=0.0)
"""An embedded lighthouse has one agent and waits for no other."""

STANDALONE = LighthouseSettings(assign_gather_s=3.0)
"""A standalone lighthouse waits longer for further agents before it assigns the slots. Nodes of one
job rarely start within a fraction of a second, and the first agent would get all slots."""


TORCHFT_BIND = "--torchft-bind"


@dataclass(frozen=True, slots=True)
class TorchftSettings:
    """torchft's lighthouse. ``binds``: ``HOST:PORT`` or ``ROOM=HOST:PORT``; none: it is off."""

    binds: tuple[str, ...] = ()
    quorum: QuorumSettings = field(default_factory=QuorumSettings)

    def addresses(self) -> list[tuple[str, str, int]]:
        """Room, host and port of each address.

        Raises:
            UserError: one has another form.
        """
        found = []
        for bind in self.binds:
            room, is_named, address = bind.rpartition("=")
            if is_named and not (room and room.isprintable() and len(room) <= ROOM_CHARS_MAX):
                raise UserError(
                    f"{TORCHFT_BIND} {bind!r}: a room has a name of 1 to {ROOM_CHARS_MAX} "
                    f"characters. For example: {TORCHFT_BIND} my-job=127.0.0.1:29520."
                )
            found.append((room or DEFAULT_ROOM, *parse_address(address, TORCHFT_BIND)))
        return found

    def check(self) -> None:
        """Check the numbers.

        Raises:
            UserError: one is wrong, or they have no effect because the service is off.
        """
        if not self.binds and self.quorum != QuorumSettings():
            raise UserError(
                f"The --torchft options have no effect without {TORCHFT_BIND}: the lighthouse was "
                f"not started. Give {TORCHFT_BIND} HOST:PORT, or leave them out."
            )
        if not 1 <= self.quorum.min_replicas <= REPLICAS_MAX:
            raise UserError(
                f"--torchft-min-replicas is {self.quorum.min_replicas}, and must be between 1 and "
                f"{REPLICAS_MAX}."
            )
        for option, value in (
            ("--torchft-join-timeout", self.quorum.join_timeout_s),
            ("--torchft-heartbeat-timeout", self.quorum.heartbeat_timeout_s),
        ):
            if not (math.isfinite(value) and value > 0):
                raise UserError(f"{option} is {value:g}, and must be a number of seconds above 0.")


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """One lighthouse service.

    Attributes:
        torchft: the lighthouse for torchft's own clients.
        state: a register that several lighthouses of the job share (register/); "": this one is
            alone on ``state_dir``.
        silence_s: how long the leader may write nothing before another takes over.
        bind: gRPC address; port 0: any.
        http: address of the web server; None: the port after ``bind``'s (any, if that is 0).
        tls: if it has a CA, both ports require a certificate.
        insecure_plaintext: allows another address than loopback without TLS.
        allowed_hosts: further host names in requests to the web server.
        once: it ends with its first job.
        log_dir: of the job, if an agent runs this lighthouse.
        outlives: the state is needed after a crash of the machine.
    """

    state_dir: Path
    token: str = field(repr=False)
    bind: str = BIND
    http: str | None = None
    tls: TlsFiles = PLAINTEXT
    torchft: TorchftSettings = field(default_factory=TorchftSettings)
    state: str = ""
    silence_s: float = SILENCE_S
    insecure_plaintext: bool = False
    once: bool = False
    allowed_hosts: tuple[str, ...] = ()
    core: LighthouseSettings = field(default_factory=LighthouseSettings)
    log_dir: Path | None = None
    outlives: bool = True

    def grpc_address(self) -> tuple[str, int]:
        return parse_address(self.bind, "--bind")

    def http_address(self) -> tuple[str, int]:
        if self.http is not None:
            return parse_address(self.http, "--http")
        host, port = self.grpc_address()
        if port == 65535:
            raise UserError(
                "--bind has port 65535, so there is no next port; give --http HOST:PORT too."
            )
        return host, port + 1 if port else 0

    def check(self) -> None:
        """Check everything that can be checked without starting anything (X5).

        Raises:
            UserError: the first error found, with its remedy.
        """
        for option, (host, _) in (("--bind", self.grpc_address()), ("--http", self.http_address())):
            if not is_loopback(host):
                _check_name(option, host)
                self._check_exposed(option, host)
        self.torchft.check()
        for _, host, _ in self.torchft.addresses():
            self._check_torchft(host)
        self._check_ports()
        if not self.token:
            raise UserError("A lighthouse needs a token: give --token-file FILE.")
        self.tls.check_server()
        if self.state:
            open_store(self.state)
        check_writable(self.state_dir, "--state" if self.state else "--state-dir")

    def _check_ports(self) -> None:
        """Refuse two of this lighthouse's addresses on one port, which would be "already in
        use"."""
        http = "--http" if self.http is not None else "the web server's (the port after --bind's)"
        addresses = [("--bind", self.grpc_address()), (http, self.http_address())]
        addresses += [(TORCHFT_BIND, (host, port)) for _, host, port in self.torchft.addresses()]
        seen: dict[tuple[str, int], str] = {}
        for name, (host, port) in addresses:
            if port and (host, port) in seen:
                raise UserError(
                    f"Two addresses are both {host}:{port}: {seen[host, port]} and {name}. The "
                    "lighthouse was not started. Give one of them another port."
                )
            seen[host, port] = name

    def _check_exposed(self, option: str, host: str) -> None:
        if not self.token:
            raise UserError(
                f"{option} {host} can be reached from other machines and there is no token: "
                "the lighthouse was not started. Give --token-file FILE."
            )
        if not self.tls and not self.insecure_plaintext:
            raise UserError(
                f"{option} {host} can be reached from other machines and there is no TLS: the "
                "lighthouse was not started. Give --tls-cert and --tls-key, or, in a network that "
                "you trust, --insecure-plaintext."
            )

    def _check_torchft(self, host: str) -> None:
        """Require consent for other addresses than loopback, as torchft's protocol has no token or
        TLS."""
        if not is_loopback(host) and not self.insecure_plaintext:
            raise UserError(
                f"{TORCHFT_BIND} {host} can be reached from other machines, and torchft's protocol "
                "has no token and no TLS: the lighthouse was not started. In a network in which "
                "you trust everybody, give --insecure-plaintext; it holds for this port too."
            )


def _check_name(option: str, host: str) -> None:
    """Refuse a name of the loopback interface. Debian's /etc/hosts gives it the machine's own
    name."""
    if is_loopback_name(host):
        raise UserError(
            f"{option} {host}: on this machine that name is an address of the loopback interface, "
            "which other nodes do not reach. The lighthouse was not started. Give the address of "
            "the interface that they reach, or 0.0.0.0; or correct the name in /etc/hosts."
        )
