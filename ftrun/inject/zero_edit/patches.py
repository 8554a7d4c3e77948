"""Applies patches to torch's classes and modules, and removes them again.

Not here: the patches themselves (models.py, stepping.py, loaders.py, counting.py, world.py).
"""

from __future__ import annotations

import ctypes
import functools
import importlib.machinery
import inspect
import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

_ABSENT = object()
_WITH_KEYWORDS = 3
"""Python's METH_VARARGS and METH_KEYWORDS."""


class Patches:
    """The patched attributes of classes and modules; ``undo`` restores them."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Set ``owner.name`` to ``value``."""
        self._before.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def around(self, owner: Any, name: str, ours: Callable[..., Any], *also: Any) -> None:
        """Replace a function or a method by ``ours``, called with the plain one and the arguments.

        ``also``: other modules that have the function under this name.
        """
        stand_in = around(getattr(owner, name), ours)
        if inspect.isclass(owner) and name not in vars(owner):
            # pickle finds a function by its names; the inherited ones lead to the plain function
            stand_in.__module__, stand_in.__qualname__ = (
                owner.__module__,
                f"{owner.__qualname__}.{name}",
            )
        for one in (owner, *also):
            self.put(one, name, stand_in)

    def after(self, owner: Any, name: str, note: Callable[[Any], None]) -> None:
        """Call ``note`` with the object each time a method of the class ``owner`` has returned."""

        def method(plain: Callable[..., None], made: Any, *args: Any, **kwargs: Any) -> None:
            plain(made, *args, **kwargs)
            note(made)

        self.around(owner, name, method)

    def when_imported(self, name: str, call: Callable[[Any], None]) -> None:
        """Call ``call(module)`` once the module ``name`` is imported, before its importer runs on.

        This does not import the module, because some parts of torch take half a second. ``undo``
        cancels a pending call; it does not undo the effects of ``call``.
        """
        if name in sys.modules:
            call(sys.modules[name])
            return
        loader: Any = importlib.machinery.SourceFileLoader
        plain = loader.exec_module

        def exec_module(self: Any, module: Any) -> None:
            plain(self, module)
            if module.__name__ == name:
                call(module)

        self.put(loader, "exec_module", unseen(exec_module))

    def undo(self) -> None:
        """Restore all attributes, the newest first."""
        while self._before:
            owner, name, before = self._before.pop()
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


def unseen(imports: Any) -> Any:
    """``imports``, which calls a part of Python's importer: tracebacks leave it out as they do that
    one's own frames, which they know by their file."""
    file = importlib.machinery.SourceFileLoader.get_data.__code__.co_filename
    imports.__code__ = imports.__code__.replace(co_filename=file)
    return imports


class _Definition(ctypes.Structure):
    """Python's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("call", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_DEFINITIONS: list[_Definition] = []  # kept alive, because Python keeps pointers to them


def built_in(ours: ModuleType, plain: Any) -> Any:
    """A built-in function that calls ``ours``, in place of the built-in ``plain``.

    Scripts compare types: ``type(print) == type(open)``. ``ours`` is a callable module, because
    ``plain`` is bound to a module: so pickle finds the function by name.
    """
    doc = f"{plain.__name__}{plain.__text_signature__}\n--\n\n{plain.__doc__}"
    call = ctypes.cast(ctypes.pythonapi.PyObject_Call, ctypes.c_void_p)
    made = _Definition(plain.__name__.encode(), call, _WITH_KEYWORDS, doc.encode())
    _DEFINITIONS.append(made)
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype = ctypes.py_object
    make.argtypes = ctypes.POINTER(_Definition), ctypes.py_object, ctypes.py_object
    return make(made, ours, ours.__name__)


def around(plain: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    """A function in place of ``plain``: it calls ``ours`` with ``plain`` and the arguments.

    A keyword argument with the name of a parameter of ``plain`` is passed to ``ours`` by position,
    because ``ours`` may have another name for it.
    """
    names = _names(plain)[: max(0, len(_names(ours)) - 1)]

    @functools.wraps(plain)
    def stand_in(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            for name in names[len(args) :]:
                if name not in kwargs:
                    break
                args = *args, kwargs.pop(name)
        return ours(plain, *args, **kwargs)

    return stand_in


def _names(function: Callable[..., Any]) -> list[str]:
    """The names of the parameters that can be passed by position, in order."""
    by_place = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    plain = getattr(function, "__func__", function)
    if type(plain) is FunctionType and not vars(plain):  # faster than its signature
        names = plain.__code__.co_varnames[: plain.__code__.co_argcount]
        return [*names[plain is not function :]]
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # a C function without a signature
        return []
    return [parameter.name for parameter in parameters if parameter.kind in by_place]


def around_everywhere(module: Any, name: str, ours: Callable[..., Any]) -> None:
    """Replace a function of ``module`` permanently, in all modules that have it: see ``around``."""
    plain = getattr(module, name)
    stand_in = around(plain, ours)
    setattr(module, name, stand_in)
    for one in holders(name, plain):
        setattr(one, name, stand_in)


def holders(name: str, value: Any) -> list[Any]:
    """The modules that have ``value`` under this name."""
    every = list(sys.modules.values())
    return [one for one in every if getattr(one, "__dict__", {}).get(name) is value]
