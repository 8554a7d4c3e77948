"""TLS on both ports: the right authority lets in, any other does not."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import socket
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ftrun.core.lighthouse import Lighthouse
from ftrun.core.lighthouse_events import JournalState, LighthouseSettings
from ftrun.core.messages import Hello, JobSpec, Welcome
from ftrun.lighthouse.journal import JournalFile
from ftrun.lighthouse.main import tls_context
from ftrun.lighthouse.server import MembershipServer
from ftrun.lighthouse.settings import ServiceSettings
from ftrun.lighthouse.shell import Shell
from ftrun.lighthouse.web import WebServer
from ftrun.protocol.auth import new_token
from ftrun.protocol.rpc import Connected, Disconnected, LighthouseConnection
from ftrun.status.client import LighthouseUnreachable, fetch_status

SPEC = JobSpec("job", 2, 1, 1, 5.0, 2.0, 60.0)


def certificate(directory: Path, name: str) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.timezone.utc)
    host = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(host, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = directory / f"{name}.pem", directory / f"{name}.key"
    cert_file.write_bytes(built.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return cert_file, key_file


@pytest.fixture
def settings(tmp_path: Path) -> ServiceSettings:
    cert, key = certificate(tmp_path, "lighthouse")
    return ServiceSettings(tmp_path, new_token(), bind="127.0.0.1:0", tls_cert=cert, tls_key=key)


async def first_words(settings: ServiceSettings, port: int, ca_file: Path | None) -> list[Any]:
    """What an agent is told first."""
    events: asyncio.Queue[Any] = asyncio.Queue()
    address = f"127.0.0.1:{port}"
    connection = LighthouseConnection([address], settings.token, events.put_nowait, ca_file=ca_file)
    task = asyncio.ensure_future(connection.run())
    found = [await events.get()]
    if isinstance(found[0], Connected):
        connection.send(Hello("node", SPEC, 8, "h", "s"))
        found.append(await events.get())
    connection.close()
    await task
    return found


def test_agents_attach_by_the_right_authority_only(
    settings: ServiceSettings, tmp_path: Path
) -> None:
    other, _ = certificate(tmp_path, "other")

    async def main() -> None:
        shell = Shell(
            Lighthouse(LighthouseSettings(), JournalState(), 0.0), JournalFile(tmp_path / "j")
        )
        server = MembershipServer(settings)
        _, port = server.bind()
        await server.start(shell)
        said = await first_words(settings, port, settings.tls_cert)
        assert [type(word) for word in said] == [Connected, Welcome]
        for wrong in (other, None):
            assert isinstance((await first_words(settings, port, wrong))[0], Disconnected)
        shell.stop()
        await server.stop()

    asyncio.run(asyncio.wait_for(main(), 30.0))


def test_the_status_is_encrypted_too(settings: ServiceSettings, tmp_path: Path) -> None:
    other, _ = certificate(tmp_path, "other")

    async def main() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        server = WebServer(lambda: {"lighthouse": {}}, settings.token, tls_context(settings))
        await server.start(listener)

        async def ask(ca_file: Path | None) -> dict[str, Any]:
            return await asyncio.to_thread(fetch_status, address, settings.token, ca_file=ca_file)

        assert await ask(settings.tls_cert) == {"lighthouse": {}}
        for wrong in (other, None):
            with pytest.raises(LighthouseUnreachable):
                await ask(wrong)
        await server.stop()

    asyncio.run(asyncio.wait_for(main(), 30.0))
