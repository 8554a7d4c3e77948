"""``HOST:PORT``: one parser for options, stores and donors."""

from __future__ import annotations

import pytest

from ftrun.base.addresses import (
    address_towards,
    interface_address,
    interface_of,
    is_loopback,
    join_address,
    normal_address,
    own_host,
    parse_address,
    split_address,
)
from ftrun.base.errors import UserError


def test_an_option_is_normalized_or_explained() -> None:
    assert parse_address("http://h:1/", "--x") == ("h", 1)
    assert parse_address("[::1]:2", "--x") == ("::1", 2)
    assert normal_address(None) is None
    assert normal_address("http://h:1") == "h:1"
    assert normal_address("[::1]:2") == "[::1]:2"
    assert normal_address("http://a:1,b:2") == "a:1,b:2"
    assert normal_address("https://h:1") == normal_address("HTTP://h:1/") == "h:1"
    for bad in ("h", ":1", "h:", "h:x", "h:70000", "grpc://h:1", "https://", "h/x:1"):
        with pytest.raises(UserError, match="is not HOST:PORT"):
            parse_address(bad, "--x")


@pytest.mark.parametrize("text", ["h:1", "10.0.0.1:65535", "[::1]:2", "host.example:0"])
def test_an_address_that_is_split_and_joined_is_the_same(text: str) -> None:
    assert join_address(*split_address(text)) == text


@pytest.mark.parametrize("text", ["", ":", "h", "h:", ":1", "[]:1", "h:-1", "h:65536", "h:1/"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an address of the form host:port"):
        split_address(text)


def test_only_loopback_is_this_machine_alone() -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.9.9.9", "::1")))
    assert not any(map(is_loopback, ("0.0.0.0", "10.0.0.1", "::", "node-0.cluster")))


def test_the_way_to_another_node_is_never_the_loopback_interface() -> None:
    """Whatever /etc/hosts gives a name: Debian's has a loopback address for a machine's own."""
    elsewhere = None if is_loopback(own_host()) else own_host()
    assert address_towards(["localhost", "127.0.1.1"]) == elsewhere
    assert address_towards([]) == elsewhere
    if elsewhere is not None:
        assert address_towards(["localhost", elsewhere]) == elsewhere


def test_an_interface_is_stated_by_its_name_or_its_network() -> None:
    assert interface_address("lo") == "127.0.0.1"
    assert interface_address("127.0.0.0/8") == "127.0.0.1"
    assert interface_address("lo,eth9") == "127.0.0.1"
    assert (interface_of("127.0.0.1"), interface_of("203.0.113.7")) == ("lo", "")
    with pytest.raises(UserError, match=r"no such interface or address.*lo \(127.0.0.1\)"):
        interface_address("203.0.113.0/24")
    with pytest.raises(UserError, match="does not appear to be"):
        interface_address("eth0/x")
