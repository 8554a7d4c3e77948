"""The settings that a lighthouse accepts, and those with which it refuses to start."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from ftrun.base.errors import UserError
from ftrun.lighthouse.settings import ServiceSettings, TorchftSettings
from ftrun.protocol.auth import new_token
from ftrun.protocol.tls import TlsFiles
from ftrun.tools.certs import write_certificates


@pytest.fixture
def settings(tmp_path: Path) -> ServiceSettings:
    return ServiceSettings(tmp_path / "state", new_token())


def test_the_web_server_is_one_port_above(settings: ServiceSettings) -> None:
    assert settings.grpc_address() == ("127.0.0.1", 29510)
    assert settings.http_address() == ("127.0.0.1", 29511)
    assert replace(settings, bind="127.0.0.1:0").http_address() == ("127.0.0.1", 0)
    assert replace(settings, http="localhost:80").http_address() == ("localhost", 80)
    with pytest.raises(UserError, match="--http"):
        replace(settings, bind="127.0.0.1:65535").http_address()
    settings.check()
    assert settings.state_dir.is_dir()


def test_two_addresses_of_its_own_are_not_one_port(settings: ServiceSettings) -> None:
    for found, names in (
        (replace(settings, http="127.0.0.1:29510"), "--bind and --http"),
        (replace(settings, torchft=TorchftSettings(("127.0.0.1:29511",))), "--torchft-bind"),
        (replace(settings, torchft=TorchftSettings(("a=[::1]:7", "b=[::1]:7"))), "--torchft-bind"),
    ):
        with pytest.raises(UserError, match=rf"both .*: .*{names}"):
            found.check()
    replace(settings, bind="[::1]:0", torchft=TorchftSettings(("a=[::1]:0", "b=[::1]:0"))).check()


def test_the_token_is_not_in_a_repr(settings: ServiceSettings) -> None:
    assert settings.token not in repr(settings)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "[::1]"])
def test_loopback_needs_no_tls(settings: ServiceSettings, host: str) -> None:
    replace(settings, bind=f"{host}:29510").check()


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "[::]", "node-a.example"])
def test_another_address_needs_a_token_and_tls_or_a_waiver(
    settings: ServiceSettings, host: str, tmp_path: Path
) -> None:
    exposed = replace(settings, bind=f"{host}:29510")
    with pytest.raises(UserError, match="no TLS"):
        exposed.check()
    with pytest.raises(UserError, match="no token"):
        replace(exposed, token="", insecure_plaintext=True).check()
    with pytest.raises(UserError, match="no TLS"):
        replace(settings, http=f"{host}:80").check()
    replace(exposed, insecure_plaintext=True).check()
    write_certificates(tmp_path, ("127.0.0.1",))
    cert, key = tmp_path / "lighthouse.pem", tmp_path / "lighthouse.key"
    replace(exposed, tls=TlsFiles(cert, key)).check()


def test_bad_input_is_named(settings: ServiceSettings, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for wrong, word in (
        (replace(settings, token=""), "token"),
        (replace(settings, bind="nonsense"), "--bind"),
        (replace(settings, http="127.0.0.1:99999"), "--http"),
        (replace(settings, tls=TlsFiles(tmp_path / "file")), "--tls-key"),
        (replace(settings, state_dir=tmp_path / "file" / "below"), "--state-dir"),
    ):
        with pytest.raises(UserError, match=word):
            wrong.check()


def test_a_name_of_this_machine_alone_is_no_address_for_agents(
    settings: ServiceSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Debian's /etc/hosts has it."""
    row = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [row])
    with pytest.raises(UserError, match=r"--bind n0: .*loopback interface.*was not started"):
        replace(settings, bind="n0:29510", insecure_plaintext=True).check()
    replace(settings, bind="127.0.1.1:29510").check()
