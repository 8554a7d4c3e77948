"""The answer of a port for HTTP/1.1 to an HTTP/2 client. gRPC's own client reads it in
tests/unit/lighthouse/test_wrong_ports.py."""

from __future__ import annotations

import pytest

from ftrun.protocol.http2_refusal import PREFACE, Http2Refusal, is_http2

SETTINGS = b"\0\0\0\4\0\0\0\0\0"
SETTINGS_ACK = b"\0\0\0\4\1\0\0\0\0"
WINDOW_UPDATE = b"\0\0\4\x08\0\0\0\0\0\0\0\xff\xff"
HEADERS = b"\0\0\3\1\4\0\0\0\7abc"


@pytest.mark.parametrize("size", range(len(PREFACE)))
def test_a_part_of_the_preface_is_not_enough(size: int) -> None:
    assert is_http2(PREFACE[:size]) is None
    assert is_http2(PREFACE[:size] + b"?") is False


def test_the_preface_is_known() -> None:
    assert is_http2(PREFACE) is True and is_http2(PREFACE + SETTINGS) is True
    assert is_http2(b"POST /operations HTTP/1.1\r\n") is False


@pytest.mark.parametrize("step", [1, 2, 7, 1000])
def test_the_first_call_is_refused_with_the_text(step: int) -> None:
    refusal = Http2Refusal("100 % no lighthouse: é " + "x" * 300)
    stream = SETTINGS + WINDOW_UPDATE + SETTINGS_ACK + HEADERS + b"never read"
    answer = b"".join(refusal.feed(stream[at : at + step]) for at in range(0, len(stream), step))
    assert refusal.is_over
    assert refusal.begin() == SETTINGS
    assert answer.startswith(SETTINGS_ACK)
    headers = answer[len(SETTINGS_ACK) :]
    size = int.from_bytes(headers[:3], "big")
    assert headers[3:9] == b"\1\5\0\0\0\7"  # headers, at the end of stream 7
    assert b"100 %25 no lighthouse: %C3%A9 xxx" in headers[9 : 9 + size]
    assert headers[9 + size :] == b"\0\0\x08\7\0\0\0\0\0\0\0\0\7\0\0\0\0"  # the connection ends
    assert refusal.feed(HEADERS) == b""
