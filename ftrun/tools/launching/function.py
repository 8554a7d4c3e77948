"""Packs a function and its arguments for workers, which are not children of this process.

A function of a module is sent by its name. So is a function of the program's main module, and the
worker runs that module again. A function without an importable name (a lambda, a nested function, a
notebook's cell) is sent by value if ``cloudpickle`` is installed.

Not here: the files (packed.py), the call in a worker (inject/function.py).
"""

from __future__ import annotations

import functools
import importlib
import os
import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ftrun.base.errors import UserError
from ftrun.base.packed import Surroundings

OF_NO_FILE = "it is, or needs, part of a notebook or an interactive session"


@dataclass(frozen=True, slots=True)
class PackedCall:
    """A call as its workers receive it. ``name``: for people; ``source``: the file of its
    module."""

    name: str
    source: str
    around: Surroundings
    data: bytes


def pack(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> PackedCall:
    """Pack the call ``function(*args, **kwargs)``.

    Raises:
        UserError: it has no name that a worker can import, or an argument cannot be pickled.
    """
    if not callable(function):
        raise UserError(f"{function!r} is not a function. Nothing was started.")
    call = (function, tuple(args), dict(kwargs))
    main_name, main_path = _main_module()
    try:
        data = pickle.dumps(call, pickle.HIGHEST_PROTOCOL)
        why = "" if main_name or main_path or not _needs_main(data) else OF_NO_FILE
    except Exception as error:  # noqa: BLE001 - whatever the arguments' own methods raise
        why = str(error)
    if why:
        data = _by_value(call, why)
    needs = _needs_main(data) and bool(main_name or main_path)
    around = Surroundings(
        path=[entry or os.getcwd() for entry in sys.path],
        argv=list(sys.argv),
        main_name=main_name if needs else "",
        main_path=main_path if needs else "",
    )
    return PackedCall(_name(function), _source(function), around, data)


def _needs_main(data: bytes) -> bool:
    """Whether it refers to the main module, also if this program is a worker (``__mp_main__``)."""
    return b"__main__" in data or b"__mp_main__" in data


def _main_module() -> tuple[str, str]:
    """The main module's name (``python -m``), or its file; two empty texts: it has neither."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return spec.name, ""
    path = getattr(main, "__file__", None) or ""
    if path.endswith((".py", ".pyw")) or (path and "." not in os.path.basename(path)):
        path = os.path.abspath(path)
        return ("", path) if os.path.isfile(path) else ("", "")
    return "", ""


def _by_value(call: Any, why: str) -> bytes:
    try:
        cloudpickle = importlib.import_module("cloudpickle")
    except ImportError:
        raise UserError(
            f"{_name(call[0])} cannot be sent to the workers: {why}. Nothing was started. Define "
            "it at the top of a module or script, or `pip install cloudpickle`, which also sends "
            "lambdas, inner functions and cells of a notebook."
        ) from None
    try:
        data: bytes = cloudpickle.dumps(call, pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # noqa: BLE001 - whatever the arguments' own methods raise
        raise UserError(
            f"{_name(call[0])} or one of its arguments cannot be sent to the workers "
            f"({type(error).__name__}: {error}). Nothing was started. Pass plain data, and make "
            "what cannot be pickled inside the function."
        ) from None
    return data


def _inner(function: Any) -> Any:
    """The function inside partials and methods."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__func__", function)


def _name(function: Any) -> str:
    inner = _inner(function)
    kind = type(inner)
    name = getattr(inner, "__qualname__", kind.__qualname__)
    return f"{getattr(inner, '__module__', kind.__module__)}:{name}"


def _source(function: Any) -> str:
    module = sys.modules.get(getattr(_inner(function), "__module__", "") or "")
    return getattr(module, "__file__", "") or ""
