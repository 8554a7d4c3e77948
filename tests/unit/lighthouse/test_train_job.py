"""A TrainJob's progress: what is posted, where, and what happens when nobody takes it."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web

from ftrun.core.lighthouse.status import Status
from ftrun.lighthouse import train_job
from ftrun.lighthouse.train_job import CA, TOKEN, URL, Server, post_progress, progress, server_of
from ftrun.tools.certs import write_certificates

DEADLINE_S = 60.0
PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team/trainjobs/mine/status"


def status(step: int = 40, /, **scalars: float | None) -> Status:
    """The parts of a status that count."""
    replicas = [{"use": "training"}, {"use": "healing"}, {"use": "training"}]
    return cast("Status", {"step": step, "scalars": scalars, "replicas": replicas})


def test_the_three_variables_name_the_server() -> None:
    environ = {URL: "https://t:8082/x", CA: "/c", TOKEN: "/t"}
    assert server_of(environ) == Server("https://t:8082/x", Path("/c"), Path("/t"))
    for name in environ:
        assert server_of({**environ, name: ""}) is None
    assert server_of({**environ, URL: "http://t"}) is None


def test_metrics_are_texts_and_a_share_is_a_percentage() -> None:
    assert progress(status(0)) == {}
    assert progress(status(loss=0.25, lr=None)) == {
        "metrics": [
            {"name": "step", "value": "40"},
            {"name": "replicas_training", "value": "2"},
            {"name": "loss", "value": "0.25"},
        ]
    }
    assert progress(status(progress=0.456))["progressPercentage"] == 45
    assert "progressPercentage" not in progress(status(progress=45.6))
    many = {f"x{n}": 1.0 for n in range(100)}
    assert len(progress(status(**many))["metrics"]) == train_job.METRICS_MAX


@pytest.mark.skipif(
    importlib.util.find_spec("kubeflow_trainer_api") is None, reason="needs kubeflow-trainer-api"
)
def test_the_trainers_own_type_takes_it() -> None:
    models = importlib.import_module("kubeflow_trainer_api.models")
    document = {"trainerStatus": {**progress(status(loss=0.5, progress=0.1)),
                                  "lastUpdatedTime": "2026-11-27T18:00:00Z"}}  # fmt: skip
    found = models.TrainerV1alpha1UpdateTrainJobStatusRequest.from_dict(document)
    assert found.to_dict()["trainerStatus"].keys() == document["trainerStatus"].keys()


class Trainer:
    """The controller's server. ``posted``: what it has taken. ``refuses``: a status."""

    def __init__(self) -> None:
        self.posted: asyncio.Queue[tuple[str | None, dict[str, Any]]] = asyncio.Queue()
        self.refuses = 0

    async def take(self, request: web.Request) -> web.Response:
        self.posted.put_nowait((request.headers.get("Authorization"), await request.json()))
        return web.json_response({}, status=self.refuses or 200)

    async def next(self) -> tuple[str | None, dict[str, Any]]:
        return await asyncio.wait_for(self.posted.get(), DEADLINE_S)


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[tuple[Trainer, Server]]:
    write_certificates(directory / "certs", ("127.0.0.1",))
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(directory / "certs/lighthouse.pem", directory / "certs/lighthouse.key")
    trainer, app = Trainer(), web.Application()
    app.router.add_post(PATH, trainer.take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    (directory / "token").write_text("first\n")
    url = f"https://127.0.0.1:{runner.addresses[0][1]}{PATH}"
    try:
        yield trainer, Server(url, directory / "certs/ca.pem", directory / "token")
    finally:
        await runner.cleanup()


def test_what_has_changed_is_posted_with_the_token_of_the_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_job, "EVERY_S", 0.01)
    steps = iter([0, 10, 10, 10, 20])

    async def play() -> None:
        async with serving(tmp_path) as (trainer, server):
            task = asyncio.ensure_future(post_progress(server, lambda: status(next(steps, 20))))
            token, document = await trainer.next()
            assert (token, step_of(document)) == ("Bearer first", "10")
            assert document["trainerStatus"]["lastUpdatedTime"].endswith("Z")
            (tmp_path / "token").write_text("second")
            token, document = await trainer.next()
            assert step_of(document) == "20"
            await end(task)
            assert trainer.posted.empty()

    asyncio.run(play())


def test_a_failure_is_said_once_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(train_job, "EVERY_S", 0.01)
    caplog.set_level(logging.WARNING)

    async def play() -> None:
        async with serving(tmp_path) as (trainer, server):
            trainer.refuses = 403
            task = asyncio.ensure_future(post_progress(server, status))
            for _ in range(3):
                await trainer.next()
            trainer.refuses = 0
            await trainer.next()
            await end(task)

    asyncio.run(play())
    assert len(caplog.records) == 1
    assert "cannot be posted: https://127.0.0.1" in caplog.text and "answers 403" in caplog.text


def test_what_keeps_it_from_being_posted_is_named(tmp_path: Path) -> None:
    async def play() -> None:
        async with serving(tmp_path) as (_, server):
            away = Server("https://127.0.0.1:1/x", server.ca, server.token)
            assert "127.0.0.1:1" in await train_job._post(away, {})
            without = Server(server.url, server.ca, tmp_path / "none")
            assert "No such file" in await train_job._post(without, {})

    asyncio.run(play())


def step_of(document: dict[str, Any]) -> str:
    (found,) = [x["value"] for x in document["trainerStatus"]["metrics"] if x["name"] == "step"]
    return str(found)


async def end(task: asyncio.Future[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
