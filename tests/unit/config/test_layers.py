"""Flag over environment over file over default; each mistake is named with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftrun.config.layers import DEFAULT, Stated, gather, unknown_variables
from ftrun.config.options import BY_NAME, OPTIONS, normaliser
from ftrun.errors import UserError


def one(name: str, tmp_path: Path, toml: str, environ: dict[str, str], flag: str | None) -> Stated:
    path = tmp_path / "own.toml"
    path.write_text(toml)
    return gather({name: flag}, environ, path)[name]


def test_flag_then_variable_then_file_then_default(tmp_path: Path) -> None:
    toml, both = "max-restarts = 5", {"FTRUN_MAX_RESTARTS": "4", "PET_MAX_RESTARTS": "3"}
    path = tmp_path / "own.toml"
    assert one("max_restarts", tmp_path, toml, both, "6") == Stated(6, "--max-restarts")
    assert one("max_restarts", tmp_path, toml, both, None) == Stated(4, "FTRUN_MAX_RESTARTS")
    del both["FTRUN_MAX_RESTARTS"]
    assert one("max_restarts", tmp_path, toml, both, None) == Stated(3, "PET_MAX_RESTARTS")
    assert one("max_restarts", tmp_path, toml, {}, None) == Stated(5, f"{path}: max-restarts")
    assert one("max_restarts", tmp_path, "", {}, None) == Stated(None, DEFAULT)


def test_the_file_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert not gather({}, {}, None)["grace_s"].is_given
    Path("ftrun.toml").write_text("grace = 3\nrebalance = false\nlog_dir = 'here'\n")
    found = gather({}, {}, None)
    assert found["grace_s"] == Stated(3.0, "ftrun.toml: grace")
    assert found["rebalance"].value is False
    assert found["log_dir"].value == Path("here")


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("replcas = 2", "'replcas' is not an option. Did you mean replicas"),
        ("max-restarts = 'many'", "own.toml: max-restarts: 'many' is not a whole number"),
        ("max-restarts = true", "True is not a whole number"),
        ("module = 1", "1 is not true or false"),
        ("log-dir = []", "is not a text"),
        ("x = [", "is not valid TOML"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, toml: str, message: str) -> None:
    with pytest.raises(UserError, match=message.replace("[", r"\[")):
        one("replicas", tmp_path, toml, {}, None)


def test_a_missing_file_and_a_bad_variable_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nosuch\.toml cannot be read"):
        gather({}, {}, tmp_path / "nosuch.toml")
    with pytest.raises(UserError, match="PET_MAX_RESTARTS: 'x' is not a whole number"):
        gather({}, {"PET_MAX_RESTARTS": "x"}, None)
    with pytest.raises(UserError, match="PET_MODULE: 'perhaps' is neither true nor false"):
        gather({}, {"PET_MODULE": "perhaps"}, None)


def test_unknown_variables_are_named_and_those_of_workers_are_not() -> None:
    odd = {"FTRUN_REPLICA": "2", "PET_NPROC": "2", "FTRUN_JOB_ID": "a", "OTHER": "x"}
    lines = unknown_variables(odd)
    assert [line.partition(" ")[0] for line in lines] == ["FTRUN_REPLICA", "PET_NPROC"]
    assert "FTRUN_REPLICAS" in lines[0]


@pytest.mark.parametrize(
    ("typed", "flag"),
    [
        ("nproc_per_node", "nproc-per-node"),
        ("redirect", "redirects"),
        ("nproc", "nproc-per-node"),
        ("rdzv", "rdzv"),
        ("max_restarts", "max-restarts"),
        ("replica", "replica"),
        ("w", "w"),
    ],
)
def test_underscores_and_beginnings_of_torchruns_flags(typed: str, flag: str) -> None:
    assert normaliser()(typed) == flag


def test_no_two_options_share_a_spelling() -> None:
    for spellings in (
        [flag for option in OPTIONS for flag in option.flags],
        [name for option in OPTIONS for name in option.variables()],
        [option.key for option in OPTIONS],
    ):
        assert len(set(spellings)) == len(spellings)
    assert len(BY_NAME) == len(OPTIONS)
