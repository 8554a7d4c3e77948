"""The certificate of a node's server for hands: made for one life of the node.

A node's own certificate (``--tls-cert``) is a client's. So its server shows one that the node has
made itself, which its hands receive through the registrar, whose connections have TLS and the
token. A hand trusts that certificate alone. The server accepts clients of the job's authority.

Imported only if TLS is used. Not here: the authority's files (protocol/tls.py).
"""

from __future__ import annotations

import ipaddress
import os
from datetime import timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ftrun.base import clock
from ftrun.protocol.tls import TlsFiles

VALID = timedelta(days=3650)
SKEW = timedelta(days=1)
"""A margin for the clocks of different machines."""


def make_identity(directory: Path, host: str, ca: Path | None) -> tuple[TlsFiles, str]:
    """The files of a server at ``host``, in ``directory``; and its certificate as text.

    ``ca``: the authority of the clients that are accepted.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ftrun node")])
    now = clock.wall()
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + VALID)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    files = TlsFiles(directory / "door.pem", directory / "door.key", ca)
    for path, data in ((files.cert, pem), (files.key, secret)):
        assert path is not None
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
    return files, pem.decode()


def trusting(tls: TlsFiles, directory: Path, certificate: str) -> TlsFiles:
    """A hand's files for the server of one lead."""
    path = directory / "lead.pem"
    path.write_text(certificate)
    return TlsFiles(tls.cert, tls.key, path)
