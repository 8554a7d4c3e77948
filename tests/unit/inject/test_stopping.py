"""A worker that is asked to stop, by a script that asks itself: what it is told, and where."""

from __future__ import annotations

import pytest

from tests.unit.inject.forked import run_each

ASKS = """\
import os, signal, sys, time
from ftrun.inject.stopping import STOP_SIGNAL
from ftrun.training import context
def ask():
    os.kill(os.getpid(), STOP_SIGNAL)
def wait_to_be_stopped():
    deadline = time.monotonic() + 50
    while time.monotonic() < deadline:
        time.sleep(0.01)
    print("was not stopped")
"""
"""The deadline turns a hang into a failure; nothing waits for it to pass."""

OPTIMIZER = """
import torch
weight = torch.nn.Parameter(torch.ones(1))
weight.grad = torch.ones(1)
optimizer = torch.optim.SGD([weight], lr=1.0)
optimizer.register_step_pre_hook(lambda *_: ask())
try:
    optimizer.step()
    wait_to_be_stopped()
finally:
    print("weight", weight.item())
"""
CHECKPOINT = """
import torch
class Asks:
    def __reduce__(self):
        ask()
        return str, ("whole",)
try:
    torch.save({"asks": Asks(), "more": list(range(1000))}, "checkpoint.pt")
    wait_to_be_stopped()
finally:
    print(torch.load("checkpoint.pt", weights_only=False)["asks"])
"""
FUTURE = """
import torch
class Asks:
    def __reduce__(self):
        ask()
        return str, ("whole",)
from torch._jit_internal import _extract_tensors  # a future asks it for the tensors in its value
later = torch.futures.Future()
after = later.then(lambda _: ask() or 2)
later.set_result(1)
_extract_tensors(Asks())
print("whole", after.value())
wait_to_be_stopped()
"""
FTRUN = """
import ftrun
own = os.path.join(os.path.dirname(ftrun.__file__), "core", "nowhere.py")
exec(compile("def half():\\n    ask()\\n    done.append(1)\\n", own, "exec"), globals())
done = []
try:
    half()
    wait_to_be_stopped()
finally:
    print("done", done)
"""
SAVES = """
import atexit
def save():
    ask()
    print("saved all")
atexit.register(save)
"""

SCRIPTS: dict[str, tuple[str, list[str]]] = {
    "a plain script runs its finally, and ends as if by SIGTERM": (
        """
try:
    ask()
    print("goes on")
except Exception:
    print("swallowed")
finally:
    print("saved", context.stop_requested())
""",
        ["saved True", "status 143"],
    ),
    "a script that has set SIGTERM gets it, once": (
        """
signal.signal(signal.SIGTERM, lambda number, frame: print("got", signal.Signals(number).name))
ask()
ask()
print("goes on")
""",
        ["got SIGTERM", "goes on", "status 0"],
    ),
    "a script that ignores SIGTERM goes on": (
        """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
ask()
print("goes on")
""",
        ["goes on", "status 0"],
    ),
    "SIGTERM and SIGINT are the script's own": (
        """
print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
print(signal.getsignal(signal.SIGINT) in (signal.default_int_handler, signal.SIG_IGN))  # of a & job
os.kill(os.getpid(), signal.SIGTERM)
wait_to_be_stopped()
""",
        ["True", "True", "status -15"],
    ),
    "a Manager that trains is told first, and leaves where it stands at the second request": (
        """
from ftrun.errors import UserError
def leave():
    print("leaves")
    raise UserError("as Drained would")
context.Process.leave = leave
print("before", context.stop_requested())
ask()
print("first", context.stop_requested())
try:
    ask()
    print("goes on")
except UserError:
    print("saved")
""",
        ["before False", "first True", "leaves", "saved", "status 0"],
    ),
    "a script whose Manager has left saves on": (
        """
context.Process.leave = lambda: None
ask()
ask()
print("saves on")
""",
        ["saves on", "status 0"],
    ),
    "a Manager that is closed is none": (
        """
here = context.current().key
context.claim(here)
context.Process.leave = lambda: print("never")
context.release(here)
try:
    ask()
finally:
    print("saved")
""",
        ["saved", "status 143"],
    ),
    "a child of the script is not asked": (
        """
pid = os.fork()
if pid == 0:
    ask()
    print("child goes on", flush=True)
    os._exit(7)
print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
""",
        ["child goes on", "child 7", "status 0"],
    ),
    "an optimizer's step is not left by halves": (OPTIMIZER, ["weight 0.0", "status 143"]),
    "a checkpoint is not left by halves": (CHECKPOINT, ["whole", "status 143"]),
    "a callback of a future does not turn it into an error": (FUTURE, ["whole 2", "status 143"]),
    "ftrun itself is not left by halves": (FTRUN, ["done [1]", "status 143"]),
    "an exit handler is not disturbed": (SAVES + "", ["saved all", "status 0"]),
    "an exit handler of a script that has raised is not disturbed": (
        SAVES + "raise ValueError('no')",
        ["saved all", "status 1"],
    ),
    "an exit handler of a script that has left is not disturbed": (
        SAVES + "raise SystemExit(3)",
        ["saved all", "status 3"],
    ),
}


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What each script has printed, and how it has ended."""
    sources = {name: ASKS + source for name, (source, _) in SCRIPTS.items()}
    return run_each(tmp_path_factory.mktemp("stopping"), sources)


@pytest.mark.parametrize("name", SCRIPTS)
def test_where_a_request_to_stop_is_met(name: str, printed: dict[str, list[str]]) -> None:
    assert printed[name] == SCRIPTS[name][1]
