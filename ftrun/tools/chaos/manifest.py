"""The file of a campaign: faults by step. It is checked in full before any fault is injected.

docs/CHAOS.md describes it. Not here: how faults are injected (campaign.py).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from ftrun.base.addresses import parse_address
from ftrun.base.errors import UserError
from ftrun.config.layers import parse_toml
from ftrun.config.options import nearest
from ftrun.tools.chaos.draws import parse_duration

SCHEMA = "ftrun.chaos/1"
FILE_BYTES_MAX = 1 << 20
FAULTS_MAX = 10_000
KINDS: dict[str, tuple[str, ...]] = {
    "kill": ("replica", "worker"),
    "stop": ("replica", "worker", "lasts"),
    "node": ("replica",),
    "lighthouse": (),
    "slow": ("lasts", "delay"),
    "corrupt": ("replica", "worker"),
}
"""The keys of each kind of fault besides ``at_step`` and ``do``."""
TIMES = ("lasts", "delay")
TOP = ("schema", "seed", "fault", "proxy", "end")
_HEADER = re.compile(r"\s*\[\[\s*fault\s*\]\]")


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        replica: None: drawn from the members.
        lasts_s: of stop and slow.
        delay_s: for slow: how long each chunk is delayed in the proxy.
    """

    at_step: int
    kind: str
    replica: str | None = None
    worker: int = 0
    lasts_s: float = 0.0
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Manifest:
    """A campaign.

    Attributes:
        digest: of the file.
        listen, to: of the proxy; "": there is none.
        pattern: its first group matches a replica's end result in its log; "": results are not
            compared.
        undisturbed: the end result of a run without faults; "": not known.
    """

    digest: str
    faults: tuple[Fault, ...]
    seed: int | None = None
    listen: str = ""
    to: str = ""
    pattern: str = ""
    undisturbed: str = ""


def read(path: Path) -> Manifest:
    """Read and check a manifest.

    Raises:
        UserError: it is wrong; names the line. Nothing has been done.
    """
    try:
        data = path.read_bytes()[: FILE_BYTES_MAX + 1]
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--manifest {path} cannot be read: {error}. Nothing was done.") from None
    if len(data) > FILE_BYTES_MAX:
        raise UserError(f"--manifest {path}: it is over {FILE_BYTES_MAX >> 20} MiB.")
    return _Reading(path, text).manifest(hashlib.sha256(data).hexdigest())


class _Reading:
    def __init__(self, path: Path, text: str) -> None:
        self._path, self._lines = path, text.splitlines()
        self._entries = parse_toml(text, path)

    def manifest(self, digest: str) -> Manifest:
        found = self._entries
        self._known(found, TOP, 0)
        if found.get("schema") != SCHEMA:
            self._fail(0, "schema", f"give schema = {SCHEMA!r}, the format that this ftrun knows")
        seed = found.get("seed")
        if seed is not None and type(seed) is not int:
            self._fail(0, "seed", "give a whole number")
        proxy, end = self._table("proxy", ("listen", "to")), self._table("end", None)
        for key in proxy:
            self._address(key, proxy[key])
        faults = found.get("fault", [])
        if not isinstance(faults, list) or not 0 < len(faults) <= FAULTS_MAX:
            self._fail(0, "fault", f"give one to {FAULTS_MAX} tables [[fault]]")
        starts = [at for at, line in enumerate(self._lines) if _HEADER.match(line)]
        starts += [0] * (len(faults) - len(starts))  # written as one list
        read = [self._fault(one, at) for one, at in zip(faults, starts, strict=False)]
        for before, after, at in zip(read, read[1:], starts[1:], strict=False):
            if after.at_step < before.at_step:
                self._fail(at, "at_step", f"it is before the fault above, at {before.at_step}")
        if any(fault.kind == "slow" for fault in read) and not proxy:
            self._fail(starts[[x.kind for x in read].index("slow")], "do", "slow needs a [proxy]")
        return Manifest(digest, tuple(read), seed, **proxy, **end)

    def _table(self, name: str, needed: tuple[str, ...] | None) -> dict[str, Any]:
        table = self._entries.get(name, {})
        if not isinstance(table, dict) or not all(isinstance(x, str) for x in table.values()):
            self._fail(0, name, f"[{name}] is a table of texts")
        self._known(table, needed or ("pattern", "undisturbed"), 0)
        if table and needed and set(table) != set(needed):
            self._fail(0, name, f"[{name}] needs {' and '.join(needed)}")
        pattern = table.get("pattern", "()")
        try:
            if re.compile(pattern).groups < 1:
                self._fail(0, "pattern", "it has no group (…), which is what is compared")
        except re.error as error:
            self._fail(0, "pattern", f"it is no regular expression: {error}")
        if "undisturbed" in table and "pattern" not in table:
            self._fail(0, "undisturbed", "it needs a pattern to be compared with")
        return table

    def _address(self, key: str, value: str) -> None:
        try:
            parse_address(value, key)
        except UserError as error:
            self._fail(0, key, str(error))

    def _fault(self, found: Mapping[str, Any], at: int) -> Fault:
        kind, step = found.get("do"), found.get("at_step")
        if kind not in KINDS:
            hint = nearest(str(kind), KINDS)
            self._fail(at, "do", f"give one of {', '.join(KINDS)}, not {kind!r}.{hint}")
        self._known(found, ("do", "at_step", *KINDS[kind]), at)
        if type(step) is not int or step < 0:
            self._fail(at, "at_step", "give the step from which on it comes, a whole number")
        for key in TIMES:
            if key in KINDS[kind] and key not in found:
                self._fail(at, "do", f"{kind} needs {key}, a time as '2s'")
        replica, worker = found.get("replica"), found.get("worker", 0)
        if replica is not None and not isinstance(replica, (str, int)):
            self._fail(at, "replica", "give a replica's number")
        if type(worker) is not int or worker < 0:
            self._fail(at, "worker", "give a worker's number in its replica, from 0")
        times = {f"{key}_s": self._time(found[key], key, at) for key in TIMES if key in found}
        return Fault(step, kind, None if replica is None else str(replica), worker, **times)

    def _time(self, value: Any, key: str, at: int) -> float:
        try:
            return parse_duration(str(value), key)
        except UserError as error:
            self._fail(at, key, str(error))

    def _known(self, found: Mapping[str, Any], keys: tuple[str, ...], at: int) -> None:
        for key in found:
            if key not in keys:
                self._fail(at, key, f"it is not known here.{nearest(key, keys)}")

    def _fail(self, at: int, key: str, words: str) -> NoReturn:
        """Fail with the line of ``key`` in the table that begins at line ``at``, or that line
        itself."""
        begins = re.compile(rf"\s*(\[+\s*)?[\"']?{re.escape(key)}\b")
        table = self._lines[at + 1 :] if at else self._lines
        ends = next((i for i, line in enumerate(table) if at and line.lstrip()[:1] == "["), None)
        inside = [i for i, line in enumerate(table[:ends]) if begins.match(line)]
        line = (inside[0] + (at + 1 if at else 0) if inside else at) + 1
        raise UserError(f"{self._path}, line {line}: {key}: {words}. Nothing was done.")
