"""Channels to torchft servers, and the translation of their errors.

Clients wait for the connection when they are made. Addresses are ``http://HOST:PORT``, torchft's
form. Not here: the classes that scripts import (torchft/coordination.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import grpc

from ftrun.base.addresses import join_address, split_address, without_scheme
from ftrun.compat.torchft_wire import torchft_pb2 as wire

T = TypeVar("T")

CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    # The keepalive ping of torchft's own clients, which its servers allow.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
]
TIMEOUTS = (grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED)


def target_of(address: str) -> str:
    """``HOST:PORT`` of an address ``http://HOST:PORT``.

    Raises:
        ValueError: it has another form.
    """
    if address.lower().startswith("https://"):
        raise ValueError(f"{address!r} asks for TLS, and torchft's protocol has none")
    return join_address(*split_address(without_scheme(address)))


def open_channel(address: str, connect_timeout_s: float) -> grpc.Channel:
    """A connected channel.

    Raises:
        RuntimeError: no server answers there in time; or the address has another form.
    """
    try:
        channel = grpc.insecure_channel(target_of(address), options=CHANNEL_OPTIONS)
    except ValueError as error:
        raise RuntimeError(f"{error}. An address of torchft's is http://HOST:PORT.") from None
    try:
        grpc.channel_ready_future(channel).result(connect_timeout_s)
    except grpc.FutureTimeoutError:
        channel.close()
        raise RuntimeError(
            f"nothing answers at {address} within the connect timeout of {connect_timeout_s:g} s. "
            "Check the address, and that its server runs."
        ) from None
    return channel


def method_of(channel: Any, service: str, name: str) -> Any:
    """A method of torchft's service, to be called with its request."""
    found = wire.DESCRIPTOR.services_by_name[service.rpartition(".")[2]].methods_by_name[name]
    request, response = (getattr(wire, x.name) for x in (found.input_type, found.output_type))
    return channel.unary_unary(f"/{service}/{name}", request.SerializeToString, response.FromString)


def call(method: Callable[..., T], request: Any, timeout_s: float, metadata: Any = ()) -> T:
    """Call a method. ``timeout_s`` is sent with the call.

    Raises:
        TimeoutError: no answer in time, or the server cancelled the call.
        RuntimeError: any other error of the call.
    """
    try:
        return method(request, timeout=min(timeout_s, float(2**31)), metadata=metadata)
    except grpc.RpcError as error:
        raise_error(error)


def raise_error(error: Any) -> NoReturn:
    """Raise the Python error for a failed call, with the text of torchft's clients.

    Scripts look for words in it. For a call without an answer in time torchft's text has
    "Cancelled".
    """
    code, details = error.code(), error.details()
    if code in TIMEOUTS:
        raise TimeoutError('status: Cancelled, message: "Timeout expired"') from None
    name = "".join(word.capitalize() for word in code.name.split("_"))
    raise RuntimeError(f'status: {name}, message: "{details}"') from None


def seconds(timeout: Any) -> float:
    """A ``timedelta`` as seconds.

    Raises:
        ValueError: it is negative.
    """
    found = float(timeout.total_seconds())
    if found < 0 or not math.isfinite(found):
        raise ValueError(f"a timeout of {found:g} s")
    return found
