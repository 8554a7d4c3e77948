"""The addresses that clients of torchft's protocol take."""

from __future__ import annotations

import pytest

from ftrun.compat.torchft_wire.clients import open_channel, target_of


def test_schemes_are_written_in_any_case_and_tls_is_refused() -> None:
    assert target_of("http://h:1") == target_of("HTTP://h:1/") == target_of("h:1") == "h:1"
    with pytest.raises(RuntimeError, match="asks for TLS, and torchft's protocol has none"):
        open_channel("HTTPS://h:1", 1.0)
