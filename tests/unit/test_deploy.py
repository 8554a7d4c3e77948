"""The manifests for Kubernetes are valid by the published schemas, and ftrun knows their words.

No controller and no API server has seen them: what only a cluster finds out is not found here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from ftrun.base.errors import ExitCode
from ftrun.config.layers import gather
from ftrun.engines.kubernetes import read_kubernetes
from ftrun.lighthouse.register.kubernetes import parse_kubernetes
from ftrun.tools.commands.app import app
from tests.unit.engines.test_kubernetes import LWS_POD, TRAINER_POD

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
VERSIONS = ("1.33", "1.37")
BY_TRAINER_API = {
    "JobSet": "JobsetV1alpha2JobSet",
    "ClusterTrainingRuntime": "TrainerV1alpha1ClusterTrainingRuntime",
    "TrainJob": "TrainerV1alpha1TrainJob",
}
LWS_FIELDS = {
    "spec": {
        "replicas", "leaderWorkerTemplate", "networkConfig", "rolloutStrategy", "startupPolicy"
    },
    "leaderWorkerTemplate": {"size", "restartPolicy", "leaderTemplate", "workerTemplate"},
}  # fmt: skip
"""No package has the schema of a LeaderWorkerSet; its pods are checked as those of a Job."""


def documents(path: Path) -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml", reason="needs the dev dependency kubernetes-validate")
    return list(yaml.safe_load_all(path.read_text()))


def dropped(given: Any, back: Any, at: str) -> Iterator[str]:
    """The fields that a model has not taken over."""
    if isinstance(given, dict):
        for key, value in given.items():
            if not isinstance(back, dict) or key not in back:
                yield f"{at}.{key}"
            else:
                yield from dropped(value, back[key], f"{at}.{key}")
    elif isinstance(given, list):
        for number, value in enumerate(given):
            there = isinstance(back, list) and number < len(back)
            yield from dropped(value, back[number] if there else None, f"{at}[{number}]")


def jobs_inside(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The Jobs, and pods as those of a Job, that a controller makes of it."""
    spec = document.get("spec", {})
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}}
    for one in spec.get("template", {}).get("spec", spec).get("replicatedJobs", []):
        yield {**job, "spec": one["template"]["spec"]}
    lws = spec.get("leaderWorkerTemplate", {})
    for name in ("leaderTemplate", "workerTemplate"):
        if name in lws:
            yield {**job, "spec": {"template": lws[name]}}


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_manifests_are_valid_by_their_schemas(path: Path) -> None:
    kubernetes = pytest.importorskip("kubernetes_validate")
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="kubeflow-trainer-api")
    for document in documents(path):
        kind = document["kind"]
        if kind in BY_TRAINER_API:
            back = getattr(models, BY_TRAINER_API[kind]).from_dict(document)
            assert list(dropped(document, json.loads(back.to_json()), kind)) == []
        elif kind == "LeaderWorkerSet":
            assert set(document["spec"]) <= LWS_FIELDS["spec"]
            inner = document["spec"]["leaderWorkerTemplate"]
            assert set(inner) <= LWS_FIELDS["leaderWorkerTemplate"]
        for version in VERSIONS:
            for one in jobs_inside(document):
                kubernetes.validate(one, version, strict=True)
            if kind not in (*BY_TRAINER_API, "LeaderWorkerSet"):
                kubernetes.validate(document, version, strict=True)


def test_a_field_that_does_not_exist_is_found() -> None:
    """The checks above are no formality."""
    kubernetes = pytest.importorskip("kubernetes_validate")
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="kubeflow-trainer-api")
    (jobset,) = documents(DEPLOY / "kubernetes" / "jobset.yaml")
    jobset["spec"]["failurePolicies"] = {}
    back = json.loads(models.JobsetV1alpha2JobSet.from_dict(jobset).to_json())
    assert list(dropped(jobset, back, "JobSet")) == ["JobSet.spec.failurePolicies"]
    job = next(jobs_inside(jobset))
    job["spec"]["template"]["spec"]["restartpolicy"] = "Never"
    with pytest.raises(kubernetes.ValidationError):
        kubernetes.validate(job, VERSIONS[0], strict=True)


def containers(path: Path) -> Iterator[dict[str, Any]]:
    for document in documents(path):
        if document["kind"] == "TrainJob":  # its words go to the runtime's container "node"
            yield {
                "name": "node",
                **document["spec"]["trainer"],
                "command": ["tini", "--", "ftrun"],
            }
        templates = [job["spec"]["template"] for job in jobs_inside(document)]
        if document["kind"] in ("Job", "Deployment"):
            templates.append(document["spec"]["template"])
        for template in templates:
            yield from template["spec"]["containers"]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_ftrun_takes_the_words_of_every_container(path: Path) -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    seen = set()
    for container in containers(path):
        words = [*container.get("command", []), *container.get("args", [])]
        words = words[words.index("ftrun") + 1 :]
        if not words:
            continue  # a TrainJob's args follow
        name = "lighthouse" if words[0] == "lighthouse" else "run"
        with commands[name].make_context(name, words[name == "lighthouse" :]) as ctx:
            seen.add(name)
            if str(ctx.params.get("state", "")).startswith("k8s://"):
                place = ctx.params["state"].replace("$(NAMESPACE)", "team")
                parse_kubernetes(place.removeprefix("k8s://"))
            if name == "run":
                assert ctx.params["script"] == ["train.py"]
                states_where(path, ctx.params)
    assert seen == {"lighthouse", "run"}


def states_where(path: Path, flags: dict[str, Any]) -> None:
    """The nodes and the lighthouse are stated, or follow from what the controller injects."""
    injected = {"trainer": TRAINER_POD, "leaderworkerset": LWS_POD}.get(path.stem, {})
    stated = gather(flags, injected, None)
    pod = read_kubernetes(stated, injected)
    variables = pod.variables(stated, 8) if pod is not None else {}
    found = gather(flags, {**injected, **variables}, None)
    assert found["nodes"].value == 4
    assert found["lighthouse"].is_given
    assert (found["replicas"].value, found["workers_per_replica"].value) == ("8", 4)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_exit_codes_in_policies_are_ftruns(path: Path) -> None:
    lists = re.findall(r"values: \[([\d, ]+)\]", path.read_text())
    codes = {int(code) for text in lists for code in text.split(",")}
    assert codes <= {int(code) for code in ExitCode}


def test_the_image_is_made_of_what_is_there() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE):
        assert all((ROOT / name).exists() for name in line.split())
    extras = re.findall(r"/src\[(\w+)\]", text)
    assert extras and all(
        f"\n{name} = [" in (ROOT / "pyproject.toml").read_text() for name in extras
    )
