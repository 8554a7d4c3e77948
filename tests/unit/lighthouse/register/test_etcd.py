"""The register in a real etcd."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.core.register.events import Accepted, Answered, Value
from ftrun.lighthouse.register import etcd_pb2 as pb
from ftrun.lighthouse.register.etcd import EtcdStore, _put
from ftrun.lighthouse.register.opening import open_store
from ftrun.lighthouse.register.store import StoreError
from ftrun.tools.certs import write_certificates
from tests.jobs.etcd import Etcd, needs_etcd, running_etcd

pytestmark = needs_etcd
VALUE = Value(5, "me", "a:1", 3.0, 1)
NOWHERE = "127.0.0.1:1"


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as etcd:
        yield etcd


def test_a_member_that_is_away_costs_one_call(etcd: Etcd) -> None:
    async def ask() -> None:
        store = EtcdStore([NOWHERE, etcd.address], "members")
        with pytest.raises(StoreError, match=f"etcd at {NOWHERE}"):
            await store.read(with_journal=False)
        assert await store.read(with_journal=False) == Answered(0, None)
        await store.close()

    asyncio.run(ask())


def test_a_key_of_somebody_else_is_named(etcd: Etcd) -> None:
    async def ask() -> None:
        store = EtcdStore([etcd.address], "foreign")
        await store._txn([], [_put(b"ftrun/foreign", b"hello")])
        with pytest.raises(StoreError, match="ftrun/foreign has something else"):
            await store.read(with_journal=False)
        head = VALUE
        (version,) = [x.mod_revision for x in await _kvs(store, b"ftrun/foreign")]
        assert isinstance(await store.swap(version, head), Accepted)
        await store._txn([], [_put(b"ftrun/foreign/journal", b"no zlib")])
        with pytest.raises(StoreError, match="something else"):
            await store.read(with_journal=True)
        await store.close()

    asyncio.run(ask())


async def _kvs(store: EtcdStore, key: bytes) -> list[pb.KeyValue]:
    answer = await store._txn([], [pb.RequestOp(request_range=pb.RangeRequest(key=key))])
    return list(answer.responses[0].response_range.kvs)


def test_an_etcd_that_is_stopped_or_killed_is_an_error_and_comes_back(tmp_path: Path) -> None:
    async def ask(etcd: Etcd) -> None:
        store = EtcdStore([etcd.address], "job")
        accepted = await store.swap(0, VALUE)
        assert isinstance(accepted, Accepted)
        etcd.stop()
        with pytest.raises(StoreError, match="Deadline"):
            await store.read(with_journal=False)
        etcd.go_on()
        etcd.kill()
        with pytest.raises(StoreError):
            await store.read(with_journal=False)
        etcd.restart()
        assert await _when_back(store) == Answered(accepted.version, VALUE)
        await store.close()

    with running_etcd(tmp_path / "etcd") as etcd:
        asyncio.run(ask(etcd))


async def _when_back(store: EtcdStore) -> Answered:
    for _ in range(600):
        try:
            return await store.read(with_journal=False)
        except StoreError:
            await asyncio.sleep(0.1)  # between two tries
    raise AssertionError("etcd is not back within a minute")


def test_over_tls_a_client_certificate_lets_in(tmp_path: Path) -> None:
    """The files are named as etcdctl names them."""
    certs = tmp_path / "certs"
    write_certificates(certs, ("127.0.0.1",))
    pair = f"&cert={certs}/agent.pem&key={certs}/agent.key"

    async def ask(etcd: Etcd) -> None:
        where, ca = f"etcd://{etcd.address}/job", f"cacert={certs}/ca.pem"
        store = open_store(f"{where}?{ca}{pair}")
        assert store.place == where
        accepted = await store.swap(0, VALUE)
        assert isinstance(accepted, Accepted)
        for query in ("", f"?{ca}"):
            stranger = open_store(where + query)
            with pytest.raises(StoreError, match=f"etcd at {etcd.address}"):
                await stranger.read(with_journal=False)
            await stranger.close()
        await store.close()
        (certs / "agent.key").rename(certs / "away")
        with pytest.raises(StoreError, match=r"agent\.key: No such file"):
            await store.read(with_journal=False)
        (certs / "away").rename(certs / "agent.key")
        assert await store.read(with_journal=False) == Answered(accepted.version, VALUE)
        await store.close()

    with running_etcd(tmp_path / "etcd", certs) as etcd:
        asyncio.run(ask(etcd))
