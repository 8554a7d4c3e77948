"""Modules are found as ``python -m`` finds them, and nothing is imported for it."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from ftrun.base.errors import UserError
from ftrun.config.modules import find_module

RAISES = "raise RuntimeError('imported')"


def write(root: Path, **sources: str) -> Path:
    """Modules by dotted name, ``__`` for the dots; each fails when it is imported."""
    for name, source in sources.items():
        path = root.joinpath(*name.split("__", 3)).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return root


@pytest.fixture
def place(tmp_path: Path) -> Path:
    root = write(tmp_path, top=RAISES, mine__train=RAISES, mine__deep__tool=RAISES)
    for package in ("mine", "mine/deep"):
        (root / package / "__init__.py").write_text(RAISES)
    return root


def test_modules_of_files_packages_and_the_library(place: Path) -> None:
    assert find_module("top", place) == place / "top.py"
    assert find_module("mine.train", place) == place / "mine/train.py"
    assert find_module("mine.deep.tool", place) == place / "mine/deep/tool.py"
    tool = find_module("json.tool", place)
    assert tool is not None and tool.name == "tool.py"
    assert find_module("sys", place) is None  # it is there, and has no source


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nothing.train", "no module named 'nothing' here"),
        ("mine.trian", r"the package mine \(.*mine\) has no module 'trian'.*Did you mean train"),
        ("mine.deep.no", r"the package mine.deep \(.*\) has no module 'no'"),
        ("mine.train.more", "mine.train is a module and not a package"),
        ("mine.deep", "the package has no __main__.py.*-m mine.deep.MODULE"),
        ("json.no_such", "the package json .* has no module 'no_such'"),
    ],
)
def test_what_is_not_there_is_refused(place: Path, name: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        find_module(name, place)


def test_directories_without_init_are_packages_unless_there_is_a_real_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a", space__inner__one=RAISES, json__mine=RAISES)
    write(tmp_path / "b", space__inner__two=RAISES, space__main=RAISES)
    monkeypatch.syspath_prepend(tmp_path / "b")
    assert find_module("space.inner.one", tmp_path / "a") == tmp_path / "a/space/inner/one.py"
    assert find_module("space.inner.two", tmp_path / "a") == tmp_path / "b/space/inner/two.py"
    with pytest.raises(UserError, match=r"space.inner .* has no module 'three'"):
        find_module("space.inner.three", tmp_path / "a")
    with pytest.raises(UserError, match=r"the package has no __main__.py"):
        find_module("space", tmp_path / "a")
    with pytest.raises(UserError, match="has no module 'mine'"):
        find_module("json.mine", tmp_path / "a")


def test_a_package_that_runs_is_one_with_a_main(place: Path) -> None:
    main = place / "mine" / "__main__.py"
    main.write_text(RAISES)
    assert find_module("mine", place) == main


def test_a_package_that_makes_its_modules_is_believed(place: Path) -> None:
    (place / "mine" / "__init__.py").write_text("__path__.append('/elsewhere')")
    assert find_module("mine.made", place) is None
    assert find_module("mine", place) is None


def test_modules_in_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "all.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("packed/__init__.py", RAISES)
        archive.writestr("packed/tool.py", RAISES)
    monkeypatch.syspath_prepend(path)
    assert find_module("packed.tool", tmp_path) is None
    assert find_module("packed.nothing", tmp_path) is None  # its source is not at hand
