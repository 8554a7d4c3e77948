"""``ftrun certs``: six files that fit together, with their modes, and nothing overwritten."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from ftrun.base.errors import UserError
from ftrun.protocol.tls import TlsFiles
from ftrun.tools.certs import write_certificates

NAMES = {"ca", "lighthouse", "agent"}


def test_they_are_written_with_their_modes_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_certificates(tmp_path / "d", ("10.0.0.1", "node-0.cluster"))
    finally:
        os.umask(before)
    modes = {p.name: p.stat().st_mode & 0o777 for p in (tmp_path / "d").iterdir()}
    assert modes == {
        **{f"{name}.pem": 0o644 for name in NAMES},
        **{f"{name}.key": 0o600 for name in NAMES},
    }
    assert (tmp_path / "d").stat().st_mode & 0o777 == 0o700


def test_they_pass_our_own_checks_and_openssls(tmp_path: Path) -> None:
    write_certificates(tmp_path, ("10.0.0.1", "node-0.cluster"))
    ca = tmp_path / "ca.pem"
    lighthouse = TlsFiles(tmp_path / "lighthouse.pem", tmp_path / "lighthouse.key", ca)
    agent = TlsFiles(tmp_path / "agent.pem", tmp_path / "agent.key", ca)
    lighthouse.check_server()
    agent.check_client()
    assert isinstance(lighthouse.server_context(), ssl.SSLContext)
    assert isinstance(agent.client_context(), ssl.SSLContext)


def test_who_may_be_what_is_in_them(tmp_path: Path) -> None:
    written = write_certificates(tmp_path, ("10.0.0.1", "node-0.cluster"))
    assert written.hosts == ("10.0.0.1", "node-0.cluster", "localhost", "127.0.0.1", "::1")
    for name, purpose in (
        ("lighthouse", ExtendedKeyUsageOID.SERVER_AUTH),
        ("agent", ExtendedKeyUsageOID.CLIENT_AUTH),
    ):
        made = x509.load_pem_x509_certificate((tmp_path / f"{name}.pem").read_bytes())
        usage = made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert list(usage) == [purpose]
        assert not made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    lines = "\n".join(written.lines())
    for words in ("ftrun lighthouse --bind 10.0.0.1:29510", "--tls-ca", "ftrun status"):
        assert words in lines


def test_nothing_is_overwritten_unless_forced(tmp_path: Path) -> None:
    (tmp_path / "agent.key").write_text("mine")
    with pytest.raises(UserError, match=r"agent\.key exists already.*--force"):
        write_certificates(tmp_path, ("h",))
    assert [p.name for p in tmp_path.iterdir()] == ["agent.key"]
    write_certificates(tmp_path, ("h",), force=True)
    assert (tmp_path / "agent.key").read_text() != "mine"
    assert (tmp_path / "agent.key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("host", ["", "a b", "host:29510", "ä.example", "-" * 3 + "/", "a..b"])
def test_what_is_no_host_is_refused(tmp_path: Path, host: str) -> None:
    with pytest.raises(UserError, match="--host"):
        write_certificates(tmp_path / "d", (host,))
    assert not (tmp_path / "d").exists()


def test_a_directory_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="--out"):
        write_certificates(tmp_path / "file", ("h",))
