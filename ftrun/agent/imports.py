"""What the spawner imports, and when: before the first word, on demand, and in between.

What torch itself imports late costs a script that trains in parallel more than a second, so such a
script is waited with until the spawner has it; for another it is imported when nothing else is to
be done. No garbage is looked for meanwhile: that took a tenth of the time. Not here: forking.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
from collections.abc import Callable, Iterator

FIRST = ("numpy", "torch", "torch.distributed")
LATE = (
    # What torch itself imports late: at the first DistributedDataParallel, 823 modules in 1.1 s.
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint",
    "ftrun.protocol.frames",
    "ftrun.process_groups",
    "ftrun.checkpoint.serve",
    "ftrun.training.manager",
)


class Unimportable(Exception):
    """A module that the job cannot do without, and what it raised."""


def import_first() -> None:
    """What every job needs.

    Raises:
        Unimportable: it is not installed, or a library that it needs is not.
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
    """The modules that are still to be imported."""

    def __init__(self) -> None:
        self._late = list(LATE)

    @property
    def are_done(self) -> bool:
        """True when there is nothing left to import."""
        return not self._late

    def preload(self, names: tuple[str, ...]) -> None:
        """Import the user's modules.

        Raises:
            Unimportable: one that cannot be.
        """
        with _collecting_nothing():
            for name in names:
                try:
                    importlib.import_module(name)
                except Exception as error:  # the user's module: whatever it raises
                    reason = f"--preload {name}: {type(error).__name__}: {error}"
                    raise Unimportable(reason) from error

    def make_ready_for_tls(self) -> None:
        """Do what the first certificate of a process takes most of its time for.

        60 ms of imports and 25 of OpenSSL's own, in each worker before its first step.
        """
        with _collecting_nothing():
            from ftrun.checkpoint.tls import ServerIdentity

            ServerIdentity()

    def finish(self) -> None:
        """Import all that is left."""
        while self._late:
            self._one_more()

    def go_on(self, pause: Callable[[], None]) -> None:
        """Import the next, calling ``pause`` between the modules that it pulls in.

        Raises:
            BaseException: what ``pause`` raises, if no module's own ``except`` keeps it.
        """
        finder = _ImportPause(pause)
        sys.meta_path.insert(0, finder)
        try:
            self._one_more()
        finally:
            sys.meta_path.remove(finder)

    def _one_more(self) -> None:
        # A module that this torch does not have is no error: it is then imported by nobody.
        with contextlib.suppress(ImportError), _collecting_nothing():
            importlib.import_module(self._late.pop(0))


@contextlib.contextmanager
def _collecting_nothing() -> Iterator[None]:
    """What is imported stays: no collection in a worker needs to look at it, and so copy it."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class _ImportPause:
    """A finder that finds nothing: it is asked before every import, and lets others be served."""

    def __init__(self, pause: Callable[[], None]) -> None:
        self._pause = pause

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        """Called by the import system before it looks for ``name``."""
        self._pause()
