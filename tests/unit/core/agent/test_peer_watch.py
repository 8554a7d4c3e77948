"""Which hosts are silent: by all connections to them together."""

from __future__ import annotations

from ftrun.core.agent.peer_watch import LOOK_AGAIN_S, LOOK_S, SILENT_S, Connection, PeerWatch


def test_a_host_is_silent_if_no_connection_to_it_is_answered() -> None:
    watch = PeerWatch()
    idle = Connection("a", False, 60.0)
    assert not watch.looked([idle])
    assert watch.look_s == LOOK_S
    soon = Connection("a", True, SILENT_S / 2)
    assert not watch.looked([idle, soon])
    assert (watch.silent, watch.look_s) == ((), LOOK_AGAIN_S)
    late = Connection("a", True, SILENT_S)
    assert watch.looked([idle, late, Connection("b", False, 0.0)])
    assert watch.silent == ("a",)
    assert not watch.looked([idle, late])
    assert watch.looked([idle, late, Connection("a", False, 0.01)]), "another one is answered"
    assert watch.silent == ()
    assert not watch.looked([])
    assert watch.look_s == LOOK_S
