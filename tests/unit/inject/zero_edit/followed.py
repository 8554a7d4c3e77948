"""A script whose loops are followed, in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ftrun.inject.zero_edit import headers
from ftrun.inject.zero_edit.counting import RANGES


def run(path: Path, source: str) -> dict[str, Any]:
    """Run a script; its global names. Its loops are followed also later."""
    path.write_text(source)
    RANGES.is_on = True
    names: dict[str, Any] = {"__name__": path.stem, "__file__": str(path)}
    code = headers.compiled(source.encode(), str(path))
    exec(code or compile(source, str(path), "exec"), names)
    return names
