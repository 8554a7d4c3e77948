"""Watches an open script before its form is known: whether it reads its rank, or names ftrun.

An open script begins with ``RANK`` and ``WORLD_SIZE`` of all replicas. If it turns out to be
explicit, it gets the values of its own group instead, and a value that it has read before is wrong.
Only reads by the script's own code count. Python's ``os.environ`` is watched, not the C library's
environment.

A script in an interpreter of its own begins without torch; its reads count from its first line. If
it names one of ftrun's classes, torch is imported before the name is looked up, and with torch the
code that watches the script (attaching.py). Nothing here imports torch otherwise.

Not here: what follows from it (attaching.py), the values (agent/environment.py).
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from types import FrameType, ModuleType
from typing import Any, cast

import ftrun
from ftrun.inject.zero_edit.frames import is_script, site_of

_MAPPINGS = (os.__file__, "<frozen os>", "_collections_abc")

EXPLICIT_NAMES = frozenset(
    {"CheckpointTransport", "DistributedDataParallel", "DistributedSampler", "GradScaler"}
    | {"HTTPTransport", "ManagedProcessGroup", "Manager", "Optimizer", "OptimizerWrapper"}
    | {"ProcessGroupGloo", "ProcessGroupNCCL", "PureDistributedDataParallel", "manager"}
    | {"ElasticLoader", "ElasticSampler", "replicate"}
)
"""Names of ``ftrun`` that only explicit scripts use."""


class _Watched(dict[bytes, bytes]):
    """The data of ``os.environ``, which notes the first read of a form's variable."""

    def __init__(self, data: dict[bytes, bytes], variables: Variables) -> None:
        super().__init__(data)
        self._variables = variables
        self._names = frozenset(os.fsencode(name) for name in variables.other)

    def __getitem__(self, key: bytes) -> bytes:
        known = self._variables
        if key in self._names and not known.read_at:
            reader = _reader(os.fsdecode(key))
            if reader and known.are_several and has_imported_ftrun():
                importlib.import_module("torch")  # attaching.py sees it from then on
                known.on_read()
                now: Any = getattr(os.environ, "_data")  # noqa: B009 - the stub does not have it
                if now is not self:  # the script has become explicit, with other values
                    return cast(bytes, now[key])
            known.read_at = reader
        return super().__getitem__(key)


class Variables:
    """The variables of an open script.

    Args:
        open_form, explicit: a worker's environment variables in each form.
        are_several: a replica has several workers. A script that has imported ftrun is then
            explicit when it reads its rank.

    Attributes:
        other: the names of the variables that differ between the forms.
        read_at: the first read of one of them, as ``RANK at train.py:3``; "": none.
        on_read: called before the first such read, if the script has imported ftrun and
            ``are_several``.
        on_name: called with each of ``EXPLICIT_NAMES`` that the script uses. Both callbacks may
            decide the form.
    """

    def __init__(
        self,
        open_form: Mapping[str, str],
        explicit: Mapping[str, str],
        *,
        are_several: bool = False,
    ) -> None:
        self._explicit, self.are_several = explicit, are_several
        self.read_at = ""
        self.on_read: Callable[[], None] = lambda: None
        self.on_name: Callable[[str], None] = lambda name: None
        self._plain = vars(ftrun)["__getattr__"]
        self.other = frozenset(
            name
            for name in open_form.keys() | explicit.keys()
            if open_form.get(name) != explicit.get(name)
        )
        self._watched = self._watch()

    def watch_names(self) -> None:
        """Watch which names of ``ftrun`` the script uses."""
        vars(ftrun)["__getattr__"] = self._look_up

    def _look_up(self, name: str) -> Any:
        if name in EXPLICIT_NAMES:
            importlib.import_module("torch")  # attaching.py sees it from then on
            self.on_name(name)
        return self._plain(name)

    def become_explicit(self) -> None:
        """Set the environment variables of the explicit form."""
        self.stop_watching()
        vars(ftrun)["__getattr__"] = self._plain
        for name in self.other:
            if name in self._explicit:
                os.environ[name] = self._explicit[name]
            else:
                os.environ.pop(name, None)

    def stop_watching(self) -> None:
        """Stop watching ``os.environ``, because the form is known."""
        if self._watched is not None:
            self._replace(dict(self._watched))

    def _watch(self) -> _Watched | None:
        environ: Any = os.environ
        data: dict[bytes, bytes] = getattr(environ, "_data", {})
        if type(data) is not dict or getattr(os.environb, "_data", None) is not data:
            return None  # an unknown implementation of ``os.environ``: no read is noticed
        watched = _Watched(data, self)
        self._replace(watched)
        return watched

    def _replace(self, data: dict[bytes, bytes]) -> None:
        environ: Any = os.environ
        environb: Any = os.environb
        environ._data = environb._data = data


def _reader(name: str) -> str:
    """The script's line that reads the variable; "": other code reads it."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and any(x in frame.f_code.co_filename for x in _MAPPINGS):
        if frame.f_code.co_name == "__contains__":
            return ""  # the variables are set in both forms
        frame = frame.f_back
    if frame is None or not is_script(frame.f_code.co_filename):
        return ""
    return f"{name} at {site_of(frame)}"


def has_imported_ftrun() -> bool:
    """Whether a module of the script has ``ftrun``, or a submodule of it, as a global name.

    ``import torchft`` does not count: see ``torchft_names.ON_USE``.
    """
    looks = f"{ftrun.__name__}.torchft" if "torchft" in sys.modules else ""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and is_script(file):
            for value in list(vars(module).values()):
                is_module = issubclass(type(value), ModuleType)  # runs no code of the value
                name = value.__name__ if is_module else ""
                if name.partition(".")[0] == ftrun.__name__ and name != looks:
                    return True
    return False
