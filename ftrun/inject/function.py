"""Runs a function that a Python program has launched, as the target of a worker.

The worker gets the path and the arguments of that program. If the function, or an argument, is
defined in the program's main module, the worker runs this module under the name ``__mp_main__``, as
multiprocessing does, so that ``if __name__ == "__main__"`` is false in it.

Not here: the worker around it (bootstrap.py), the files (packed.py), the launch (launching/).
"""

from __future__ import annotations

import importlib.util
import io
import pickle
import sys
import types
from pathlib import Path
from typing import Any

from ftrun.base import packed
from ftrun.base.errors import UserError
from ftrun.base.packed import Surroundings
from ftrun.core.ids import WorkerKey
from ftrun.inject.zero_edit import headers


def run_function(key: WorkerKey, directory: Path) -> None:
    """Call the function that is packed in ``directory``, and write its value there."""
    around, data = packed.read_call(directory)
    sys.argv = around.argv
    sys.path[:] = around.path
    _renew_main(around)
    try:
        function, args, kwargs = pickle.loads(data)  # noqa: S301 - this user's program wrote it
    except Exception as error:
        raise UserError(
            "The function or an argument cannot be loaded in a worker "
            f"({type(error).__name__}: {error}). The modules that define them must be found there: "
            f"sys.path is {sys.path}."
        ) from error
    value = function(*args, **kwargs)
    packed.write_value(directory, key.incarnation, key.group_rank, value)


def _renew_main(around: Surroundings) -> None:
    """Set ``__main__`` to the launcher's main module if the call needs it, otherwise to an empty
    one."""
    if not (around.main_name or around.main_path):
        sys.modules["__main__"] = sys.modules["__mp_main__"] = types.ModuleType("__main__")
        return
    main = types.ModuleType("__mp_main__")
    main.__dict__.update(__builtins__=__builtins__)
    code = (
        _by_name(main, around.main_name) if around.main_name else _by_path(main, around.main_path)
    )
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main
    with packed.running_main():
        exec(code, main.__dict__)


def _by_name(main: types.ModuleType, name: str) -> types.CodeType:
    spec = importlib.util.find_spec(name)
    loader: Any = None if spec is None else spec.loader
    code = loader.get_code(name) if hasattr(loader, "get_code") else None
    if spec is None or code is None:
        raise ImportError(f"the main module {name!r} of the launching program is not found here")
    main.__dict__.update(__spec__=spec, __package__=spec.parent, __file__=spec.origin)
    assert isinstance(code, types.CodeType)
    return code


def _by_path(main: types.ModuleType, path: str) -> types.CodeType:
    main.__dict__.update(__file__=path, __cached__=None)
    with io.open_code(path) as file:
        source = file.read()
    return headers.compiled(source, path) or compile(source, path, "exec", dont_inherit=True)
