"""What preserves a worker's part in its steps, so that another process can take its place.

Not here: what is kept and where (inject/zero_edit/in_place.py), the machine of a successor
(core/worker/machine.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ftrun.core.ids import Attempt
from ftrun.core.worker.events import Event

if TYPE_CHECKING:
    from ftrun.training.reductions import Reduction


class Keeper(Protocol):
    """Keeps one worker. Code that keeps workers registers it in their process (context.py).

    ``is_repeating``: this process repeats, alone, what a lost process has done.
    """

    is_repeating: bool

    def vote_group(self, timeout_s: float) -> Any:
        """The process group for the votes of this replica group."""

    def resuming(self, engine: Any) -> Any:
        """For the first Manager: a claim to the state that this replica's earlier processes have
        left in memory; None: there is none."""

    def connect(self, session: Any) -> None:
        """The Manager is made, with this Session. Called once, before any step."""

    def begins(self) -> None:
        """In the training thread, at a boundary: the script wants to begin a step."""

    def has_begun(self, *, is_whole: bool) -> None:
        """In the training thread: a step has begun. ``is_whole``: this worker holds the job's
        state."""

    def decided(self, *, committed: bool) -> None:
        """In the training thread: the step has ended."""

    def sees(self, attempt: Attempt) -> None:
        """A higher attempt has become known here. Under the engine's lock, before this worker acts
        on it."""

    def hands_out(self, step: int, known: Sequence[tuple[int, Reduction]], at: Attempt) -> None:
        """These results, by index, are final under attempt ``at`` in the step of this number. Under
        the engine's lock, and before anything can read them."""

    def answers(self, step: int, index: int, reduction: Reduction) -> list[Event]:
        """While it repeats: the outcome of a reduction. Under the engine's lock."""

    def lacks(self, what: str) -> None:
        """The script does something with its Manager that cannot be repeated."""

    def ends(self) -> None:
        """The script is over. Returns when no other worker of the group needs this one."""
