"""What scripts/release refuses, before it installs or builds anything."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMAND_S = 60.0


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository of one commit with what the script looks at first."""
    (tmp_path / "scripts").mkdir()
    for name in ("release", "install.sh"):
        shutil.copy(ROOT / "scripts" / name, tmp_path / "scripts")
    (tmp_path / "pyproject.toml").write_text('version = "3.1.4"\n')
    (tmp_path / "CHANGELOG.md").write_text("## 3.1.4\n")
    (tmp_path / "changelog.d").mkdir()
    (tmp_path / "changelog.d/README.md").write_text("Fragments.\n")
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    return tmp_path


def git(clone: Path, *words: str) -> None:
    author = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *author, *words], cwd=clone, check=True, timeout=COMMAND_S)


def commit(clone: Path) -> None:
    git(clone, "add", "-A")
    git(clone, "commit", "-q", "--allow-empty", "-m", "a change")


def refusal(clone: Path) -> str:
    words = [clone / "scripts/release"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    assert done.returncode == 2
    assert not (clone / "dist").exists()
    return done.stderr


def test_changes_that_are_not_committed(clone: Path) -> None:
    (clone / "CHANGELOG.md").write_text("## 3.1.4\nMore.\n")
    assert "not committed" in refusal(clone)


def test_fragments_that_are_left(clone: Path) -> None:
    (clone / "changelog.d/12.fixed.md").write_text("A bug is gone.\n")
    commit(clone)
    assert "changelog.d/12.fixed.md" in refusal(clone)


def test_a_version_without_a_section_in_the_changelog(clone: Path) -> None:
    (clone / "pyproject.toml").write_text('version = "3.2.0"\n')
    commit(clone)
    assert "CHANGELOG.md has no section of 3.2.0" in refusal(clone)


def test_a_version_that_another_commit_has(clone: Path) -> None:
    git(clone, "tag", "--no-sign", "v3.1.4")
    commit(clone)
    assert "v3.1.4 is a tag of another commit" in refusal(clone)
