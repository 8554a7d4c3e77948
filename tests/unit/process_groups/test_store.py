"""Our store client against torch's server."""

from __future__ import annotations

import socket
import threading

import pytest
from torch.distributed import TCPStore

from ftrun.base import clock
from ftrun.base.errors import PeerError
from ftrun.process_groups.rendezvous import parse_record
from ftrun.process_groups.sockets import local_address
from ftrun.process_groups.store import StoreClient, split_address
from tests.unit.process_groups.ranks import HOST, open_store


def test_it_sets_gets_and_deletes_what_torch_sees() -> None:
    held, address = open_store()
    client = StoreClient(address, clock.now() + 60)
    torch_client = TCPStore(HOST, held.port, is_master=False)
    client.set("a/b", b"\0value")
    assert torch_client.get("a/b") == b"\0value" == client.get("a/b")
    torch_client.set("empty", b"")  # type: ignore[arg-type]
    assert client.get("empty") == b""
    assert client.has("a/b") and client.has("empty")
    assert client.delete("a/b") and client.delete("empty") and not client.delete("a/b")
    assert not client.has("a/b")
    assert held.num_keys() == 0
    client.close()


def test_get_waits_for_the_value() -> None:
    held, address = open_store()
    client = StoreClient(address, clock.now() + 60)
    timer = threading.Timer(0.05, lambda: held.set("later", b"here"))  # type: ignore[arg-type]
    timer.start()
    assert client.get("later") == b"here"
    timer.join()
    client.close()


def test_an_interrupt_ends_a_wait_at_once() -> None:
    _held, address = open_store()
    client = StoreClient(address, clock.now() + 60)
    timer = threading.Timer(0.05, client.interrupt)
    timer.start()
    with pytest.raises(PeerError, match="closed the connection"):  # not: did not answer in time
        client.get("never")
    timer.join()
    client.close()
    client.interrupt()


def test_the_deadline_ends_a_wait() -> None:
    _held, address = open_store()
    client = StoreClient(address, clock.now() + 60)
    client._deadline = clock.now() + 0.1
    with pytest.raises(PeerError, match="did not answer"):
        client.get("never")
    with pytest.raises(PeerError, match="within the deadline"):
        client.get("never")
    client.close()


def test_what_is_no_store_is_said() -> None:
    with socket.create_server((HOST, 0)) as listener:
        address = f"{HOST}:{listener.getsockname()[1]}"

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"HTTP")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(PeerError, match="no TCPStore"):
            StoreClient(address, clock.now() + 60)
        thread.join()


@pytest.mark.parametrize("address", ["host", "host:", ":80", "host:port"])
def test_malformed_addresses(address: str) -> None:
    with pytest.raises(PeerError, match="host:port"):
        split_address(address)


def test_addresses() -> None:
    assert split_address("[::1]:80") == ("::1", 80)
    assert local_address("127.0.0.1:80") == "127.0.0.1"


@pytest.mark.parametrize("value", [b"", b"\1", bytes(8) + b"\x08" + bytes(7) + b"\x09" + bytes(7)])
def test_a_record_of_another_layout_is_refused(value: bytes) -> None:
    with pytest.raises(PeerError, match="cannot be read"):
        parse_record(value)
