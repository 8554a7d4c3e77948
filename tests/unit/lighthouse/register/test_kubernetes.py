"""The register in a ConfigMap, by an API server of our own: refusals, silence, renewed tokens."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ftrun.base.errors import UserError
from ftrun.core.register.events import Accepted, Answered, Refused, Value
from ftrun.lighthouse.register import kubernetes
from ftrun.lighthouse.register.kubernetes import KubernetesStore, api_server, parse_kubernetes
from ftrun.lighthouse.register.opening import open_store
from ftrun.lighthouse.register.store import StoreError
from tests.jobs.kubernetes import NAMESPACE, MockApi, running_api

VALUE = Value(5, "me", "a:1", 3.0, 1)
TRIES_MAX = 600


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MockApi]:
    with running_api(tmp_path_factory.mktemp("api")) as api:
        yield api


@pytest.fixture(autouse=True)
def heals(api: MockApi) -> None:
    api.refuses, api.delay_s, api.is_silent, api.late = 0, 0.0, False, False


def stored(api: MockApi, name: str) -> KubernetesStore:
    return KubernetesStore(NAMESPACE, name, api.api)


async def refusal(store: KubernetesStore) -> str:
    """The words of a read that fails."""
    with pytest.raises(StoreError) as raised:
        await store.read(with_journal=False)
    return str(raised.value)


def test_a_write_without_a_journal_is_small_and_leaves_what_others_have_added(api: MockApi) -> None:
    async def write() -> None:
        store = stored(api, "small")
        first = await store.swap(0, replace(VALUE, journal=os.urandom(10_000)))
        assert isinstance(first, Accepted)
        api.objects["small"]["metadata"]["annotations"] = {"team": "ours"}
        assert isinstance(await store.swap(first.version, VALUE), Accepted)
        assert api.requests[-1] == "PATCH"
        assert api.objects["small"]["metadata"]["annotations"] == {"team": "ours"}
        found = await store.read(with_journal=True)
        assert found.value is not None and len(found.value.journal or b"") == 10_000
        await store.close()

    asyncio.run(write())


def test_a_config_map_without_a_register_is_taken_over(api: MockApi) -> None:
    """A Role can name a ConfigMap only if somebody else has made it."""

    async def take() -> None:
        api.objects["made"] = {"metadata": {"name": "made", "resourceVersion": "7"}}
        store = stored(api, "made")
        assert await store.read(with_journal=True) == Answered(7, None)
        assert isinstance(await store.swap(7, VALUE), Accepted)
        await store.close()

    asyncio.run(take())


def test_one_that_is_deleted_refuses_the_next_write(api: MockApi) -> None:
    async def delete() -> None:
        store = stored(api, "deleted")
        first = await store.swap(0, VALUE)
        assert isinstance(first, Accepted)
        del api.objects["deleted"]
        assert await store.swap(first.version, VALUE) == Refused()
        assert await store.read(with_journal=False) == Answered(0, None)
        await store.close()

    asyncio.run(delete())


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"data": {"register": "hello"}}, "something else than a register"),
        ({"data": {"register": 7}}, "something else"),
        ({"metadata": {"resourceVersion": "abc"}}, "resourceVersion 'abc' is no number"),
    ],
    ids=["text", "number", "version"],
)
def test_what_is_no_register_is_named(api: MockApi, data: dict[str, object], words: str) -> None:
    async def look() -> None:
        document = {"metadata": {"name": "odd", "resourceVersion": "7"}, **data}
        api.objects["odd"] = document
        store = stored(api, "odd")
        assert words in await refusal(store)
        await store.close()

    asyncio.run(look())


def test_a_journal_that_is_none_is_named(api: MockApi) -> None:
    async def look() -> None:
        store = stored(api, "journal")
        await store.swap(0, replace(VALUE, journal=b"some"))
        for text in ("A", "bm8gemxpYg=="):
            api.objects["journal"]["binaryData"]["journal"] = text
            with pytest.raises(StoreError, match="something else than a register"):
                await store.read(with_journal=True)
            assert (await store.read(with_journal=False)).value == VALUE
        await store.close()

    asyncio.run(look())


@pytest.mark.parametrize("status", [403, 413, 422, 429, 500, 503])
def test_a_refusal_says_what_the_api_server_says_and_what_to_do(api: MockApi, status: int) -> None:
    async def ask() -> None:
        api.refuses = status
        store = stored(api, "refused")
        words = await refusal(store)
        assert f"Kubernetes at {api.api.address}: {status}, as the test wants" in words
        assert kubernetes.HINTS.get(status, "") in words
        with pytest.raises(StoreError, match=str(status)):
            await store.swap(0, VALUE)
        await store.close()

    asyncio.run(ask())


def test_a_namespace_that_is_not_there_is_named(api: MockApi) -> None:
    async def ask() -> None:
        store = KubernetesStore("nobodys", "x", api.api)
        with pytest.raises(StoreError, match="404, namespaces not found; there is no such"):
            await store.swap(0, VALUE)
        await store.close()

    asyncio.run(ask())


def test_a_journal_that_is_too_large_is_not_sent(api: MockApi) -> None:
    async def write() -> None:
        store, sent = stored(api, "large"), len(api.requests)
        with pytest.raises(StoreError, match="too large for a ConfigMap"):
            await store.swap(0, replace(VALUE, journal=os.urandom(1_100_000)))
        assert len(api.requests) == sent
        almost = replace(VALUE, journal=os.urandom(990_000))
        assert isinstance(await store.swap(0, almost), Accepted)
        await store.close()

    asyncio.run(write())


def test_a_token_that_is_renewed_is_used_at_once(api: MockApi) -> None:
    async def ask() -> None:
        store = stored(api, "token")
        assert await store.read(with_journal=False) == Answered(0, None)
        api.rotate("second")
        assert await store.read(with_journal=False) == Answered(0, None)
        (api.mount / "token").write_text("another's")
        assert "does not accept this pod's service account token" in await refusal(store)
        (api.mount / "token").unlink()
        assert f"{api.mount / 'token'} cannot be read" in await refusal(store)
        api.rotate("third")
        assert await store.read(with_journal=False) == Answered(0, None)
        await store.close()

    asyncio.run(ask())


def test_a_server_that_is_not_the_clusters_gets_no_token(api: MockApi, tmp_path: Path) -> None:
    async def ask() -> None:
        with running_api(tmp_path / "other") as other:
            store = stored(api, "ca")
            assert await store.read(with_journal=False) == Answered(0, None)
            ours = (api.mount / "ca.crt").read_text()
            (api.mount / "ca.crt").write_text((other.mount / "ca.crt").read_text())
            seen = len(api.requests)
            assert "certificate" in (await refusal(store)).lower()
            assert len(api.requests) == seen
            (api.mount / "ca.crt").write_text(ours)
            assert await store.read(with_journal=False) == Answered(0, None)
            await store.close()

    asyncio.run(ask())


def test_one_that_is_slow_silent_or_away_is_an_error_and_comes_back(api: MockApi) -> None:
    async def ask() -> None:
        store = stored(api, "away")
        first = await store.swap(0, VALUE)
        assert isinstance(first, Accepted)
        api.delay_s = 0.05
        assert await store.read(with_journal=False) == Answered(first.version, VALUE)
        api.delay_s, api.is_silent = 0.0, True
        assert "no answer in" in await refusal(store)
        api.is_silent = False
        assert await when_back(store) == Answered(first.version, VALUE)
        api.kill()
        assert f"Kubernetes at {api.api.address}" in await refusal(store)
        api.restart()
        assert await when_back(store) == Answered(first.version, VALUE)
        await store.close()

    asyncio.run(ask())


async def when_back(store: KubernetesStore) -> Answered:
    for _ in range(TRIES_MAX):
        try:
            return await store.read(with_journal=False)
        except StoreError:
            await asyncio.sleep(0.1)  # between two tries
    raise AssertionError("the API server is not back within a minute")


def test_a_write_without_an_answer_may_have_been_carried_out(api: MockApi) -> None:
    async def write() -> None:
        store = stored(api, "late")
        first = await store.swap(0, VALUE)
        assert isinstance(first, Accepted)
        api.late = True
        again = replace(VALUE, serial=2)
        with pytest.raises(StoreError, match="no answer"):
            await store.swap(first.version, again)
        api.late = False
        found = await store.read(with_journal=False)
        assert found.version > first.version and found.value == again
        assert await store.swap(first.version, VALUE) == Refused()
        await store.close()

    asyncio.run(write())


# ---------------------------------------------------------------- what --state says


def test_the_pods_own_api_server_is_asked(api: MockApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes, "MOUNT", api.mount)
    for name, value in api.environment.items():
        monkeypatch.setenv(name, value)
    store = open_store("k8s://team/job-17")
    assert store.place == "k8s://team/job-17"
    assert asyncio.run(read_and_close(store)) == Answered(0, None)


async def read_and_close(store: object) -> Answered:
    assert isinstance(store, KubernetesStore)
    found = await store.read(with_journal=True)
    await store.close()
    return found


def test_outside_a_pod_or_without_a_token_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="in no pod"):
        api_server({})
    monkeypatch.setattr(kubernetes, "MOUNT", tmp_path)
    found = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    with pytest.raises(UserError, match="no service account token"):
        api_server(found)
    (tmp_path / "token").touch()
    assert api_server(found).address == "[fd00::1]:443"


@pytest.mark.parametrize("text", ["", "a", "a/", "/b", "A/b", "a/b/c", "a/b?c", "-a/b", "../x"])
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="must be k8s://NAMESPACE/NAME"):
        parse_kubernetes(text)
