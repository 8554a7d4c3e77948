"""``ftrun check`` before its runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftrun.base.errors import UserError
from ftrun.tools.commands.check import check


@pytest.mark.parametrize(
    ("words", "module", "said"),
    [
        (["nowhere.py"], False, r"Script 'nowhere.py' does not exist \(looked from "),
        (["nowhere.train"], True, "no module named 'nowhere'"),
        (["broken.py"], False, "broken.py"),
        ([], False, "Give a script"),
    ],
)
def test_a_script_that_cannot_run_is_named_before_anything_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], module: bool, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.py").write_text("def (")
    with pytest.raises(UserError, match=said):
        check(words, module=module)


@pytest.mark.parametrize(
    ("replicas", "workers", "given"), [(1, 2, "off"), (2, 1, "on"), (2, 2, "on")]
)
def test_memory_snapshots_that_this_trial_cannot_have(
    replicas: int, workers: int, given: str
) -> None:
    with pytest.raises(UserError, match=f"--memory-snapshots {given}: give off or auto"):
        check(["a.py"], replicas=replicas, workers=workers, memory_snapshots=given)


@pytest.mark.parametrize(
    ("replicas", "workers", "nodes"), [(None, 3, 2), (2, 2, 2), (None, 1, 2), (None, 2, 0)]
)
def test_nodes_that_this_trial_cannot_have(replicas: int | None, workers: int, nodes: int) -> None:
    with pytest.raises(UserError, match=f"--nodes {nodes}: .* Nothing was started"):
        check(["a.py"], replicas=replicas, workers=workers, nodes=nodes)


def test_a_node_is_lost_where_there_are_memory_snapshots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.py").write_text("")
    monkeypatch.setattr("ftrun.config.forms.why_no_memory_snapshots", lambda _: "it is so")
    with pytest.raises(UserError, match=r"--nodes 2: .* and there are none: it is so. Nothing"):
        check(["a.py"], workers=2, nodes=2)
