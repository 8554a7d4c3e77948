"""TLS between agents, people and a lighthouse: three PEM files, checked before anything starts.

``--tls-cert`` and ``--tls-key`` are a process's own certificate and key, ``--tls-ca`` the CA that
it trusts. A lighthouse with a CA accepts only peers with a certificate from it (mTLS). An agent
with a CA uses TLS.

Files are read at each use, so a certificate can be renewed during a long job. Not here: writing
them (certs.py), the lighthouse's certificate (handshake.py), the token, which is required as well.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftrun.base import clock
from ftrun.base.errors import UserError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

PEM_BYTES_MAX = 1 << 20
_NOTHING = "Nothing was started."


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files. The paths are not secret; the content of ``key`` is."""

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None

    def __bool__(self) -> bool:
        """Whether TLS is used at all."""
        return self.cert is not None or self.ca is not None

    def absolute(self) -> TlsFiles:
        return TlsFiles(*(p and p.absolute() for p in (self.cert, self.key, self.ca)))

    def check_server(self) -> None:
        """Check that a lighthouse can use the files.

        Raises:
            UserError: which file is wrong, how, and what to do.
        """
        if self.ca is not None and self.cert is None:
            raise UserError(
                "--tls-ca says whose agents are let in, and there is no certificate to show them. "
                f"{_NOTHING} Give --tls-cert and --tls-key too."
            )
        self._check_files()

    def check_client(self) -> None:
        """Check that an agent, or `ftrun status`, can use the files. Raises as ``check_server``."""
        if self.cert is not None and self.ca is None:
            raise UserError(
                "--tls-cert shows the lighthouse who this is, and there is no --tls-ca to know the "
                f"lighthouse by. {_NOTHING} Give --tls-ca PEM, the authority that signed the "
                "lighthouse's certificate."
            )
        self._check_files()

    def _check_files(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise UserError(
                f"--tls-cert and --tls-key belong together: give both or none. {_NOTHING}"
            )
        if self.ca is not None:
            _check_ca(self.ca)
        if self.cert is not None and self.key is not None:
            _check_pair(self.cert, self.key)

    def names(self) -> tuple[str, ...]:
        """The host names in the certificate that is presented; empty without TLS."""
        if self.cert is None:
            return ()
        from cryptography import x509

        try:
            own = _certificates("--tls-cert", self.cert)[0]
            found = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except (x509.ExtensionNotFound, ValueError):
            return ()
        return tuple(found.get_values_for_type(x509.DNSName))

    # ------------------------------------------------------------ for the libraries

    def server_context(self) -> ssl.SSLContext | None:
        """For a web server; None: plaintext.

        Raises:
            UserError: a file cannot be used.
        """
        if self.cert is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._load(context)
        if self.ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def client_context(self) -> ssl.SSLContext | None:
        """For an HTTP client; None: plaintext. Raises as ``server_context``."""
        if self.ca is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._load(context)
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            if self.ca is not None:
                context.load_verify_locations(self.ca)
            if self.cert is not None:
                # Without this answer OpenSSL would ask for a password on the terminal.
                context.load_cert_chain(self.cert, self.key, lambda: "")
        except (OSError, ssl.SSLError) as error:
            raise UserError(f"The TLS files cannot be used: {error}.") from error

    def server_credentials(self, grpc: Any) -> Any:
        """For a gRPC server. ``grpc``: the module. Raises as ``server_context``."""
        pair = (_read("--tls-key", self.key), _read("--tls-cert", self.cert))
        if self.ca is None:
            return grpc.ssl_server_credentials([pair])
        roots = _read("--tls-ca", self.ca)
        return grpc.ssl_server_credentials([pair], roots, require_client_auth=True)

    def channel_credentials(self, grpc: Any) -> Any:
        """For a gRPC channel. Raises as ``server_context``."""
        key = None if self.key is None else _read("--tls-key", self.key)
        cert = None if self.cert is None else _read("--tls-cert", self.cert)
        return grpc.ssl_channel_credentials(_read("--tls-ca", self.ca), key, cert)


PLAINTEXT = TlsFiles()


def _read(option: str, path: Path | None) -> bytes:
    assert path is not None
    try:
        with open(path, "rb") as file:
            data = file.read(PEM_BYTES_MAX + 1)
    except OSError as error:
        raise UserError(
            f"{option} {path} cannot be read: {error.strerror}. {_NOTHING} "
            "`ftrun certs` writes certificates to try with."
        ) from None
    if len(data) > PEM_BYTES_MAX:
        raise UserError(f"{option} {path} is no PEM file: it is over 1 MiB. {_NOTHING}")
    return data


def _certificates(option: str, path: Path) -> list[Certificate]:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(_read(option, path))
    except ValueError:
        raise UserError(
            f"{option} {path} holds no certificate in PEM form (-----BEGIN CERTIFICATE-----). "
            f"{_NOTHING} Is it the key, or in DER form?"
        ) from None


def _check_ca(path: Path) -> None:
    certificates = _certificates("--tls-ca", path)
    for certificate in certificates:
        _check_dates("--tls-ca", path, certificate)
    if not any(map(_may_sign, certificates)):
        raise UserError(
            f"--tls-ca {path} holds the certificate of {_name(certificates[0])}, which is no "
            f"authority's (CA is false in it). {_NOTHING} Give the file of the authority that "
            "signed it."
        )


def _may_sign(certificate: Certificate) -> bool:
    from cryptography import x509

    try:
        basic = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    except (x509.ExtensionNotFound, ValueError):
        return True  # old CAs lack the extension; OpenSSL decides
    return basic.value.ca


def _check_pair(cert: Path, key: Path) -> None:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    own = _certificates("--tls-cert", cert)[0]
    _check_dates("--tls-cert", cert, own)
    data = _read("--tls-key", key)
    try:
        private = load_pem_private_key(data, None)
    except TypeError:
        raise UserError(
            f"--tls-key {key} is encrypted, and ftrun cannot ask for its password. {_NOTHING} "
            f"Write it without: openssl pkey -in {key} -out PLAIN.key"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise UserError(
            f"--tls-key {key} holds no private key in PEM form. {_NOTHING} Is it the certificate?"
        ) from None
    if private.public_key() != own.public_key():
        raise UserError(
            f"--tls-key {key} is not the key of --tls-cert {cert} ({_name(own)}). {_NOTHING} "
            "Give the two files that were made together."
        )


def _check_dates(option: str, path: Path, certificate: Certificate) -> None:
    now = clock.wall()
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > ends:
        raise UserError(
            f"{option} {path}: the certificate of {_name(certificate)} expired on "
            f"{ends:%Y-%m-%d %H:%M} UTC. {_NOTHING} Renew it; for one to try with: "
            "ftrun certs --force"
        )
    if now < begins:
        raise UserError(
            f"{option} {path}: the certificate of {_name(certificate)} is valid only from "
            f"{begins:%Y-%m-%d %H:%M} UTC, and here it is {now:%Y-%m-%d %H:%M}. {_NOTHING} "
            "Is this machine's clock right?"
        )


def _name(certificate: Certificate) -> str:
    return certificate.subject.rfc4514_string()[:200] or "(nobody)"
