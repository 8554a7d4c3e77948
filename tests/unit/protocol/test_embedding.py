"""The contract between an agent and its own lighthouse: an order and ``address.json``."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ftrun.lighthouse.embedded import take_embedding
from ftrun.protocol.embedding import (
    ADDRESS_FILE,
    ORDER_FD,
    Embedding,
    ServiceAddress,
    publish_address,
    read_address,
    withdraw_address,
)


def test_an_address_is_read_as_it_was_published_and_is_withdrawn(tmp_path: Path) -> None:
    address = ServiceAddress("127.0.0.1:1", "127.0.0.1:2", 3)
    publish_address(tmp_path, address)
    assert read_address(tmp_path) == address
    assert [path.name for path in tmp_path.iterdir()] == [ADDRESS_FILE]
    withdraw_address(tmp_path)
    withdraw_address(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_address(tmp_path)


def test_the_child_reads_what_the_agent_passed(tmp_path: Path) -> None:
    order_read, order_write = os.pipe()
    given = Embedding(str(tmp_path), "secret", http="h:1", outlives=False, tls=("a", "b"))
    os.write(order_write, given.order())
    os.close(order_write)
    embedding, fd = take_embedding({ORDER_FD: str(order_read)})
    assert (embedding, fd) == (given, order_read)
    assert embedding.bind == "127.0.0.1:0"
    assert "secret" not in repr(embedding)
    os.close(fd)
