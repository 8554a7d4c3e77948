"""Brings the repositories of the rows, and the packages they need, into a directory of the user's.

Not here: what is changed in them (rows.py).
"""

from __future__ import annotations

import shutil
import subprocess
import venv
from collections.abc import Sequence
from pathlib import Path

from tests.real_scripts.rows import Row

ROOT = Path(__file__).resolve().parent.parent.parent
GIT_S, PIP_S = 600, 3600
BASE = ("torch", "-e", str(ROOT))


class Missing(Exception):
    """What a row needs cannot be had; its text is for people."""


def fetch(row: Row, cache: Path, mirror: Path | None) -> Path:
    """The directory with the files of the row's commit, as they are in its repository.

    Args:
        row: whose repository.
        cache: what was fetched once stays there.
        mirror: bare repositories named ``OWNER+NAME``; by default GitHub is asked.

    Raises:
        Missing: the commit cannot be had.
    """
    name = row.repository.replace("/", "+")
    wanted = cache / "sources" / f"{name}-{row.commit[:12]}-{_label(row.paths)}"
    if wanted.exists():
        return wanted
    git = cache / "git" / name if mirror is None else mirror / name
    if mirror is None:
        address = f"https://github.com/{row.repository}"
        git.mkdir(parents=True, exist_ok=True)
        _git(git, "init", "--quiet", "--bare")
        _git(git, "fetch", "--quiet", "--depth", "1", address, row.commit)
    draft = wanted.with_name(wanted.name + ".draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    archive = draft.with_suffix(".tar")
    _git(git, "archive", "--output", str(archive), row.commit, *row.paths)
    shutil.unpack_archive(archive, draft, filter="data")
    archive.unlink()
    draft.rename(wanted)
    return wanted


def _label(paths: Sequence[str]) -> str:
    return "+".join(path.replace("/", "_") for path in paths)[:80] or "all"


def _git(directory: Path, *words: str) -> None:
    command = ["git", "--git-dir", str(directory), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_S)
    if done.returncode:
        raise Missing(f"git {words[0]}: {done.stderr.strip()[-300:]}")


def install(rows: Sequence[Row], directory: Path) -> None:
    """Make the environment ``directory`` with this tree's ftrun and what the rows need.

    An installed torch is never replaced: constraints.txt holds its version, so that a package that
    wants another one is an error, and one that wants CUDA's build is installed without others.

    Raises:
        Missing: pip fails.
    """
    if not (directory / "bin" / "python").exists():
        venv.create(directory, with_pip=True)
    stamp = directory / "installed"
    known = set(stamp.read_text().splitlines()) if stamp.exists() else set()
    tree = f"ftrun of {ROOT}"
    if tree not in known:  # it may have been made by another tree
        _pip(directory, BASE)
        known = {x for x in known if not x.startswith("ftrun of ")} | {tree}
    needs = sorted({need for row in rows for need in row.needs} - known)
    plain = [need for need in needs if not need.endswith("--no-deps")]
    alone = [need.removesuffix("--no-deps").strip() for need in needs if need not in plain]
    for packages, option in ((alone, ["--no-deps"]), (plain, [])):
        if packages:
            _pip(directory, [*option, *packages])
    _complete_torchvision(directory)
    _strip_torchaudio(directory)
    stamp.write_text("\n".join(sorted(known | set(needs))) + "\n")


SHIM = """
if not _has_ops():  # this wheel's need CUDA
    _OF_PYTHON = torch.library.Library("torchvision", "DEF")
    _OF_PYTHON.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _OF_PYTHON.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

    def _nms(boxes, scores, limit):
        from torchvision.ops import box_iou

        left, kept = scores.argsort(descending=True), []
        while len(left):
            kept.append(int(left[0]))
            left = left[1:][box_iou(boxes[left[:1]], boxes[left[1:]])[0] <= limit]
        return torch.tensor(kept, dtype=torch.long)

    _OF_PYTHON.impl("nms", _nms, "CPU")

    def _assert_has_ops():
        pass
"""


def _complete_torchvision(directory: Path) -> None:
    """Give torchvision the operator without which it cannot be imported, if its wheel is CUDA's."""
    for path in directory.glob("lib/python*/site-packages/torchvision/extension.py"):
        text = path.read_text()
        if SHIM not in text:
            path.write_text(text + SHIM)


def _strip_torchaudio(directory: Path) -> None:
    """Leave torchaudio its Python alone: its wheel's libraries need CUDA's.

    With them its import fails, and so does that of packages that only look whether it is there.
    """
    for library in directory.glob("lib/python*/site-packages/torchaudio/lib/*.so"):
        library.unlink()


def _pip(directory: Path, words: Sequence[str]) -> None:
    command = [str(directory / "bin" / "pip"), "install", "--quiet"]
    command += ["--disable-pip-version-check", "-c", str(ROOT / "constraints.txt"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PIP_S)
    if done.returncode:
        raise Missing(f"pip install {' '.join(words)}: {done.stderr.strip()[-500:]}")
