"""``ftrun certs``: a development CA, and certificates for a lighthouse and its agents.

It is meant for trials or for a single cluster, because the CA's key is a plain file. A site with
its own CA does not need it. Not here: how the files are used (protocol/tls.py).
"""

from __future__ import annotations

import ipaddress
import os
import socket
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ftrun.base import clock
from ftrun.base.defaults import LIGHTHOUSE_PORT
from ftrun.base.errors import UserError
from ftrun.base.files import write_whole

AUTHORITY_DAYS = 3650
CERTIFICATE_DAYS = 825
HOSTS_MAX = 100
CLOCK_SKEW = timedelta(minutes=5)
"""Clocks of machines differ. With this margin a new certificate is valid everywhere at once."""
ALWAYS = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


@dataclass(frozen=True, slots=True)
class Written:
    """The directory of the files, and the hosts that they are for."""

    directory: Path
    hosts: tuple[str, ...]

    def lines(self) -> list[str]:
        """Instructions for the user."""
        d, host = self.directory, self.hosts[0]
        agents, web = f"{host}:{LIGHTHOUSE_PORT}", f"{host}:{LIGHTHOUSE_PORT + 1}"
        return [
            f"Wrote to {d}: ca.pem ca.key lighthouse.pem lighthouse.key agent.pem agent.key",
            f"The lighthouse's certificate is for: {', '.join(self.hosts)}",
            "",
            "The lighthouse, which accepts only agents with a certificate of this authority:",
            f"  ftrun lighthouse --bind {agents} --tls-cert {d}/lighthouse.pem "
            f"--tls-key {d}/lighthouse.key --tls-ca {d}/ca.pem",
            "Every node (it needs agent.pem, agent.key, ca.pem and the token, but not ca.key):",
            f"  ftrun --lighthouse {agents} --tls-cert {d}/agent.pem "
            f"--tls-key {d}/agent.key --tls-ca {d}/ca.pem train.py",
            "Its status:",
            f"  ftrun status --lighthouse {web} --tls-cert {d}/agent.pem "
            f"--tls-key {d}/agent.key --tls-ca {d}/ca.pem",
        ]


def write_certificates(directory: Path, hosts: tuple[str, ...], *, force: bool = False) -> Written:
    """Make a CA, a lighthouse's certificate for ``hosts``, and an agent's certificate.

    Args:
        directory: where the six files go; it is made with mode 0700.
        hosts: names and addresses at which agents reach the lighthouse; empty: this machine's.
        force: replace existing files.

    Raises:
        UserError: a host is invalid, a file exists, or the directory cannot be written.
    """
    names = _all_hosts(hosts or (socket.gethostname(),))
    alternatives = [_alternative(host) for host in names]
    authority = _authority()
    lighthouse = _signed(authority, "ftrun lighthouse", alternatives)
    agent = _signed(authority, "ftrun agent", [])
    files = {
        name + suffix: data
        for name, identity in (("ca", authority), ("lighthouse", lighthouse), ("agent", agent))
        for suffix, data in ((".pem", _certificate_pem(identity)), (".key", _key_pem(identity)))
    }
    _write_all(directory, files, force)
    return Written(directory, names)


def _all_hosts(hosts: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys((*hosts, *ALWAYS)))
    if len(names) > HOSTS_MAX:
        raise UserError(f"--host: {len(names)} names are too many; at most {HOSTS_MAX}.")
    return names


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    labels = host.removeprefix("*.").split(".")
    if not all(label.replace("-", "a").isalnum() and label.isascii() for label in labels):
        raise UserError(
            f"--host {host!r} is neither a host name nor an address. Nothing was written. "
            "For example: --host node0.cluster --host 10.0.0.1 (no port)."
        )
    return x509.DNSName(host)


def _authority() -> Identity:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("ftrun development authority")
    built = (
        _builder(name, name, key, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Identity(built, key)


def _signed(authority: Identity, name: str, alternatives: list[x509.GeneralName]) -> Identity:
    """Sign a certificate: for a server if it has host names, otherwise for a client."""
    key = ec.generate_private_key(ec.SECP256R1())
    purpose = ExtendedKeyUsageOID.SERVER_AUTH if alternatives else ExtendedKeyUsageOID.CLIENT_AUTH
    issuer = authority.certificate
    known_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = (
        _builder(_name(name), issuer.subject, key, CERTIFICATE_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(known_by, critical=False)
    )
    if alternatives:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    return Identity(builder.sign(authority.key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = clock.wall()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _certificate_pem(identity: Identity) -> bytes:
    return identity.certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(identity: Identity) -> bytes:
    return identity.key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write_all(directory: Path, files: dict[str, bytes], force: bool) -> None:
    """Write all files or, if one exists, none. A file appears complete or not at all."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        there = [name for name in files if os.path.lexists(directory / name)]
        if there and not force:
            raise UserError(
                f"{directory / there[0]} exists already. Nothing was written. Give another "
                "--out DIR, or --force to replace it: agents with the old files are refused then."
            )
        for name, data in files.items():
            mode = 0o600 if name.endswith(".key") else 0o644
            write_whole(directory / name, data, mode=mode)
    except OSError as error:
        raise UserError(
            f"--out {directory} cannot be written ({error.strerror}). Give another --out DIR."
        ) from None
