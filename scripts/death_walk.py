"""How far one death walks through the lighthouse's core: files entered, and calls of its functions.

    python scripts/death_walk.py         the sum, and each file with its calls
    python scripts/death_walk.py -v      also each function

The death is from tests/transcripts/shrink.txt: from the event in which a replica is lost to the one
in which the survivors are sent their next quorum. The counts are exact. Not here: their limits
(tests/unit/core/lighthouse/test_walk.py).
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ftrun.core.lighthouse.machine import Lighthouse  # noqa: E402
from tests.transcripts.replay import Replay  # noqa: E402

CORE = ROOT / "ftrun" / "core"
ROOMS = (str(CORE / "lighthouse"), str(CORE / "books"))
TRANSCRIPT = ROOT / "tests" / "transcripts" / "shrink.txt"
INLINE = ("<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>")
"""Whether these count as calls depends on the version of Python."""
FIRST, LAST = "A says lost 1a", "NewQuorum"


class Walk:
    """Counts calls by file and function, while ``handle`` of a lighthouse runs."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()

    @property
    def files(self) -> Counter[str]:
        """The calls in each file."""
        found: Counter[str] = Counter()
        for (file, _), count in self.calls.items():
            found[file] += count
        return found

    def note(self, frame: FrameType, what: str, _: Any) -> None:
        """One event of the profiler."""
        code = frame.f_code
        if what == "call" and code.co_filename.startswith(ROOMS) and code.co_name not in INLINE:
            file = str(Path(code.co_filename).relative_to(CORE))
            self.calls[file, code.co_name] += 1


class _Walked(Lighthouse):
    """A lighthouse whose decisions are counted. Its assertions are not part of a walk."""

    walk: Walk | None = None

    def handle(self, event: Any, now: float) -> Any:
        if self.walk is None:
            return super().handle(event, now)
        sys.setprofile(self.walk.note)
        try:
            return super().handle(event, now)
        finally:
            sys.setprofile(None)

    def check(self) -> None:
        pass


def death() -> Walk:
    """The walk of the transcript's death."""
    replay, walk = Replay(_Walked), Walk()
    for line in TRANSCRIPT.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith((" ", "#")):
            continue
        if line.startswith(FIRST):
            assert isinstance(replay.lighthouse, _Walked)
            replay.lighthouse.walk = walk
        out = replay.line(line)
        if walk.calls and any(LAST in said for said in out):
            return walk
    raise AssertionError(f"{TRANSCRIPT} has no death")


def main(words: list[str]) -> None:
    """Print the walk."""
    walk = death()
    print(f"{len(walk.files)} files, {sum(walk.calls.values())} calls")
    for file, count in walk.files.most_common():
        print(f"{count:5} {file}")
        if "-v" in words:
            for (of, name), calls in sorted(walk.calls.items()):
                if of == file:
                    print(f"{calls:11} {name}")


if __name__ == "__main__":
    main(sys.argv[1:])
