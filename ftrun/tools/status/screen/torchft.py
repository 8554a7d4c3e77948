"""torchft's replica groups in words: one line for each room, one row for each replica.

Pure. Text from the network is made plain here. Not here: the page (pages.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from ftrun.base.words import age, counted, duration, plain
from ftrun.core.torchft_quorum.status import (
    TorchftReplicaStatus,
    TorchftRoomStatus,
    TorchftStatus,
)
from ftrun.tools.status.screen.pieces import BAD, CARE, DIM, GOOD, STRONG, TEXT, fit, line

COLUMNS = ("replica", "state", "step", "ranks", "failed", "seen", "manager")
RIGHT = ("step", "ranks", "failed", "seen")
NAME_CHARS_MAX = 44
WIDTHS = (44, 7, 9, 6, 7, 7, 30)
_ROLES = {"member": GOOD, "joins": CARE, "lives": TEXT, "silent": BAD}


def room_words(room: TorchftRoomStatus) -> str:
    """The room's quorum, and what is waited for."""
    name = f"torchft, room {plain(room['room'])}: "
    if not room["members"]:
        found = f"{name}no quorum yet"
    else:
        when = "of an earlier lighthouse"
        if room["age_s"] is not None:
            when = f"asked for {duration(room['age_s'])} ago"
        found = f"{name}quorum {room['quorum_id']} of {counted(room['members'], 'replica')}, {when}"
    return f"{found}; the next one waits: {room['waiting']}" if room["waiting"] else found


def replica_state(replica: TorchftReplicaStatus) -> str:
    """Its state in one or two words."""
    if replica["silent_s"] is None:
        return "silent"
    if replica["is_waiting"]:
        return "joins"
    return "member" if replica["is_member"] else "lives"


def replica_cells(replica: TorchftReplicaStatus) -> tuple[str, ...]:
    """The row of a replica, in the order of ``COLUMNS``."""
    step, ranks, seen = replica["step"], replica["world_size"], replica["silent_s"]
    return (
        plain(replica["replica_id"], NAME_CHARS_MAX),
        replica_state(replica),
        "-" if step is None else f"{step:,}",
        "-" if ranks is None else str(ranks),
        str(replica["commit_failures"]),
        "-" if seen is None else age(seen),
        plain(replica["address"]) or "-",
    )


def left_out(room: TorchftRoomStatus) -> str:
    """Words for the replicas that are not shown; empty: there are none."""
    number = room["replicas_left_out"]
    return f"and {counted(number, 'replica')} more" if number else ""


def torchft_text(found: TorchftStatus | None) -> Text:
    """All rooms; None: the lighthouse has no port for torchft."""
    if found is None:
        return line((" This lighthouse has no port for torchft: --torchft-bind.", DIM))
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
