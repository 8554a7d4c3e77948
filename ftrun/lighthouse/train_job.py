"""Reports the job's progress to its TrainJob of Kubeflow Trainer (KEP-2779).

If the controller supports it, it sets three variables in the pods of a TrainJob: a URL, and the
paths of its CA and of a token that is renewed. The leading lighthouse posts the job's progress
there. It knows the completed share only if the script logs it as the scalar ``progress``, from 0 to
1. Training never depends on it. Not here: the status itself (status.py).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftrun.base import clock
from ftrun.core.lighthouse.status import Status

URL = "KUBEFLOW_TRAINER_SERVER_URL"
CA = "KUBEFLOW_TRAINER_SERVER_CA_CERT"
TOKEN = "KUBEFLOW_TRAINER_SERVER_TOKEN"
EVERY_S = 15.0
POST_S = 10.0
METRICS_MAX = 32
PROGRESS = "progress"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Server:
    """The controller's server. ``ca``, ``token``: files."""

    url: str
    ca: Path
    token: Path


def server_of(environ: Mapping[str, str]) -> Server | None:
    """The server that the variables name; None: this is not a pod of such a TrainJob."""
    url, ca, token = (environ.get(name, "") for name in (URL, CA, TOKEN))
    if not url.startswith("https://") or not ca or not token:
        return None
    return Server(url, Path(ca), Path(token))


async def post_progress(server: Server, status: Callable[[], Status]) -> None:
    """Post the progress whenever it has changed, as long as there is a job."""
    posted: dict[str, Any] = {}
    failure = ""
    while True:
        found = progress(status())
        if found and found != posted:
            why = await _post(server, found)
            posted = found if not why else {}
            if why and not failure:
                log.warning("the TrainJob's progress cannot be posted: %s. It is tried again.", why)
            failure = why
        await asyncio.sleep(EVERY_S)


def progress(status: Status) -> dict[str, Any]:
    """A TrainJob's view of a job; empty before its first step."""
    if not status["step"]:
        return {}
    scalars = {name: x for name, x in status["scalars"].items() if x is not None}
    share = scalars.pop(PROGRESS, -1.0)
    training = sum(x["use"] == "training" for x in status["replicas"])
    metrics = {"step": status["step"], "replicas_training": training, **scalars}
    found: dict[str, Any] = {
        "metrics": [
            {"name": name, "value": str(value) if isinstance(value, int) else f"{value:.6g}"}
            for name, value in list(metrics.items())[:METRICS_MAX]
        ]
    }
    if 0 <= share <= 1:
        found["progressPercentage"] = int(100 * share)
    return found


async def _post(server: Server, found: dict[str, Any]) -> str:
    """Post it. Returns why that has failed, or ""."""
    import aiohttp  # slow, and most lighthouses serve no TrainJob

    now = f"{clock.wall():%Y-%m-%dT%H:%M:%SZ}"
    document = {"trainerStatus": {**found, "lastUpdatedTime": now}}
    try:
        headers = {"Authorization": f"Bearer {server.token.read_text(encoding='ascii').strip()}"}
        tls = ssl.create_default_context(cafile=server.ca)
        timeout = aiohttp.ClientTimeout(total=POST_S)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(server.url, json=document, headers=headers, ssl=tls) as answer,
        ):
            return "" if answer.status < 300 else f"{server.url} answers {answer.status}"
    except asyncio.TimeoutError:
        return f"{server.url} gives no answer in {POST_S:g} s"
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return str(error) or type(error).__name__
