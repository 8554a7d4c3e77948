"""``torch.save`` to a path writes another file first and renames it.

A replica that dies while it writes leaves the older file whole, and replicas that all write one
path do not write into each other's. Not here: which replica writes; the script decides by its rank.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import torch

from ftrun.inject.zero_edit.patches import Patches


def install(patches: Patches) -> None:
    """Patch ``torch.save``."""
    plain = torch.save

    @functools.wraps(plain)
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(f, (str, os.PathLike)):
            plain(obj, f, *args, **kwargs)
            return
        path = Path(f)
        draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
        try:
            plain(obj, draft, *args, **kwargs)
            os.replace(draft, path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise

    patches.put(torch, "save", save)
    patches.put(torch.serialization, "save", save)
