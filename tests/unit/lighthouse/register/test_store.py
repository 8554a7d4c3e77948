"""What ``--state`` may name, and what counts as a value."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftrun.base.errors import ProtocolError, UserError
from ftrun.core.register.events import Value
from ftrun.lighthouse.register.opening import open_store
from ftrun.lighthouse.register.store import decode_head, encode_head


def test_a_directory_or_etcd(tmp_path: Path) -> None:
    assert open_store(str(tmp_path)).place == str(tmp_path)
    assert open_store(f"file://{tmp_path}").place == str(tmp_path)
    assert open_store("etcd://a:1,b:2/job").place == "etcd://a:1,b:2/job"


@pytest.mark.parametrize(
    "text",
    [
        "zk://a:1/x",
        "etcd://a:1",
        "etcd:///job",
        "etcd://a/job",
        "etcd://a:1,/job",
        "etcd://a:1/job?tls",
        "etcd://a:1/job?cacert=/dev/null&cacert=/dev/null",
        "etcd://a:1/job?cacert=/dev/null&cert=/dev/null",
        "etcd://a:1/job?cacert=/nowhere",
    ],
)
def test_another_form_is_refused_with_one_that_works(text: str) -> None:
    with pytest.raises(UserError, match="--state"):
        open_store(text)


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"1", b"{}", encode_head(Value(1, "x", "y", 1.0, 1)).replace(b'"x"', b"7")],
)
def test_what_is_no_value_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_head(data)
