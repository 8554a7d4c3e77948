"""A snapshot's manifest: the last file that is written, and the proof that the others are whole.

It is JSON. It lists each file with its size and hash, and each tensor's place in a file, so that
ftrun reads a snapshot without unpickling anything. It imports no torch, because the launcher reads
manifests too. Not here: which snapshot is the newest (directory.py), the tensors (reading.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from ftrun.base.errors import FtrunError
from ftrun.core.forms import AUTO

NAME = "ftrun.json"
FORMAT = "ftrun.snapshot/1"
MANIFEST_BYTES_MAX = 256 << 20
READ_BYTES = 16 << 20
POSITION_CHARS_MAX = 1 << 20
AWAITS = 0


class Damaged(FtrunError):
    """A snapshot is not whole, or differs from its manifest."""


class Unknown(Damaged):
    """A snapshot of a format that this ftrun does not know."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The job that a snapshot comes from.

    Attributes:
        script: its file's or module's name.
        inject: the form that the script turned out to have (core/forms.py), ``explicit`` or
            ``ddp``.
    """

    script: str
    inject: str
    workers_per_replica: int
    replicas: int
    job_id: str = ""

    def fits(self, script: str, inject: str, workers_per_replica: int) -> bool:
        """Whether such a job can resume from it. ``inject``: ``auto`` while it is not known yet.

        Manifests of earlier versions may contain ``auto`` themselves.
        """
        forms = {self.inject, inject} - {AUTO}
        same = (self.script, self.workers_per_replica) == (script, workers_per_replica)
        return same and len(forms) <= 1


@dataclass(frozen=True, slots=True)
class StoredFile:
    """``digest``: xxh3_128, in hex."""

    nbytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class StoredLeaf:
    """The place of a tensor, an array or bytes in the DCP files.

    Attributes:
        spec: the fields of ``LeafSpec`` (checkpoint/leaves.py).
        is_raw: the bytes are in a file beside DCP's, because DCP packs them with other values.
    """

    spec: tuple[Any, ...]
    file: str
    offset: int
    length: int
    is_raw: bool = False


@dataclass(frozen=True, slots=True)
class Share:
    """A snapshot's content for one worker of a replica.

    Attributes:
        position: the place of an unmodified script in its loop (inject/zero_edit/place.py); empty:
            the script finds its place from its state.
        structure: of the tree (checkpoint/format.py).
    """

    position: str
    structure: Any
    leaves: tuple[StoredLeaf, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """One snapshot.

    Attributes:
        step, lineage: the state id.
        position, structure, leaves: the share of a replica's first worker.
        mates: the shares of the other workers, in order.
        written_at: in UTC, for people.
        agreed: a step, this one or a later one, at which all replicas had the same parameters;
            AWAITS: not known yet; None: these replicas are not compared.
    """

    step: int
    lineage: str
    origin: Origin
    position: str
    written_at: str
    structure: Any
    leaves: tuple[StoredLeaf, ...]
    files: Mapping[str, StoredFile] = field(default_factory=dict)
    mates: tuple[Share, ...] = ()
    agreed: int | None = None

    def share(self, rank: int) -> Share:
        """The content from which worker ``rank`` of a replica resumes.

        Raises:
            Damaged: there is no such share.
        """
        if rank == 0:
            return Share(self.position, self.structure, self.leaves)
        if rank > len(self.mates):
            raise Damaged(f"it has no part of worker {rank}")
        return self.mates[rank - 1]

    def files_of(self, rank: int) -> dict[str, StoredFile]:
        """The files that worker ``rank`` reads. Worker 0 also gets the files that no worker
        reads."""
        names = {leaf.file for leaf in self.share(rank).leaves}
        if rank == 0:
            names |= self.files.keys() - {x.file for mate in self.mates for x in mate.leaves}
        return {name: file for name, file in self.files.items() if name in names}

    @property
    def nbytes(self) -> int:
        """The size of all files but the manifest itself."""
        return sum(file.nbytes for file in self.files.values())

    def encode(self) -> bytes:
        """Encode as JSON, with a hash of itself as its last line."""
        parts = {
            "format": FORMAT,
            "step": self.step,
            "lineage": self.lineage,
            "origin": asdict(self.origin),
            "position": self.position,
            "written_at": self.written_at,
            "files": {name: [x.nbytes, x.digest] for name, x in self.files.items()},
            "leaves": [_written(leaf) for leaf in self.leaves],
            "structure": self.structure,
        }
        if self.agreed is not None:
            parts["agreed"] = self.agreed
        if self.mates:
            numbers = {leaf: number for number, leaf in enumerate(self.leaves)}
            parts["mates"] = [self._mate(share, numbers) for share in self.mates]
        body = json.dumps(parts, separators=(",", ":"), allow_nan=False).encode("ascii")
        return body + b"\n" + xxhash.xxh3_128_hexdigest(body).encode() + b"\n"

    def _mate(self, share: Share, numbers: Mapping[StoredLeaf, int]) -> dict[str, Any]:
        """A share as JSON. What equals the first worker's is null, or the number of its leaf."""
        return {
            "position": None if share.position == self.position else share.position,
            "structure": None if share.structure == self.structure else share.structure,
            "leaves": [numbers[x] if x in numbers else _written(x) for x in share.leaves],
        }


def _written(leaf: StoredLeaf) -> list[Any]:
    return [leaf.spec, leaf.file, leaf.offset, leaf.length, leaf.is_raw]


def decode(data: bytes) -> Manifest:
    """Read a manifest.

    Raises:
        Damaged: it is not whole, or no manifest.
        Unknown: its format is not known to this ftrun.
    """
    body, _, digest = data.rstrip(b"\n").rpartition(b"\n")
    if xxhash.xxh3_128_hexdigest(body).encode() != digest:
        raise Damaged("its manifest is not whole")
    try:
        parts = json.loads(body)
        found = parts["format"]
        if found != FORMAT:
            raise Unknown(f"its format is {found!r}, and this ftrun reads {FORMAT!r}")
        return _read(parts)
    except (ValueError, KeyError, TypeError, RecursionError) as why:
        raise Damaged(f"its manifest is malformed: {why}") from why


def _read(parts: dict[str, Any]) -> Manifest:
    files = {
        _file_name(name): StoredFile(int(nbytes), str(digest))
        for name, (nbytes, digest) in parts["files"].items()
    }
    leaves = tuple(_leaf(written, files) for written in parts["leaves"])
    position = str(parts["position"])
    mates = tuple(
        Share(
            position if mate["position"] is None else str(mate["position"]),
            parts["structure"] if mate["structure"] is None else mate["structure"],
            tuple(leaves[x] if type(x) is int else _leaf(x, files) for x in mate["leaves"]),
        )
        for mate in parts.get("mates", ())
    )
    return Manifest(
        step=int(parts["step"]),
        lineage=str(parts["lineage"]),
        origin=Origin(**parts["origin"]),
        position=position,
        written_at=str(parts["written_at"]),
        structure=parts["structure"],
        leaves=leaves,
        files=files,
        mates=mates,
        agreed=parts.get("agreed"),
    )


def _leaf(written: list[Any], files: Mapping[str, StoredFile]) -> StoredLeaf:
    spec, file, offset, length, is_raw = written
    fields = tuple(tuple(x) if isinstance(x, list) else x for x in spec)
    leaf = StoredLeaf(fields, _file_name(file), int(offset), int(length), bool(is_raw))
    end = leaf.offset + leaf.length
    if leaf.file not in files or not 0 <= leaf.offset <= end <= files[leaf.file].nbytes:
        raise ValueError(f"a tensor outside of {leaf.file}")
    return leaf


def _file_name(name: str) -> str:
    if not name or "/" in name or name in (".", "..", NAME):
        raise ValueError(f"{name!r} is no file of a snapshot")
    return name


def load(snapshot: Path) -> Manifest:
    """Read the manifest of a snapshot, and check that all its files exist in full size.

    The files' content is not read: see ``verify``.

    Raises:
        Damaged: the snapshot is not whole.
        OSError: it cannot be read now, whole or not.
    """
    path = snapshot / NAME
    try:
        if path.stat().st_size > MANIFEST_BYTES_MAX:
            raise Damaged("its manifest is too long")
        found = decode(path.read_bytes())
        for name, file in found.files.items():
            nbytes = (snapshot / name).stat().st_size
            if nbytes != file.nbytes:
                raise Damaged(f"{name} has {nbytes} bytes, and {file.nbytes} were written")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Damaged(f"{Path(error.filename).name} is not there") from error
    return found


def verify(snapshot: Path, manifest: Manifest) -> None:
    """Read all files and compare their hashes with the manifest.

    Raises:
        Damaged: a file differs from what was written.
        OSError: a file cannot be read now.
    """
    for name, file in manifest.files.items():
        try:
            digest = digest_of(snapshot / name)
        except FileNotFoundError as error:
            raise Damaged(f"{name} is not there") from error
        if digest != file.digest:
            raise Damaged(f"{name} is not what was written: its hash differs")


def digest_of(path: Path) -> str:
    """The hash of a file."""
    hasher = xxhash.xxh3_128()
    with open(path, "rb") as file:
        while piece := file.read(READ_BYTES):
            hasher.update(piece)
    return hasher.hexdigest()
