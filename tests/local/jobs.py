"""Jobs of scripts/train.py: the cost of their kills, and whether their weights were equal.

Not here: the script (scripts/), the command that prints the table (scripts/local_training.py at the
root).
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from tests.jobs import Job

SCRIPT = Path(__file__).resolve().parent / "scripts" / "train.py"
FORMS = ("local", "plain", "streaming", "buckets", "quantised")
END_S = 600.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a job.

    ``within``: the number of kills during a step of the victim's Manager. ``lost``: outer steps
    that were not committed, of all processes together. ``compared``: outer steps after which at
    least two processes had weights to compare; ``unlike``: those of them with different weights.
    ``ends``: the last output of all replicas.
    """

    exit_code: int
    kills: int
    within: int
    lost: int
    steps: int
    compared: int
    unlike: tuple[int, ...]
    ends: tuple[str, ...]
    output: str

    @property
    def is_right(self) -> bool:
        """Whether all ended with equal weights, and had equal ones after each outer step."""
        return self.exit_code == 0 and not self.unlike and len(set(self.ends)) == 1


def run(directory: Path, form: str, kills: int, seed: int, replicas: int = 2) -> Outcome:
    """Train in ``form``; ``kills`` times a random worker is killed while all train together."""
    options = ("--replicas", str(replicas), "--device", "cpu", "--max-restarts", "100")
    arguments = (form, str(kills), str(seed))
    with Job(directory, SCRIPT.read_text(), *options, args=arguments) as job:
        exit_code = job.end(END_S)
        output = job.output
    died = [path.read_text().split() for path in directory.glob("died.*")]
    digests: dict[tuple[int, str], list[str]] = defaultdict(list)
    lost = 0
    for path in directory.glob("digests.*"):
        found = {}
        not_committed = "0"
        for line in path.read_text().split("\n")[:-1]:
            step, lineage, digest, not_committed = line.split()
            found[int(step), lineage] = digest  # a step that was not committed leaves the state
        lost += int(not_committed)
        for state, digest in found.items():
            digests[state].append(digest)
    several = {state: found for state, found in digests.items() if len(found) > 1}
    return Outcome(
        exit_code,
        kills=len(died),
        within=sum(words[3] == "1" for words in died),
        lost=lost,
        steps=max(step for step, _ in digests),
        compared=len(several),
        unlike=tuple(step for (step, _), found in several.items() if len(set(found)) > 1),
        ends=tuple(re.findall(r"END (.*)", output)),
        output=output,
    )
