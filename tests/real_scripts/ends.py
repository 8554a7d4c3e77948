"""What a run has left: each tensor as its shape and a digest, each plain value as it is.

A file that torch saved is read with the classes of the script, in its directory. Not here: what two
ends have in common (verdicts.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import torch

VALUES_MAX = 100_000
TENSORS = (".pt", ".pth", ".ckpt", ".bin", ".tar", ".model", ".pkl", "")
PLAIN = (bool, int, float, str, type(None))


def end_of(patterns: list[str]) -> dict[str, Any]:
    """Of each file that a pattern matches: its values by their path in it."""
    found: dict[str, Any] = {}
    for pattern in patterns:
        for path in sorted(Path().glob(pattern)):
            if path.is_file():
                found[str(path)] = _read(path)
    return found


def _read(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        _walk(load_file(path), "", values)
    elif path.suffix in TENSORS:
        loaded = torch.load(path, map_location="cpu", weights_only=False)
        _walk(loaded, "", values)
    elif path.suffix in (".npz", ".npy"):
        _walk(dict(numpy.load(path)), "", values)
    else:
        values = {str(n): line for n, line in enumerate(path.read_text().splitlines())}
    return values


def _walk(value: Any, name: str, values: dict[str, Any], depth: int = 0) -> None:
    if len(values) > VALUES_MAX or depth > 12:
        return
    if isinstance(value, torch.nn.Module):
        value = value.state_dict()
    if isinstance(value, numpy.ndarray) and value.dtype != object:
        value = torch.from_numpy(numpy.ascontiguousarray(value))
    if isinstance(value, (torch.Tensor, numpy.generic)) and value.ndim == 0:
        value = value.item()
    if isinstance(value, PLAIN):
        values[name] = repr(value) if value != value else value
    elif isinstance(value, torch.Tensor):
        values[name] = _tensor(value)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            _walk(inner, f"{name}.{key}", values, depth + 1)
    elif isinstance(value, (list, tuple)):
        for number, inner in enumerate(value):
            _walk(inner, f"{name}[{number}]", values, depth + 1)
    else:
        values[name] = type(value).__name__


def _tensor(value: torch.Tensor) -> list[Any]:
    """Its type and shape, a digest of its bytes, and whether all numbers are finite."""
    full = getattr(value, "full_tensor", None)
    flat = (full() if full else value).detach().cpu().contiguous().reshape(-1)
    digest = hashlib.sha256(flat.view(torch.uint8).numpy().tobytes()).hexdigest()[:16]
    kind = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return [kind, digest, bool(torch.isfinite(flat.float()).all())]
