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
    _SKIP, _DEFAULT = _frames._FrameAction.SKIP, _frames._FrameAction.DEFAULT
    _AS_IT_IS = _frames._FrameExecStrategy(_SKIP, _DEFAULT)
    _WITH_ALL = _frames._FrameExecStrategy(_SKIP, _SKIP)
    _set_strategy: Any = _frames.set_code_exec_strategy
except AttributeError:
    _set_strategy = None


def only_inside(function: F) -> F:
    """A function that runs as it is, and what it calls may be compiled.

    Names private to torch mark it for the compiler. Without them the public ones do, which import
    the compiler (1 s) and let it break its graph at each function of ftrun's that this one calls.
    """
    if _set_strategy is None:
        return torch.compiler.disable(function, recursive=False)  # type: ignore[no-any-return,no-untyped-call]
    return _marked(function, _AS_IT_IS)


def never(function: F) -> F:
    """A function that runs as it is, with all that it calls.

    It is marked in the same way, because torch's own wrapper takes several microseconds a call.
    """
    if _set_strategy is None:
        return torch.compiler.disable(function)  # type: ignore[no-any-return,no-untyped-call]
    return _marked(function, _WITH_ALL)


def _marked(function: F, strategy: Any) -> F:
    plain: Any = getattr(function, "__func__", function)
    _set_strategy(plain.__code__, strategy)
    # torch's own mark: a compiled caller ends its graph before it calls.
    plain._torchdynamo_disable = True
    return function
