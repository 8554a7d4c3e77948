"""Fragments of the changelog have names that towncrier reads; towncrier itself is not needed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
FRAGMENTS = ROOT / "changelog.d"
NAME = re.compile(r"(\d+|\+[\w-]+)\.(?P<kind>[a-z]+)\.md")


def kinds() -> set[str]:
    """The kinds of fragments that towncrier knows."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
    return {kind["directory"] for kind in config["type"]}


def is_fragment(name: str) -> bool:
    """Whether towncrier would put a file of that name into the changelog."""
    match = NAME.fullmatch(name)
    return match is not None and match["kind"] in kinds()


def test_each_fragment_has_a_valid_name_and_words() -> None:
    fragments = [path for path in FRAGMENTS.iterdir() if path.name != "README.md"]
    assert not [path.name for path in fragments if not is_fragment(path.name)]
    assert not [path.name for path in fragments if not path.read_text().strip()]


def test_other_names_are_found() -> None:
    assert is_fragment("12.added.md")
    assert is_fragment("+stdin-of-a-job.fixed.md")
    assert not is_fragment("12.removed.md")
    assert not is_fragment("stdin.fixed.md")
    assert not is_fragment("12.added.txt")


def test_a_release_goes_where_towncrier_puts_it() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
    assert (ROOT / "CHANGELOG.md").read_text().count(config["start_string"]) == 1
