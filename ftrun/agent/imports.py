"""The spawner's imports: before the first message, on demand, and while the spawner is idle.

The modules that torch imports late cost a script more than a second if its workers import them at
the same time. Such a script therefore starts after these imports; for other scripts the spawner
imports them while it is idle. The garbage collector, which takes a tenth of the time, is off during
imports. Not here: forking.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
from collections.abc import Callable, Iterator

from ftrun.inject.zero_edit import headers

FIRST = ("numpy", "torch", "torch.distributed")
LATE = (
    # Imported by torch at the first DistributedDataParallel: 823 modules in 1.1 s.
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint",
    "ftrun.protocol.frames",
    "ftrun.process_groups",
    "ftrun.checkpoint.serve",
    "ftrun.training.manager",
    "ftrun.inject.zero_edit.attaching",  # 52 modules, 50 ms of each start of an unmodified script
    "ftrun.inject.zero_edit.one_group",
)


class Unimportable(Exception):
    """A module that the job needs cannot be imported; the text has the exception."""


def import_first() -> None:
    """Import the modules that every job needs.

    Raises:
        Unimportable: one of them, or a library that it needs, cannot be imported.
    """
    with _collecting_nothing():
        for name in FIRST:
            try:
                importlib.import_module(name)
            except Exception as error:  # torch raises what the loader of its libraries raises
                why = f"{name} cannot be imported: {type(error).__name__}: {error}"
                raise Unimportable(
                    f"{why}. To see it without ftrun: {sys.executable} -c 'import {name}'"
                ) from error


class Imports:
    """The modules that the spawner still has to import."""

    def __init__(self) -> None:
        self._late = list(LATE)

    @property
    def are_done(self) -> bool:
        return not self._late

    def preload(self, names: tuple[str, ...]) -> None:
        """Import the user's modules.

        Raises:
            Unimportable: one of them cannot be imported.
        """
        headers.install(is_on=True)  # an unmodified script may run their loops
        with _collecting_nothing():
            here = os.getcwd()
            sys.path.insert(0, here)  # as for `python -m`
            for name in names:
                try:
                    importlib.import_module(name)
                except Exception as error:  # the user's module: whatever it raises
                    reason = f"--preload {name}: {type(error).__name__}: {error}"
                    raise Unimportable(reason) from error
            sys.path.remove(here)

    def make_ready_for_tls(self) -> None:
        """Make one certificate here, so that no worker has to pay for the first one in a process.

        This saves each worker 60 ms of imports and 25 ms of OpenSSL's setup before its first step.
        """
        with _collecting_nothing():
            from ftrun.checkpoint.tls import ServerIdentity

            ServerIdentity()

    def forgo(self) -> None:
        """Cancel the remaining imports: no fork will run a script."""
        self._late.clear()

    def finish(self) -> None:
        while self._late:
            self._one_more()

    def go_on(self, pause: Callable[[], None]) -> None:
        """Import the next module, and call ``pause`` before each module that it imports in turn.

        Raises:
            BaseException: raised by ``pause``, unless a module's own ``except`` catches it.
        """
        finder = _ImportPause(pause)
        sys.meta_path.insert(0, finder)
        try:
            self._one_more()
        finally:
            sys.meta_path.remove(finder)

    def _one_more(self) -> None:
        # No script imports a module that this version of torch does not have, so its absence is no
        # error.
        with contextlib.suppress(ImportError), _collecting_nothing(), _keeping_environment():
            importlib.import_module(self._late.pop(0))


@contextlib.contextmanager
def _collecting_nothing() -> Iterator[None]:
    """Import without the garbage collector, then freeze the objects.

    So no worker's collector scans the modules' memory, which would copy its pages.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextlib.contextmanager
def _keeping_environment() -> Iterator[None]:
    """Import without changing the environment.

    torch sets TORCHINDUCTOR_CACHE_DIR when its compiler is imported. A script that sets a default
    for it would find it set already, although the script itself imports the compiler later.
    """
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        # Update only what differs: /proc does not show the new value of a variable that is set
        # again.
        os.environ.update({n: v for n, v in before.items() if os.environ.get(n) != v})


class _ImportPause:
    """A finder that finds no module.

    The import system calls it at each import; it calls ``pause``.
    """

    def __init__(self, pause: Callable[[], None]) -> None:
        self._pause = pause

    def find_spec(self, _name: str, _path: object, _target: object = None) -> None:
        """Called by the import system before it looks for ``name``."""
        self._pause()
