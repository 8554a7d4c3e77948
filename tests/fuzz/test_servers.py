"""Whole servers fed with damaged bytes, at length: alive, answering, as small as before."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.servers import servers

INPUTS = 2000
GROWTH_BYTES_MAX = 16 << 20


@pytest.mark.slow
@pytest.mark.parametrize("number", range(13))
def test_a_server_that_is_fed_lives_answers_and_stays_small(tmp_path: Path, number: int) -> None:
    found = servers(tmp_path)
    assert len(found) == 13
    with found[number] as server:
        first, _ = server.feed(range(INPUTS), 1)
        before = server.rss()
        accepted, refused = server.feed(range(INPUTS, 2 * INPUTS), 1)
        assert server.rss() - before <= GROWTH_BYTES_MAX
        assert server.findings() == []
        assert accepted + refused == INPUTS
        assert refused > 0
        # A damaged but sensible Hello may begin the next job: then our own are refused.
        assert (first + accepted > 0) != server.name.endswith("without")
