"""Flag over environment over file over default; each mistake is named with its place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ftrun.agent.env_markers import FROM_KEEPER
from ftrun.base.errors import UserError
from ftrun.config.layers import (
    CONFIG_VARIABLE,
    DEFAULT,
    INHERITED,
    Stated,
    file_notice,
    gather,
    unknown_variables,
)
from ftrun.config.options import BY_NAME, OPTIONS
from ftrun.protocol.auth import VARIABLE


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
    assert file_notice(found) == ["ftrun.toml of this directory states: rebalance, grace, log-dir."]
    assert not file_notice(gather({}, {}, Path.cwd() / "ftrun.toml"))


def test_values_of_the_file_have_the_types_of_toml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/h")
    toml = "log-dir = '~/logs'\nreplicas = 4\npreload = ['a', 'b.c']\n"
    toml += "hang-timeout = 30\nmodule = true\n"
    path = tmp_path / "own.toml"
    path.write_text(toml)
    found = gather({}, {}, path)
    assert (found["replicas"].value, found["preload"].value) == ("4", "a,b.c")
    assert found["log_dir"].value == Path("/h/logs")
    assert (found["hang_timeout_s"].value, found["module"].value) == (30.0, True)


def test_torchruns_own_variable_of_the_shutdown_counts_last() -> None:
    both = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7", "PET_SHUTDOWN_TIMEOUT": "6"}
    assert gather({}, both, None)["grace_s"] == Stated(6.0, "PET_SHUTDOWN_TIMEOUT")
    del both["PET_SHUTDOWN_TIMEOUT"]
    assert gather({}, both, None)["grace_s"].value == 7.0


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("replcas = 2", "'replcas' is not an option. Did you mean replicas"),
        ("max-restarts = 'many'", "own.toml: max-restarts: 'many' is not a whole number"),
        ("max-restarts = true", "True is not a whole number"),
        ("module = 1", "1 is not true or false"),
        ("log-dir = []", "is not a text"),
        ("x = [", "is not valid TOML"),
        ("[run]\nreplicas = 2", "[run] is a table.*all keys stand by themselves"),
        ("redirects = [1]", "[1] is not a text"),
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
    assert [line.split()[2] for line in lines] == ["FTRUN_REPLICA", "PET_NPROC"]
    assert "FTRUN_REPLICAS" in lines[0]


def test_an_empty_variable_states_nothing() -> None:
    found = gather({}, {"PET_STANDALONE": "", "FTRUN_MAX_RESTARTS": "", "PET_ROLE": ""}, None)
    assert not [name for name, one in found.items() if one.is_given]


def test_a_workers_own_variables_are_no_options_of_a_job_that_it_starts() -> None:
    inherited = {"FTRUN_JOB_ID": "outer", "FTRUN_REPLICAS": "2"}
    assert gather({}, inherited, None)["job_id"] == Stated("outer", "FTRUN_JOB_ID")
    found = gather({}, {**inherited, "FTRUN_INCARNATION": "x"}, None)
    assert (found["job_id"].value, found["replicas"].value) == (None, "2")


def test_each_variable_of_ftrun_is_an_option_or_known_as_internal() -> None:
    """A variable that ftrun sets and that is in neither list would be warned of in a worker."""
    of_lighthouse = {name for name in names_in_code() if name.startswith("FTRUN_LIGHTHOUSE_")}
    options = {name for option in OPTIONS for name in option.variables()}
    assert names_in_code() - of_lighthouse <= options | INHERITED | {
        CONFIG_VARIABLE,
        VARIABLE,
        FROM_KEEPER,
    }
    assert not INHERITED - names_in_code()


def names_in_code() -> set[str]:
    """Texts in ftrun/ that are such a name, but for those in the list itself.

    Those of the embedded lighthouse stay in its process.
    """
    files = (Path(__file__).parents[3] / "ftrun").rglob("*.py")
    texts = [file.read_text() for file in files if file.name != "layers.py"]
    return {name for text in texts for name in re.findall(r'"(FTRUN_[A-Z_]+)"', text)}


def test_no_two_options_share_a_spelling() -> None:
    for spellings in (
        [flag for option in OPTIONS for flag in option.flags],
        [name for option in OPTIONS for name in option.variables()],
        [option.key for option in OPTIONS],
    ):
        assert len(set(spellings)) == len(spellings)
    assert len(BY_NAME) == len(OPTIONS)


def test_links_of_services_are_no_options() -> None:
    """Kubernetes sets them in every pod for Services whose names begin with ``ftrun``."""
    links = {
        "FTRUN_PORT": "tcp://10.0.0.1:29510", "FTRUN_SERVICE_HOST": "10.0.0.1",
        "FTRUN_SERVICE_PORT": "29510", "FTRUN_SERVICE_PORT_AGENTS": "29510",
        "FTRUN_PORT_29510_TCP": "tcp://10.0.0.1:29510", "FTRUN_PORT_29510_TCP_ADDR": "10.0.0.1",
        "FTRUN_LIGHTHOUSE_SERVICE_HOST": "10.0.0.2", "FTRUN_LIGHTHOUSE_PORT": "tcp://10.0.0.2:1",
        "FTRUN_MASTER_PORT": "tcp://10.0.0.3:80",
    }  # fmt: skip
    assert unknown_variables(links) == []
    assert not gather({}, links, None)["master_port"].is_given
    own = {"FTRUN_MASTER_PORT": "29400"}
    assert gather({}, own, None)["master_port"] == Stated(29400, "FTRUN_MASTER_PORT")
    assert len(unknown_variables({"FTRUN_PORTS": "1", "FTRUN_SERVICE": "x"})) == 2
