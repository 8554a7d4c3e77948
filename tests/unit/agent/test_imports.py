"""The spawner's imports, in processes of their own."""

from __future__ import annotations

import subprocess
import sys

LIMIT_S = 180.0


def run(source: str) -> str:
    command = [sys.executable, "-c", source]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_worker_of_a_ready_spawner_imports_nothing_for_its_certificate() -> None:
    assert (
        run(
            """
import sys
from ftrun.agent.imports import Imports
from ftrun.base.linux import thread_count
import ftrun.checkpoint.serve
threads = thread_count()
Imports().make_ready_for_tls()
assert thread_count() == threads  # the spawner may still fork
before = set(sys.modules)
server = ftrun.checkpoint.serve.StateServer("127.0.0.1", "5" * 64, tls=True)
print(len(server.certificate), set(sys.modules) - before)
server.close()
"""
        )
        == "64 set()"
    )


def test_two_forks_of_a_ready_spawner_have_unlike_certificates() -> None:
    shown = run(
        """
import os
from ftrun.agent.imports import Imports
Imports().make_ready_for_tls()
from ftrun.checkpoint.tls import ServerIdentity
for _ in range(3):
    if os.fork() == 0:
        print(ServerIdentity().fingerprint, flush=True)
        os._exit(0)
    os.wait()
"""
    )
    assert len(set(shown.split())) == 3


def test_who_heals_without_tls_imports_nothing_for_it() -> None:
    assert (
        run(
            """
import sys
import ftrun.training.manager
from ftrun.checkpoint.heal import fetch
from ftrun.checkpoint.serve import StateServer
from ftrun.core.ids import Attempt, StateId, Tag
server, tag = StateServer("127.0.0.1", "5" * 64), Tag(Attempt(8, 1), 10)
server.offer(tag, StateId(10, "ab"), {"step": 10})
assert fetch([server.address], tag, "5" * 64, 60).tree == {"step": 10}
server.close()
print("cryptography" in sys.modules, "ftrun.checkpoint.tls" in sys.modules)
"""
        )
        == "False False"
    )


def test_late_imports_leave_variables_where_the_kernel_shows_them() -> None:
    """Else a worker forked after them could not be marked, nor found by its mark (P1, P3)."""
    source = """
import ctypes, os
os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)  # torch sets it again itself
getenv = ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_void_p
before = {name: getenv(name.encode()) for name in os.environ}
from ftrun.agent.imports import Imports, import_first
import_first()
Imports().finish()
print([name for name in before if getenv(name.encode()) != before[name]])
"""
    assert run(source) == "[]"


def test_late_imports_leave_no_variables_behind() -> None:
    source = """
import os
os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)
from ftrun.agent.imports import Imports, import_first
import_first()
before = dict(os.environ)
imports = Imports()
imports.finish()
import sys
from torch._inductor.runtime.cache_dir_utils import cache_dir
assert dict(os.environ) == before, set(os.environ.items()) ^ set(before.items())
os.environ["TORCHINDUCTOR_CACHE_DIR"] = "/tmp"
print("kept", cache_dir())
"""
    assert run(source) == "kept /tmp"


def test_what_only_ftrun_loads_of_python_is_known() -> None:
    """A script may have a module of that name: it does under torchrun, which loads none."""
    assert (
        run(
            """
import importlib, pkgutil, sys
import torch.distributed, numpy
def loaded():
    names = {name.partition(".")[0] for name in sys.modules} & sys.stdlib_module_names
    return {name for name in names if hasattr(sys.modules[name], "__file__")}
before = loaded()
from ftrun.agent import imports, spawner
from ftrun.inject import bootstrap
from ftrun.inject.zero_edit import loop
for name in imports.LATE:
    importlib.import_module(name)
found = {name for name in loaded() - before if not name.startswith("_")}
found -= set(sys.builtin_module_names)
print(sorted(found - set(bootstrap.LOADED_FOR_US)))
"""
        )
        == "[]"
    )
