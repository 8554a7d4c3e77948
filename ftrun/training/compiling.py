"""Excludes ftrun's part of a pass or a step, which talks to peers, from torch.compile.

``torch.compile(DistributedDataParallel(model))`` compiles everything that is called beneath. The
model must be compiled, but ftrun's own functions around it must run as written in each call.
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
    """Exclude a function from compilation, but not the functions that it calls.

    The mark uses private names of torch. If they are missing, torch's public decorators are used.
    Those import the compiler (1 s) and break the graph at each function of ftrun that is called
    inside.
    """
    return _marked(function, _ITSELF, recursive=False)


def never(function: F) -> F:
    """Exclude a function from compilation, with everything that it calls.

    This too is a mark, because torch's own wrapper costs several microseconds per call.
    """
    return _marked(function, _WITH_ALL, recursive=True)


def _marked(function: F, strategy: Any, *, recursive: bool) -> F:
    if _set_strategy is None:
        return torch.compiler.disable(function, recursive=recursive)  # type: ignore[no-any-return,no-untyped-call]
    plain: Any = getattr(function, "__func__", function)  # for a bound method
    _set_strategy(plain.__code__, strategy)
    # torch's own mark: a compiled caller breaks its graph before the call.
    plain._torchdynamo_disable = True
    return function
