"""What is written is what is read, by ftrun and by torch alone."""

from __future__ import annotations

import enum
import os
import subprocess
import sys
from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from ftrun.base.errors import PeerError
from ftrun.snapshots import manifest
from ftrun.snapshots.directory import look
from ftrun.snapshots.manifest import Damaged
from ftrun.snapshots.reading import read
from tests.unit.snapshots.written import newest, tree_of, write_tree


class Mode(enum.Enum):
    """Of a script's own classes, which the process that writes lacks."""

    FIRST = 1
    SECOND = 2


class Point(NamedTuple):
    """As Mode."""

    step: int
    weight: torch.Tensor


def trained() -> dict[str, Any]:
    """A model, an optimizer with moments, a scheduler: what scripts register."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 2), torch.nn.BatchNorm2d(4))
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    adam = torch.optim.AdamW(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(adam, 5)
    for _ in range(3):
        model(torch.rand(2, 3, 4, 4)).sum().backward()
        adam.step()
        schedule.step()
    return {
        "default": {"model": model.state_dict(), "optimizer": adam.state_dict()},
        "schedule": schedule.state_dict(),
        "rest": {
            "rng": torch.get_rng_state(),
            "array": np.arange(5, dtype=np.int16),
            "pair": (torch.ones(2), 1.5),
            "list": [torch.zeros(0), {"deep": torch.tensor(4, dtype=torch.int64)}],
            "blob": b"bytes",
            "nan": float("nan"),
            "half": torch.ones(3, dtype=torch.bfloat16),
            "param": torch.nn.Parameter(torch.ones(2, 2)),
            "ordered": OrderedDict(a=1),
            3: torch.tensor(True),
            "mode": Mode.SECOND,
            "points": [Point(1, torch.ones(2))],
            "seen": defaultdict(list, {"a": [torch.ones(1)]}),
        },
    }


def assert_equal(a: Any, b: Any) -> None:
    """Bitwise the same tree."""
    assert type(a) is type(b), (a, b)
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a, b)
    elif isinstance(a, np.ndarray):
        assert a.dtype == b.dtype and np.array_equal(a, b)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_equal(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            assert_equal(one, other)
    else:
        assert a == b or (a != a and b != b)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    tree = tree_of(**trained())
    path = write_tree(tmp_path, tree, position="somewhere")
    assert path == tmp_path / "step-000000000007"
    found = newest(tmp_path)
    assert (found.path, found.manifest.step, found.manifest.lineage) == (path, 7, "l")
    assert found.manifest.position == "somewhere" and found.manifest.origin.replicas == 2
    manifest.verify(found.path, found.manifest)
    assert_equal(read(found, tree), tree)


READ_ALONE = """
import sys, json
sys.path = [p for p in sys.path if p not in ("", {root!r})]
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "ftrun":
            raise ImportError("this process cannot import ftrun")
sys.meta_path.insert(0, Refuse())
import torch, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
state = {{"default": {{"model": {{"0.weight": torch.zeros(4, 3, 2, 2)}}}}, "ftrun": {{"step": 0}}}}
dcp.load(state, checkpoint_id={path!r}, no_dist=True)
dcp_to_torch_save({path!r}, {out!r})
assert not any(name.partition(".")[0] == "ftrun" for name in sys.modules)
whole = torch.load({out!r}, weights_only=False)
moment = whole["default"]["optimizer"]["state"]["0"]["exp_avg"].sum().item()
print(json.dumps([state["default"]["model"]["0.weight"].flatten().tolist(), state["ftrun"]["step"],
                  moment, sorted(whole), repr([whole["rest"][k] for k in {own!r}])]))
"""


def test_torch_alone_reads_it(tmp_path: Path) -> None:
    """As a checkpoint of torch's own: by ``dcp.load``, and turned into a file of ``torch.save``."""
    state = trained()
    path = write_tree(tmp_path, tree_of(**state))
    root = str(Path(__file__).parents[3])
    program = READ_ALONE.format(
        root=root, path=str(path), out=str(tmp_path / "whole.pt"), own=["mode", "points", "seen"]
    )
    environ = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True, text=True, timeout=300, cwd=tmp_path, env=environ, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    import json

    weight, step, moment, keys, own = json.loads(done.stdout)
    assert weight == state["default"]["model"]["0.weight"].flatten().tolist()
    assert step == 7 and keys == ["default", "ftrun", "rest", "schedule"]
    assert own == "['SECOND', [{'step': 1, 'weight': tensor([1., 1.])}], {'a': [tensor([1.])]}]"
    expected = state["default"]["optimizer"]["state"][0]["exp_avg"].sum().item()
    assert moment == pytest.approx(expected, rel=1e-6)


def test_old_ones_go(tmp_path: Path) -> None:
    for step in range(1, 6):
        write_tree(tmp_path, tree_of(step, a={"x": torch.ones(2)}), keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-000000000004", "step-000000000005"]


def test_drafts_of_dead_writers_go_and_a_step_may_be_written_again(tmp_path: Path) -> None:
    (tmp_path / ".draft-step-000000000002-dead").mkdir()
    (tmp_path / ".draft-step-000000000002-dead" / "__0_0.distcp").write_bytes(b"torn")
    write_tree(tmp_path, tree_of(2, a={"x": torch.ones(2)}))
    write_tree(tmp_path, tree_of(2, a={"x": torch.zeros(2)}), writer="another", lineage="m")
    assert [p.name for p in tmp_path.iterdir()] == ["step-000000000002"]
    assert newest(tmp_path).manifest.lineage == "m"


@pytest.mark.parametrize("file", [".metadata", "__0_0.distcp", "ftrun.leaves", "ftrun.json"])
def test_a_bit_that_has_changed_is_found(tmp_path: Path, file: str) -> None:
    tree = tree_of(a={"x": torch.arange(64.0), "y": (torch.ones(3),)})
    path = write_tree(tmp_path, tree)
    data = bytearray((path / file).read_bytes())
    data[len(data) // 2] ^= 4
    (path / file).write_bytes(data)
    if file == manifest.NAME:
        looked = look(tmp_path)
        assert looked.newest is None and "manifest" in looked.passed_over[0][1]
    else:
        with pytest.raises(Damaged, match=file.replace(".", r"\.")):
            read(newest(tmp_path), tree)


@pytest.mark.parametrize("file", [".metadata", "__0_0.distcp", "ftrun.json"])
@pytest.mark.parametrize("how", ["cut", "gone"])
def test_one_that_is_torn_is_passed_over(tmp_path: Path, file: str, how: str) -> None:
    write_tree(tmp_path, tree_of(1, a={"x": torch.arange(64.0)}))
    path = write_tree(tmp_path, tree_of(2, a={"x": torch.arange(64.0)}))
    if how == "gone":
        (path / file).unlink()
    else:
        (path / file).write_bytes((path / file).read_bytes()[:-7])
    looked = look(tmp_path)
    assert looked.newest is not None and looked.newest.manifest.step == 1
    assert [p.name for p, _ in looked.passed_over] == ["step-000000000002"]


def test_a_state_of_another_shape_is_read_for_the_script_to_judge(tmp_path: Path) -> None:
    saved = tree_of(a={"w": torch.arange(3.0), "b": torch.ones(1)})
    write_tree(tmp_path, saved)
    found = read(newest(tmp_path), tree_of(a={"w": None, "b": torch.ones(4)}))
    assert torch.equal(found["user"]["a"]["w"], torch.arange(3.0))
    assert torch.equal(found["user"]["a"]["b"], torch.ones(1))


def test_a_key_of_ftruns_own_and_a_full_disk_are_refused_and_leave_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PeerError, match="ftrun"):
        write_tree(tmp_path, tree_of(ftrun={"x": torch.ones(2)}))
    import shutil

    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda where: usage._replace(free=100))
    with pytest.raises(PeerError, match="100 B are free"):
        write_tree(tmp_path, tree_of(a={"x": torch.ones(2000)}))
    assert list(tmp_path.iterdir()) == []


def test_keys_that_fall_together_are_refused(tmp_path: Path) -> None:
    """DCP joins keys with dots; two of one name would lose a tensor without a word."""
    state = {"a": {"b": torch.ones(1)}, "a.b": torch.zeros(1)}
    with pytest.raises(PeerError, match=r"torch cannot save it: .*k\.a\.b"):
        write_tree(tmp_path, tree_of(k=state))
    assert list(tmp_path.iterdir()) == []
