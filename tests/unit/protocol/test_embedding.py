"""The contract between an agent and its own lighthouse: environment and ``address.json``."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ftrun.lighthouse.embedded import take_embedding
from ftrun.protocol.embedding import (
    ADDRESS_FILE,
    ServiceAddress,
    child_environment,
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
    token_read, token_write = os.pipe()
    os.write(token_write, b"secret\n")
    os.close(token_write)
    environment = child_environment(tmp_path, token_read, parent_pid=1, http="h:1")
    embedding = take_embedding(environment)
    assert (embedding.state_dir, embedding.bind, embedding.http) == (tmp_path, "127.0.0.1:0", "h:1")
    assert embedding.token == "secret"
    assert "secret" not in repr(embedding)
    assert embedding.outlives


def test_a_state_of_the_agents_life_alone_is_told_as_such(tmp_path: Path) -> None:
    token_read, token_write = os.pipe()
    os.close(token_write)
    environment = child_environment(tmp_path, token_read, parent_pid=1, outlives=False)
    assert not take_embedding(environment).outlives
