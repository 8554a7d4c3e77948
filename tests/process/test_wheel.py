"""The wheel as users get it: installed into a bare environment, away from this repository.

The wheel is built here, or FTRUN_WHEEL names it: scripts/release has its own tried.

Its dependencies are those of the environment that runs the tests, so nothing is downloaded; ftrun
itself is the wheel's, and every test checks that.
"""

from __future__ import annotations

import email
import os
import re
import shutil
import signal
import site
import subprocess
import sys
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.jobs import Job

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
SOURCES = ("ftrun", "pyproject.toml", "README.md", "LICENSE")
BUILD_S = 300.0
COMMAND_S = 180.0


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: leftovers of an earlier build could hide missing files."""
    if given := os.environ.get("FTRUN_WHEEL"):
        return Path(given)
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        if (REPOSITORY / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(REPOSITORY / name, source / name, ignore=ignored)
        else:
            shutil.copy(REPOSITORY / name, source / name)
    pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(out), str(source))
    (built,) = out.iterdir()
    return built


def pip(*words: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@dataclass(frozen=True)
class Installed:
    """The wheel in an environment of its own. ``home``: where ftrun must be imported from."""

    bin: Path
    home: Path

    def run(self, directory: Path, program: str, *words: str) -> str:
        """The output of a program of the environment, run in ``directory``."""
        state = str(directory / "state")
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        done = subprocess.run(
            [self.bin / program, *words], capture_output=True, text=True, timeout=COMMAND_S,
            cwd=directory, env={**environment, "XDG_STATE_HOME": state}, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """A .pth file lends it this environment's packages, behind its own."""
    root = tmp_path_factory.mktemp("bare")
    venv.create(root, with_pip=False)
    python = root / "bin" / "python"
    pip("--python", str(python), "install", "--no-deps", "--no-index", str(wheel))
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    home = root / "lib" / version / "site-packages"
    (home / "lent.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    return Installed(root / "bin", home)


def test_the_wheel_holds_all_that_is_needed_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata_name,) = (name for name in names if name.endswith("dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(metadata_name))
        info = metadata_name.rpartition("/")[0]
        assert archive.read(f"{info}/licenses/LICENSE") == (REPOSITORY / "LICENSE").read_bytes()
        assert "ftrun = ftrun.cli:main" in archive.read(f"{info}/entry_points.txt").decode()
    package = REPOSITORY / "ftrun"
    files = {path for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert {name for name in names if not name.startswith(info)} == {
        str(path.relative_to(REPOSITORY)) for path in files
    }
    assert {"ftrun/protocol/ftrun.proto", "ftrun/protocol/ftrun_pb2.pyi", "ftrun/py.typed"} <= names
    assert metadata["License-Expression"] == "BSD-3-Clause"
    assert metadata["Requires-Python"] == ">=3.10"


def test_ftrun_is_the_wheels(installed: Installed, tmp_path: Path) -> None:
    where = installed.run(tmp_path, "python", "-c", "import ftrun; print(ftrun.__file__)")
    assert Path(where.strip()) == installed.home / "ftrun" / "__init__.py"
    assert "ftrun run --help" in " ".join(installed.run(tmp_path, "ftrun", "--help").split())
    (version,) = re.findall(r'(?m)^version = "(.*)"', (REPOSITORY / "pyproject.toml").read_text())
    assert installed.run(tmp_path, "ftrun", "--version") == f"ftrun {version}\n"
    words = ("-c", "import ftrun; print(ftrun.__version__)")
    assert installed.run(tmp_path, "python", *words) == f"{version}\n"
    assert "--tls-ca" in installed.run(tmp_path, "ftrun", "certs", "--host", "localhost")
    assert (tmp_path / "ftrun-certs" / "ca.pem").exists()


SCRIPT = """
import time, torch, ftrun
from ftrun import DistributedDataParallel, Optimizer
print("ftrun is", ftrun.__file__, flush=True)
model = torch.nn.Linear(8, 4)
sgd = torch.optim.SGD(model.parameters(), lr=0.01)

def load_state_dict(state):
    model.load_state_dict(state["model"])
    sgd.load_state_dict(state["optimizer"])

manager = ftrun.manager(
    load_state_dict=load_state_dict,
    state_dict=lambda: {"model": model.state_dict(), "optimizer": sgd.state_dict()},
)
optimizer = Optimizer(manager, sgd)
network = DistributedDataParallel(manager, model)
while True:
    optimizer.zero_grad()
    network(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    if manager.current_step() % 10 == 0:
        print("step", manager.current_step(), "of", manager.num_participants(), flush=True)
    time.sleep(0.01)
"""


def test_a_job_trains_is_shown_and_heals(
    installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    options = ("--device", "cpu", "--replicas", "2")
    with Job(tmp_path, SCRIPT, *options, program=(str(installed.bin / "ftrun"),)) as job:
        homes = job.expect(r"ftrun is (.*)$", 2)
        assert set(homes) == {str(installed.home / "ftrun" / "__init__.py")}
        job.expect(r"step \d+ of 2$", 2)
        shown = installed.run(tmp_path, "ftrun", "status")
        assert re.search(r"replicas +2 of 2", shown), shown
        tormented = installed.run(tmp_path, "ftrun", "chaos", "--kills", "1", "--mtbf", "100ms")
        assert "1 kill in " in tormented
        assert "; 1 replaced: median" in tormented
        job.expect("healed from replica")
        job.signal(signal.SIGTERM)
        assert job.end() == 75
        assert job.left() == []
