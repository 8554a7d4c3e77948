"""Words as typed: every spelling of an option, SCRIPT's own words, and hints at what was meant."""

from __future__ import annotations

import pytest

from ftrun.base.errors import UserError
from ftrun.config.options import COMMAND_ONLY, OPTIONS, SECTIONS, TORCHRUN_NAMES
from ftrun.config.words import respell


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("--max_restarts=3 t.py", "--max-restarts 3 t.py"),
        ("--max_restarts 3 t.py", "--max-restarts 3 t.py"),
        ("--workers_per_replica 2 t.py", "--workers-per-replica 2 t.py"),
        ("--no_python t.sh", "--no-python t.sh"),
        ("--no_rebalance t.py", "--no-rebalance t.py"),
        ("--nproc 2 t.py", "--nproc-per-node 2 t.py"),
        ("--nproc_per_nod=2 t.py", "--nproc-per-node 2 t.py"),
        ("--redirect 3 t.py", "--redirects 3 t.py"),
        ("-r3 -t=0:1 -w 2 t.py", "-r 3 -t 0:1 -w 2 t.py"),
        ("-m package.train --x_y", "-m package.train --x_y"),
        ("t.py --max_restarts=3 -h", "t.py --max_restarts=3 -h"),
        ("-- --odd_name.py --a_b", "-- --odd_name.py --a_b"),
        ("--job-id --a_b t.py", "--job-id --a_b t.py"),
        ("--rdzv-conf=a=1,b=2 t.py", "--rdzv-conf a=1,b=2 t.py"),
        ("--max-restarts 1 --max-restarts 2 t.py", "--max-restarts 1 --max-restarts 2 t.py"),
        ("--grace 3 --shutdown-timeout 3 t.py", "--grace 3 --shutdown-timeout 3 t.py"),
        ("--standalone -h", "--standalone -h"),
        ("- x", "- x"),
        ("t.py -- --x", "t.py --x"),
        ("t.py -- -- x", "t.py -- x"),
        ("t.py a -- x", "t.py a -- x"),
        ("-- t.py -- x", "-- t.py -- x"),
        ("--max-restarts", "--max-restarts"),
    ],
)
def test_every_spelling_is_read_up_to_the_script(typed: str, read: str) -> None:
    assert respell(typed.split()) == read.split()


@pytest.mark.parametrize("option", [o for o in OPTIONS if o.name in TORCHRUN_NAMES])
def test_both_spellings_of_each_long_flag(option: object) -> None:
    flag = option.flag  # type: ignore[attr-defined]
    dashed, lowered = (
        respell([flag, "1"]),
        respell([flag.replace("-", "_").replace("__", "--"), "1"]),
    )
    assert dashed == lowered == [flag, "1"]


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("--nproc_per_noed 2 t.py", r"--nproc-per-noed\. Did you mean --nproc-per-node\?"),
        ("--standalonee t.py", r"Did you mean --standalone\?"),
        ("--stand t.py", r"Did you mean --standby or --standalone\?"),
        ("--replica 2 t.py", r"No such option: --replica\. Did you mean --replicas\?"),
        ("--nod 2 t.py", r"Did you mean --nodes or --node-rank\?"),
        ("--frobnicate t.py", r"--frobnicate\. Nothing was started"),
        ("-x t.py", r"No such option: -x\. Nothing was started"),
        ("--standalone=1 t.py", "--standalone takes no value, and '--standalone=1' has one"),
        ("-mtrain", "-m takes no value"),
        ("--grace 3 --shutdown-timeout 4 t.py", "--grace 3 and --shutdown-timeout 4.*differ"),
    ],
)
def test_what_is_wrong_is_named_with_what_was_meant(typed: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        respell(typed.split())


def test_an_unfinished_line_is_never_wrong() -> None:
    assert respell(["--bogus", "--max_restarts"], is_final=False) == ["--bogus", "--max-restarts"]


def test_each_option_stands_under_one_heading_of_the_help() -> None:
    placed = [name for names in SECTIONS.values() for name in names]
    options = [option.name for option in (*OPTIONS, *COMMAND_ONLY)]
    assert sorted(placed) == sorted([*options, "help"])
