"""The page of torchft's replica groups, kept up to date.

Not here: the words (status/torchft.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from ftrun.core.torchft_quorum.status import TorchftStatus
from ftrun.tools.status.screen.pages import Page
from ftrun.tools.status.screen.pieces import BAD, CARE, DIM, GOOD, STRONG, TEXT, fit, line
from ftrun.tools.status.torchft import (
    COLUMNS,
    RIGHT,
    left_out,
    replica_cells,
    replica_state,
    room_words,
)
from ftrun.tools.status.words import plain

WIDTHS = (44, 7, 9, 6, 7, 7, 30)
_ROLES = {"member": GOOD, "joins": CARE, "lives": TEXT, "silent": BAD}


class TorchftPage(Page):
    """All rooms."""

    def __init__(self) -> None:
        super().__init__("torchft's replicas")

    def body(self) -> Text:
        """The present facts about torchft's jobs."""
        status = self.host.picture.status
        found = None if status is None else status.get("torchft")
        if found is None:
            return line((" This lighthouse has no port for torchft: --torchft-bind.", DIM))
        return torchft_text(found)


def torchft_text(found: TorchftStatus) -> Text:
    """The text of the page."""
    addresses = ", ".join(plain(address) for address in found["addresses"])
    rows = [line((f" clients come to {addresses}, without a token", DIM))]
    for room in found["rooms"]:
        rows += [line(), line((f" {room_words(room)}", STRONG)), _row(COLUMNS, DIM)]
        for replica in room["replicas"]:
            rows.append(_row(replica_cells(replica), _ROLES[replica_state(replica)]))
        if left_out(room):
            rows.append(line((f" {left_out(room)}", DIM)))
    if not found["rooms"]:
        rows.append(line((" No replica has come yet.", DIM)))
    return Text("\n").join(rows)


def _row(texts: Sequence[str], role: str) -> Text:
    parts = []
    for text, name, cells in zip(texts, COLUMNS, WIDTHS, strict=True):
        is_state = name == "state" or role == DIM
        parts.append(fit(line((text, role if is_state else TEXT)), cells, right=name in RIGHT))
    return line(" ", Text("  ").join(parts))
