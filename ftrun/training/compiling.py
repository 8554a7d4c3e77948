"""Functions that torch.compile leaves as they are: ftrun's part of a forward pass or a step, which
asks peers.

``torch.compile(DistributedDataParallel(model))`` compiles what is called beneath it: the model is
to be compiled, and ftrun's own functions around it must run each time as they are written.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])

try:
    _frames: Any = torch._C._dynamo.eval_frame
    _AS_IT_IS = _frames._FrameExecStrategy(_frames._FrameAction.SKIP, _frames._FrameAction.DEFAULT)
    _set_strategy: Any = _frames.set_code_exec_strategy
except AttributeError:
    _set_strategy = None
_compiles: Any = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", None)
"""Gives this thread's compiler; None: nothing that runs in it now is compiled."""


def only_inside(function: F) -> F:
    """A function that runs as it is, and what it calls may be compiled.

    Names private to torch mark it for the compiler. Without them the public ones do, which import
    the compiler (1 s) and let it break its graph at each function of ftrun's that this one calls.
    """
    if _set_strategy is None:
        return torch.compiler.disable(function, recursive=False)  # type: ignore[no-any-return,no-untyped-call]
    _set_strategy(function.__code__, _AS_IT_IS)
    # torch's own mark: a compiled caller ends its graph before it calls.
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function


def never(function: F) -> F:
    """A function that runs as it is, with all that it calls.

    torch's own wrapper takes several microseconds, so it is used where something is compiled only:
    it is torch's name that tells so, and without that it is used at each call.
    """
    plain: list[Callable[..., Any]] = []

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if (_compiles is not None and _compiles() is None) or "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        if not plain:
            plain.append(torch.compiler.disable(function))  # type: ignore[no-untyped-call]
        return plain[0](*args, **kwargs)

    return only_inside(run)  # type: ignore[return-value]
