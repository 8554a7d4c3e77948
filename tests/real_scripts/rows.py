"""The rows of table.toml, and what is changed in a foreign script so that it runs here.

Not here: how a repository is fetched (sources.py), how a script is run (running.py).
"""

from __future__ import annotations

import hashlib
import re
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TABLE = Path(__file__).with_name("table.toml")


@dataclass(frozen=True)
class Change:
    """A replacement in one file: of a piece of text, or of a regular expression (``re``).

    ``new`` is a template of ``re.sub`` with an expression. A change that finds nothing is an error,
    because the script would not be what the row says.
    """

    file: str
    old: str
    new: str = ""
    is_pattern: bool = False

    def apply(self, text: str) -> str:
        """The changed text.

        Raises:
            ValueError: the text has no such piece.
        """
        pattern = self.old if self.is_pattern else re.escape(self.old)
        new: Any = self.new if self.is_pattern else (lambda _: self.new)
        text, count = re.subn(pattern, new, text, flags=re.MULTILINE)
        if not count:
            raise ValueError(f"{self.file} has no {self.old!r}")
        return text


ON_CPU = (
    (r"([\"'])nccl\1", r"\1gloo\1"),
    (
        r"torch\.cuda\.(?:set_device|synchronize|empty_cache|reset_peak_memory_stats)"
        r"\((?:[^()]|\([^()]*\))*\)",
        "None",
    ),
    (r"torch\.cuda\.(max_)?memory_(allocated|reserved)\([^()]*\)", "0"),
    (r"\.cuda\((?:[^()]|\([^()]*\))*\)", ""),
    (r"\bdevice_ids\s*=\s*\[(?:[^][]|\[[^]]*\])*\]", "device_ids=None"),
    (r"\boutput_device\s*=\s*[\w.]+(?:\([^()]*\)|\[[^]]*\])?", "output_device=None"),
    (r"\.pin_memory\(\)", ""),
    (r"(\w+\.)?(local_)?rank % torch\.cuda\.device_count\(\)", '"cpu"'),
    (r"torch\.cuda\.device_count\(\)", "2"),
    (r"^(\s*)assert torch\.cuda\.is_available\(\).*", r"\1pass"),
    (r"\.to\(((self|args)\.)?(local_rank|rank|gpu_id|gpu)\)", ""),
    (r"(torch\.)?nn\.SyncBatchNorm\.convert_sync_batchnorm\((\w+)\)", r"\2"),
    (r"(?<![=!]= )f?([\"'])cuda(:[^\"']*)?\1(?! +(?:in|if)\b)", r"\1cpu\1"),
)  # fmt: skip
"""What a machine without GPU forces in nearly every script; in files that ``on_cpu`` names."""
PACE = "exec(__import__('pathlib').Path(__import__('os').environ['STEP_PACE']).read_text(), {})"
"""Executes pace.py: waits while a worker is away, so that few steps pass until it is back."""
SEEDS = "import torch, random, numpy; torch.manual_seed(0); random.seed(0); numpy.random.seed(0)\n"


@dataclass(frozen=True)
class Row:
    """A script.

    Attributes:
        name: of the row. ``family``: a word about what it trains. ``repository``: owner and name.
        paths: the parts of the repository that are wanted; by default all.
        directory: where it runs, below the repository. ``script``: path or ``-m module`` there.
        needs: packages of pip; one that ends with `` --no-deps`` is installed without others.
        make: lines of generators (making.py) that write data before the run.
        changes: of the script's files, from the repository's top; they come first.
        on_cpu: globs of files to which ``ON_CPU`` is applied.
        seeds: a file before whose first import ``SEEDS`` is put.
        pace: a file, and a piece of its text after which each step waits while a worker is away. It
            changes no result.
        environment: more variables.
        workers: of each replica. ``replicas``: 1 is one group, in which workers are killed, and in
            which not a bit may change. ``in_place``: nor may it with memory snapshots of several
            replicas, where workers are killed too.
        files: globs of what the script leaves, below ``directory``.
        lines: expressions; the groups of all matches in the output are part of the script's end.
        ignore: an expression; what matches in the names and texts of files is left out.
        kills: when replica 0 and then replica 1 are killed, or worker 0 and worker 1 of one group:
            ``N%`` of the steps of the undisturbed run, or ``N: REGEX`` for the N-th line of output
            that matches. The second is looked for when the first is back.
        tolerance: how far numbers may be apart after a death, relative; steps of a survivor alone
            have other samples.
        is_exact: whether the numbers undisturbed must be torchrun's to the last bit, if seeded.
        check_steps: for ``ftrun check``.
    """

    name: str
    family: str
    repository: str
    commit: str
    script: str
    args: str = ""
    directory: str = "."
    paths: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    make: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    on_cpu: tuple[str, ...] = ()
    seeds: str = ""
    pace: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    workers: int = 1
    replicas: int = 2
    in_place: bool = False
    files: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    ignore: str = ""
    kills: tuple[str, str] = ("25%", "60%")
    tolerance: float = 0.5
    is_exact: bool = True
    check_steps: int = 15

    @property
    def is_mended(self) -> bool:
        """Whether a worker that is killed is replaced in its group, and no death changes a bit."""
        return self.replicas == 1 or self.in_place

    @property
    def mark(self) -> str:
        """Of what the row says; what was run for another mark is not this row's."""
        said = repr(self).replace(", is_exact=True", "").replace(", replicas=2", "")
        said = said.replace(", in_place=False", "")
        return hashlib.sha256(said.encode()).hexdigest()[:12]


def rows(only: str = "") -> list[Row]:
    """Those whose name, repository or family match the expression ``only``."""
    found = [row_of(entry) for entry in tomllib.loads(TABLE.read_text())["script"]]
    return [x for x in found if re.search(only, f"{x.name} {x.repository} {x.family}")]


def row_of(entry: dict[str, Any]) -> Row:
    """A row from its entry in the table.

    Raises:
        TypeError: the entry has a key that no row has, or lacks one.
    """
    changes = [_change(*words) for words in entry.pop("changes", ())]
    lists = {key: tuple(value) for key, value in entry.items() if isinstance(value, list)}
    assert {field.name for field in fields(Row)}.issuperset(entry), entry
    return Row(**{**entry, **lists, "changes": tuple(changes)})


def _change(file: str, old: str, new: str = "") -> Change:
    """``re:`` before the old text makes it an expression."""
    is_pattern = old.startswith("re:")
    return Change(file, old.removeprefix("re:"), new, is_pattern)


def change_files(row: Row, top: Path) -> None:
    """Change the files of a row below ``top``.

    Raises:
        ValueError: a change finds nothing.
    """
    for change in row.changes:
        path = top / change.file
        path.write_text(change.apply(path.read_text()))
    for path in (path for pattern in row.on_cpu for path in top.glob(pattern)):
        path.write_text(on_cpu(path.read_text()))
    if row.pace:
        file, old = row.pace
        change = Change(file, old, f"{old}; {PACE}")
        (top / file).write_text(change.apply((top / file).read_text()))
    if row.seeds:
        change = Change(
            row.seeds, r"\A((?s:.*?))^(?=import |from (?!__future__))", rf"\1{SEEDS}", True
        )
        path = top / row.seeds
        path.write_text(change.apply(path.read_text()))


def on_cpu(text: str) -> str:
    """A script's text without what needs a GPU."""
    for old, new in ON_CPU:
        text = re.sub(old, new, text, flags=re.MULTILINE)
    return text
