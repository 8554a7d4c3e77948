"""A link to a donor that cannot be reached."""

from __future__ import annotations

import pytest

from ftrun.base import clock
from ftrun.base.errors import PeerError
from ftrun.checkpoint.donor import DonorLink
from ftrun.core.ids import Attempt, Tag, pack_quorum_id

TAG = Tag(Attempt(pack_quorum_id(1, 1), 1), 3)


@pytest.mark.parametrize("address", ["", "nowhere", "host:", "host:99999", "[::1]"])
def test_an_address_of_another_form_is_the_peer_s_fault(address: str) -> None:
    link = DonorLink(address, TAG, b"k" * 32, "1", clock.now() + 60.0)
    with pytest.raises(PeerError, match="a donor cannot be reached"):
        link.header()
