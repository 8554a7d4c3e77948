"""The TLS files: any error in them is reported before anything starts."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ftrun.base import clock
from ftrun.base.errors import UserError
from ftrun.protocol.tls import PLAINTEXT, TlsFiles
from ftrun.tools.certs import write_certificates


@pytest.fixture
def made(tmp_path: Path) -> Path:
    write_certificates(tmp_path / "made", ("127.0.0.1",))
    return tmp_path / "made"


def self_signed(directory: Path, from_days: int, to_days: int) -> tuple[Path, Path]:
    """A certificate that is valid between two days, counted from now."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "node-7")])
    now = clock.wall()
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + timedelta(days=from_days))
        .not_valid_after(now + timedelta(days=to_days))
        .sign(key, hashes.SHA256())
    )
    cert, key_file = directory / "node-7.pem", directory / "node-7.key"
    pem = serialization.Encoding.PEM
    cert.write_bytes(built.public_bytes(pem))
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key_file.write_bytes(key.private_bytes(pem, form, plain))
    return cert, key_file


def refused(tls: TlsFiles, *words: str) -> None:
    """Both ends refuse it, with this text and with what to do."""
    for check in (tls.check_server, tls.check_client):
        with pytest.raises(UserError) as told:
            check()
        for word in (*words, "Nothing was started"):
            assert word in str(told.value), told.value


def test_no_files_are_plaintext() -> None:
    assert not PLAINTEXT
    PLAINTEXT.check_server()
    PLAINTEXT.check_client()
    assert PLAINTEXT.server_context() is None
    assert PLAINTEXT.client_context() is None


def test_half_of_what_is_needed_is_named(made: Path) -> None:
    cert, key, ca = made / "agent.pem", made / "agent.key", made / "ca.pem"
    with pytest.raises(UserError, match="both or none"):
        TlsFiles(cert, None).check_server()
    with pytest.raises(UserError, match="both or none"):
        TlsFiles(None, key, ca).check_client()
    with pytest.raises(UserError, match="no certificate to show"):
        TlsFiles(ca=ca).check_server()
    with pytest.raises(UserError, match="Give --tls-ca PEM"):
        TlsFiles(cert, key).check_client()
    TlsFiles(ca=ca).check_client()
    TlsFiles(cert, key).check_server()


def test_a_key_of_another_certificate_is_refused(made: Path) -> None:
    pair = made / "agent.pem", made / "lighthouse.key", made / "ca.pem"
    refused(TlsFiles(*pair), "is not the key of --tls-cert", "ftrun agent")


def test_files_that_are_not_there_or_not_pem_are_named(made: Path, tmp_path: Path) -> None:
    cert, key, ca = made / "agent.pem", made / "agent.key", made / "ca.pem"
    none, noise = tmp_path / "none", tmp_path / "noise"
    noise.write_bytes(b"\x30\x82\x01\x00 not pem")
    refused(TlsFiles(none, key, ca), "--tls-cert", "No such file", "ftrun certs")
    refused(TlsFiles(cert, none, ca), "--tls-key", "No such file")
    refused(TlsFiles(cert, key, tmp_path), "--tls-ca", "directory")
    refused(TlsFiles(noise, key, ca), "--tls-cert", "no certificate in PEM form")
    refused(TlsFiles(cert, cert, ca), "--tls-key", "no private key", "Is it the certificate?")
    refused(TlsFiles(cert, key, key), "--tls-ca", "Is it the key")
    noise.write_bytes(b"x" * (1 << 21))
    refused(TlsFiles(cert, key, noise), "over 1 MiB")


def test_an_encrypted_key_is_refused_and_nobody_is_asked(made: Path) -> None:
    key = serialization.load_pem_private_key((made / "agent.key").read_bytes(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    (made / "agent.key").write_bytes(locked)
    refused(TlsFiles(made / "agent.pem", made / "agent.key", made / "ca.pem"), "is encrypted")


@pytest.mark.parametrize(("days", "word"), [((-9, -2), "expired on"), ((2, 9), "valid only from")])
def test_dates_are_looked_at(made: Path, tmp_path: Path, days: tuple[int, int], word: str) -> None:
    cert, key = self_signed(tmp_path, *days)
    refused(TlsFiles(cert, key, made / "ca.pem"), "--tls-cert", "node-7", word)
    refused(TlsFiles(made / "agent.pem", made / "agent.key", cert), "--tls-ca", word)


def test_a_ca_that_may_not_sign_is_refused(made: Path) -> None:
    pair = made / "agent.pem", made / "agent.key"
    refused(TlsFiles(*pair, made / "lighthouse.pem"), "no authority's", "ftrun lighthouse")


def test_files_that_go_away_later_are_a_user_error(made: Path) -> None:
    files = TlsFiles(made / "agent.pem", made / "agent.key", made / "ca.pem")
    (made / "agent.pem").unlink()
    with pytest.raises(UserError, match="cannot be used"):
        files.client_context()
