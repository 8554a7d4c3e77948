"""Every bad input has its own message, before anything is started."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from ftrun.base.errors import UserError
from ftrun.config.checks import check, relations
from ftrun.config.layers import DEFAULT
from ftrun.config.options import OPTIONS
from ftrun.config.script import Script, TargetKind
from ftrun.config.settings import (
    RunSettings,
    check_writable,
    default_job_id,
    parse_replicas,
)
from ftrun.core.agent.settings import SupervisorSettings
from ftrun.core.messages import JobSpec
from ftrun.protocol.tls import PLAINTEXT
from tests.unit.run_settings import resolved, run_settings

FILE, MODULE = TargetKind.FILE, TargetKind.MODULE

SETTINGS = run_settings(replicas=2)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("print('hello')\n")
    return path


@pytest.mark.parametrize(
    ("text", "minimum", "found"),
    [("4", None, (1, 4)), ("4", 2, (2, 4)), ("2:4", None, (2, 4)), ("2:4", 2, (2, 4))],
)
def test_replicas_are_a_number_or_a_range(
    text: str, minimum: int | None, found: tuple[int, int]
) -> None:
    assert parse_replicas(text, minimum) == found


@pytest.mark.parametrize(
    ("text", "minimum", "message"),
    [
        ("four", None, "neither a number nor MIN:MAX"),
        ("2:", None, "neither a number nor MIN:MAX"),
        ("4:2", None, "MIN 4 is above MAX 2. Did you mean 2:4"),
        ("2:4", 3, "Give one of the two"),
    ],
)
def test_bad_replicas_are_explained(text: str, minimum: int | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_replicas(text, minimum)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"replicas": 0}, "--replicas 0"),
        ({"min_replicas": 0}, "at least 1 must train"),
        ({"min_replicas": 3}, "the job could never begin"),
        ({"workers_per_replica": 0}, "--workers-per-replica 0"),
        ({"max_restarts": -1}, "--max-restarts -1"),
        ({"nodes": 0}, "--nodes 0"),
        ({"nodes": 2}, "--nodes above 1 needs a lighthouse"),
        ({"join_timeout_s": 0.0}, "--join-timeout 0"),
        ({"heartbeat_timeout_s": -1.0}, "--heartbeat-timeout -1"),
        ({"isolation_limit_s": 6.0}, "less than twice --heartbeat-timeout"),
        ({"hang_timeout_s": -1.0}, "--hang-timeout -1"),
        ({"hang_timeout_s": 0.01}, "--hang-timeout 0.01: give seconds from 1"),
        ({"hang_timeout_s": float("nan")}, "--hang-timeout nan"),
        ({"grace_s": -1.0}, "--grace -1"),
        ({"job_id": "../up"}, "--job-id '../up'"),
        ({"job_id": ""}, "--job-id ''"),
        ({"device": "tpu"}, "--device 'tpu'"),
        ({"inject": "magic"}, "--inject 'magic'"),
        ({"data": "twice"}, "--data 'twice': give one of as-written, exactly-once"),
        (
            {"data": "exactly-once", "inject": "explicit"},
            "--data exactly-once with --inject explicit",
        ),
        ({"global_batch": 0}, "--global-batch 0"),
        ({"global_batch": 8, "inject": "off"}, "--global-batch with --inject off"),
        (
            {"global_batch": 8, "inject": "ddp", "workers_per_replica": 2},
            "--global-batch with 2 workers per replica",
        ),
        ({"preload": ("a b",)}, "--preload 'a b'"),
        ({"preload": ("m",) * 65}, "at most 64 modules"),
        ({"lighthouse": "nowhere"}, "--lighthouse 'nowhere' is not HOST:PORT"),
    ],
)
def test_bad_settings_are_explained(script: Path, changes: dict[str, Any], message: str) -> None:
    settings = replace(SETTINGS, script=Script(str(script), FILE), **changes)
    with pytest.raises(UserError, match=message):
        check(settings)


def test_good_settings_say_what_the_job_is(script: Path, tmp_path: Path) -> None:
    settings = replace(SETTINGS, script=Script(str(script), FILE), log_dir=tmp_path / "logs")
    check(settings)
    assert not (tmp_path / "logs").exists()
    settings.check_directories()
    assert (tmp_path / "logs" / "job").is_dir()
    spec = settings.spec()
    assert (spec.job_id, spec.replicas, spec.min_replicas, spec.nodes) == ("job", 2, 1, 1)


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"--log-dir: cannot write in .*file/logs"):
        check_writable(tmp_path / "file" / "logs", "--log-dir")
    settings = replace(SETTINGS, log_dir=tmp_path, state_dir=tmp_path / "file")
    with pytest.raises(UserError, match="--state-dir: cannot write"):
        settings.check_directories()


def test_nodes_that_share_a_directory_try_it_at_once(tmp_path: Path) -> None:
    """Their processes often have one pid, because each node is a container."""

    def tries(_: int) -> None:
        for _ in range(50):
            check_writable(tmp_path, "--log-dir")

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(tries, range(4))) == 4 * [None]


def test_a_job_alone_gets_a_name_of_its_own_and_a_shared_one_the_scripts() -> None:
    script = Script("/a/b/train digits.py", FILE)
    assert default_job_id(script, True) == "train-digits"
    one, two = default_job_id(script, False), default_job_id(script, False)
    assert one != two
    assert one.startswith("train-digits-")
    assert default_job_id(Script("pkg.train", MODULE), True) == "train"


def test_each_option_of_a_run_is_a_setting_of_its_name() -> None:
    """No line passes an option on; one that RunSettings lacks fails here."""
    names = {option.name for option in OPTIONS}
    of_torchrun = {
        "nproc_per_node", "nnodes", "rdzv_backend", "rdzv_endpoint", "rdzv_id",
        "rdzv_conf", "standalone", "monitor_interval", "start_method", "use_env",
        "logs_specs",
    }  # fmt: skip
    apart = {"module", "tls_cert", "tls_key", "tls_ca"} | of_torchrun
    own = {"tls", "script", "as_torchrun", "sources", "accepts_fewer"}
    own |= {"rendezvous", "span", "restarts_spent", "workers_per_node", "groups_placed", "gpus"}
    assert names - apart == {field.name for field in fields(RunSettings)} - own


def test_what_is_parsed_of_an_option() -> None:
    found = resolved(
        "pkg.train", "--lr", "1", module=True, replicas="2:4",
        lighthouse="http://h:1/", preload="a, b c",
    )  # fmt: skip
    assert found.script == Script("pkg.train", MODULE, ("--lr", "1"))
    assert (found.min_replicas, found.replicas) == (2, 4)
    assert (found.lighthouse, found.job_id) == ("h:1", "train")
    assert found.preload == ("a", "b", "c")
    assert found.tls == PLAINTEXT


@pytest.mark.parametrize("kind", [JobSpec, SupervisorSettings])
def test_settings_that_are_passed_on_by_name_have_the_same_type(kind: type[Any]) -> None:
    """``standbys`` is passed on as StandbyRules (agent/shell.py)."""
    ours, theirs = get_type_hints(RunSettings), get_type_hints(kind)
    shared = set(ours) & set(theirs) - {"standbys"}
    assert shared
    assert {name: ours[name] for name in shared} == {name: theirs[name] for name in shared}
    assert set(SETTINGS.shared_with(kind)) - {"standbys"} == shared


def test_relations_of_times_name_their_numbers_and_only_rules_refuse(script: Path) -> None:
    alone = replace(SETTINGS, script=Script(str(script)), isolation_limit_s=9.0)
    rule, end = relations(alone)
    assert (end.upper, end.holds, end.is_rule) == ("--lighthouse-timeout", True, True)
    assert (rule.holds, rule.is_rule) == (False, True)
    assert "--isolation-limit 9 is less than twice --heartbeat-timeout (10 s): else" in rule.words()
    with pytest.raises(UserError, match="less than twice --heartbeat-timeout"):
        check(alone)
    apart = replace(alone, isolation_limit_s=60.0, lighthouse="h:1")
    rule, _, advice = relations(apart)
    assert (rule.holds, advice.holds, advice.is_rule) == (True, False, False)
    assert "--join-timeout 60 is less than" in advice.words() and "(65 s)" in advice.words()
    check(apart)
    assert relations(replace(apart, join_timeout_s=65.0))[2].holds


def test_a_minimum_of_a_range_has_the_ranges_source() -> None:
    found = resolved(replicas="2:4")
    assert (found.sources["min_replicas"], found.sources["replicas"]) == ("--replicas",) * 2
    assert resolved(replicas="4").sources["min_replicas"] == DEFAULT


def test_prefixes_are_for_several_workers_or_a_template_with_tee(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not run_settings().prefixes_lines
    assert run_settings(replicas=2).prefixes_lines
    assert not run_settings(replicas=2, prefix=False).prefixes_lines
    assert run_settings(prefix=True).prefixes_lines
    monkeypatch.setenv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "[${rank}] ")
    assert not run_settings().prefixes_lines
    assert run_settings(tee="3").prefixes_lines


def test_limits_of_logs_are_checked(tmp_path: Path) -> None:
    script = tmp_path / "t.py"
    script.write_text("")
    wrongs: list[dict[str, Any]] = [{"log_keep": "7"}, {"log_max_size": "7"}]
    for wrong in wrongs:
        with pytest.raises(UserError, match="Nothing was started"):
            check(replace(resolved(str(script)), **wrong))
    settings = replace(resolved(str(script), merged_log=True), job_id="job")
    assert settings.merged_path == Path("ftrun-logs/job/merged.log")
    assert replace(settings, merged_log=False).merged_path is None
