"""torchft's CheckpointTransport names, between two transports of one process."""

from __future__ import annotations

import urllib.error
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch

from ftrun import CheckpointTransport, HTTPTransport
from ftrun.base.errors import PeerError, UserError
from tests.unit.checkpoint.state_trees import same

TIMEOUT = timedelta(seconds=20)
SHORT = timedelta(seconds=2)


@pytest.fixture
def pair() -> Iterator[tuple[HTTPTransport[Any], HTTPTransport[Any]]]:
    made = HTTPTransport[Any](TIMEOUT, 0), HTTPTransport[Any](TIMEOUT, 2)
    yield made
    for transport in made:
        transport.shutdown(wait=False)


def test_a_checkpoint_goes_from_one_to_the_other(pair: Any) -> None:
    sender, receiver = pair
    assert isinstance(sender, CheckpointTransport)
    state = {"model": {"w": torch.randn(1000)}, "step": 4}
    sender.send_checkpoint([1], 4, state, TIMEOUT)
    assert same(receiver.recv_checkpoint(0, sender.metadata(), 4, TIMEOUT), state)
    sender.disallow_checkpoint()
    with pytest.raises(PeerError):
        receiver.recv_checkpoint(0, sender.metadata(), 4, SHORT)


def test_a_receiver_that_is_late_gets_the_state_of_the_step_it_asked_for(pair: Any) -> None:
    sender, receiver = pair
    weights = torch.ones(1000)
    sender.send_checkpoint([1], 4, {"w": weights}, TIMEOUT)
    sender.disallow_checkpoint()
    weights.zero_()
    received = receiver.recv_checkpoint(0, sender.metadata(), 4, TIMEOUT)
    assert same(received, {"w": torch.ones(1000)})


def test_other_steps_and_other_tokens_are_refused(pair: Any) -> None:
    sender, receiver = pair
    sender.send_checkpoint([1], 4, {"w": torch.ones(1)}, TIMEOUT)
    with pytest.raises(PeerError, match=r"400: .*serving 4 but got step=5") as refused:  # at once
        receiver.recv_checkpoint(0, sender.metadata(), 5, TIMEOUT)
    assert isinstance(refused.value, urllib.error.HTTPError) and refused.value.code == 400
    sender.disallow_checkpoint()
    with pytest.raises(PeerError, match="not offered yet") as late:
        receiver.recv_checkpoint(0, sender.metadata(), 5, SHORT)
    assert isinstance(late.value, urllib.error.URLError)
    sender.send_checkpoint([1], 4, {"w": torch.ones(1)}, TIMEOUT)
    with pytest.raises(PeerError, match="401"):
        receiver.recv_checkpoint(0, f"{sender.address()}{'0' * 64}", 4, TIMEOUT)
    for metadata in (sender.address(), sender.metadata().removeprefix("http://")):
        with pytest.raises(UserError, match="metadata"):
            receiver.recv_checkpoint(0, metadata, 4, SHORT)


def test_what_cannot_be_carried_is_named_and_leaves_nothing_to_allow(pair: Any) -> None:
    sender, receiver = pair
    with pytest.raises(UserError, match="send_checkpoint was not called"):
        sender.allow_checkpoint(1)
    sender.send_checkpoint([1], 3, {"w": torch.ones(1)}, TIMEOUT)
    with pytest.raises(UserError, match=r"'model\.fn'.* Leave the key out"):
        sender.send_checkpoint([1], 4, {"model": {"fn": print}}, TIMEOUT)
    with pytest.raises(UserError, match="failed"):
        sender.allow_checkpoint(4)
    assert same(receiver.recv_checkpoint(0, sender.metadata(), 3, TIMEOUT), {"w": torch.ones(1)})


def test_a_state_that_is_allowed_again_is_served_as_it_is_now(pair: Any) -> None:
    sender, receiver = pair
    weights = torch.ones(10)
    sender.send_checkpoint([1], 4, {"w": weights}, TIMEOUT)
    sender.allow_checkpoint(4)  # it is: nothing changes for receivers under way
    sender.disallow_checkpoint()
    weights.fill_(2.0)
    for step in (4, 5):
        sender.allow_checkpoint(step)
        received = receiver.recv_checkpoint(0, sender.metadata(), step, TIMEOUT)
        assert same(received, {"w": torch.full((10,), 2.0)})


def test_the_address_is_a_url_as_with_torchft(pair: Any) -> None:
    assert pair[0].address().startswith("http://") and pair[0].address().endswith("/checkpoint/")
    assert pair[0].metadata().startswith(pair[0].address())
