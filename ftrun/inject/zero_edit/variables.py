"""What an open script does before its form is known: does it read a variable, or name ftrun?

An open script begins with ``RANK`` and ``WORLD_SIZE`` of all replicas. If it turns out to be
explicit, its own group's values hold instead, and one that was read before is wrong. Only reads by
the script's own code count: it is Python's ``os.environ`` that is watched, not the C library's.

An interpreter of its own begins without torch, and its reads count from its first line on. If the
script names one of ftrun's classes first, torch is imported before the name is looked up, and with
it all that watches the script (attaching.py). Nothing here imports torch otherwise.

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
"""Names of ``ftrun`` that only a script with a Manager uses."""


class _Watched(dict[bytes, bytes]):
    """The data of ``os.environ``, which notes who reads some of it."""

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
                if now is not self:  # the script is explicit, and has other values
                    return cast(bytes, now[key])
            known.read_at = reader
        return super().__getitem__(key)


class Variables:
    """The variables of an open script.

    Args:
        open_form, explicit: what a worker's environment has in each form.
        are_several: a replica has several workers: then a script that has imported ftrun is
            explicit when it reads its rank.

    Attributes:
        other: the names of those that differ.
        read_at: the first read of one, as ``RANK at train.py:3``; "": none.
        on_read: called before the first such read, if the script has imported ftrun; ``on_name``:
            with each of EXPLICIT_NAMES that it asks for. The form may be found in them.
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
        """See what the script asks ftrun for."""
        vars(ftrun)["__getattr__"] = self._look_up

    def _look_up(self, name: str) -> Any:
        if name in EXPLICIT_NAMES:
            importlib.import_module("torch")  # attaching.py sees it from then on
            self.on_name(name)
        return self._plain(name)

    def become_explicit(self) -> None:
        """Set the values of the explicit form."""
        self.stop_watching()
        vars(ftrun)["__getattr__"] = self._plain
        for name in self.other:
            if name in self._explicit:
                os.environ[name] = self._explicit[name]
            else:
                os.environ.pop(name, None)

    def stop_watching(self) -> None:
        """The form is found."""
        if self._watched is not None:
            self._replace(dict(self._watched))

    def _watch(self) -> _Watched | None:
        environ: Any = os.environ
        data: dict[bytes, bytes] = getattr(environ, "_data", {})
        if type(data) is not dict or getattr(os.environb, "_data", None) is not data:
            return None  # another Python than those that are known: no read is seen
        watched = _Watched(data, self)
        self._replace(watched)
        return watched

    def _replace(self, data: dict[bytes, bytes]) -> None:
        environ: Any = os.environ
        environb: Any = os.environb
        environ._data = environb._data = data


def _reader(name: str) -> str:
    """The script's line that reads the variable; "": other code does."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and any(x in frame.f_code.co_filename for x in _MAPPINGS):
        if frame.f_code.co_name == "__contains__":
            return ""  # it is set in both forms
        frame = frame.f_back
    if frame is None or not is_script(frame.f_code.co_filename):
        return ""
    return f"{name} at {site_of(frame)}"


def has_imported_ftrun() -> bool:
    """Whether a module of the script has ftrun, or a module of it, among its names.

    ``import torchft`` alone is none: see ``torchft_names.ON_USE``.
    """
    looks = f"{ftrun.__name__}.torchft" if "torchft" in sys.modules else ""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and is_script(file):
            for value in list(vars(module).values()):
                is_module = issubclass(type(value), ModuleType)  # asks the value for nothing
                name = value.__name__ if is_module else ""
                if name.partition(".")[0] == ftrun.__name__ and name != looks:
                    return True
    return False
