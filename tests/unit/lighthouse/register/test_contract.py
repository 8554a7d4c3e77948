"""What every store does, whichever it is."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest

from ftrun.core.register.events import Accepted, Answered, Record, Refused, Value
from ftrun.lighthouse.register.directory import DirectoryStore
from ftrun.lighthouse.register.etcd import EtcdStore
from ftrun.lighthouse.register.kubernetes import KubernetesStore
from ftrun.lighthouse.register.store import Store
from tests.jobs.etcd import needs_etcd, running_etcd
from tests.jobs.kubernetes import NAMESPACE, running_api
from tests.unit.lighthouse.register.test_contender import leading_in

VALUE = Value(5, "me", "a:1", 3.0, 1)
CONTENDERS = 3
Opens = Callable[[str], Store]


@pytest.fixture(
    scope="module", params=["directory", pytest.param("etcd", marks=needs_etcd), "kubernetes"]
)
def opens(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Opens]:
    """Opens a register of this name."""
    home = tmp_path_factory.mktemp("store")
    with ExitStack() as stack:
        if request.param == "etcd":
            etcd = stack.enter_context(running_etcd(home))
            yield lambda name: EtcdStore([etcd.address], name)
        elif request.param == "kubernetes":
            api = stack.enter_context(running_api(home)).api
            yield lambda name: KubernetesStore(NAMESPACE, name, api)
        else:

            def open_directory(name: str) -> Store:
                (home / name).mkdir(exist_ok=True)
                return DirectoryStore(home / name)

            yield open_directory


def test_what_was_written_is_read_again_and_has_one_writer(opens: Opens) -> None:
    async def both() -> None:
        one, other, another = opens("written"), opens("written"), opens("another")
        assert await one.read(with_journal=True) == Answered(0, None)
        first = await one.swap(0, VALUE)
        assert isinstance(first, Accepted)
        assert await other.swap(0, VALUE) == Refused()
        assert (await one.read(with_journal=True)).value == replace(VALUE, journal=b"")
        journal = os.urandom(100_000)
        second = await other.swap(first.version, replace(VALUE, serial=2, journal=journal))
        assert isinstance(second, Accepted)
        assert await one.swap(first.version, VALUE) == Refused()
        free = replace(VALUE, silence_s=float("inf"), is_free=True)
        third = await one.swap(second.version, free)
        assert isinstance(third, Accepted)
        assert first.version < second.version < third.version
        found = await other.read(with_journal=True)
        assert found == Answered(third.version, replace(free, journal=journal))
        assert await other.read(with_journal=False) == Answered(third.version, free)
        assert await another.read(with_journal=True) == Answered(0, None)
        for store in (one, other, another):
            await store.close()

    asyncio.run(both())


def test_of_several_writers_at_once_one_has_the_version(opens: Opens) -> None:
    async def race() -> None:
        stores = [opens("race") for _ in range(CONTENDERS)]
        version = 0
        for serial in range(5):
            values = [replace(VALUE, holder=str(n), serial=serial) for n in range(CONTENDERS)]
            answers = await asyncio.gather(
                *(store.swap(version, x) for store, x in zip(stores, values, strict=True))
            )
            (accepted,) = [n for n, x in enumerate(answers) if isinstance(x, Accepted)]
            found = await stores[0].read(with_journal=False)
            assert found.value == values[accepted]
            version = found.version
        for store in stores:
            await store.close()

    asyncio.run(race())


def test_one_leads_and_gives_the_register_back_to_the_next(opens: Opens) -> None:
    async def play() -> None:
        one, noting = await leading_in(opens("lead"))
        assert noting.value is not None
        await one.stop()
        two, other = await leading_in(opens("lead"))
        assert other.value is not None
        assert other.value.epoch == noting.value.epoch + 1
        await two.stop()

    asyncio.run(play())


def test_a_leader_that_was_replaced_is_deposed(opens: Opens) -> None:
    async def play() -> None:
        one, noting = await leading_in(opens("deposed"))
        store = opens("deposed")
        seen = await store.read(with_journal=False)
        assert seen.value is not None
        value = replace(seen.value, holder="another", epoch=seen.value.epoch + 1)
        assert isinstance(await store.swap(seen.version, value), Accepted)
        one.hand_in([Record(seen.value.epoch, b"stale"), "dropped"])
        await noting.until(lambda: noting.reasons)
        assert "another" in noting.reasons[0]
        assert noting.released == []
        assert (await store.read(with_journal=True)).value == replace(value, journal=b"")
        await one.stop()
        await store.close()

    asyncio.run(play())
