"""Settings of a launch are what the options of the command line are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ftrun.base.errors import UserError
from ftrun.config.script import Script, TargetKind
from ftrun.config.settings import RunSettings, resolve
from ftrun.tools.launching.settings import stated_options

FUNCTION = Script("module:function", TargetKind.FUNCTION, ("/none", ""))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work where no ftrun.toml is."""
    monkeypatch.chdir(tmp_path)


def resolved(
    settings: dict[str, Any], environ: dict[str, str] | None = None, *, one_group: bool = False
) -> RunSettings:
    """The settings of a launch."""
    return resolve(FUNCTION, stated_options(settings, environ or {}, one_group=one_group))


def test_names_of_fields_and_of_options_are_known() -> None:
    settings = resolved(
        {"replicas": "2:3", "join_timeout_s": 4.5, "grace": 3, "standby": 1, "rebalance": False,
         "preload": ["json", "csv"], "token_file": "/a/b", "job_id": None}
    )  # fmt: skip
    assert (settings.min_replicas, settings.replicas) == (2, 3)
    assert (settings.join_timeout_s, settings.grace_s, settings.standbys) == (4.5, 3.0, 1)
    assert (settings.rebalance, settings.preload) == (False, ("json", "csv"))
    assert settings.token_file == Path("/a/b")
    assert settings.job_id.startswith("function-")
    assert (settings.as_torchrun, settings.max_restarts) == (False, 10)


def test_the_program_wins_over_the_environment_and_that_over_a_file(tmp_path: Path) -> None:
    (tmp_path / "ftrun.toml").write_text("max-restarts = 1\ngrace = 1\nreplicas = 2\n")
    environ = {"FTRUN_MAX_RESTARTS": "2", "FTRUN_GRACE": "2"}
    settings = resolved({"max_restarts": 3}, environ)
    assert (settings.max_restarts, settings.grace_s, settings.replicas) == (3, 2, 2)
    other = tmp_path / "other.toml"
    other.write_text("replicas = 5\n")
    assert resolved({"config": str(other)}).replicas == 5
    assert resolved({}, {"FTRUN_CONFIG": str(other)}).replicas == 5


def test_one_group_is_one_group_whatever_stands_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "ftrun.toml").write_text("replicas = 3\nworkers-per-replica = 4\n")
    settings = resolved({"nproc_per_node": 2}, {"FTRUN_REPLICAS": "5"}, one_group=True)
    assert (settings.replicas, settings.workers_per_replica) == (1, 2)
    assert (settings.as_torchrun, settings.max_restarts) == (True, 0)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"replcas": 2},
            r"There is no setting 'replcas'\. Nothing.*Did you mean repl",
        ),
        ({"zzz": 2}, r"There is no setting 'zzz'.*--help` lists"),
        ({"dry_run": True}, r"There is no setting 'dry_run'"),
        ({"script": "x"}, r"There is no setting 'script'"),
        ({"module": True}, r"There is no setting 'module'"),
        ({"max_restarts": "many"}, r"--max-restarts: 'many' is not a whole number\. Nothing was"),
    ],
)
def test_others_are_refused_by_name(settings: dict[str, object], text: str) -> None:
    with pytest.raises(UserError, match=text):
        resolved(settings)
