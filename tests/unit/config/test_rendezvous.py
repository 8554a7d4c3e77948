"""Where the nodes of torchrun's command meet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ftrun.base.errors import UserError
from ftrun.config.checks import check
from ftrun.config.rendezvous import Rendezvous, Span
from ftrun.config.script import Script, TargetKind
from tests.unit.run_settings import resolved


def rendezvous(**flags: Any) -> Rendezvous | None:
    return resolved(**flags).rendezvous


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"nnodes": "1"},
        {"nnodes": "1:1", "rdzv_endpoint": "h:1"},
        {"nnodes": "2", "standalone": True},
        {"nnodes": "1:4", "rdzv_endpoint": "localhost:0"},
        {"nnodes": "2", "nodes": "2", "replicas": "2", "lighthouse": "h:1"},
    ],
)
def test_a_node_that_is_alone_meets_nobody(flags: dict[str, Any]) -> None:
    assert rendezvous(**flags) is None


def test_the_options_in_the_words_of_torchruns_two_ways() -> None:
    static = rendezvous(nnodes="2", node_rank="1", master_addr="a", master_port="5")
    assert static == Rendezvous(2, 2, 1, "a", 5, True, "--master-addr", connect_timeout_s=600)
    c10d = rendezvous(nnodes="2:4", rdzv_backend="c10d", rdzv_endpoint="n0", rdzv_id="x")
    assert c10d == Rendezvous(2, 4, None, "n0", 29400, False, "--rdzv-endpoint", run_id="x")
    assert c10d.size == "2:4"


def test_torchruns_words_for_an_etcd_are_those_of_a_store() -> None:
    def register(conf: str | None = None) -> str:
        words = {"nnodes": "2", "rdzv_backend": "etcd-v2", "rdzv_id": "a b/c", "rdzv_conf": conf}
        found = rendezvous(rdzv_endpoint="h", **words)
        assert found is not None
        assert (found.port, found.is_static) == (2379, False)
        return found.register

    assert register() == "etcd://h:2379/rendezvous-a%20b%2Fc"
    files = "protocol=https,cacert=/ca,cert=/c,key=/k"
    assert register(files) == f"{register()}?cacert=%2Fca&cert=%2Fc&key=%2Fk"
    for alone in ("protocol=https", "cacert=/ca", "protocol=http,cacert=/ca"):
        with pytest.raises(UserError, match="belong together"):
            register(alone)


def test_the_endpoint_wins_over_the_address_of_old() -> None:
    found = rendezvous(nnodes="2", rdzv_endpoint="h:1", master_addr="a", master_port="5")
    assert found is not None
    assert (found.host, found.port, found.size) == ("h", 1, "2")


def test_torchruns_timeouts() -> None:
    conf = "join_timeout=7,last_call_timeout=3,read_timeout=9"
    found = rendezvous(nnodes="1:2", rdzv_endpoint="h:1", rdzv_conf=conf)
    assert found is not None
    assert (found.join_timeout_s, found.last_call_s, found.connect_timeout_s) == (7, 3, 9)
    found = rendezvous(nnodes="2", rdzv_endpoint="h:1", rdzv_conf="timeout=5")
    assert found is not None
    assert (found.join_timeout_s, found.connect_timeout_s) == (5, 5)


def test_a_function_is_on_one_node() -> None:
    settings = resolved(nnodes="2", rdzv_endpoint="h:1")
    function = Script("work", TargetKind.FUNCTION)
    with pytest.raises(UserError, match=r"nnodes='2'.*on every node"):
        check(replace(settings, script=function))


def test_each_node_has_a_merged_log_of_its_own() -> None:
    settings = resolved(nnodes="2", rdzv_endpoint="h:1", merged_log=True)
    on_two = replace(settings, span=Span(1, 2, 1, 1, "h"))
    assert settings.merged_path != on_two.merged_path


def test_the_workers_meet_at_a_port_of_their_own() -> None:
    settings = resolved(nnodes="2", rdzv_endpoint="h:1")
    assert settings.master_addr is None
    assert settings.master_port is None
    assert settings.job_id == "t"
