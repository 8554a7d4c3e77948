"""Which workers are interpreters of their own, by what their script's source sets."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest

from ftrun.config.script import Script, TargetKind
from ftrun.config.settings import RunSettings
from ftrun.config.starting import (
    FILES_MAX,
    Source,
    find,
    is_read_at_start,
    line,
    starts_fresh,
    why_exec,
)
from tests.unit.run_settings import run_settings

OMP = "OMP_NUM_THREADS"
SETS = f'import os\nos.environ["{OMP}"] = "1"\n'


def found(source: str, **beside: str) -> str:
    """What is found in a script with these modules beside it."""

    def look(parts: tuple[str, ...]) -> Source | None:
        name = ".".join(parts)
        if name not in beside:
            return None
        is_package = any(other.startswith(f"{name}.") for other in beside)
        return Source(f"{name}.py", beside[name].encode(), parts if is_package else parts[:-1])

    return find(Source("t.py", source.encode()), look)


@pytest.mark.parametrize(
    ("source", "where"),
    [
        (SETS + "import torch", f"{OMP} at t.py:2"),
        ('import os\nos.environ.setdefault("MKL_NUM_THREADS", "1")', "MKL_NUM_THREADS at t.py:2"),
        ('from os import environ as e\ne["KMP_BLOCKTIME"] = "0"', "KMP_BLOCKTIME at t.py:2"),
        ('import os\nos.environ.update({"TORCH_LOGS": "x"})', "TORCH_LOGS at t.py:2"),
        ('import os\nos.environ.update(PYTORCH_JIT="0")', "PYTORCH_JIT at t.py:2"),
        ('import os\nos.environ |= {"GOMP_SPINCOUNT": "0"}', "GOMP_SPINCOUNT at t.py:2"),
        ('import os\nos.putenv("ONEDNN_VERBOSE", "1")', "ONEDNN_VERBOSE at t.py:2"),
        ('import os\ndel os.environ["NPY_X"]\nimport numpy', "NPY_X at t.py:2"),
        ('import os\nos.environ.pop("BLIS_NUM_THREADS", None)', "BLIS_NUM_THREADS at t.py:2"),
        ('import os\nos.environ["OPENBLAS_X"] = "1"', "OPENBLAS_X at t.py:2"),
        ('import os\nfor n in ("X", "DNNL_VERBOSE"):\n    os.environ[n] = "1"',
         "DNNL_VERBOSE at t.py:2"),
        ('import os\nos.environ[f"TORCH_{x}"] = "1"', "TORCH_ at t.py:2"),
        ('import os\ndef f():\n    os.environ["ATEN_CPU_CAPABILITY"] = "avx2"\nf()\nimport torch',
         "ATEN_CPU_CAPABILITY at t.py:3"),
        ('import os\nif True:\n    import torch\nos.environ["KINETO_USE_DAEMON"] = "1"',
         "KINETO_USE_DAEMON at t.py:4"),
        # too late for torch, but not for its compiler
        ("import torch\n" + SETS, ""),
        ("from torch import nn\n" + SETS, ""),
        ("import torchvision\n" + SETS, ""),
        ('import torch, os\nos.environ["TORCHINDUCTOR_CACHE_DIR"] = "x"',
         "TORCHINDUCTOR_CACHE_DIR at t.py:2"),
        ('import torch, os\nos.environ["TORCH_COMPILE_DEBUG"] = "1"',
         "TORCH_COMPILE_DEBUG at t.py:2"),
        # only read
        (f'import os\nprint(os.environ["{OMP}"], os.environ.get("{OMP}"), os.getenv("{OMP}"))', ""),
        (f'import os\nprint("{OMP}" in os.environ)', ""),
        # read later, and so in a fork too
        ('import os\nos.environ["CUDA_VISIBLE_DEVICES"] = "0"\nos.environ["NCCL_DEBUG"] = "INFO"\n'
         'os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"\nos.environ["GLOO_SOCKET_IFNAME"] = "lo"\n'
         'os.environ["MASTER_PORT"] = "1"\nos.environ["TORCH_HOME"] = "x"\n'
         'os.environ["PYTORCH_ENABLE_MPS_FALLBACK"] = "1"', ""),
        (f'print("{OMP}")', ""),  # sets nothing at all
        ("os.environ[", ""),  # no Python: another check says so
    ],
)  # fmt: skip
def test_what_a_fork_would_miss(source: str, where: str) -> None:
    assert found(source) == where


@pytest.mark.parametrize(
    ("source", "beside", "where"),
    [
        ("import settings\nimport torch", {"settings": SETS}, f"{OMP} at settings.py:2"),
        ("import a.b", {"a": "", "a.b": SETS}, f"{OMP} at a.b.py:2"),
        ("from a import b", {"a": "", "a.b": SETS}, f"{OMP} at a.b.py:2"),
        ("import a", {"a": "from . import b", "a.b": SETS}, f"{OMP} at a.b.py:2"),
        ("import a", {"a": "from .b import x", "a.b": SETS}, f"{OMP} at a.b.py:2"),
        ("def main():\n    import a", {"a": SETS}, f"{OMP} at a.py:2"),
        ("import torch\nimport a", {"a": SETS}, ""),
        ("import model\n" + SETS, {"model": "import torch"}, ""),
        ("import a", {"a": "import b", "b": "import a\n" + SETS}, f"{OMP} at b.py:3"),
    ],
)
def test_modules_of_the_script_s_own(source: str, beside: dict[str, str], where: str) -> None:
    assert found(source, **beside) == where


def test_a_bounded_number_of_files_is_read() -> None:
    chain = {f"m{i}": f"import m{i + 1}" for i in range(100)} | {"m100": SETS}
    read: list[str] = []

    def look(parts: tuple[str, ...]) -> Source | None:
        read.append(parts[0])
        return Source(parts[0], chain[parts[0]].encode())

    assert find(Source("t.py", b"import m0"), look) == ""
    assert len(set(read)) == FILES_MAX


def of(
    directory: Path, *words: str, kind: TargetKind = TargetKind.FILE, start: str = "auto"
) -> RunSettings:
    """A run of these words, files in ``directory``."""
    target, *args = words
    if kind is not TargetKind.MODULE:
        target = str(directory / target)
    return replace(run_settings(start=start), script=Script(target, kind, tuple(args)))


def test_the_start_follows_the_script_and_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.py").write_text("import torch")
    (tmp_path / "sets.py").write_text("import own")
    (tmp_path / "own.py").write_text(SETS)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "train.py").write_text("from . import early\nimport torch")
    (tmp_path / "package" / "early.py").write_text(SETS)
    assert not starts_fresh(of(tmp_path, "plain.py", "x.py"), {})
    assert starts_fresh(of(tmp_path, "plain.py", start="exec"), {})
    assert line(of(tmp_path, "plain.py", start="exec"), {}) == ""
    told = of(tmp_path, "sets.py")
    assert starts_fresh(told, {})
    assert "OMP_NUM_THREADS at own.py:2" in line(told, {})
    forked = of(tmp_path, "sets.py", start="fork")
    assert not starts_fresh(forked, {}) and "forked nevertheless" in line(forked, {})
    hurried = replace(told, standbys=1, preload=("math",))
    assert "`import torch`, also with --standby and --preload." in line(hurried, {})
    module = of(tmp_path, "package.train", kind=TargetKind.MODULE)
    assert "OMP_NUM_THREADS at package/early.py:2" in why_exec(module, {})
    assert why_exec(of(tmp_path, "sets.py", kind=TargetKind.COMMAND, start="exec"), {}) == ""
    assert "PYTHONPROFILEIMPORTTIME" in why_exec(
        of(tmp_path, "plain.py"), {"PYTHONPROFILEIMPORTTIME": "1"}
    )


@pytest.mark.parametrize(
    ("words", "is_fresh"),
    [
        (("coverage", "run", "-p", "train.py"), True),
        (("pdb", "train.py"), True),
        (("cProfile", "-o", "x", "-m", "package.train"), True),
        (("own_tool", "train.py"), False),  # the user's own module is a script like others
        (("calendar", "2026"), False),  # runs nothing else
    ],
)
def test_tools_that_run_another_script(
    words: tuple[str, ...], is_fresh: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_tool.py").write_text("import torch")
    settings = of(tmp_path, *words, kind=TargetKind.MODULE)
    assert starts_fresh(settings, {}) is is_fresh
    assert (f"-m {words[0]} runs another script" in line(settings, {})) is is_fresh


def test_a_tool_s_own_command_counts_as_its_module(tmp_path: Path) -> None:
    tool = Path(sysconfig.get_path("scripts")) / "coverage"
    settings = replace(run_settings(), script=Script(str(tool), args=("run", "train.py")))
    assert starts_fresh(settings, {})
    assert not starts_fresh(replace(settings, script=Script(str(tool), args=("report",))), {})


READS = """
import os
kind, names = type(os.environ), set()
plain, contains = kind.__getitem__, kind.__contains__
kind.__getitem__ = lambda self, name: names.add(name) or plain(self, name)
kind.__contains__ = lambda self, name: names.add(name) or contains(self, name)
import torch
print(*sorted(names))
"""


def test_what_torch_itself_reads_when_it_is_loaded_is_known() -> None:
    done = subprocess.run(
        [sys.executable, "-c", READS], capture_output=True, text=True, timeout=300, check=True
    )
    names = [
        name for name in done.stdout.split() if name.startswith(("TORCH", "PYTORCH", "KINETO"))
    ]
    assert len(names) > 10
    assert [name for name in names if not is_read_at_start(name)] == []
