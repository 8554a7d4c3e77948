"""Functions that torch.compile leaves as they are: ftrun's part of a forward pass or a step, which
asks peers.

``torch.compile(DistributedDataParallel(model))`` compiles what is called beneath it: the model is
to be compiled, and ftrun's own functions around it must run each time as they are written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])

try:
    _frames: Any = torch._C._dynamo.eval_frame
    _skip, _default = _frames._FrameAction.SKIP, _frames._FrameAction.DEFAULT
    _ITSELF = _frames._FrameExecStrategy(_skip, _default)
    _WITH_ALL = _frames._FrameExecStrategy(_skip, _skip)
    _set_strategy: Any = _frames.set_code_exec_strategy
except AttributeError:
    _ITSELF = _WITH_ALL = _set_strategy = None


def only_inside(function: F) -> F:
    """A function that runs as it is, and what it calls may be compiled.

    Names private to torch mark it for the compiler. Without them the public ones do, which import
    the compiler (1 s) and let it break its graph at each function of ftrun's that this one calls.
    """
    return _marked(function, _ITSELF, recursive=False)


def never(function: F) -> F:
    """A function that runs as it is, with all that it calls.

    It is marked too, because a wrapper of torch's own takes several microseconds at each call.
    """
    return _marked(function, _WITH_ALL, recursive=True)


def _marked(function: F, strategy: Any, *, recursive: bool) -> F:
    if _set_strategy is None:
        return torch.compiler.disable(function, recursive=recursive)  # type: ignore[no-any-return,no-untyped-call]
    plain: Any = getattr(function, "__func__", function)  # of a bound method
    _set_strategy(plain.__code__, strategy)
    # torch's own mark: a compiled caller ends its graph before it calls.
    plain._torchdynamo_disable = True
    return function
